"""Launches that were prepared: the driver gets what it gets of those that are made anew."""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import cupy
import numpy as np
import pytest

import gdt
from gdt.backend import backend_of
from gdt.cuda import launches, tensor_map
from gdt.cuda.runner import CudaRunner, KernelCall, Parameters, address, check
from gdt.cuda.sources import parameters
from gdt.cuda.tensor_map import TensorMap
from gdt.engine.launcher import MOST_RECORDED, KernelBody, Launcher
from gdt.engine.prepared import KernelRecording, Repeat, by_position

from . import strict_kernels
from .emulation import EmulatedBackend
from .test_tensor_map import Driver

Array = np.ndarray[Any, Any]
Block = Any


def array(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


class Memory:
    """Allocates arrays, and gives the same ones again after `rewind`."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.next = 0

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if self.next == len(self.arrays):
            self.arrays.append(np.zeros(shape, dtype))
        self.next += 1
        found = self.arrays[self.next - 1]
        assert found.shape == tuple(shape)
        return found

    def allocate(self, nbytes: int) -> tuple[Array, int]:
        """As a runner, one of the arrays."""
        found = self.arrays[self.next]
        self.next += 1
        assert found.nbytes == nbytes
        return found, address(found)

    def rewind(self) -> None:
        self.next = 0


Case = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]


def attention() -> Any:
    q, k, v = (array(2, 3, n, 8, dtype=np.float16) for n in (40, 50, 50))
    mask = array(2, 1, 40, 50, dtype=bool)
    sight = launches.Sight(40, 50, 0.5, True, mask=mask)
    lse = array(2, 3, 40)
    return launches.attention, (q, k, v, q.copy(), lse, sight), {"mesh_ndim": 2}


def attention_on_hopper() -> Any:
    q, k, v = (array(2, h, 40, 64, dtype=np.float16) for h in (3, 1, 1))
    arguments = (q, k, v, q.copy(), array(2, 3, 40), launches.Sight(40, 40, 0.5))
    return launches.attention, arguments, {"mesh_ndim": 2, "arch": "sm_90a"}


def attention_gradients() -> Any:
    q, k, v, g = (array(3, 20, 8, dtype=np.float16) for _ in range(4))
    results = tuple(array(3, 20, 8) for _ in range(3))
    arguments = (q, k, v, g, array(3, 20), array(3, 20), results, launches.Sight(20, 20, 0.5))
    return launches.attention_gradients, arguments, {"mesh_ndim": 1}


def matmul(arch: str) -> Case:
    def case() -> Any:
        x, w = (array(2, n, m, dtype=np.float16) for n, m in ((64, 4096), (4096, 32)))
        options = {"mesh_ndim": 1, "bias": array(1, 32, dtype=np.float16), "activation": "relu"}
        options |= {"tensor_cores": True, "arch": arch}
        out = array(2, 64, 32, dtype=np.float16)
        return launches.matmul, (x, w, out, Memory()), options

    return case


def total() -> Any:
    return launches.reduce, ("Sum", array(1, 100_000, 1), array(1, 1), Memory()), {}


def position() -> Any:
    index = array(1, 1, dtype=np.int64)
    return launches.arg_reduce, ("Max", array(1, 100_000, 1), None, index, Memory()), {}


def moments() -> Any:
    merged = array(2, 3, 4)
    return launches.bn_moments, (array(2, 50, 4, 6), merged, None, Memory()), {"mesh_ndim": 1}


def sums() -> Any:
    x = array(9000, 3, 1)
    return launches.bn_sums, (x, x.copy(), array(1, 2, 3), Memory()), {}


def normalisation() -> Any:
    x, mean = array(5, 3, 4), array(3)
    return launches.bn_apply, (x, mean, mean.copy(), None, mean.copy(), x.copy()), {"eps": 0.1}


def classes() -> Any:
    labels, flag = array(7, dtype=np.int32), array(1, dtype=np.uint64)
    arguments = (array(7, 5), labels, array(7), array(7), None, flag)
    return launches.softmax_ce, arguments, {"smoothing": 0.1}


def numbers() -> Any:
    start, one = array(1, dtype=np.int64), array(1, dtype=np.uint64)
    return launches.random, ("uniform", array(1, 9), start, one, one), {}


def parts() -> Any:
    """Launches on arrays that begin inside of the given ones."""

    def launch(x: Array, w: Array, out: Array, empty: Any, **options: Any) -> list[KernelCall]:
        return launches.matmul(x[:, 32:], w[:, 8:], out[1:], empty, **options)

    x, w = (array(2, n, m, dtype=np.float16) for n, m in ((64, 64), (72, 32)))
    options = {"mesh_ndim": 1, "tensor_cores": True, "arch": "sm_90a"}
    return launch, (x, w, array(3, 32, 32, dtype=np.float16), Memory()), options


CASES: dict[str, Case] = {
    "attention": attention, "attention on Hopper": attention_on_hopper,
    "gradients": attention_gradients, "mma": matmul("sm_80"), "wgmma": matmul("sm_90a"),
    "total": total, "position": position, "moments": moments, "sums": sums,
    "normalisation": normalisation, "classes": classes, "numbers": numbers, "parts": parts,
}  # fmt: skip


class Cuda:
    """CuPy's `cuda`, whose driver notes each launch with the parameters that it reads.

    signatures: the bytes of each parameter of the launches to come.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.signatures: Iterator[list[int]] = iter(())
        self.contexts, self.stream = 0, 7
        self.driver = self.runtime = self

    def getDevice(self) -> int:
        return 0

    def memGetInfo(self) -> None:
        self.contexts += 1

    def get_current_stream(self, device: int) -> Any:
        return SimpleNamespace(ptr=self.stream)

    def launchKernel(self, function: int, *arguments: int) -> None:
        *shape, stream, table, extra = arguments
        sizes = next(self.signatures)
        places = (ctypes.c_uint64 * len(sizes)).from_address(table)
        read = [ctypes.string_at(place, n) for place, n in zip(places, sizes, strict=True)]
        self.launches.append((function, *shape, stream, extra, read))


class Runner(CudaRunner):
    """The runner of GPUs, whose arrays are NumPy's."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__(SimpleNamespace(cuda=Cuda()), "sm_90a", address)
        self.memory = memory

    def allocate(self, nbytes: int) -> tuple[Any, int]:
        assert self.memory is not None
        return self.memory.allocate(nbytes)

    def _function(self, call: KernelCall) -> Any:
        return SimpleNamespace(ptr=4096)


def contents(call: KernelCall) -> list[bytes]:
    """What a kernel finds in its parameters."""
    found = []
    for parameter, argument in zip(parameters(call.instance), check(call), strict=True):
        if isinstance(argument, TensorMap):
            found.append(argument.encoded(address(argument.array)).tobytes())
        elif parameter.pointer:
            found.append(np.uint64(0 if argument is None else address(argument)).tobytes())
        else:
            found.append(argument.tobytes())
    return found


class Encoder(Driver):
    """A driver whose tensor maps hold the address."""

    def cuTensorMapEncodeTiled(self, words: Any, *facts: Any) -> int:
        (ctypes.c_uint64 * 1).from_address(words.value)[0] = facts[2].value
        return 0


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The arrays in nested tuples."""
    if isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, np.ndarray):
        yield value


