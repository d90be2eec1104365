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
from gdt.ops.stages import (
    hand_on,
    last_rows,
    of_last_stage,
    of_stages,
    on_each_stage,
    row_of_stage,
)
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, mesh_texts
from gdt.sharding.recut import Piece
from gdt.state import Place, places, slots
from gdt.state.trees import leaves, mapped, with_leaves

Tree = Any
Weights = Sequence[DistributedArray]  # the arrays of a block, in the order of its slots


@checked_class(eager=True)
class Pipelined(Module):
    """Blocks one after the other, which the devices along a mesh axis share: its coordinates are
    the stages of a pipeline, and work on micro-batches at the same time.

    x: an array, or a tree of arrays, whose first axes are the rows of the batch; result: of the
    same shapes and dtypes, as of each block, or what `head` returns.
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
    head: a module or a function that the last stage calls with its results, as `head(out, y)` in a
        call `model(x, y)`: the last layers and the loss. x is the first argument; the others are
        arrays, or trees of arrays, of as many rows, and do not travel from stage to stage. It
        returns an array, or a tree of arrays, whose first axes are the rows of the micro-batch,
        such as the losses of rows. Its arrays are those of `head`, a part of the model, and are
        shared with none of the blocks.

    A call takes T = repeats * micro_batches + stages - 1 ticks. In each, all stages run their next
    blocks, and hand the result on. Stages that wait, stages - 1 ticks of T, compute with a
    micro-batch that is not theirs, and use nothing of it. Between stages a micro-batch is sent once
    in each direction; the results, or those of the head, go from the last stage to all stages, over
    which their rows are then split, if they are as many as that takes. All stages run the head, on
    what they have, and nothing of the others' is used. Random numbers, as of dropout, are the same
    ones in all stages of a tick.

    Raises ArgumentError for blocks that are unlike, that wait for their first call, or whose arrays
    are not all trained or are the head's too; for a number of blocks that stages and repeats do not
    divide; MeshError for an unknown axis; calls raise ShapeError for rows that `micro_batches` does
    not divide, for blocks that change shapes, and for results of a head without the rows. Sources:
    Huang et al. 2019, "GPipe"; Narayanan et al. 2021, "Efficient Large-Scale Language Model
    Training on GPU Clusters", for repeats.

    >>> mesh = gdt.create_mesh([("stage", 2), ("data", 2)])
    >>> with gdt.default_mesh(mesh):
    ...     blocks = [gdt.nn.Residual(gdt.nn.Dense(3, 3, key=n)) for n in range(4)]
    >>> model = gdt.nn.Pipelined(blocks, "stage", micro_batches=4)
    >>> model.block.layer.weight.type
    float32[4, 3, 3]  ['stage', -, -]
    >>> x = gdt.ones((16, 3), "float32", layout=gdt.Layout(["data", None], mesh))
    >>> model(x).layout.sharding_specs
    [('data', 'stage'), 'unsharded']

    With a head, what the last stage sends to all is a loss for each row:

    >>> with gdt.default_mesh(mesh):
    ...     blocks = [gdt.nn.Residual(gdt.nn.Dense(3, 3, key=n)) for n in range(4)]
    >>> error = lambda out, y: gdt.mean((out - y) ** 2, axis=-1)
    >>> model = gdt.nn.Pipelined(blocks, "stage", micro_batches=4, head=error)
    >>> model(x, gdt.zeros_like(x)).type
    float32[16]  [('data', 'stage')]
    """

    gathers_parts = True  # what blocks and head use differs from stage to stage: see `LayoutMap`

    def __init__(
        self,
        blocks: Sequence[Module],
        axis: str = "stage",
        micro_batches: int = 1,
        *,
        repeats: int = 1,
        checkpoint: bool = True,
        head: Callable[..., Any] | None = None,
    ) -> None:
        check_sizes(micro_batches=micro_batches, repeats=repeats)
        if not blocks:
            raise error(ArgumentError, "there are no blocks")
        _check_alike(blocks)
        self.block, self.axis, self.count = blocks[0], axis, len(blocks)
        self.micro_batches, self.repeats, self.checkpoint = micro_batches, repeats, checkpoint
        self.head = head
        columns = [*zip(*[_slots(block) for block in blocks], strict=True)]
        if not columns:
            raise error(ArgumentError, "the blocks have no arrays")
        _check_head(head, columns)
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

    def __call__(self, x: Any, *others: Any) -> Any:
        if others and self.head is None:
            problem = f"without a head it takes x alone, and {len(others)} more are given"
            raise error(ArgumentError, problem)
        block_slots = _slots(self.block)
        mesh = block_slots[0].value.mesh
        x, *others = _on_mesh(mesh, self.micro_batches, x, *others)
        parts = [*zip(*map(self._micro_batches, leaves(x)), strict=True)]
        weights = [
            [row_of_stage(s.value, axis=self.axis, row=n) for s in block_slots]
            for n in range(self.count // self.stages)
        ]
        step = partial(self._step, block_slots, x)
        finish = self._finish_of(mesh, x, others)
        return self._run(mesh, parts, weights, step, finish)

    def _micro_batches(self, x: DistributedArray) -> Sequence[DistributedArray]:
        """Return the micro-batches of an array, equal at all stages."""
        count = self.micro_batches
        parted = reshape(x, (x.shape[0] // count, count, *x.shape[1:]))
        return slices(on_each_stage(parted, axis=self.axis), axis=1)

    def _step(
        self, block_slots: Sequence[Place], x: Tree, state: Weights, *weights: Weights
    ) -> Weights:
        """Return what the blocks of these weights make of a state, both as lists of arrays."""
        out = with_leaves(x, state)
        for arrays in weights:
            with _in_place("a block", block_slots, arrays):
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

    def _finish_of(
        self, mesh: Mesh, x: Tree, others: Sequence[Tree]
    ) -> Callable[[Weights, int], Tree]:
        """Return the function of a state that leaves the last stage, and of the number of its
        micro-batch, that calls the head with them; gradients are those of the last stage alone.
        Without a head it returns the state."""
        head = self.head
        if head is None:
            return lambda state, number: with_leaves(x, state)
        only_last = partial(of_last_stage, axis=self.axis)
        head_slots = _slots(head)
        placed = [_placed(s.value, mesh, f"head.{s.name}") for s in head_slots]
        arrays = [only_last(on_each_stage(w, axis=self.axis)) for w in placed]
        parts = [[only_last(y) for y in self._micro_batches(leaf)] for leaf in leaves(others)]

        def call_head(state: Weights, targets: Weights, arrays: Weights) -> Tree:
            out = with_leaves(x, [*map(only_last, state)])
            with _in_place("the head", head_slots, arrays):
                result = head(out, *with_leaves(others, targets))
            _check_rows(result, state[0])
            return result

        call = Checkpointed(call_head) if self.checkpoint else call_head
        return lambda state, number: call(state, [column[number] for column in parts], arrays)

    # ---- the schedule

    def _run(
        self,
        mesh: Mesh,
        parts: Sequence[Weights],
        weights: Sequence[Weights],
        step: Callable[..., Weights],
        finish: Callable[[Weights, int], Tree],
    ) -> Tree:
        """Return the rows of what `finish` makes of the states that leave the last stage, and of
        the numbers of their micro-batches. parts: of `Mesh.apart`, as the weights are."""
        call = Checkpointed(step) if self.checkpoint else step
        last = self.micro_batches * self.repeats  # items: the times that a micro-batch comes round
        received: Weights = ()
        waiting: dict[int, Weights] = {}  # at the first stage, by item
        results: list[Tree] = []
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
            if items[-1] >= last - self.micro_batches:
                results.append(finish(out, len(results)))
        columns = zip(*map(leaves, results), strict=True)
        rows = [last_rows(*column, mesh=mesh, axis=self.axis) for column in columns]
        return with_leaves(results[0], rows)

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


def _on_mesh(mesh: Mesh, micro_batches: int, *arguments: Tree) -> list[Tree]:
    """Return the arguments of a call as trees of arrays of the mesh, of equally many rows.

    Raises MeshError for arrays of another mesh, ShapeError for rows that differ or that the number
    of micro-batches does not divide."""
    names = ["x", *[f"argument {n}" for n in range(2, len(arguments) + 1)]]
    pairs = zip(names, arguments, strict=True)
    trees = [mapped(partial(_placed, mesh=mesh, name=name), tree) for name, tree in pairs]
    rows: int | None = None
    for name, tree in zip(names, trees, strict=True):
        for leaf in leaves(tree):
            if not leaf.ndim or leaf.shape[0] % micro_batches or not leaf.shape[0]:
                problem = f"{micro_batches} micro-batches do not divide the rows of {name}"
                raise error(ShapeError, problem, operands={name: leaf.type})
            if leaf.shape[0] != (rows := rows or leaf.shape[0]):
                problem = f"{name} has an array of {leaf.shape[0]} rows, and x one of {rows}"
                raise error(ShapeError, problem, operands={name: leaf.type})
    if rows is None:
        raise error(ArgumentError, "x holds no array")
    return trees


def _placed(x: Any, mesh: Mesh, name: str) -> DistributedArray:
    """Return an array as one of the mesh; raise MeshError for one of another."""
    if not isinstance(x, DistributedArray):
        return as_operand(x, mesh, "Pipelined", name)
    if x.mesh is not mesh:
        texts = dict(zip((name, "blocks"), mesh_texts([x.mesh, mesh]), strict=True))
        raise error(MeshError, f"{name} and the blocks are on two meshes", operands=texts)
    return x


def _check_rows(result: Tree, state: DistributedArray) -> None:
    """Raise ShapeError unless the results of a head are arrays of the rows of the state, which is
    a micro-batch of the last stage."""
    for leaf in leaves(result):
        is_array = isinstance(leaf, DistributedArray) and leaf.mesh is state.mesh
        if not is_array or leaf.shape[:1] != state.shape[:1]:
            raise error(
                ShapeError,
                f"the head returns no array of the {state.shape[0]} rows of a micro-batch",
                operands={"result": getattr(leaf, "type", leaf), "input": state.type},
                remedy="Let it return a value for each row, as losses of reduction='none' do, and "
                "take the mean of what the call returns.",
            )


def _facts(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, DistributedArray) else type(x)


@contextmanager
def _in_place(module: str, module_slots: Sequence[Place], arrays: Weights) -> Iterator[None]:
    """Put arrays in the slots of a module for this `with` block."""
    before = [s.owner[s.key] for s in module_slots]
    for slot, x in zip(module_slots, arrays, strict=True):
        slot.owner[slot.key] = x
    try:
        yield
        written = [s for s, x in zip(module_slots, arrays, strict=True) if s.value is not x]
    finally:
        for slot, x in zip(module_slots, before, strict=True):
            slot.owner[slot.key] = x
    if written:
        problem = f"the call of {module} puts another array into {written[0].name}"
        remedy = "Running moments, as of BatchNorm, are not kept: use LayerNorm or GroupNorm."
        raise error(ArgumentError, problem, remedy=remedy)


# ---------------------------------------------------------------- stacked arrays


def _slots(module: Any) -> list[Place]:
    return [s for s in slots(module) if isinstance(s.value, DistributedArray)]


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


def _check_head(head: Any, columns: Sequence[Sequence[Place]]) -> None:
    """Raise ArgumentError for a head that waits for its first call, or holds an array of a block.

    columns: the places of the blocks' arrays."""
    if isinstance(head, Module) and awaits_arrays(head):
        problem = "the head finds its sizes at its first call"
        raise error(ArgumentError, problem, remedy="Give its layers their sizes.")
    of_blocks = {id(place.value): place.name for column in columns for place in column}
    for place in _slots(head):
        if id(place.value) in of_blocks:
            problem = f"{place.name} of the head is {of_blocks[id(place.value)]} of a block"
            remedy = "Blocks are stacked, and share no arrays: give the head a copy."
            raise error(ArgumentError, problem, remedy=remedy)


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
