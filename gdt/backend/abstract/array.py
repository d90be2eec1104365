"""Arrays that have a shape, a dtype, strides and a size in memory, and no elements.

An `AbstractArray` stands for the block of a device that is not there. Bodies of ops run on it as
they are, since NumPy's functions ask their operands first: `__array_ufunc__` and
`__array_function__` answer with arrays of the right shape and dtype. What NumPy computes by shapes
alone (views, broadcasting, indexing) NumPy computes here too, on an array of the same shape and
strides whose elements nobody reads; the `Form` of the array has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gdt.backend.numpy import Order, axes_in_memory, strides_of
from gdt.errors import DeviceError, error, line_of_user

FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""By NumPy's function: what it does with abstract arrays; `functions` fills it."""


class Work(NamedTuple):
    """The work of a device in one call of a function of the namespace.

    flops: floating-point operations. nbytes: what is read and written. product: for a product of
    matrices (stacks, rows, columns, inner); None for any other function.
    """

    name: str
    flops: int
    dtype: np.dtype
    nbytes: int
    product: tuple[int, int, int, int] | None = None


class Listener(Protocol):
    """An object that is told what an abstract device does."""

    def worked(self, work: Work) -> None:
        """A function of the namespace has run."""

    def allocated(self, array: AbstractArray) -> None:
        """`array` has got memory of its own."""

    def freed(self, array: AbstractArray) -> None:
        """Nobody refers to the memory of `array` any more."""

    def joined(self, overlap: object) -> None:
        """Computation waits for what was sent beside it in `overlap`."""


class AbstractDevice:
    """The device that abstract arrays live on: every device of a mesh does the same.

    now: the bytes that arrays take. peak: the most that they have taken.
    """

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.overlap: object = None  # that of what is sent now, if it may run beside computation
        self.listener: Listener | None = None

    def allocate(self, array: AbstractArray) -> None:
        """Count the memory of a new array."""
        self.now += array.nbytes
        self.peak = max(self.peak, self.now)
        if self.listener is not None:
            self.listener.allocated(array)

    def free(self, array: AbstractArray) -> None:
        """Count the memory of an array no more."""
        self.now -= array.nbytes
        if self.listener is not None:
            self.listener.freed(array)

    def work(
        self,
        name: str,
        out: AbstractArray,
        operands: Sequence[Any] = (),
        flops: int = 0,
        product: tuple[int, int, int, int] | None = None,
    ) -> AbstractArray:
        """Tell the listener of a function that has made `out` of operands; return `out`."""
        if self.listener is not None:
            nbytes = out.nbytes + sum([getattr(x, "nbytes", 0) for x in operands])
            self.listener.worked(Work(name, flops, out.dtype, nbytes, product))
        return out


DEVICE = AbstractDevice()


class Form:
    """The shape, dtype and strides of arrays; equal ones are one object.

    array: an array of this form, whose elements must not be read. order: its axes in the order of
    memory, slowest first; None for C order.
    """

    __slots__ = ("array", "dtype", "nbytes", "order", "shape", "size", "strides")
    _known: ClassVar[dict[tuple[Any, ...], Form]] = {}

    @classmethod
    def of(cls, array: np.ndarray) -> Form:
        """Return the form of an array."""
        key = array.shape, array.strides, array.dtype
        return cls._known.get(key) or cls._known.setdefault(key, cls(array))

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.array, self.size, self.nbytes = array, array.size, array.nbytes
        self.order = None if array.flags.c_contiguous else axes_in_memory(array)


@lru_cache(maxsize=1 << 14)
def form_of(shape: tuple[int, ...], dtype: np.dtype, order: Order = None) -> Form:
    """Return the form without gaps of this shape and dtype, with its axes in this order."""
    axes = tuple(range(len(shape))) if order is None else order
    strides = strides_of(shape, dtype.itemsize, axes)
    return Form.of(as_strided(np.empty(1, dtype), shape, strides))


@lru_cache(maxsize=1 << 14)
def reshaped_form(form: Form, shape: Any) -> Form | None:
    """Return the form of a reshaped view; None where NumPy copies."""
    try:
        return Form.of(np.reshape(form.array, shape, copy=False))
    except ValueError:
        return None