class Made(NamedTuple):
    """Arrays for a launch, and how its calls are made."""

    arrays: list[np.ndarray]
    calls: Callable[[Callable[..., Any]], list[KernelCall]]


def made(name: str) -> Made:
    launch, given, options = CASES[name]()

    def calls(empty: Callable[..., Any]) -> list[KernelCall]:
        return launch(*[empty if isinstance(a, Memory) else a for a in given], **options)

    return Made(list(leaves((given, tuple(options.values())))), calls)


def recorded(one: Made, runner: Runner, settings: Any = ()) -> Repeat:
    recording = KernelRecording(
        SimpleNamespace(runner=runner, empty=np.empty, xp=np), one.arrays, 0
    )
    for call in one.calls(recording.empty):
        recording.add(call)
    repeat = recording.repeat((), (), settings)
    assert repeat is not None
    return repeat


@pytest.mark.parametrize("name", CASES)
def test_the_driver_gets_what_a_launch_that_is_made_anew_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, memory = Encoder(), Memory()
    runner = Runner(memory)
    monkeypatch.setattr(tensor_map, "driver", lambda: encoder)
    cuda, first = runner.cupy.cuda, made(name)
    alive = [weakref.ref(a) for a in first.arrays if a.dtype != np.uint64]
    repeat = recorded(first, runner)
    del first
    assert alive
    assert not any(reference() for reference in alive)  # a launch holds no array
    others = [made(name) for _ in range(2)]  # of which all arrays are alive, so that none are one
    for stream, other in zip((7, 9), others, strict=True):
        cuda.stream, cuda.launches = stream, []
        calls = other.calls(memory)
        memory.rewind()
        wanted = [contents(call) for call in calls]
        cuda.signatures = iter([list(map(len, content)) for content in wanted])
        assert repeat(*other.arrays) is not None
        memory.rewind()
        sizes = [[*(*c.grid, 1, 1)[:3], *(*c.block, 1, 1)[:3], c.shared, stream, 0] for c in calls]
        assert cuda.launches == [
            (4096, *size, content) for size, content in zip(sizes, wanted, strict=True)
        ]
    assert cuda.contexts == len(wanted)  # one for each launch in this thread


