"""Pipelined: blocks of one structure, of which the devices along a mesh axis hold a part each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.array.operands import as_operand
from gdt.autodiff.checkpointed import Checkpointed
from gdt.autodiff.scanning import slices
from gdt.errors import ArgumentError, MeshError, ShapeError, error
from gdt.nn.module import Module
from gdt.nn.parameters import awaits_arrays, check_sizes, stacked_rows
from gdt.ops.shapes import reshape
from gdt.ops.stages import hand_on, last_rows, of_stages, on_each_stage, row_of_stage
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, mesh_texts
from gdt.sharding.recut import Piece
from gdt.state import Place, places, slots
from gdt.state.trees import leaves, mapped

Tree = Any
Weights = Sequence[DistributedArray]  # the arrays of a block, in the order of its slots


@checked_class(eager=True)
class Pipelined(Module):
    """Blocks one after the other, which the devices along a mesh axis share: its coordinates are
    the stages of a pipeline, and work on micro-batches at the same time.

    x: an array, or a tree of arrays, whose first axes are the rows of the batch; result: of the
    same shapes and dtypes, as of each block.
    blocks: modules of one structure: class, options, names, shapes and dtypes of arrays are alike,
        and all arrays trained. Their arrays are stacked: each array of `block`, the first of them,
        has one axis more in front, of the length of the list, which the mesh axis splits. The
        block that a layer is computed by is the first, with the arrays of that layer.
    axis: the name of the mesh axis. Other axes split rows, features or arrays as without a
        pipeline; in a LayoutMap, `["stage", ...]` is the layout of an array that they do not split.
    micro_batches: the number of parts of a batch, which divides its rows. Micro-batch m consists of
        the rows m, m + micro_batches, ..., so that rows may be split.
    repeats: how often a micro-batch goes round all stages; each time it passes through a
        `repeats`-th of each stage's blocks, and fewer stages wait at the beginning and the end.
    checkpoint: whether a tape keeps what goes into a stage alone; see `gdt.checkpointed`.

    A call takes T = repeats * micro_batches + stages - 1 ticks. In each, all stages run their next
    blocks, and hand the result on. Stages that wait, stages - 1 ticks of T, compute with a
    micro-batch that is not theirs, and use nothing of it. Between stages a micro-batch is sent once
    in each direction; the results go from the last stage to all stages, over which their rows are
    then split, if they are as many as that takes. Random numbers, as of dropout, are the same ones
    in all stages of a tick.

    Raises ArgumentError for blocks that are unlike, that wait for their first call, or whose arrays
    are not all trained; for a number of blocks that stages and repeats do not divide; MeshError for
    an unknown axis; calls raise ShapeError for rows that `micro_batches` does not divide, and for
    blocks that change shapes. Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2021,
    "Efficient Large-Scale Language Model Training on GPU Clusters", for repeats.

    >>> mesh = gdt.create_mesh([("stage", 2), ("data", 2)])
    >>> with gdt.default_mesh(mesh):
    ...     blocks = [gdt.nn.Residual(gdt.nn.Dense(3, 3, key=n)) for n in range(4)]
    >>> model = gdt.nn.Pipelined(blocks, "stage", micro_batches=4)
    >>> model.block.layer.weight.type
    float32[4, 3, 3]  ['stage', -, -]
    >>> x = gdt.ones((16, 3), "float32", layout=gdt.Layout(["data", None], mesh))
    >>> model(x).layout.sharding_specs
    [('data', 'stage'), 'unsharded']
    """

    def __init__(
        self,
        blocks: Sequence[Module],
        axis: str = "stage",
        micro_batches: int = 1,
        *,
        repeats: int = 1,
        checkpoint: bool = True,
    ) -> None:
        check_sizes(micro_batches=micro_batches, repeats=repeats)
        if not blocks:
            raise error(ArgumentError, "there are no blocks")
        _check_alike(blocks)
        self.block, self.axis, self.count = blocks[0], axis, len(blocks)
        self.micro_batches, self.repeats, self.checkpoint = micro_batches, repeats, checkpoint
        columns = [*zip(*[_slots(block) for block in blocks], strict=True)]
        if not columns:
            raise error(ArgumentError, "the blocks have no arrays")
        mesh = columns[0][0].value.mesh
        self.stages = mesh.sizes[mesh.axis_index(axis, "Pipelined")]
        if self.count % (self.stages * repeats):
            times = f" times {repeats} repeats" if repeats > 1 else ""
            problem = f"{self.count} blocks are no multiple of {self.stages} stages{times}"
            raise error(ArgumentError, problem, operands={"mesh": mesh})
        if repeats > 1 and micro_batches < self.stages:
            problem = f"{micro_batches} micro-batches are less than {self.stages} stages"
            raise error(ArgumentError, problem, remedy="With repeats there are at least as many.")
        order = [*map(self._layer, range(self.count))]
        rows = [_stacked([column[n].value for n in order], axis) for column in columns]
        for column, array in zip(columns, rows, strict=True):
            column[0].owner[column[0].key] = array

    def _layer(self, row: int) -> int:
        """Return the number of the layer whose arrays are in a row of the stacked ones: each stage
        holds, for one time round after the other, the layers that follow each other there."""
        stage, place = divmod(row, self.count // self.stages)
        at_once = self.count // (self.stages * self.repeats)
        time, number = divmod(place, at_once)
        layer: int = (time * self.stages + stage) * at_once + number
        return layer

    def describe(self) -> str:
        """Return the number of blocks and of micro-batches as text."""
        times = f", {self.repeats} times round" if self.repeats > 1 else ""
        stages = f"{self.count} blocks over {self.axis} {self.stages}"
        return f"{stages}, {self.micro_batches} micro-batches{times}"

    def __call__(self, x: Any) -> Any:
        block_slots = _slots(self.block)
        mesh = block_slots[0].value.mesh
        x = mapped(lambda leaf: _placed(leaf, mesh), x)
        parts = [self._micro_batches(leaf) for leaf in leaves(x)]
        if not parts:
            raise error(ArgumentError, "x holds no array")
        weights = [
            [row_of_stage(s.value, axis=self.axis, row=n) for s in block_slots]
            for n in range(self.count // self.stages)
        ]
        step = partial(self._step, block_slots, x)
        results = iter(self._run(mesh, [*zip(*parts, strict=True)], weights, step))
        return mapped(lambda _: next(results), x)

    def _micro_batches(self, x: DistributedArray) -> Sequence[DistributedArray]:
        """Return the micro-batches of an array, equal at all stages."""
        count = self.micro_batches
        if not x.ndim or x.shape[0] % count or not x.shape[0]:
            problem = f"{count} micro-batches do not divide the rows of x"
            raise error(ShapeError, problem, operands={"x": x.type})
        parted = reshape(x, (x.shape[0] // count, count, *x.shape[1:]))
        return slices(on_each_stage(parted, axis=self.axis), axis=1)

    def _step(
        self, block_slots: Sequence[Place], x: Tree, state: Weights, *weights: Weights
    ) -> Weights:
        """Return what the blocks of these weights make of a state, both as lists of arrays."""
        values = iter(state)
        out = mapped(lambda _: next(values), x)
        for arrays in weights:
            with _in_place(block_slots, arrays):
                out = self.block(out)
        results = [*leaves(out)]
        types = [_facts(leaf) for leaf in results]
        if types != [_facts(leaf) for leaf in state]:
            raise error(
                ShapeError,
                "a block returns other arrays than it gets",
                operands={
                    **{f"input {i}": leaf.type for i, leaf in enumerate(state)},
                    **{f"output {i}": getattr(y, "type", y) for i, y in enumerate(results)},
                },
            )
        return tuple(results)

    # ---- the schedule

    def _run(
        self,
        mesh: Mesh,
        parts: Sequence[Weights],
        weights: Sequence[Weights],
        step: Callable[..., Weights],
    ) -> list[DistributedArray]:
        """Return the rows of what the last stage makes of the micro-batches, which are arrays of
        `Mesh.apart`, as the weights are."""
        call = Checkpointed(step) if self.checkpoint else step
        last = self.micro_batches * self.repeats  # items: the times that a micro-batch comes round
        received: Weights = ()
        waiting: dict[int, Weights] = {}  # at the first stage, by item
        results: list[Weights] = []
        for tick in range(last + self.stages - 1):
            items = [tick - stage for stage in range(self.stages)]
            sources = [parts[tick % self.micro_batches], received, waiting.pop(tick, ())]
            choice = [int(bool(stage)) if 0 <= k < last else 0 for stage, k in enumerate(items)]
            if sources[2]:
                choice[0] = 2
            state = [self._of(column, choice) for column in _columns(sources)]
            out = call(state, *self._weights_of(items, weights))
            pieces = self._handed_on(items, last)
            received = hand_on(*out, mesh=mesh, axis=self.axis, pieces=pieces) if pieces else ()
            if 0 <= items[-1] < last - self.micro_batches:
                waiting[items[-1] + self.micro_batches] = received
            results += [out] if items[-1] >= last - self.micro_batches else []
        columns = zip(*results, strict=True)
        return [last_rows(*column, mesh=mesh, axis=self.axis) for column in columns]

    def _of(self, arrays: Sequence[DistributedArray], choice: Sequence[int]) -> DistributedArray:
        """Return the array that is, at each stage, the one that its choice says."""
        if len({*choice}) == 1:
            return arrays[choice[0]]
        return of_stages(*arrays, axis=self.axis, choice=tuple(choice))

    def _weights_of(self, items: Sequence[int], weights: Sequence[Weights]) -> list[Weights]:
        """Return the weights of the blocks that run in a tick."""
        at_once = len(weights) // self.repeats
        times = [min(max(k // self.micro_batches, 0), self.repeats - 1) for k in items]
        first = min(times)  # the neighbours of a stage are at most one time round ahead or behind
        choice = [time - first for time in times]
        steps = [
            weights[time * at_once : (time + 1) * at_once] for time in range(first, max(times) + 1)
        ]
        return [
            [self._of(column, choice) for column in zip(*arrays, strict=True)]
            for arrays in zip(*steps, strict=True)
        ]

    def _handed_on(self, items: Sequence[int], last: int) -> tuple[Piece, ...]:
        """Return which stages get in a tick what the one before has made, and whether the first
        gets from the last one what comes round again: nothing else is sent."""
        sending = [s for s, k in enumerate(items[:-1]) if 0 <= k < last]
        pieces = [Piece(0, sending[0], sending[0] + 1, len(sending))] if sending else []
        if 0 <= items[-1] < last - self.micro_batches:
            pieces.append(Piece(0, self.stages - 1, 0, 1))
        return tuple(pieces)


def _columns(sources: Sequence[Weights]) -> Iterator[Weights]:
    """Yield for each array of a state those of the sources; a source that there is not, and that
    nobody chooses, is the first."""
    present = [source or sources[0] for source in sources]
    yield from zip(*present, strict=True)


def _placed(x: Any, mesh: Mesh) -> DistributedArray:
    """Return an argument as an array of the mesh; raise MeshError for one of another."""
    if not isinstance(x, DistributedArray):
        return as_operand(x, mesh, "Pipelined", "x")
    if x.mesh is not mesh:
        texts = dict(zip(("x", "blocks"), mesh_texts([x.mesh, mesh]), strict=True))
        raise error(MeshError, "x and the blocks are on two meshes", operands=texts)
    return x


def _facts(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, DistributedArray) else type(x)


@contextmanager
def _in_place(block_slots: Sequence[Place], arrays: Weights) -> Iterator[None]:
    """Put arrays in the slots of a block for this `with` block."""
    before = [s.owner[s.key] for s in block_slots]
    for slot, x in zip(block_slots, arrays, strict=True):
        slot.owner[slot.key] = x
    try:
        yield
        written = [s for s, x in zip(block_slots, arrays, strict=True) if s.value is not x]
    finally:
        for slot, x in zip(block_slots, before, strict=True):
            slot.owner[slot.key] = x
    if written:
        problem = f"the call of a block puts another array into {written[0].name}"
        remedy = "Running moments, as of BatchNorm, are not kept: use LayerNorm or GroupNorm."
        raise error(ArgumentError, problem, remedy=remedy)


# ---------------------------------------------------------------- stacked arrays


def _slots(block: Module) -> list[Place]:
    return [s for s in slots(block) if isinstance(s.value, DistributedArray)]


def _stacked(arrays: Sequence[DistributedArray], axis: str) -> DistributedArray:
    """Return arrays of one type as the rows of one, which a mesh axis splits."""
    layout = arrays[0].layout
    a = layout.mesh.axis_index(axis)
    dims = [tuple([b for b in of if b != a]) for of in layout.dims]
    return stacked_rows(arrays, Layout.of(layout.mesh, ((a,), *dims)))


# ---------------------------------------------------------------- structure


def _check_alike(blocks: Sequence[Module]) -> None:
    """Raise ArgumentError unless blocks are modules of one structure, all of whose arrays exist."""
    for n, block in enumerate(blocks):
        if any(block is other for other in blocks[:n]):
            raise error(ArgumentError, f"block {n} is in the list twice")
        if awaits_arrays(block):
            problem = f"block {n} finds its sizes at its first call"
            raise error(ArgumentError, problem, remedy="Give its layers their sizes.")
    first = dict(structure(blocks[0]))
    for n, block in enumerate(blocks[1:], 1):
        other = dict(structure(block))
        names = [k for k in {**first, **other} if first.get(k) != other.get(k)]
        if names:
            name = names[0]
            raise error(
                ArgumentError,
                f"block {n} differs from block 0 in {name or 'its class'}",
                operands={"block 0": first.get(name), f"block {n}": other.get(name)},
            )


def structure(block: Module) -> Iterator[tuple[str, Any]]:
    """Yield the names of all that a module holds, and what of it blocks of one structure share."""
    yield "", type(block)
    for place in places(block):
        yield place.name, _description(place.value)


def _description(value: Any) -> Any:
    if isinstance(value, DistributedArray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, partial):
        return partial, _description(value.func), _description(value.args), value.keywords
    if isinstance(value, FunctionType):  # those that one line makes are alike if they close alike
        cells = [_description(cell.cell_contents) for cell in value.__closure__ or ()]
        return value.__code__, cells, value.__defaults__
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    plain = int | float | complex | str | bytes | type | None | np.generic
    is_value = isinstance(value, plain) or (callable(value) and not isinstance(value, Module))
    return value if is_value else type(value)
