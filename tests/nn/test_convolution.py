"""Convolution and pooling of split images: what halo exchanges send, layers, and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout, create_mesh, nn
from gdt.errors import ArgumentError, ShapeError
from gdt.nn.functions.convolution import blocks as bodies
from gdt.nn.functions.convolution import windows
from gdt.ops.blocks.windows import tiling_of, windows_of
from gdt.testing import Oracle, Sample
from tests.samples.convolution import convolution, pool, transposed


# The rows that every device receives (above, below), and how many results there are: derived by
# hand for SAME, VALID, strides, dilations, pools, and devices without rows.
@pytest.mark.parametrize(
    ("n", "p", "k", "s", "d", "padding", "results", "received"),
    [
        (28, 4, 3, 1, 1, "same", 28, [(0, 1), (1, 1), (1, 1), (1, 0)]),
        (28, 8, 3, 1, 1, "same", 28, [(0, 1), *[(1, 1)] * 5, (1, 0), (0, 0)]),
        (28, 4, 3, 2, 1, "same", 14, [(0, 2), (0, 3), (0, 4), (0, 0)]),
        (29, 4, 3, 2, 1, "same", 15, [(0, 0), (1, 0), (1, 0), (1, 0)]),
        (28, 4, 3, 1, 2, "same", 28, [(0, 2), (2, 2), (2, 2), (2, 0)]),
        (28, 4, 3, 1, 1, "valid", 26, [(0, 2), (0, 2), (0, 2), (0, 0)]),
        (28, 4, 2, 2, 1, "valid", 14, [(0, 1), (0, 2), (0, 3), (0, 0)]),
        (28, 8, 2, 2, 1, "valid", 14, [(0, 0)] * 8),
        (224, 8, 7, 2, 1, "same", 112, [(0, 3), *[(2, 3)] * 6, (2, 0)]),
        (5, 8, 3, 1, 1, "same", 5, [(0, 1), *[(1, 1)] * 3, (1, 0), *[(0, 0)] * 3]),
        (32, 8, 11, 1, 1, "same", 32, [(0, 5), (4, 5), *[(5, 5)] * 4, (5, 4), (5, 0)]),
        (28, 4, 1, 1, 1, "same", 28, [(0, 0)] * 4),
    ],
)
@pytest.mark.parametrize("blocks", [1, None])
def test_a_device_receives_the_rows_that_its_results_need(
    n: int, p: int, k: int, s: int, d: int, padding: str, results: int, received: Any, blocks: Any
) -> None:
    mesh = create_mesh([("height", p)], blocks=blocks or p)
    (windows,) = windows_of("test", [n], [k], s, padding, d)
    assert windows.number == results
    how = tiling_of(windows, 0, (0,), mesh)
    chunk = -(-n // p)
    rows = []
    for t, (start, stop) in enumerate(zip(how.starts, how.stops, strict=True)):
        low, high = min(t * chunk, n), min((t + 1) * chunk, n)
        first, last = max(start, 0), min(stop, n)
        rows.append((max(low - first, 0), max(last - high, 0)) if last > first else (0, 0))
    assert rows == received
    x = gdt.ones((2, n, 5, 3), "float32", layout=Layout([None, "height", None, None], mesh))
    kernel = gdt.ones((k, 1, 3, 1), "float32", layout=Layout.replicated(mesh, 4))
    run = lambda: gdt.convolution(x, kernel, (s, 1), padding, (d, 1))
    collectives = [c for row in gdt.explain(run).rows for c in row.collectives]
    total = sum(above + below for above, below in rows) * 2 * 5 * 3 * 4
    assert [c.bytes for c in collectives] == ([total] if total else [])
    assert {c.kind for c in collectives} <= {"exchange"}


def test_a_step_exchanges_the_image_once_and_adds_its_gradient_once() -> None:
    mesh = create_mesh([("height", 2), ("width", 4)], blocks=8)
    x = gdt.ones((2, 32, 32, 3), layout=Layout([None, "height", "width", None], mesh))
    kernel = gdt.ones((3, 3, 3, 4), layout=Layout.replicated(mesh, 4))
    loss = lambda x, kernel: gdt.sum(gdt.convolution(x, kernel, padding="same") ** 2)
    table = gdt.explain(lambda: gdt.grad(loss, argnums=(0, 1))(x, kernel))
    sent = [(row.op, [c.kind for c in row.collectives]) for row in table.rows if row.collectives]
    assert sent == [
        ("exchange_halos", ["exchange"]),
        ("exchange_halos", ["exchange"]),
        ("add_halos", ["exchange"]),
        ("add_halos", ["exchange"]),
        ("gradient", ["all_reduce"]),
    ]  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize(
    "static",
    [
        {"padding": "same", "strides": (2, 1)},
        {"padding": [(2, 3), (0, 1)], "dilation": (1, 2), "groups": 2},
        {"padding": "valid", "groups": 4},
        {"padding": "same", "dilation": (2, 1)},
    ],
)
def test_images_split_both_ways_equal_loops_over_taps(
    static: Any, blocks: int, rng: np.random.Generator
) -> None:
    mesh = create_mesh([("h", 2), ("w", 4)], blocks=blocks)
    x = rng.standard_normal((2, 7, 6, 4))
    kernel = rng.standard_normal((3, 2, 4 // static.get("groups", 1), 8))
    layouts = [[[None, *specs, None], [None] * 4] for specs in (["h", "w"], ["w", "h"])]
    layouts += [[["h", None, "w", None], [None, None, None, "h"]]]
    layouts += [[[None, None, ("w", "h"), None], [None] * 4]]
    layouts += [[["h", None, None, "w"], [None, None, None, "w"]]]
    oracle = Oracle(gdt.convolution, Sample((x, kernel), static, convolution))
    for specs in layouts:
        oracle.check(mesh, [Layout(s, mesh) for s in specs])


@pytest.mark.parametrize("groups", [1, 2])
def test_products_of_many_rows_are_computed_in_parts(
    groups: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    kernel = rng.standard_normal((3, 3, 4 // groups, 6))
    monkeypatch.setattr(bodies, "SMALL_PRODUCT", 33 * kernel.size // groups)
    assert len(bodies.split_rows(np, 105, kernel.size // 6, 6 // groups)) == 2
    static = {"padding": "same", "groups": groups}
    sample = Sample((rng.standard_normal((3, 5, 7, 4)), kernel), static, convolution)
    mesh = create_mesh([("data", 1)])
    Oracle(gdt.convolution, sample).check(mesh, [Layout.replicated(mesh, 4)] * 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize(
    ("shape", "taps", "static"),
    [
        ((5, 9, 7, 3), (3, 3), {"padding": "same"}),
        ((5, 9, 7, 8), (2, 1), {"padding": "valid"}),
        ((2, 3, 8, 14, 3), (2, 5), {"padding": [(0, 2), 1], "dilation": (3, 2)}),
        ((3, 5, 6, 9, 2), (3, 2, 4), {"padding": "same", "dilation": (2, 1, 1)}),
        ((2, 9, 19, 2), (3, 4), {"padding": 1, "strides": (1, 3)}),
    ],
)
def test_lines_serve_all_taps_of_the_other_axes(
    shape: tuple[int, ...], taps: tuple[int, ...], static: Any, dtype: str,
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator,
) -> None:  # fmt: skip
    for module in (bodies, windows):
        monkeypatch.setattr(module, "HOST_COLUMNS", 1 << 12)  # which few images fill
    images = rng.integers(-3, 4, shape).astype(dtype)
    kernel = rng.integers(-3, 4, (*taps, shape[-1], 4)).astype(dtype)
    numbers, multiply = [], bodies._multiply

    def counted(xp: Any, columns: Any, *rest: Any) -> None:
        numbers.append(len(columns))
        multiply(xp, columns, *rest)

    monkeypatch.setattr(bodies, "_multiply", counted)
    mesh = create_mesh([("data", 2)])
    Oracle(gdt.convolution, Sample((images, kernel), static, convolution)).check(
        mesh, [Layout.replicated(mesh, images.ndim), Layout.replicated(mesh, kernel.ndim)]
    )
    assert max(numbers) == math.prod(taps[:-1])


@pytest.mark.parametrize(("channels", "results"), [(0, 4), (4, 0)])
def test_images_of_no_channels_have_gradients(channels: int, results: int) -> None:
    operands = [gdt.ones((2, 5, 5, channels)), gdt.ones((3, 3, channels, results))]
    loss = lambda operands: gdt.sum(gdt.convolution(*operands, padding="same") ** 2)
    gradients = gdt.grad(loss)(operands)
    assert [g.shape for g in gradients] == [x.shape for x in operands]
    assert not any(g.numpy().any() for g in gradients)


@pytest.mark.parametrize("blocks", [1, 8])
def test_pools_and_transposed_convolutions_split_both_ways(
    blocks: int, rng: np.random.Generator
) -> None:
    mesh = create_mesh([("h", 4), ("w", 2)], blocks=blocks)
    x = rng.permutation(2 * 7 * 5 * 2).reshape(2, 7, 5, 2).astype(float)
    kernel = rng.standard_normal((3, 2, 3, 2))
    split, whole = Layout([None, "h", "w", None], mesh), Layout.replicated(mesh, 4)
    static = {"size": (3, 2), "strides": 2, "padding": "same"}
    Oracle(gdt.max_pool, Sample((x,), static, pool(np.max))).check(mesh, [split])
    Oracle(gdt.average_pool, Sample((x,), static, pool(np.mean))).check(mesh, [split])
    counted = lambda x, **static: gdt.average_pool(x, count_padding=True, **static)
    expect = pool(np.mean, count_padding=True)
    Oracle(counted, Sample((x,), static, expect)).check(mesh, [split])
    static = {"strides": (2, 3), "padding": "same"}
    sample = Sample((x[:, :3, :2], kernel), static, transposed)
    Oracle(gdt.transposed_convolution, sample).check(mesh, [split, whole])


@pytest.mark.parametrize("specs", [["h", "w"], [None, ("h", "w")], ["w", None]])
@pytest.mark.parametrize("blocks", [1, 8])
def test_the_gradients_of_tied_maxima_go_to_the_first(
    specs: Any, blocks: int, rng: np.random.Generator
) -> None:
    mesh = create_mesh([("h", 2), ("w", 4)], blocks=blocks)
    x = rng.integers(0, 3, (1, 7, 9, 2)).astype(float)
    x[0, 3, 4, 0] = np.nan
    g = rng.standard_normal((1, 7, 9, 2))
    placed = gdt.asarray(x, layout=Layout([None, *specs, None], mesh))
    pooled = lambda x: gdt.max_pool(x, 3, strides=1, padding="same")
    np.testing.assert_array_equal(pooled(placed).numpy(), pool(np.max)(x, 3, 1, "same"))
    expected = np.zeros_like(x)
    for i, j, c in np.ndindex(7, 9, 2):
        window = x[0, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2, c]
        a, b = np.unravel_index(window.argmax(), window.shape)
        expected[0, max(i - 1, 0) + a, max(j - 1, 0) + b, c] += g[0, i, j, c]
    gradient = gdt.grad(lambda x: gdt.sum(pooled(x) * g))(placed)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "shape", "out", "weight"),
    [
        (nn.Conv1D(4, 3, key=1), (2, 9, 3), (2, 7, 4), (3, 3, 4)),
        (nn.Conv2D(4, 3, 2, "same", groups=2), (2, 9, 8, 6), (2, 5, 4, 4), (3, 3, 3, 4)),
        (nn.Conv3D(2, (1, 2, 3)), (1, 2, 3, 4, 1), (1, 2, 2, 2, 2), (1, 2, 3, 1, 2)),
        (nn.DepthwiseConv2D(None, 3), (2, 5, 5, 3), (2, 3, 3, 3), (3, 3, 1, 3)),
        (nn.DepthwiseConv2D(6, 3, padding="same"), (2, 5, 5, 3), (2, 5, 5, 6), (3, 3, 1, 6)),
        (nn.Conv1DTranspose(5, 3, 2, "same"), (2, 4, 3), (2, 8, 5), (3, 5, 3)),
        (nn.Conv2DTranspose(4, 2, 3, groups=2), (2, 3, 3, 6), (2, 9, 9, 4), (2, 2, 2, 6)),
    ],
)  # fmt: skip
def test_layers_of_convolution(layer: Any, shape: Any, out: Any, weight: Any) -> None:
    mesh = create_mesh([("batch", 2), ("height", 2)])
    x = gdt.random.normal(
        shape, key=1, layout=Layout(["batch", "height", *[None] * (len(shape) - 2)], mesh)
    )
    y = layer(x)
    assert y.shape == out and y.layout.sharding_specs[:2] == ["batch", "height"]
    assert layer.weight.shape == weight and layer.weight.mesh is mesh
    assert list(layer.parameters()) == ["weight", "bias"][: 1 + (layer.bias is not None)]
    again = layer(gdt.asarray(x.numpy(), layout=Layout.replicated(mesh, x.ndim)))
    np.testing.assert_allclose(y.numpy(), again.numpy(), rtol=1e-5, atol=1e-5)


def test_pools_of_all_pixels_and_of_windows(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 6, 4, 3))
    assert nn.MaxPool()(x).shape == nn.AveragePool()(x).shape == (2, 3, 2, 3)
    np.testing.assert_allclose(nn.GlobalAveragePool()(x).numpy(), x.mean((1, 2)))
    np.testing.assert_allclose(nn.GlobalMaxPool()(x).numpy(), x.max((1, 2)))


def test_half_precision_is_added_in_float32(rng: np.random.Generator) -> None:
    x = np.ones((1, 64, 64, 1), np.float16)
    kernel = np.ones((64, 64, 1, 1), np.float16)
    assert gdt.convolution(x, kernel).item() == 4096
    for multiple in (1, 2):  # of channels that are convolved each by itself
        channels, each = np.repeat(x, 2, axis=-1), np.repeat(kernel, 2 * multiple, axis=-1)
        sums = gdt.convolution(channels, each, groups=2)
        assert sums.ravel().tolist() == [4096] * 2 * multiple
    assert gdt.average_pool(x, 64).item() == 1
    wide = convolution(x.astype("f4")[:, :9, :9], kernel.astype("f4")[:3, :3])
    half = gdt.convolution(x[:, :9, :9], kernel[:3, :3])
    assert half.dtype == np.float16 and half.tolist() == wide.tolist()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: nn.Conv2D(4, 3)(gdt.ones((2, 8, 3))), "x has shape [2, 8, 3], and 4 axes are"),
        (lambda: nn.Conv2D(4, 9)(gdt.ones((2, 8, 8, 3))), "a window of 9 does not fit axis 0 of 8"),
        (
            lambda: nn.Conv2D(4, 3, input_channels=3)(gdt.ones((2, 8, 8, 1))),
            "x has 1 channels, and the kernel is for 3",
        ),
        (lambda: nn.Conv2D(4, 3, groups=3)(gdt.ones((2, 8, 8, 6))), "3 groups do not divide"),
        (lambda: nn.Conv2D(4, 3, padding="full")(gdt.ones((2, 8, 8, 6))), "padding is 'full'"),
        (lambda: gdt.max_pool(gdt.ones((1, 9, 1)), 3, padding=[(1, -2)]), "padding is [(1, -2)]"),
        (lambda: gdt.average_pool(gdt.ones((1, 9, 1)), 3, padding=[1, 2]), "padding is [1, 2]"),
        (lambda: nn.Conv2D(0, 3), "channels is 0, not positive"),
        (lambda: nn.Conv2D(3, 0), "size is 0"),
        (lambda: nn.Conv2D(3, (3, 3, 3)), "one for each of 2 axes"),
        (lambda: nn.MaxPool(2, strides=0), "strides is 0"),
        (lambda: nn.MaxPool()(gdt.ones((2, 3))), "x has shape [2, 3], and 3 axes or more"),
        (lambda: nn.MaxPool((2, 2))(gdt.ones((2, 3, 3))), "x has shape [2, 3, 3], and 4 axes"),
        (
            lambda: nn.Conv1DTranspose(4, 3, padding=0, output_padding=1)(gdt.ones((1, 3, 2))),
            "output_padding (1,) is not below strides (1,)",
        ),
        (
            lambda: nn.Conv1DTranspose(4, 3, padding=4)(gdt.ones((1, 3, 2))),
            "padding 4 leaves -3 elements along axis 0",
        ),
        (
            lambda: nn.Conv1DTranspose(4, 3, 2, output_padding=1)(gdt.ones((1, 3, 2))),
            "output_padding is (1,), and padding is 'valid'",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(run: Any, message: str) -> None:
    with pytest.raises((ShapeError, ArgumentError)) as caught:
        run()
    assert message in str(caught.value)


def test_an_image_larger_than_the_share_of_a_device_is_trained_on() -> None:
    """No block holds more than a tile and its halo: the largest is below a quarter of the image."""
    mesh = create_mesh([("height", 4), ("width", 2)], blocks=8)
    x = gdt.random.normal(
        (1, 64, 64, 4), key=1, layout=Layout([None, "height", "width", None], mesh)
    )
    model = nn.Sequential(
        nn.Conv2D(8, 3, padding="same", activation="relu"),
        nn.MaxPool(),
        nn.Conv2D(4, 5, padding="same"),
        nn.GlobalAveragePool(),
    )
    sizes: list[int] = []

    class Largest(gdt.observe.Observer):
        def on_op(self, op: Any, args: Any, static: Any, out: Any) -> None:
            outs = out if isinstance(out, tuple) else (out,)
            sizes.extend(
                b.nbytes for a in outs if isinstance(a, gdt.DistributedArray) for b in a.blocks
            )

    with gdt.observe.observing(Largest()):
        with gdt.GradientTape() as tape:
            loss = gdt.sum(model(x) ** 2)
        gradients = tape.gradient(loss, model)
    assert all(np.isfinite(g.numpy()).all() for g in gradients.values())
    assert max(sizes) < 64 * 64 * 8 * 8 / 4  # of what the first layer makes


def residual_cnn() -> nn.Module:
    """Two stages of convolution, pooling and a residual block: 28,410 parameters."""
    static: dict[str, Any] = {"padding": "same", "use_bias": False, "dtype": np.float64}
    norm = lambda channels: nn.BatchNorm(channels, momentum=0.9, epsilon=1e-3, dtype=np.float64)
    layers: list[Any] = []
    for channels in (16, 32):
        first, second, third = (nn.Conv2D(channels, 3, key=i, **static) for i in range(3))
        inner = [second, norm(channels), nn.Activation("relu"), third, norm(channels)]
        layers += [first, norm(channels), nn.Activation("relu"), nn.MaxPool(2)]
        layers += [nn.Residual(nn.Sequential(*inner)), nn.Activation("relu")]
    return nn.Sequential(*layers, nn.GlobalAveragePool(), nn.Dense(10, key=9, dtype=np.float64))


def test_a_cnn_on_image_tiles_learns_what_it_learns_on_one_device(rng: np.random.Generator) -> None:
    images, labels = rng.random((4, 28, 28, 1)), rng.integers(0, 10, 4)
    tiles = [create_mesh([("h", 2), ("w", 4)], blocks=blocks) for blocks in (1, 8)]
    curves = []
    for mesh in (create_mesh([("h", 1), ("w", 1)]), *tiles):
        with gdt.default_mesh(mesh):
            model, optimizer = residual_cnn(), gdt.optim.Adam(4e-3)
            x = gdt.asarray(images, layout=Layout([None, "h", "w", None], mesh))
            y = gdt.asarray(labels, layout=Layout([None], mesh))
            losses = []
            for _ in range(3):
                with gdt.GradientTape() as tape:
                    loss = nn.losses.sparse_softmax_cross_entropy(y, model(x))
                optimizer.update(model, tape.gradient(loss, model))
                losses.append(float(loss))
        curves.append(losses)
        assert sum(p.size for p in model.parameters().values()) == 28_410
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=1e-9)
    assert curves[0][-1] < curves[0][0]


@pytest.mark.parametrize("axes", [["a"], ["b", "a"]])
def test_parts_of_channels_share_the_windows_of_one_image(
    axes: list[str], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Windows are copied once for all parts of a kernel, and once for the gradients of all."""
    mesh = create_mesh([("a", 2), ("b", 3)], blocks=1)
    x, kernel = rng.standard_normal((4, 5, 5, 2)), rng.standard_normal((3, 3, 2, 13))
    channels: list[int] = []
    columns_of = bodies.columns_of

    def counted(xp: Any, images: Any, *rest: Any) -> Any:
        channels.append(images.shape[-1])
        return columns_of(xp, images, *rest)

    monkeypatch.setattr(bodies, "columns_of", counted)
    operands = (
        gdt.asarray(x, layout=Layout.replicated(mesh, 4)),
        gdt.asarray(kernel, layout=Layout([None, None, None, tuple(axes)], mesh)),
    )
    y, pull = gdt.vjp(gdt.convolution, *operands)
    cotangent = rng.standard_normal(y.shape)
    gradients = pull(gdt.asarray(cotangent, layout=operands[1].layout))
    assert channels.count(2) == 2  # those of x; cotangents of y have more
    whole, whole_pull = gdt.vjp(gdt.convolution, gdt.asarray(x), gdt.asarray(kernel))
    np.testing.assert_allclose(y.numpy(), whole.numpy(), rtol=1e-12)
    expected = whole_pull(gdt.asarray(cotangent))
    for gradient, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient.numpy(), other.numpy(), rtol=1e-10, atol=1e-10)
