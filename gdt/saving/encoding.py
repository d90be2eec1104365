"""Objects as JSON, and back: the attributes of modules, with arrays by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.errors import CheckpointError, error
from gdt.nn.compiling import Compilation
from gdt.nn.module import Home
from gdt.saving.registry import DTYPES, things
from gdt.sharding.layout import UNSHARDED, Layout
from gdt.sharding.mesh import Mesh

PLAIN = (bool, int, str, type(None))
AS_ARRAY = "Make it an array of gdt by gdt.asarray; a constant is named in `untrained`."
REGISTER = "Register the class or function in this program: @gdt.saving.register."


class Encoder:
    """A tree of objects as JSON. arrays: the arrays of the tree, by name, resolved.

    Containers and objects are numbered, so that one that comes twice is one again.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, DistributedArray] = {}
        self._names: dict[int, str] = {}  # of arrays, by identity
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no other object has one of these identities
        self._names_of_things = {id(thing): name for name, thing in things().items()}

    def encode(self, value: Any, name: str) -> Any:
        """Return a value as JSON; name: its path, for arrays and errors."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, float) and type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, DistributedArray):
            return {"array": self._array(value, name)}
        if isinstance(value, Layout):
            return {"layout": _specs(value), "mesh": self.encode(value.mesh, name)}
        if isinstance(value, Mesh):
            sizes = [value.dim_size(axis) for axis in value.axis_names]
            return {"mesh": [list(value.axis_names), sizes]}
        if isinstance(value, np.dtype):
            return {"dtype": value.name}
        if isinstance(value, type) and value in DTYPES:
            return {"type": DTYPES[value]}
        if isinstance(value, np.bool_ | np.integer | np.floating):
            return {"scalar": value.item(), "dtype": value.dtype.name}
        if isinstance(value, slice):
            return {"slice": [self.encode(v, name) for v in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": True}
        return self._numbered(value, name)

    def _array(self, array: DistributedArray, name: str) -> str:
        """Return the name of an array in the file; that of its first place if it has several."""
        if id(array) not in self._names:
            self._names[id(array)] = name
            self._alive.append(array)
            self.arrays[name] = array.resolve()
        return self._names[id(array)]

    def _numbered(self, value: Any, name: str) -> Any:
        """Return a container, object or function; a reference if it was there before."""
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)]}
        self._alive.append(value)
        number = self._numbers[id(value)] = len(self._numbers)

        def inner(key: Any, item: Any) -> Any:
            return self.encode(item, f"{name}.{key}" if name else str(key))

        kind = type(value)
        if kind in (list, tuple):
            return {kind.__name__: [inner(i, v) for i, v in enumerate(value)], "number": number}
        if kind is dict:
            pairs = [[self.encode(k, name), inner(k, v)] for k, v in value.items()]
            return {"dict": pairs, "number": number}
        if isinstance(value, functools.partial):
            parts = [value.func, list(value.args), value.keywords]
            return {"partial": [self.encode(p, name) for p in parts], "number": number}
        own = self._names_of_things.get(id(value))
        if own is not None:
            return {"function": own, "number": number}
        return self._object(value, name, number, inner)

    def _object(
        self, value: Any, name: str, number: int, inner: Callable[[Any, Any], Any]
    ) -> dict[str, Any]:
        """Return an object of a known class: its class and its attributes."""
        class_name = self._names_of_things.get(id(type(value)))
        if class_name is None:
            kind = type(value)
            what = (
                getattr(value, "__qualname__", None) or f"a {kind.__module__}.{kind.__qualname__}"
            )
            problem = f"{name or 'the model'} is {what}, which files cannot name"
            remedy = AS_ARRAY if isinstance(value, np.ndarray) else REGISTER
            raise error(CheckpointError, "save", problem, remedy=remedy)
        if isinstance(value, tuple):
            return {"object": class_name, "fields": [inner(i, v) for i, v in enumerate(value)]}
        attributes = {
            key: inner(key, item)
            for key, item in vars(value).items()
            if not isinstance(item, Compilation | Home)  # which a loaded model has of its own
        }
        return {"object": class_name, "attributes": attributes, "number": number}


def _specs(layout: Layout) -> list[Any]:
    """Return the names of the mesh axes that split each axis of an array."""
    names = layout.mesh.axis_names
    return [[names[axis] for axis in axes] for axes in layout.dims]


class Decoder:
    """Objects from JSON. arrays: the arrays by name. mesh_of: the mesh to use for one in a file."""

    def __init__(
        self, arrays: Mapping[str, DistributedArray], mesh_of: Callable[[Any], Mesh]
    ) -> None:
        self.arrays, self.mesh_of = arrays, mesh_of
        self._things = things()
        self._numbered: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        """Return the value of what `Encoder.encode` returned."""
        if not isinstance(value, dict):
            return value
        kind = next(iter(value), "{}")
        if kind not in DECODERS:
            raise error(CheckpointError, "load_model", f"the file holds an unknown {kind!r}")
        return DECODERS[kind](self, value)

    def _all(self, values: Any) -> list[Any]:
        return [self.decode(v) for v in values]

    def _keep(self, value: dict[str, Any], thing: Any) -> Any:
        self._numbered[value["number"]] = thing
        return thing

    def _list(self, value: dict[str, Any]) -> Any:
        items: list[Any] = self._keep(value, [])
        items += self._all(value["list"])
        return items

    def _dict(self, value: dict[str, Any]) -> Any:
        items: dict[Any, Any] = self._keep(value, {})
        items.update({self.decode(k): self.decode(v) for k, v in value["dict"]})
        return items

    def _partial(self, value: dict[str, Any]) -> Any:
        function, args, keywords = self._all(value["partial"])
        return self._keep(value, functools.partial(function, *args, **keywords))

    def _thing(self, name: str) -> Any:
        thing = self._things.get(name)
        if thing is None:
            own_name = name.removeprefix("own:")
            problem = f"the file names {own_name!r}, which this program has not"
            raise error(CheckpointError, "load_model", problem, remedy=REGISTER)
        return thing

    def _object(self, value: dict[str, Any]) -> Any:
        cls = self._thing(value["object"])
        if not isinstance(cls, type):
            raise error(CheckpointError, "load_model", f"{value['object']!r} is no class")
        if "fields" in value:
            return tuple.__new__(cls, self._all(value["fields"]))
        instance = self._keep(value, object.__new__(cls))
        attributes = {key: self.decode(item) for key, item in value["attributes"].items()}
        vars(instance).update(attributes)  # as they were: no constructor runs
        return instance

    def _layout(self, value: dict[str, Any]) -> Layout:
        mesh = self.decode(value["mesh"])
        names = [[axis for axis in axes if axis in mesh.axis_names] for axes in value["layout"]]
        return Layout([tuple(axes) if axes else UNSHARDED for axes in names], mesh)


DECODERS: dict[str, Callable[[Decoder, dict[str, Any]], Any]] = {
    "float": lambda self, v: float(v["float"]),
    "array": lambda self, v: self.arrays[v["array"]],
    "layout": Decoder._layout,
    "mesh": lambda self, v: self.mesh_of(v["mesh"]),
    "dtype": lambda self, v: np.dtype(v["dtype"]),
    "type": lambda self, v: {name: t for t, name in DTYPES.items()}[v["type"]],
    "scalar": lambda self, v: np.dtype(v["dtype"]).type(v["scalar"]),
    "slice": lambda self, v: slice(*self._all(v["slice"])),
    "ellipsis": lambda self, v: Ellipsis,
    "same": lambda self, v: self._numbered[v["same"]],
    "list": Decoder._list,
    "tuple": lambda self, v: self._keep(v, tuple(self._all(v["tuple"]))),
    "dict": Decoder._dict,
    "partial": Decoder._partial,
    "function": lambda self, v: self._keep(v, self._thing(v["function"])),
    "object": Decoder._object,
}
