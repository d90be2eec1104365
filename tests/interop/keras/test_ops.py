"""Functions of keras.ops on split arrays: the values and gradients of whole ones."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gdt
from gdt.interop.keras import keras
from gdt.testing import layouts

ops = keras.ops
MESH = gdt.create_mesh([("x", 4), ("y", 2)])
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(0.1, 1.0, shape).astype("float32")


IMAGES, SEQUENCES, MATRICES = (
    floats(4, 6, 8, 2),
    floats(4, 6, 8),
    floats(4, 4, 4) + np.eye(4, dtype="f4"),
)
KERNEL, HEADS = floats(3, 3, 2, 4), floats(2, 6, 4, 8)
LABELS, SEGMENTS = np.array([[1, 2, 1], [3, 3, 1]]), np.array([0, 2, 0, 1])
TURNED = [1.1, 0.1, -0.7, 0.0, 0.9, 0.3, 0.0, 0.0]

FLOATING: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "logsumexp": (lambda x: ops.logsumexp(x, axis=-1), [SEQUENCES]),
    "softmax": (lambda x: ops.softmax(x, axis=1), [SEQUENCES]),
    "sparsemax": (ops.sparsemax, [SEQUENCES]),
    "glu": (ops.glu, [SEQUENCES]),
    "gelu": (ops.gelu, [SEQUENCES]),
    "einsum": (lambda x, y: ops.einsum("bij,bjk->bik", x, y), [MATRICES, MATRICES]),
    "var": (lambda x: ops.var(x, axis=(0, 2)), [SEQUENCES]),
    "moments": (lambda x: ops.moments(x, axes=[0, 1])[1], [SEQUENCES]),
    "divide_no_nan": (lambda x, y: ops.divide_no_nan(x, y - 0.5), [SEQUENCES, SEQUENCES[0]]),
    "cumsum": (lambda x: ops.cumsum(x, axis=1), [SEQUENCES]),
    "take": (lambda x: ops.take(x, [2, 0, 2], axis=1), [SEQUENCES]),
    "slice_update": (lambda x, y: ops.slice_update(x, (1, 2, 0), y), [SEQUENCES, floats(2, 3, 8)]),
    "scatter_update": (
        lambda x, y: ops.scatter_update(x, [[1], [3]], y),
        [SEQUENCES, floats(2, 6, 8)],
    ),
    "associative_scan": (lambda x: ops.associative_scan(ops.multiply, x, axis=1), [SEQUENCES]),
    "scan": (lambda x: ops.scan(lambda c, y: (c + y, c * y), x[0] * 0, x)[1], [SEQUENCES]),
    "segment_max": (lambda x: ops.segment_max(x, SEGMENTS, 3), [SEQUENCES]),
    "rfft": (lambda x: ops.rfft(x)[0], [SEQUENCES]),
    "stft": (lambda x: ops.stft(x, 4, 2, 4)[0], [SEQUENCES]),
    "istft": (lambda x: ops.istft((x, x), 10, 5, 14), [SEQUENCES]),
    "erfinv": (ops.erfinv, [SEQUENCES * 0.9]),
    "solve_triangular": (
        lambda x, y: ops.solve_triangular(x, y, lower=True),
        [MATRICES, floats(4, 4, 2)],
    ),
    "lu_factor": (lambda x: ops.lu_factor(x)[0], [MATRICES]),
    "logdet": (ops.logdet, [MATRICES + 2 * np.eye(4, dtype="f4")]),
    "conv": (lambda x, w: ops.conv(x, w, strides=2, padding="same"), [IMAGES, KERNEL]),
    "conv_transpose": (
        lambda x, w: ops.conv_transpose(x, w, strides=2, padding="same"),
        [IMAGES, floats(3, 3, 4, 2)],
    ),
    "depthwise_conv": (ops.depthwise_conv, [IMAGES, KERNEL]),
    "max_pool": (lambda x: ops.max_pool(x, 2), [IMAGES]),
    "adaptive_average_pool": (lambda x: ops.adaptive_average_pool(x, (4, 3)), [IMAGES]),
    "adaptive_max_pool": (lambda x: ops.adaptive_max_pool(x, (4, 3)), [IMAGES]),
    "unfold": (lambda x: ops.unfold(x, 2, stride=2), [IMAGES]),
    "resize": (lambda x: ops.image.resize(x, (5, 4), "bicubic", antialias=True), [IMAGES]),
    "affine_transform": (
        lambda x: ops.image.affine_transform(x, TURNED, fill_mode="reflect"),
        [IMAGES],
    ),
    "gaussian_blur": (ops.image.gaussian_blur, [IMAGES]),
    "categorical_crossentropy": (
        lambda x, y: ops.categorical_crossentropy(y, x),
        [SEQUENCES, SEQUENCES],
    ),
    "dot_product_attention": (
        lambda q, k, v: ops.dot_product_attention(q, k, v, is_causal=True),
        [HEADS, HEADS[:, :, :2], HEADS[:, :, :2]],
    ),
    "attention_with_bias": (
        lambda q, b: ops.dot_product_attention(q, q, q, bias=b), [HEADS, floats(1, 4, 6, 6)],
    ),
    "ctc_loss": (
        lambda x: ops.ctc_loss(LABELS, x, np.array([3, 2]), np.array([7, 6])), [floats(2, 7, 5)],
    ),
}  # fmt: skip


def split(x: np.ndarray, draw: Any) -> gdt.DistributedArray:
    layout = draw(st.sampled_from(layouts(MESH, x.ndim)))
    return gdt.asarray(x, layout=layout)


@pytest.mark.parametrize("name", FLOATING)
@settings(max_examples=2)
@given(data=st.data())
def test_split_arrays_have_the_values_and_gradients_of_whole_ones(name: str, data: Any) -> None:
    f, arrays = FLOATING[name]
    weights = gdt.asarray(np.asarray(f(*arrays)))
    weights = gdt.sin(gdt.reshape(gdt.arange(weights.size, dtype="float32"), weights.shape))

    def loss(*xs: Any) -> Any:
        out = f(*xs)
        return gdt.sum(out * weights), out

    numbers = tuple(range(len(arrays)))
    grad = gdt.value_and_grad(loss, argnums=numbers, has_aux=True)
    whole, parts = [gdt.asarray(x) for x in arrays], [split(x, data.draw) for x in arrays]
    (_, expected), gradients = grad(*whole)
    (_, out), split_gradients = grad(*parts)
    np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=2e-5, atol=1e-5)
    for g, part, other in zip(split_gradients, parts, gradients, strict=True):
        assert g.layout is part.layout
        np.testing.assert_allclose(g.numpy(), other.numpy(), rtol=2e-4, atol=2e-4)


def test_a_label_that_is_no_class_counts_as_nothing() -> None:
    logits = gdt.asarray(floats(3, 5, 8), layout=gdt.Layout(["x", None, "y"], MESH))
    labels = np.full((3, 5), 2)
    labels[0, 0], labels[1, 1] = -1, 8

    def loss(x: Any) -> Any:
        return ops.sum(ops.sparse_categorical_crossentropy(labels, x, from_logits=True))

    expected = -gdt.log_softmax(logits).numpy()[..., 2] * (labels == 2)
    value, gradient = gdt.value_and_grad(loss)(logits)
    assert float(value) == pytest.approx(expected.sum(), rel=1e-5)
    is_zero = np.all(gradient.numpy() == 0, axis=-1)
    assert np.array_equal(is_zero, labels != 2)


def test_a_scan_holds_none_of_its_elements() -> None:
    elements = gdt.ones((5, 2))
    held = weakref.ref(elements)
    gc.disable()  # no cycles either
    try:
        np.testing.assert_array_equal(
            keras.ops.associative_scan(keras.ops.add, elements), np.cumsum(np.ones((5, 2)), axis=0)
        )
        del elements
        assert held() is None
    finally:
        gc.enable()
