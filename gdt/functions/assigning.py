"""NumPy's functions that write to their first argument: it gets new blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.array.views import check_writable, rebind
from gdt.errors import ArgumentError, DtypeError, ShapeError, error, type_text
from gdt.ops import comparison
from gdt.ops.axes import checked_axis
from gdt.ops.comparison import where
from gdt.ops.elementwise import astype
from gdt.ops.lookup import checked_indices
from gdt.ops.movement import relayout
from gdt.ops.ranges import arange
from gdt.ops.reductions import any_
from gdt.ops.scans import cumsum
from gdt.ops.shapes import broadcast_to, reshape
from gdt.ops.taking import rows_at
from gdt.ops.writing import KINDS, update_at
from gdt.sharding.dtypes import castable, kind_of
from gdt.sharding.layout import Layout

__all__ = ["copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"]


def _checked(x: Any) -> DistributedArray:
    if not isinstance(x, DistributedArray):
        problem = f"the array to write is {type_text(x)}"
        raise error(DtypeError, problem, remedy="It is a distributed array.")
    check_writable(x)
    return x


def _values(x: DistributedArray, values: Any, name: str) -> DistributedArray:
    """The values as a flat array of the dtype of `x`."""
    values = _on_mesh_of(x, values, name)
    return astype(reshape(values, (values.size,)), x.dtype)


def _on_mesh_of(x: DistributedArray, values: Any, name: str) -> DistributedArray:
    """The values as an array; Python's numbers in the dtype of `x`, which must hold them."""
    if isinstance(values, int | float | complex | list | tuple):
        values = np.asarray(values, x.dtype)
    return as_operands(name, x=x, values=values)[1]


def _repeated(values: DistributedArray, places: DistributedArray) -> DistributedArray:
    """The elements of flat `values` at places that count on from its end at its start again."""
    return rows_at(values, places % values.size, axis=0)


def _places(x: DistributedArray) -> DistributedArray:
    """The place of every element of `x` in row-major order, split as `x` is."""
    axes = tuple(sorted(x.layout.split_axes))
    flat = arange(x.size, layout=Layout.of(x.mesh, (axes,)))
    return reshape(flat, x.shape)


@public
def put(x: DistributedArray, indices: Any, values: Any, mode: str = "raise") -> None:
    """Set the elements of `x` at `indices` into its flattened form to `values`, which repeat.

    mode: what an index out of range does: `raise` an IndexRangeError, `wrap` around, or `clip` to
    the nearest one.

    >>> x = gdt.zeros(4)
    >>> gdt.put(x, [0, -1], [1.0, 2.0])
    >>> x.tolist()
    [1.0, 0.0, 0.0, 2.0]
    """
    x = _checked(x)
    if mode not in ("raise", "wrap", "clip"):
        raise error(ArgumentError, f"mode is {mode!r}, not 'raise', 'wrap' or 'clip'")
    flat, values = reshape(x, (x.size,)), _values(x, values, "put")
    if not isinstance(indices, DistributedArray):
        indices = np.asarray(indices)
        indices = indices if indices.size else indices.astype(np.int64)
    if mode == "wrap" and x.size:
        indices = indices % x.size
    elif mode == "clip":
        indices = indices.clip(0, x.size - 1)
    indices = checked_indices(flat.type, indices, 0, "put")
    indices = reshape(indices, (indices.size,))
    if not indices.size or not values.size:
        return
    if values.size != indices.size:
        values = _repeated(values, arange(indices.size, layout=indices.layout.resolved))
    _write_flat(x, update_at(flat, values, indices))


def _write_flat(x: DistributedArray, flat: DistributedArray) -> None:
    rebind(x, _in_layout_of(reshape(flat, x.shape), x))


def _in_layout_of(out: DistributedArray, x: DistributedArray) -> DistributedArray:
    return relayout(out, x.layout.resolved)


