"""The module `cupy` on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np

from . import contract
from .arrays import StrictArray, strict_hosts, strict_operands, ufunc, unwrapped, wrapped
from .capture import refused
from .cuda import Cuda, Machine, Transfer
from .order import Order


class StrictCupy:
    """What `import cupy` gives on a machine with `device_count` GPUs; see the package.

    functions: of the host's arrays, in the place of NumPy's ufuncs. transfers: every wait for a
    device, in order. calls: what streams were asked. order: the uses of memory on streams, with
    those that nothing orders.
    """

    def __init__(
        self, device_count: int = 1, functions: Mapping[str, Callable[..., Any]] = {}
    ) -> None:
        self.transfers: list[Transfer] = []
        self.calls: list[tuple[Any, ...]] = []
        self.order = Order()
        logs = self.transfers, self.calls, self.order
        self.machine = Machine(device_count, *logs, {}, set(), functions)
        self.cuda, self.ndarray = Cuda(self.machine), self._ndarray()
        self.used: set[str] = set()
        self.__version__ = cupy.__version__

    @property
    def lib(self) -> Any:
        """`cupy.lib`, of which gdt uses views by strides."""
        return SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=self._as_strided))

    def _as_strided(self, x: StrictArray, shape: Any, strides: Any) -> StrictArray:
        contract.check_call(cupy.lib.stride_tricks, "as_strided", (x, shape, strides), {})
        view = np.lib.stride_tricks.as_strided(unwrapped(x, self.machine), shape, strides)
        out: StrictArray = wrapped(view, self.machine, [x])
        return out

    def get_default_memory_pool(self) -> Any:
        return self.cuda.pool

    def get_default_pinned_memory_pool(self) -> Any:
        return self.cuda.pinned_pool

    def _ndarray(self) -> type:
        """`cupy.ndarray`: the class of all arrays, which makes them of new memory, or of memory of
        the host that devices write."""
        namespace = self

        class Meta(type):
            def __instancecheck__(cls, x: object) -> bool:
                return isinstance(x, StrictArray)

            def __call__(cls, shape: Any, dtype: Any, memptr: Any = None) -> Any:
                if memptr is None:
                    return namespace.empty(shape, dtype)
                count = int(np.prod(shape))
                host = np.frombuffer(memptr.mem.owner, dtype, count, memptr.offset)
                return StrictArray(host.reshape(shape), namespace.machine)

        return Meta("ndarray", (), {})

    def from_dlpack(self, array: Any) -> StrictArray:
        contract.check_call(cupy, "from_dlpack", (array,), {})
        if array.__dlpack_device__() != (2, self.machine.current):
            raise BufferError(f"{array.__dlpack_device__()} is not this device")
        return StrictArray(np.from_dlpack(_OnHost(array)), self.machine)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        real = contract.attribute(name)
        self.used.add(name)
        if isinstance(real, cupy.ufunc) or name == "matmul":
            return StrictUfunc(name, self.machine)
        if name in contract.CHAPTERS:
            return StrictChapter(name, self.machine)
        if isinstance(real, type) or not callable(real):
            return real  # a dtype or a constant
        return self._function(name)

    def _function(self, name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            contract.check_call(cupy, name, args, kwargs)
            if name in contract.CONSTRUCTORS:
                return self._constructed(name, *args, **kwargs)
            if name in ("nonzero", "flatnonzero", "unique", "argwhere"):
                self.machine.wait(name)  # the shape of the result depends on values
            host, given = unwrapped(args, self.machine), unwrapped(kwargs, self.machine)
            contract.check_capture(name, host[0] if host else None, self.machine)
            compute = lambda: getattr(np, name)(*host, **given)
            into = strict_hosts(args[:1] if name in ("copyto", "put") else kwargs.get("out"))
            with np.errstate(all="ignore"):
                is_memory = name.startswith("empty")
                out = self.machine.launch(compute, [host, given], into, is_memory)
            return wrapped(out, self.machine, list(strict_operands(args)))

        return function

    def _constructed(self, name: str, value: Any, dtype: Any = None, **kwargs: Any) -> StrictArray:
        kwargs.pop("blocking", None)
        if isinstance(value, StrictArray):
            if value.device_id != self.machine.current:
                value = value._host.copy()  # a copy between devices
            else:
                host = value._host
                out = self.machine.launch(lambda: getattr(np, name)(host, dtype, **kwargs), [host])
                return value if out is host else wrapped(out, self.machine, [value])
        elif isinstance(value, list | tuple) and list(strict_operands(value)):
            value = unwrapped(value, self.machine)
        self.machine.send()
        return wrapped(np.array(value, dtype), self.machine)


class StrictChapter:
    """`cupy.fft` or `cupy.linalg`: functions that call cuFFT or cuSOLVER, which nobody has tried to
    capture."""

    def __init__(self, name: str, machine: Machine) -> None:
        self._name, self._machine = name, machine

    def __getattr__(self, name: str) -> Callable[..., Any]:
        owner, function = getattr(cupy, self._name), getattr(getattr(np, self._name), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            contract.check_call(owner, name, args, kwargs)
            if self._machine.capture is not None:
                raise refused()
            host, given = unwrapped(args, self._machine), unwrapped(kwargs, self._machine)
            with np.errstate(all="ignore"):
                out = self._machine.launch(lambda: function(*host, **given), [host, given])
            out = tuple(out) if isinstance(out, tuple) else out  # NumPy's have names
            return wrapped(out, self._machine, list(strict_operands(args)))

        return call


class _OnHost:
    """What a device shares, as the memory of the host that it is."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class StrictUfunc:
    """A ufunc of CuPy."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self._machine = name, machine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (
            next(strict_operands(args), None) is None
        ):  # CuPy computes with scalars on the device too
            args = (wrapped(np.asarray(args[0]), self._machine), *args[1:])
        return ufunc(self.name, self._machine, args, kwargs)

    def reduce(
        self, array: StrictArray, axis: Any = 0, dtype: Any = None, out: Any = None,
        keepdims: bool = False,
    ) -> Any:  # fmt: skip
        if self.name not in contract.REDUCED:
            raise NotImplementedError(f"`{self.name}.reduce` is not supported yet")
        host = unwrapped(array, self._machine)
        into = unwrapped(out, self._machine)
        compute = lambda: getattr(np, self.name).reduce(host, axis, dtype, into, keepdims)
        with np.errstate(all="ignore"):
            reduced = self._machine.launch(compute, [host], strict_hosts(out))
        return wrapped(reduced, self._machine, [array]) if out is None else out

    def at(self, a: StrictArray, indices: Any, b: Any = None) -> None:
        if self.name not in contract.SCATTERED:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        if self.name == "add" and a.dtype.name not in contract.ADDED:
            raise TypeError(f"cupy.add.at has no {a.dtype}")
        operands = unwrapped((a, indices, b), self._machine)
        at = getattr(np, self.name).at
        self._machine.launch(lambda: at(*operands), operands, operands[:1])

    def __getattr__(self, name: str) -> Any:
        if not hasattr(cupy.ufunc, name):
            raise AttributeError(name)
        raise NotImplementedError(f"`{self.name}.{name}` is not supported yet")
