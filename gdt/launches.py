"""How each kernel of `kernels/` is launched: from arrays to grids, blocks and arguments.

Every function returns a list of `Call`s for a runner, in order, empty if there is nothing to do.
Arrays are NumPy's or CuPy's. Operands are blocks: their first `lead` axes are mesh or batch axes,
of size 1 where an operand is replicated, and their other axes are contiguous; so are results.
Scratch memory comes from `empty(shape, dtype)`. What a kernel cannot take raises a `KernelError`,
and an op then runs its body instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from gdt.errors import KernelError, error
from gdt.kernels import (
    C_DTYPES,
    C_TYPES,
    GRID_LIMIT,
    Call,
    Instance,
    address,
    constants,
    declarations,
    parameters,
    structs,
)

Array = Any
Struct = np.ndarray[Any, Any]
Empty = Callable[[tuple[int, ...], str], Array]

SUM_TYPES = {  # the C type in which values of each C type are summed
    "float": "float",
    "double": "double",
    "half_t": "float",
    "bfloat16_t": "float",
    "int": "long long",
    "long long": "long long",
}
FLOATS = ("float", "double", "half_t", "bfloat16_t")
LABELS = ("int", "long long")
ROW_SHAPES = (("32", "4"), ("256", "1"))  # threads for a row and rows in a block
DRAWS = {  # random dtype: the word drawn, and what is computed in
    "float": ("unsigned", "float"),
    "double": ("unsigned long long", "double"),
    "half_t": ("unsigned", "float"),
}
INTEGERS = (
    "bool",
    "signed char",
    "unsigned char",
    "int",
    "unsigned",
    "long long",
    "unsigned long long",
)
MMA_TYPES = (  # operands and result of tensor cores; float operands are rounded to tf32
    ("half_t", "half_t"),
    ("half_t", "float"),
    ("bfloat16_t", "bfloat16_t"),
    ("bfloat16_t", "float"),
    ("float", "float"),
)
MMA_FINISH = (("float", "half_t"), ("float", "bfloat16_t"), ("float", "float"))
WITHOUT = {"matmul_mma": ("sm_75",)}  # architectures that lack a kernel's instructions
ACTIVATIONS = ("none", "relu", "gelu", "relu_backward", "gelu_backward")
PIECE_LENGTH = 256  # elements of k that make a piece worth its extra pass
ENOUGH_BLOCKS = 264  # two for each multiprocessor of an H100
SPLITS_MAX = 64
SHORT_ROW = 1024  # elements; up to here a warp takes a row
ROW_CACHE_BYTES = 96 << 10  # two such blocks fit a multiprocessor of sm_80 and later
INT_LIMIT = 2**31 - 1


def _c_type(array: Array) -> str:
    if array.dtype.name not in C_TYPES:
        raise error(KernelError, "kernels", f"no kernel takes {array.dtype}")
    return C_TYPES[array.dtype.name]


def _sum_type(array: Array) -> str:
    return SUM_TYPES[_c_type(array)]


def _ceil(n: int, by: int) -> int:
    return -(-n // by)


def instances(file: str, arch: str | None = None) -> list[Instance]:
    """Every instance of a file launched here (on `arch`): what CI compiles and tests."""
    found = [Instance(file, kernel, types) for kernel, types in _INSTANCES[file]()]
    return [i for i in found if arch not in WITHOUT.get(i.kernel, ())]


def _softmax_instances() -> Iterator[tuple[str, tuple[str, ...]]]:
    for t, label, shape in product(FLOATS, LABELS, ROW_SHAPES):
        for kernel in ("softmax_ce", "softmax_ce_parts", "softmax_ce_gradient"):
            yield kernel, (t, SUM_TYPES[t], label, *shape)
    for wide, label in product(("float", "double"), LABELS):
        yield "softmax_ce_merge", (wide, label)


def _batchnorm_instances() -> Iterator[tuple[str, tuple[str, ...]]]:
    for t, kernel in product(FLOATS, declarations("batchnorm.cu")):
        if kernel != "bn_merge":
            yield kernel, (t, SUM_TYPES[t])
    yield from (("bn_merge", (wide,)) for wide in ("float", "double"))


def _reduce_instances() -> Iterator[tuple[str, tuple[str, ...]]]:
    for op, t in product(("Sum", "Max", "Min"), (*FLOATS, "int", "long long")):
        wide = SUM_TYPES[t] if op == "Sum" or t in FLOATS else t
        yield "reduce_rows", (op, t, wide)
        yield "reduce_columns", (op, t, wide)
        yield "reduce_finish", (op, t, wide)
        if op != "Sum":
            yield "arg_rows", (op, t, wide)
            yield "arg_columns", (op, t, wide)
            if t == wide:
                yield "arg_finish", (op, wide)
    yield "reduce_finish", ("Sum", "long long", "long long")


def _update_instances() -> Iterator[tuple[str, tuple[str, ...]]]:
    return ((kernel, (t,)) for kernel, t in product(("sgd", "adam"), ("float", "double")))


def _matmul_instances() -> Iterator[tuple[str, tuple[str, ...]]]:
    for x_t, w_t in product(("false", "true"), repeat=2):
        for t, tile in (("float", "128"), ("float", "64"), ("double", "64")):
            yield "matmul_simt", (t, tile, x_t, w_t)
        for (t, out), tile in product(MMA_TYPES, ("128", "64")):
            yield "matmul_mma", (t, out, tile, x_t, w_t)
    for wide, out in (*MMA_FINISH, ("double", "double")):
        yield "matmul_finish", (wide, out)


def _random_instances() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from (("random_bits", (word,)) for word in ("unsigned", "unsigned long long"))
    for kernel, t in product(("random_uniform", "random_normal", "random_truncated"), DRAWS):
        yield kernel, (t, *DRAWS[t])
    for t, word in product(INTEGERS, ("unsigned", "unsigned long long")):
        yield "random_integers", (t, word)
    yield "random_bernoulli", ()


_INSTANCES: Mapping[str, Callable[[], Iterator[tuple[str, tuple[str, ...]]]]] = {
    "batchnorm.cu": _batchnorm_instances,
    "matmul.cu": _matmul_instances,
    "random.cu": _random_instances,
    "reduce.cu": _reduce_instances,
    "softmax_ce.cu": _softmax_instances,
    "update.cu": _update_instances,
}


def _splits(blocks: int, steps: int) -> int:
    """Into how many parts to cut `steps` steps of work, that `blocks` blocks would do alone."""
    return max(1, min(_ceil(ENOUGH_BLOCKS, max(1, blocks)), SPLITS_MAX, steps))


def _call(
    instance: Instance, grid: tuple[int, ...], block: tuple[int, ...], **arguments: Any
) -> Call:
    """A call with its arguments by name, put in the order of the kernel's own signature."""
    names = [p.name for p in parameters(instance)]
    if set(names) != set(arguments):
        raise TypeError(f"{instance} takes {names}, given {sorted(arguments)}")
    for name, value in arguments.items():
        if isinstance(value, int) and value > INT_LIMIT and name != "ignore":
            raise error(KernelError, str(instance), f"{name} = {value} is past 2^31")
    if any(size > limit for size, limit in zip(grid, GRID_LIMIT, strict=False)):
        raise error(KernelError, str(instance), f"a grid of {grid} blocks is too large")
    return Call(instance, grid, block, tuple(arguments[n] for n in names))


