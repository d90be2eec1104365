"""Everything public of gdt, and what is known of it.

python -m docs.extensions.public_names              # how many have a docstring, an example, ...
python -m docs.extensions.public_names --missing    # and those that lack one of them
python -m docs.extensions.public_names --all        # every name, one a line
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import Op

# The modules whose names are public beside those of `gdt` itself, each with the names that it
# shows; None: those of its `__all__`, or else the functions and classes that it defines.
MODULES: dict[str, list[str] | None] = {
    "gdt": None,
    "gdt.linalg": None,
    "gdt.fft": None,
    "gdt.random": None,
    "gdt.nn": None,
    "gdt.nn.activations": ["get"],
    "gdt.nn.initializers": None,
    "gdt.nn.losses": None,
    "gdt.nn.layout_maps": None,
    "gdt.optim": None,
    "gdt.metrics": None,
    "gdt.training": None,
    "gdt.data": None,
    "gdt.checkpoint": None,
    "gdt.saving": None,
    "gdt.estimators": None,
    "gdt.distributed": None,
    "gdt.testing": None,
    "gdt.errors": None,
}


@dataclass(frozen=True)
class Name:
    """A public name: how it is written, what it names, and the class that it is a member of."""

    text: str
    value: Any
    owner: type | None = None

    @property
    def short(self) -> str:
        """The name without its module and class."""
        return self.text.rpartition(".")[2]

    @property
    def docstring(self) -> str:
        """The docstring, or an empty text; constants have none of their own."""
        value = self.value.fget if isinstance(self.value, property) else self.value
        if self.kind == "data" and type(value).__module__ in ("builtins", "numpy"):
            return ""
        return inspect.getdoc(value) or ""

    @property
    def kind(self) -> str:
        """The kind of object, in the words of Sphinx' domain of Python."""
        value = inspect.unwrap(self.value) if callable(self.value) else self.value
        if inspect.isclass(value):
            return "exception" if issubclass(value, BaseException) else "class"
        if self.owner is not None:
            declared = inspect.getattr_static(self.owner, self.short)
            if isinstance(declared, classmethod | staticmethod):
                return type(declared).__name__
            is_property = isinstance(declared, property) or not callable(value)
            return "property" if is_property else "method"
        function = inspect.isroutine(value) or isinstance(value, Op | custom_vjp)
        return "function" if function or hasattr(value, "__wrapped__") else "data"

    @property
    def signature(self) -> str | None:
        """The parameters in parentheses; None where Python cannot tell, or nothing is called."""
        if self.kind in ("data", "property"):
            return ""
        try:
            found = inspect.signature(self.value)
        except (TypeError, ValueError):
            return None
        parameters = [*found.parameters.values()]
        if self.owner is not None and self.kind == "method":
            parameters = parameters[1:]
        return str(found.replace(parameters=parameters))


def shown(module_name: str) -> dict[str, Any]:
    """The public names of a module and their values; modules are left out."""
    module = importlib.import_module(module_name)
    names = MODULES[module_name] or getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and _defined_in(value, module_name)
        ]
    values = {name: getattr(module, name) for name in names}
    return {n: v for n, v in values.items() if not isinstance(v, types.ModuleType)}


def _defined_in(value: Any, module_name: str) -> bool:
    """Whether a function or class comes from a module, or from a part of the package."""
    own = getattr(value, "__module__", None) or ""
    is_code = inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, Op)
    return is_code and f"{own}.".startswith(f"{module_name}.")


def members(owner: Name) -> Iterator[Name]:
    """The public methods and properties that a class defines itself."""
    for name, declared in vars(owner.value).items():
        if name.startswith("_"):
            continue
        value = declared if isinstance(declared, property) else getattr(owner.value, name, None)
        if isinstance(declared, property) or inspect.isroutine(value) or isinstance(value, Op):
            yield Name(f"{owner.text}.{name}", value, owner.value)


def public_names() -> dict[str, list[Name]]:
    """The public names by module, each followed by the members of its class.

    An object that two modules show belongs to the first of them.
    """
    seen: set[int] = set()
    names: dict[str, list[Name]] = {}
    for module_name in MODULES:
        names[module_name] = []
        for text, value in sorted(shown(module_name).items(), key=lambda item: item[0].lower()):
            if module_name != "gdt" and id(value) in seen:
                continue
            seen.add(id(value))
            name = Name(f"{module_name}.{text}", value)
            names[module_name].append(name)
            if inspect.isclass(value) and value.__module__.startswith("gdt"):
                names[module_name] += members(name)
    return names


def is_override(name: Name) -> bool:
    """Whether a base class, a class of NumPy's or a mixin of scikit-learn's says what it does."""
    if name.owner is None:
        return not str(getattr(name.value, "__module__", "gdt")).startswith("gdt")
    if not getattr(name.value, "__module__", "gdt").startswith("gdt"):
        return True
    return any(hasattr(base, name.short) for base in name.owner.__mro__[1:])


def lacks(name: Name) -> list[str]:
    """What a name lacks of a docstring, an example and a signature."""
    constant = name.kind == "data" and type(name.value).__module__ in ("builtins", "numpy")
    found = [] if constant or name.docstring else ["docstring"]
    if (
        name.kind not in ("data", "property", "exception")
        and not is_override(name)
        and ">>>" not in name.docstring
    ):
        found.append("example")
    if name.signature is None:
        found.append("signature")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    header = f"{'module':24}{'names':>7}{'docstring':>11}{'example':>9}{'signature':>11}"
    print(header)
    totals = [0, 0, 0, 0]
    for module_name, names in public_names().items():
        lacking = [lacks(name) for name in names]
        row = [len(names)]
        row += [sum(w not in l for l in lacking) for w in ("docstring", "example", "signature")]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        print(f"{module_name:24}{row[0]:7}{row[1]:11}{row[2]:9}{row[3]:11}")
        for name, missing in zip(names, lacking, strict=True):
            if (missing and arguments.missing) or arguments.all:
                print(f"    {name.kind:12} {name.text:50} {', '.join(missing) or '-'}")
    print(f"{'all':24}{totals[0]:7}{totals[1]:11}{totals[2]:9}{totals[3]:11}")


if __name__ == "__main__":
    main()