def test_memory_comes_from_the_pool_of_cupy() -> None:
    assert callable(cupy.cuda.alloc)
    cuda = SimpleNamespace(alloc=lambda nbytes: SimpleNamespace(nbytes=nbytes, ptr=4096))
    memory, address = CudaRunner(SimpleNamespace(cuda=cuda), "sm_90a").allocate(24)
    assert (memory.nbytes, address) == (24, 4096)


def test_a_thread_has_a_context_and_parameters_of_its_own() -> None:
    cuda, tables = Cuda(), []
    parameters = Parameters(cuda.memGetInfo, [0, np.asarray(np.uint64(5))])

    def look() -> None:
        tables.append(parameters.of_launch)

    for thread in [threading.Thread(target=look) for _ in range(2)]:
        thread.start()
        thread.join()
    look()
    look()
    assert cuda.contexts == 3
    assert len({table for _, _, table in tables}) == 3


def test_what_calls_depend_on_is_told_apart() -> None:
    runner = Runner()
    runner.cupy.cuda.signatures = itertools.repeat([])
    backend = SimpleNamespace(runner=runner, empty=np.empty, xp=np)
    whole = array(2, 6, 8)
    x, y, total = array(6, 4), array(6, 4), array(1, 1)
    calls: list[tuple[Any, ...]] = [
        (x, y), (x, x), (y, array(4, 6)), (x.T, array(4, 6)), (whole[0, :, :4], y),
        (whole.reshape(-1)[1:25].reshape(6, 4), y), (y, whole.reshape(-1)[1:25].reshape(6, 4)),
        (x, array()), (x, array() + 1), (x, 0.0), (x, -0.0), (x, 0), (x, False), (x, None), (x,),
        (x.astype("f8"), y),
    ]  # fmt: skip
    calls += [(x, *by_position(named)) for named in (
        {"out": y}, {"joined": y}, {"out": (y,)}, {"out": (y, "relu")}, {"out": (y, "none")},
    )]  # fmt: skip
    (launch,) = launches.reduce("Sum", total.reshape(1, 1, 1), total, np.empty)
    repeats: list[Repeat] = []
    for call in calls:
        recording = KernelRecording(backend, call, 0)
        recording.add(launch)
        repeat = recording.repeat((), [total])
        assert repeat is not None
        repeats.append(repeat)
    for repeat, own in zip(repeats, calls, strict=True):
        for call in calls:
            assert (repeat(*call) is not None) is (call is own)
    assert repeats[0](y, array(6, 4)) is not None
    runner.arch = "sm_80"
    assert repeats[0](*calls[0]) is None


def test_a_setting_is_told_apart() -> None:
    runner, one, chosen = Runner(), made("numbers"), [1]
    runner.cupy.cuda.signatures = itertools.repeat([])
    repeat = recorded(one, runner, [(lambda: chosen[0], 1)])
    assert repeat(*one.arrays) is not None
    chosen[0] = 2
    assert repeat(*one.arrays) is None


