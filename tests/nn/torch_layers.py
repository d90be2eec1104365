"""A differential fuzz of layers: gdt's, in random layouts, against PyTorch's on random sizes.

`make test FULL=torch CASES=2000` compares results and gradients in all floating-point arrays,
reports every case that differs beyond rounding, and exits with 1 if there is one. Every case is
drawn from a seed of its own: `python -m tests.nn.torch_layers --first SEED --cases 1` repeats it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

import gdt
from gdt import nn
from gdt.testing import layouts, meshes, placed
from tests.seeds import main

Arrays = dict[str, Any]
MESHES = meshes(((1,), (2,), (3,), (2, 2), (2, 3), (2, 2, 2)), modes=("folded", "apart"))


class Case(NamedTuple):
    """Arrays by name, and one function of them in gdt and in PyTorch, with results of one shape."""

    arrays: dict[str, np.ndarray]
    ours: Callable[[Arrays], Any]
    theirs: Callable[[Arrays], Any]


class Draw:
    """Random sizes and arrays of one case."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = self.rng.choice(["float64", "float64", "float32"])

    def size(self, least: int, most: int) -> int:
        """Return an int between `least` and `most`, both included."""
        return int(self.rng.integers(least, most + 1))

    def sizes(self, count: int, least: int, most: int) -> tuple[int, ...]:
        """Return `count` ints between `least` and `most`."""
        return tuple(self.size(least, most) for _ in range(count))

    def flag(self) -> bool:
        """Return True or False."""
        return bool(self.rng.integers(2))

    def array(self, *shape: int) -> np.ndarray:
        """Return normally distributed numbers."""
        return self.rng.normal(size=shape).astype(self.dtype)

    def probabilities(self, *shape: int) -> np.ndarray:
        """Return numbers that sum to 1 along the last axis."""
        odds = self.rng.uniform(0.1, 1, shape)
        return (odds / odds.sum(-1, keepdims=True)).astype(self.dtype)


def with_arrays(module: Any, arrays: Arrays, **names: str) -> Any:
    """Return a module of gdt whose attributes are arrays: those of equal names, and `names`."""
    for attribute, name in ({a: a for a in arrays if hasattr(module, a)} | names).items():
        setattr(module, attribute, arrays[name])
    return module


def first(x: Any) -> Any:
    """Return a tensor (batch, ..., channels) with its channels first."""
    return x.movedim(-1, 1)


def kernel(weight: Any) -> Any:
    """Return a tensor (..., inputs, channels) as (channels, inputs, ...).

    It is contiguous, since PyTorch's gradients fail for some that are not."""
    return weight.movedim((-1, -2), (0, 1)).contiguous()


def last(x: Any) -> Any:
    """Return a tensor (batch, channels, ...) with its channels last."""
    return x.movedim(1, -1)


# ---------------------------------------------------------------- convolution and pooling

CONVOLUTIONS = {
    1: (nn.Conv1D, functional.conv1d),
    2: (nn.Conv2D, functional.conv2d),
    3: (nn.Conv3D, functional.conv3d),
}
TRANSPOSED = {
    1: (nn.Conv1DTranspose, functional.conv_transpose1d),
    2: (nn.Conv2DTranspose, functional.conv_transpose2d),
}


