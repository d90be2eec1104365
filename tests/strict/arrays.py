"""An array that behaves as CuPy's do towards the host."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import cupy
import numpy as np

from . import contract
from .capture import memory_of
from .cuda import Machine
from .order import Memory

SCALARS = (bool, int, float, complex, np.generic)


class StrictArray:
    """A NumPy array that nobody else sees, on one device of a simulated machine."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray, machine: Machine, base: StrictArray | None = None):
        if host.dtype.char not in contract.DTYPES:
            raise TypeError(f"CuPy has no dtype {host.dtype}")
        self._host, self._machine, self.base = host, machine, base
        self.device_id = machine.current if base is None else base.device_id
        machine.allocations += base is None and machine.capture is None
        self.memory = base.memory if base is not None else self._allocated()

    def _allocated(self) -> Memory:
        machine = self._machine
        address, nbytes = self._host.ctypes.data, self._host.nbytes
        memory = machine.order.allocated(address, nbytes, machine.stream(machine.current).ptr)
        if machine.capture is not None:
            memory.is_of_graph = True
            pool = machine.allocators[-1].__self__ if machine.allocators else None
            memory.is_of_pool = pool is not None and pool.allocator is not None
            if memory.is_of_pool:
                stream = machine.stream(machine.current).identity
                pool.give(self._host, memory, stream)
                weakref.finalize(self, pool.take_back, memory, stream)
            machine.writes(memory)
        return memory

    # ---- what leaves the device

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed: use .get()")

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} is given an array of the device")

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray:
        machine = self._machine
        machine.wait("get")
        unwrapped(self, machine)
        machine.order.waited([machine.stream(machine.current).ptr])
        return self._host.copy(order)

    def item(self) -> Any:
        self._machine.wait("item")
        return self._host.item()

    def tolist(self) -> Any:
        self._machine.wait("tolist")
        return self._host.tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    # ---- facts

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: self._wrapped(self._host.T))
    real = property(lambda self: self._wrapped(self._host.real))
    imag = property(lambda self: self._wrapped(self._host.imag))

    @property
    def flags(self) -> Any:
        flags = self._host.flags  # CuPy's have no `writeable`
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata
        )

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.device_id)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self._host.ctypes.data, device_id=self.device_id)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "version": 3, "stream": 1}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device_id

    def __dlpack__(self, **options: Any) -> Any:
        contract.check_call(cupy.ndarray, "__dlpack__", (self,), options)
        return self._host.__dlpack__()

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[StrictArray]:
        return (self[i] for i in range(len(self._host)))

    def __repr__(self) -> str:
        return f"StrictArray({self._host!r}, device={self.device_id})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __reduce__(self) -> Any:
        raise TypeError("an array of the device is pickled")

    # ---- indexing, methods, operators

    def __getitem__(self, index: Any) -> StrictArray:
        host, at = self._host, _index(self, index)
        parts = at if isinstance(at, tuple) else (at,)
        if len(parts) == host.ndim and all(isinstance(p, int | np.integer) for p in parts):
            return self._wrapped(host[(*parts, ...)])  # of rank 0, and a view, as CuPy's is
        return self._wrapped(self._machine.launch(lambda: host[at], [host, at]))

    def __setitem__(self, index: Any, value: Any) -> None:
        written(self, self._machine)
        host = self._host
        at, given = _index(self, index), unwrapped(value, self._machine)
        self._machine.launch(lambda: host.__setitem__(at, given), [host, given], [host])

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        contract.check_call(cupy.ndarray, "set", (self, arr, stream), {})
        if not isinstance(arr, np.ndarray) or arr.shape != self.shape or arr.dtype != self.dtype:
            raise ValueError("Shape or dtype mismatch")
        self._machine.send()
        assert not self.memory.is_of_pool, "launches may write it, before they read it"
        if stream is None:
            written(self, self._machine)
        else:
            self.memory.writes(stream.ptr)
        self._host[...] = arr

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not hasattr(cupy.ndarray, name):
            raise AttributeError(f"CuPy {cupy.__version__}: an array has no {name!r}")
        if name.startswith("_"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            contract.check_call(cupy.ndarray, name, (self, *args), kwargs)
            host, machine = unwrapped(self, self._machine), self._machine
            contract.check_capture(name, host, machine)
            given, named = unwrapped(args, machine), unwrapped(kwargs, machine)
            compute = lambda: getattr(host, name)(*given, **named)
            written = [host] if name in ("fill", "sort", "partition") else []
            with np.errstate(all="ignore"):
                return self._wrapped(machine.launch(compute, [host, given, named], written))

        return method

    def _wrapped(self, host: Any) -> Any:
        return wrapped(host, self._machine, [self])

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or any(isinstance(x, np.ndarray) for x in inputs):
            raise TypeError(f"numpy.{function.__name__}.{method} is given an array of the device")
        return ufunc(function.__name__, self._machine, inputs, kwargs)


def _operator(name: str, reflected: bool = False) -> Callable[[StrictArray, Any], Any]:
    def method(self: StrictArray, other: Any) -> Any:
        if getattr(other, "__array_priority__", 0) > self.__array_priority__:
            return NotImplemented
        operands = (other, self) if reflected else (self, other)
        return ufunc(name, self._machine, operands, {})

    return method


def _in_place(name: str) -> Callable[[StrictArray, Any], StrictArray]:
    def method(self: StrictArray, other: Any) -> StrictArray:
        ufunc(name, self._machine, (self, other), {"out": self})
        return self

    return method


def _unary(name: str) -> Callable[[StrictArray], Any]:
    return lambda self: ufunc(name, self._machine, (self,), {})


ARITHMETIC = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "mod": "remainder",
    "floordiv": "floor_divide", "pow": "power", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift", "matmul": "matmul",
}  # fmt: skip
COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip
for _name, _function in ARITHMETIC.items():
    setattr(StrictArray, f"__{_name}__", _operator(_function))
    setattr(StrictArray, f"__r{_name}__", _operator(_function, reflected=True))
    setattr(StrictArray, f"__i{_name}__", _in_place(_function))
