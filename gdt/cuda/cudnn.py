"""Convolutions by cuDNN, through its frontend (the package nvidia-cudnn-frontend).

The tensors of a convolution are images (N, pixels..., channels), a kernel (results, taps...,
channels of a group) and results (N, numbers..., results): channels last, without gaps, which is how
cuDNN's fastest engines take them. Sums are in float32. Plans that round operands or sums to fewer
bits, or whose results differ from run to run, are not taken. Source: the bindings of NVIDIA's
cuDNN frontend 1.10 to 1.32.
"""

from __future__ import annotations

import importlib
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gdt.errors import KernelError, error

OLDEST = 1, 10  # of the frontend: later ones have the same functions
ALIGNMENT = 16  # bytes; plans are for addresses that are multiples of it
MOST_AXES = 3  # of images
PACKAGE = "nvidia-cudnn-frontend"
INSTALL = "Install gdt[cudnn13], or gdt[cudnn12] beside CuPy for CUDA 12."
# By operation the tensors that it reads, under cuDNN's names, and the one that it writes.
TENSORS = {
    "fprop": ({"image": "images", "weight": "kernel"}, "results"),
    "dgrad": ({"loss": "results", "filter": "kernel"}, "images"),
    "wgrad": ({"image": "images", "loss": "results"}, "kernel"),
}

# Numerical notes of plans that are not taken. Winograd's and Fourier's algorithms mix the elements
# of neighbouring windows: a NaN, or what lies in the padding of an uneven shard, would spread.
EXCLUDED = (
    "DOWN_CONVERT_INPUTS", "FFT", "NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "WINOGRAD",
)  # fmt: skip


def load() -> Any:
    """Import cuDNN's frontend; raise KernelError if it is missing, or older than `OLDEST`."""
    try:
        cudnn = importlib.import_module("cudnn")
        version = str(cudnn.__version__)
    except (ImportError, OSError, RuntimeError, AttributeError) as e:
        problem = f"{PACKAGE} cannot be imported: {e}"
        raise error(KernelError, "cudnn", problem, remedy=INSTALL) from e
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        problem = f"{PACKAGE} {version} is older than {oldest}"
        raise error(KernelError, "cudnn", problem, remedy=INSTALL)
    return cudnn


class ConvolutionWindows(NamedTuple):
    """The windows of a convolution, with a number, or a pair, for each spatial axis.

    padding: the numbers of zeros before and after an axis.
    """

    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


class Cudnn(threading.local):
    """cuDNN with a handle for each device, of one thread, as cuDNN demands.

    module: its frontend. device, stream: functions that return the number of the current device,
    and the address of its current stream.
    """

    def __init__(self, module: Any, device: Callable[[], int], stream: Callable[[], int]) -> None:
        self.module, self._device, self._stream = module, device, stream
        self._handles: dict[int, Any] = {}

    def handle(self) -> Any:
        """Return the handle of the current device, which launches on its current stream."""
        device = self._device()
        if device not in self._handles:
            self._handles[device] = self.module.create_handle()
        handle = self._handles[device]
        self.module.set_stream(handle=handle, stream=self._stream())
        return handle


class ConvolutionPlan:
    """A plan of cuDNN for a convolution, or for one of its gradients, on the current device.

    operation: a key of `TENSORS`. dtype: that of all tensors, "float32" or "float16". sizes: those
    of the images, the kernel and the results, by name. tensor_cores: whether tensor cores may
    multiply, which round float32 to tf32. workspace: the bytes of memory that a run needs.

    Raises KernelError if cuDNN has no such plan.
    """

    def __init__(
        self,
        cudnn: Cudnn,
        operation: str,
        dtype: str,
        sizes: Mapping[str, Sequence[int]],
        windows: ConvolutionWindows,
        *,
        tensor_cores: bool,
    ) -> None:
        module, self._cudnn = cudnn.module, cudnn
        modes, excluded = module.heur_mode, list(EXCLUDED)
        if not tensor_cores:
            excluded.append("TENSOR_CORE")
        try:
            graph, self._tensors = self._described(operation, dtype, sizes, windows)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            graph.deselect_numeric_notes([getattr(module.numerical_note, n) for n in excluded])
            graph.check_support()
            graph.build_plans()
        except (module.cudnnGraphNotSupportedError, RuntimeError) as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            raise error(KernelError, f"conv_{operation}", f"cuDNN has no plan: {reason}") from e
        self._graph, self.workspace = graph, int(graph.get_workspace_size())

    def _described(
        self,
        operation: str,
        dtype: str,
        sizes: Mapping[str, Sequence[int]],
        windows: ConvolutionWindows,
    ) -> tuple[Any, dict[str, Any]]:
        """Return cuDNN's graph of the operation, and its tensors by name."""
        module = self._cudnn.module
        types = module.data_type
        element = {"float32": types.FLOAT, "float16": types.HALF}[dtype]
        graph = module.pygraph(
            io_data_type=element,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            handle=self._cudnn.handle(),
        )
        operands, output = TENSORS[operation]
        tensors = {}
        for name in operands.values():
            dim, stride = dims_and_strides(sizes[name])
            tensors[name] = graph.tensor(name=name, dim=dim, stride=stride, data_type=element)
        added = len(sizes["images"]) == 3  # an axis of length 1 beside the only one
        out = getattr(graph, f"conv_{operation}")(
            **{argument: tensors[name] for argument, name in operands.items()},
            pre_padding=[*[0] * added, *(before for before, _ in windows.padding)],
            post_padding=[*[0] * added, *(after for _, after in windows.padding)],
            stride=[*[1] * added, *windows.strides],
            dilation=[*[1] * added, *windows.dilation],
            compute_data_type=types.FLOAT,
        )
        dim, stride = dims_and_strides(sizes[output])
        out.set_output(True)
        out.set_data_type(element)
        out.set_dim(dim)
        out.set_stride(stride)
        return graph, tensors | {output: out}

    def run(self, addresses: Mapping[str, int], workspace: int) -> None:
        """Launch on the current stream. addresses: those of the tensors, by name. workspace: that
        of as many bytes."""
        buffers = {self._tensors[name]: address for name, address in addresses.items()}
        self._graph.execute(buffers, workspace, handle=self._cudnn.handle())


def dims_and_strides(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes and the strides, in elements, of a channels-last tensor without gaps, in
    cuDNN's order: channels second. A tensor of one spatial axis gets another of length 1.

    >>> dims_and_strides((8, 28, 20, 3))
    ([8, 3, 28, 20], [1680, 1, 60, 3])
    """
    first, *spatial, last = sizes
    whole = [first, *[1] * (len(spatial) == 1), *spatial, last]
    steps = [math.prod(whole[i + 1 :]) for i in range(len(whole))]
    return [first, last, *whole[1:-1]], [steps[0], steps[-1], *steps[1:-1]]
