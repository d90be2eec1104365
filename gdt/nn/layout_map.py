"""LayoutMap: the layouts of a model's parameters by their names, kept apart from the model."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.array.unmade import moved_unmade
from gdt.errors import LayoutError, MeshError, error, frame_of_user
from gdt.nn.module import Home, Module, making_models
from gdt.nn.parameters import ParameterSpec
from gdt.nn.placement import LayoutToCome, Placement, check_applied, note_layouts
from gdt.nn.sharded import ArrayLayouts, Sharded, is_open, layout_of
from gdt.ops.gathering import gathered
from gdt.ops.movement import relayout
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import MATCH, Layout
from gdt.sharding.mesh import Mesh
from gdt.state import Slot, owner_of, places, slots
from gdt.state.trees import Tree, mapped

OUTPUT = "/output"
UNITS = r"(.*?\.)?\d+(?=\.)"  # up to the first number in a list
SHOWN = 12  # names that an error lists


@checked_class(eager=True)
class LayoutMap(MutableMapping[str, Layout | Sharded]):
    r"""A mapping from names of arrays to layouts, whose keys may be regular expressions.

    A name is first looked up as a key; then all keys are tried with `re.match`, in the order in
    which they were added. A name that no key matches has no layout (KeyError). A value is a Layout,
    or a list of sharding specs for `mesh`, in which `...` stands for any axes that are not split;
    or a `Sharded`, for an array that is kept in one layout and used in another. Follows
    `tf.keras.dtensor.experimental.LayoutMap`.

    The name of a module followed by `/output` stands for what its calls return, which is moved to
    the layout; there specs may be `gdt.MATCH`, and keys match whole names (`re.fullmatch`).

    units: a regular expression for the names of the modules that gather what they use: the arrays
        of a unit travel together when it is called. The unit of an array is the module whose name
        the pattern matches at the beginning of the array's name, and the whole model for other
        arrays. By default every module in a list, such as `blocks.0`, is a unit. A
        `gdt.nn.Pipelined` gathers for all its parts.
    allow_unmatched: whether keys may match no name, as in a map for many models; one has to.

    Raises LayoutError for a key that is there already, or that is no regular expression.

    >>> mesh = gdt.create_mesh([("batch", 2), ("model", 2)])
    >>> layouts = gdt.nn.LayoutMap(mesh)
    >>> layouts[r".*\.weight"] = [gdt.UNSHARDED, "model"]
    >>> layouts[r".*\.bias"] = ["model"]
    >>> with gdt.default_mesh(mesh):
    ...     model = layouts.apply(gdt.nn.Sequential(gdt.nn.Dense(4, 6)))
    >>> model[0].bias.layout
    Layout(['model'], Mesh(batch=2, model=2))
    """

    def __init__(self, mesh: Mesh, *, units: str = UNITS, allow_unmatched: bool = False) -> None:
        self.mesh, self.allow_unmatched = mesh, allow_unmatched
        self.units = _pattern(units)
        self._layouts: dict[str, Any] = {}

    def __setitem__(self, key: str, layout: Layout | Sequence[Any] | Sharded) -> None:
        if key in self._layouts:
            raise error(
                LayoutError,
                f"{key!r} has a layout already",
                operands={key: self._layouts[key]},
                remedy="Delete it first to set another.",
            )
        _pattern(key)
        is_of_output = key.endswith(OUTPUT)
        if isinstance(layout, str) or (is_of_output and isinstance(layout, Sharded)):
            raise error(
                LayoutError,
                f"the layout of {key!r} is {layout!r}, not a list of sharding specs",
                remedy="Name the mesh axis that splits each axis, or None, as in ['data', None].",
            )
        if isinstance(layout, Sharded):
            parts = [w for w in (layout.kept, layout.used, layout.state) if w is not None]
            specs = [(w, layout_of(w, self.mesh)) for w in parts if not isinstance(w, str)]
            ranks = {fixed.rank for w, fixed in specs if not is_open(w)}
            if len(ranks) > 1:
                problem = f"the layouts of {key!r} have different ranks"
                raise error(LayoutError, problem, operands=vars(layout))
        elif isinstance(layout, Layout):
            if layout.mesh is not self.mesh:
                problem = f"the layout of {key!r} is on {layout.mesh}, and the map on {self.mesh}"
                raise error(MeshError, problem)
        else:
            fixed = layout_of([s for s in layout if not is_of_output or s != MATCH], self.mesh)
            layout = layout if is_of_output or is_open(layout) else fixed
        self._layouts[key] = layout

    def __getitem__(self, name: str) -> Any:
        if name in self._layouts:
            return self._layouts[name]
        for key, layout in self._layouts.items():
            if not key.endswith(OUTPUT) and re.match(key, name):
                return layout
        raise KeyError(name)

    def __delitem__(self, key: str) -> None:
        del self._layouts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def apply(self, tree: Tree) -> Tree:
        """Move every array of a model to the layout in which it is kept, or replicate it on the
        mesh; return the model.

        The calls of a Module then use its arrays, and return its outputs, in the layouts of the
        map; for a tree of arrays there is `gathered`. Arrays of layers that find their sizes at the
        first call are created in their layouts then.

        Raises LayoutError, and changes nothing, if a layout does not fit its array (see
        `nn.Sharded`), a key matches no name, one array has two names and two layouts, or an array
        outside of a Module has a layout for its state. Warns where two keys match one name and
        have different layouts, of which the first counts.

        >>> layouts = gdt.nn.LayoutMap(gdt.create_mesh([("x", 2)]))
        >>> layouts["weight"] = [None, "x"]
        >>> layouts.apply(gdt.nn.Dense(3, 4)).weight.layout
        Layout([-, 'x'], Mesh(x=2))
        """
        array_slots = [s for s in slots(tree) if isinstance(s.value, DistributedArray)]
        modules = dict(tree.modules()) if isinstance(tree, Module) else {}
        awaited = _awaited(modules)
        names = [*[s.name for s in array_slots], *[array.name for array in awaited]]
        self._check_keys(names, list(modules))
        self._warn_of_clashes(names)
        layouts = [self._layouts_of(slot.name, slot.value.type) for slot in array_slots]
        if not isinstance(tree, Module):
            _check_states(tree, list(zip(array_slots, layouts, strict=True)))
        arrays = _all_moved(list(zip(array_slots, layouts, strict=True)))
        for slot, array in zip(array_slots, arrays, strict=True):
            slot.owner[slot.key] = array
        if isinstance(tree, Module):
            self._place(tree, modules, list(zip(array_slots, layouts, strict=True)), awaited)
        return tree

    @contextmanager
    def scope(self) -> Iterator[LayoutMap]:
        r"""Apply the map, at the end of this `with` block, to the models that are made inside.

        Raises LayoutError as `apply` does, if the block made any model.

        >>> mesh = gdt.create_mesh([("model", 2)])
        >>> layouts = gdt.nn.LayoutMap(mesh)
        >>> layouts[r".*\.weight"] = [gdt.UNSHARDED, "model"]
        >>> with layouts.scope():
        ...     model = gdt.nn.Sequential(gdt.nn.Dense(4, 6), gdt.nn.Dense(3))
        >>> y = model(gdt.ones((2, 4), "float32", layout=gdt.Layout([None, None], mesh)))
        >>> model[1].weight.layout
        Layout([-, 'model'], Mesh(model=2))
        """
        with self.applied_to_models(Home(self.mesh)):
            yield self

    @contextmanager
    def applied_to_models(self, home: Home) -> Iterator[None]:
        """Give the models that this `with` block makes a home, and apply the map to them at its
        end."""
        modules: list[Module] = []
        with making_models(home, modules):
            yield
        inner = {id(m) for module in modules for name, m in module.modules() if name}
        for module in modules:
            if id(module) not in inner:
                self.apply(module)

    def gathered(self, tree: Tree, name: str = "") -> AbstractContextManager[Tree]:
        """Provide a tree of arrays in the layouts in which this `with` block uses them.

        tree: arrays that `apply` has moved, in lists, tuples and dicts. name: the name of this tree
            within the tree that `apply` was called with.

        Raises LayoutError for an array that does not lie as the map says that an array of its name
        is kept: `apply` has not moved it, or the name is another.

        The arrays travel together, and their memory is free after the block; a backward pass
        gathers them again. (A Module does so by itself when it is called.)

        >>> mesh = gdt.create_mesh([("data", 4)])
        >>> layouts = gdt.nn.LayoutMap(mesh)
        >>> layouts[".*weight"] = gdt.nn.Sharded(kept="data")
        >>> parameters = layouts.apply({"layer": {"weight": gdt.ones((4, 2))}})
        >>> with layouts.gathered(parameters["layer"], "layer") as layer:
        ...     parameters["layer"]["weight"].layout, layer["weight"].layout
        (Layout(['data', -], Mesh(data=4)), Layout([-, -], Mesh(data=4)))
        """
        array_places = [p for p in places(tree, name) if isinstance(p.value, DistributedArray)]
        layouts = [(p.value, self._layouts_of(p.name, p.value.type)) for p in array_places]
        for place, (x, array_layouts) in zip(array_places, layouts, strict=True):
            check_applied(place.name, x, array_layouts.used)
            if x.layout not in (array_layouts.kept, array_layouts.used):
                raise error(
                    LayoutError,
                    f"{place.name} does not lie as the map says that it is kept",
                    operands={place.name: x.type, "kept": array_layouts.kept},
                    remedy="Pass the name that the tree has within the tree that was moved by "
                    f"`apply`; {name!r} was passed.",
                )
        return _gathered_tree(tree, layouts)

    # ---- looking up

    def _sharded(self, name: str) -> Sharded:
        """Return how the array of a name is laid out; replicated if no key matches."""
        layout = self.get(name, Sharded())
        return layout if isinstance(layout, Sharded) else Sharded(used=layout)

    def _layouts_of(self, name: str, array_type: ArrayType) -> ArrayLayouts:
        """Return the layouts of the array of this name and type."""
        return self._sharded(name).layouts_of(name, array_type, self.mesh)

    def _warn_of_clashes(self, names: Sequence[str]) -> None:
        """Warn of names that two keys match, with different layouts."""
        for name in names:
            keys = [k for k in self._layouts if not k.endswith(OUTPUT) and re.match(k, name)]
            others = [k for k in keys[1:] if self._layouts[k] != self._layouts[keys[0]]]
            if name not in self._layouts and others:
                warnings.warn(
                    f"LayoutMap.apply: {name} is matched by {keys[0]!r}, which counts, and by "
                    f"{others[0]!r} with another layout",
                    stacklevel=frame_of_user()[1],
                )

    def _check_keys(self, names: Sequence[str], modules: Sequence[str]) -> None:
        """Raise LayoutError for a key that matches nothing; where keys may, if all do."""
        unmatched = [key for key in self._layouts if not _matches(key, names, modules)]
        if not unmatched or (self.allow_unmatched and len(unmatched) < len(self)):
            return
        is_of_output = unmatched[0].endswith(OUTPUT)
        candidates, noun = (modules, "module") if is_of_output else (names, "array")
        listing = ", ".join(repr(name) for name in candidates[:SHOWN])
        more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
        raise error(
            LayoutError,
            "LayoutMap.apply",
            f"{unmatched[0]!r} matches the name of no {noun}",
            remedy=f"The names are {listing}{more}."
            if candidates
            else f"There is no {noun} yet: call the model once before.",
        )

    # ---- placing modules

    def _place(
        self,
        model: Module,
        modules: dict[str, Module],
        layouts: list[tuple[Slot, ArrayLayouts]],
        awaited: list[Awaited],
    ) -> None:
        """Tell the modules which arrays they gather, and in which layouts they return results."""
        placements = {name: Placement(name or "the model") for name in modules}
        values = [model, *[place.value for place in places(model)]]
        holders = {id(owner): v for v in values if (owner := owner_of(v)) is not None}
        whole = placements[""]
        for slot, array_layouts in layouts:
            unit = placements[self._unit_of(slot.name, modules)]
            holder = holders[id(slot.owner)]
            note_layouts(slot.name, holder, slot.key, array_layouts, unit, whole)
        for name, module, key, spec in awaited:
            unit, sharded = placements[self._unit_of(name, modules)], self._sharded(name)
            spec.layout = LayoutToCome(name, module, key, sharded, self.mesh, unit, whole)
            unit.is_awaited = whole.is_awaited = True
        for key, layout in self._layouts.items():
            for name in modules if key.endswith(OUTPUT) else ():
                if re.fullmatch(key.removesuffix(OUTPUT), name):
                    placements[name].output = placements[name].output or layout
        has_units = any(p.arrays for p in placements.values())
        for name, module in modules.items():
            p = placements[name]
            is_needed = p.arrays or p.output or p.state_layouts or p.is_awaited
            is_needed = is_needed or (p is whole and has_units)  # it knows their order
            module._placement = p if is_needed else None
            if module._home is None or module._home.mesh is not self.mesh:
                module._home = Home(self.mesh)

    def _unit_of(self, name: str, modules: dict[str, Module]) -> str:
        """Return the name of the module whose call gathers the array of this name."""
        match = self.units.match(name)
        unit = match.group() if match else ""
        holders = [module for module in modules if module and name.startswith(f"{module}.")]
        inside = [module for module in holders if module.startswith(unit)]
        # Where the pattern matches a list, the unit is the outermost module inside of the list; if
        # there is none, the innermost around it.
        if not unit:
            return ""
        unit = min(inside, key=len) if inside else max(holders, key=len, default="")
        # A module that gathers for its parts is the unit of what is inside of it.
        around = [m for m in ("", *holders) if modules[m].gathers_parts and len(m) < len(unit)]
        return min(around, key=len) if around else unit


def _matches(key: str, names: Sequence[str], modules: Sequence[str]) -> bool:
    """Return whether a key matches the name of an array, or that of a module if it is of one's
    output."""
    if key.endswith(OUTPUT):
        return any(re.fullmatch(key.removesuffix(OUTPUT), name) for name in modules)
    return key in names or any(re.match(key, name) for name in names)


def _check_states(tree: Tree, layouts: Sequence[tuple[Slot, ArrayLayouts]]) -> None:
    """Raise LayoutError if the state of an array has a layout of its own: gradients and optimizers
    find it in a Module."""
    for slot, (_, kept, state) in layouts:
        if state is not kept:
            raise error(
                LayoutError,
                f"{slot.name} has another layout for its gradient and state, and lies in a "
                f"{type(tree).__name__}, of which optimizers know no more than its arrays",
                operands={"kept": kept, "state": state},
                remedy="Put the arrays into a gdt.nn.Module, as attributes, or in lists and dicts.",
            )


class Awaited(NamedTuple):
    """An array that a layer has not created yet: its name in the model, and the layer's spec."""

    name: str
    layer: Module
    key: str
    spec: ParameterSpec


