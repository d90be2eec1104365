"""README and the pages of docs/: code runs, links lead somewhere, tables are current."""

from __future__ import annotations

import doctest
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gdt

ROOT = Path(gdt.__file__).parent.parent
DOCS = ROOT / "docs"
if not DOCS.exists():
    pytest.skip("there are no pages", allow_module_level=True)

from docs.extensions import groups, measured, public_names, tables  # noqa: E402

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("coming-from/*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
BLOCK = re.compile(r"```python\n(.*?)```", re.S)
WITH_CODE = [name for name, text in TEXTS.items() if BLOCK.search(text)]
# Pages and programs that take more than a few seconds: FULL=docs runs them.
SLOW = {"cnn_in_tiles", "gpt_nine_schemes", "imdb_three_schemes", "will_it_fit"}


def marked(names: list[str]) -> list[Any]:
    """The names as parameters, those that take long with their mark."""
    marks = pytest.mark.docs_full
    return [pytest.param(name, marks=[marks] if name in SLOW else []) for name in names]


def run_blocks(name: str) -> dict[str, Any]:
    """Run the code of a page, block by block, and return its names."""
    namespace: dict[str, Any] = {}
    for number, block in enumerate(BLOCK.findall(TEXTS[name])):
        if name == "README.md":  # each by itself; the blocks of the other pages follow each other
            namespace = {}
        if ">>>" in block.replace("    >>>", ""):  # examples of docstrings are indented
            place = f"{name}, block {number + 1}"
            test = doctest.DocTestParser().get_doctest(block, {}, place, None, 0)
            test.globs = namespace  # and no copy of it: functions see later assignments
            flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
            runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
            said: list[str] = []
            assert not runner.run(test, out=said.append, clear_globs=False).failed, "".join(said)
        else:
            exec(compile(block, name, "exec"), namespace)
    return namespace


@pytest.mark.usefixtures("registries_are_restored", "temporary_folder")
@pytest.mark.parametrize("name", marked(WITH_CODE))
def test_code_of_the_page_runs(name: str) -> None:
    namespace = run_blocks(name)
    for number, call in enumerate(rows_of_words(TEXTS[name]) if "coming-from" in name else ()):
        exec(compile(call, f"{name}, row {number + 1}: {call}", "exec"), namespace)


def rows_of_words(text: str) -> Iterator[str]:
    """The code in the second column of the tables that have a column `gdt` there."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            inside = False
        elif cells[1:2] == ["gdt"]:
            inside = True
        elif inside and not line.startswith("|---"):
            assert re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cells[1]), f"no code: {line}"
            yield from re.findall(r"`([^`]+)`", cells[1])


@pytest.mark.parametrize("name", [n for n in TEXTS if n.startswith("docs/coming-from/")])
def test_pages_of_words_have_rows(name: str) -> None:
    if not name.endswith("index.md"):
        assert len([*rows_of_words(TEXTS[name])]) >= 12


GALLERY = [path.stem for path in sorted((DOCS / "gallery").glob("*.py"))]


@pytest.mark.usefixtures("temporary_folder")
@pytest.mark.parametrize("name", marked(GALLERY))
def test_program_of_the_gallery_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    runpy.run_path(str(DOCS / f"gallery/{name}.py"))
    pyplot.close("all")


@pytest.mark.parametrize("name", TEXTS)
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", TEXTS[name]):
        assert (ROOT / name).parent.joinpath(target).exists(), target


def test_every_page_is_in_a_table_of_contents() -> None:
    generated = (DOCS / "extensions/reference.py").read_text()
    listed = set(re.findall(r'"\.\./\.\./(\w+)"', generated))  # by the pages of the reference
    for text in TEXTS.values():
        for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.S):
            listed |= {line.rpartition("<")[2].strip(">") for line in block.splitlines()}
    pages = {Path(name).stem for name in TEXTS} - {"README", "index"}
    assert not pages - {Path(entry).name for entry in listed}


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    assert sum(map(len, groups.grouped().values())) > 1000


def test_public_names_have_docstrings_examples_and_signatures() -> None:
    names = [name for group in public_names.public_names().values() for name in group]
    lacking = [f"{n.text}: {', '.join(m)}" for n in names if (m := public_names.lacks(n))]
    assert not lacking, "; ".join(lacking)


def test_tables_of_layers_and_losses_are_current() -> None:
    hint = "run `python -m docs.extensions.tables`"
    assert TEXTS["docs/tables.md"] == tables.text(), hint


def test_measured_figures_are_those_of_the_file() -> None:
    for path in measured.PAGES:
        hint = "run `python -m docs.extensions.measured`"
        assert path.read_text() == measured.written(path.read_text()), hint


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 150
