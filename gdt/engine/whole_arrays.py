"""Functions of ops that are one call of NumPy where one block of the host holds whole arrays.

    @in_numpy(difference_in_numpy)
    def _difference(x, /, *, axis):
        return x[1:] - x[:-1]

The function of ops says what is computed on every mesh, what is sent, how it is differentiated, and
which layouts its results have: a first call with operands of some types runs it. Where one block of
the host holds all elements in NumPy's order, later calls run the function of NumPy on views of
them. In place of a function of NumPy may stand an op, whose body computes the same along an axis
that is whole. Observers that count or explain are told of the ops; so are tapes, unless `vjp`
declares a gradient: then the function is one entry, as with `gdt.custom_vjp`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend import NUMPY
from gdt.comm import local
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.differentiable import Vjp
from gdt.engine.op import Op
from gdt.engine.plan import Block, Plan
from gdt.engine.source import as_tuple
from gdt.observe import OBSERVERS, Observer, observing_only
from gdt.sharding.array_type import ArrayType
from gdt.sharding.layout import Layout

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class NumpyOp(Op[P, R_co]):
    """A function of ops with a function of NumPy that computes the same; see `in_numpy`."""

    def __init__(
        self, function: Callable[P, R_co], body: Callable[..., Any], gathers: bool
    ) -> None:
        super().__init__(function, "", takes_namespace=False)
        if isinstance(body, Op):
            body = partial(body.declaration.body, np)
        self.function, self.body, self.gathers = function, body, gathers
        self.place = function.__name__
        self.writes = "out" in inspect.signature(body).parameters

    def __reduce__(self) -> str:
        """By name, as functions are."""
        return self.place

    def vjp(
        self,
        *per_operand: Vjp | None,
        joint: Vjp | None = None,
        reads: str | Sequence[str] | None = None,
    ) -> None:
        """Declare gradients, as `Differentiable.vjp` does, of the function of ops too."""
        super().vjp(*per_operand, joint=joint, reads=reads)
        self.function = differentiable = custom_vjp(self.function)
        differentiable.vjp(*per_operand, joint=joint, reads=reads)

    def __call__(self, *args: P.args, **static: P.kwargs) -> R_co:
        for a in args:
            if type(a) is not DistributedArray or a.type.is_of_numpy:
                continue
            if not (self.gathers and a.type.is_on_host):
                return self.function(*args, **static)
        for observer in OBSERVERS.get():
            # A recorder is told of every op, a tape of those with a gradient; others of all parts.
            is_told = observer.wants_runs if observer.wants_parts else self.vjps
            listens = observer.wants_moves or type(observer).on_op is not Observer.on_op
            if listens and not is_told:
                return self.function(*args, **static)
        return self._call(*args, **static)  # type: ignore[no-any-return]

    def plan(self, args: Sequence[Any], static: dict[str, Any]) -> Plan:
        """Make the plan of a call with these operands and statics: its outputs are of the types
        that the function of ops returns."""
        types = self.types_of(args)
        with observing_only(), np.errstate(all="ignore"):  # the body warns
            outs = as_tuple(self.function(*args, **static))
        plan = Plan(types, (None,) * len(types))
        plan.outs = tuple([out.type for out in outs])
        plan.set_fast(self._run(types, plan.outs, static))  # which is all that runs: no phase
        return plan

    def _run(
        self,
        types: Sequence[ArrayType | None],
        outs: Sequence[ArrayType],
        static: dict[str, Any],
    ) -> Callable[..., Any]:
        """The function of the operands' blocks, which returns the output's block or a tuple of the
        outputs' blocks."""
        body, views = self.body, [viewer(t) for t in types]
        if self.writes and outs[0].is_in_order:
            return partial(_written, body, static, views, outs[0], rows_of(outs[0]))

        def run(*blocks: Block) -> Any:
            arrays = [view(x) for view, x in zip(views, blocks, strict=True)]
            results: Any
            if self.writes:
                results = np.empty(outs[0].shape, outs[0].dtype)
                body(*arrays, out=results, **static)
            else:
                results = body(*arrays, **static)
            if type(results) is not tuple:
                return block_of_whole(outs[0], results)
            return tuple(map(block_of_whole, outs, results))

        return run


