"""Recorded programs as CUDA graphs: one launch for all that a step computes on a GPU.

Where a program has registers, a graph has addresses. So what a graph reads lies in buffers that
stay where they are: those of the parameters and other state are overwritten by the graph itself and
are what the step's places then hold; other operands are copied in before a launch. What the host
computes anew for each step (learning rates, counters, streams of random numbers) is computed first,
in the order of the program, and goes to buffers too. The graph has a memory pool of its own, so a
launch allocates nothing; the arrays that a step returns are copied out of it.

Arrays do not change under their users: if somebody has kept an array that lies in a buffer, the
step runs without the graph, which is captured anew, with another buffer, in the next call.
"""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gdt import processes
from gdt.backend import backend_of
from gdt.backend.cupy import CupyBackend, device_of
from gdt.backend.numpy import ONE_REFERENCE
from gdt.errors import FunctionError, GdtError, OutOfMemoryError, error
from gdt.launcher import KernelBody
from gdt.mesh import Mesh
from gdt.op import OPS
from gdt.program import PROGRAM_FILE, Instruction, Program

Block = Any
CAPTURE_REMEDY = (
    "Compute it outside of the function, or call the step without gdt.function. What waits for the "
    "GPU, and NVIDIA's libraries (products with matmul_backend('cublas') or of dtypes that gdt has "
    "no kernel for, sorting), cannot be captured."
)


class Scalar(NamedTuple):
    """A float that the host draws, as an operand of a dtype: `values[place]` of that draw."""

    draw: int
    place: int
    dtype: np.dtype


class HostValues:
    """What the host computes for each step, in the memory of a device.

    draws: instructions without inputs, whose functions are called in order. scalars: how the floats
    among their results are wanted. arrays: numbers of draw and result of the arrays. operands:
    where the scalars, then the arrays, are after the first draw.
    """

    def __init__(
        self,
        backend: CupyBackend,
        draws: Sequence[Instruction],
        scalars: Sequence[Scalar],
        arrays: Sequence[tuple[int, int]],
    ) -> None:
        self._backend, self._draws, self._arrays = backend, draws, arrays
        self._of_dtype: dict[np.dtype, list[Scalar]] = {}
        for scalar in scalars:
            self._of_dtype.setdefault(scalar.dtype, []).append(scalar)
        xp = backend.xp
        self._packed = {d: xp.empty(len(s), d) for d, s in self._of_dtype.items()}
        at = {s: (d, i) for d, found in self._of_dtype.items() for i, s in enumerate(found)}
        self._at = len(scalars)
        self.operands: list[Block] = [self._packed[at[s][0]][at[s][1]] for s in scalars]
        self.operands += [None] * len(arrays)

    def draw(self) -> None:
        """Compute and send them."""
        drawn = [draw.function() for draw in self._draws]
        for dtype, scalars in self._of_dtype.items():
            values = np.array([drawn[s.draw][s.place] for s in scalars], dtype)
            self._packed[dtype].set(values)
        for i, (draw, place) in enumerate(self._arrays, self._at):
            value = drawn[draw][place]
            if self.operands[i] is None:
                self.operands[i] = self._backend.xp.empty(value.shape, value.dtype)
            self._backend.xp.copyto(self.operands[i], value)


