"""Sharded: the layouts of an array of a model between its uses, in its uses, and of its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gdt.arguments import checked_class
from gdt.errors import LayoutError, error
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

Specs = Layout | Sequence[Any]


@checked_class(eager=True)
@dataclass(frozen=True)
class Sharded:
    """The layouts of an array of a model: as it is kept, as it is used, and of its state.

    kept: the layout between the calls of the model; as the array is used if not given.
    used: the layout in which a call uses the array; replicated if not given. Where it is another
        than `kept`, the array is gathered for the call of its unit (see `LayoutMap`), freed, and
        gathered again in the backward pass, but for the unit that is read last; its gradient is
        reduced and scattered there.
    state: the layout of the gradient, and of what an optimizer keeps for the array; as the array
        is kept if not given. The optimizer then updates a part of the array on each device, and
        gathers the parts.

    Each is a `gdt.Layout`, or a list of sharding specs for the mesh of the LayoutMap, in which
    `...` stands for axes that are not split, as in `[..., "model"]`. `kept` and
    `state` may also be the name of a mesh axis: the array is split over that axis too, beside what
    splits it in `used` or `kept`, along its first axis that divides evenly, or else its longest. A
    `state` that `kept` splits over that axis already is as the array is kept.

    So `Sharded(state="data")` is ZeRO 1 and 2, and `Sharded(kept="data")` is ZeRO 3, which is FSDP
    (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models").

    >>> mesh = gdt.create_mesh([("data", 4), ("model", 2)])
    >>> layouts = gdt.nn.LayoutMap(mesh)
    >>> layouts["weight"] = gdt.nn.Sharded(kept="data", used=[None, "model"])
    >>> layouts.apply({"weight": gdt.ones((8, 6))})["weight"].layout
    Layout(['data', 'model'], Mesh(data=4, model=2))
    """

    kept: Specs | str | None = None
    used: Specs | None = None
    state: Specs | str | None = None

    def layouts_of(self, name: str, array_type: ArrayType, mesh: Mesh) -> ArrayLayouts:
        """Return the layouts of the array of this name and type.

        Raises LayoutError for a layout of another rank than the array's, on another mesh than that
        of its use, or with partial sums, and for the name of a mesh axis that splits the array
        already.

        >>> mesh = gdt.create_mesh([("x", 2)])
        >>> array_type = gdt.ones((4, 2), layout=gdt.Layout([None, None], mesh)).type
        >>> gdt.nn.Sharded(kept="x").layouts_of("weight", array_type, mesh).kept
        Layout(['x', -], Mesh(x=2))
        """
        rank = len(array_type.shape)
        whole = Layout.replicated(mesh, rank)
        layouts: dict[str, Layout] = {}
        for role, specs, base in (
            ("used", self.used, whole),
            ("kept", self.kept, "used"),
            ("state", self.state, "kept"),
        ):
            inner = base if isinstance(base, Layout) else layouts[base]
            if isinstance(specs, str):
                is_split = mesh.axis_index(specs, "LayoutMap") in inner.split_axes
                layouts[role] = (
                    inner
                    if is_split and role == "state"
                    else split_further(name, array_type.with_layout(inner), specs)
                )
            else:
                layouts[role] = inner if specs is None else layout_of(specs, mesh, rank)
            problem = _problem(layouts[role], layouts["used"], rank)
            if problem:
                raise error(
                    LayoutError,
                    "LayoutMap",
                    f"the layout in which {name} is {role if role != 'state' else 'updated'} "
                    f"{problem}",
                    operands={name: array_type, role: layouts[role]},
                )
        return ArrayLayouts(**layouts)


class ArrayLayouts(NamedTuple):
    """The layouts of one array; see `Sharded`."""

    used: Layout
    kept: Layout
    state: Layout


def _problem(layout: Layout, used: Layout, rank: int) -> str:
    """Return what is wrong with a layout of an array of this rank, which is used as `used`."""
    if layout.rank != rank:
        return f"has rank {layout.rank}, and the array has rank {rank}"
    if layout.mesh is not used.mesh:
        return f"is on {layout.mesh}, and the array is used on {used.mesh}"
    return "is partial: an array of a model is a value, not a sum" if layout.partial else ""


def layout_of(specs: Specs, mesh: Mesh, rank: int = 0) -> Layout:
    """Return a layout as it is, or that of a list of sharding specs on `mesh`.

    rank: that of the array; a `...` among the specs stands for the axes that they do not name.
    """
    if isinstance(specs, Layout):
        return specs
    return Layout(closed(specs, rank), mesh)


def closed(specs: Sequence[Any], rank: int) -> list[Any]:
    """Return sharding specs with None for the axes that a `...` among them stands for."""
    specs = list(specs)
    if is_open(specs):
        at = specs.index(...)
        specs[at : at + 1] = [None] * (rank - len(specs) + 1)
    return specs


def is_open(specs: Specs) -> bool:
    """Return whether sharding specs fit arrays of several ranks, since `...` is among them."""
    return not isinstance(specs, Layout) and any(spec is ... for spec in specs)


def split_further(name: str, array_type: ArrayType, mesh_axis: str) -> Layout:
    """Return the layout of an array that is split over one more mesh axis; see `Sharded`."""
    layout, shape = array_type.layout, array_type.shape
    a = layout.mesh.axis_index(mesh_axis, "LayoutMap")
    if a in layout.split_axes:
        raise error(
            LayoutError,
            "LayoutMap",
            f"{name} cannot be split over {mesh_axis!r} twice",
            operands={name: array_type},
        )
    if not shape:
        return layout
    count = layout.mesh.sizes[a]
    even = [d for d, n in enumerate(shape) if n and n % (count * layout.num_shards(d)) == 0]
    longest = max(range(len(shape)), key=lambda d: array_type.local_shape[d])
    split = even[0] if even else longest
    dims = [(*axes, a) if d == split else axes for d, axes in enumerate(layout.dims)]
    return Layout.of(layout.mesh, tuple(dims))
