"""Imports point down the list of packages; no two modules import each other, and no two classes
have one name."""

from __future__ import annotations

import ast
import graphlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import gdt

ROOT = Path(gdt.__file__).parent

# From the bottom to the top: a package or module of `gdt/` may import from those before it.
FLOORS = [
    "errors", "caches", "machine_code", "arguments", "observe", "settings", "sharding", "cuda",
    "backend", "comm", "array", "state", "distributed", "fusion", "engine", "ops", "functions",
    "fft", "linalg", "random", "programs", "autodiff", "nn", "metrics", "optim", "data",
    "checkpoint", "training", "saving", "estimators", "prediction", "debug",
    "testing", "benchmark", "interop",
]  # fmt: skip
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(p) for p in FILES}


@cache
def imports(path: Path) -> set[str]:
    """Return the gdt modules that a file imports, those for annotations alone included."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {a.name[4:] for a in node.names if a.name.startswith("gdt.")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gdt":
            module = str(node.module).removeprefix("gdt").removeprefix(".")
            inner = {f"{module}.{a.name}".removeprefix(".") for a in node.names} & NAMES
            modules |= inner or {module}
    return modules & NAMES - {dotted(path)}


def test_the_floors_are_what_is_there() -> None:
    rooms = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(FLOORS)


def test_the_figure_of_the_architecture_shows_the_floors() -> None:
    page = (ROOT.parent / "docs/architecture.md").read_text()
    figure = page.partition("## The packages")[2].partition("\nRead in this order")[0]
    lines = [line.strip() for line in figure.splitlines() if line.startswith("    ")]
    names = [name for line in lines for name in line.split("  ")[0].split(", ")]
    assert names == FLOORS[::-1]


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_imports_point_downwards(path: Path) -> None:
    own = dotted(path).split(".")[0]
    for other in sorted(imports(path)):
        below = other.split(".")[0]
        assert FLOORS.index(below) <= FLOORS.index(own), f"{own} imports {other}, which is above"


def test_blocks_of_ops_import_no_op_and_functions_of_layers_no_layer() -> None:
    for inner in ("ops.blocks", "nn.functions"):
        outer = inner.split(".")[0]
        for path in (ROOT / inner.replace(".", "/")).rglob("*.py"):
            others = {m for m in imports(path) if f"{m}.".startswith(f"{outer}.")}
            above = {m for m in others if not f"{m}.".startswith(f"{inner}.")}
            assert not above, f"{dotted(path)} imports {above}"


def test_functions_declare_no_op() -> None:
    for path in (ROOT / "functions").rglob("*.py"):
        assert not imports(path) & {"engine.op", "engine.planned"}, f"{path} declares an op"


def test_modules_import_each_other_without_circles() -> None:
    graphlib.TopologicalSorter({dotted(p): imports(p) for p in FILES}).prepare()


def test_no_two_classes_have_one_name() -> None:
    """A shared name leads the reader to the wrong class."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{dotted(path)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


OPTIONAL = {
    "cupy",
    "mpi4py",
    "matplotlib",
    "numba",
    "llvmlite",
    "sklearn",
    "onnx",
    "cupyx",
    "keras",
}
OPTIONAL |= {"pyarrow", "IPython", "nvidia", "tensorboardX"}


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_imports_inside_functions_are_of_optional_packages(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    names = {a.name.split(".")[0] for a in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names = {str(node.module).split(".")[0]}
                else:
                    continue
                assert names <= OPTIONAL, f"{dotted(path)}.{function.name} imports {names}"