@lru_cache(maxsize=1 << 14)
def transposed_form(form: Form, axes: Any) -> Form:
    """Return the form of a transposed view."""
    return Form.of(form.array.transpose(*axes))


def refused(what: str) -> NoReturn:
    """Raise the error of a program that asks an abstract array for values."""
    raise error(
        DeviceError,
        f"{what} needs values, and arrays on abstract devices have none",
        operands={"asked for in": line_of_user()},
        remedy="Compute with gdt.where and the like, or run this part on virtual devices: "
        'device_type="CPU".',
    )


def not_modelled(name: str) -> DeviceError:
    return error(
        DeviceError,
        f"{name} of so many elements is not modelled on abstract devices",
        remedy='Run it on virtual devices: device_type="CPU".',
    )


class AbstractArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A block of an abstract device.

    form: its shape, dtype and strides. base: the array that owns the memory; None for one that owns
    its own.
    """

    __slots__ = ("__weakref__", "base", "dtype", "form", "nbytes", "shape")

    def __init__(self, form: Form, base: AbstractArray | None = None) -> None:
        self.form, self.base = form, base
        self.shape, self.dtype, self.nbytes = form.shape, form.dtype, form.nbytes
        if base is None:
            DEVICE.allocate(self)

    def __del__(self) -> None:
        if self.base is None:
            DEVICE.free(self)

    @classmethod
    def new(cls, shape: Sequence[int], dtype: Any, order: Order = None) -> AbstractArray:
        """Return an array with memory of its own."""
        return cls(form_of(tuple(shape), np.dtype(dtype), order))

    def viewed(self, form: Form) -> AbstractArray:
        """Return a view: an array of another form in the same memory."""
        return AbstractArray(form, self if self.base is None else self.base)

    def like(self, dtype: Any = None) -> AbstractArray:
        """Return another array of this shape and order in memory."""
        return AbstractArray.new(self.shape, dtype or self.dtype, self.form.order)

    # ---- facts

    ndim = property(lambda self: len(self.shape), doc="See NumPy.")
    size = property(lambda self: self.form.size, doc="See NumPy.")
    itemsize = property(lambda self: self.dtype.itemsize, doc="See NumPy.")
    strides = property(lambda self: self.form.strides, doc="See NumPy.")
    T = property(lambda self: self.transpose(), doc="See NumPy.")
    mT = property(lambda self: self.swapaxes(-1, -2), doc="See NumPy.")
    real = property(lambda self: self.viewed(Form.of(self.form.array.real)), doc="See NumPy.")
    flat = property(lambda self: self.reshape(-1), doc="See NumPy.")

    @property
    def imag(self) -> AbstractArray:
        """As NumPy's: a view of complex numbers, and zeros of real ones."""
        is_view = self.dtype.kind == "c"
        return self.viewed(Form.of(self.form.array.imag)) if is_view else self.like()

    @property
    def flags(self) -> Flags:
        """Whether the array is contiguous, and owns its memory."""
        return Flags(self.form.array.flags, self.base is None)

    def __len__(self) -> int:
        return len(self.form.array)

    def __repr__(self) -> str:
        return f"AbstractArray({self.dtype}{list(self.shape)})"

    # ---- what is made of an array

    def reshape(self, *shape: Any, **_: Any) -> AbstractArray:
        """Return a view where NumPy does, else a copy."""
        wanted = shape[0] if len(shape) == 1 else shape
        form = reshaped_form(self.form, tuple(wanted) if isinstance(wanted, list) else wanted)
        if form is not None:
            return self.viewed(form)
        sizes = np.broadcast_to(np.False_, self.shape).reshape(wanted).shape
        return DEVICE.work("copy", AbstractArray.new(sizes, self.dtype), [self])

    def transpose(self, *axes: Any) -> AbstractArray:
        """See NumPy."""
        return self.viewed(transposed_form(self.form, axes))

    def ravel(self, order: str = "C") -> AbstractArray:
        """See NumPy."""
        return self.reshape(-1)

    def view(self, dtype: Any = None) -> AbstractArray:
        """See NumPy."""
        form = self.form if dtype is None else Form.of(self.form.array.view(dtype))
        return self.viewed(form)

    def astype(self, dtype: Any, order: str = "K", copy: bool = True, **_: Any) -> AbstractArray:
        """See NumPy."""
        if not copy and self.dtype == dtype:
            return self
        return DEVICE.work("astype", self.like(np.dtype(dtype)), [self])

    def copy(self, order: str = "C") -> AbstractArray:
        """See NumPy."""
        out = self.like() if order == "K" else AbstractArray.new(self.shape, self.dtype)
        return DEVICE.work("copy", out, [self])

    def __getitem__(self, index: Any) -> AbstractArray:
        parts = index if type(index) is tuple else (index,)
        if is_basic(parts):
            return self.viewed(Form.of(self.form.array[with_ellipsis(parts)]))
        arrays = [p for p in parts if isinstance(p, AbstractArray | np.ndarray)]
        out = AbstractArray.new(shape_at(self.shape, parts), self.dtype)
        return DEVICE.work("take", out, [out, *arrays])

    def __setitem__(self, index: Any, value: Any) -> None:
        part = self[index] if is_basic(index if type(index) is tuple else (index,)) else value
        DEVICE.work("put", part if isinstance(part, AbstractArray) else self, [value])

    def fill(self, value: Any) -> None:
        """See NumPy."""
        DEVICE.work("fill", self)

    def sort(self, axis: int = -1, **_: Any) -> None:
        """See NumPy."""
        DEVICE.work("sort", self)

    def partition(self, kth: Any, axis: int = -1, **_: Any) -> None:
        """See NumPy."""
        DEVICE.work("partition", self)

    # ---- NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
        return FUNCTIONS[np.ufunc](ufunc, method, args, **kwargs)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        known = FUNCTIONS.get(function)
        if known is not None:
            return known(*args, **kwargs)
        return FUNCTIONS[np.ndarray](function, args, kwargs)

    # ---- values, of which there are none

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refused("making an array of the host")

    def __bool__(self) -> NoReturn:  # noqa: PLE0304
        refused("deciding by an element")

    def __int__(self) -> NoReturn:
        refused("int(x)")

    def __float__(self) -> NoReturn:
        refused("float(x)")

    def __complex__(self) -> NoReturn:
        refused("complex(x)")

    def __index__(self) -> NoReturn:  # noqa: PLE0305
        refused("indexing by an element")

    def item(self, *_: Any) -> NoReturn:
        """Refuse."""
        refused("x.item()")

    def tolist(self) -> NoReturn:
        """Refuse."""
        refused("x.tolist()")