def _written(
    body: Callable[..., None],
    static: dict[str, Any],
    views: Sequence[Callable[[Block], Any]],
    out: ArrayType,
    shape: tuple[int, ...],
    *blocks: Block,
) -> Block:
    """The block of an array of type `out` that the body writes, in whose rows it has `shape`."""
    rows, size = NUMPY.empty(shape, out.dtype), out.shape and out.shape[0]
    arrays = [view(x) for view, x in zip(views, blocks, strict=True)]
    if not out.uneven:
        body(*arrays, out=rows, **static)
    else:
        body(*arrays, out=rows[:size], **static)
        rows[size:] = rows[size - 1] if size else 1
    return rows.reshape(out.block_shape)


def in_numpy(
    body: Callable[..., Any] | Op[..., Any], *, gathers: bool = False
) -> Callable[[Callable[P, R_co]], NumpyOp[P, R_co]]:
    """A decorator of a function of ops; `body` computes the same of NumPy's arrays, or is an op
    whose body does.

    The positional-only parameters of the function are its operands, arrays and Python numbers; the
    keyword-only ones are statics. The body has the same, and perhaps `out`: memory of the only
    result, which it writes. What it returns is no view of an operand.

    gathers: whether operands whose block lies in another order are copied, which pays for a body
        that takes much longer than that.
    """
    return lambda function: NumpyOp(function, body, gathers)


# ---------------------------------------------------------------- whole arrays and blocks


def rows_of(array_type: ArrayType) -> tuple[int, ...]:
    """The shape of an array whose block lies in NumPy's order, with the rows of its padding."""
    if not array_type.uneven:
        return array_type.shape
    counts = [array_type.mesh.sizes[a] for a in array_type.layout.dims[0]]
    return (math.prod(counts) * array_type.local_shape[0], *array_type.shape[1:])


def viewer(array_type: ArrayType | None) -> Callable[[Block], Any]:
    """The function from a block to the elements of the array, without padding: a view of a block in
    NumPy's order, a copy of another. A Python number stays as it is."""
    if array_type is None:
        return lambda number: number
    if not array_type.is_in_order:
        return partial(_gathered, array_type)
    shape = rows_of(array_type)
    if not array_type.uneven:
        return lambda block: block.reshape(shape)
    size = array_type.shape[0]
    return lambda block: block.reshape(shape)[:size]


def _gathered(array_type: ArrayType, block: Block) -> Block:
    for dim, axes in enumerate(array_type.layout.dims):
        if axes:
            size, mesh_ndim = array_type.shape[dim], array_type.mesh.ndim
            block = local.gather(block, mesh_ndim, axes, dim, size)
    return block.reshape(array_type.shape)


def block_of_whole(array_type: ArrayType, array: Any) -> Block:
    """The only block of an array of that type with these elements."""
    array = np.asarray(array, array_type.dtype)
    if array_type.is_in_order and not array_type.uneven:
        return array.reshape(array_type.block_shape)
    if array_type.is_in_order:
        rows, size = NUMPY.empty(rows_of(array_type), array_type.dtype), array_type.shape[0]
        rows[:size] = array
        rows[size:] = array[-1]
        return rows.reshape(array_type.block_shape)
    mesh = array_type.mesh
    block = array.reshape((1,) * mesh.ndim + array.shape)
    for dim, axes in enumerate(array_type.layout.dims):
        if axes:
            counts = tuple([mesh.sizes[a] for a in axes])
            lack = math.prod(counts) * array_type.local_shape[dim] - array.shape[dim]
            block = _padded(block, mesh.ndim + dim, lack)
            block = local.split(np, block, mesh.ndim, axes, counts, dim)
    return block


def _padded(block: Block, axis: int, lack: int) -> Block:
    """A block with `lack` more elements along an axis: the last one, or 1 if there is none."""
    widths = [(0, lack if a == axis else 0) for a in range(block.ndim)]
    if not lack:
        return block
    return (
        np.pad(block, widths, mode="edge")
        if block.size
        else np.pad(block, widths, constant_values=1)
    )


# ---------------------------------------------------------------- results of any size


def are_unwatched(*arrays: DistributedArray) -> bool:
    """Whether one block of the host holds each array in NumPy's order, and no observer is active:
    what reads the elements to know the size of its result may then call NumPy."""
    return not OBSERVERS.get() and all(x.type.is_of_numpy for x in arrays)


def whole_of(x: DistributedArray) -> np.ndarray:
    """The elements of an array that one block holds in NumPy's order."""
    whole: np.ndarray = viewer(x.type)(x.blocks[0])
    return whole


def array_of_whole(array: np.ndarray, layout: Layout) -> DistributedArray:
    """An array of these elements in that layout, on a mesh of one block of the host."""
    array_type = ArrayType.of(array.shape, array.dtype, layout)
    return DistributedArray(array_type, (block_of_whole(array_type, array),))