# ---------------------------------------------------------------- what is not repeated


def sum_of(launcher: Launcher, x: Block, out: Block) -> Block:
    launcher.run(launches.reduce("Sum", x, out, launcher.empty, mesh_ndim=1))
    return out


def plain(launcher: Launcher, x: Block) -> Block:
    return sum_of(launcher, x, launcher.empty((1, 2, 5), x.dtype)).reshape(2, 5)


def of_a_copy(launcher: Launcher, x: Block) -> Block:
    return sum_of(launcher, x.copy(), launcher.empty((1, 2, 5), x.dtype))


def without_gaps(launcher: Launcher, x: Block) -> Block:
    return plain(launcher, launcher.contiguous(x))


def of_a_part_without_gaps(launcher: Launcher, x: Block) -> Block:
    return plain(launcher, launcher.contiguous(x[:, :, :2]))


def of_a_row(launcher: Launcher, x: Block) -> Block:
    return sum_of(launcher, x[:, 1:], launcher.empty((1, 1, 5), x.dtype))


def as_another_dtype(launcher: Launcher, x: Block) -> Block:
    return sum_of(launcher, x, launcher.empty((1, 2, 5), x.dtype)).astype("f8")


def into_memory_that_is_filled(launcher: Launcher, x: Block) -> Block:
    rows = launcher.empty(x.shape, x.dtype)
    rows[...] = x
    return sum_of(launcher, rows, launcher.empty((1, 2, 5), x.dtype))


def then_copied(launcher: Launcher, x: Block, *, out: Block) -> Block:
    out[...] = sum_of(launcher, x, launcher.empty((1, 2, 5), x.dtype))
    return out


def of_a_transpose(launcher: Launcher, x: Block) -> Block:
    return sum_of(launcher, x, launcher.empty((1, 2, 5), x.dtype)).T


@pytest.mark.parametrize(
    ("function", "is_repeated"),
    [
        (plain, True), (without_gaps, True), (of_a_row, True), (of_a_part_without_gaps, False),
        (of_a_copy, False), (as_another_dtype, False),
        (into_memory_that_is_filled, False), (then_copied, False), (of_a_transpose, False),
    ],
)  # fmt: skip
def test_what_functions_of_arrays_compute_is_not_left_out(
    function: Callable[..., Block], is_repeated: bool, emulated: EmulatedBackend
) -> None:
    calls = []

    def kernel(*args: Any, **keywords: Any) -> Block:
        calls.append(args)
        return function(*args, **keywords)

    body = KernelBody("sum", 1, emulated, kernel, np.sum, {})
    for n in range(3):
        x = np.full((1, 2, 3, 5), n, "f4")
        if function is without_gaps:
            x = np.full((1, 2, 5, 3), n, "f4").mT
        out = {"out": array(1, 2, 5)} if function is then_copied else {}
        result = body(x, **out)
        rows = 2 if function is of_a_part_without_gaps else 3
        np.testing.assert_array_equal(result, np.full(result.shape, rows * 1.0 * n))
    assert len(calls) == (1 if is_repeated else 3)


def test_operands_that_overlap_are_not_repeated(emulated: EmulatedBackend) -> None:
    body = KernelBody("sum", 1, emulated, lambda launcher, x, y: plain(launcher, x), np.sum, {})
    memory = array(1, 3, 3, 5)
    before = emulated.runner.prepared
    body(memory[:, :2], memory[:, 1:])
    assert emulated.runner.prepared == before
    body(array(1, 2, 3, 5), array(1, 2, 3, 5))
    assert emulated.runner.prepared == before + 1