class Leading:
    """Sizes of the leading axes of a call, and each operand's strides over them, in elements.

    Neighbouring axes that every operand walks as one become one.

    >>> Leading(2, np.zeros((8, 2, 5)), np.zeros((8, 2, 1))).sizes
    [16]
    >>> Leading(2, np.zeros((8, 2, 5)), np.zeros((1, 2, 1))).sizes
    [8, 2]
    """

    def __init__(self, lead: int, *operands: Array | None):
        self.operands = operands
        given = [a for a in operands if a is not None]
        for array in given:
            _check_contiguous(array, lead)
        shape = np.broadcast_shapes(*(a.shape[:lead] for a in given))
        self.items = math.prod(shape)
        self.sizes: list[int] = []
        rows: list[list[int]] = [[] for _ in given]
        for axis, size in enumerate(shape):
            if size == 1:
                continue
            strides = [_stride(a, axis) for a in given]
            if self.sizes and all(r[-1] == s * size for r, s in zip(rows, strides, strict=True)):
                self.sizes[-1] *= size
                for row, stride in zip(rows, strides, strict=True):
                    row[-1] = stride
            else:
                self.sizes.append(size)
                for row, stride in zip(rows, strides, strict=True):
                    row.append(stride)
        limit = constants("block.cuh")["MAX_AXES"]
        if len(self.sizes) > limit:
            problem = f"{len(self.sizes)} leading axes are more than {limit}"
            raise error(KernelError, "kernels", problem)
        self._strides = {id(a): row for a, row in zip(given, rows, strict=True)}

    def axes(self, instance: Instance) -> Struct:
        """The sizes, as the argument `Axes` of a kernel."""
        value = np.ones(1, structs(instance.file)["Axes"])
        value["size"][0, : len(self.sizes)] = self.sizes
        return value

    def strides(self, instance: Instance, array: Array | None) -> Struct:
        """The strides of one operand, as the argument `Strides` of a kernel."""
        value = np.zeros(1, structs(instance.file)["Strides"])
        if array is not None:
            row = self._strides[id(array)]
            value["of"][0, : len(row)] = row
        return value


