"""gdt.cuda: signatures, checks of arguments, compilation and its cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.cuda import compiler, launches, nvrtc, sources
from gdt.cuda.runner import CudaRunner, KernelCall, check
from gdt.cuda.sources import Instance
from gdt.errors import KernelError
from tests.needs import need_compiler, need_nvrtc

FINISH = Instance("reduce.cu", "arg_finish", ("Max", "float"))
SIMPLE = """
__global__ void __launch_bounds__(64) add(const float* __restrict__ x, float* y, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) y[i] += x[i];
}
"""


def call(*arguments: Any, grid: tuple[int, ...] = (1,)) -> KernelCall:
    return KernelCall(FINISH, grid, (256,), arguments)


def good() -> list[Any]:
    parts, places = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64)
    return [parts, places, parts[0], places[0], 2, 3]


needs_nvrtc = pytest.mark.usefixtures("installed_nvrtc")


@pytest.fixture
def installed_nvrtc() -> None:
    need_nvrtc()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one source, and an empty cache."""
    monkeypatch.setenv("GDT_CACHE_DIR", str(tmp_path / "cache"))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "simple.cu").write_text(SIMPLE)
    return sources


def kept() -> list[Path]:
    """What the cache holds."""
    folder = compiler.cache_folder()
    assert folder is not None
    return list(folder.iterdir())


def test_signatures_are_read_from_the_source() -> None:
    assert [str(p) for p in sources.parameters(FINISH)] == [
        "const float* parts",
        "const long long* index",
        "float* out",
        "long long* out_index",
        "int count",
        "int size",
    ]
    assert sources.structs("reduce.cu")["Axes"].itemsize == 16
    assert sources.constants("reduce.cu")["THREADS"] == 256


def test_good_arguments_become_the_kernels_types() -> None:
    checked = check(call(*good()))
    assert [type(a) for a in checked[4:]] == [np.int32, np.int32]
    assert check(call(None, *good()[1:]))[0] is None


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, np.zeros((2, 3)), "argument 'parts' has dtype float64"),
        (0, 3.0, "argument 'parts' is float, not an array"),
        (0, np.zeros((3, 2), np.float32).T, "is not C-contiguous"),
        (0, np.zeros(25, np.uint8)[1:].view(np.float32), "is not aligned to 4 bytes"),
        (4, 2.5, "is 2.5, which int32 cannot hold"),
        (4, 2**31, "is 2147483648, which int32 cannot hold"),
        (4, float("nan"), "is nan, which int32 cannot hold"),
        (4, float("inf"), "is inf, which int32 cannot hold"),
        (4, 10**20, "is 100000000000000000000, which int32 cannot hold"),
        (4, np.int64(2), "has dtype int64"),
        (4, "two", "is str, not a number"),
    ],
)
def test_wrong_arguments_are_refused_by_name(place: int, value: Any, says: str) -> None:
    arguments = good()
    arguments[place] = value
    with pytest.raises(KernelError) as caught:
        check(call(*arguments))
    assert says in str(caught.value)
    assert "arg_finish<Max, float>" in str(caught.value)


def test_wrong_counts_grids_and_names_are_refused() -> None:
    with pytest.raises(KernelError, match="3 arguments for 6 parameters"):
        check(call(*good()[:3]))
    with pytest.raises(KernelError, match="no GPU takes a grid"):
        check(call(*good(), grid=(1, 70000)))
    with pytest.raises(KernelError, match="has no such kernel"):
        sources.parameters(Instance("reduce.cu", "nothing"))
    with pytest.raises(KernelError, match="1 template arguments for"):
        sources.parameters(Instance("reduce.cu", "arg_finish", ("Max",)))
    with pytest.raises(KernelError, match="cannot be read"):
        sources.parameters(Instance("nothing.cu", "nothing"))


def test_a_struct_of_another_kernel_is_refused() -> None:
    x = np.zeros((2, 3, 1), np.float32)
    calls = launches.reduce("Sum", x, np.zeros((2, 1), np.float32), np.zeros)
    arguments = list(calls[0].arguments)
    arguments[1] = np.zeros(1, np.int64)
    with pytest.raises(KernelError, match="is not one struct Strides"):
        check(KernelCall(calls[0].instance, calls[0].grid, calls[0].block, tuple(arguments)))


