"""Kernels of ops: hand-written CUDA in the place of a body, where there is one that applies.

An op names its kernel in its own block, as a function like its body:

    @matrix_product.kernel
    def _(launcher, x, w, /, *, labels, out=None):
        ...
        launcher.run(launches.matmul(x, w, out, launcher.empty))
        return out

Its first calls are recorded, and repeated without it where operands lie alike: see
`gdt.engine.prepared`. It raises KernelError for what no kernel takes (a dtype, a size, an
architecture), and the body runs instead; `gdt.explain` shows which of the two ran, and why.
Backends without a runner of kernels never come here.

A kernel that is declared with `takes_bfloat16=True` gets operands of bfloat16 as they are. If it
raises KernelError for them, it gets them once more as float32, and then the body does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from gdt.backend.flags import Explain
from gdt.backend.graphs import CAPTURED
from gdt.backend.protocol import Backend, KernelRunner
from gdt.cuda import launches
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import Instance
from gdt.engine.prepared import (
    RECORDING,
    KernelRecording,
    Repeat,
    by_position,
    is_array,
    repeats_nothing,
)
from gdt.engine.source import as_tuple
from gdt.errors import CompileError, KernelError, error
from gdt.observe import OBSERVERS
from gdt.settings import MATMUL_BACKEND, MATMUL_PRECISION
from gdt.sharding.dtypes import BFLOAT16, FLOAT32

Block = Any
T = TypeVar("T")

MOST_RECORDED = 16  # calls of a plan; its operands lie in memory in few ways


@lru_cache(maxsize=64)
def _known(file: str, arch: str) -> frozenset[Instance]:
    """The kernels of a file that are compiled and tested for an architecture."""
    return frozenset(launches.instances(file, arch))


class Launcher:
    """The memory, launches and cached values of an op's kernel, for one plan and one block.

    xp: the array namespace of the backend. mesh_ndim: number of mesh axes, which blocks have in
    front. rounds: for each output of a call on bfloat16 whether the kernel rounds it, or one answer
    for all of them. launched: the kernels of the call that runs now, and a library's functions by
    name. kept: what the kernel keeps between calls.
    """

    def __init__(
        self, op: str, mesh_ndim: int, backend: Backend, rounds: tuple[bool, ...] = (False,)
    ) -> None:
        if backend.runner is None:
            raise error(KernelError, op, "the backend has no runner of kernels")
        self.op, self.mesh_ndim, self.backend, self.xp = op, mesh_ndim, backend, backend.xp
        self.runner: KernelRunner = backend.runner
        self.rounds = rounds
        self.launched: list[Instance | str] = []
        self.kept: dict[str, Any] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype | str) -> Block:
        """Uninitialised memory."""
        recording = RECORDING.get()
        return (recording or self.backend).empty(shape, np.dtype(dtype))

    def result_dtype(self, dtype: np.dtype, n: int = 0) -> np.dtype:
        """The dtype of output `n` of operands of `dtype`, which it has too unless that is bfloat16
        and the output is float32, or is combined in float32 after the kernel."""
        rounds = self.rounds[n if len(self.rounds) > 1 else 0]
        return dtype if dtype != BFLOAT16 or rounds else FLOAT32

    def contiguous(self, x: Block) -> Block:
        """`x`, or a copy whose elements lie in order."""
        if x.flags.c_contiguous:
            return x
        copy = self.xp.ascontiguousarray(x)
        recording = RECORDING.get()
        if recording is not None:
            recording.add_copy(x, copy)
        return copy

    def run(self, calls: Sequence[KernelCall]) -> None:
        """Launch calls in order; KernelError, before any of them runs, if one has no kernel on
        this device."""
        arch = self.runner.arch
        for call in calls:
            if call.instance not in _known(call.instance.file, arch):
                raise self.refused(f"no kernel {call.instance} for {arch}")
        recording = RECORDING.get()
        for call in calls:
            self.runner.run(call)
            self.launched.append(call.instance)
            if recording is not None:
                recording.add(call)

    def refused(self, problem: str) -> KernelError:
        """The error to raise where the kernel does not apply."""
        return error(KernelError, self.op, problem)

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Return the constant `name` of the plan, which `make` computes at the first request."""
        if name not in self.kept:
            self.kept[name] = make()
        constant: T = self.kept[name]
        return constant

    def constants(self) -> list[Block]:
        """The arrays that are kept on the device."""
        values = [v for kept in self.kept.values() for v in as_tuple(kept)]
        return [v for v in values if hasattr(v, "strides")]

    def counters(self) -> Block | None:
        """Numbers that kernels find 0 and leave 0, as `launches.matmul` takes them. None but while
        a graph is captured, whose launches run one after another."""
        graph = CAPTURED.get()
        if graph is None:
            return None
        device = self.xp.cuda.runtime.getDevice()
        if device not in graph.counters:
            zeros = np.zeros(launches.ENOUGH_BLOCKS, np.uint32)
            graph.counters[device] = self.backend.upload(zeros)
        return graph.counters[device]

    def error_flag(self, explain: Explain) -> Block:
        """The plan's flag for bad data, which kernels set and the next read by the host raises."""
        flags = self.backend.flags
        if flags is None:
            raise self.refused("this backend has no flags for errors in data")
        return self.keep("error flag", lambda: flags.new(explain))