for _name, _function in COMPARISONS.items():
    setattr(StrictArray, f"__{_name}__", _operator(_function))
for _name, _function in {"neg": "negative", "abs": "abs", "invert": "invert"}.items():
    setattr(StrictArray, f"__{_name}__", _unary(_function))


# ---------------------------------------------------------------- to the host's arrays, and back


def unwrapped(value: Any, machine: Machine) -> Any:
    """The host's arrays in the place of strict ones; TypeError for any that are there already."""
    if isinstance(value, StrictArray):
        if value.device_id != machine.current:
            where = f"device {value.device_id}, and device {machine.current} is current"
            raise ValueError(f"an array of {where}")
        machine.reads(value.memory)
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: a NumPy array among those of the device")
    if isinstance(value, tuple | list):
        return type(value)([unwrapped(v, machine) for v in value])
    if isinstance(value, dict):
        return {k: unwrapped(v, machine) for k, v in value.items()}
    return value


def written(value: StrictArray, machine: Machine) -> None:
    """Note that the current stream writes into an array."""
    unwrapped(value, machine)
    machine.writes(value.memory)


def wrapped(value: Any, machine: Machine, operands: Sequence[StrictArray] = ()) -> Any:
    """Strict arrays in the place of what NumPy returned, scalars included."""
    if isinstance(value, tuple | list):
        return type(value)([wrapped(v, machine, operands) for v in value])
    if not isinstance(value, np.ndarray | np.generic | bool):
        return value
    host = np.asarray(value)
    owner = next((x for x in operands if memory_of(x._host) is memory_of(host)), None)
    base = None if owner is None else owner if owner.base is None else owner.base
    return StrictArray(host, machine, base)


def strict_operands(values: Any) -> Iterator[StrictArray]:
    """The strict arrays among arguments."""
    if isinstance(values, StrictArray):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from strict_operands(value)


def strict_hosts(values: Any) -> list[np.ndarray]:
    """The host's arrays of the strict ones among arguments."""
    return [x._host for x in strict_operands(values)]


def _index(array: StrictArray, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if isinstance(part, list | np.ndarray):
            raise TypeError("an index array of the host: CuPy would copy it to the device")
        if isinstance(part, StrictArray) and part.dtype == bool:
            array._machine.wait("boolean index")
    if any(isinstance(part, StrictArray) for part in parts):  # else it is a view, on any device
        unwrapped(array, array._machine)
    return unwrapped(index, array._machine)


def ufunc(name: str, machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A ufunc of CuPy: its arguments, and its result's dtype, are those that CuPy has."""
    if name == "matmul":  # CuPy's is a function with parameters of its own
        contract.check_call(cupy, name, args, kwargs)
        promised = None
    else:
        wrong = kwargs.keys() - {"out", "dtype", "casting"}
        if wrong:
            raise TypeError(f"Wrong arguments {sorted(wrong)}: CuPy's {name} has none of them")
        promised = _promised(name, args, kwargs, machine)
    host, out = unwrapped(args, machine), kwargs.get("out")
    given = {**kwargs, "out": unwrapped(out, machine)} if out is not None else kwargs
    for array in strict_operands((out,)):
        written(array, machine)
    contract.check_capture(name, host[0], machine)
    function = machine.functions.get(name) or getattr(np, name)
    compute = lambda: function(*host, **given)
    with np.errstate(all="ignore"):
        result = machine.launch(compute, [host, given], strict_hosts(out))
    if out is not None:
        return out
    first = result[0] if isinstance(result, tuple) else result
    if promised is not None and first.dtype.char != promised:
        problem = f"CuPy gives {contract.dtype_of(promised)}, NumPy {first.dtype}"
        raise TypeError(f"{name} of {[str(getattr(x, 'dtype', x)) for x in args]}: {problem}")
    return wrapped(result, machine, list(strict_operands(args)))


def _promised(name: str, args: Sequence[Any], kwargs: dict[str, Any], machine: Machine) -> str:
    count = getattr(cupy, name).nin
    for x in args:
        if not isinstance(x, (StrictArray, *SCALARS)):
            raise TypeError(f"Unsupported type {type(x)} for {name}")
    dtype = kwargs.get("dtype")
    operands = [unwrapped(x, machine) for x in args[:count]]
    _, results = contract.loop(name, operands, None if dtype is None else np.dtype(dtype))
    return "".join({contract.dtype_of(c).char for c in results[:1]})
