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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gdt.errors
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import Op
from gdt.observe import Observer

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
    "gdt.prediction": ["Prediction", "PredictedScaling", "TransformerStep"],
    "gdt.distributed": None,
    "gdt.testing": None,
    "gdt.errors": [name for name, value in vars(gdt.errors).items() if inspect.isclass(value)
                   and issubclass(value, Exception)],
}  # fmt: skip


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
        if self.kind == "data" and not type(value).__module__.startswith("gdt"):
            return ""
        return inspect.getdoc(value) or ""

    @property
    def kind(self) -> str:
        """The kind of object, in the words of Sphinx' domain of Python."""
        value = inspect.unwrap(self.value) if callable(self.value) else self.value
        if inspect.isclass(value) and value.__module__ in ("numpy", "ml_dtypes"):
            return "data"  # dtypes: else every annotation `bool` would lead to `gdt.bool`
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
        is_observing = issubclass(owner.value, Observer) and hasattr(Observer, name)
        if name.startswith("_") or is_observing or name.endswith("_request"):  # scikit-learn's
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


HOOKS = {
    "Callback": ("on_",),
    "Optimizer": ("check", "targets", "prepare", "take_step", "begin_step", "scalars", "apply",
                  "step", "follow"),
    "Trainer": ("recorded", "say"),
    "LayoutMap": ("applied_to_models",),
    "Oracle": ("loss", "gradient", "slope", "curvature", "check"),
}  # fmt: skip
"""The beginnings of the names of methods that a subclass defines, or gdt itself calls: the class
shows an example of them."""


def shows_no_example(name: Name) -> bool:
    """Whether an example stands elsewhere: at the function that the docstring names, at the method
    of a base class, or at the class; or whether the name is NumPy's, ml_dtypes' or scikit-learn's.
    """
    module = str(getattr(name.value, "__module__", "gdt"))
    if name.owner is None or not module.startswith("gdt"):
        return not module.startswith("gdt")
    if name.docstring.startswith("`gdt."):
        return True
    hooks = HOOKS.get(name.owner.__name__, ())
    is_inherited = any(hasattr(base, name.short) for base in name.owner.__mro__[1:])
    return is_inherited or name.short.startswith(hooks)


def facts(name: Name) -> dict[str, bool]:
    """What is there of a name, and whether an example or a signature is not asked for."""
    is_gdts = str(getattr(name.value, "__module__", "gdt")).startswith("gdt")
    is_constant = name.kind == "data" and not type(name.value).__module__.startswith("gdt")
    is_called = name.kind not in ("data", "property", "exception")
    has_example = ">>>" in name.docstring
    return {
        "docstring": bool(name.docstring),
        "example": has_example,
        "elsewhere": not has_example and is_called and shows_no_example(name),
        "none": not has_example and not is_called,
        "signature": name.signature is not None,
        "no docstring": is_constant,
        "no signature": not is_gdts,
    }


def lacks(name: Name) -> list[str]:
    """What a name lacks of a docstring, an example and a signature."""
    found = facts(name)
    is_there = {
        "docstring": found["docstring"] or found["no docstring"],
        "example": found["example"] or found["elsewhere"] or found["none"],
        "signature": found["signature"] or found["no signature"],
    }
    return [what for what, there in is_there.items() if not there]


COLUMNS = ("docstring", "example", "elsewhere", "none", "signature")


def main() -> None:
    """Print the table: of every module, how many names have a docstring, an example of their own,
    one elsewhere (see `shows_no_example`) or none since nothing is called, and a signature."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    print(f"{'module':24}{'names':>7}{''.join(f'{column:>11}' for column in COLUMNS)}")
    totals = Counter[str]()
    for module_name, names in public_names().items():
        counts = Counter({column: sum(facts(n)[column] for n in names) for column in COLUMNS})
        counts["names"] = len(names)
        totals += counts
        print(row(module_name, counts))
        for name in names:
            missing = lacks(name)
            if (missing and arguments.missing) or arguments.all:
                print(f"    {name.kind:12} {name.text:50} {', '.join(missing) or '-'}")
    print(row("all", totals))


def row(label: str, counts: Counter[str]) -> str:
    """A row of the table."""
    numbers = "".join(f"{counts[column]:11}" for column in COLUMNS)
    return f"{label:24}{counts['names']:7}{numbers}"


if __name__ == "__main__":
    main()
