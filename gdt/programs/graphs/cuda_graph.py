"""Recorded programs as CUDA graphs: one launch on each GPU for all that it computes between two
collectives, or for the whole step if there are none.

Where a program has registers, a graph has addresses. So what a graph reads lies in buffers that
stay where they are: those of the parameters and other state are overwritten by the graph itself and
are what the step's places then hold; other operands are copied in before a launch. What the host
computes anew for each step (learning rates, counters, streams of random numbers) is computed first,
in the order of the program, and goes to buffers too. The graphs of a step share a memory pool of
their own, so a launch allocates nothing; the arrays that a step returns are copied out of it.

Collectives run between the graphs, by calls of NCCL with the addresses of the capture. Those in
which the host waits for data run as in an eager step, and what a graph reads of their results is
copied into buffers.

In several processes each captures graphs on its own GPUs, and makes the notes that plans would make
between their launches.

Arrays do not change under their users: if somebody has kept an array that lies in a buffer, the
step runs without graphs, which are captured anew, with another buffer, in the next call.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter, is_
from typing import Any

import numpy as np

from gdt.backend import backend_of
from gdt.backend.cupy import CupyBackend, on_gpu
from gdt.backend.graphs import Graph
from gdt.backend.numpy import ONE_REFERENCE
from gdt.comm.notes import makers_of, set_makers, unnoted
from gdt.errors import FunctionError, GdtError, OutOfMemoryError, error
from gdt.programs.aliases import blocks_of
from gdt.programs.graphs.device_program import DeviceProgram, Segment, device_program, pieces
from gdt.programs.graphs.host_values import HostValues
from gdt.programs.graphs.memory import BlockKind, GraphMemory
from gdt.programs.graphs.program_notes import ProgramNotes, can_note
from gdt.programs.instruction import Value, value_of_blocks
from gdt.programs.program import PROGRAM_FILE, Program
from gdt.sharding import processes
from gdt.sharding.mesh import Mesh

Block = Any
Blocks = Sequence[Block]
BASE = attrgetter("base")
CAPTURE_REMEDY = (
    "Compute it outside of the function, or call the step without gdt.function. What waits for the "
    "GPU, and NVIDIA's libraries (products with matmul_backend('cublas') or of dtypes that gdt has "
    "no kernel for, sorting), cannot be captured."
)


class StepGraph:
    """A program that runs as CUDA graphs; all its arrays have one block on each of some GPUs.

    values: the blocks or the scalar that each register held when the program was recorded. states:
    for each input that an output overwrites, the number of that output. is_argument: for each
    input, whether it may be another array in every call. notes: those of the program, where
    processes compare them.
    """

    def __init__(
        self,
        name: str,
        device: DeviceProgram,
        memory: GraphMemory,
        values: Sequence[Value],
        states: Mapping[int, int],
        is_argument: Sequence[bool],
        notes: ProgramNotes | None,
    ) -> None:
        self._name, self._memory, self._program = name, memory, device.program
        self._draws = HostValues(memory, device.draws, device.scalars, device.arrays, notes)
        self._notes = notes
        self.states = dict(states)
        self._state_of_output = {output: i for i, output in states.items()}
        self._state_of = {self._program.inputs[i]: i for i in states}
        outputs = self._program.outputs
        firsts = {n: outputs.index(r) for n, r in enumerate(outputs) if n not in states.values()}
        # Of an output that an earlier one is too, the number of that: they are one array.
        self._again = {n: first for n, first in firsts.items() if first in firsts and first < n}
        self._number = {r: n for n, r in enumerate(self._program.inputs)}
        self._copied = [i in states or is_arg for i, is_arg in enumerate(is_argument)]
        self._bound: list[Blocks] = [()] * len(is_argument)
        self.pieces = pieces(self._program)
        waiting = [piece for piece in self.pieces if piece.waits]
        self._number_of_wait = {id(piece): n for n, piece in enumerate(waiting)}
        self._sent = {r for piece in waiting for r in piece.program.inputs}
        inputs = enumerate(self._program.inputs[: len(is_argument)])
        self._sent_inputs = [i for i, r in inputs if r in self._sent]
        self._received = self._kinds_received(values)
        self._is_warm = False
        self._captured: list[Graph | None] = []  # of each piece that is launched
        self._boundary: dict[int, Value] = {}  # of registers between graphs and what waits
        self._lock = threading.Lock()  # two threads would put their operands into the same buffers
        self._streams: list[Any] = []  # of the last call
        self._outputs: dict[int, Blocks] = {}  # what is returned, but for states
        self._buffers: set[int] = set()  # identities of those of the inputs

    def _kinds_received(self, values: Sequence[Value]) -> dict[int, list[BlockKind]]:
        """The kinds of the blocks of the registers that are made between graphs, and read there."""
        outputs = {r for p in self.pieces if p.waits for r in p.program.outputs}
        inputs = {r for p in self.pieces if not p.waits for r in p.program.inputs}
        inputs |= {self._program.outputs[n] for n in self._state_of_output}
        return {r: [BlockKind.of(b) for b in blocks_of(values[r])] for r in outputs & inputs}

    @property
    def is_captured(self) -> bool:
        """Whether the next call may launch graphs."""
        return bool(self._captured)

    def run(self, operands: Sequence[Blocks], free: Mapping[int, bool]) -> Sequence[Value]:
        """Run the program on the blocks of its inputs, and return its outputs.

        free: for each input that is state, whether only its place refers to its blocks.
        """
        memory = self._memory
        with self._lock, memory.backend.on(memory.mesh, 0):
            self._join_streams()
            is_stale = self.is_captured and not self._loaded(operands, free)
            # Before its first capture a program runs once, so that all kernels are loaded.
            runs_plans = is_stale or not self._is_warm
            if runs_plans:
                self._captured, self._is_warm = [], True
            elif not self.is_captured:
                self._bind(operands, free)
                with unnoted():
                    self._capture()
            self._draws.draw()
            self._name_inputs(operands)
            if runs_plans:
                return self._by_plans(operands, free)
            sent = self._sent_inputs if self._notes is not None else ()
            if sent:
                pass_on([operands[i][0] for i in sent], [self._bound[i][0] for i in sent])
            try:
                return self._replayed()
            except BaseException:
                self._join_communication()
                raise

    def _by_plans(self, operands: Sequence[Blocks], free: Mapping[int, bool]) -> list[Value]:
        """Run the program without graphs."""
        inputs = [*map(value_of_blocks, operands), *self._draws.operands]
        values = {**self._program.constants, **dict(zip(self._program.inputs, inputs, strict=True))}
        for piece in self.pieces:
            program = piece.program
            if piece.waits:
                self._note_before(piece, values)
            xs = [values[r] for r in program.inputs]
            with nullcontext() if piece.waits else unnoted():
                outs = program.run(*xs, *self._flags(program, free))
            values |= zip(program.outputs, outs, strict=True)
            remove(values, piece.ends)
        results = [values[r] for r in self._program.outputs]
        self._note_end(results)
        return results

    def _name_inputs(self, operands: Sequence[Blocks]) -> None:
        """Let notes of this call name the ops that have made its operands."""
        if self._notes is not None:
            self._notes.begin([operands[i][0] for i in self._notes.given])

    def _note_before(self, piece: Segment, values: Mapping[int, Value]) -> None:
        """Make the notes of the plans that come before an instruction in which the host waits.

        values: of registers, among them those that it reads."""
        if self._notes is not None:
            n = self._number_of_wait[id(piece)]
            self._notes.make(n, [blocks_of(values[r])[0] for r in self._notes.named[n]])

    def _note_end(self, results: Sequence[Value]) -> None:
        """Make the notes of the plans that come after all of these. results: of the program."""
        if self._notes is not None:
            self._notes.make(-1, [blocks_of(results[n])[0] for n in self._notes.named[-1]])

    def _join_streams(self) -> None:
        """Let this call wait for the last one, where CuPy's current stream has changed."""
        backend = self._memory.backend
        streams = [backend.compute_stream(device) for device in self._memory.devices]
        changed = zip(self._memory.devices, self._streams, streams, strict=False)
        for device, before, now in changed:
            if before.ptr != now.ptr:
                backend.follow(device, before, now)
        self._streams = streams

    def _join_communication(self) -> None:
        """Let later computation wait for what runs beside it, which no `join` does after a failure:
        it reads memory that the next launch writes."""
        backend = self._memory.backend
        for device in self._memory.devices:
            communication = backend.communication_stream(device)
            backend.follow(device, communication, backend.compute_stream(device))

    def _flags(self, program: Program, free: Mapping[int, bool]) -> list[bool]:
        """For each register that an update of a program may overwrite, whether it may now."""
        return [free.get(self._state_of.get(r, -1), False) for r in program.donated]

    # ---- operands

    def _loaded(self, operands: Sequence[Blocks], free: Mapping[int, bool]) -> bool:
        """Put the operands where the graphs read them; False if that would change an array that the
        user still holds, or if an operand that was expected to stay the same has changed."""
        states, bound = self.states, self._bound
        for i, blocks in enumerate(operands):
            # As `_is_in_place`, without a call for each of many arrays.
            if all(map(is_, map(BASE, blocks) if i in states else blocks, bound[i])):
                if i in states and not free[i]:
                    return False
            elif not self._copied[i]:
                self._copied[i] = True
                return False
            elif not self._is_unseen(i):
                return False
            else:
                self._memory.copy(self._bound[i], blocks)
        return True

    def _is_in_place(self, i: int, blocks: Blocks) -> bool:
        buffers = map(BASE, blocks) if i in self.states else blocks
        return all(map(is_, buffers, self._bound[i]))  # no frame for each of many arrays

    def _is_unseen(self, i: int) -> bool:
        """Whether no array lies in the buffers of an input."""
        buffers = self._bound[i]
        for n in range(len(buffers)):  # noqa: SIM110  # no frame for each
            if sys.getrefcount(buffers[n]) != ONE_REFERENCE:
                return False
        return True

    def _bind(self, operands: Sequence[Blocks], free: Mapping[int, bool]) -> None:
        """Choose what the graphs read: buffers with copies of the operands, and operands that are
        always the same."""
        memory = self._memory
        for i, blocks in enumerate(operands):
            if not self._copied[i]:
                self._bound[i] = list(blocks)
                continue
            has_buffers = bool(self._bound[i])
            if has_buffers and self._is_in_place(i, blocks) and free.get(i, False):
                continue
            if not has_buffers or not self._is_unseen(i):
                self._bound[i] = memory.each(memory.backend.xp.empty_like, blocks)
                for n in range(len(blocks)):
                    memory.backend.keep(self._bound[i][n], self)
            memory.copy(self._bound[i], blocks)

    # ---- capture

    def _capture(self) -> None:
        """Capture every segment before any is launched, with memory for what it receives."""
        bound = [blocks for i, blocks in enumerate(self._bound) if self._copied[i]]
        self._buffers = {id(b) for blocks in bound for b in blocks}
        values = {**self._program.constants, **self._input_values()}
        boundary: dict[int, Value] = {}
        captured: list[Graph | None] = []
        latest: Graph | None = None
        for piece in self.pieces:
            if piece.waits:
                received = self._received.keys() & set(piece.program.outputs)
                buffers = {
                    r: value_of_blocks(self._memory.empty(self._received[r])) for r in received
                }
                values |= buffers
                boundary |= buffers
                captured.append(None)
            else:
                latest = self._graph_of(piece, values, latest)
                boundary |= {r: values[r] for r in self._sent & {*piece.program.outputs}}
                captured.append(latest)
            remove(values, piece.ends)
        self._captured, self._boundary = captured, boundary

    def _input_values(self) -> dict[int, Value]:
        """The blocks of the program's inputs, by register."""
        values = [*map(value_of_blocks, self._bound), *self._draws.operands]
        return dict(zip(self._program.inputs, values, strict=True))

    def _graph_of(self, piece: Segment, values: dict[int, Value], after: Graph | None) -> Graph:
        """The graph of a segment, whose outputs are added to `values`."""
        program, memory = piece.program, self._memory
        flags = self._flags(program, dict.fromkeys(self.states, True))
        try:
            with memory.backend.capture(*memory.devices, after=after) as graph:
                outputs = program.run(*[values[r] for r in program.inputs], *flags)
                values |= zip(program.outputs, outputs, strict=True)
                del outputs
                for r in self._sent & {*program.outputs}:
                    values[r] = value_of_blocks(self._outside(blocks_of(values[r])))
                if piece is self.pieces[-1]:
                    self._end(values)
        except OutOfMemoryError:
            raise
        except (GdtError, NotImplementedError, RuntimeError) as cause:
            raise self._not_captured(program, cause) from cause
        return graph

    def _outside(self, blocks: Blocks) -> list[Block]:
        """The blocks, with copies of those that lie in the buffer of an input: a reference to
        such a buffer would look like a user who still holds the array."""
        return self._memory.each(lambda b: b.copy() if self._is_inside(b) else b, blocks)

    def _is_inside(self, block: Block) -> bool:
        return id(block if block.base is None else block.base) in self._buffers

    def _states_elsewhere(self, values: Mapping[int, Value]) -> dict[int, Blocks]:
        """The blocks of the outputs that are states and do not lie in their buffers."""
        elsewhere: dict[int, Blocks] = {}
        for n, i in self._state_of_output.items():
            blocks = blocks_of(values[self._program.outputs[n]])
            if any(b is not mine for b, mine in zip(blocks, self._bound[i], strict=True)):
                elsewhere[n] = blocks
        return elsewhere

    def _returned(self, values: Mapping[int, Value]) -> dict[int, Blocks]:
        """The blocks of the other outputs, but for those that are made between graphs."""
        outputs = enumerate(self._program.outputs)
        registers = {n: r for n, r in outputs if n not in self._state_of_output and r in values}
        return {n: blocks_of(values[r]) for n, r in registers.items()}

    def _end(self, values: Mapping[int, Value]) -> None:
        """Put the outputs that are states in their buffers at the end of the step, and others
        where no launch but the next changes them."""
        elsewhere = {
            n: self._outside(blocks) for n, blocks in self._states_elsewhere(values).items()
        }
        self._outputs = {n: self._outside(blocks) for n, blocks in self._returned(values).items()}
        for n, blocks in elsewhere.items():
            self._memory.copy(self._bound[self._state_of_output[n]], blocks)

    def _not_captured(self, program: Program, cause: Exception) -> FunctionError:
        """The error that names the op that could not be captured, and the line that calls it."""
        lines = [f.lineno for f in traceback.extract_tb(cause.__traceback__) if _is_program(f)]
        k = program.at_line.get(lines[-1] or 0) if lines else None
        what = f"{k.name}, which {k.line} calls," if k is not None else "it"
        problem = str(cause).splitlines()[0]
        return error(
            FunctionError,
            self._name,
            f"{what} cannot be captured in a CUDA graph ({type(cause).__name__}: {problem})",
            remedy=CAPTURE_REMEDY,
        )

    # ---- launch

    def _replayed(self) -> list[Value]:
        """Launch the graphs, run what the host waits in between them, and return the outputs."""
        values: dict[int, Value] = {}
        for piece, graph in zip(self.pieces, self._captured, strict=True):
            if graph is not None:
                graph.launch()
            else:
                self._note_before(piece, self._boundary)
                self._run_between(piece, values)
            remove(values, piece.ends)
        results = []
        for n in range(len(self._program.outputs)):
            i = self._state_of_output.get(n)
            if i is not None and len(self._bound[i]) == 1:
                results.append(self._bound[i][0].view())  # without a call for each of many arrays
            elif n in self._again:
                results.append(results[self._again[n]])
            else:
                results.append(self._result(n, values))
        if self._notes is not None:
            made = [(values[r], n) for n, r in enumerate(self._program.outputs) if r in values]
            if made:
                blocks = [blocks_of(value)[0] for value, _ in made]
                pass_on(blocks, [blocks_of(results[n])[0] for _, n in made])
        self._note_end(results)
        return results

    def _run_between(self, piece: Segment, values: dict[int, Value]) -> None:
        """Run an instruction, add its outputs to `values`, and copy them to where graphs read
        them."""
        program = piece.program
        operands = [self._operand(r, values) for r in program.inputs]
        outs = program.run(*operands, *[False] * len(program.donated))
        for r, value in zip(program.outputs, outs, strict=True):
            values[r] = value
            if r in self._received:
                self._memory.copy(blocks_of(self._boundary[r]), blocks_of(value))

    def _operand(self, register: int, values: Mapping[int, Value]) -> Value:
        """The blocks that a register holds between launches."""
        for registers in (values, self._boundary):
            if register in registers:
                return registers[register]
        at, count = self._number[register], len(self._bound)
        return value_of_blocks(self._bound[at]) if at < count else self._draws.operands[at - count]

    def _result(self, n: int, values: Mapping[int, Value]) -> Value:
        """States as views of their buffers, other outputs as copies."""
        if n in self._state_of_output:
            bound = self._bound[self._state_of_output[n]]
            return value_of_blocks(self._memory.each(lambda b: b.view(), bound))
        blocks = self._outputs.get(n)
        if blocks is None:
            blocks = blocks_of(values[self._program.outputs[n]])
        return value_of_blocks(self._memory.each(lambda b: b.copy(), blocks))


