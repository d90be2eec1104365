"""Everything public has a docstring, and its examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import Op

ROOT = Path(gdt.__file__).parent.parent


def modules() -> list[str]:
    """Every module of gdt that this machine can import."""
    found = ["gdt"]
    for info in pkgutil.walk_packages(gdt.__path__, "gdt."):
        try:
            importlib.import_module(info.name)
        except ModuleNotFoundError as e:
            if (e.name or "").startswith("gdt"):
                raise
            continue
        found.append(info.name)
    return found


def members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Public functions, ops and classes of a module, and the public members of those classes."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, Op | custom_vjp) or inspect.isroutine(value):
            yield name, value
        elif inspect.isclass(value):
            yield name, value
            for inner, member in vars(value).items():
                target = (
                    member.__func__ if isinstance(member, classmethod | staticmethod) else member
                )
                if not inner.startswith("_") and (
                    inspect.isfunction(target) or isinstance(target, property)
                ):
                    yield f"{name}.{inner}", target


def documented() -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """Every docstring with an example, and the names that the example may use.

    Examples of what `gdt` exports see `gdt` alone, as its users do; those of the other modules see
    their module's names too.
    """
    exported = {id(v) for v in [*vars(gdt).values(), *FUNCTIONS.values()]}
    for module_name in modules():
        module = importlib.import_module(module_name)
        found = [(module_name, module)]
        found += [(f"{module_name}.{name}", value) for name, value in members(module)]
        for name, value in found:
            owner = vars(module).get(name.removeprefix(f"{module_name}.").split(".")[0], module)
            if ">>>" in (value.__doc__ or ""):
                public = id(owner) in exported and owner is not module
                names = {} if public else vars(module)
                yield name, (inspect.cleandoc(value.__doc__), {**names, "gdt": gdt})


EXAMPLES = dict(documented())


@pytest.mark.usefixtures("registries_are_restored", "temporary_folder")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str) -> None:
    text, names = EXAMPLES[name]
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=said.append)
    assert not results.failed, "".join(said)


def public() -> dict[str, Any]:
    names = {f"gdt.{n}": v for n, v in vars(gdt).items() if not n.startswith("_")}
    return {**names, **{f"FUNCTIONS[{n!r}]": f for n, f in FUNCTIONS.items()}}


def test_public_names_have_docstrings() -> None:
    without = [
        name
        for name, value in public().items()
        if callable(value) and not (value.__doc__ or "").strip()
    ]
    assert not without, f"no docstring: {', '.join(sorted(without))}"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in Path(gdt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = (ast.get_docstring(node) or "") if isinstance(node, documented) else ""
            pattern = r"(What|That|Those|Which|Why|How|Where|From|Of|In) "
            assert not re.match(pattern, text), f"{path}: {text}"


PUBLIC = [*gdt.ops.PUBLIC, *gdt.functions.PUBLIC, *gdt.nn.functions.PUBLIC]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_of_arrays_have_an_example(name: str) -> None:
    assert ">>> " in getattr(gdt, name).__doc__


def test_public_methods_have_docstrings() -> None:
    without = []
    for module_name in modules():
        for name, value in members(importlib.import_module(module_name)):
            if not (value.__doc__ or "").strip() and "." in name:
                without.append(f"{module_name}.{name}")
    inherited = [n for n in without if n.split(".")[-1] in OVERRIDDEN]
    assert sorted(set(without) - set(inherited)) == []


# Methods whose base class says what they do, and properties that are their names.
OVERRIDDEN = {
    *(n for n in vars(gdt.observe.Observer) if not n.startswith("_")),
    *(n for n in vars(gdt.comm.transport.Transport) if not n.startswith("_")),
    "ndim", "mesh", "vjp", "describe", "step",
}  # fmt: skip
