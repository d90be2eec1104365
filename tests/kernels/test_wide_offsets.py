"""Elements whose offsets need more than 32 bits, in arrays of gigabytes of which little is touched.

The memory is reserved only: pages that no thread reads are never there. Of a launch the last block
runs, whose elements lie past 2^31.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches, runner, sources
from gdt.cuda.launches import transpose
from gdt.cuda.launches.matmul_operands import MatrixOperand
from gdt.cuda.runner import KernelCall
from gdt.cuda.tensor_map import STRUCT, TensorMap
from tests.needs import need_compiler

from .harness import empty, garbage
from .shim import worker
from .shim.runner import ASYNC_MODES, ORDERS, build

PROCESS = """
import pathlib, sys
from tests.kernels.test_wide_offsets import CHECKS
CHECKS[sys.argv[1]](None)
print("right", flush=True)
CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2]))
"""
NORESERVE = 0x4000  # of Linux; Python's mmap does not name it
FEW, MANY = (1 << 10) + 8, (1 << 21) + 8  # of elements together more than 2^31
HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)


def sparse(shape: tuple[int, ...], dtype: Any = HALF) -> np.ndarray:
    """Zeros in memory of which only pages that are touched exist."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    memory = mmap.mmap(-1, size, flags=flags)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # else pages of 2 MB
    return np.frombuffer(memory, dtype).reshape(shape)


def run_last_block(call: KernelCall, folder: Path | None = None) -> None:
    """Run the last block, or cluster, of a launch on its arrays, which are not copied."""
    library = worker.load(str(build(call.instance.file, [call.instance], None, folder)))
    held, values = [], runner.check(call, folder)
    for parameter, value in zip(sources.parameters(call.instance, folder), values, strict=True):
        if isinstance(value, TensorMap):
            held.append(sparse((1,), STRUCT))  # which is aligned to a page
            held[-1][:] = value.plain(value.array.ctypes.data)
        elif not parameter.pointer:
            held.append(np.atleast_1d(value))
        else:
            held.append(np.array([0 if value is None else value.ctypes.data], np.uint64))
    grid, block = ((*t, 1, 1)[:3] for t in (call.grid, call.block))
    last = int(np.prod(grid)) // call.cluster - 1
    order = ORDERS.index("random"), ASYNC_MODES.index("late")
    options = struct.pack("iiiiQQ", *order, 0, call.cluster, last, 1)
    arguments = [a.ctypes.data for a in held]
    message = worker.launch(
        library, str(call.instance), grid, block, call.shared, arguments, options
    )
    assert not message, message


def total_of_a_row(folder: Path | None) -> None:
    x, out = sparse((MANY, FEW, 1)), garbage((MANY, 1), HALF)
    x[-1] = 0.5
    (call,) = launches.reduce("Sum", x, out, empty)
    run_last_block(call, folder)
    assert out[-1, 0] == FEW / 2


def total_of_a_column(folder: Path | None) -> None:
    x, out = sparse((1, FEW, MANY)), garbage((1, MANY), HALF)
    x[0, -4:, -1] = 1, 2, 3, 4
    call = launches.reduce("Sum", x, out, empty, splits=1)[0]
    run_last_block(call, folder)
    assert out[0, -1] == 10


def place_in_a_row(folder: Path | None) -> None:
    x, index = sparse((MANY, FEW, 1)), garbage((MANY, 1), np.dtype(np.int64))
    x[-1, 77] = 1
    (call,) = launches.arg_reduce("Max", x, None, index, empty)
    run_last_block(call, folder)
    assert index[-1, 0] == 77


def loss_and_gradient(folder: Path | None, **options: Any) -> None:
    logits, gradient = sparse((MANY, FEW)), sparse((MANY, FEW))
    logits[-1, 0] = 2
    labels, loss, lse = np.zeros(MANY, np.int32), *(garbage((MANY,), SINGLE) for _ in range(2))
    flag = np.full(1, 2**64 - 1, np.uint64)
    (call,) = launches.softmax_ce(logits, labels, loss, lse, gradient, flag, **options)
    run_last_block(call, folder)
    total = np.exp(2) + FEW - 1
    np.testing.assert_allclose(loss[-1], np.log(total) - 2, rtol=1e-6)
    np.testing.assert_allclose(gradient[-1, :2], [np.exp(2) / total - 1, 1 / total], rtol=1e-3)


