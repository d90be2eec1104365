"""Layout: how the axes of an array are split over the axes of a mesh.

Layouts are immutable and interned, so comparing is `is`, hashing is the identity, and a tuple of
them is a cheap cache key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np

from gdt.arguments import checked_class
from gdt.errors import LayoutError, ShapeError, error
from gdt.sharding.immutable import Immutable
from gdt.sharding.mesh import Mesh, checked_mesh
from gdt.sharding.reduction import UFUNCS

__all__ = ["MATCH", "UNSHARDED", "Layout"]


UNSHARDED = "unsharded"
MATCH = "match"

Spec = str | tuple[str, ...] | None
Axes = tuple[int, ...]  # mesh axes by position, major first


@checked_class("of")
class Layout(Immutable):
    """The way in which each axis of an array is split over the axes of a mesh.

    sharding_specs: for every array axis `gdt.UNSHARDED` (or None), the name of a mesh axis, or a
        tuple of names, major first, to split one array axis over several mesh axes.
    mesh: the Mesh.
    partial: `{mesh axis: "sum"}`: the value is the sum (or max, min, prod) of what the devices
        along that mesh axis hold. The reduction is carried out when a value is needed. A list of
        names means sums.

    Raises LayoutError for unknown or repeated mesh axes. Follows `tf.experimental.dtensor.Layout`.

    >>> mesh = gdt.create_mesh([("batch", 4), ("model", 2)])
    >>> layout = gdt.Layout(["batch", gdt.UNSHARDED], mesh)
    >>> layout.num_shards(0), layout.num_shards(1)
    (4, 1)
    >>> gdt.Layout([("batch", "model"), None], mesh)
    Layout([('batch', 'model'), -], Mesh(batch=4, model=2))
    """

    mesh: Mesh
    dims: tuple[Axes, ...]  # the mesh axes that split each array axis
    reductions: tuple[str | None, ...]  # the partial reduction over each mesh axis, or None

    instead = "Make another with gdt.Layout, and move an array to it with gdt.relayout(x, layout)."
    _interned: ClassVar[WeakValueDictionary[tuple[object, ...], Layout]] = WeakValueDictionary()

    def __new__(
        cls,
        sharding_specs: Sequence[Spec],
        mesh: Mesh,
        *,
        partial: Mapping[str, str] | Iterable[str] = (),
    ) -> Layout:
        checked_mesh(mesh, "Layout")
        if isinstance(sharding_specs, str) or not isinstance(sharding_specs, Sequence):
            raise error(
                LayoutError,
                f"sharding_specs is {sharding_specs!r}, not a list with one entry per array axis",
            )
        dims = tuple(_axes_of(spec, mesh) for spec in sharding_specs)
        by_axis: list[str | None] = [None] * mesh.ndim
        reductions = partial if isinstance(partial, Mapping) else dict.fromkeys(partial, "sum")
        for name, reduction in reductions.items():
            if reduction not in UFUNCS:
                raise error(
                    LayoutError,
                    f"unknown reduction {reduction!r} over mesh axis {name!r}",
                    remedy=f"Use one of {', '.join(UFUNCS)}.",
                )
            by_axis[mesh.axis_index(name, "Layout")] = reduction
        mesh_axes = [a for axes in dims for a in axes] + [a for a, p in enumerate(by_axis) if p]
        for axis in mesh_axes:
            if mesh_axes.count(axis) > 1:
                raise error(
                    LayoutError,
                    f"mesh axis {mesh.axis_names[axis]!r} is used {mesh_axes.count(axis)} times",
                    operands={"sharding_specs": list(sharding_specs), "mesh": mesh},
                    remedy="A mesh axis can split one array axis, or hold one partial reduction.",
                )
        return cls.of(mesh, dims, tuple(by_axis))

    @classmethod
    def of(
        cls, mesh: Mesh, dims: tuple[Axes, ...], reductions: tuple[str | None, ...] | None = None
    ) -> Layout:
        """Return the one layout of these attributes, without checking them.

        dims: for each array axis, the positions of the mesh axes that split it. reductions: for
        each mesh axis, its partial reduction or None; by default nothing is partial.

        >>> mesh = gdt.create_mesh([("x", 2)])
        >>> gdt.Layout.of(mesh, ((0,), ()))
        Layout(['x', -], Mesh(x=2))
        """
        key = (mesh, dims, reductions or (None,) * mesh.ndim)
        layout = cls._interned.get(key)
        if layout is None:
            layout = object.__new__(cls)
            layout._set(mesh=mesh, dims=dims, reductions=key[2])
            layout = cls._interned.setdefault(key, layout)  # another thread's, if it was first
        return layout

    # ---- constructors

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        """Return the layout of `rank` array axes that holds the whole array on every device.

        >>> gdt.Layout.replicated(gdt.create_mesh([("x", 2)]), rank=2)
        Layout([-, -], Mesh(x=2))
        """
        rank = _checked_rank(rank, "Layout.replicated")
        return cls.of(checked_mesh(mesh, "Layout"), ((),) * rank)

    @classmethod
    def batch_sharded(cls, mesh: Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """Return the layout whose array axis `axis` is split over the mesh axis `batch_dim`.

        All other array axes are whole. Raises LayoutError for an axis outside the rank.

        >>> gdt.Layout.batch_sharded(gdt.create_mesh([("x", 2)]), "x", rank=2)
        Layout(['x', -], Mesh(x=2))
        """
        specs: list[Spec] = [UNSHARDED] * _checked_rank(rank, "Layout.batch_sharded")
        if not -rank <= axis < rank:
            raise error(LayoutError, f"axis {axis} is out of range for rank {rank}")
        specs[axis] = batch_dim
        return cls(specs, mesh)

    @classmethod
    def inner_sharded(cls, mesh: Mesh, inner_dim: str, rank: int) -> Layout:
        """Return the layout whose last array axis is split over the mesh axis `inner_dim`.

        >>> gdt.Layout.inner_sharded(gdt.create_mesh([("x", 2)]), "x", rank=2)
        Layout([-, 'x'], Mesh(x=2))
        """
        return cls.batch_sharded(mesh, inner_dim, rank, axis=-1)

    # ---- facts

    @property
    def rank(self) -> int:
        """The number of array axes."""
        return len(self.dims)

    @property
    def sharding_specs(self) -> list[Spec]:
        """The spec of each array axis: `"unsharded"`, a mesh axis name, or a tuple of names."""
        names = self.mesh.axis_names
        return [
            UNSHARDED
            if not axes
            else names[axes[0]]
            if len(axes) == 1
            else tuple(names[a] for a in axes)
            for axes in self.dims
        ]

    def remedy_for(self, rank: int) -> str:
        """Return what an error says to write in place of a layout that is not of this rank.

        >>> layout = gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))
        >>> layout.remedy_for(2)
        "Give an entry for each axis, such as Layout(['x', None], mesh)."
        """
        entries = [self.mesh.axis_names[0], *[None] * (rank - 1)][:rank]
        return f"Give an entry for each axis, such as Layout({entries}, mesh)."

    @property
    def partial(self) -> dict[str, str]:
        """The partial reductions: `{mesh axis name: "sum"}`."""
        return {n: r for n, r in zip(self.mesh.axis_names, self.reductions, strict=True) if r}

    def __getattr__(self, name: str) -> object:
        if name == "shape":
            raise AttributeError(
                "Layout has no shape (in TF it is the mesh's, which misleads): use "
                "layout.num_shards(axis) for the number of shards of an array axis, "
                "layout.mesh.shape() for the mesh"
            )
        raise AttributeError(f"'Layout' object has no attribute {name!r}")

    @cached_property
    def split_axes(self) -> frozenset[int]:
        """The positions of the mesh axes that split an array axis."""
        return frozenset(a for axes in self.dims for a in axes)

    @cached_property
    def shard_counts(self) -> tuple[int, ...]:
        """The number of shards along every array axis."""
        return tuple(math.prod(self.mesh.sizes[a] for a in axes) for axes in self.dims)

    def num_shards(self, axis: int) -> int:
        """Return the number of shards along the array axis `axis`.

        Raises LayoutError if there is no such axis.

        >>> gdt.Layout(["x", None], gdt.create_mesh([("x", 4)])).num_shards(0)
        4
        """
        if not -self.rank <= axis < self.rank:
            raise error(
                LayoutError,
                f"axis {axis} is out of range for rank {self.rank}",
                operands={"layout": self},
            )
        return self.shard_counts[axis]

    def is_fully_replicated(self) -> bool:
        """Return whether every device holds the whole value.

        >>> gdt.Layout([None, None], gdt.create_mesh([("x", 4)])).is_fully_replicated()
        True
        """
        return not any(self.dims) and not any(self.reductions)

    def is_batch_parallel(self) -> bool:
        """Return whether the first array axis is split and no other.

        >>> gdt.Layout(["x", None], gdt.create_mesh([("x", 4)])).is_batch_parallel()
        True
        """
        return bool(self.dims) and bool(self.dims[0]) and not any(self.dims[1:])

    def is_single_device(self) -> bool:
        """Return whether the mesh has one coordinate.

        >>> gdt.Layout(["x"], gdt.create_mesh([("x", 4)])).is_single_device()
        False
        """
        return self.mesh.size == 1

    @cached_property
    def resolved(self) -> Layout:
        """The layout of the same splits with nothing partial."""
        return Layout.of(self.mesh, self.dims)

    def split_as(self, dims: tuple[Axes, ...]) -> Layout:
        """Return the layout that splits array axes by the mesh axes `dims`, and is partial as this
        one is over all other mesh axes.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> gdt.Layout([None], mesh, partial=["y"]).split_as(((0,),))
        Layout(['x'], Mesh(x=2, y=2), partial={'y': 'sum'})
        """
        split_axes = Layout.of(self.mesh, dims).split_axes
        reductions = tuple(None if a in split_axes else r for a, r in enumerate(self.reductions))
        return Layout.of(self.mesh, dims, reductions)

    def delete(self, dims: Sequence[int]) -> Layout:
        """Return the layout without the array axes `dims`, as for a bias beside its weight.

        Raises LayoutError for an axis outside the rank.

        >>> mesh = gdt.create_mesh([("model", 2)])
        >>> gdt.Layout([gdt.UNSHARDED, "model"], mesh).delete([0])
        Layout(['model'], Mesh(model=2))
        """
        for d in dims:
            if not -self.rank <= d < self.rank:
                problem = f"axis {d} is out of range for rank {self.rank}"
                raise error(LayoutError, problem, operands={"layout": self})
        deleted = {d % self.rank for d in dims}
        other_dims = tuple(axes for d, axes in enumerate(self.dims) if d not in deleted)
        return Layout.of(self.mesh, other_dims, self.reductions)

    def local_shape_from_global_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the first shard of an array of global `shape`, rounded up.

        Raises ShapeError if `shape` has another rank than the layout.

        >>> layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 4)]))
        >>> layout.local_shape_from_global_shape((10, 3))
        [3, 3]
        """
        if len(shape) != self.rank:
            raise error(
                ShapeError,
                f"{list(shape)} has not rank {self.rank}",
            )
        return [-(-n // p) for n, p in zip(shape, self.shard_counts, strict=True)]

    def global_shape_from_local_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the global shape of an array whose shards all have `shape`.

        Raises ShapeError if `shape` has another rank than the layout.

        >>> layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 4)]))
        >>> layout.global_shape_from_local_shape((2, 3))
        [8, 3]
        """
        if len(shape) != self.rank:
            raise error(
                ShapeError,
                f"{list(shape)} has not rank {self.rank}",
            )
        return [n * p for n, p in zip(shape, self.shard_counts, strict=True)]

    def shard_index(self, coordinate: Sequence[int], dim: int) -> int:
        """Return the index of the shard of array axis `dim` that the device at `coordinate` holds.

        Raises LayoutError where the layout has no such axis or the mesh no such coordinate.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> gdt.Layout([("x", "y")], mesh).shard_index((1, 0), dim=0)
        2
        """
        index = 0
        try:
            for axis in self.dims[dim]:
                index = index * self.mesh.sizes[axis] + coordinate[axis]
        except IndexError:
            problem = f"no axis {dim} in rank {self.rank}, or no coordinate {coordinate!r}"
            raise error(LayoutError, problem, operands={"layout": self}) from None
        return index

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Return, for every device, row-major, the index of its shard along every array axis.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> gdt.Layout(["y"], mesh).offset_to_shard()
        [(0,), (1,), (0,), (1,)]
        """
        return [
            tuple(self.shard_index(c, d) for d in range(self.rank)) for c in self.mesh.coordinates()
        ]

    # ---- text

    def __str__(self) -> str:
        dims = ["-" if s == UNSHARDED else repr(s) for s in self.sharding_specs]
        reductions = [f" + {r} over {n!r}" for n, r in self.partial.items()]
        return f"[{', '.join(dims)}]{''.join(reductions)}"

    def __repr__(self) -> str:
        reductions = f", partial={self.partial}" if self.partial else ""
        dims = ", ".join("-" if s == UNSHARDED else repr(s) for s in self.sharding_specs)
        return f"Layout([{dims}], {self.mesh}{reductions})"

    def to_string(self) -> str:
        """Return the layout as one line of text that `from_string` reads.

        >>> gdt.Layout(["x"], gdt.create_mesh([("x", 1)], device_type="CPU")).to_string()
        'sharding_specs:x;partial:;mesh:|x=1|1|cpu:0'
        """
        names = self.mesh.axis_names
        specs = ",".join("+".join(names[a] for a in axes) or UNSHARDED for axes in self.dims)
        reductions = ",".join(f"{n}={r}" for n, r in self.partial.items())
        return f"sharding_specs:{specs};partial:{reductions};mesh:{self.mesh.to_string()}"

    @classmethod
    def from_string(cls, text: str) -> Layout:
        """Return the layout that `to_string` wrote as `text`; it is the same object.

        Raises LayoutError for any other text.

        >>> layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 2)]))
        >>> gdt.Layout.from_string(layout.to_string()) is layout
        True
        """
        form = re.fullmatch(r"sharding_specs:([^;]*);partial:([^;]*);mesh:(.*)", text)
        if form is None:
            raise error(LayoutError, f"cannot read {text!r}")
        specs: list[Spec] = [
            s if s == UNSHARDED else tuple(s.split("+")) for s in form.group(1).split(",") if s
        ]
        pairs = [p.split("=") for p in form.group(2).split(",") if p]
        return cls(specs, Mesh.from_string(form.group(3)), partial=dict(pairs))

    def __reduce__(self) -> tuple[object, ...]:
        return Layout.from_string, (self.to_string(),)


def _axes_of(spec: Spec, mesh: Mesh) -> Axes:
    """Return the positions of the mesh axes that `spec` names, or raise LayoutError."""
    if spec is None or spec == UNSHARDED:
        return ()
    names = (spec,) if isinstance(spec, str) else spec
    if not isinstance(names, tuple) or not all(isinstance(n, str) for n in names):
        raise error(
            LayoutError,
            f"{spec!r} is not a sharding spec",
            remedy="A spec is gdt.UNSHARDED, the name of a mesh axis, or a tuple of names.",
        )
    for name in names:
        if not mesh.contains_dim(name):
            raise error(
                LayoutError,
                f"no mesh axis {name!r}",
                operands={"mesh": mesh},
                remedy="A spec is gdt.UNSHARDED or one of "
                f"{', '.join(map(repr, mesh.axis_names))}.",
            )
    return tuple(mesh.axis_names.index(n) for n in names)


def _checked_rank(rank: int, op: str) -> int:
    """Return `rank` as an int, or raise LayoutError if it is no int of 0 to 64."""
    if type(rank) is int and 0 <= rank <= 64:
        return rank
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank <= 64:
        raise error(LayoutError, op, f"rank is {rank!r}; it is an int of 0 to 64")
    return int(rank)
