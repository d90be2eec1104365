"""DLPack: arrays handed to other libraries without a copy, and taken from them.

Data API standard, `__dlpack__` and `__dlpack_device__`: https://data-apis.org/array-api/latest/
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gdt.array.fetching import joined
from gdt.backend import backend_of
from gdt.backend.cupy import load_cupy
from gdt.errors import ArgumentError, DeviceError, DtypeError, ExportError, error, type_text
from gdt.observe import met_host
from gdt.sharding.dtypes import BFLOAT16

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType of dlpack.h
UNSIGNED, BFLOAT = 1, 4  # DLDataTypeCode of dlpack.h
CODES = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Of capsules by their names: the offset of the code of the elements' type in what they point to, a
DLManagedTensor or a DLManagedTensorVersioned."""

READ_ONLY_SINCE = (1, 0)  # the version of DLPack that can say that memory is not to be written


def device(x: Any) -> tuple[int, int]:
    """DLDeviceType and index of the device that `exported(x)` is on."""
    if x.mesh.device_kind == "cpu":
        return CPU, 0
    _check_one_block(x)
    return CUDA, int(x.mesh.devices[0].split(":")[1])


def exported(
    x: Any,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The whole array as a DLPack capsule, on the device that it lives on.

    On the host the values are copied, since libraries write to what they take over, PyTorch to
    memory that DLPack calls read-only too. They are shared on GPUs, and with copy=False: read-only
    for consumers that know it (DLPack 1.0); others must not write. Raises ExportError (a
    BufferError) where that is not possible: several blocks are no one memory.
    """
    if dl_device is not None and tuple(dl_device) != device(x):
        raise error(ExportError, "__dlpack__", f"the array is on {device(x)}, not on {dl_device}")
    options = {"max_version": max_version, "dl_device": dl_device}
    arguments = {k: v for k, v in options.items() if v is not None}
    if x.mesh.device_kind != "cpu":
        whole = _whole(x)
        with backend_of(x.mesh).on(x.mesh, 0):
            return _capsule(whole.copy() if copy else whole, stream=stream, **arguments)
    if stream is not None:
        raise error(ExportError, "__dlpack__", f"stream is {stream!r}, and the host has no streams")
    value = x.numpy()
    says_read_only = max_version is not None and tuple(max_version) >= READ_ONLY_SINCE
    if copy is False:
        return _capsule(_shared(x, value, writable=not says_read_only), **arguments)
    return _capsule(value.copy(), **arguments)


def _shared(x: Any, value: np.ndarray, *, writable: bool) -> np.ndarray:
    """`value`, the read-only values of `x`, as a view of a block of `x`.

    writable: for a consumer that knows no read-only memory, and must not write all the same.
    Raises ExportError where `value` is a copy, or memory that was read-only from the beginning.
    """
    problem = "" if x._shares_memory(value) else "the values cannot be had without a copy"
    if writable and not problem:
        value = value.view()
        try:
            value.flags.writeable = True
        except ValueError:
            problem = "the memory is read-only, which DLPack before 1.0 cannot say"
    if problem:
        remedy = "Let it be copied: copy=None."
        raise error(ExportError, "__dlpack__", problem, operands={"x": x.type}, remedy=remedy)
    return value


def _capsule(value: Any, **options: Any) -> Any:
    """The capsule of an array of NumPy or CuPy. Neither exports bfloat16, so its elements are
    exported as integers, and then called what they are."""
    if value.dtype != BFLOAT16:
        return value.__dlpack__(**options)
    return _relabelled(value.view(np.uint16).__dlpack__(**options), UNSIGNED, BFLOAT)


def _relabelled(capsule: Any, old: int, new: int) -> Any:
    """The same capsule, with another code of its elements' type if it has the old one."""
    of_name, of_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    of_name.restype, of_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    of_pointer.restype = ctypes.c_void_p
    of_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = of_name(capsule)
    code = ctypes.c_uint8.from_address(of_pointer(capsule, name) + CODES[name])
    if code.value == old:
        code.value = new
    return capsule


class _Integers:
    """The bits of an array of bfloat16 of another library, as unsigned integers of 16 bits."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __dlpack_device__(self) -> tuple[int, int]:
        where: tuple[int, int] = self.value.__dlpack_device__()
        return where

    def __dlpack__(self, **options: Any) -> Any:
        return _relabelled(self.value.__dlpack__(**options), BFLOAT, UNSIGNED)


def _check_one_block(x: Any) -> None:
    if x.mesh.divided:
        raise error(
            ExportError,
            "__dlpack__",
            f"the array lies on {len(x.mesh.all_blocks)} devices, and DLPack knows one",
            operands={"x": x.type},
            remedy="Export x.shards[i].data, or move it to a mesh on one device.",
        )


def _whole(x: Any) -> Any:
    """The global array on its only GPU."""
    _check_one_block(x)
    met_host("read values on the host")
    x = x.resolve()
    with backend_of(x.mesh).on(x.mesh, 0):
        return joined(x.type, x.blocks[0])


def imported(value: Any, op: str = "from_dlpack") -> Any:
    """An array of another library as one of NumPy, or of CuPy if it is on a GPU; not copied.

    op: the function that takes it, for errors."""
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        kind = type(value).__name__
        raise error(ArgumentError, f"a {kind} has no __dlpack__", remedy="Use gdt.asarray.")
    kind, index = value.__dlpack_device__()
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        problem = f"the array is on a device of DLPack's type {int(kind)}"
        raise error(DeviceError, op, problem, remedy="It takes CPU and CUDA memory.")
    is_bfloat16 = "bfloat16" in str(getattr(value, "dtype", ""))
    source = _Integers(value) if is_bfloat16 else value
    try:
        if kind in (CUDA, CUDA_MANAGED):
            cupy = load_cupy()
            with cupy.cuda.Device(index):
                array = cupy.from_dlpack(source)
        else:
            array = np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as cause:
        problem = f"{type_text(value)} cannot be taken over: {cause}"
        raise error(DtypeError, op, problem) from cause
    return array.view(BFLOAT16) if is_bfloat16 else array
