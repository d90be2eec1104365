"""Batch normalisation over the global batch: two collectives forwards, one backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.operands import as_operands
from gdt.array.registry import public
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Memory
from gdt.engine.updates import update_op
from gdt.errors import DtypeError, ShapeError, error
from gdt.fusion.op_formula import has_formula, only
from gdt.ops.axes import Axis, negative_axes, reduction_text
from gdt.ops.blocks.channel_kernels import (
    batch_norm_gradient_kernel,
    batch_norm_sums_kernel,
    normalize_kernel,
)
from gdt.ops.blocks.channel_loops import (
    batch_norm_gradient_loop,
    batch_norm_sums_loop,
    normalize_loop,
)
from gdt.ops.blocks.sums import add_reduce
from gdt.ops.elementwise import like, sqrt
from gdt.ops.reductions import kept_dims, reduced_count
from gdt.ops.shapes import reshape
from gdt.ops.statistics import moments, moments_gradient
from gdt.sharding.array_type import ArrayType
from gdt.sharding.dtypes import kind_of

__all__ = ["batch_norm", "batch_normalization"]


Block = Any
Factor = Any  # an array, or a Python number where there is none


# ---------------------------------------------------------------- the normalisation itself


@op("..., ..., ..., ..., ... -> ...")
def normalize(
    xp: Any,
    x: Block,
    mean: Block,
    variance: Block,
    offset: Block,
    scale: Block,
    /,
    epsilon: float,
    *,
    block_shape: tuple[int, ...] = FROM_ENGINE,
    out: Memory | None = None,
) -> Block:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset; the five broadcast."""
    y = xp.subtract(x, mean, out=out)
    y = _update(xp.multiply, y, _factor(xp, variance, scale, epsilon), block_shape)
    if type(offset) is float and offset == 0.0:
        return y
    return _update(xp.add, y, offset, block_shape)


def _update(ufunc: Any, y: Block, other: Block, shape: tuple[int, ...]) -> Block:
    """ufunc(y, other), in the memory of y if the result has its dtype and shape."""
    keeps_dtype = type(other) in (int, float) or (
        hasattr(other, "dtype") and other.dtype == y.dtype
    )
    return ufunc(y, other, out=y if keeps_dtype and y.shape == shape else None)


def _factor(xp: Any, variance: Block, scale: Block, epsilon: float) -> Block:
    root = xp.sqrt(variance + epsilon)
    return scale / root


def _normalize_vjp(
    g: Any, out: Any, x: Any, mean: Any, variance: Any, offset: Any, scale: Any, *, epsilon: float
) -> tuple[Any, ...]:
    rstd = 1.0 / sqrt(variance + epsilon)
    g_x = g * (rstd * scale)
    g_hat = g * ((x - mean) * rstd)  # cotangent of scale, elementwise
    g_variance = g_hat * scale * (rstd * rstd * -0.5)
    return (
        like(g_x, x),
        like(-g_x, mean),
        like(g_variance, variance),
        like(g, offset) if isinstance(offset, DistributedArray) else None,
        like(g_hat, scale) if isinstance(scale, DistributedArray) else None,
    )


def _dtypes_of_arrays(operands: Sequence[Any], result: str | None) -> Sequence[str] | None:
    """The dtypes of a formula for an offset that is an array: no other is added."""
    return None if operands[3] is float else only(("f4", "f8"))(operands, result)


has_formula(  # of what `normalize_kernel` does not take, such as factors of each feature
    lambda epsilon, block_shape: f"(x - y) * (v / sqrt(z + {epsilon!r})) + u",
    _dtypes_of_arrays,
    on_host=False,
)(normalize)
normalize.vjp(joint=_normalize_vjp)
normalize.kernel(normalize_kernel, takes_bfloat16=True)
normalize.specialize(normalize_loop)


@public
def batch_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, epsilon: float = 1e-3
) -> DistributedArray:
    """Normalise with given statistics: (x - mean) / sqrt(variance + epsilon) * scale + offset.

    mean, variance, offset, scale: arrays that broadcast to x, commonly (channels,); offset and
    scale may be None or numbers. `gdt.batch_norm` computes statistics, and so does `gdt.moments`.
    Raises ShapeError for operands that do not broadcast. Source: `tf.nn.batch_normalization`.

    >>> gdt.batch_normalization([3.0, 5.0], 4.0, 1.0, None, 2.0, epsilon=0.0).tolist()
    [-2.0, 2.0]
    """
    x, mean, variance = as_operands("batch_normalization", x=x, mean=mean, variance=variance)
    offset = 0.0 if offset is None else offset
    scale = 1.0 if scale is None else scale
    return normalize(x, mean, variance, offset, scale, epsilon=epsilon)