class StepGraph:
    """Runs a program whose arrays are all on one GPU, each in one block, as a CUDA graph.

    states: of the program's inputs that are overwritten by outputs, which. is_argument: whether
    each input may be expected to be another array in every call.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        draws: HostValues,
        backend: CupyBackend,
        mesh: Mesh,
        states: Mapping[int, int],
        is_argument: Sequence[bool],
    ) -> None:
        self._name, self._program, self._draws = name, program, draws
        self._backend, self._mesh = backend, mesh
        self.states = dict(states)
        self._state_of_output = {output: i for i, output in states.items()}
        self._donated = [
            next((i for i in states if program.inputs[i] == r), -1) for r in program.donated
        ]
        self._copied = [i in states or given for i, given in enumerate(is_argument)]
        self._bound: list[Block] = [None] * len(is_argument)
        self._is_warm = False
        self._graph: Any = None
        self._lock = threading.Lock()  # two threads would put their operands into the same buffers
        self._stream: Any = None  # of the last call
        self._outputs: Sequence[Block] = ()

    @property
    def is_captured(self) -> bool:
        """Whether the next call may launch a graph."""
        return self._graph is not None

    def run(self, blocks: Sequence[Block], free: Mapping[int, bool]) -> Sequence[Block]:
        """What the program makes of the blocks of its inputs.

        free: of each state, whether nobody but its place refers to its block.
        """
        with self._lock, self._backend.on(self._mesh, 0):
            self._join_stream()
            stale = self._graph is not None and not self._loaded(blocks, free)
            if stale or not self._is_warm:
                # Before its first capture a program runs once, so that all kernels are loaded.
                self._graph, self._is_warm = None, True
                self._draws.draw()
                return self._program.run(*blocks, *self._draws.operands, *self._flags(free))
            if self._graph is None:
                self._bind(blocks, free)
                self._capture()
            self._draws.draw()
            self._graph.launch()
            return self._results()

    def _join_stream(self) -> None:
        """Let this call wait for the last one, if CuPy's current stream is another now."""
        stream = self._backend.compute_stream(device_of(self._mesh, 0))
        if self._stream is not None and self._stream.ptr != stream.ptr:
            self._backend.follow(self._stream, stream)
        self._stream = stream

    def _flags(self, free: Mapping[int, bool]) -> list[bool]:
        return [free.get(i, False) for i in self._donated]

    # ---- operands

    def _loaded(self, blocks: Sequence[Block], free: Mapping[int, bool]) -> bool:
        """Put the operands where the graph reads them; False if that would change an array that
        somebody has kept, or if an operand turns out to be another in every call."""
        for i, block in enumerate(blocks):
            if self._is_in_place(i, block):
                if i in self.states and not free[i]:
                    return False
            elif not self._copied[i]:
                self._copied[i] = True
                return False
            elif not self._is_unseen(i):
                return False
            else:
                self._backend.xp.copyto(self._bound[i], block)
        return True

    def _is_in_place(self, i: int, block: Block) -> bool:
        if i in self.states:
            return block.base is self._bound[i]
        return block is self._bound[i]

    def _is_unseen(self, i: int) -> bool:
        """Whether no array lies in the buffer of an input."""
        return sys.getrefcount(self._bound[i]) == ONE_REFERENCE

    def _bind(self, blocks: Sequence[Block], free: Mapping[int, bool]) -> None:
        """Choose what the graph reads: buffers with copies of the operands, and operands that are
        always the same."""
        for i, block in enumerate(blocks):
            if not self._copied[i]:
                self._bound[i] = block
                continue
            if self._bound[i] is not None and self._is_in_place(i, block) and free.get(i, False):
                continue
            if self._bound[i] is None or not self._is_unseen(i):
                buffer = self._backend.xp.empty(block.shape, block.dtype)
                self._backend.keep(buffer, self)
                self._bound[i] = buffer
                del buffer
            self._backend.xp.copyto(self._bound[i], block)

    # ---- capture and launch

    def _capture(self) -> None:
        operands = *self._bound, *self._draws.operands
        flags = self._flags(dict.fromkeys(self.states, True))
        try:
            with self._backend.capture(device_of(self._mesh, 0)) as graph:
                self._outputs = self._ended(self._program.run(*operands, *flags))
        except OutOfMemoryError:
            raise
        except (GdtError, NotImplementedError, RuntimeError) as cause:
            raise self._not_captured(cause) from cause
        self._graph = graph

    def _ended(self, outputs: Sequence[Block]) -> list[Block]:
        """The outputs, with those that are states put in their buffers at the end of the step."""
        outputs, states = list(outputs), self._state_of_output
        moved = [n for n, i in states.items() if outputs[n] is not self._bound[i]]
        buffers = {id(b) for b, copied in zip(self._bound, self._copied, strict=True) if copied}
        for n, block in enumerate(outputs):
            owner = block if block.base is None else block.base
            if id(owner) in buffers and (n in moved or n not in states):
                outputs[n] = block.copy()  # what an operand held before the step
        for n in moved:
            self._backend.xp.copyto(self._bound[states[n]], outputs[n])
        for n in states:
            outputs[n] = None  # else it would seem that somebody has kept it
        return outputs

    def _results(self) -> list[Block]:
        """States as views of their buffers, other outputs as copies."""
        return [
            self._bound[self._state_of_output[n]].view()
            if n in self._state_of_output
            else block.copy()
            for n, block in enumerate(self._outputs)
        ]

    def _not_captured(self, cause: Exception) -> FunctionError:
        """Names the op that could not be captured, and the user's line that calls it."""
        lines = [f.lineno for f in traceback.extract_tb(cause.__traceback__) if _is_program(f)]
        found = self._program.at_line.get(lines[-1] or 0) if lines else None
        what = f"{found.name}, which {found.line} calls," if found is not None else "it"
        problem = str(cause).splitlines()[0]
        return error(
            FunctionError,
            self._name,
            f"{what} cannot be captured in a CUDA graph ({type(cause).__name__}: {problem})",
            remedy=CAPTURE_REMEDY,
        )


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
    """The graph of a program, or None for one that is not of one GPU in one block, and of one
    process.

    values: what each register held when the program was recorded. meshes: of all arrays.
    """
    mesh = meshes[0] if meshes else None
    if mesh is None or any(m.divided for m in meshes):
        return None
    backend = backend_of(mesh)
    devices = {(m.device_kind, m.devices[0]) for m in meshes}
    if not isinstance(backend, CupyBackend) or len(devices) > 1 or processes.current().count > 1:
        return None
    parts = _parts(program, values)
    if parts is None:
        return None
    computed, draws, scalars, arrays = parts
    with backend.on(mesh, 0):
        drawn = HostValues(backend, draws, scalars, arrays)
    return StepGraph(name, computed, drawn, backend, mesh, states, is_argument)


