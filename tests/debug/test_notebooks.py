"""Notebooks show arrays, layouts, meshes, modules, tables and progress, without widgets."""

from __future__ import annotations

import io
import json
import re
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import gdt
from gdt import Layout
from gdt.debug.html import ROWS
from gdt.testing import choices, meshes

from . import notebook


class Balanced(HTMLParser):
    """A parser that fails where an element is not closed, and collects texts and pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        self.pictures = [
            ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)
        ]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page(shown: Any) -> Balanced:
    return Balanced(shown._repr_html_())


def fields(picture: Any) -> list[tuple[list[float], str]]:
    """The rectangles of a picture: x, y, width, height and tooltip."""
    svg = "{http://www.w3.org/2000/svg}"
    return [
        ([float(r.get(k)) for k in ("x", "y", "width", "height")], r.find(f"{svg}title").text)
        for r in picture.iter(f"{svg}rect")
    ]


@pytest.mark.parametrize("mesh", meshes(), ids=lambda m: f"{m.sizes}{m.grid}")
@pytest.mark.parametrize("shape", [(), (9,), (8, 6), (5, 4, 6)], ids=str)
def test_a_picture_has_a_field_for_each_part_with_the_devices_that_hold_it(
    shape: tuple[int, ...], mesh: gdt.Mesh
) -> None:
    for (layout,) in choices(mesh, [len(shape)], limit=6, seed=len(shape)):
        x = gdt.relayout(gdt.zeros(shape, layout=Layout.replicated(mesh, len(shape))), layout)
        holders = [
            ", ".join(devices)
            for part, devices in gdt.visualize(x).holders.items()
            if all(stop > start for start, stop in part)
        ]
        for shown in (x, x.type, gdt.visualize(x)):
            html = page(shown)
            (picture,) = html.pictures
            tips = [tip for _, tip in fields(picture)]
            assert sorted(t.partition(" on ")[2] for t in tips) == sorted(holders)
            assert str(x.type) in html.texts
        assert repr(x) in "".join(page(x).texts)


def test_fields_fill_a_picture_in_the_proportions_of_the_shards() -> None:
    mesh = gdt.create_mesh([("x", 4), ("y", 2)])
    x = gdt.zeros((10, 7), layout=Layout(["x", "y"], mesh))
    (picture,) = page(x).pictures
    rectangles = {tip: r for r, tip in fields(picture)}
    assert len(rectangles) == 8
    (left, top, width, height) = rectangles["[0:3, 0:4] on cpu:0"]
    assert rectangles["[9:10, 4:7] on cpu:7"] == pytest.approx(
        [left + width, top + 3 * height, width * 3 / 4, height / 3], abs=0.2
    )
    total = sum(w * h for _, _, w, h in rectangles.values())
    assert total == pytest.approx(width / 4 * 7 * height / 3 * 10, rel=0.01)
    assert "↓ axis 0: 10 over x" in page(x).texts


def test_empty_and_partial_parts_are_told() -> None:
    mesh = gdt.create_mesh([("x", 4), ("y", 2)])
    uneven = page(gdt.zeros((9, 2), layout=Layout(["x", None], mesh)))
    assert "↓ axis 0: 9 over x, 1 of 4 shards empty" in uneven.texts
    assert "no elements" in page(gdt.zeros((0, 3), layout=Layout(["x", None], mesh))).texts
    partial = Layout(["x"], mesh, partial={"y": "sum"})
    for shown in (partial, gdt.relayout(gdt.ones((4,), layout=Layout(["x"], mesh)), partial)):
        assert "Each device holds a part of a sum over 'y'." in page(shown).texts


def test_pictures_of_large_meshes_are_bounded() -> None:
    mesh = gdt.create_mesh([("pod", 16), ("x", 16), ("y", 8)], blocks=1)
    layout = Layout(["pod", None, "x", "y"], mesh)
    x = gdt.zeros((64, 2, 32, 16), layout=layout)
    for shown in (mesh, layout, x, Layout([("pod", "x", "y")], mesh)):
        html = page(shown)
        (picture,) = html.pictures
        assert len(shown._repr_html_()) < 100_000 and len(fields(picture)) <= 4 * 9 * 9
        assert float(picture.get("width")) < 400 and float(picture.get("height")) < 800
        assert any("more shards" in tip for _, tip in fields(picture))
    assert "and 12 more of axis 0" in page(x).texts
    (replicated,) = fields(page(gdt.zeros((2,), layout=Layout([None], mesh))).pictures[0])
    assert replicated[1].endswith("cpu:7 and 2040 more")


def test_names_and_values_are_escaped() -> None:
    class Odd(gdt.nn.Module):
        def __init__(self) -> None:
            self.parts = {'<b>"&': gdt.nn.Dense(2, 2, key=1)}
            self.again = self.parts['<b>"&']

        def describe(self) -> str:
            return "<script>"

    html = page(Odd())
    assert 'parts.<b>"&: Dense(2 -> 2, linear)  6 parameters' in html.texts
    assert 'again: Dense  (the same as parts.<b>"&)' in html.texts
    assert "Odd(<script>)  6 parameters" in html.texts
    assert not {"b", "script"} & set(html.tags)


def test_a_model_is_shown_with_its_parts_and_arrays() -> None:
    model = gdt.nn.Sequential(gdt.nn.Dense(2, 3, key=1), gdt.nn.Flatten(), gdt.nn.BatchNorm(3))
    html = page(model)
    for line in repr(model).splitlines():
        heading = line.strip()
        if "parameters" in heading:
            assert heading in html.texts
    assert html.texts[2:5] == ["weight", "float32[2, 3]  [-, -]", "24 bytes"]
    assert html.texts.count("(not trained)") == 2


def test_explain_is_a_table_whose_rows_are_bounded() -> None:
    mesh = gdt.create_mesh([("x", 4)])
    x = gdt.ones((8, 3), layout=Layout(["x", None], mesh))
    explanation = gdt.explain(lambda: gdt.relu(gdt.sum(x, axis=0)))
    html = page(explanation)
    assert html.tags.count("tr") == 2 + len(explanation.rows)
    assert {"all_reduce over x", f"{explanation.bytes:,}", "1 collective"} <= set(html.texts)
    many = gdt.explain(lambda: [x + 1 for _ in range(ROWS + 5)])
    assert page(many).tags.count("tr") == 2 + ROWS + 1 and "and 5 more" in page(many).texts


def test_progress_in_a_notebook_is_one_output_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages: list[list[str]] = []

    class Handle:
        def __init__(self, page: str) -> None:
            self.pages = [page]
            pages.append(self.pages)

        def update(self, page: str) -> None:
            self.pages.append(page)

    display = types.ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda shown, display_id=None: Handle(shown) if display_id else None
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("gdt.training.display.PERIOD", 0)
    model = gdt.nn.Sequential(gdt.nn.Dense(2, 1, key=0))
    x, y = gdt.ones((2, 2), "float32"), gdt.ones((2, 1), "float32")
    trainer = gdt.training.Trainer(model, gdt.optim.SGD(0.01), gdt.nn.losses.mean_squared_error)
    console = Console(force_jupyter=True)
    trainer.fit([(x, y)] * 40, epochs=2, validation=[(x, y)], console=console, title="<title>")
    ((*_, last),) = pages
    lines = "".join(Balanced(last).texts).splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert all("40/40" in line and "loss" in line and " val " in line for line in lines)
    assert any("8/40" in page for page in pages[0]) and len(pages[0]) > 10
    trainer.fit([(x, y)], console=console, show=False)
    assert len(pages) == 1


def test_the_notebook_of_digits_runs_and_shows_what_it_computes() -> None:
    path = Path(gdt.__file__).parents[1] / "examples" / "digits.ipynb"
    assert all(not cell.get("outputs") for cell in json.loads(path.read_text())["cells"])
    mesh, array, model, explanation, plot, matrix = notebook.run(path)
    for html in (mesh, array):
        assert Balanced(html).pictures
    assert "Dense(784 -> 128, relu)" in "".join(Balanced(model).texts)
    assert "all_reduce over model" in Balanced(explanation).texts
    with Image.open(io.BytesIO(plot)) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert min(pixels.shape[:2]) > 250 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50
    counts = np.array([re.findall(r"\d+", row) for row in matrix.splitlines()], int)
    assert counts.sum() == 2000 and np.trace(counts) > 0.88 * 2000


def test_a_history_is_short_as_text() -> None:
    history = gdt.training.History(steps=[{"loss": 1.0}] * 500, epochs=[{"loss": 0.5}])
    assert repr(history) == "<History of 1 epochs, 500 steps; at the end loss 0.5>"
    assert repr(gdt.training.History()) == "<History of 0 epochs, 0 steps>"


def test_texts_of_tables_in_a_notebook_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """`repr` draws with rich, which must not display anything by itself."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython", None)
    explanation = gdt.explain(lambda: gdt.ones(3) + 1)
    assert "add" in repr(explanation)
    np.testing.assert_array_equal(explanation.value.numpy(), [2, 2, 2])


def test_columns_of_values_align() -> None:
    for blocks, stored in ((1, "2 shards in 1 block here"), (2, "2 shards in 2 blocks here")):
        mesh = gdt.create_mesh([("a", 2)], blocks=blocks)
        html = gdt.ones(3, layout=Layout(["a"], mesh))._repr_html_()
        assert stored in html and "font-family:monospace" in html.partition("<pre")[2]
