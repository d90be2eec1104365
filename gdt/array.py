"""DistributedArray: a global array, stored as one block per physical device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gdt import dlpack
from gdt.arguments import checked, shown_value
from gdt.backend import as_array, backend_of
from gdt.backend.cupy import on_gpu
from gdt.comm import local
from gdt.comm.messages import note_made
from gdt.comm.transport import transport_of
from gdt.errors import DtypeError, ImmutableError, IndexRangeError, LayoutError, ShapeError, error
from gdt.layout import ArrayType, Layout
from gdt.mesh import Mesh, get_default_mesh
from gdt.numpy_protocols import call_function, call_ufunc
from gdt.observe import OBSERVERS, from_host, is_recorded, met_host, ran
from gdt.policy import on_implicit_fetch
from gdt.reduction import IDEMPOTENT, identity
from gdt.registry import FUNCTIONS
from gdt.relayout import run_routes
from gdt.routes import route

Block = Any


class Shard(NamedTuple):
    """What one device holds: its name, its mesh coordinate, the part of the global array, the
    data."""

    device: str
    coordinate: tuple[int, ...]
    index: tuple[slice, ...]  # type: ignore[assignment]  # hides tuple.index
    data: Any


def _forward(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    """A method that calls the public function of that name."""

    def method(self: DistributedArray, *args: Any, **static: Any) -> Any:
        if not reflected:
            return FUNCTIONS[name](self, *args, **static)
        (other,) = args
        return FUNCTIONS[name](other, self) if is_array_like(other) else NotImplemented

    method.__name__ = name
    method.__doc__ = f"See `gdt.{name}`."
    return method


def _numpy_method(name: str) -> Callable[..., Any]:
    """A method that NumPy's function of that name calls, with None for what it was not given."""

    def method(self: DistributedArray, *args: Any, **static: Any) -> Any:
        given = {k: v for k, v in static.items() if k not in ("out", "dtype") or v is not None}
        if "out" in given:
            raise error(
                DtypeError,
                name,
                "arrays are immutable, so `out` is None",
                operands={"x": self.type},
                remedy=f"Write out = x.{name}(...).",
            )
        return FUNCTIONS[name](self, *args, **given)

    method.__name__ = name
    method.__doc__ = f"See `gdt.{name}`."
    return method


def _operator(name: str) -> Callable[[DistributedArray, object], Any]:
    def method(self: DistributedArray, other: object) -> Any:
        if type(other) not in COMMON_OPERANDS and not is_array_like(other):
            return NotImplemented
        return FUNCTIONS[name](self, other)

    method.__doc__ = f"See `gdt.{name}`."
    return method


def _in_place(name: str, symbol: str) -> Callable[[DistributedArray, object], Any]:
    def method(self: DistributedArray, other: object) -> Any:
        if not is_array_like(other):
            return NotImplemented
        out = FUNCTIONS[name](self, other)
        if out.shape != self.shape:
            raise error(
                ShapeError,
                symbol,
                f"the result has shape {list(out.shape)}, which does not fit the array on the left",
                operands={"left": self.type, "result": out.type},
            )
        if out.dtype != self.dtype:
            if not np.can_cast(out.dtype, self.dtype, "same_kind"):
                raise error(
                    DtypeError,
                    symbol,
                    f"a result of {out.dtype} cannot be kept as {self.dtype}",
                    operands={"left": self.type, "result": out.type},
                    remedy=f"Write x = x {symbol[:-1]} y to get a new array of {out.dtype}.",
                )
            out = out.astype(self.dtype)
        return out

    method.__doc__ = (
        f"`x {symbol} y` binds `x` to a new array; no array changes under another name."
    )
    return method


def _divmod(*, reflected: bool = False) -> Callable[..., Any]:
    """A method for the floor and the remainder of self / other; of other / self if `reflected`."""

    def method(self: DistributedArray, other: Any) -> Any:
        if not is_array_like(other):
            return NotImplemented
        operands = (other, self) if reflected else (self, other)
        return FUNCTIONS["floor_divide"](*operands), FUNCTIONS["remainder"](*operands)

    return method