def remove(values: dict[int, Value], registers: Iterable[int]) -> None:
    """Remove registers that have values."""
    for r in registers:
        values.pop(r, None)


def pass_on(blocks: Sequence[Block], copies: Sequence[Block]) -> None:
    """Let collectives name copies of blocks as they name the blocks."""
    set_makers(copies, makers_of(blocks))


def _is_program(frame: traceback.FrameSummary) -> bool:
    return frame.filename == PROGRAM_FILE


# ---------------------------------------------------------------- from programs


def step_graph(
    name: str,
    program: Program,
    values: Sequence[Any],
    meshes: Sequence[Mesh],
    states: Mapping[int, int],
    is_argument: Sequence[bool],
) -> StepGraph | None:
    """The graphs of a program. None unless all its arrays have one block on each of the same GPUs;
    and in several processes, if they could not note what its plans do.

    values: the blocks or the scalar that each register held when the program was recorded. meshes:
    the meshes of the program's inputs.
    """
    mesh = meshes[0] if meshes else None
    is_compared = processes.current().count > 1
    if mesh is None or (is_compared and not can_note(program, values, states.values())):
        return None
    notes = ProgramNotes(program, values) if is_compared else None
    if notes is not None and not notes.is_complete:
        return None
    backend = backend_of(mesh)
    is_one_kind = all(m.device_kind == mesh.device_kind for m in meshes)
    if not isinstance(backend, CupyBackend) or not is_one_kind:
        return None
    memory = GraphMemory(backend, mesh)
    if not _gpus(program, values) <= {tuple(map(backend.gpu, memory.devices))}:
        return None
    device_part = device_program(program, values)
    if device_part is None:
        return None
    with backend.on(mesh, 0):
        return StepGraph(name, device_part, memory, values, states, is_argument, notes)


def _gpus(program: Program, values: Sequence[Value]) -> set[tuple[int, ...]]:
    """The GPUs of the blocks of each array that is computed with; -1 for those of the host."""
    read = {r for k in program.instructions for r in (*k.inputs, *k.outputs)}
    arrays = [blocks_of(values[r]) for r in read | {*program.inputs, *program.outputs}]
    arrays = [blocks for blocks in arrays if on_gpu(blocks[0]) or isinstance(blocks[0], np.ndarray)]
    return {tuple([b.device.id if on_gpu(b) else -1 for b in blocks]) for blocks in arrays}