def test_calls_that_are_not_repeated_leave_others_to_be(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come first; and they are recorded once."""

    def kernel(launcher: Launcher, x: Block) -> Block:
        return plain(launcher, x if x.flags.c_contiguous else x.copy())

    body = KernelBody("sum", 1, emulated, kernel, np.sum, {})
    recorded, repeat = [], KernelRecording.repeat
    monkeypatch.setattr(
        KernelRecording, "repeat", lambda self, *args: recorded.append(self) or repeat(self, *args)
    )
    columns, rows = array(1, 2, 5, 3).mT, array(1, 2, 3, 5)
    for _ in range(MOST_RECORDED):
        body(columns)
    assert len(recorded) == 1
    before = emulated.runner.prepared
    for _ in range(3):
        body(rows)
    assert emulated.runner.prepared == before + 1
    assert len(recorded) == 2


def test_joint_launches_are_repeated(emulated: EmulatedBackend) -> None:
    """The array that they read beside the operands is not one to write into."""
    calls = []

    def kernel(launcher: Launcher, x: Block, *, joined: Block = None, out: Block = None) -> Any:
        calls.append(x)
        result = plain(launcher, x)
        return result if joined is None else (result, sum_of(launcher, joined, out))

    body = KernelBody("sum", 1, emulated, kernel, np.sum, {})
    body(array(1, 2, 3, 5))
    for n in range(3):
        x, joined = (np.full((1, 2, 3, 5), n + i, "f4") for i in range(2))
        out = array(1, 2, 5)
        results = body.together(x, joined=joined, out=out)
        assert results is not None
        assert results[1] is out
        for result, each in zip(results, (x, joined), strict=True):
            np.testing.assert_array_equal(result.reshape(1, 2, 5), each.sum(axis=2))
    assert len(calls) == 2  # alone, and joined


def test_a_measured_choice_of_the_body_is_kept(emulated: EmulatedBackend) -> None:
    body = KernelBody(
        "sum", 1, emulated, plain, lambda xp, x: xp.zeros((1, 1)), {}, selectable=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulated, "seconds", lambda run: float(run.func is plain))
        with gdt.matmul_backend("autotune"):
            shapes = [body(array(1, 2, 3, 5)).shape for _ in range(3)]
    assert shapes == [(1, 1)] * 3


def test_draws_with_keys_are_repeated_with_other_keys(emulated: EmulatedBackend) -> None:
    strict_kernels.register()
    meshes = [gdt.create_mesh([("x", 1)], devices=[device]) for device in ("graph:0", "cpu:0")]
    runner: Any = backend_of(meshes[0]).runner
    before = runner.prepared
    for key in (1, 2, 3):
        draws = [
            gdt.random.uniform(37, key=key, layout=gdt.Layout.replicated(mesh, 1))
            for mesh in meshes
        ]
        np.testing.assert_array_equal(*[x.numpy() for x in draws])
    assert runner.prepared == before + 1


@pytest.mark.parametrize("optimizer", [gdt.optim.SGD, gdt.optim.Adam])
def test_an_update_is_repeated_on_arrays_that_lie_alike(
    optimizer: Any, emulated: EmulatedBackend, rng: np.random.Generator
) -> None:
    layouts = [
        gdt.Layout.replicated(gdt.create_mesh([("x", 1)], devices=[device]), 2)
        for device in ("emu:0", "cpu:0")
    ]
    values = {name: rng.standard_normal((5, 6)).astype("f4") for name in "ab"}
    models = [{k: gdt.asarray(a, layout=layout) for k, a in values.items()} for layout in layouts]
    optimizers, kept, counts = [optimizer(0.1), optimizer(0.1)], [], []
    for step in range(7):
        before = emulated.runner.prepared
        if step == 3:
            kept = [(model["a"], model["a"].numpy().copy()) for model in models]
        numbers = {name: rng.standard_normal((6, 5)).astype("f4") for name in "ab"}
        for model, layout, update in zip(models, layouts, optimizers, strict=True):
            if step == 5:
                update.learning_rate = 0.2
            gradients = {k: gdt.asarray(a, layout=layout).mT for k, a in numbers.items()}
            if step != 4:
                gradients = {k: gdt.copy(g) for k, g in gradients.items()}  # by rows
            update.update(model, gradients)
        for name in values:
            np.testing.assert_array_equal(*[model[name].numpy() for model in models])
        counts.append(emulated.runner.prepared - before)
    for array, value in kept:
        np.testing.assert_array_equal(array.numpy(), value)
    # The first step makes plans; the fourth finds a parameter that is kept, the fifth columns.
    assert counts == [0, 1, 0, 0, 0, 0, 0]