class DistributedArray:
    """A global array whose layout says how it is split over a mesh.

    Made by `gdt.asarray`, `gdt.zeros`, ... Arithmetic, reductions and indexing are those of NumPy,
    on the global array. Arrays are immutable: no operation changes an array that another name
    refers to.

    >>> mesh = gdt.create_mesh([("batch", 4)])
    >>> x = gdt.asarray([[1.0, 2.0], [3.0, 4.0]], layout=gdt.Layout(["batch", None], mesh))
    >>> x + 1
    DistributedArray([[2., 3.],
                      [4., 5.]], float64[2, 2]  ['batch', -])
    """

    __slots__ = ("__weakref__", "_resolved", "blocks", "type")
    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, type: ArrayType, blocks: Sequence[Block]) -> None:
        self.type = type
        self.blocks = blocks
        self._resolved: DistributedArray | None = None

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
        """How the array is split over its mesh."""
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
        held: dict[str, int] = {}
        for coordinate in self.mesh.local_coordinates():
            device = self.mesh.devices[int(np.ravel_multi_index(coordinate, self.mesh.sizes))]
            slices = self.type.shard_slices(coordinate)
            count = math.prod(s.stop - s.start for s in slices)
            held[device] = held.get(device, 0) + count * self.itemsize
        return held

    # ---- values

    @checked
    def resolve(self) -> DistributedArray:
        """This array with no reduction pending; itself if there is none."""
        if not any(self.layout.pending):
            return self
        if self._resolved is None:
            observers = OBSERVERS.get()
            for observer in observers:
                observer.on_enter("resolve")
            (blocks,) = run_routes([route(self.type, self.layout.resolved)], [self.blocks])
            kind = self.type.with_layout(self.layout.resolved)
            self._resolved = DistributedArray(kind, tuple(blocks))
            for observer in observers:
                observer.on_leave("resolve", (self,), self._resolved)
        return self._resolved

    @checked
    def numpy(self) -> np.ndarray:
        """The global array on the host; read-only, and a view where the memory allows it.

        Where several processes own the mesh, all of them must call it: parts are gathered.
        """
        met_host("numpy")
        x = self.resolve()
        backend, lead = backend_of(self.mesh), self.mesh.ndim
        if self.mesh.num_processes > 1:
            x = _gathered(x)
        if self.mesh.divided:
            transport_of(self.mesh).wait()
        if not self.mesh.divided or x.layout.is_fully_replicated():
            block = backend.to_host(x.blocks[0])
            for dim, axes in enumerate(x.layout.dims):
                if axes:
                    block = local.gather(block, lead, axes, dim, x.shape[dim])
            out: np.ndarray = block.reshape(x.shape)
        else:
            out = np.empty(x.shape, x.dtype)
            for shard in x.shards:
                out[shard.index] = backend.to_host(shard.data)
        out = out.view()
        out.flags.writeable = False
        return out

    @property
    def shards(self) -> list[Shard]:
        """What every device of this process holds, row-major by coordinate; read-only views.

        Of arrays on GPUs they are CuPy's arrays, which have no flag that forbids writing. A pending
        reduction is shown as it is: each shard is a part of it.
        """
        met_host("shards")
        mesh, backend, found = self.mesh, backend_of(self.mesh), []
        position = {at: i for i, at in enumerate(mesh.blocks)}
        split = {a for axes in self.layout.dims for a in axes}
        for coordinate in mesh.local_coordinates():
            at, inside = mesh.block_of(coordinate)
            block = self.blocks[position[at]]
            index = self.type.shard_slices(coordinate)
            with backend.on(mesh, position[at]):
                data = block[tuple(c if a in split else 0 for a, c in enumerate(inside))]
                data = data[tuple(slice(0, s.stop - s.start) for s in index)]
                if any(p and c for p, c in zip(self.layout.pending, inside, strict=True)):
                    data = _identity_like(backend.xp, data, self.layout, inside)
            if isinstance(data, np.ndarray):
                data = data.view()
                data.flags.writeable = False
            device = mesh.devices[int(np.ravel_multi_index(coordinate, mesh.sizes))]
            found.append(Shard(device, coordinate, index, data))
        return found

    @checked
    def item(self, *index: int) -> Any:
        """One element as a Python scalar; without `index`, the only one."""
        if index:
            return self[index if len(index) > 1 else _unravelled(index[0], self)].item()
        if self.size != 1:
            raise error(
                ShapeError,
                "item",
                f"an array of {self.size} elements is no scalar",
                operands={"x": self.type},
            )
        return self.numpy().reshape(()).item()

    @checked
    def tolist(self) -> Any:
        """The global array as nested lists of Python scalars."""
        return self.numpy().tolist()

    @checked
    def copy(self) -> DistributedArray:
        """The array in memory of its own."""
        copied: DistributedArray = FUNCTIONS["copy"](self)
        return copied

    @checked
    def block_until_ready(self) -> DistributedArray:
        """Wait until the values are computed; returns the array."""
        transport_of(self.mesh).wait()
        backend_of(self.mesh).synchronize()
        return self

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise error(
                DtypeError,
                "index",
                "only an integer of rank 0 is an index",
                operands={"x": self.type},
            )
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise error(
                ShapeError,
                "bool",
                f"the truth of an array of {self.size} elements is ambiguous",
                operands={"x": self.type},
                remedy="Use gdt.any(x) or gdt.all(x).",
            )
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise error(
                DtypeError, "len", "an array of rank 0 has no length", operands={"x": self.type}
            )
        return self.shape[0]

    def __iter__(self) -> Iterator[DistributedArray]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return bool(FUNCTIONS["any"](self == value))

    def __round__(self, decimals: int | None = None) -> Any:
        """`round(x, 2)` is `gdt.round`; `round(x)` of rank 0 an int, as Python's numbers have
        it."""
        if decimals is None and self.ndim == 0:
            return round(self.item())
        return FUNCTIONS["round"](self, decimals or 0)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 and spec else str(self)

    # ---- NumPy's protocols

    @checked
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        on_implicit_fetch(self.type)
        for observer in OBSERVERS.get():
            observer.on_implicit_fetch(self)
        value = self.numpy()
        if dtype is not None and value.dtype != dtype:
            return value.astype(dtype)
        return value.copy() if copy or copy is None else value

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return call_ufunc(FUNCTIONS, ufunc, method, inputs, kwargs)

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not all(issubclass(t, DistributedArray | np.ndarray) for t in types):
            return NotImplemented
        return call_function(FUNCTIONS, function, args, kwargs)

    # ---- DLPack

    def __dlpack__(self, **options: Any) -> Any:
        """The array for another library; see `gdt.from_dlpack` for the other way."""
        return dlpack.exported(self, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and index of the device that the array is on."""
        return dlpack.device(self)

    # ---- moving

    @checked
    def relayout(self, layout: Layout | Sequence[Any]) -> DistributedArray:
        """See `gdt.relayout`."""
        moved: DistributedArray = FUNCTIONS["relayout"](self, layout)
        return moved

    # ---- operators

    __add__, __radd__, __iadd__ = (
        _operator("add"),
        _forward("add", reflected=True),
        _in_place("add", "+="),
    )
    __sub__, __rsub__ = _operator("subtract"), _forward("subtract", reflected=True)
    __isub__ = _in_place("subtract", "-=")
    __mul__, __rmul__ = _operator("multiply"), _forward("multiply", reflected=True)
    __imul__ = _in_place("multiply", "*=")
    __truediv__, __rtruediv__ = _operator("divide"), _forward("divide", reflected=True)
    __itruediv__ = _in_place("divide", "/=")
    __floordiv__, __rfloordiv__ = (
        _operator("floor_divide"),
        _forward("floor_divide", reflected=True),
    )
    __ifloordiv__ = _in_place("floor_divide", "//=")
    __mod__, __rmod__ = _operator("remainder"), _forward("remainder", reflected=True)
    __imod__ = _in_place("remainder", "%=")
    __divmod__, __rdivmod__ = _divmod(), _divmod(reflected=True)
    __pow__, __rpow__ = _operator("power"), _forward("power", reflected=True)
    __ipow__ = _in_place("power", "**=")
    __matmul__, __rmatmul__ = _operator("matmul"), _forward("matmul", reflected=True)
    __imatmul__ = _in_place("matmul", "@=")
    __and__, __rand__ = _operator("bitwise_and"), _forward("bitwise_and", reflected=True)
    __or__, __ror__ = _operator("bitwise_or"), _forward("bitwise_or", reflected=True)
    __xor__, __rxor__ = _operator("bitwise_xor"), _forward("bitwise_xor", reflected=True)
    __lshift__, __rlshift__ = _operator("left_shift"), _forward("left_shift", reflected=True)
    __rshift__, __rrshift__ = _operator("right_shift"), _forward("right_shift", reflected=True)
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")
    __eq__ = _operator("equal")
    __ne__ = _operator("not_equal")
    __neg__, __pos__ = _forward("negative"), _forward("positive")
    __abs__, __invert__ = _forward("abs"), _forward("invert")
    __getitem__ = _forward("getitem")

    def __setitem__(self, index: object, value: object) -> None:
        raise error(
            DtypeError,
            "setitem",
            "arrays are immutable",
            operands={"x": self.type},
            remedy="Make a new array: gdt.where(mask, value, x), or gdt.concat of slices of x.",
        )

    astype, squeeze, conj, take = (_forward(n) for n in ("astype", "squeeze", "conj", "take"))
    conjugate, dot, repeat = _forward("conj"), _forward("dot"), _forward("repeat")
    swapaxes, diagonal, trace = _forward("swapaxes"), _forward("diagonal"), _numpy_method("trace")
    sum, mean, prod, max, min = (_numpy_method(n) for n in ("sum", "mean", "prod", "max", "min"))
    any, all, argmax, argmin = (_numpy_method(n) for n in ("any", "all", "argmax", "argmin"))
    std, var, cumsum, cumprod = (_numpy_method(n) for n in ("std", "var", "cumsum", "cumprod"))
    round, clip = _numpy_method("round"), _numpy_method("clip")

    @checked
    def reshape(self, *shape: Any) -> DistributedArray:
        """See `gdt.reshape`; the sizes may be given one by one."""
        sizes = shape[0] if len(shape) == 1 else shape
        out: DistributedArray = FUNCTIONS["reshape"](self, shape=sizes)
        return out

    @checked
    def transpose(self, *axes: Any) -> DistributedArray:
        """See `gdt.transpose`; the axes may be given one by one."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        out: DistributedArray = FUNCTIONS["transpose"](self, axes=order)
        return out

    @checked
    def flatten(self) -> DistributedArray:
        """The elements as an array of rank 1, row-major."""
        out: DistributedArray = FUNCTIONS["reshape"](self, -1)
        return out

    ravel = flatten

    @property
    def real(self) -> DistributedArray:
        """The real part."""
        out: DistributedArray = FUNCTIONS["real"](self)
        return out

    @property
    def imag(self) -> DistributedArray:
        """The imaginary part."""
        out: DistributedArray = FUNCTIONS["imag"](self)
        return out

    @property
    def T(self) -> DistributedArray:
        """The array with its axes reversed."""
        out: DistributedArray = FUNCTIONS["transpose"](self)
        return out

    @property
    def mT(self) -> DistributedArray:
        """The array with its last two axes swapped."""
        if self.ndim < 2:
            raise error(
                ShapeError, "mT", f"rank {self.ndim} is not a matrix", operands={"x": self.type}
            )
        return self.transpose(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)

    def __repr__(self) -> str:
        return FUNCTIONS["array_repr"](self)  # type: ignore[no-any-return]

    __str__ = __repr__


def _unsettable(name: str, instead: str) -> Callable[[DistributedArray, object], None]:
    """A setter for what NumPy, or a reader of the docs, may try to set. (`type` and `blocks` have
    none: it would cost more than all else that is done to make an array.)"""

    def refuse(self: DistributedArray, value: object) -> None:
        raise error(
            ImmutableError,
            "DistributedArray",
            f"{name} cannot be set to {shown_value(value)}, since arrays are immutable",
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


BROADCAST_SIZE = 1 << 20  # bytes from which a replica comes from another GPU, not from the host
COMMON_OPERANDS = frozenset({DistributedArray, float, int})


def is_array_like(value: object) -> bool:
    """Whether an operator accepts `value` as its other operand."""
    return isinstance(
        value, DistributedArray | np.ndarray | np.generic | int | float | complex | list | tuple
    ) or on_gpu(value)


def _identity_like(xp: Any, data: Any, layout: Layout, inside: tuple[int, ...]) -> Any:
    for reduction, c in zip(layout.pending, inside, strict=True):
        if c and reduction and reduction not in IDEMPOTENT:
            return xp.full_like(data, identity(reduction, data.dtype))
    return data


def _gathered(x: DistributedArray) -> DistributedArray:
    """A resolved array whole in every process; observers are told nothing, since it is fetched."""
    whole = Layout.replicated(x.mesh, x.ndim)
    token = OBSERVERS.set(())
    try:
        (blocks,) = run_routes([route(x.type, whole)], [x.blocks])
    finally:
        OBSERVERS.reset(token)
    return DistributedArray(x.type.with_layout(whole), tuple(blocks))


def _unravelled(index: int, x: DistributedArray) -> tuple[int, ...]:
    if not -x.size <= index < x.size:
        raise error(IndexRangeError, "item", f"index {index} is out of range for {x.size} elements")
    return tuple(int(i) for i in np.unravel_index(index % x.size, x.shape))


def on_blocks(
    name: str, kind: ArrayType, function: Callable[..., Sequence[Block]], *operands: Any
) -> DistributedArray:
    """An array of that type whose blocks `function` makes: of the blocks of each operand that is an
    array, and of each other operand as it is."""
    inputs = [x.blocks if type(x) is DistributedArray else x for x in operands]
    blocks = tuple(function(*inputs))
    ran(name, lambda *xs: (function(*xs),), inputs, [blocks])
    return DistributedArray(kind, blocks)


# ---------------------------------------------------------------- from the host


def checked_layout(layout: object, rank: int, op: str) -> Layout:
    """`layout`, or the replicated one on the default mesh; LayoutError if it does not fit the
    rank."""
    if layout is None:
        return Layout.replicated(get_default_mesh(), rank)
    if not isinstance(layout, Layout):
        raise error(
            LayoutError, op, f"{layout!r} is not a Layout", remedy="Use gdt.Layout([...], mesh)."
        )
    if layout.rank != rank:
        raise error(
            LayoutError,
            op,
            f"a layout of rank {layout.rank} does not fit an array of rank {rank}",
            operands={"layout": layout},
        )
    return layout


def place(value: Any, layout: Layout, *, copy: bool = True, given: str = "") -> DistributedArray:
    """Split a whole array over the mesh of `layout`; every block gets memory of its own if `copy`.

    given: the public function to which the user gave the value, if it is not gdt's own; then
        processes compare it.
    """
    if not is_recorded():
        return _placed_alike(value, layout, copy, given)
    (placed,) = from_host("asarray", lambda: (_placed_alike(value, layout, copy, given),))
    return placed  # type: ignore[no-any-return]


def _placed_alike(value: Any, layout: Layout, copy: bool, given: str) -> DistributedArray:
    placed = _placed(value, layout, copy)
    if given:
        note_made(given, placed.type, value)
    return placed


def _placed(value: Any, layout: Layout, copy: bool) -> DistributedArray:
    backend, mesh = backend_of(layout.mesh), layout.mesh
    whole = as_array(value, mesh)
    lead = (1,) * mesh.ndim
    if mesh.device_kind == "cpu" and not (mesh.divided or any(layout.dims) or any(layout.pending)):
        # All coordinates share the one block of the host.
        block = backend.asarray(whole, copy=copy).reshape(lead + whole.shape)
        return DistributedArray(ArrayType.of(whole.shape, whole.dtype, layout), (block,))
    if mesh.device_kind != "cpu" and isinstance(whole, np.ndarray):
        # Cut on the host, so that each device is sent no more than it keeps.
        parts: Sequence[Block] = _placed(whole, _on_host(layout), copy=False).blocks
    else:
        kind = ArrayType.of(whole.shape, whole.dtype, Layout.of(mesh, ((),) * whole.ndim))
        wholes = []
        for i in range(len(mesh.blocks)):
            with backend.on(mesh, i):
                wholes.append(backend.asarray(whole).reshape(lead + whole.shape))
        parts = wholes
        if layout is not kind.layout:
            (parts,) = run_routes([route(kind, layout)], [wholes])
    axes = _broadcast_axes(layout, parts[0].nbytes)
    blocks = []
    for i, (part, grid) in enumerate(zip(parts, mesh.blocks, strict=True)):
        with backend.on(mesh, i):
            if any(grid[a] for a in axes):
                blocks.append(backend.empty(part.shape, part.dtype))
            else:
                blocks.append(backend.asarray(part, copy=copy))
    if axes:
        blocks = transport_of(mesh).broadcast(blocks, axes)
    return DistributedArray(ArrayType.of(whole.shape, whole.dtype, layout), tuple(blocks))


def _broadcast_axes(layout: Layout, nbytes: int) -> tuple[int, ...]:
    """The mesh axes along which blocks of so many bytes are sent from GPU to GPU: those between
    which they are the same. Their links are faster than the host's; another process has the host's
    copy of its own."""
    mesh = layout.mesh
    if mesh.device_kind == "cpu" or mesh.num_processes > 1 or nbytes < BROADCAST_SIZE:
        return ()
    split = {a for axes in layout.dims for a in axes}
    same = [a for a in range(mesh.ndim) if a not in split and not layout.pending[a]]
    return tuple(a for a in same if mesh.grid[a] > 1)


@lru_cache(maxsize=4096)
def _on_host(layout: Layout) -> Layout:
    """The layout on virtual devices of the host, with the same blocks."""
    mesh = layout.mesh
    names = tuple(f"cpu:{i}" for i in range(mesh.size))
    host = Mesh._of(mesh.axis_names, mesh.sizes, names, mesh.name, mesh.grid, mesh.num_processes)
    return Layout.of(host, layout.dims, layout.pending)
