"""DistributedArray: a global array, stored as one block per physical device."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from gdt.arguments import checked, shown_value
from gdt.array import dlpack
from gdt.array.fetching import Shard, gather_to_host, shards_of
from gdt.array.indexed_updates import FlatIterator, IndexedUpdates
from gdt.array.moving import move_to_layouts
from gdt.array.numpy_protocols import call_function, call_ufunc
from gdt.array.operators import ArrayMethods
from gdt.array.printing import repr_of, str_of
from gdt.array.python_protocols import PythonProtocols
from gdt.array.registry import FUNCTIONS
from gdt.array.views import OutdatedBlocks, base_of, rebind, renew
from gdt.backend import backend_of
from gdt.comm.agreement import HISTORIES, Origin, origin_of
from gdt.comm.notes import note_fetch
from gdt.comm.transport import transport_of
from gdt.errors import (
    ArgumentError,
    CopyError,
    ImmutableError,
    error,
)
from gdt.errors.foreign_names import ARRAYS, Absent
from gdt.observe import OBSERVERS, met_host
from gdt.settings import on_implicit_fetch
from gdt.sharding.array_type import ArrayType
from gdt.sharding.displayed import Displayed
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, checked_mesh

__all__ = ["DistributedArray"]


Block = Any

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


class DistributedArray(ArrayMethods, PythonProtocols, Displayed):
    """A global array whose layout says how it is split over a mesh.

    Made by `gdt.asarray`, `gdt.zeros`, ... Arithmetic, reductions and indexing are those of NumPy,
    on the global array. As in NumPy, `x[i] = value` and `x += y` write to the array, and slices,
    transposes and reshapes are views: they show what is written to `x`, and write to it.

    >>> mesh = gdt.create_mesh([("batch", 4)])
    >>> x = gdt.asarray([[1.0, 2.0], [3.0, 4.0]], layout=gdt.Layout(["batch", None], mesh))
    >>> x + 1
    DistributedArray([[2., 3.],
                      [4., 5.]], float64[2, 2]  ['batch', -])
    """

    __slots__ = (
        "__weakref__", "_origin", "_partial", "_passed", "_resolved", "_shared", "blocks", "type",
    )  # fmt: skip
    __array_priority__ = 1000
    _origin: Origin  # by which processes tell arrays apart
    _partial: weakref.ref[DistributedArray]  # the array of which this is the resolved value

    def __init__(self, type: ArrayType, blocks: Sequence[Block]) -> None:
        self.type = type
        self.blocks = blocks
        self._resolved: DistributedArray | None = None
        self._shared: Any = None  # see `gdt.array.views`
        # Other attributes are set where they are needed: this runs for every array.
        if HISTORIES:
            HISTORIES[0].place(self)

    def _alias(self) -> DistributedArray:
        """Another array object of the same value, no view."""
        if type(self.blocks) is OutdatedBlocks:
            renew(self)
        alias = object.__new__(DistributedArray)  # processes need not make the same aliases
        alias.type, alias.blocks, alias._resolved = self.type, self.blocks, None
        alias._shared = None
        if HISTORIES:
            alias._origin = origin_of(self)
        return alias

    def __reduce__(self) -> tuple[object, ...]:
        """By type and blocks, as copies and pickles of arrays and of views have values of their
        own."""
        return DistributedArray, (self.type, tuple(self.blocks))

    # ---- facts

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        """Data type of the elements."""
        return self.type.dtype

    @property
    def layout(self) -> Layout:
        """The layout: how the array is split over its mesh."""
        return self.type.layout

    @property
    def mesh(self) -> Mesh:
        """The mesh that the array lives on."""
        return self.type.layout.mesh

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """Number of elements of the global array."""
        return math.prod(self.type.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the global array."""
        return self.type.nbytes

    @property
    def device_nbytes(self) -> dict[str, int]:
        """Bytes that each device of this process holds, without padding."""
        nbytes: dict[str, int] = {}
        for coordinate in self.mesh.local_coordinates():
            device = self.mesh.devices[int(np.ravel_multi_index(coordinate, self.mesh.sizes))]
            slices = self.type.shard_slices(coordinate)
            count = math.prod(s.stop - s.start for s in slices)
            nbytes[device] = nbytes.get(device, 0) + count * self.itemsize
        return nbytes

    @property
    def _is_passed(self) -> bool:
        """Whether an op has passed the array's partial reduction on, so that its result holds
        another."""
        return hasattr(self, "_passed")

    @_is_passed.setter
    def _is_passed(self, value: bool) -> None:
        if value:
            self._passed = True
        elif hasattr(self, "_passed"):
            del self._passed

    @property
    def base(self) -> DistributedArray | None:
        """The array whose elements this one shows, if it is a view; else None.

        >>> x = gdt.zeros((2, 3))
        >>> x[0].base is x, (x + 1).base
        (True, None)
        """
        base: DistributedArray | None = base_of(self)
        return base

    # ---- values

    @checked
    def resolve(self) -> DistributedArray:
        """This array with no reduction partial; itself if there is none.

        On GPUs it is reduced beside computation, which waits for it where the result is read.

        >>> x = gdt.ones(4, layout=gdt.Layout(["x"], gdt.create_mesh([("x", 2)])))
        >>> total = gdt.sum(x)
        >>> str(total.layout), str(total.resolve().layout)
        ("[] + sum over 'x'", '[]')
        """
        if not any(self.type.layout.reductions):
            return self
        value = self._resolved
        if value is None:
            observers = OBSERVERS.get()
            for observer in observers:
                observer.on_enter("resolve")
            (value,) = move_to_layouts([self], [self.layout.resolved], overlapped=True)
            for observer in observers:
                observer.on_leave("resolve", (self,), value)
        elif value.layout is not self.layout.resolved:
            return value.relayout(self.layout.resolved)
        value._partial = weakref.ref(self)  # for a user who writes to it
        return value

    @checked
    def numpy(self) -> np.ndarray:
        """The global array on the host; read-only, and a view where the memory allows it.

        Where several processes own the mesh, all of them must call it: parts are gathered.

        >>> gdt.ones(2).numpy()
        array([1., 1.])
        """
        met_host("read values on the host")
        value = self.resolve()
        note_fetch("numpy", self)
        return gather_to_host(value.type, value.blocks)

    @checked
    def to_numpy(self) -> np.ndarray:
        """`numpy()`, as matplotlib asks for it: it would draw the rows of a matrix in `boxplot` and
        `hist`, as those of a list, in place of its columns.

        >>> gdt.ones(2).to_numpy()
        array([1., 1.])
        """
        return self.numpy()

    @property
    def shards(self) -> list[Shard]:
        """The shards on the devices of this process, row-major by coordinate, as read-only views.

        The data of a shard on a GPU is a CuPy array, which no flag protects from writing. A partial
        reduction is not resolved: each shard holds its device's part of the sum.
        """
        met_host("read values on the host")
        return shards_of(self.type, self.blocks)

    @checked
    def block_until_ready(self) -> DistributedArray:
        """Wait until the values are computed; returns the array.

        >>> x = (gdt.ones(2) + 1).block_until_ready()
        """
        transport_of(self.mesh).wait()
        backend_of(self.mesh).synchronize()
        return self

    # ---- writing

    @property
    def flat(self) -> FlatIterator[DistributedArray]:
        """The elements in row-major order, read and written: `x.flat[i]`."""
        return FlatIterator(self)

    @flat.setter
    def flat(self, values: Any) -> None:
        FlatIterator(self)[...] = values

    @property
    def at(self) -> IndexedUpdates[DistributedArray]:
        """`x.at[index].set(value)` and its like, which return changed copies; see
        `gdt.update_at`."""
        return IndexedUpdates(self)

    @checked
    def fill(self, value: Any) -> None:
        """Set every element to `value`, a number.

        >>> x = gdt.zeros(2)
        >>> x.fill(3.0)
        >>> x.tolist()
        [3.0, 3.0]
        """
        self[...] = value

    @checked
    def sort(self, axis: int = -1, **options: Any) -> None:
        """Sort the array along `axis`; see `gdt.sort`, which returns another one.

        >>> x = gdt.asarray([3, 1, 2])
        >>> x.sort()
        >>> x.tolist()
        [1, 2, 3]
        """
        rebind(self, self._sorted(axis=axis, **options).relayout(self.layout.resolved))

    @checked
    def partition(self, kth: Any, axis: int = -1) -> None:
        """Partition the array along `axis`; see `gdt.partition`, which returns another one.

        >>> x = gdt.asarray([3, 1, 2])
        >>> x.partition(0)
        >>> int(x[0])
        1
        """
        rebind(self, self._partitioned(kth, axis=axis).relayout(self.layout.resolved))

    @checked
    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        """See `gdt.put`.

        >>> x = gdt.zeros(3)
        >>> x.put([0, 2], [1.0, 2.0])
        >>> x.tolist()
        [1.0, 0.0, 2.0]
        """
        FUNCTIONS["put"](self, indices, values, mode=mode)

    # ---- NumPy's protocols

    @checked
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        on_implicit_fetch(self.type)
        for observer in OBSERVERS.get():
            observer.on_implicit_fetch(self)
        value = self.numpy()
        converts = dtype is not None and value.dtype != dtype
        if copy is False and (converts or not self._shares_memory(value)):
            raise error(
                CopyError,
                "__array__",
                "the values cannot be had without a copy",
                operands={"x": self.type},
                remedy="Let them be copied: copy=None.",
            )
        if converts:
            return value.astype(dtype)
        return value.copy() if copy or copy is None else value

    def _shares_memory(self, value: np.ndarray) -> bool:
        """Whether `value` is a view of a block of this array."""
        blocks = self.resolve().blocks
        return value.size == 0 or any(
            isinstance(block, np.ndarray) and np.may_share_memory(value, block) for block in blocks
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not all(issubclass(t, DistributedArray | np.ndarray) for t in types):
            return NotImplemented
        return call_function(function, args, kwargs)

    # ---- DLPack and the array API standard

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The array for another library; see `gdt.from_dlpack` for the other way."""
        return dlpack.exported(
            self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and index of the device that the array is on."""
        return dlpack.device(self)

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        """The values of a vector for libraries of Arrow's columns, made by pyarrow; not copied
        where they lie in one block."""
        import pyarrow  # noqa: PLC0415  # optional

        return pyarrow.array(self.numpy()).__arrow_c_array__(requested_schema)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """The module `gdt`, whose functions follow the array API standard.

        Raises ArgumentError (a ValueError) for a version of the standard that gdt does not know.
        """
        if api_version is not None and api_version not in API_VERSIONS:
            problem = f"unknown version {api_version!r} of the array API standard"
            remedy = f"gdt knows {', '.join(API_VERSIONS)}."
            raise error(ArgumentError, "__array_namespace__", problem, remedy=remedy)
        return sys.modules["gdt"]

    @property
    def device(self) -> Mesh:
        """The mesh that the array lives on: what the array API standard calls its device."""
        return self.type.layout.mesh

    @checked
    def to_device(self, device: Mesh, /, *, stream: None = None) -> DistributedArray:
        """The array on the mesh `device`: itself if it lives there, else replicated.

        stream: None; gdt orders its work by itself. Raises MeshError for a device that is no mesh.

        >>> mesh = gdt.create_mesh([("x", 2)])
        >>> gdt.ones(2).to_device(mesh).mesh
        Mesh(x=2)
        """
        if stream is not None:
            raise error(ArgumentError, "to_device", f"stream is {stream!r}, and gdt has its own")
        if checked_mesh(device, "to_device") is self.mesh:
            return self
        return self.relayout(Layout.replicated(device, self.ndim))

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ARRAYS]

    def __repr__(self) -> str:
        return repr_of(self)

    def __str__(self) -> str:
        """The number alone of an array of rank 0, as NumPy's; else as `repr`, with the layout."""
        return repr(self) if self.ndim else str_of(self)


def _unsettable(name: str, instead: str) -> Callable[[DistributedArray, object], None]:
    """A setter that refuses what users of NumPy may try to set. (`type` and `blocks` have
    none, since it would cost more than the rest of making an array.)"""

    def refuse(self: DistributedArray, value: object) -> None:
        raise error(
            ImmutableError,
            "DistributedArray",
            f"{name} cannot be set to {shown_value(value)}",
            operands={"x": self.type},
            remedy=f"Write x = {instead}.",
        )

    return refuse


for _name, _instead in {
    "shape": "x.reshape(shape)",
    "dtype": "x.astype(dtype)",
    "layout": "gdt.relayout(x, layout)",
    "mesh": "gdt.copy_to_mesh(x, layout), with a layout of that mesh",
}.items():
    _fact: property = getattr(DistributedArray, _name)
    setattr(DistributedArray, _name, _fact.setter(_unsettable(_name, _instead)))


for _name in ARRAYS:
    setattr(DistributedArray, _name, Absent(_name, ARRAYS))