class Flags:
    """The flags of an abstract array, under NumPy's names."""

    __slots__ = ("c_contiguous", "f_contiguous", "owndata")
    writeable = True

    def __init__(self, flags: Any, owndata: bool) -> None:
        self.c_contiguous, self.f_contiguous = flags.c_contiguous, flags.f_contiguous
        self.owndata = owndata


def with_ellipsis(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index that selects an array, also where it selects one element."""
    for part in parts:
        if part is Ellipsis:
            return parts
    return (*parts, ...)


BASIC = {slice, int, type(None), type(Ellipsis), np.int64}


def is_basic(parts: tuple[Any, ...]) -> bool:
    """Return whether an index has no arrays, so that it selects a view."""
    return BASIC.issuperset(map(type, parts))


def shape_at(shape: tuple[int, ...], parts: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of what an index with arrays takes of an array of a shape."""
    probes = []
    for part in parts:
        if isinstance(part, AbstractArray) and part.dtype == bool:
            refused("indexing by a mask")
        is_abstract = isinstance(part, AbstractArray)
        probes.append(np.broadcast_to(np.intp(0), part.shape) if is_abstract else part)
    if any(part is Ellipsis for part in probes):
        probes.append(slice(None))
    # Of arrays without elements NumPy computes the shape alone.
    found: tuple[int, ...] = np.empty((*shape, 0), bool)[tuple(probes)].shape
    return found[:-1]


METHODS = (
    "all any argmax argmin argsort choose clip compress conj conjugate cumprod cumsum diagonal dot "
    "max mean min nonzero prod put repeat round searchsorted squeeze std sum swapaxes take trace "
    "var"
)


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def method(self: AbstractArray, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__doc__ = f"See `numpy.{name}`."
    return method


for _name in METHODS.split():
    setattr(AbstractArray, _name, _method(_name))
