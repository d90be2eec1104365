"""cuDNN's frontend, the module `cudnn`, for convolutions in the memory of the host.

It refuses what the frontend refuses, and computes by NumPy from the addresses, sizes, strides and
attributes that a graph was given.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np


class data_type(Enum):
    FLOAT = "float32"
    HALF = "float16"


class numerical_note(Enum):
    DOWN_CONVERT_INPUTS = 1
    FFT = 2
    NONDETERMINISTIC = 3
    REDUCED_PRECISION_REDUCTION = 4
    TENSOR_CORE = 5
    WINOGRAD = 6


class heur_mode(Enum):
    A = 1
    B = 2
    FALLBACK = 3


class cudnnGraphNotSupportedError(Exception):
    """The frontend's error for a graph without a plan."""


class Tensor:
    """A tensor of a graph: sizes and strides with the channels second."""

    def __init__(self, name: str, dim: list[int], stride: list[int], dtype: Any) -> None:
        self.name, self.dim, self.stride, self.dtype = name, dim, stride, dtype
        self.is_output = False

    def set_output(self, value: bool) -> None:
        self.is_output = value

    def set_data_type(self, dtype: data_type) -> None:
        self.dtype = dtype

    def set_dim(self, dim: list[int]) -> None:
        self.dim = dim

    def set_stride(self, stride: list[int]) -> None:
        self.stride = stride

    def at(self, address: int) -> np.ndarray:
        """The tensor's elements, in its memory."""
        if address % 16:
            raise RuntimeError(f"{self.name} is misaligned, as no plan takes it")
        dtype = np.dtype(self.dtype.value)
        last = sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True))
        memory = (ctypes.c_char * ((last + 1) * dtype.itemsize)).from_address(address)
        strides = [s * dtype.itemsize for s in self.stride]
        return np.ndarray(self.dim, dtype, memory, strides=strides)


STEPS = (
    "tensors", "validate", "build_operation_graph", "create_execution_plans", "check_support",
    "build_plans",
)  # fmt: skip