def convolution(draw: Draw) -> Case:
    rank, groups = draw.size(1, 3), draw.size(1, 3)
    inputs, channels = groups * draw.size(1, 3), groups * draw.size(1, 3)
    taps, dilation = draw.sizes(rank, 1, 4), draw.sizes(rank, 1, 2)
    is_same = draw.flag()
    strides = (1,) * rank if is_same else draw.sizes(rank, 1, 3)  # PyTorch's "same" has no others
    padding = draw.sizes(rank, 0, 3)
    reach = [(k - 1) * d + 1 for k, d in zip(taps, dilation, strict=True)]
    least = [1 if is_same else r - 2 * p for r, p in zip(reach, padding, strict=True)]
    pixels = [max(draw.size(1, 9), n) for n in least]
    arrays = {
        "x": draw.array(draw.size(1, 3), *pixels, inputs),
        "weight": draw.array(*taps, inputs // groups, channels),
        "bias": draw.array(channels),
    }
    layer, function = CONVOLUTIONS[rank]
    pads: Any = "same" if is_same else padding

    def ours(a: Arrays) -> Any:
        module = layer(channels, taps, strides, pads, dilation, groups)
        return with_arrays(module, a)(a["x"])

    def theirs(a: Arrays) -> Any:
        weight = kernel(a["weight"])
        y = function(first(a["x"]), weight, a["bias"], strides, pads, dilation, groups)
        return last(y)

    return Case(arrays, ours, theirs)


def depthwise_convolution(draw: Draw) -> Case:
    inputs, multiple, taps = draw.size(1, 4), draw.size(1, 2), draw.sizes(2, 1, 3)
    strides, padding = draw.sizes(2, 1, 2), draw.sizes(2, 0, 2)
    arrays = {
        "x": draw.array(draw.size(1, 3), *draw.sizes(2, 3, 8), inputs),
        "weight": draw.array(*taps, 1, inputs * multiple),
        "bias": draw.array(inputs * multiple),
    }

    def ours(a: Arrays) -> Any:
        module = nn.DepthwiseConv2D(
            inputs * multiple, taps, strides, padding, input_channels=inputs
        )
        return with_arrays(module, a)(a["x"])

    def theirs(a: Arrays) -> Any:
        weight = kernel(a["weight"])
        y = functional.conv2d(first(a["x"]), weight, a["bias"], strides, padding, 1, inputs)
        return last(y)

    return Case(arrays, ours, theirs)


def transposed_convolution(draw: Draw) -> Case:
    rank, groups = draw.size(1, 2), draw.size(1, 2)
    inputs, channels = groups * draw.size(1, 3), groups * draw.size(1, 3)
    taps, dilation, strides = draw.sizes(rank, 1, 4), draw.sizes(rank, 1, 2), draw.sizes(rank, 1, 3)
    extra = tuple(draw.size(0, s - 1) for s in strides)
    pixels, padding = draw.sizes(rank, 1, 6), []
    for n, k, d, s in zip(pixels, taps, dilation, strides, strict=True):
        most = ((n - 1) * s + (k - 1) * d) // 2  # at least one pixel is left
        padding.append(draw.size(0, min(most, 3)))
    arrays = {
        "x": draw.array(draw.size(1, 3), *pixels, inputs),
        "weight": draw.array(*taps, channels // groups, inputs),
        "bias": draw.array(channels),
    }
    layer, function = TRANSPOSED[rank]

    def ours(a: Arrays) -> Any:
        module = layer(channels, taps, strides, padding, dilation, groups, output_padding=extra)
        return with_arrays(module, a)(a["x"])

    def theirs(a: Arrays) -> Any:
        x = first(a["x"]).contiguous()  # as the kernel
        y = function(x, kernel(a["weight"]), a["bias"], strides, padding, extra, groups, dilation)
        return last(y)

    return Case(arrays, ours, theirs)


def pooling(draw: Draw) -> Case:
    rank = draw.size(1, 3)
    size, strides = draw.sizes(rank, 1, 4), draw.sizes(rank, 1, 3)
    padding = tuple(draw.size(0, k // 2) for k in size)  # PyTorch has no more
    pixels = [draw.size(k, 9) for k in size]
    arrays = {"x": draw.array(draw.size(1, 3), *pixels, draw.size(1, 4))}
    if draw.flag():
        module = nn.MaxPool(size, strides, padding)
        function = getattr(functional, f"max_pool{rank}d")
        theirs = lambda a: last(function(first(a["x"]), size, strides, padding))
        return Case(arrays, lambda a: module(a["x"]), theirs)
    function, counted = getattr(functional, f"avg_pool{rank}d"), draw.flag()
    return Case(
        arrays,
        lambda a: gdt.average_pool(a["x"], size, strides, padding, count_padding=counted),
        lambda a: last(function(first(a["x"]), size, strides, padding, False, counted)),
    )


def global_pooling(draw: Draw) -> Case:
    arrays = {"x": draw.array(*draw.sizes(draw.size(3, 5), 1, 5))}
    axes = tuple(range(1, arrays["x"].ndim - 1))
    if draw.flag():
        return Case(arrays, lambda a: nn.GlobalMaxPool()(a["x"]), lambda a: a["x"].amax(axes))
    return Case(arrays, lambda a: nn.GlobalAveragePool()(a["x"]), lambda a: a["x"].mean(axes))


# ---------------------------------------------------------------- attention and recurrence


def attention(draw: Draw) -> Case:
    shared, key_heads = draw.size(1, 3), draw.size(1, 3)
    heads, batch = shared * key_heads, draw.size(1, 3)
    queries, keys, features, values = draw.sizes(4, 1, 9)
    causal = draw.flag()
    arrays = {
        "q": draw.array(batch, heads, queries, features),
        "k": draw.array(batch, heads, keys, features),
        "v": draw.array(batch, heads, keys, values),
    }
    if not causal and draw.flag():  # PyTorch has either
        mask = draw.rng.random((draw.rng.choice([1, batch]), 1, queries, keys)) < 0.6
        mask[..., 0] = True  # of no keys PyTorch's result depends on its version
        arrays["mask"] = mask
    scale = [None, 0.3][draw.size(0, 1)]
    return Case(
        arrays,
        lambda a: gdt.attention(a["q"], a["k"], a["v"], a.get("mask"), causal=causal, scale=scale),
        lambda a: functional.scaled_dot_product_attention(
            a["q"], a["k"], a["v"], a.get("mask"), is_causal=causal, scale=scale
        ),
    )


def multi_head_attention(draw: Draw) -> Case:
    heads, size, batch, positions = draw.size(1, 3), draw.size(1, 4), *draw.sizes(2, 1, 6)
    size, causal, crossed = heads * size, draw.flag(), draw.flag()
    arrays = {"x": draw.array(batch, positions, size)}
    if crossed:
        arrays["context"] = draw.array(batch, draw.size(1, 6), size)
    parts = ("query", "key", "value", "output")
    arrays |= {f"{part}_weight": draw.array(size, size) for part in parts}
    arrays |= {f"{part}_bias": draw.array(size) for part in parts}

    def ours(a: Arrays) -> Any:
        module = nn.MultiHeadAttention(heads, size, causal=causal)
        return with_arrays(module, a)(a["x"], a.get("context"))

    def theirs(a: Arrays) -> Any:
        x, seen = a["x"], a.get("context", a["x"])
        unseen = torch.ones(x.shape[1], seen.shape[1], dtype=bool).triu(1) if causal else None
        weights = torch.cat([a[f"{part}_weight"].mT for part in parts[:3]])
        biases = torch.cat([a[f"{part}_bias"] for part in parts[:3]])
        y, _ = functional.multi_head_attention_forward(
            *(b.transpose(0, 1) for b in (x, seen, seen)), size, heads, weights, biases, None, None,
            False, 0.0, a["output_weight"].mT, a["output_bias"],
            attn_mask=unseen, need_weights=False,
        )  # fmt: skip
        return y.transpose(0, 1)

    return Case(arrays, ours, theirs)


def shared_heads(draw: Draw) -> Case:
    key_heads, shared, features = draw.sizes(3, 1, 3)
    heads, batch, positions = key_heads * shared, *draw.sizes(2, 1, 6)
    size, causal = heads * features, draw.flag()
    arrays = {"x": draw.array(batch, positions, size)}
    widths = {"query": size, "key": key_heads * features, "value": key_heads * features}
    arrays |= {f"{part}_weight": draw.array(size, n) for part, n in widths.items()}
    arrays["output_weight"] = draw.array(size, size)

    def ours(a: Arrays) -> Any:
        module = nn.MultiHeadAttention(
            heads, size, key_heads=key_heads, causal=causal, use_bias=False
        )
        return with_arrays(module, a)(a["x"])

    def theirs(a: Arrays) -> Any:
        q, k, v = (
            (a["x"] @ a[f"{part}_weight"]).unflatten(-1, (-1, features)).transpose(1, 2)
            for part in widths
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return y.transpose(1, 2).flatten(2) @ a["output_weight"]

    return Case(arrays, ours, theirs)


def recurrence(draw: Draw) -> Case:
    is_lstm, backwards, begun = draw.flag(), draw.flag(), draw.flag()
    batch, steps, size, units = draw.sizes(4, 1, 5)
    gates = 4 if is_lstm else 3
    arrays = {
        "x": draw.array(batch, steps, size),
        "weight": draw.array(size, gates, units),
        "recurrent_weight": draw.array(units, gates, units),
        "bias": draw.array(gates, units),
    }
    if not is_lstm:
        arrays["recurrent_bias"] = draw.array(gates, units)
    names = ("hidden", "cell")[: gates - 2]
    if begun:
        arrays |= {name: draw.array(batch, units) for name in names}
    layer = nn.LSTM if is_lstm else nn.GRU
    order = [0, 1, 2, 3] if is_lstm else [1, 0, 2]  # PyTorch's reset gate is the first

    def ours(a: Arrays) -> Any:
        module = layer(units, size, sequences=True, states=True, backwards=backwards)
        state = [a[name] for name in names] if begun else None
        y, after = with_arrays(module, a)(a["x"], state)
        return gdt.concat([y, *(gdt.expand_dims(s, 1) for s in after)], 1)

    def theirs(a: Arrays) -> Any:
        flat = lambda name: a[name][..., order, :].flatten(-2).mT
        zeros = torch.zeros(batch, units, dtype=a["x"].dtype)
        state = [a.get(name, zeros)[None] for name in names]
        x = (a["x"].flip(1) if backwards else a["x"]).transpose(0, 1)
        bias = a.get("recurrent_bias", torch.zeros_like(a["bias"]))
        weights = [
            flat("weight"), flat("recurrent_weight"), a["bias"][order].flatten(),
            bias[order].flatten(),
        ]  # fmt: skip
        hidden = state if is_lstm else state[0]
        run = torch.lstm if is_lstm else torch.gru
        y, *after = run(x, hidden, weights, True, 1, 0.0, False, False, False)
        return torch.cat([y, *after]).transpose(0, 1)

    return Case(arrays, ours, theirs)


# ---------------------------------------------------------------- norms, tables, losses


def feature_norm(draw: Draw) -> Case:
    *lead, size = draw.sizes(draw.size(2, 4), 1, 6)
    arrays = {"x": draw.array(*lead, size), "scale": draw.array(size)}
    if draw.flag():
        return Case(
            arrays,
            lambda a: with_arrays(nn.RMSNorm(size, epsilon=1e-3), a)(a["x"]),
            lambda a: functional.rms_norm(a["x"], (size,), a["scale"], 1e-3),
        )
    arrays["offset"] = draw.array(size)
    return Case(
        arrays,
        lambda a: with_arrays(nn.LayerNorm(size, epsilon=1e-3), a)(a["x"]),
        lambda a: functional.layer_norm(a["x"], (size,), a["scale"], a["offset"], 1e-3),
    )


def group_norm(draw: Draw) -> Case:
    groups = draw.size(1, 3)
    size = groups * draw.size(1, 3)
    shape = (draw.size(1, 4), *draw.sizes(draw.size(1, 3), 2, 5), size)
    arrays = {"x": draw.array(*shape), "scale": draw.array(size), "offset": draw.array(size)}
    return Case(
        arrays,
        lambda a: with_arrays(nn.GroupNorm(groups, size, epsilon=1e-3), a)(a["x"]),
        lambda a: last(functional.group_norm(first(a["x"]), groups, a["scale"], a["offset"], 1e-3)),
    )


def batch_norm(draw: Draw) -> Case:
    """The result, and beneath it the running moments after the call."""
    rows, size, training = draw.size(2, 9), draw.size(1, 5), draw.flag()
    arrays = {
        "x": draw.array(rows, size),
        "scale": draw.array(size),
        "offset": draw.array(size),
        "moving_mean": draw.array(size),
        "moving_variance": draw.array(size) ** 2 + 1,
    }

    def ours(a: Arrays) -> Any:
        module = with_arrays(nn.BatchNorm(size, momentum=0.9, epsilon=1e-3), a)
        y = module(a["x"], training=training)
        moments = [module.moving_mean, module.moving_variance] if training else []
        return gdt.concat([y, *(gdt.expand_dims(gdt.stop_gradient(m), 0) for m in moments)], 0)

    def theirs(a: Arrays) -> Any:
        mean, variance = (a[f"moving_{name}"].detach().clone() for name in ("mean", "variance"))
        y = functional.batch_norm(
            a["x"], mean, variance, a["scale"], a["offset"], training, 0.1, 1e-3
        )
        if not training:
            return y
        # PyTorch's running variance is the unbiased one.
        biased = 0.9 * a["moving_variance"] + 0.1 * a["x"].var(0, correction=0)
        return torch.cat([y, mean[None], biased.detach()[None]])

    return Case(arrays, ours, theirs)


def embedding(draw: Draw) -> Case:
    count, size = draw.sizes(2, 1, 8)
    ids = draw.rng.integers(0, count, draw.sizes(draw.size(1, 3), 1, 5))
    arrays = {"weight": draw.array(count, size), "ids": ids}

    def ours(a: Arrays) -> Any:
        module = with_arrays(nn.Embedding(count, size), a)
        return module.logits(module(a["ids"]))

    theirs = lambda a: functional.embedding(a["ids"], a["weight"]) @ a["weight"].mT
    return Case(arrays, ours, theirs)


def dense(draw: Draw) -> Case:
    *lead, inputs, outputs = draw.sizes(draw.size(2, 4), 1, 7)
    arrays = {
        "x": draw.array(*lead, inputs),
        "weight": draw.array(inputs, outputs),
        "bias": draw.array(outputs),
    }
    return Case(
        arrays,
        lambda a: with_arrays(nn.Dense(inputs, outputs), a)(a["x"]),
        lambda a: functional.linear(a["x"], a["weight"].mT, a["bias"]),
    )


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (gdt.relu, torch.relu),
    "leaky_relu": (gdt.leaky_relu, lambda x: functional.leaky_relu(x, 0.2)),
    "elu": (gdt.elu, functional.elu),
    "sigmoid": (gdt.sigmoid, torch.sigmoid),
    "softplus": (gdt.softplus, functional.softplus),
    "silu": (gdt.silu, functional.silu),
    "gelu": (gdt.gelu, functional.gelu),
    "gelu, tanh": (
        lambda x: gdt.gelu(x, approximate=True),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "tanh": (gdt.tanh, torch.tanh),
    "softmax": (gdt.softmax, lambda x: torch.softmax(x, -1)),
    "log_softmax": (gdt.log_softmax, lambda x: torch.log_softmax(x, -1)),
}


def activation(draw: Draw) -> Case:
    ours, theirs = ACTIVATIONS[draw.rng.choice(list(ACTIVATIONS))]
    x = 4 * draw.array(*draw.sizes(draw.size(1, 3), 1, 7))
    return Case({"x": x}, lambda a: ours(a["x"]), lambda a: theirs(a["x"]))


def loss(draw: Draw) -> Case:
    rows, classes = draw.size(1, 9), draw.size(2, 6)
    reduction, smoothing = draw.rng.choice(["mean", "sum", "none"]), 0.1 * draw.size(0, 2)
    logits, values = draw.array(rows, classes), draw.array(rows, classes)
    labels, odds = draw.rng.integers(0, classes, rows), draw.probabilities(rows, classes)
    chances = draw.rng.uniform(0.05, 0.95, (rows, classes)).astype(draw.dtype)
    losses, entropy = nn.losses, functional.cross_entropy
    smooth = {"label_smoothing": smoothing}
    by_name: dict[str, tuple[np.ndarray, np.ndarray, Callable[..., Any], Callable[..., Any]]] = {
        "sparse": (labels, logits, losses.sparse_softmax_cross_entropy,
                   lambda t, p: entropy(p, t, reduction=reduction)),
        "dense": (odds, logits, losses.softmax_cross_entropy,
                  lambda t, p: entropy(p, t, reduction=reduction)),
        "smooth": (odds, logits,
                   lambda *a: losses.categorical_crossentropy(*a, from_logits=True, **smooth),
                   lambda t, p: entropy(p, t, reduction=reduction, **smooth)),
        "sigmoid": (chances, logits, losses.sigmoid_cross_entropy,
                    lambda t, p: functional.binary_cross_entropy_with_logits(
                        p, t, reduction=reduction)),
        "binary": (chances, chances[::-1].copy(), losses.binary_crossentropy,
                   lambda t, p: functional.binary_cross_entropy(p, t, reduction=reduction)),
        "squares": (values, logits, losses.mean_squared_error,
                    lambda t, p: functional.mse_loss(p, t, reduction=reduction)),
        "sizes": (values, logits, losses.mean_absolute_error,
                  lambda t, p: functional.l1_loss(p, t, reduction=reduction)),
        "huber": (values, logits, lambda *a: losses.huber(*a, delta=0.7),
                  lambda t, p: functional.huber_loss(p, t, reduction=reduction, delta=0.7)),
        "divergence": (odds, odds[::-1].copy(), losses.kl_divergence,
                       lambda t, p: divergence(t, p, reduction)),
    }  # fmt: skip
    targets, predictions, ours, theirs = by_name[draw.rng.choice(list(by_name))]
    return Case(
        {"targets": targets, "predictions": predictions},
        lambda a: ours(a["targets"], a["predictions"], str(reduction)),
        lambda a: theirs(a["targets"], a["predictions"]),
    )


def divergence(targets: Any, predictions: Any, reduction: str) -> Any:
    """Return PyTorch's Kullback-Leibler divergence, one for each row, reduced over rows."""
    each = functional.kl_div(predictions.log(), targets, reduction="none").sum(-1)
    return each if reduction == "none" else getattr(each, reduction)()


CASES = (
    convolution, depthwise_convolution, transposed_convolution, pooling, global_pooling, attention,
    multi_head_attention, shared_heads, recurrence, feature_norm, group_norm, batch_norm,
    embedding, dense, activation, loss,
)  # fmt: skip

# ---------------------------------------------------------------- comparing


def of_torch(case: Case) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return PyTorch's result, a cotangent of it, and the gradients of the arrays that have one."""
    tensors = {name: torch.tensor(value) for name, value in case.arrays.items()}
    differentiable = {n: t.requires_grad_() for n, t in tensors.items() if t.is_floating_point()}
    y = case.theirs(tensors)
    cotangent = np.random.default_rng(0).normal(size=tuple(y.shape))
    cotangent = cotangent.astype(y.detach().numpy().dtype)
    y.backward(torch.tensor(cotangent))
    gradients = {n: t.grad.numpy() for n, t in differentiable.items() if t.grad is not None}
    return y.detach().numpy(), cotangent, gradients


def check(seed: int) -> tuple[str, str]:
    """Compare one case: its name, and how it differs, which is empty if it does not."""
    draw = Draw(seed)
    make = CASES[seed % len(CASES)]
    case = make(draw)
    mesh = MESHES[draw.size(0, len(MESHES) - 1)]
    chosen = {}
    for name, value in case.arrays.items():
        every = layouts(mesh, value.ndim, partial=value.dtype.kind == "f")
        chosen[name] = every[draw.size(0, len(every) - 1)]
    shown = ", ".join(f"{n} {x.dtype}{x.shape} {chosen[n]}" for n, x in case.arrays.items())
    try:
        with warnings.catch_warnings(action="ignore"):
            expected, cotangent, gradients = of_torch(case)
        scale = max(np.abs(x).max(initial=1) for x in (expected, *gradients.values()))
        terms = 64 + max(x.size for x in case.arrays.values())
        bound = terms * float(np.finfo(expected.dtype).eps) * float(scale)
        is_poisoned = draw.flag()  # NaN in the padding, of which NumPy may warn
        context = np.errstate(all="ignore") if is_poisoned else np.errstate()
        with gdt.default_mesh(mesh), warnings.catch_warnings(action="error"), context:
            arrays = {n: placed(x, chosen[n], poison=is_poisoned) for n, x in case.arrays.items()}
            constants = {n: x for n, x in arrays.items() if n not in gradients}

            def weighted(variables: Arrays) -> tuple[Any, Any]:
                y = case.ours(constants | variables)
                return gdt.sum(y * cotangent), y

            (_, y), own = gdt.value_and_grad(weighted, has_aux=True)(
                {name: arrays[name] for name in gradients}
            )
        compare("the result", y, expected, bound)
        for name, gradient in gradients.items():
            compare(f"the gradient of {name}", own[name], gradient, bound)
    except Exception as problem:  # any is a difference that is reported with its seed
        return make.__name__, f"{shown} on {mesh}: {type(problem).__name__}: {problem}"
    return make.__name__, ""


def compare(what: str, own: Any, expected: np.ndarray, bound: float) -> None:
    """Raise ValueError unless an array of gdt is PyTorch's up to `bound`."""
    got = own.numpy()
    if got.shape != expected.shape or got.dtype != expected.dtype:
        problem = f"{what} is {got.dtype}{got.shape}, not {expected.dtype}{expected.shape}"
        raise ValueError(problem)
    difference = np.abs(got - expected).max(initial=0)
    if not difference <= bound:
        raise ValueError(f"{what} differs by {difference:.1e}, more than {bound:.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(check, __doc__, "cases", 2_000))