def _awaited(modules: Mapping[str, Module]) -> list[Awaited]:
    """Return the arrays that layers have not created yet."""
    return [
        Awaited(f"{name}.{key}" if name else key, module, key, spec)
        for name, module in modules.items()
        for key, spec in getattr(module, "_parameter_specs", {}).items()
        if getattr(module, key, None) is None
    ]


def _all_moved(layouts: Sequence[tuple[Slot, ArrayLayouts]]) -> list[DistributedArray]:
    """Return the arrays in the layouts in which they are kept; an array of two names stays one.

    Raises LayoutError if an array of two names has two layouts.
    """
    moved: dict[int, tuple[Slot, ArrayLayouts, DistributedArray]] = {}
    for slot, array_layouts in layouts:
        x = slot.value
        if id(x) not in moved:
            moved[id(x)] = slot, array_layouts, _moved(x, array_layouts.kept)
        first, same, _ = moved[id(x)]
        if same != array_layouts:
            raise error(
                LayoutError,
                f"{first.name} and {slot.name} hold one array, and have different layouts",
                operands={first.name: same.kept, slot.name: array_layouts.kept},
                remedy="Give both the same layouts, or each a copy: x.copy().",
            )
    return [moved[id(slot.value)][2] for slot, _ in layouts]


def _moved(x: DistributedArray, layout: Layout) -> DistributedArray:
    """Return an array in a layout, in memory of its own: a cut that sends nothing is a view, which
    would keep all of the memory. One that nobody has read is made in its layout."""
    if x.layout is layout:
        return x
    unmade = moved_unmade(x, layout)
    return relayout(x, layout).copy() if unmade is None else unmade


@contextmanager
def _gathered_tree(
    tree: Tree, layouts: Sequence[tuple[DistributedArray, ArrayLayouts]]
) -> Iterator[Tree]:
    """Provide a tree in which the arrays that are used in another layout are gathered."""
    pairs = [(x, w) for x, w in layouts if x.layout is not w.used]
    if not pairs:
        yield tree
        return
    arrays = [x for x, _ in pairs]
    with gathered(arrays, [w.used for _, w in pairs], [w.state for _, w in pairs]) as results:
        by_identity = {id(x): y for x, y in zip(arrays, results, strict=True)}
        yield mapped(lambda leaf: by_identity.get(id(leaf), leaf), tree)


def _pattern(key: str) -> re.Pattern[str]:
    """Return a compiled regular expression; raise LayoutError for text that is none."""
    try:
        return re.compile(key)
    except re.error as cause:
        raise error(LayoutError, f"{key!r} is no pattern ({cause})") from None