class KernelBody:
    """The body of an op on a backend with kernels: its kernel where it applies, else its body.

    Which of the two runs is decided in the plan's first run, and kept. If `selectable`,
    `gdt.matmul_backend` has a say. rounds: of a call on bfloat16 whose operands the kernel takes,
    which outputs are bfloat16, whatever runs; see `Launcher`. declared: the kernel of the op.
    joined: the kernel of another op that computes this one too; see `Op.kernel`.
    """

    def __init__(
        self,
        op: str,
        mesh_ndim: int,
        backend: Backend,
        kernel: Callable[..., Any],
        body: Callable[..., Any],
        static: Mapping[str, Any],
        *,
        selectable: bool = False,
        rounds: tuple[bool, ...] | None = None,
        joined: Callable[..., Any] | None = None,
    ) -> None:
        self.launcher = Launcher(op, mesh_ndim, backend, rounds or (False,))
        self.declared, self.joined = kernel, joined
        self.kernel: Callable[..., Any] = partial(kernel, self.launcher, **static)
        self.body: Callable[..., Any] = partial(body, backend.xp, **static)
        if rounds is not None:
            self.body = partial(_run_widened, self.launcher, self.body)
            self.kernel = Bfloat16Kernel(self.launcher, self.kernel)
        self.static, self.selectable = dict(static), selectable
        # The function of calls that are repeated without the kernel's, how many calls have been
        # recorded, and the facts of the arrays of those that cannot be repeated.
        self.repeat: Repeat = repeats_nothing
        self.recorded = 0
        self.unrepeatable: set[Any] = set()
        # By choice of `gdt.matmul_backend`: why the body runs; "" where the kernel does.
        self.reasons: dict[str, str] = {"cublas": "matmul_backend is 'cublas'"}

    @property
    def applies(self) -> bool:
        """Whether the kernel has run."""
        return self.reasons.get("handwritten") == ""

    @property
    def is_refused(self) -> bool:
        """Whether the kernel does not apply, so that the body runs in every call."""
        return bool(self.reasons.get("handwritten")) and not self.selectable

    @property
    def runs_kernel(self) -> bool:
        """Whether the kernel would run now, as earlier calls under this choice have found."""
        return self.reasons.get(self._choice()) == ""

    def _settings(self) -> list[tuple[Callable[[], Any], Any]]:
        """The settings that decide what runs, with their values at present."""
        variables = (MATMUL_BACKEND, MATMUL_PRECISION) if self.selectable else ()
        return [(variable.get, variable.get()) for variable in variables]

    def _choice(self) -> str:
        """The choice at present between the kernel and the body, as a key of `reasons`."""
        choice = MATMUL_BACKEND.get() if self.selectable else "handwritten"
        return f"autotune in {MATMUL_PRECISION.get()}" if choice == "autotune" else choice

    def __call__(self, *xs: Block, **out: Any) -> Any:
        repeated = self.repeat(*xs, *by_position(out)) if out else self.repeat(*xs)
        if repeated is None:
            return self._run(xs, out)
        names, results = repeated
        for observer in OBSERVERS.get():
            observer.on_kernel(names, "")
        return results

    def _run(self, xs: Sequence[Block], out: Mapping[str, Any]) -> Any:
        """Run the kernel or the body."""
        choice = self._choice()
        reason = self.reasons.get(choice)
        if reason is None and choice.startswith("autotune"):
            reason = self.reasons[choice] = self._measured(xs, out)
        names = ""
        if not reason:
            results, names, reason = self._tried(xs, out)
            self.reasons.setdefault(choice, reason)
        if reason:
            results = self.body(*xs, **out)
        for observer in OBSERVERS.get():
            observer.on_kernel(names, reason)
        return results

    def together(self, *xs: Block, out: Block, **following: Any) -> Any | None:
        """The results of the kernel where it computes `following`, what follows it, in the same
        launch, in the memory `out`; None where it does not run, or not with that. It has run alone
        before."""
        kernel = self.kernel
        if isinstance(kernel, Bfloat16Kernel):
            if not kernel.applies:
                return None
            kernel = kernel.kernel
        if not self.runs_kernel:
            return None
        repeated = self.repeat(*xs, *by_position(following), "out", out)
        if repeated is not None:
            return repeated[1]
        try:
            results, _ = self._launched(kernel, xs, {"out": out}, following)
        except CompileError:
            raise
        except KernelError:
            return None
        return results

    def multi_tensor(
        self,
        launch: Callable[..., None],
        operands: Sequence[Sequence[Block]],
        scalars: Sequence[Any],
        free: Sequence[Sequence[bool]],
        static: Mapping[str, Any],
    ) -> list[tuple[Block, ...]]:
        """One launch for many updates: the blocks that take the place of the first operands of
        each, which are overwritten where they are `free`."""
        empty = self.launcher.backend.empty
        outs = [
            tuple(
                [
                    x if mine and x.flags.c_contiguous else empty(x.shape, x.dtype)
                    for x, mine in zip(xs, own, strict=False)
                ]
            )
            for xs, own in zip(operands, free, strict=True)
        ]
        launch(self.launcher, operands, scalars, outs, **static)
        return outs

    def _tried(self, xs: Sequence[Block], out: Mapping[str, Any]) -> tuple[Any, str, str]:
        """Run the kernel: its result and what it has launched, or the reason why it does not
        apply."""
        try:
            results, names = self._launched(self.kernel, xs, out)
            return results, names, ""
        except CompileError:  # a defect of gdt's, not of the operands
            raise
        except KernelError as problem:
            return None, "", str(problem).splitlines()[0]

    def _launched(
        self,
        kernel: Callable[..., Any],
        xs: Sequence[Block],
        out: Mapping[str, Any],
        following: Mapping[str, Any] = {},
    ) -> tuple[Any, str]:
        """The results of a kernel's function, and the names of what it has launched. The first such
        calls are prepared to be repeated. out: the memory to write into."""
        launcher, recording = self.launcher, None
        if CAPTURED.get() is None and self.recorded < MOST_RECORDED:
            to_write = by_position(out)
            given = [*xs, *by_position(following), *to_write]
            recording = KernelRecording(launcher.backend, given, sum(map(is_array, to_write)))
            if (facts := recording.facts()) in self.unrepeatable:
                recording = None
            else:
                self.recorded += 1
        launcher.launched.clear()
        token = RECORDING.set(recording)
        try:
            results = kernel(*xs, **following, **out)
        finally:
            RECORDING.reset(token)
        names = " ".join(dict.fromkeys(map(str, launcher.launched)))
        if recording is not None:
            constants, settings = launcher.constants(), self._settings()
            known = recording.repeat(results, constants, settings, self.repeat)
            if known is None:
                self.unrepeatable.add(facts)
            else:
                self.repeat = known
        return results, names

    def _measured(self, xs: Sequence[Block], out: Mapping[str, Any]) -> str:
        """The reason to run the body and not the kernel; "" if the kernel is faster."""
        _, _, reason = self._tried(xs, out)
        if reason:
            return reason
        seconds = self.launcher.backend.seconds
        kernel, body = (seconds(partial(f, *xs, **out)) for f in (self.kernel, self.body))
        if kernel <= body:
            return ""
        self.repeat = repeats_nothing  # what was measured may be among what it repeats
        return f"measured: {body * 1e6:.0f} us, the kernel {kernel * 1e6:.0f} us"


