"""Products of recorded steps with what follows them, and losses with their gradients: one launch
each, beside eager steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import backend_of
from gdt.cuda import launches
from tests.needs import need_compiler

from . import strict_kernels

STEPS = 5


@pytest.fixture
def mesh() -> Iterator[gdt.Mesh]:
    need_compiler()
    strict_kernels.register()
    with gdt.default_mesh(gdt.create_mesh([("x", 2), ("y", 2)], devices=["graph:0"])) as made:
        yield made


def replayed(function: Callable[..., Any], *arrays: Any) -> list[list[str]]:
    """The ops that run together in a recorded function, which has the bits of the eager one."""
    step = gdt.function(function)
    for _ in range(STEPS):
        for got, want in zip(step(*arrays), function(*arrays), strict=True):
            assert got.type is want.type
            assert got.numpy().tobytes() == want.numpy().tobytes()
        arrays = (arrays[0] * -1.25, *arrays[1:])
    return [[f.name for f in k.fused] for k in step.programs[0].instructions if k.fused]


def operands(dtype: str, split: Any = None) -> tuple[Any, ...]:
    """x, w, bias and a cotangent, of which elements are 0 and -0."""
    rng, mesh = np.random.default_rng(0), gdt.get_default_mesh()
    layouts = [["x", None, None], [None, split], [split], ["x", None, split]]
    arrays = [rng.normal(size=s).astype("f4") for s in ((4, 3, 8), (8, 16), (16,), (4, 3, 16))]
    arrays[0][1:3] *= 0.0  # of both signs
    arrays[2][:4] = 0.0, -0.0, 1e-30, -1e-30
    made = [
        gdt.asarray(a, layout=gdt.Layout(names, mesh))
        for a, names in zip(arrays, layouts, strict=True)
    ]
    return tuple([a.astype(dtype) for a in made])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_a_layer_and_its_gradient_are_launches_of_products(dtype: str, mesh: gdt.Mesh) -> None:
    """Of 16 bits each op rounds its result, though no op reads it from memory."""

    def layers(x: Any, w: Any, bias: Any, g: Any) -> Any:
        def two(x: Any, w: Any, bias: Any) -> Any:
            return gdt.relu(gdt.relu(x @ w + bias) @ w.mT)

        out, pull = gdt.vjp(two, x, w, bias)
        return out, *pull(x)

    found = replayed(layers, *operands(dtype))
    assert found[0] == ["matrix_product", "add", "relu"]
    assert ["matrix_product_nt", "relu_gradient"] in found


def test_what_is_read_elsewhere_is_written(mesh: gdt.Mesh) -> None:
    def layer(x: Any, w: Any, bias: Any, g: Any) -> Any:
        product = x @ w
        other = x @ w
        return gdt.relu(product + bias), product * 2, other + other, other * g

    assert not any("matrix_product" in ops for ops in replayed(layer, *operands("float32")))


def test_a_convolution_is_no_product(mesh: gdt.Mesh) -> None:
    images = gdt.asarray(np.random.default_rng(0).normal(size=(4, 6, 5, 4)).astype("f4"))
    kernel = gdt.ones((3, 2, 4, 8), dtype="float32") / 16
    found = replayed(lambda x: (gdt.relu(gdt.convolution(x, kernel, 2)),), images)
    assert all(ops == ["relu"] for ops in found)


def test_a_result_in_another_order_is_made_op_by_op(mesh: gdt.Mesh) -> None:
    """Of weights split on one device, the coordinates of the mesh stand before the rows."""
    x, w, bias, _ = operands("float32", split="y")
    for layer, together in (
        (lambda x: (gdt.relu(x @ w),), ["matrix_product", "relu"]),
        (lambda x: (gdt.relu(x @ w + bias),), ["add", "relu"]),
    ):
        assert replayed(layer, x) == [together]


def test_a_long_sum_is_one_launch_of_a_captured_step(mesh: gdt.Mesh) -> None:
    """An eager product adds up its parts of the sum in a second launch."""
    rng, ran = np.random.default_rng(0), backend_of(mesh).runner.ran
    x, w = (gdt.asarray(rng.normal(size=s).astype("f4")) for s in ((3, 600), (600, 5)))
    layer = lambda x: gdt.relu(x @ w + w[0])
    step = gdt.function(layer)
    for _ in range(STEPS):
        launched = []
        for run in (step, layer):
            ran.clear()
            launched.append((run(x).numpy().tobytes(), ran["matmul_simt"], ran["matmul_finish"]))
        (got, *captured), (want, *eager) = launched
        assert got == want
        x = x * -1.25
    assert (captured, eager) == ([1, 0], [1, 1])


def test_a_product_in_halves_ends_as_one_launch_does(
    mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 rows and 16 columns, where a launch takes 6 of each."""
    monkeypatch.setattr(launches, "INT_LIMIT", 6)
    x, w, bias, _ = operands("float32")
    x, w = x[..., :7], w[:7]  # whose plans no other test has made
    ran = backend_of(mesh).runner.ran

    def layer(x: Any) -> Any:
        out, pull = gdt.vjp(lambda x: gdt.relu(gdt.relu(x @ w + bias) @ w.mT), x)
        return out, *pull(x)

    found = replayed(layer, x)
    assert found[0] == ["matrix_product", "add", "relu"]
    ran.clear()
    gdt.relu(x @ w + bias).numpy()
    assert ran["matmul_simt"] > 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_a_loss_and_its_gradient_are_one_launch(dtype: str, mesh: gdt.Mesh) -> None:
    """Where the cotangent of the loss is known before the loss, of whatever options."""
    x, _, _, g = operands(dtype)
    labels = gdt.asarray(
        np.arange(12).reshape(4, 3) % 8, layout=gdt.Layout(["x", None], mesh), dtype="int32"
    )
    loss = gdt.sparse_softmax_cross_entropy_with_logits

    def of(change: Callable[[Any], Any], **options: Any) -> Callable[..., Any]:
        def step(x: Any, g: Any, labels: Any) -> Any:
            out, pull = gdt.vjp(lambda x: change(loss(labels, x, **options)), x)
            return out, *pull(gdt.ones_like(out) if out.ndim == 0 else g)

        return step

    joint = ["fused_cross_entropy", "fused_cross_entropy_gradient"]
    given = x, gdt.sum(g, axis=-1), labels
    for options in ({}, {"label_smoothing": 0.1}, {"ignore_index": 2}):
        for change in (lambda loss: loss, gdt.mean):
            assert joint in replayed(of(change, **options), *given)
    assert joint not in replayed(of(lambda loss: loss * loss), *given)


