"""What the debugging tools show, and that it does not depend on how a mesh is stored."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout
from gdt.debug.rows import RowRecorder
from gdt.errors import DtypeError, MoveError, NanError
from gdt.fusion import llvm
from gdt.sharding.mesh import Mesh

DIMS = [("x", 2), ("y", 2)]
MODES = [gdt.create_mesh(DIMS, blocks=n) for n in (1, 2, 4)]
FOLDED, _, APART = MODES


def arrays(mesh: Mesh) -> tuple[Any, Any]:
    x = gdt.asarray(np.arange(48.0).reshape(8, 6), layout=gdt.Layout(["x", None], mesh))
    w = gdt.asarray(np.arange(24.0).reshape(6, 4), layout=gdt.Layout(["y", None], mesh))
    return x, w


def loss(x: Any, w: Any) -> Any:
    return gdt.sum(gdt.relu(x @ w))


# ---------------------------------------------------------------- count_collectives


def test_counter_counts_by_kind_and_axes() -> None:
    x, w = arrays(FOLDED)
    with gdt.count_collectives() as counter:
        loss(x, w).resolve()
    assert counter.by_kind == {"all_reduce": 2}
    assert counter.by_axes == {("x",): 1, ("y",): 1}
    assert len(counter) == 2 and counter.bytes == sum(c.bytes for c in counter) > 0
    assert repr(counter).splitlines()[0] == f"2 collectives, {counter.bytes:,} bytes"


@pytest.mark.parametrize("layout", [["x", "y"], [("x", "y"), None], [None, None]], ids=str)
def test_counted_bytes_are_those_of_the_transport(layout: list[Any]) -> None:
    x, _ = arrays(APART)
    transport = gdt.comm.transport.transport_of(APART)
    before = sum(transport.bytes.values())
    with gdt.count_collectives() as counter:
        gdt.relayout(gdt.relayout(x, [None, "x"]), layout)
    assert counter.bytes == sum(transport.bytes.values()) - before


def test_nothing_is_counted_outside_the_block() -> None:
    x, w = arrays(FOLDED)
    with gdt.count_collectives() as counter:
        pass
    loss(x, w).resolve()
    assert len(counter) == 0 and repr(counter) == "0 collectives, 0 bytes"


@pytest.mark.parametrize("mesh", MODES, ids=lambda m: str(m.grid))
def test_fetches_to_the_host_are_shown(mesh: Mesh) -> None:
    x, _ = arrays(mesh)
    other = gdt.Layout([None, None], gdt.create_mesh([("z", 2)]))
    partial = gdt.sum(x, axis=0)
    calls: dict[str, tuple[Any, Any, int]] = {
        "numpy": (x.numpy, x, 384),
        "float": (lambda: float(x[1, 1]), x[1, 1], 8),
        "partial": (partial.numpy, partial.resolve(), 48),
        "print": (lambda: repr(x), x, 384),
        "another mesh": (lambda: gdt.relayout(x, other), x, 384),
        "np.asarray": (lambda: np.asarray(x), x, 384),
    }
    for name, (call, fetched, nbytes) in calls.items():
        with gdt.implicit_fetch("allow"), gdt.count_collectives() as counter:
            explanation = gdt.explain(call)
        assert counter.fetches == explanation.fetches == [(fetched.type, nbytes)], name
        (row,) = (r for r in explanation.rows if r.op == "fetch")
        assert row.operands == (fetched.type,) and row.bytes == 0 and row.fetched == nbytes
        last = repr(counter).splitlines()[-1]
        assert last == f"1 fetch to the host: {nbytes} bytes"
        text = str(explanation)
        assert f"{nbytes} bytes to the host" in text and "1 fetch to the host" in text
        count = len(explanation.rows) - 1
        assert f"{count} op{'' if count == 1 else 's'} " in text


def test_printing_a_large_array_fetches_its_edges() -> None:
    x = gdt.zeros((100, 100), layout=gdt.Layout(["x", "y"], FOLDED))
    with gdt.count_collectives() as counter:
        repr(x)
    assert counter.fetches == [(x.type, 6 * 6 * 8)] and not len(counter)


# ---------------------------------------------------------------- no_moves


@pytest.mark.parametrize("mesh", MODES, ids=lambda m: str(m.grid))
def test_an_implicit_move_raises_before_anything_moves(mesh: Mesh) -> None:
    x, _ = arrays(mesh)
    y = gdt.relayout(x, [None, "x"])
    with gdt.count_collectives() as counter, gdt.no_moves(), pytest.raises(MoveError) as caught:
        x + y
    assert len(counter) == 0
    lines = str(caught.value).splitlines()
    assert lines[0] == "add: operand y would be moved, which sends 384 bytes"
    assert lines[1:3] == ["  y: float64[8, 6]  [-, 'x']", "  wanted: ['x', -]"]
    assert "gdt.relayout(y, ['x', None])" in lines[3]


def test_what_is_asked_for_or_sends_nothing_is_no_implicit_move() -> None:
    x, w = arrays(FOLDED)
    with gdt.no_moves():
        z = x + gdt.relayout(gdt.relayout(x, [None, "x"]), x.layout)
        z = z * gdt.ones(6, layout=gdt.Layout.replicated(FOLDED, 1))
        total = gdt.sum(z)
        assert float(total) == float(total.resolve())
        gdt.grad(lambda w: gdt.sum(gdt.relu((x @ w).resolve())))(w)


def test_a_partial_sum_that_is_needed_is_a_move() -> None:
    x, w = arrays(FOLDED)
    with gdt.no_moves():
        p = x @ w
        p + p
        with pytest.raises(MoveError, match=r"relu: operand x .*\n.*\n.*\n.*x\.resolve\(\)"):
            gdt.relu(p)
        gdt.relu(p.resolve())
        gdt.relu(p)  # resolved before: nothing is sent


# ---------------------------------------------------------------- explain


def test_listing_is_the_same_in_every_storage_mode() -> None:
    found = []
    for mesh in MODES:
        x, w = arrays(mesh)
        found.append(str(gdt.explain(gdt.value_and_grad(lambda w, x=x: loss(x, w)), w)))
    assert found[0] == found[1] == found[2]


def test_rows_hold_types_moves_and_collectives() -> None:
    x, w = arrays(FOLDED)
    explained = gdt.explain(loss, x, w)
    product, relu, total = explained.rows
    assert [r.op for r in explained.rows][1:] == ["relu", "sum"]
    assert product.operands[0] is x.type and not product.bytes
    assert [m.operand for m in product.moves] == ["x"] and not product.moves[0].bytes
    assert relu.moves[0].want is relu.operands[0].layout.resolved
    assert [c.kind for c in relu.collectives] == ["all_reduce"] and relu.bytes == explained.bytes
    assert total.results[0].layout.partial == {"x": "sum"}
    assert explained.value.shape == ()


def test_explain_fits_the_terminal_and_loses_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = gdt.explain(gdt.softmax, gdt.ones((4, 4)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    lines = str(explanation).splitlines()
    assert max(map(len, lines)) == 60
    assert not any("…" in line for line in lines)


def test_loops_of_a_recorded_step_are_named_with_their_bytes() -> None:
    step, size = gdt.function(lambda x: gdt.relu(x * 2 + 1), verify=0), 12_000
    x = gdt.ones(size, "float32")
    assert gdt.explain(step, x).loops == []
    for _ in range(3):
        step(x)
    explanation = gdt.explain(step, x)
    assert [row.op for row in explanation.rows] == ["multiply", "add", "relu"]
    (loop,) = explanation.loops
    assert loop.ops == ("multiply", "add", "relu") and loop.line.endswith("(<lambda>)")
    assert (loop.before, loop.bytes) == (6 * 4 * size, 2 * 4 * size)
    if llvm.problem():
        assert loop.seconds == 0
    else:
        assert 0 < loop.seconds < 60 and "; compiled in " in str(loop)
    mean = gdt.function(lambda x: gdt.mean(x * x - 1), verify=0)
    for _ in range(3):
        mean(x)
    (loop,) = gdt.explain(mean, x).loops
    assert loop.ops[:2] == ("multiply", "subtract") and (loop.seconds > 0) == (not llvm.problem())
    text = "multiply, add, relu; 96,000 bytes read and written, not 288,000"
    assert text in str(explanation).replace("\n", " ") and text in explanation._repr_html_()


def test_ops_of_gradients_and_composites_are_listed_inside_them() -> None:
    x, w = arrays(FOLDED)
    rows = gdt.explain(gdt.value_and_grad(lambda w: loss(x, w)), w).rows
    backward = [r for r in rows if r.within == ("gradient",)]
    assert backward and rows[-1].op == "gradient"
    assert rows[-1].collectives[0].arrays == 2  # the loss and the gradient travel together
    moved = gdt.explain(lambda: gdt.relayout(x, [None, "x"])).rows
    assert [(r.op, [c.kind for c in r.collectives]) for r in moved] == [
        ("relayout", ["all_to_all"])
    ]


def test_bytes_listed_are_those_that_the_transport_moves() -> None:
    x, w = arrays(APART)
    transport = gdt.comm.transport.transport_of(APART)
    before = sum(transport.bytes.values())
    explained = gdt.explain(gdt.value_and_grad(lambda w: loss(x, w)), w)
    assert explained.bytes == sum(transport.bytes.values()) - before > 0


def test_an_exception_in_a_composite_leaves_the_listing_in_order() -> None:
    x, _ = arrays(FOLDED)

    def careful() -> Any:
        with contextlib.suppress(gdt.errors.GdtError):
            gdt.concat([x, x[:, :3]], axis=0)
        return gdt.relayout(x, [None, None])

    assert gdt.explain(careful).rows[-1].op == "relayout"
    recorder = RowRecorder()
    recorder.on_enter("outer")
    recorder.on_enter("inner")  # raises, and "outer" catches that
    recorder.on_kernel("sum.cu", "")
    recorder.on_leave("outer", (x,), x)
    recorder.on_enter("alone")
    recorder.on_leave("alone", (x,), x)
    rows = [(row.op, row.within, row.kernel) for row in recorder.rows]
    assert rows == [("outer", (), "sum.cu"), ("alone", (), "")]


# ---------------------------------------------------------------- check_nans


def test_the_first_op_that_makes_a_nan_is_named() -> None:
    x = gdt.asarray([4.0, 0.0, -1.0], layout=gdt.Layout(["x"], FOLDED))
    with gdt.check_nans(), np.errstate(all="ignore"), pytest.raises(NanError) as caught:
        gdt.sum(gdt.log(x) * 0.0)
    lines = str(caught.value).splitlines()
    assert lines[0] == "log: the result has 1 NaN and 1 infinite of 3 elements, first at [1]"
    assert lines[1:] == ["  x: float64[3]  ['x']", "  All operands are finite."]


def test_operands_that_were_not_finite_are_named() -> None:
    x = gdt.asarray([1.0, np.nan])
    with gdt.check_nans(), pytest.raises(NanError, match="x had some before"):
        x + 1.0


@pytest.mark.parametrize("mesh", MODES, ids=lambda m: str(m.grid))
def test_padding_and_partial_sums_raise_no_false_alarm(mesh: Mesh) -> None:
    x = gdt.testing.placed(np.ones((5, 3)), gdt.Layout([("x", "y"), None], mesh), poison=True)
    with gdt.check_nans():
        assert float(gdt.sum(gdt.exp(x) - 1.0)) > 0


@pytest.mark.parametrize("mesh", MODES, ids=lambda m: str(m.grid))
def test_a_sum_of_finite_parts_that_overflows_is_named(mesh: Mesh) -> None:
    x = gdt.full(4, 1e308, layout=gdt.Layout([("x", "y")], mesh))
    with gdt.check_nans(), np.errstate(over="ignore"), pytest.raises(NanError) as caught:
        gdt.sum(x).resolve()
    assert "1 infinite of 1 elements" in str(caught.value)


def test_gradients_are_checked() -> None:
    x = gdt.asarray([0.0, 1.0])
    with gdt.check_nans(), np.errstate(all="ignore"), pytest.raises(NanError):
        gdt.grad(lambda x: gdt.sum(gdt.sqrt(x)))(x)


# ---------------------------------------------------------------- visualize


def test_drawing_shows_every_device_once_per_part() -> None:
    x, _ = arrays(FOLDED)
    assert str(gdt.visualize(x)).splitlines() == [
        "float64[8, 6]  ['x', -]",
        "┌─────────────┬──────────────┐",
        "│ axis 0: 0:4 │ cpu:0, cpu:1 │",
        "├─────────────┼──────────────┤",
        "│ axis 0: 4:8 │ cpu:2, cpu:3 │",
        "└─────────────┴──────────────┘",
    ]


def test_drawing_of_any_layout_names_all_devices() -> None:
    for mesh in gdt.testing.meshes([(2, 2, 2)], modes=["folded"]):
        for layout in gdt.testing.layouts(mesh, 3, partial=True):
            drawn = str(gdt.visualize(gdt.testing.placed(np.ones((5, 1, 2)), layout)))
            assert all(device in drawn for device in mesh.devices)
            assert all(f"{p} over {n!r}" in drawn for n, p in layout.partial.items())


def test_drawing_needs_an_array() -> None:
    with pytest.raises(DtypeError, match="int is no distributed array"):
        gdt.visualize(3)  # type: ignore[arg-type]


def test_tables_are_written_where_standard_output_has_no_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = gdt.ones(4, layout=Layout([None], gdt.create_mesh([("größe", 2)])))
    for encoding in ("ascii", "latin-1", "utf-8"):
        written = io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
            print(gdt.explain(lambda: x + 1), gdt.visualize(x), flush=True)
            text = written.getvalue().decode(encoding)
        assert ("\u2503" in text) == (encoding == "utf-8") and "add" in text