# ---------------------------------------------------------------- over the batch


def _pair_rule(g: ArrayType, xhat: ArrayType, *, axes: tuple[int, ...], keepdims: bool) -> str:
    left, right = reduction_text(g, axes, keepdims).split("->")
    return f"{left}, {left} -> {right}, {right}"


def _prepare_pair(g: ArrayType, xhat: ArrayType, *, axes: Axis, keepdims: bool) -> dict[str, Any]:
    return {"axes": negative_axes(g, axes), "keepdims": keepdims}


@op(_pair_rule, outputs=2, prepare=_prepare_pair)
def batch_norm_sums(
    xp: Any, g: Block, xhat: Block, /, axes: Axis, keepdims: bool
) -> tuple[Block, Block]:
    """sum(g) and sum(g * xhat) over `axes`: the statistics of the whole batch in the gradient of
    batch normalisation. Both are partial over a split batch, and travel together."""
    return add_reduce(xp, g, axes, keepdims), add_reduce(xp, g * xhat, axes, keepdims)


def _batch_norm_sums_vjp(
    g: Any, out: Any, cotangent: Any, xhat: Any, *, axes: Axis, keepdims: bool
) -> tuple[Any, ...]:
    g_sum, g_product = (None if c is None else kept_dims(c, xhat, axes) for c in g)
    if g_product is None:
        return like(g_sum + 0 * xhat, cotangent), None
    along = g_product * xhat
    return along if g_sum is None else along + g_sum, g_product * cotangent


batch_norm_sums.vjp(joint=_batch_norm_sums_vjp)
batch_norm_sums.kernel(batch_norm_sums_kernel, takes_bfloat16=True)
batch_norm_sums.specialize(batch_norm_sums_loop)


@op("..., ..., ..., ..., ..., ... -> ...")
def batch_norm_gradient(
    xp: Any,
    g: Block,
    xhat: Block,
    g_sum: Block,
    product_sum: Block,
    variance: Block,
    scale: Block,
    /,
    epsilon: float,
    count: int,
    *,
    out: Memory | None = None,
) -> Block:
    """scale / sqrt(variance + epsilon) * (g - (g_sum + xhat * product_sum) / count): the gradient
    of batch normalisation in x (Ioffe, Szegedy 2015, section 3)."""
    inner = xp.multiply(xhat, product_sum, out=out)
    inner += g_sum
    inner *= -1.0 / max(count, 1)
    inner += g
    inner *= _factor(xp, variance, scale, epsilon)
    return inner


def _batch_norm_gradient_vjp(
    c: Any,
    out: Any,
    g: Any,
    xhat: Any,
    g_sum: Any,
    product_sum: Any,
    variance: Any,
    scale: Any,
    *,
    epsilon: float,
    count: int,
) -> tuple[Any, ...]:
    rstd = 1.0 / sqrt(variance + epsilon)
    along = c * (rstd * scale)
    share = along * (-1.0 / max(count, 1))
    unscaled = batch_norm_gradient(
        g, xhat, g_sum, product_sum, variance, 1.0, epsilon=epsilon, count=count
    )
    return (
        like(along, g),
        like(share * product_sum, xhat),
        like(share, g_sum),
        like(share * xhat, product_sum),
        like(c * out * (rstd * rstd * -0.5), variance),
        like(c * unscaled, scale) if isinstance(scale, DistributedArray) else None,
    )


batch_norm_gradient.vjp(joint=_batch_norm_gradient_vjp)
batch_norm_gradient.kernel(batch_norm_gradient_kernel, takes_bfloat16=True)
batch_norm_gradient.specialize(batch_norm_gradient_loop)


@custom_vjp
def normalize_batch(
    x: DistributedArray, scale: Factor, offset: Factor, *, epsilon: float, axes: tuple[int, ...]
) -> tuple[DistributedArray, DistributedArray, DistributedArray]:
    """Normalise x, and return it with its mean and variance, which keep reduced dims unless `axes`
    are the leading ones."""
    keepdims = not _are_leading(axes, x.ndim)
    mean, variance = moments(x, axes=axes, keepdims=keepdims)
    return normalize(x, mean, variance, offset, scale, epsilon=epsilon), mean, variance


def _are_leading(axes: Sequence[int], rank: int) -> bool:
    return tuple(axes) == tuple(range(-rank, len(axes) - rank))