def _stride(array: Array, axis: int) -> int:
    return 0 if array.shape[axis] == 1 else int(array.strides[axis] // array.dtype.itemsize)


def _check_contiguous(array: Array, lead: int) -> None:
    expected = array.dtype.itemsize
    if array.size == 0:
        return
    for axis in range(array.ndim - 1, lead - 1, -1):
        if array.shape[axis] > 1 and array.strides[axis] != expected:
            problem = f"an operand of shape {array.shape} is not contiguous from axis {lead} on"
            raise error(KernelError, "kernels", problem)
        expected *= array.shape[axis]


# ---- softmax_ce.cu -------------------------------------------------------------------------------


def _row_shape(classes: int) -> tuple[int, int]:
    threads, rows = ROW_SHAPES[classes > SHORT_ROW]
    return int(threads), int(rows)


def _softmax(kernel: str, logits: Array, labels: Array) -> tuple[Instance, tuple[int, int]]:
    shape = _row_shape(logits.shape[-1])
    types = (_c_type(logits), _sum_type(logits), _c_type(labels), *map(str, shape))
    return Instance("softmax_ce.cu", kernel, types), shape


def softmax_ce(
    logits: Array,
    labels: Array,
    loss: Array,
    lse: Array,
    gradient: Array | None,
    error_flag: Array,
    *,
    scale: Array | None = None,
    lead: int = 0,
    smoothing: float = 0.0,
    ignore: int = -100,
    shared_limit: int = ROW_CACHE_BYTES,
) -> list[Call]:
    """Loss, log-sum-exp and, unless None, the gradient of whole rows.

    logits, gradient: (lead..., rows, classes); labels, loss, lse: (lead..., rows); scale: the
    cotangent of the loss, (lead..., rows) or (lead..., 1), None for 1; error_flag: uint64 of one
    element, all ones, which becomes `row << 32 | label` if a label is out of range.
    """
    rows, classes = logits.shape[lead:]
    instance, (threads, per_block) = _softmax("softmax_ce", logits, labels)
    leading = Leading(lead, logits, labels, scale)
    if 0 in (leading.items, rows, classes):
        return []
    bytes_of_row = (classes * logits.dtype.itemsize // 16 + 2) * 16
    cached = gradient is not None and bytes_of_row * per_block <= shared_limit
    call = _call(
        instance,
        (_ceil(rows, per_block), leading.items),
        (threads, per_block),
        logits=logits,
        logits_strides=leading.strides(instance, logits),
        labels=labels,
        labels_strides=leading.strides(instance, labels),
        scale=scale,
        scale_strides=leading.strides(instance, scale),
        scale_step=int(scale is not None and scale.shape[-1] > 1),
        loss=loss,
        lse=lse,
        gradient=gradient,
        axes=leading.axes(instance),
        rows=rows,
        classes=classes,
        smoothing=smoothing,
        ignore=ignore,
        cached=int(cached),
        error=error_flag,
    )
    return [replace(call, shared=bytes_of_row * per_block if cached else 0)]


def softmax_ce_parts(
    logits: Array,
    labels: Array,
    parts: Array,
    *,
    start: Array | None,
    count: Array | None,
    lead: int = 0,
) -> list[Call]:
    """(max, sum of exp, logit of the label, sum) of the local classes: parts (items, rows, 4).

    start, count: int32 over the flattened leading axes, the first class here and how many are real.
    """
    rows, classes = logits.shape[lead:]
    instance, (threads, per_block) = _softmax("softmax_ce_parts", logits, labels)
    leading = Leading(lead, logits, labels)
    if 0 in (leading.items, rows):
        return []
    return [
        _call(
            instance,
            (_ceil(rows, per_block), leading.items),
            (threads, per_block),
            logits=logits,
            logits_strides=leading.strides(instance, logits),
            labels=labels,
            labels_strides=leading.strides(instance, labels),
            start=start,
            count=count,
            parts=parts,
            axes=leading.axes(instance),
            rows=rows,
            classes=classes,
        )
    ]


def softmax_ce_merge(
    parts: Array,
    labels: Array,
    loss: Array,
    lse: Array,
    error_flag: Array,
    *,
    total: int,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> list[Call]:
    """Loss and log-sum-exp from gathered parts (count, rows, 4); labels, loss, lse: (rows,)."""
    instance = Instance("softmax_ce.cu", "softmax_ce_merge", (_c_type(parts), _c_type(labels)))
    threads = constants(instance.file)["MERGE_THREADS"]
    count, rows = parts.shape[:2]
    if rows == 0:
        return []
    return [
        _call(
            instance,
            (_ceil(rows, threads),),
            (threads,),
            parts=parts,
            labels=labels,
            loss=loss,
            lse=lse,
            count=count,
            rows=rows,
            total=total,
            smoothing=smoothing,
            ignore=ignore,
            error=error_flag,
        )
    ]


def softmax_ce_gradient(
    logits: Array,
    labels: Array,
    lse: Array,
    gradient: Array,
    *,
    total: int,
    scale: Array | None = None,
    start: Array | None = None,
    count: Array | None = None,
    lead: int = 0,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> list[Call]:
    """The gradient of the local classes, from the log-sum-exp of all `total` classes."""
    rows, classes = logits.shape[lead:]
    instance, (threads, per_block) = _softmax("softmax_ce_gradient", logits, labels)
    leading = Leading(lead, logits, labels, lse, scale)
    if 0 in (leading.items, rows, classes):
        return []
    return [
        _call(
            instance,
            (_ceil(rows, per_block), leading.items),
            (threads, per_block),
            logits=logits,
            logits_strides=leading.strides(instance, logits),
            labels=labels,
            labels_strides=leading.strides(instance, labels),
            lse=lse,
            lse_strides=leading.strides(instance, lse),
            scale=scale,
            scale_strides=leading.strides(instance, scale),
            scale_step=int(scale is not None and scale.shape[-1] > 1),
            start=start,
            count=count,
            gradient=gradient,
            axes=leading.axes(instance),
            rows=rows,
            classes=classes,
            total=total,
            smoothing=smoothing,
            ignore=ignore,
        )
    ]


# ---- batchnorm.cu --------------------------------------------------------------------------------


def _passes(
    stem: str, x: Array, lead: int, items: int
) -> tuple[Instance, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Kernel, grid, block and sizes of a reduction of (lead..., outer, channels, inner)."""
    outer, channels, inner = x.shape[lead:]
    types = (_c_type(x), _sum_type(x))
    known = constants("batchnorm.cu")
    sizes = {"outer": outer, "channels": channels}
    if inner == 1:
        tiles = _ceil(channels, 32)
        splits = _splits(tiles * items, _ceil(outer, 4 * known["ROWS"]))
        instance = Instance("batchnorm.cu", f"{stem}_columns", types)
        return instance, (tiles, splits, items), (32, known["ROWS"]), sizes
    work = _ceil(outer * inner, 4 * known["THREADS"])
    splits = _splits(channels * items, min(outer, work))
    instance = Instance("batchnorm.cu", f"{stem}_planes", types)
    return instance, (channels, splits, items), (known["THREADS"],), sizes | {"inner": inner}


def bn_merge(
    parts: Array, merged: Array | None, variance: Array | None, rstd: Array | None, eps: float = 0.0
) -> list[Call]:
    """Chan's merge, in order, of parts (items, count, 3, channels) of (count, mean, m2).

    merged: (items, 3, channels); variance (of the population) and 1 / sqrt(variance + eps):
    (items, channels).
    """
    items, count, _, channels = parts.shape
    instance = Instance("batchnorm.cu", "bn_merge", (_c_type(parts),))
    threads = constants(instance.file)["THREADS"]
    if 0 in (items, channels):
        return []
    return [
        _call(
            instance,
            (_ceil(channels, threads), items),
            (threads,),
            parts=parts,
            splits=count,
            channels=channels,
            eps=eps,
            merged=merged,
            variance=variance,
            rstd=rstd,
        )
    ]


def bn_moments(
    x: Array,
    merged: Array | None,
    variance: Array | None,
    rstd: Array | None,
    empty: Empty,
    *,
    valid: Array | None = None,
    lead: int = 0,
    eps: float = 0.0,
) -> list[Call]:
    """Moments of x (lead..., outer, channels, inner) over outer and inner; results as `bn_merge`.

    valid: int32 over the flattened leading axes, how many of outer are real.
    """
    leading = Leading(lead, x)
    instance, grid, block, sizes = _passes("bn_moments", x, lead, leading.items)
    if 0 in (leading.items, sizes["channels"]):
        return []
    parts = empty((leading.items, grid[1], 3, sizes["channels"]), C_DTYPES[_sum_type(x)])
    first = _call(
        instance,
        grid,
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        valid=valid,
        parts=parts,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first, *bn_merge(parts, merged, variance, rstd, eps)]


def _elementwise_grid(size: int, items: int, dtype: Any) -> tuple[int, int]:
    threads = constants("batchnorm.cu")["THREADS"]
    packs = _ceil(size, 16 // dtype.itemsize * threads)
    return max(1, min(packs, _ceil(8 * ENOUGH_BLOCKS, items))), items


def bn_apply(
    x: Array,
    mean: Array,
    rstd: Array,
    scale: Array | None,
    bias: Array | None,
    y: Array,
    *,
    relu: bool = False,
    lead: int = 0,
) -> list[Call]:
    """y = (x - mean) rstd scale + bias, with ReLU if asked; mean... are (lead..., channels)."""
    outer, channels, inner = x.shape[lead:]
    _check_twins(mean, rstd, scale, bias)
    leading = Leading(lead, x, mean, scale if scale is not None else bias)
    instance = Instance("batchnorm.cu", "bn_apply", (_c_type(x), _sum_type(x)))
    size = outer * channels * inner
    if 0 in (leading.items, size):
        return []
    _check_size(instance, size)
    return [
        _call(
            instance,
            _elementwise_grid(size, leading.items, x.dtype),
            (constants(instance.file)["THREADS"],),
            x=x,
            x_strides=leading.strides(instance, x),
            mean=mean,
            rstd=rstd,
            mean_strides=leading.strides(instance, mean),
            scale=scale,
            bias=bias,
            scale_strides=leading.strides(instance, scale if scale is not None else bias),
            y=y,
            axes=leading.axes(instance),
            outer=outer,
            channels=channels,
            inner=inner,
            relu=int(relu),
        )
    ]


def _check_twins(mean: Array, rstd: Array, scale: Array | None, bias: Array | None) -> None:
    """Pairs that share one set of strides in the kernels' signatures."""
    for a, b in ((mean, rstd), (scale, bias)):
        if a is not None and b is not None and _walk(a) != _walk(b):
            problem = f"mean and rstd, or scale and bias, differ: {a.shape} and {b.shape}"
            raise error(KernelError, "bn_apply", problem)


def _walk(array: Array) -> list[tuple[int, int]]:
    """Sizes and strides that matter."""
    return [(n, _stride(array, axis)) for axis, n in enumerate(array.shape)]


def _check_size(instance: Instance, size: int) -> None:
    if size > INT_LIMIT:
        raise error(KernelError, str(instance), f"{size} elements of one item are past 2^31")


def bn_sums(
    x: Array,
    dy: Array,
    mean: Array,
    rstd: Array,
    scale: Array | None,
    bias: Array | None,
    sums: Array,
    empty: Empty,
    *,
    relu: bool = False,
    valid: Array | None = None,
    lead: int = 0,
) -> list[Call]:
    """sums (items, 2, channels): of g and of g xhat, where g is dy behind the ReLU."""
    _check_twins(mean, rstd, scale, bias)
    affine = scale if scale is not None else bias
    leading = Leading(lead, x, dy, mean, affine)
    instance, grid, block, sizes = _passes("bn_sums", x, lead, leading.items)
    channels, items = sizes["channels"], leading.items
    if 0 in (items, channels):
        return []
    parts = empty((items, grid[1], 2, channels), C_DTYPES[_sum_type(x)])
    first = _call(
        instance,
        grid,
        block,
        x=x,
        x_strides=leading.strides(instance, x),
        dy=dy,
        dy_strides=leading.strides(instance, dy),
        mean=mean,
        rstd=rstd,
        mean_strides=leading.strides(instance, mean),
        scale=scale,
        bias=bias,
        scale_strides=leading.strides(instance, affine),
        valid=valid,
        parts=parts,
        axes=leading.axes(instance),
        relu=int(relu),
        **sizes,
    )
    folded = parts.reshape(items, 1, grid[1], 2 * channels)
    return [first, *reduce("Sum", folded, sums.reshape(items, 1, 2 * channels), empty, lead=1)]


def bn_backward(
    x: Array,
    dy: Array,
    mean: Array,
    rstd: Array,
    scale: Array | None,
    bias: Array | None,
    sums: Array,
    count: Array,
    dx: Array,
    *,
    relu: bool = False,
    lead: int = 0,
) -> list[Call]:
    """dx from the sums (lead..., 2, channels) and counts (lead..., channels) of the whole batch."""
    outer, channels, inner = x.shape[lead:]
    _check_twins(mean, rstd, scale, bias)
    affine = scale if scale is not None else bias
    leading = Leading(lead, x, dy, mean, affine, sums, count)
    instance = Instance("batchnorm.cu", "bn_backward", (_c_type(x), _sum_type(x)))
    size = outer * channels * inner
    if 0 in (leading.items, size):
        return []
    _check_size(instance, size)
    strided = {"x": x, "dy": dy, "mean": mean, "sums": sums, "count": count, "scale": affine}
    return [
        _call(
            instance,
            _elementwise_grid(size, leading.items, x.dtype),
            (constants(instance.file)["THREADS"],),
            **{f"{name}_strides": leading.strides(instance, a) for name, a in strided.items()},
            **(strided | {"scale": scale}),
            rstd=rstd,
            bias=bias,
            dx=dx,
            axes=leading.axes(instance),
            outer=outer,
            channels=channels,
            inner=inner,
            relu=int(relu),
        )
    ]


# ---- reduce.cu -----------------------------------------------------------------------------------


def _reduction(
    stem: str, op: str, x: Array, wide: str, lead: int, items: int
) -> tuple[Instance, tuple[int, ...], dict[str, int]]:
    """Kernel, grid and sizes of a reduction of (lead..., outer, n, inner) over n."""
    outer, n, inner = x.shape[lead:]
    rows = constants("reduce.cu")["ROWS"]
    types = (op, _c_type(x), wide)
    if inner == 1:
        blocks = _ceil(outer, rows)
        grid = (blocks, _splits(blocks * items, _ceil(n, 32 * 8)), items)
        return Instance("reduce.cu", f"{stem}_rows", types), grid, {"outer": outer, "n": n}
    blocks = outer * _ceil(inner, 32)
    grid = (blocks, _splits(blocks * items, _ceil(n, rows * 8)), items)
    sizes = {"outer": outer, "n": n, "inner": inner}
    return Instance("reduce.cu", f"{stem}_columns", types), grid, sizes


def _wide_type(op: str, x: Array) -> str:
    """The C type that a reduction is kept in."""
    t = _c_type(x)
    return SUM_TYPES[t] if op == "Sum" or t in FLOATS else t


def reduce(
    op: str,
    x: Array,
    out: Array,
    empty: Empty,
    *,
    count: Array | None = None,
    lead: int = 0,
) -> list[Call]:
    """`op` ("Sum", "Max", "Min") over n of x (lead..., outer, n, inner): (lead..., outer, inner).

    count: int32 over the flattened leading axes, how many of n are real.
    """
    wide = _wide_type(op, x)
    leading = Leading(lead, x)
    instance, grid, sizes = _reduction("reduce", op, x, wide, lead, leading.items)
    if out.size == 0:
        return []
    _check_size(instance, out.size)
    parts = empty((grid[1], out.size), C_DTYPES[wide])
    first = _call(
        instance,
        grid,
        (32, constants(instance.file)["ROWS"]),
        x=x,
        x_strides=leading.strides(instance, x),
        count=count,
        parts=parts,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first, *reduce_finish(op, parts, out)]


def reduce_finish(op: str, parts: Array, out: Array) -> list[Call]:
    """Combine parts (count, size) in order, and round to the dtype of out (size elements)."""
    instance = Instance("reduce.cu", "reduce_finish", (op, _c_type(out), _c_type(parts)))
    threads = constants(instance.file)["THREADS"]
    grid = (_ceil(out.size, threads),)
    return [
        _call(instance, grid, (threads,), parts=parts, out=out, count=parts.shape[0], size=out.size)
    ]


def arg_reduce(
    op: str,
    x: Array,
    value: Array | None,
    index: Array,
    empty: Empty,
    *,
    start: Array | None = None,
    count: Array | None = None,
    lead: int = 0,
) -> list[Call]:
    """The position of the "Max" or "Min" over n, and its value; NaN wins, then the smallest index.

    x: (lead..., outer, n, inner); value (in the accumulator's dtype), index (int64):
    (lead..., outer, inner); start: int32 over the flattened leading axes, added to the position.
    """
    wide = _wide_type(op, x)
    leading = Leading(lead, x)
    instance, grid, sizes = _reduction("arg", op, x, wide, lead, leading.items)
    if index.size == 0:
        return []
    _check_size(instance, index.size)
    parts, places = (
        empty((grid[1], index.size), C_DTYPES[wide]),
        empty((grid[1], index.size), "int64"),
    )
    first = _call(
        instance,
        grid,
        (32, constants(instance.file)["ROWS"]),
        x=x,
        x_strides=leading.strides(instance, x),
        start=start,
        count=count,
        parts=parts,
        index=places,
        axes=leading.axes(instance),
        **sizes,
    )
    return [first, *arg_finish(op, parts, places, value, index)]


def arg_finish(
    op: str, parts: Array, places: Array, value: Array | None, index: Array
) -> list[Call]:
    """Combine parts and places (count, size), of splits or of devices, in order."""
    instance = Instance("reduce.cu", "arg_finish", (op, _c_type(parts)))
    threads = constants(instance.file)["THREADS"]
    return [
        _call(
            instance,
            (_ceil(index.size, threads),),
            (threads,),
            parts=parts,
            index=places,
            out=value,
            out_index=index,
            count=parts.shape[0],
            size=index.size,
        )
    ]


# ---- matmul.cu -----------------------------------------------------------------------------------


def _orientation(array: Array, lead: int) -> tuple[bool, int]:
    """Whether the last two axes are stored swapped, and the elements from one row to the next."""
    item = array.dtype.itemsize
    rows, columns = array.shape[lead:]
    down, across = (s // item for s in array.strides[lead:])
    if array.size == 0:
        return False, columns
    if across == 1 or columns == 1:
        return False, down if rows > 1 else columns
    if down == 1 or rows == 1:
        return True, across
    problem = f"an operand of shape {array.shape} walks memory neither by rows nor by columns"
    raise error(KernelError, "matmul", problem)


def _tile(rows: int, columns: int, items: int, double: bool) -> int:
    """The large tile where it gives every multiprocessor work, else the small one."""
    large = _ceil(rows, 128) * _ceil(columns, 128) * items
    return 64 if double or large < ENOUGH_BLOCKS // 2 else 128


def _mma_shared(itemsize: int, tile: int, x_t: bool, w_t: bool) -> int:
    """Bytes for the tiles in flight, laid out as `MmaTile` does."""
    known = constants("matmul.cu")
    k, pack = known["MMA_K_BYTES"] // itemsize, 16 // itemsize
    size = {True: tile * (k + pack), False: k * (tile + 8)}  # by whether rows run along k
    return known["STAGES"] * (size[not x_t] + size[w_t]) * itemsize


def matmul(
    x: Array,
    w: Array,
    out: Array,
    empty: Empty,
    *,
    bias: Array | None = None,
    aux: Array | None = None,
    pre: Array | None = None,
    alpha: float = 1.0,
    accumulate: bool = False,
    activation: str = "none",
    tensor_cores: bool = False,
    lead: int = 0,
    tile: int | None = None,
    pieces: int | None = None,
) -> list[Call]:
    """out = activation(alpha x @ w + bias + accumulate * out).

    x: (lead..., m, k) and w: (lead..., k, n), stored by rows or by columns; bias:
    (lead..., n); out, aux, pre: (lead..., m, n), contiguous. `aux` is what the backward activations
    look at, `pre` receives the activation's argument. float16 and bfloat16 need `tensor_cores`,
    float32 with them is tf32. `tile` and `pieces` are chosen by size if None.
    """
    (m, k), n = x.shape[lead:], w.shape[-1]
    (x_t, x_row), (w_t, w_row) = _orientation(x, lead), _orientation(w, lead)
    leading = Leading(lead, *(_lead_only(a, lead) for a in (x, w, bias)))
    x_lead, w_lead, bias_lead = leading.operands
    items = leading.items
    if 0 in (items, m, n):
        return []
    tile = tile or _tile(m, n, items, x.dtype.itemsize == 8)
    tiles = _ceil(m, tile) * _ceil(n, tile)
    pieces = pieces or _splits(tiles * items, max(1, k // PIECE_LENGTH))
    chunk = _ceil(_ceil(max(k, 1), pieces), 64) * 64
    pieces = _ceil(max(k, 1), chunk)
    wide = _sum_type(x)
    parts = empty((pieces, items, m, n), C_DTYPES[wide]) if pieces > 1 else None
    turned = tuple("true" if t else "false" for t in (x_t, w_t))
    if tensor_cores:
        types = (_c_type(x), _c_type(out), str(tile), *turned)
        instance = Instance("matmul.cu", "matmul_mma", types)
        shared = _mma_shared(x.dtype.itemsize, tile, x_t, w_t)
    else:
        instance = Instance("matmul.cu", "matmul_simt", (_c_type(x), str(tile), *turned))
        shared = 0
    if instance not in instances("matmul.cu"):
        raise error(KernelError, "matmul", f"no kernel {instance} for {x.dtype} and {out.dtype}")
    finish = {
        "out": out,
        "bias": bias,
        "bias_strides": leading.strides(instance, bias_lead),
        "aux": aux,
        "pre": pre,
        "axes": leading.axes(instance),
        "m": m,
        "n": n,
        "alpha": alpha,
        "accumulate": int(accumulate),
        "activation": ACTIVATIONS.index(activation),
    }
    threads = constants(instance.file)["THREADS"]
    first = _call(
        instance,
        (tiles, pieces, items),
        (threads,),
        x=x,
        x_strides=leading.strides(instance, x_lead),
        x_row=x_row,
        w=w,
        w_strides=leading.strides(instance, w_lead),
        w_row=w_row,
        parts=parts,
        k=k,
        chunk=chunk,
        **finish,
    )
    first = replace(first, shared=shared)
    if parts is None:
        return [first]
    last = Instance("matmul.cu", "matmul_finish", (wide, _c_type(out)))
    grid = (_ceil(m * n, threads), items)
    return [first, _call(last, grid, (threads,), parts=parts, pieces=pieces, **finish)]


def _lead_only(array: Array | None, lead: int) -> Array | None:
    """A view of an operand's leading axes alone; its inner strides are passed by themselves."""
    return None if array is None else array[(..., *(slice(1),) * (array.ndim - lead))]


# ---- random.cu -----------------------------------------------------------------------------------


def random(
    kernel: str,
    out: Array,
    start: Array,
    key: Array,
    stream: Array,
    *,
    low: int = 0,
    high: int = 0,
    p: float = 0.0,
) -> list[Call]:
    """Draw out (rows, length): "bits", "uniform", "normal", "truncated", "integers", "bernoulli".

    start (rows,): the global index of a row's first element, int64; key, stream: uint64 of one
    element or of one for each row. Integers are in [low, high); p is the probability of true.
    """
    rows, length = out.shape
    t, word = _c_type(out), "unsigned"
    types: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    if kernel == "bits":
        types, word = (t,), t
    elif kernel in ("uniform", "normal", "truncated"):
        types, word = (t, *DRAWS[t]), DRAWS[t][0]
    elif kernel == "integers":
        word = "unsigned" if high - low <= 2**16 else "unsigned long long"
        types = (t, word)
        extra = {"low": np.uint64(low % 2**64), "count": np.uint64((high - low) % 2**64)}
    else:
        extra = {"threshold": p * 2.0**32}
    instance = Instance("random.cu", f"random_{kernel}", types)
    if out.size == 0:
        return []
    threads = constants(instance.file)["THREADS"]
    each = 4 if word == "unsigned" else 2
    return [
        _call(
            instance,
            (_ceil(length + each - 1, threads * each), rows),
            (threads,),
            out=out,
            start=start,
            key=key,
            key_step=int(key.size > 1),
            stream=stream,
            stream_step=int(stream.size > 1),
            length=length,
            **extra,
        )
    ]


# ---- update.cu -----------------------------------------------------------------------------------


def update_table(tensors: Sequence[Sequence[Array | None]]) -> tuple[np.ndarray[Any, Any], int]:
    """The table of (parameter, gradient, moment, second moment), on the host, and its blocks."""
    chunk = constants("update.cu")["CHUNK"]
    table, blocks = [], 0
    for arrays in tensors:
        shapes = {a.shape for a in arrays if a is not None}
        if len(shapes) != 1 or not all(a is None or a.flags.c_contiguous for a in arrays):
            raise error(KernelError, "update", f"arrays of shapes {shapes} do not match")
        size = next(a.size for a in arrays if a is not None)
        table.append([*(0 if a is None else address(a) for a in arrays), size, blocks])
        blocks += _ceil(size, chunk)
    return np.array(table, np.uint64).reshape(len(table), -1), blocks


def _update(
    kernel: str, tensors: Sequence[Sequence[Array | None]], to_device: Any, **arguments: Any
) -> list[Call]:
    """One call for each dtype among the tensors."""
    calls = []
    by_type: dict[str, list[Sequence[Array | None]]] = {}
    for arrays in tensors:
        if arrays[0] is not None and arrays[0].size:
            by_type.setdefault(_c_type(arrays[0]), []).append(arrays)
    for c_type, group in by_type.items():
        instance = Instance("update.cu", kernel, (c_type,))
        table, blocks = update_table(group)
        rates = {
            name: value[c_type] for name, value in arguments.items() if isinstance(value, dict)
        }
        call = _call(
            instance,
            (blocks,),
            (constants(instance.file)["THREADS"],),
            table=to_device(table),
            tensors=len(group),
            **(arguments | rates),
        )
        pointees = tuple(a for arrays in group for a in arrays if a is not None)
        calls.append(replace(call, pointees=pointees))
    return calls


def sgd(
    tensors: Sequence[tuple[Array, Array, Array | None]],
    rate: dict[str, Array],
    *,
    momentum: float = 0.0,
    decay: float = 0.0,
    nesterov: bool = False,
    to_device: Any = np.asarray,
) -> list[Call]:
    """One launch for all (parameter, gradient, moment or None); rate: by C type."""
    return _update(
        "sgd",
        [(*arrays, None) for arrays in tensors],
        to_device,
        rate=rate,
        momentum=momentum,
        decay=decay,
        nesterov=int(nesterov),
    )


def adam(
    tensors: Sequence[tuple[Array, Array, Array, Array]],
    rate: dict[str, Array],
    count: dict[str, Array],
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    decoupled: bool = False,
    to_device: Any = np.asarray,
) -> list[Call]:
    """One launch for all (parameter, gradient, moment, second moment); count: the step, from 1."""
    return _update(
        "adam",
        tensors,
        to_device,
        rate=rate,
        count=count,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        decay=decay,
        decoupled=int(decoupled),
    )