class UpdateOfAll:
    """Many updates by one kernel launch, as one instruction.

    arrays: operands of each update, before the scalars that all of them share.
    """

    def __init__(
        self, body: KernelBody, launch: Callable[..., None], arrays: int, count: int
    ) -> None:
        self._body, self._launch, self.arrays, self.count = body, launch, arrays, count

    def __call__(self, values: Sequence[Block], free: Sequence[bool]) -> list[Block]:
        n, scalars = self.arrays, values[self.arrays * self.count :]
        operands = [values[i * n : (i + 1) * n] for i in range(self.count)]
        flags = [free[i * (n - 1) : (i + 1) * (n - 1)] for i in range(self.count)]
        made = self._body.update_all(self._launch, operands, scalars, flags, self._body.static)
        return [block for outs in made for block in outs]


def _together(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions, with one for all updates that follow each other and that one launch of a
    kernel can do."""
    done: list[Instruction] = []
    for _, group in itertools.groupby(instructions, _update_key):
        updates = list(group)
        first, made = updates[0], {r for k in updates for r in k.outputs}
        launch = _kernel_of_all(first)
        if len(updates) == 1 or launch is None or any(made & {*k.inputs} for k in updates):
            done += updates
            continue
        count = len(first.donated) + 1
        arrays = [r for k in updates for r in k.inputs[:count]]
        done.append(
            first._replace(
                function=UpdateOfAll(*launch, count, len(updates)),
                inputs=(*arrays, *first.inputs[count:]),
                outputs=tuple([r for k in updates for r in k.outputs]),
                donated=tuple([r for k in updates for r in k.donated]),
                scratch=-1,
            )
        )
    return done


def _update_key(k: Instruction) -> Any:
    """What updates that run together have in common; for others, themselves."""
    launch = _kernel_of_all(k)
    if launch is None:
        return id(k)
    return k.name, k.inputs[len(k.donated) + 1 :], tuple(launch[0].static.items())


def _kernel_of_all(k: Instruction) -> tuple[KernelBody, Callable[..., None]] | None:
    """What launches many updates like this one, if its kernel applies."""
    bodies = k.plan.kernel_bodies if k.plan is not None else ()
    if len(bodies) != 1 or not bodies[0].applies:
        return None
    launch = OPS[k.name].kernel_of_all
    return None if launch is None else (bodies[0], launch)


def _parts(
    program: Program, values: Sequence[Any]
) -> tuple[Program, list[Instruction], list[Scalar], list[tuple[int, int]]] | None:
    """A program that computes on the device alone, whose last inputs are what the host draws; and
    these. None if the host's floats are operands of what takes no arrays in their place."""
    draws = [k for k in program.instructions if k.is_effect]
    if any(k.inputs for k in draws):
        return None
    origin = {r: (n, i) for n, k in enumerate(draws) for i, r in enumerate(k.outputs)}
    arrays = [r for r in origin if hasattr(values[r], "shape")]
    scalars: dict[Scalar, int] = {}
    numbers = itertools.count(len(values))  # of new registers
    computed = []
    for k in program.instructions:
        if k.is_effect:
            continue
        floats = [r for r in k.inputs if r in origin and r not in arrays]
        if floats and not k.donated:
            return None
        if floats:
            dtype = next(values[r].dtype for r in k.inputs if hasattr(values[r], "shape"))
            wanted = {r: Scalar(*origin[r], dtype) for r in floats}
            for scalar in wanted.values():
                if scalar not in scalars:
                    scalars[scalar] = next(numbers)
            renamed = {r: scalars[s] for r, s in wanted.items()}
            k = k._replace(inputs=tuple([renamed.get(r, r) for r in k.inputs]))  # noqa: PLW2901
        computed.append(k)
    if any(r in origin and r not in arrays for r in program.outputs):
        return None
    inputs = [*program.inputs, *scalars.values(), *arrays]
    on_device = Program(
        _together(computed),
        inputs,
        program.outputs,
        program.constants,
        program.replaced,
        set(),
        program.aliases,
    )
    return on_device, draws, list(scalars), [origin[r] for r in arrays]