def test_a_loss_of_long_rows_on_hopper_is_of_clusters_with_its_gradient_and_alone(
    mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, classes = backend_of(mesh).runner, 16_201
    monkeypatch.setattr(runner, "arch", "sm_90a")
    x = gdt.asarray(np.random.default_rng(0).normal(size=(3, classes)).astype("f4"))
    labels = gdt.asarray(np.array([0, 9_000, classes - 1], "i4"))
    loss = gdt.sparse_softmax_cross_entropy_with_logits

    def step(x: Any, g: Any) -> Any:
        out, pull = gdt.vjp(lambda x: loss(labels, x), x)
        return out, *pull(g)

    runner.ran.clear()
    joint = ["fused_cross_entropy", "fused_cross_entropy_gradient"]
    assert joint in replayed(step, x, gdt.ones((3,), "float32"))
    assert runner.ran["softmax_ce_cluster"] > STEPS
    assert runner.ran["softmax_ce"] == 0


def test_a_layer_follows_the_choice_of_cublas(mesh: gdt.Mesh) -> None:
    x, w, bias, _ = operands("float32")
    step, ran = (
        gdt.function(lambda *xs: gdt.relu(xs[0] @ xs[1] + xs[2])),
        backend_of(mesh).runner.ran,
    )
    for _ in range(STEPS):
        want = step(x, w, bias).numpy()
    (layer,) = step.programs[0].instructions
    registers = dict(zip(step.programs[0].inputs, (x, w, bias), strict=True))
    blocks = [registers[r].blocks[0] for r in layer.inputs]
    for name, launched in (("handwritten", {"matmul_simt"}), ("cublas", {"fused"})):
        ran.clear()
        with gdt.matmul_backend(name):
            (out,) = layer.function(*blocks)
        assert ran.keys() == launched
        np.testing.assert_allclose(out.get().reshape(want.shape), want, rtol=1e-5, atol=1e-6)