@public
def put_along_axis(x: DistributedArray, indices: Any, values: Any, axis: int | None = -1) -> None:
    """Set the elements of `x` along `axis` at `indices`, which differ from row to row, to
    `values`: what `gdt.take_along_axis` with the same indices then returns.

    indices: (..., m, ...) where `x` is (..., n, ...); the other axes broadcast, and `values` to
    the whole. None: of the flattened array. Raises IndexRangeError for an index out of range,
    ShapeError for shapes that do not fit.

    >>> x = gdt.zeros((2, 2))
    >>> gdt.put_along_axis(x, [[1], [0]], 5.0, axis=1)
    >>> x.tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    x = _checked(x)
    if axis is None:
        flat = reshape(x, (x.size,))
        _write_flat(x, update_at(flat, values, indices))
        return
    axis = checked_axis(x.type, axis)
    indices = checked_indices(x.type, indices, axis, "put_along_axis")
    fits = indices.ndim == x.ndim and all(
        d == axis or n in (1, m)
        for d, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits:
        raise error(
            ShapeError,
            f"indices do not have the rank of x and sizes that broadcast beside axis {axis}",
            operands={"x": x.type, "indices": indices.type},
        )
    values = _on_mesh_of(x, values, "put_along_axis")
    flat_indices = _flat_indices(x, indices, axis)
    count = flat_indices.size
    if count:
        values = reshape(broadcast_to(values, flat_indices.shape), (count,))
        _write_flat(x, update_at(reshape(x, (x.size,)), values, reshape(flat_indices, (count,))))


def _flat_indices(x: DistributedArray, indices: DistributedArray, axis: int) -> DistributedArray:
    """The indices into the flattened `x` of the elements that `indices` name along `axis`."""
    wide = indices.astype(np.int64)
    total: Any = 0
    for d, n in enumerate(x.shape):
        if d == axis:
            along = where(wide < 0, wide + n, wide)
        else:
            along = arange(n, layout=Layout.replicated(x.mesh, 1))
            along = reshape(along, [n if k == d else 1 for k in range(x.ndim)])
        total = total + along * int(np.prod(x.shape[d + 1 :]))
    shape = [n if d != axis else indices.shape[axis] for d, n in enumerate(x.shape)]
    return broadcast_to(total, shape)


@public
def fill_diagonal(x: DistributedArray, value: Any, wrap: bool = False) -> None:
    """Set the elements of `x` whose indices are all equal to `value`, an array of which repeats.

    wrap: whether the diagonal of a tall matrix begins anew below its end. Raises ShapeError for a
    rank below 2, and for more than two axes that differ in size.

    >>> x = gdt.zeros((2, 2))
    >>> gdt.fill_diagonal(x, 3.0)
    >>> x.tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    x = _checked(x)
    if x.ndim < 2:
        raise error(ShapeError, "the rank is below 2", operands={"x": x.type})
    if x.ndim > 2 and len(set(x.shape)) > 1:
        problem = "axes of more than two must have equal sizes"
        raise error(ShapeError, problem, operands={"x": x.type})
    if not x.size:
        return
    end = x.size
    if x.ndim == 2:
        step = x.shape[1] + 1
        end = end if wrap else min(end, x.shape[1] * x.shape[1])
    else:
        step = 1 + int(np.cumprod(x.shape[:-1]).sum())
    values = _values(x, value, "fill_diagonal")
    count = len(range(0, end, step))
    if values.size not in (1, count):
        values = _repeated(values, arange(count, layout=Layout.replicated(x.mesh, 1)))
    flat = reshape(x, (x.size,))
    _write_flat(x, update_at(flat, values, slice(0, end, step)))


@public
def place(x: DistributedArray, mask: Any, values: Any) -> None:
    """Set the elements of `x` where `mask` is true to the first of `values`, which repeat.

    mask: of as many elements as `x`. Raises ShapeError for another number, and where there is no
    value for a true element.

    >>> x = gdt.zeros(4)
    >>> gdt.place(x, [True, False, True, True], [1.0, 2.0])
    >>> x.tolist()
    [1.0, 0.0, 2.0, 1.0]
    """
    x = _checked(x)
    mask = _mask(x, mask, "place")
    values = _values(x, values, "place")
    if not values.size:
        if bool(any_(mask)):
            problem = "there is no value for the true elements of the mask"
            raise error(ShapeError, problem, operands={"x": x.type})
        return
    flat = reshape(mask, (mask.size,))
    rank = reshape(cumsum(astype(flat, np.int64), axis=0) - 1, x.shape)
    number = where(mask, rank, 0)
    rebind(x, _in_layout_of(where(mask, _repeated(values, number), x), x))


def _mask(x: DistributedArray, mask: Any, name: str) -> DistributedArray:
    """A mask in the shape of `x`."""
    _, mask = as_operands(name, x=x, mask=mask)
    if mask.size != x.size:
        raise error(
            ShapeError, "mask and x differ in size", operands={"x": x.type, "mask": mask.type}
        )
    return astype(reshape(mask, x.shape), bool)


@public
def putmask(x: DistributedArray, mask: Any, values: Any) -> None:
    """Set the elements of `x` where `mask` is true to those of `values` at the same places; fewer
    values than `x` has elements repeat. Raises ShapeError for a mask of another size than `x`.

    >>> x = gdt.arange(5)
    >>> gdt.putmask(x, x > 1, [-33, -44])
    >>> x.tolist()
    [0, 1, -33, -44, -33]
    """
    x = _checked(x)
    mask = _mask(x, mask, "putmask")
    values = _values(x, values, "putmask")
    if values.size == x.size:
        replacements = reshape(values, x.shape)
    elif not values.size:
        return
    else:
        replacements = _repeated(values, _places(x))
    rebind(x, _in_layout_of(where(mask, replacements, x), x))


@public
def copyto(x: DistributedArray, source: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Set the elements of `x` to those of `source`, which broadcasts to its shape, where the mask
    `where` is true.

    casting: which casts are allowed, as in `numpy.can_cast`. Raises DtypeError for another cast,
    ShapeError for a source or mask that does not broadcast.

    >>> x = gdt.zeros(3)
    >>> gdt.copyto(x, [1.0, 2.0, 3.0], where=[True, False, True])
    >>> x.tolist()
    [1.0, 0.0, 3.0]
    """
    x = _checked(x)
    if not isinstance(source, int | float | complex) or isinstance(source, np.generic):
        _, source = as_operands("copyto", x=x, source=source)
        if not castable(source.dtype, x.dtype, casting):
            raise error(
                DtypeError,
                f"{source.dtype} cannot be cast to {x.dtype} by the rule {casting!r}",
                operands={"x": x.type, "source": source.type},
            )
    elif casting != "unsafe" and kind_of(x.dtype) not in KINDS.get(type(source), "biufc"):
        problem = f"{source!r} cannot be cast to {x.dtype} by the rule {casting!r}"
        raise error(DtypeError, problem, operands={"x": x.type})
    if where is True:
        rebind(x, update_at(x, source, ...))
        return
    _, mask = as_operands("copyto", x=x, where=where)
    whole = update_at(x, source, ...)
    rebind(x, _in_layout_of(comparison.where(broadcast_to(mask, x.shape), whole, x), x))
