"""What gdt uses of CuPy exists in the CuPy that is installed, and takes what it is given.

`make test FULL=cupy` asks the other version too. What is used is read from gdt's source, so that
nothing can be forgotten; methods of CuPy's objects, whose types the source does not tell, are
listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy
import cupy.cuda.graph
import pytest

import gdt
from tests.strict import contract

SOURCES = sorted(Path(gdt.__file__).parent.rglob("*.py"))
ROOTS = {"xp", "cupy", "_cupy"}  # names, and attributes, that are the module
PARTS = {"runtime": cupy.cuda.runtime, "driver": cupy.cuda.driver}  # of cupy.py and runner.py
ON_THE_HOST = {"bitwise_count"}  # NumPy's, which gdt asks only NumPy for

METHODS: list[tuple[Any, str, int, set[str]]] = [  # type, method, arguments, and those by name
    (cupy.cuda.Stream, "record", 1, set()),
    (cupy.cuda.Stream, "use", 0, set()),
    (cupy.cuda.Stream, "wait_event", 1, set()),
    (cupy.cuda.Stream, "begin_capture", 0, set()),
    (cupy.cuda.Stream, "end_capture", 0, set()),
    (cupy.cuda.graph.Graph, "launch", 0, set()),
    (cupy.cuda.MemoryPool, "malloc", 1, set()),
    (cupy.cuda.MemoryPool, "used_bytes", 0, set()),
    (cupy.cuda.MemoryPool, "free_bytes", 0, set()),
    (cupy.cuda.MemoryPool, "free_all_blocks", 0, set()),
    (cupy.cuda.PinnedMemoryPool, "free_all_blocks", 0, set()),
    (cupy.cuda.Device, "synchronize", 0, set()),
    (cupy.cuda.function.Module, "load", 1, set()),
    (cupy.cuda.function.Module, "get_function", 1, set()),
    (cupy.ndarray, "get", 0, set()),
    (cupy.ndarray, "set", 1, set()),
    (cupy.ndarray, "view", 0, set()),
    (cupy.ndarray, "view", 1, set()),
    (cupy.ndarray, "copy", 0, set()),
    (cupy.ndarray, "reshape", 1, set()),
    (cupy.ndarray, "astype", 1, {"copy"}),
    (cupy.ndarray, "__dlpack__", 0, {"stream", "max_version", "dl_device"}),
]
ATTRIBUTES: list[tuple[Any, str]] = [
    (cupy.cuda.Event, "done"),
    (cupy.cuda.Device, "id"),
    (cupy.cuda.Device, "attributes"),
    (cupy.cuda.Device, "mem_info"),
    (cupy.cuda.Device, "__enter__"),
    (cupy.cuda.function.Function, "ptr"),
    (cupy.cuda.function.Function, "__call__"),
    (cupy.cuda.MemoryPointer, "ptr"),
    (cupy.ndarray, "base"),
    (cupy.ndarray, "data"),
    (cupy.ndarray, "device"),
    (cupy.ndarray, "flags"),
    (cupy.ndarray, "__cuda_array_interface__"),
    (cupy.ndarray, "__dlpack_device__"),
]


def chain(node: ast.AST) -> list[str] | None:
    """`["cuda", "Stream"]` of `self.xp.cuda.Stream`; None for what is not of CuPy."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        if node.attr in ROOTS:
            return names[::-1]
        names.append(node.attr)
        node = node.value
    return names[::-1] if isinstance(node, ast.Name) and node.id in ROOTS else None


def uses() -> Iterator[tuple[str, list[str], ast.Call | None]]:
    """Where, what, and the call if it is one."""
    for path in SOURCES:
        text = path.read_text()
        if not any(f"{root}." in text for root in ROOTS):
            continue
        tree = ast.parse(text)
        called = {id(n.func): n for n in ast.walk(tree) if isinstance(n, ast.Call)}
        inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for node in ast.walk(tree):
            names = chain(node) if isinstance(node, ast.Attribute) else None
            if names and id(node) not in inner:
                where = f"{path.name}:{node.lineno} {'.'.join(names)}"
                yield where, names, called.get(id(node))


USES = list(uses())


def test_the_source_uses_cupy() -> None:
    found = {".".join(names) for _, names, _ in USES}
    assert {"cuda.Stream", "cuda.MemoryPool", "cuda.function.Module", "add.at"} <= found
    assert len(found) > 60


@pytest.mark.parametrize("where, names, call", USES, ids=[where for where, _, _ in USES])
def test_what_is_used_exists(where: str, names: list[str], call: ast.Call | None) -> None:
    owner: Any = cupy
    if names[0] in ON_THE_HOST:
        return
    for name in names[:-1]:
        owner = getattr(owner, name)
    last = names[-1]
    assert hasattr(owner, last), f"CuPy {cupy.__version__} has no {'.'.join(names)}"
    if call is None or isinstance(getattr(owner, last), type | cupy.ufunc):
        return
    if any(isinstance(a, ast.Starred) for a in call.args) or any(not k.arg for k in call.keywords):
        return
    known = {k.arg: None for k in call.keywords if k.arg is not None}
    is_method = isinstance(owner, cupy.ufunc)  # whose signature names the ufunc itself too
    contract.check_call(owner, last, [None] * (len(call.args) + is_method), known)


@pytest.mark.parametrize("owner, name, count, known", METHODS)
def test_methods_take_what_they_are_given(
    owner: Any, name: str, count: int, known: set[str]
) -> None:
    assert contract.signature(owner, name) is not None
    if name == "__dlpack__" and contract.version() < (14,):
        known = {"stream"}  # and the consumer is told so by CuPy itself
    contract.check_call(owner, name, [None] * (count + 1), dict.fromkeys(known))


@pytest.mark.parametrize("owner, name", ATTRIBUTES)
def test_attributes_exist(owner: Any, name: str) -> None:
    assert hasattr(owner, name)


@pytest.mark.parametrize("part", PARTS)
def test_functions_of_cuda_exist(part: str) -> None:
    """Those that the source reaches through a variable called `runtime` or `driver`."""
    texts = [path.read_text() for path in SOURCES if path.name in ("cupy.py", "runner.py")]
    used = {
        node.attr
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == part
    }
    assert used and not [name for name in used if not hasattr(PARTS[part], name)]


def test_errors_and_constants_are_those_that_are_used() -> None:
    driver, runtime = cupy.cuda.driver, cupy.cuda.runtime
    contract.check_call(driver, "funcSetAttribute", [0, 0, 0], {})
    assert driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8
    assert issubclass(driver.CUDADriverError, RuntimeError)
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)
    assert runtime.CUDARuntimeError(900).status == 900
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