# ---------------------------------------------------------------- bfloat16


class Bfloat16Kernel:
    """A kernel that takes blocks of bfloat16: as they are where it applies, else as float32. The
    first call decides."""

    def __init__(self, launcher: Launcher, kernel: Callable[..., Any]) -> None:
        self.launcher, self.kernel = launcher, kernel
        self.applies: bool | None = None

    def __call__(self, *xs: Block, **out: Any) -> Any:
        if self.applies is not False:
            try:
                results = self.kernel(*xs, **out)
            except CompileError:
                raise
            except KernelError:
                if self.applies is None:
                    self.applies = False
                self.launcher.launched.clear()
            else:
                self.applies = True
                return _rounded(self.launcher, results)
        return _run_widened(self.launcher, self.kernel, *xs)


def _run_widened(
    launcher: Launcher, function: Callable[..., Any], *xs: Block, out: Any = None
) -> Any:
    """The results of a function of blocks of float32 in the place of those of bfloat16, rounded.
    `out` is not written into."""
    wide = [x.astype(FLOAT32) if getattr(x, "dtype", None) == BFLOAT16 else x for x in xs]
    return _rounded(launcher, function(*wide))


def _rounded(launcher: Launcher, results: Any) -> Any:
    """Results of float32 as bfloat16 where they are rounded."""
    if not isinstance(results, tuple):
        return _rounded(launcher, (results,))[0]
    return tuple(
        [
            x.astype(launcher.result_dtype(BFLOAT16, n), copy=False) if x.dtype == FLOAT32 else x
            for n, x in enumerate(results)
        ]
    )