class Pygraph:
    """A graph of one convolution, or of one of its gradients."""

    def __init__(
        self, module: RecordedCudnn, *, io_data_type: data_type, intermediate_data_type: data_type,
        compute_data_type: data_type, handle: int,
    ) -> None:  # fmt: skip
        assert compute_data_type is intermediate_data_type is data_type.FLOAT
        assert handle in module.streams
        self.module, self.done, self.deselected = module, 0, set()
        module.graphs.append(self)

    def tensor(
        self, *, name: str, dim: list[int], stride: list[int], data_type: data_type
    ) -> Tensor:
        assert all(type(n) is int and n > 0 for n in (*dim, *stride))
        return Tensor(name, dim, stride, data_type)

    def conv_fprop(self, *, image: Tensor, weight: Tensor, **windows: Any) -> Tensor:
        return self._node("fprop", (image, weight), **windows)

    def conv_dgrad(self, *, loss: Tensor, filter: Tensor, **windows: Any) -> Tensor:
        return self._node("dgrad", (loss, filter), **windows)

    def conv_wgrad(self, *, image: Tensor, loss: Tensor, **windows: Any) -> Tensor:
        return self._node("wgrad", (image, loss), **windows)

    def _node(
        self, operation: str, operands: tuple[Tensor, Tensor], *, pre_padding: Sequence[int],
        post_padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
        compute_data_type: data_type,
    ) -> Tensor:  # fmt: skip
        self.operation, self.operands = operation, operands
        self.before, self.after = pre_padding, post_padding
        self.stride, self.dilation, self.out = stride, dilation, Tensor(operation, [], [], None)
        left, right = operands
        images, kernel, results = {
            "fprop": (left, right, self.out), "dgrad": (self.out, right, left),
            "wgrad": (left, self.out, right),
        }[operation]  # fmt: skip
        self.images, self.kernel, self.results = images, kernel, results
        return self.out

    def _step(self, name: str) -> None:
        self.done += 1
        assert STEPS[self.done] == name, f"{name} after {STEPS[self.done - 1]}"

    def validate(self) -> None:
        """Compare the sizes with those of the formula for a convolution."""
        self._step("validate")
        assert self.out.is_output
        assert self.out.dtype is self.operands[0].dtype is self.operands[1].dtype
        rank = len(self.images.dim) - 2
        assert rank in (2, 3), "no images of one axis"
        (n, c, *pixels), (k, own, *taps) = self.images.dim, self.kernel.dim
        assert c % own == k % (c // own) == 0, "groups"
        attributes = (self.before, self.after, self.stride, self.dilation)
        assert all(len(a) == rank and all(type(n) is int for n in a) for a in attributes)
        assert min(*self.before, *self.after) >= 0
        numbers = [
            (size + before + after - (tap - 1) * step - 1) // move + 1
            for size, tap, before, after, move, step in zip(pixels, taps, *attributes, strict=True)
        ]
        assert self.results.dim == [n, k, *numbers]

    def build_operation_graph(self) -> None:
        self._step("build_operation_graph")

    def create_execution_plans(self, modes: list[heur_mode]) -> None:
        self._step("create_execution_plans")
        assert modes

    def deselect_numeric_notes(self, notes: list[numerical_note]) -> None:
        assert STEPS[self.done] == "create_execution_plans", "there are no plans yet"
        self.deselected |= set(notes)

    def check_support(self) -> None:
        self._step("check_support")
        if self.module.lacks(self):
            raise cudnnGraphNotSupportedError("No valid engine configs\nand more lines")

    def build_plans(self) -> None:
        self._step("build_plans")

    def get_workspace_size(self) -> int:
        assert STEPS[self.done] == "build_plans"
        return self.module.workspace

    def execute(self, buffers: dict[Tensor, int], workspace: int, handle: int) -> None:
        assert STEPS[self.done] == "build_plans"
        assert self.module.streams[handle] is not None, "the handle has no stream"
        memory = (ctypes.c_char * self.module.workspace).from_address(workspace)
        memory[:] = b"\xff" * self.module.workspace
        images, kernel, results = (
            t.at(buffers[t]) for t in (self.images, self.kernel, self.results)
        )
        {self.images: images, self.kernel: kernel, self.results: results}[self.out][...] = 0
        padded = [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)]
        room = np.pad(images.astype(np.float64), padded)
        total = np.zeros(kernel.shape if self.out is self.kernel else results.shape)
        group, own = kernel.shape[1], kernel.shape[0] // (images.shape[1] // kernel.shape[1])
        for tap in itertools.product(*map(range, kernel.shape[2:])):
            places = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(
                    tap, self.dilation, results.shape[2:], self.stride, strict=True
                )
            )
            for k in range(kernel.shape[0]):  # results of group k // own
                channels = slice(k // own * group, k // own * group + group)
                values = room[:, channels, *places]
                weights = kernel[k, :, *tap].astype(np.float64)
                cotangent = results[:, k].astype(np.float64)
                if self.operation == "fprop":
                    total[:, k] += np.tensordot(weights, values, (0, 1))
                elif self.operation == "wgrad":
                    products = values * cotangent[:, None]
                    total[k, :, *tap] = products.sum((0, *range(2, products.ndim)))
                else:
                    values += np.multiply.outer(weights, cotangent).swapaxes(0, 1)
        if self.operation == "dgrad":
            inner = tuple(
                slice(before, before + n)
                for before, n in zip(self.before, images.shape[2:], strict=True)
            )
            images[...] = room[:, :, *inner]
        else:
            (results if self.operation == "fprop" else kernel)[...] = total
        self.module.runs.append(self.operation)


class RecordedCudnn:
    """The module. workspace: the bytes that every plan asks for. streams: those of the handles.
    runs: the operations that ran, in order."""

    __version__ = "1.32.0"
    data_type, numerical_note, heur_mode = data_type, numerical_note, heur_mode
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError

    def __init__(self) -> None:
        self.workspace, self.streams = 40, dict[int, int | None]()
        self.graphs, self.runs = list[Pygraph](), list[str]()
        self.lacks = lambda graph: False

    def create_handle(self) -> int:
        self.streams[len(self.streams)] = None
        return len(self.streams) - 1

    def set_stream(self, *, handle: int, stream: int) -> None:
        self.streams[handle] = stream

    def pygraph(self, **options: Any) -> Pygraph:
        return Pygraph(self, **options)