def _normalize_batch_vjp(
    g: Any,
    out: Any,
    x: Any,
    scale: Any,
    offset: Any,
    *,
    epsilon: float,
    axes: tuple[int, ...],
) -> tuple[Any, ...]:
    (g_y, g_mean, g_variance), (y, mean, variance) = g, out  # (batch, channels), (channels,) twice
    g_x = g_scale = g_offset = None
    if g_y is not None:
        keepdims = not _are_leading(axes, x.ndim)
        plain = type(scale) is float and type(offset) is float and (scale, offset) == (1.0, 0.0)
        xhat = y if plain else normalize(x, mean, variance, 0.0, 1.0, epsilon=epsilon)
        g_sum, product_sum = batch_norm_sums(g_y, xhat, axes=axes, keepdims=keepdims)
        g_x = batch_norm_gradient(
            g_y, xhat, g_sum, product_sum, variance, scale,
            epsilon=epsilon, count=reduced_count(x, axes),
        )  # fmt: skip
        if isinstance(scale, DistributedArray):
            g_scale = like(product_sum, scale)
        if isinstance(offset, DistributedArray):
            g_offset = like(g_sum, offset)
        g_x = like(g_x, x)
    if g_mean is not None or g_variance is not None:
        direct = moments_gradient(x, mean, g_mean, g_variance, axes)
        g_x = direct if g_x is None else g_x + direct
    return g_x, g_scale, g_offset


normalize_batch.vjp(joint=_normalize_batch_vjp)


def _as_factor(
    value: Any, default: float, name: str, x: DistributedArray, over: tuple[int, ...]
) -> Factor:
    """The argument `name`, a scale or an offset, as a number or as an array that broadcasts to x.

    over: the axes that are normalised over. Raises ShapeError for an array of another shape than
    that of the other axes.
    """
    if value is None or type(value) in (int, float):
        return default if value is None else float(value)
    x, factor = as_operands("batch_norm", x=x, **{name: value})
    channels = tuple(n for i, n in enumerate(x.shape) if i - x.ndim not in over)
    if factor.ndim and factor.shape != channels:
        raise error(
            ShapeError,
            "batch_norm",
            f"{name} has shape {list(factor.shape)}, not {list(channels)}",
            operands={"x": x.type, name: factor.type},
        )
    return kept_dims(factor, x, over) if factor.ndim and not _are_leading(over, x.ndim) else factor


@public
def batch_norm(
    x: Any,
    scale: Any = None,
    offset: Any = None,
    epsilon: float = 1e-3,
    axes: Axis = None,
) -> tuple[DistributedArray, DistributedArray, DistributedArray]:
    """Normalise x by its own mean and variance over `axes`, and return (y, mean, variance).

    x: floating-point, commonly (batch, channels). axes: all but the last if not given. scale,
    offset: arrays of the shape of the other axes, numbers, or None for 1 and 0. y has the shape of
    x, mean and variance that of the other axes. Over a split batch the statistics are those of the
    global batch: two all-reduces forwards, and one of two sums backwards.

    Raises DtypeError for an x that is not floating-point, AxisError for an axis that x does not
    have, ShapeError for a scale or offset of another shape. Source: Ioffe and Szegedy 2015, "Batch
    normalization".

    >>> y, mean, variance = gdt.batch_norm(gdt.asarray([[1.0], [3.0]]), epsilon=0.0)
    >>> y.tolist(), mean.tolist(), variance.tolist()
    ([[-1.0], [1.0]], [2.0], [1.0])
    """
    if type(x) is not DistributedArray:
        (x,) = as_operands("batch_norm", x=x)
    if kind_of(x.type.dtype) != "f":
        raise error(DtypeError, "x is not floating-point", operands={"x": x.type})
    rank = len(x.type.shape)
    over = tuple(range(-rank, -1)) if axes is None else negative_axes(x.type, axes)
    scale = _as_factor(scale, 1.0, "scale", x, over)
    offset = _as_factor(offset, 0.0, "offset", x, over)
    y, mean, variance = normalize_batch(x, scale, offset, epsilon=epsilon, axes=over)
    if _are_leading(over, rank):
        return y, mean, variance
    channels = tuple(n for i, n in enumerate(x.shape) if i - rank not in over)
    return y, reshape(mean, channels), reshape(variance, channels)


# ---------------------------------------------------------------- running moments


@update_op("..., ..., ... -> ...", linear="average + value", donate="average")
def moving_average(xp: Any, average: Block, value: Block, momentum: Any, /, *, out: Any) -> Block:
    """Return momentum * average + (1 - momentum) * value, in the memory of `average`."""
    (new,) = out
    change = (1 - momentum) * value
    xp.multiply(average, momentum, out=new)
    return xp.add(new, change, out=new)
