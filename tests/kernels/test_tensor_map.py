"""gdt/cuda/tensor_map.py: what is passed to the CUDA driver, and what the accelerator cannot copy.

There is no driver where these tests run: a stand-in records its arguments. On a GPU, the kernel
tests show what the driver makes of them.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gdt.cuda import launches, sources, tensor_map
from gdt.cuda.runner import CudaRunner, KernelCall, check
from gdt.cuda.tensor_map import TensorMap
from gdt.errors import KernelError

from .harness import empty

ARRAY = np.zeros((3, 40, 64), np.float16)
GOOD = TensorMap(ARRAY, "half_t", (64, 40, 3), (128, 5120), 64)


class Driver:
    """Records what it is called with, and checks what cuda.h asks of it."""

    def __init__(self, status: int = 0):
        self.status = status
        self.arguments: tuple[Any, ...] = ()

    def cuTensorMapEncodeTiled(self, place: Any, *arguments: Any) -> int:
        assert place.value % 64 == 0
        plain = [
            list(a) if isinstance(a, ctypes.Array) else getattr(a, "value", a) for a in arguments
        ]
        self.arguments = tuple(plain)
        ctypes.memset(place.value, 7, 128)
        return self.status


def test_the_driver_is_asked_for_boxes_of_128_bytes_with_the_128_byte_swizzle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Driver()
    monkeypatch.setattr(tensor_map, "driver", lambda: fake)
    words = GOOD.encoded(ARRAY.ctypes.data)
    kind, rank, place, sizes, strides, box, steps, interleave, swizzle, promotion, fill = (
        fake.arguments
    )
    assert (kind, rank, place) == (6, 3, ARRAY.ctypes.data)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    assert (sizes, strides, box, steps) == ([64, 40, 3], [128, 5120], [64, 64, 1], [1, 1, 1])
    assert (interleave, swizzle, promotion, fill) == (0, 3, 3, 0)  # NONE, 128B, L2_256B, NONE
    assert words.size == 1  # CuPy passes an array of one element by value
    assert words.tobytes() == b"\7" * 128
    assert words.dtype == sources.structs("matmul_hopper.cu")["TensorMap"]


def test_the_cuda_runner_passes_maps_as_the_driver_encoded_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = np.zeros((8, 16), np.float16), np.zeros((16, 8), np.float16)
    call = launches.matmul(x, w, x[:, :8].copy(), empty, tensor_cores=True, arch="sm_90a")[0]
    loaded, cupy = mock.Mock(ptr=1), mock.Mock()
    monkeypatch.setattr(tensor_map, "driver", Driver)
    monkeypatch.setattr(CudaRunner, "_function", lambda self, call: loaded)
    runner = CudaRunner(cupy, "sm_90a")
    runner._allowed[loaded.ptr] = 48 << 10  # as loading the kernel notes it
    runner.run(call)
    (_, _, launched), options = loaded.call_args
    assert options == {"shared_mem": call.shared}
    set_attribute = cupy.cuda.driver.funcSetAttribute  # more than 48 KiB must be asked for
    assert [c.args[::2] for c in set_attribute.call_args_list] == [(1, call.shared)]
    maps = [a for a in launched if getattr(a, "dtype", None) == tensor_map.STRUCT]
    assert [m.tobytes() for m in maps] == [b"\7" * 128] * 3


def test_what_the_driver_refuses_is_raised_with_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Driver(1)
    monkeypatch.setattr(tensor_map, "driver", lambda: fake)
    with pytest.raises(KernelError, match=r"CUresult 1\n.*\(64, 40, 3\)"):
        GOOD.encoded(ARRAY.ctypes.data)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"c_type": "double"}, "double has no tensor map"),
        ({"strides": (120, 5120)}, "a stride of 120 bytes"),
        ({"strides": (0, 5120)}, "a stride of 0 bytes"),
        ({"strides": (128, 2**40)}, "a stride of 1099511627776 bytes"),
        ({"sizes": (64, 0, 3)}, "are not between 1 and 2^32"),
        ({"box_rows": 257}, "a box has 1 to 256 rows, not 257"),
    ],
)
def test_what_the_accelerator_cannot_copy_is_refused_by_name(
    change: dict[str, Any], says: str
) -> None:
    reason = TensorMap(**(vars(GOOD) | change)).refusal(0)
    assert reason is not None
    assert says in reason
    assert GOOD.refusal(ARRAY.ctypes.data) is None


def test_a_call_is_checked_before_it_is_launched() -> None:
    x, w = np.zeros((8, 16), np.float16), np.zeros((16, 8), np.float16)
    good = launches.matmul(x, w, x[:, :8].copy(), empty, tensor_cores=True, arch="sm_90a")[0]
    check(good)
    names = [p.name for p in sources.parameters(good.instance)]

    def changed(value: Any) -> KernelCall:
        arguments = [value if n == "x" else a for n, a in zip(names, good.arguments, strict=True)]
        return KernelCall(good.instance, good.grid, good.block, tuple(arguments), good.shared)

    with pytest.raises(KernelError, match="argument 'x' is ndarray, not a tensor map"):
        check(changed(x))
    odd = np.zeros(200, np.float16)[1:129].reshape(8, 16)
    with pytest.raises(KernelError, match="no GPU takes a grid"):
        check(replace(good, cluster=2))  # which has one block
    wrong = TensorMap(odd, "half_t", (16, 8, 1), (32, 256), 64)
    with pytest.raises(KernelError, match="argument 'x' cannot be copied from: the array does"):
        check(changed(wrong))
