"""Convolutions by cuDNN, of which a recorded one computes in NumPy, against whole arrays."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.cuda import cudnn
from gdt.cuda.runner import CudaRunner
from gdt.errors import KernelError
from gdt.nn.functions.convolution import kernels
from gdt.testing import choices
from tests.recorded_cudnn import RecordedCudnn, numerical_note
from tests.strict import StrictCupy

from .emulation import EmulatedBackend
from .harness import assert_close

OPERATIONS = ["conv_fprop", "conv_dgrad", "conv_wgrad"]
# Images, kernel, and statics.
CALLS: list[tuple[Any, Any, dict[str, Any]]] = [
    ((2, 9, 4), (3, 2, 4), {"strides": 2, "padding": [(1, 2)], "groups": 2, "dilation": 2}),
    ((2, 7, 8, 3), (3, 2, 3, 4), {"padding": "same", "strides": (2, 1)}),
    ((3, 2, 10, 6, 4), (3, 3, 1, 4), {"strides": 4, "groups": 4}),  # ends before its image
    ((9, 7, 2), (1, 1, 2, 3), {"padding": 1, "strides": (2, 3)}),
    ((2, 5, 4, 6, 2), (2, 3, 2, 2, 3), {"padding": [(0, 1), 1, (2, 0)], "dilation": (2, 1, 3)}),
]


@pytest.fixture
def recorded(emulated: EmulatedBackend) -> Iterator[RecordedCudnn]:
    """A cuDNN for the emulated devices, whose kernels of other ops run as ever."""
    module = RecordedCudnn()
    emulated.runner.recorded_cudnn = cudnn.Cudnn(module, lambda: 0, lambda: 77)
    yield module
    emulated.runner.recorded_cudnn = None


def results_and_gradients(x: Any, kernel: Any, g: Any, statics: dict[str, Any]) -> list[Any]:
    out, pull = gdt.vjp(lambda x, kernel: gdt.convolution(x, kernel, **statics), x, kernel)
    return [out, *pull(g)]


def kernels_of(explanation: Any) -> list[str]:
    return [row.kernel for row in explanation.rows if row.op.startswith("convol")]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", [1, 4], ids=["one block", "four blocks"])
def test_every_layout_equals_the_body(
    dtype: str, count: int, recorded: RecordedCudnn, rng: np.random.Generator
) -> None:
    devices = [f"emu:{i}" for i in range(count)]
    mesh = gdt.create_mesh([(f"cudnn_{dtype}", 2), ("y", 2)], devices=devices)
    for n, (*shapes, statics) in enumerate(CALLS):
        arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
        wide = [gdt.asarray(a.astype(np.float64)) for a in arrays]
        g = rng.standard_normal(gdt.convolution(*wide, **statics).shape).astype(dtype)
        exact = results_and_gradients(*wide, gdt.asarray(g.astype(np.float64)), statics)
        ranks = [a.ndim for a in arrays]
        for layouts in choices(mesh, ranks, limit=3, seed=n):
            placed = [gdt.asarray(a, layout=at) for a, at in zip(arrays, layouts, strict=True)]
            cotangent = gdt.asarray(g, layout=gdt.Layout.replicated(mesh, g.ndim))
            explanation = gdt.explain(results_and_gradients, *placed, cotangent, statics)
            assert kernels_of(explanation) == [f"cudnn.{name}" for name in OPERATIONS]
            for result, want in zip(explanation.value, exact, strict=True):
                assert result.dtype == dtype
                assert_close(result.numpy(), want.numpy(), dtype, want.size, 8.0)
    assert set(recorded.runs) == {"fprop", "dgrad", "wgrad"}
    assert set(recorded.streams.values()) == {77}


def test_float32_is_rounded_to_tf32_only_where_products_may_be(recorded: RecordedCudnn) -> None:
    mesh = gdt.create_mesh({"cudnn_precision": 1}, devices=["emu:0"])
    never = {*numerical_note} - {numerical_note.TENSOR_CORE}
    for dtype, precision, without in (
        ("float32", "float32", {*numerical_note}),
        ("float32", "tensorfloat32", never),
        ("float16", "float32", never),
    ):
        x = gdt.ones((1, 4, 4, 2), dtype, layout=gdt.Layout.replicated(mesh, 4))
        kernel = gdt.ones((3, 3, 2, 2), dtype, layout=gdt.Layout.replicated(mesh, 4))
        for _ in range(2):
            with gdt.matmul_precision(precision):
                assert gdt.convolution(x, kernel).tolist() == [[[[18.0] * 2] * 2] * 2]
        assert recorded.graphs[-1].deselected == without
    assert len(recorded.graphs) == 3
    assert len(recorded.runs) == 6


@pytest.mark.parametrize(
    ("dtype", "shapes", "product"),
    [
        ("float64", ((1, 4, 2), (3, 2, 1)), "matmul_mma<double,"),
        ("float32", ((1, 2, 2, 2, 2, 1), (1, 1, 1, 1, 1, 1)), "matmul_simt<float,"),
        ("float32", ((0, 4, 2), (3, 2, 1)), ""),
        ("float32", ((1, 5, 2), (3, 2, 1)), "matmul_simt<float,"),
    ],
)
def test_what_cudnn_does_not_take_runs_products(
    dtype: str, shapes: Any, product: str, recorded: RecordedCudnn
) -> None:
    recorded.lacks = lambda graph: graph.images.dim[-1] == 5
    mesh = gdt.create_mesh({"cudnn_refusals": 1}, devices=["emu:0"])
    x, kernel = (
        gdt.ones(shape, dtype, layout=gdt.Layout.replicated(mesh, len(shape))) for shape in shapes
    )
    want = gdt.convolution(*(gdt.ones(shape, dtype) for shape in shapes))
    for _ in range(2):
        explanation = gdt.explain(gdt.convolution, x, kernel)
        (text,) = kernels_of(explanation)
        assert text.startswith(product) and "cudnn" not in text
        assert explanation.value.tolist() == want.tolist()
    assert len(recorded.graphs) == (shapes[0][1] == 5)  # it is asked once
    with gdt.matmul_backend("cublas"):
        (text,) = kernels_of(gdt.explain(gdt.convolution, x, kernel))
    assert text == "body: matmul_backend is 'cublas'"


def test_transposed_images_and_odd_addresses_are_copied(recorded: RecordedCudnn) -> None:
    x = np.arange(20, dtype=np.float32)[1:][:16]
    assert x.ctypes.data % cudnn.ALIGNMENT
    launcher: Any = SimpleNamespace(contiguous=np.ascontiguousarray)
    for view in (x, x[::2], x.reshape(4, 4).T):
        copy = kernels._aligned(launcher, view)
        assert copy.flags.c_contiguous
        assert copy.ctypes.data % cudnn.ALIGNMENT == 0
        np.testing.assert_array_equal(copy, view)


def test_a_frontend_that_is_missing_or_old_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(KernelError, match="nvidia-cudnn-frontend cannot be imported"):
        cudnn.load()
    for version in ("0.9.2", "1.9.0"):
        old: Any = SimpleNamespace(__version__=version)
        monkeypatch.setitem(sys.modules, "cudnn", old)
        with pytest.raises(KernelError, match=f"nvidia-cudnn-frontend {version} is older than 1.1"):
            cudnn.load()
    new: Any = RecordedCudnn()
    monkeypatch.setitem(sys.modules, "cudnn", new)
    assert cudnn.load() is new


def test_every_device_and_thread_has_a_handle_on_its_current_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = RecordedCudnn()
    monkeypatch.setitem(sys.modules, "cudnn", module)
    cupy = StrictCupy(device_count=2)
    runner = CudaRunner(cupy, "sm_90a")
    for device in (0, 1, 0):
        with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
            assert runner.cudnn.handle() == device
            assert module.streams[device] == stream.ptr
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(runner.cudnn.handle()))
    thread.start()
    thread.join()
    assert seen == [2]