def test_what_no_kernel_takes_is_refused_by_name() -> None:
    out = np.zeros((2, 1), np.float32)
    with pytest.raises(KernelError, match="no kernel takes complex64"):
        launches.reduce("Sum", np.zeros((2, 3, 1), np.complex64), out, np.zeros)
    with pytest.raises(KernelError, match="not contiguous from axis 0"):
        launches.reduce("Sum", np.zeros((2, 6, 1), np.float32)[:, ::2], out, np.zeros)
    with pytest.raises(KernelError, match=r"no kernel matmul_simt"):
        half = np.zeros((2, 2), np.float16)
        launches.matmul(half, half, half.copy(), np.zeros)
    x = np.zeros((2,) * 5 + (3, 4), np.float32)
    labels = np.zeros((2, 1, 2, 1, 2, 3), np.int32)
    flag, loss = np.zeros(1, np.uint64), np.zeros(x.shape[:-1], np.float32)
    with pytest.raises(KernelError, match="5 leading axes are more than 4"):
        launches.softmax_ce(x, labels, loss, loss.copy(), None, flag, mesh_ndim=5)


def huge(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """An array of any size without its memory; nothing may touch its elements."""
    steps = np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[::-1] * np.dtype(dtype).itemsize
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, steps.tolist())


def scratch(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    return huge(*shape, dtype=dtype)


OVER = 2**31
NEARLY = OVER - 1000  # which a thread that steps over the whole grid would leave
KEY = np.zeros(1, np.uint64)
TOO_LARGE: dict[str, Callable[[], Any]] = {
    "reduced length": lambda: launches.reduce("Sum", huge(1, OVER, 1), huge(1, 1), scratch),
    "reduced rows": lambda: launches.reduce("Max", huge(OVER, 2, 1), huge(OVER, 1), scratch),
    "places": lambda: launches.arg_reduce(
        "Max", huge(1, OVER, 1), None, huge(1, 1, dtype="int64"), scratch),
    "moments": lambda: launches.bn_moments(
        huge(OVER, 2, 1), huge(1, 3, 2), None, scratch),
    "normalisation": lambda: launches.bn_apply(
        huge(OVER // 2, 2, 1), huge(2), huge(2), None, None, huge(OVER // 2, 2, 1), eps=0.0),
    "classes": lambda: launches.softmax_ce(
        huge(1, OVER), huge(1, dtype="int32"), huge(1), huge(1), None, KEY),
    "rows of logits": lambda: launches.softmax_ce(
        huge(OVER, 2), huge(OVER, dtype="int32"), huge(OVER), huge(OVER), None, KEY),
    "normalisation of nearly as many": lambda: launches.bn_apply(
        huge(NEARLY, 1, 1), huge(1), huge(1), None, None, huge(NEARLY, 1, 1), eps=0.0),
    "nearly as many classes": lambda: launches.softmax_ce_gradient(
        huge(1, NEARLY), huge(1, dtype="int32"), huge(1), huge(1), huge(1, NEARLY), total=NEARLY),
    "matmul": lambda: launches.matmul(huge(OVER, 2), huge(2, 2), huge(OVER, 2), scratch),
    "random": lambda: launches.random("uniform", huge(1, OVER), huge(1, dtype="int64"), KEY, KEY),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_sizes_past_31_bits_are_refused_by_name(name: str) -> None:
    with pytest.raises(KernelError, match=r"past 2\^31"):
        TOO_LARGE[name]()


def test_updates_of_any_size_are_counted_in_64_bits() -> None:
    tensors = [[huge(3 * OVER)] * 3, [huge(5)] * 3]
    (call,) = launches.sgd(tensors, {"float": np.zeros(1, np.float32)})
    table = call.arguments[0]
    assert table[:, -2].tolist() == [3 * OVER, 5]
    assert table[:, -1].tolist() == [0, 3 * OVER // 4096]
    assert call.grid == (3 * OVER // 4096 + 1,)


def test_without_a_compiler_kernels_are_skipped_but_not_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"g\+\+ is not installed"):
        need_compiler()
    for ci in ("true", "1"):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(pytest.fail.Exception, match=r"g\+\+ is not installed"):
            need_compiler()


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 7), "sm_86"),
        ((9, 0), "sm_90a"),
        ((12, 1), "sm_120"),
    ],
)
def test_devices_get_the_newest_code_they_run(capability: tuple[int, int], arch: str) -> None:
    assert compiler.architecture(capability) == arch


def test_devices_without_kernels_are_refused_by_name() -> None:
    with pytest.raises(KernelError, match=r"no kernel runs on compute capability 7\.0"):
        compiler.architecture((7, 0))
    with pytest.raises(KernelError, match="no kernel for architecture 'sm_61'"):
        compiler.compile_file("reduce.cu", [FINISH], "sm_61")


@needs_nvrtc
def test_compilation_is_kept_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance("simple.cu", "add")
    first = compiler.compile_file("simple.cu", [instance], "sm_90a", folder)
    assert first.code[:4] == b"\x7fELF"
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", None)
    again = compiler.compile_file("simple.cu", [instance], "sm_90a", folder)
    assert (again.code, again.names) == (first.code, first.names)


@needs_nvrtc
def test_what_is_kept_belongs_to_its_sources_options_and_toolkit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def compile(self: Any, file: str, source: str, *rest: Any) -> tuple[bytes, dict[str, str], str]:
        made.append(file)
        return b"code", {"add": "add"}, ""

    def compile_twice(arch: str = "sm_80") -> int:
        """How often the compiler was called."""
        made.clear()
        for cached in (sources.read_source, sources.declarations, sources.structs):
            cached.cache_clear()
        for _ in range(2):
            compiler.compile_file("simple.cu", [Instance("simple.cu", "add")], arch, folder)
        return len(made)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", compile)
    (folder / "header.cuh").write_text("// nothing")
    (folder / "simple.cu").write_text('#include "header.cuh"\n' + SIMPLE)
    assert compile_twice() == 1
    assert compile_twice("sm_90a") == 1
    assert compile_twice() == 0
    (folder / "header.cuh").write_text("// something")
    assert compile_twice() == 1
    (folder / "simple.cu").write_text('#include "header.cuh"\n' + SIMPLE.replace("+=", "-="))
    assert compile_twice() == 1
    monkeypatch.setattr(compiler, "FILE_OPTIONS", {"simple.cu": ("--fmad=false",)})
    assert compile_twice() == 1
    monkeypatch.setattr(nvrtc.nvrtc(), "version", (99, 0))
    assert compile_twice() == 1


@needs_nvrtc
def test_a_damaged_cache_is_compiled_again(folder: Path) -> None:
    instance = Instance("simple.cu", "add")
    first = compiler.compile_file("simple.cu", [instance], "sm_80", folder)
    (file,) = kept()
    for damaged in (file.read_bytes()[:-7], b"", b"nonsense\nmore\nof it"):
        file.write_bytes(damaged)
        assert compiler.compile_file("simple.cu", [instance], "sm_80", folder).code == first.code
        assert len(file.read_bytes()) > 100


@needs_nvrtc
def test_a_cache_that_cannot_be_written_costs_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GDT_CACHE_DIR", str(tmp_path / "file" / "inside"))
    cubin = compiler.compile_file("simple.cu", [Instance("simple.cu", "add")], "sm_80", folder)
    assert cubin.code[:4] == b"\x7fELF"


@needs_nvrtc
def test_a_file_that_cannot_be_renamed_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    compiler.compile_file("simple.cu", [Instance("simple.cu", "add")], "sm_80", folder)
    assert kept() == []


PROGRAM = """
import sys, pathlib, resource
from gdt.cuda.compiler import compile_file
from gdt.cuda.sources import Instance
folder, file_bytes = pathlib.Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
cubin = compile_file("simple.cu", [Instance("simple.cu", "add")], "sm_80", folder)
print(len(cubin.code))
"""


def compiling(folder: Path, file_bytes: int = 2**30) -> subprocess.Popen[bytes]:
    """A process that compiles, and can write files of so many bytes."""
    environment = os.environ | {"PYTHONPATH": str(Path(compiler.__file__).parents[2])}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(file_bytes)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


@needs_nvrtc
@pytest.mark.parametrize("file_bytes", [1, 100])
def test_a_full_disk_leaves_no_half_file(file_bytes: int, folder: Path) -> None:
    process = compiling(folder, file_bytes)
    assert int(process.communicate()[0]) > 1000
    assert process.returncode == 0
    assert kept() == []


@needs_nvrtc
def test_without_a_home_kernels_are_compiled_and_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GDT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # without an account, as in a container
    assert compiler.cache_folder() is None
    cubin = compiler.compile_file("simple.cu", [Instance("simple.cu", "add")], "sm_80", folder)
    assert cubin.code[:4] == b"\x7fELF"


@needs_nvrtc
def test_processes_may_compile_the_same_kernel_at_once(folder: Path) -> None:
    running = [compiling(folder) for _ in range(3)]
    sizes = {p.communicate()[0] for p in running}
    assert [p.returncode for p in running] == [0, 0, 0]
    assert len(sizes) == 1
    assert len(kept()) == 1


@needs_nvrtc
def test_a_kernel_that_does_not_compile_is_shown_with_its_line(folder: Path) -> None:
    (folder / "broken.cu").write_text(SIMPLE.replace("y[i] +=", "z[i] +="))
    with pytest.raises(KernelError) as caught:
        compiler.compile_file("broken.cu", [Instance("broken.cu", "add")], "sm_80", folder)
    first, rest = str(caught.value).split("\n", 1)
    assert first == 'broken.cu: does not compile: broken.cu line 4: identifier "z" is undefined'
    assert "-arch=sm_80" in rest


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "libnvrtc.so"
    damaged.write_bytes(b"no library")
    problems = {"/nowhere/libnvrtc.so": "is not installed", str(damaged): "cannot be loaded: "}
    for path, problem in problems.items():
        monkeypatch.setattr(nvrtc, "_candidates", lambda path=path: [path])
        nvrtc.nvrtc.cache_clear()
        with pytest.raises(KernelError, match=f"libnvrtc {problem}"):
            nvrtc.nvrtc()
    nvrtc.nvrtc.cache_clear()


class FakeFunction:
    """A function of CuPy's: it has an address, and takes no other attributes."""

    __slots__ = ("launches", "ptr", "symbol")

    def __init__(self, symbol: str, launches: list[Any]) -> None:
        self.symbol, self.launches, self.ptr = symbol, launches, 4096

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
        self.launches.append((self.symbol, grid, block, arguments, shared_mem))


class FakeCupy:
    """Records what CudaRunner asks of CuPy's driver API."""

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
    static = 1 << 10  # bytes of a function's static shared memory

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.attributes: list[tuple[int, int, int]] = []
        self.cuda = self.function = self.driver = self.runtime = self
        self.device = 0

    def getDevice(self) -> int:
        return self.device

    def funcGetAttribute(self, attribute: int, function: int) -> int:
        assert (attribute, function) == (self.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 4096)
        return self.static

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        self.attributes.append((function, attribute, value))

    def Module(self) -> FakeCupy:
        return self

    def load(self, code: bytes) -> None:
        assert code[:4] == b"\x7fELF"

    def get_function(self, symbol: str) -> FakeFunction:
        return FakeFunction(symbol, self.launches)


@needs_nvrtc
def test_the_cuda_runner_loads_once_and_passes_checked_arguments() -> None:
    cupy = FakeCupy()
    runner = CudaRunner(cupy, "sm_90a")
    for _ in range(2):
        runner.run(call(None, *good()[1:]))
    (symbol, grid, block, arguments, shared), _ = cupy.launches
    assert "arg_finish" in symbol
    assert (grid, block, shared) == ((1,), (256,), 0)
    assert [type(a) for a in arguments] == [np.uintp, *[np.ndarray] * 3, np.int32, np.int32]
    assert len(runner._functions) == 1
    cupy.device = 1  # a loaded function belongs to one device
    runner.run(call(None, *good()[1:]))
    assert len(runner._functions) == 2


@needs_nvrtc
def test_more_than_48_kib_of_shared_memory_are_asked_for_as_they_grow() -> None:
    cupy = FakeCupy()
    runner = CudaRunner(cupy, "sm_90a")
    for shared in (47 << 10, 64 << 10, 60 << 10, 90 << 10, 90 << 10):
        runner.run(replace(call(None, *good()[1:]), shared=shared))
    assert [launched[-1] >> 10 for launched in cupy.launches] == [47, 64, 60, 90, 90]
    assert cupy.attributes == [(4096, 8, 64 << 10), (4096, 8, 90 << 10)]


@needs_nvrtc
@pytest.mark.parametrize("static", [0, 1 << 10, 16 << 10])
def test_static_and_dynamic_shared_memory_share_the_48_kib(static: int) -> None:
    cupy = FakeCupy()
    cupy.static = static
    runner, room = CudaRunner(cupy, "sm_90a"), (48 << 10) - static
    for shared in (room, room + 1):
        runner.run(replace(call(None, *good()[1:]), shared=shared))
    assert cupy.attributes == [(4096, 8, room + 1)]


def test_cupy_tells_of_shared_memory_as_it_is_asked() -> None:
    driver = pytest.importorskip("cupy").cuda.driver
    assert driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES == 1  # cuda.h
    assert driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8
    assert driver.funcGetAttribute.__doc__.startswith("funcGetAttribute(int attribute, intptr_t f)")


def test_cupy_launches_by_a_table_of_parameters_on_the_stream_of_a_device() -> None:
    cuda = pytest.importorskip("cupy").cuda
    launch, _, parameters = cuda.driver.launchKernel.__doc__.partition("(")
    names = [p.split()[-1] for p in parameters.rstrip(")").split(",")]
    assert launch == "launchKernel"
    assert names == [
        "f", "grid_dim_x", "grid_dim_y", "grid_dim_z", "block_dim_x", "block_dim_y", "block_dim_z",
        "shared_mem_bytes", "stream", "kernel_params", "extra",
    ]  # fmt: skip
    assert cuda.get_current_stream.__doc__.startswith("get_current_stream(int device_id=-1)")
    assert callable(cuda.runtime.memGetInfo)