def normalized(folder: Path | None) -> None:
    x, y = (sparse((3, FEW, MANY // 2, 1)) for _ in range(2))  # an item may have 2^31 elements
    x[-1, -1, -1] = 3
    mean, variance = np.ones((1, MANY // 2), SINGLE), np.full((1, MANY // 2), 0.25, SINGLE)
    (call,) = launches.bn_apply(x, mean, variance, None, None, y, eps=0.0, mesh_ndim=1)
    run_last_block(call, folder)
    assert y[-1, -1, -1, 0] == 4


def product(x_t: bool, w_t: bool, dtype: Any, folder: Path | None, **options: Any) -> None:
    """The operands and the result, or a stack of results, have offsets past 2^31. Of the parts of
    the sum only the last is there."""
    x = sparse((FEW, MANY), dtype).T if x_t else sparse((MANY, FEW), dtype)
    w = sparse((FEW, MANY), dtype)[:, :FEW]
    w = w.T if w_t else w
    x[-1, -3:], w[-3:, -1] = (1, 2, 3), (4, 5, 6)
    for items in (1,) if x_t else (1, 4):
        stack = x.reshape((items, -1, FEW)) if items > 1 else x[None]
        out = sparse((len(stack), MANY // len(stack), FEW), dtype)
        calls = launches.matmul(stack, w[None], out, sparse, mesh_ndim=1, **options)
        for call in calls:
            run_last_block(call, folder)
        assert len(calls) == options["pieces"]
        assert out[-1, -1, -1] == 32


def products(folder: Path | None) -> None:
    product(False, True, SINGLE, folder, pieces=2)


def transposed_products(folder: Path | None) -> None:
    product(True, False, SINGLE, folder, pieces=1)


def tensor_core_products(folder: Path | None) -> None:
    product(True, False, HALF, folder, pieces=2, tensor_cores=True, tile=64)


def hopper_products(folder: Path | None) -> None:
    options = {"tensor_cores": True, "arch": "sm_90a", "tile": 128, "multiprocessors": 2**30}
    product(False, False, HALF, folder, pieces=2, **options)
    product(True, True, HALF, folder, pieces=1, **options)


def transposed_operand(folder: Path | None) -> None:
    """In both orders."""
    for shape in ((MANY, FEW), (FEW, MANY)):
        x = sparse(shape, SINGLE)
        x[-1, -1] = 3
        out, call = transpose.transposed(MatrixOperand.of(x, 0), sparse, 0)
        run_last_block(call, folder)
        assert out[-1, -1] == 3


CHECKS: dict[str, Callable[[Path | None], None]] = {
    "rows": total_of_a_row, "columns": total_of_a_column, "place": place_in_a_row,
    "long rows": partial(loss_and_gradient, arch="sm_90a", shared_limit=0),
    "cross-entropy": loss_and_gradient, "batch norm": normalized, "products": products,
    "transposed": transposed_products, "mma": tensor_core_products, "wgmma": hopper_products,
    "transposition": transposed_operand,
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_offsets_have_64_bits(name: str) -> None:
    need_compiler()
    CHECKS[name](None)


PLANTED = [  # a check, and an offset of 32 bits that it finds
    ("rows", "reduce.cu", "static_cast<long long>(row) * n;\n  A value", "row * n;\n  A value"),
    ("columns", "reduce.cu", "static_cast<long long>(row + k * step) *", "(row + k * step) *"),
    ("place", "reduce.cu", "static_cast<long long>(row) * n;\n  Winner", "row * n;\n  Winner"),
    ("cross-entropy", "softmax_ce.cu", "static_cast<long long>(row) * classes", "row * classes"),
    ("long rows", "softmax_ce.cu", "static_cast<long long>(row) * classes", "row * classes"),
    ("batch norm", "batchnorm.cu", "y + static_cast<long long>(item) * outer", "y + item * outer"),
    ("products", "matmul.cu", "line * row + k : k * row", "line * (int)row + k : k * (int)row"),
    ("transposed", "matmul.cuh", "at = static_cast<long long>(row) * n +", "at = row * n +"),
    ("mma", "matmul.cu", "line * row + k : k * row", "line * (int)row + k : k * (int)row"),
    (
        "products",
        "matmul.cu",
        "long long size = static_cast<long long>(m) * n,",
        "int size = m * n; const long long",
    ),
    ("mma", "matmul.cuh", "at = static_cast<long long>(row) * n +", "at = row * n +"),
    ("transposition", "transpose.cu", "start + row * x_row", "start + row * (int)x_row"),
    (
        "transposition",
        "transpose.cu",
        "to + static_cast<long long>(first_column + line) * width",
        "to + (first_column + line) * width",
    ),
    ("wgmma", "matmul.cuh", "at = static_cast<long long>(row) * n +", "at = row * n +"),
    ("wgmma", "matmul.cuh", "size = static_cast<long long>(m) * n, at", "size = m * n, at"),
]


@pytest.mark.kernels_full
@pytest.mark.parametrize(("name", "file", "right", "wrong"), PLANTED)
def test_an_offset_of_32_bits_is_found(
    name: str, file: str, right: str, wrong: str, tmp_path: Path
) -> None:
    need_compiler()
    for source in sources.source_folder().glob("*.cu*"):
        shutil.copy(source, tmp_path)
    text = (tmp_path / file).read_text()
    assert right in text
    (tmp_path / file).write_text(text.replace(right, wrong))
    command = [sys.executable, "-c", PROCESS, name, tmp_path]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert process.stdout == b"right\n" and process.returncode != 0  # perhaps by a signal
