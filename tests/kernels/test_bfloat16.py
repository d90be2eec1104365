"""Ops on bfloat16 on the emulated device: kernels read it and write it, without casts.

A kernel and the float32 plan add up the same products, which float32 holds exactly, in another
order. So where an op is one sum of products of operands, the kernel's result is that of the float32
plan, but for the order of the sum, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.engine.rounded import Rounded
from gdt.sharding.dtypes import BFLOAT16
from gdt.state.trees import leaves
from tests.programs.test_cuda_graph import graph_of

from . import strict_kernels
from .emulation import EmulatedBackend
from .test_engine import FOUR, LAYOUTS, ONE, mesh_of, replicated

EPSILON = 2.0**-7  # of bfloat16: a result is off by half of it
DEVICES = pytest.mark.parametrize("devices", [ONE, FOUR], ids=["one block", "four blocks"])


pytestmark = pytest.mark.usefixtures("emulated")


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers that bfloat16 holds, in float32."""
    return rng.standard_normal(shape).astype(BFLOAT16).astype(np.float32)


def placed(values: np.ndarray, layout: gdt.Layout) -> DistributedArray:
    return gdt.asarray(values.astype(BFLOAT16), layout=layout)


def assert_rounded(
    got: DistributedArray, wide: np.ndarray, terms: int, size: np.ndarray, roundings: int = 1
) -> None:
    """`got` is `wide`, sums of `terms` products whose absolute values add up to `size`, rounded to
    bfloat16: `roundings` times, as parts of a sum are before they are added up."""
    assert got.dtype == got.numpy().dtype == BFLOAT16
    order = terms * 2.0**-23 * size  # both sums are off by half of it
    allowed = EPSILON / 2 * (np.abs(wide) + (roundings - 1) * size) + order
    wrong = ~(np.abs(got.numpy().astype(np.float64) - wide) <= allowed)
    assert not wrong.any(), (got.numpy()[wrong][0], wide[wrong][0])


def kernels_of(explanation: Any) -> list[tuple[str, str]]:
    return [(row.op, row.kernel) for row in explanation.rows if row.kernel]


# ---------------------------------------------------------------- products


@DEVICES
@pytest.mark.parametrize("specs", LAYOUTS, ids=str)
def test_products_run_on_tensor_cores_in_every_layout(
    specs: Any, devices: list[str], rng: np.random.Generator
) -> None:
    mesh = mesh_of(devices)
    x, w, c = (numbers(rng, *shape) for shape in ((9, 20), (20, 7), (9, 7)))
    arrays = [placed(v, gdt.Layout(s, mesh)) for v, s in zip((x, w), specs, strict=True)]

    def product_and_gradients() -> list[DistributedArray]:
        out, pull = gdt.vjp(gdt.matmul, *arrays)
        return [out, *pull(placed(c, gdt.Layout.replicated(mesh, 2)))]

    explanation = gdt.explain(product_and_gradients)
    parts = len(devices)  # at most so many are rounded, and added up
    for got, left, right, terms in zip(
        explanation.value, (x, c, x.T), (w, w.T, c), (20, 7, 9), strict=True
    ):
        size = np.abs(left).astype(float) @ np.abs(right)
        assert_rounded(got, left.astype(float) @ right, terms, size, parts)
    assert [kernel[:34] for _, kernel in kernels_of(explanation)] == [
        "matmul_mma<bfloat16_t, bfloat16_t,"
    ] * 3


def test_no_cast_surrounds_a_product() -> None:
    x, w = (placed(np.ones(shape), replicated(2)) for shape in ((3, 8), (8, 4)))
    for op, operands in ((gdt.matrix_product, (x, w)), (gdt.contraction, (x, w))):
        terms = {"terms": (("i", "k"), ("k", "j"), ("i", "j"))} if op is gdt.contraction else {}
        op(*operands, **terms)
        phase = op.plan_of_call(operands, terms).phase
        assert isinstance(phase, Rounded)
        assert phase.widening == [None, None]
        assert phase.rounding == [None]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_an_architecture_chooses_the_kernel(
    arch: str, emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(emulated.runner, "arch", arch)
    columns = {"sm_75": 17, "sm_80": 33, "sm_90a": 40}[arch]  # a plan chooses once
    x, w = numbers(rng, 10, 32), numbers(rng, 32, columns)
    arrays = [placed(v, replicated(2)) for v in (x, w)]
    explanation = gdt.explain(gdt.matmul, *arrays)
    ((_, kernel),) = kernels_of(explanation)
    assert kernel.startswith(
        {
            "sm_75": "matmul_simt<float,",  # which has no bfloat16 on tensor cores
            "sm_80": "matmul_mma<bfloat16_t, bfloat16_t,",
            "sm_90a": "matmul_wgmma<bfloat16_t, bfloat16_t,",
        }[arch]
    )
    assert_rounded(explanation.value, x.astype(float) @ w, 32, np.abs(x).astype(float) @ np.abs(w))
    recorded = gdt.function(gdt.matmul)
    for _ in range(4):
        np.testing.assert_array_equal(recorded(*arrays).numpy(), explanation.value.numpy())


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("cublas", "body: matmul_backend is 'cublas'"),
        ("autotune", "body: measured: "),
        ("handwritten", "matmul_mma<bfloat16_t, bfloat16_t,"),
    ],
)
def test_the_library_gets_float32_and_its_result_is_rounded(
    name: str, kernel: str, rng: np.random.Generator
) -> None:
    x = placed(numbers(rng, 3, 300), replicated(2))
    y = x @ x.T  # the kernel has run, and the plan has its dtypes
    with gdt.matmul_backend(name):
        explanation = gdt.explain(lambda: x @ x.T)
    assert explanation.rows[-1].kernel.startswith(kernel)
    assert explanation.value.type is y.type
    wide = x.numpy().astype(float)
    assert_rounded(explanation.value, wide @ wide.T, 300, np.abs(wide) @ np.abs(wide).T)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "dtypes", "kernel"),
    [
        ("bik,bjk->bij", [(2, 3, 5), (2, 4, 5)], 2 * ["bfloat16"], "matmul_mma<bfloat16_t,"),
        ("kbi,jk->bji", [(5, 2, 3), (4, 5)], 2 * ["bfloat16"], "matmul_mma<bfloat16_t,"),
        ("ik,kj->ij", [(3, 5), (5, 4)], ["bfloat16", "float32"], "matmul_simt<float,"),
        # A sum of one operand goes before the product, in float32.
        ("bik,kj->ij", [(2, 3, 5), (5, 4)], 2 * ["bfloat16"], "matmul_simt<float,"),
    ],
)
def test_contractions_run_on_tensor_cores_where_operands_are_multiplied_as_they_are(
    subscripts: str, shapes: list[Any], dtypes: list[str], kernel: str, rng: np.random.Generator
) -> None:
    values = [numbers(rng, *shape) for shape in shapes]
    arrays = [
        gdt.asarray(v.astype(gdt.dtype(d)), layout=replicated(v.ndim))
        for v, d in zip(values, dtypes, strict=True)
    ]
    explanation = gdt.explain(gdt.einsum, subscripts, *arrays)
    contraction = [k for op, k in kernels_of(explanation) if op == "contraction"]
    assert len(contraction) == 1 and contraction[0].startswith(kernel)
    wide, size = (
        np.einsum(subscripts, *[f(v.astype(float)) for v in values]) for f in (lambda v: v, np.abs)
    )
    if "float32" in dtypes:
        assert explanation.value.dtype == np.float32
        np.testing.assert_allclose(explanation.value.numpy(), wide, 0, 10 * 2.0**-23 * size.max())
    else:
        assert_rounded(explanation.value, wide, 10, size)


# ---------------------------------------------------------------- attention


ATTENTION = "attention_mma<bfloat16_t, 64>"
GRADIENT = (
    "attention_mma_dq<bfloat16_t, 64, bfloat16_t> attention_mma_dkv<bfloat16_t, 64, bfloat16_t>"
)


@DEVICES
@pytest.mark.parametrize(
    ("features", "q_spec", "k_spec", "call"),
    [
        (8, [None, None], [None, None], {"causal": True}),
        (16, ["a", None], [None, None], {"dropout": 0.3, "key": 5}),
        (8, [None, None], ["b", None], {}),
        (8, ["a", None], ["a", None], {"causal": True}),  # in a ring
    ],
)
def test_attention_and_its_gradients_run_on_tensor_cores(
    features: int, q_spec: Any, k_spec: Any, call: Any, devices: list[str],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Weights and gradients of scores are rounded before they are multiplied, results after: each
    is off by half an epsilon of the largest term, and parts of a ring, or of split keys, once
    more."""
    mesh = mesh_of(devices)
    shapes = (2, 2, 12, features), (2, 1, 8, features), (2, 1, 8, features), (2, 2, 12, features)
    values = [numbers(rng, *shape) for shape in shapes]

    def results_and_gradients(arrays: list[DistributedArray]) -> list[DistributedArray]:
        *operands, g = arrays
        out, pull = gdt.vjp(lambda q, k, v: gdt.attention(q, k, v, **call), *operands)
        return [out, *pull(g)]

    specs = q_spec, k_spec, k_spec, q_spec
    explanation = gdt.explain(
        results_and_gradients,
        [
            placed(v, gdt.Layout([None, None, *spec], mesh))
            for v, spec in zip(values, specs, strict=True)
        ],
    )
    launched = {k for op, k in kernels_of(explanation) if op.startswith("attention")}
    assert launched == {ATTENTION, GRADIENT}
    exact = results_and_gradients([gdt.asarray(v.astype(np.float64)) for v in values])
    for got, want in zip(explanation.value, exact, strict=True):
        assert got.dtype == BFLOAT16
        wide = want.numpy()
        error = np.abs(got.numpy().astype(float) - wide).max()
        assert error <= 4 * EPSILON / 2 * np.abs(wide).max()


def test_attention_that_no_kernel_takes_in_bfloat16_gets_float32(rng: np.random.Generator) -> None:
    arrays = [placed(numbers(rng, 5, 4), replicated(2)) for _ in range(3)]  # no packs of 8
    explanation = gdt.explain(gdt.attention, *arrays)
    assert ("attention_of_tiles", "attention<float, 128>") in kernels_of(explanation)
    want = gdt.attention(*[gdt.asarray(a.numpy().astype(np.float32)) for a in arrays]).numpy()
    assert explanation.value.dtype == BFLOAT16
    np.testing.assert_allclose(explanation.value.numpy().astype(float), want, EPSILON, EPSILON)


# ---------------------------------------------------------------- reductions, losses and norms


def compared(
    function: Callable[..., Any], devices: list[str], specs: Any, *values: np.ndarray
) -> tuple[set[str], list[tuple[DistributedArray, np.ndarray]]]:
    """The kernels of a call on bfloat16, and its results beside those of the float32 plan on the
    same values and devices. Integers stay as they are."""
    mesh = mesh_of(devices)

    def arrays(dtype: Any) -> list[DistributedArray]:
        return [
            gdt.asarray(v.astype(dtype) if v.dtype.kind == "f" else v, layout=gdt.Layout(s, mesh))
            for v, s in zip(values, specs, strict=True)
        ]

    explanation = gdt.explain(function, *arrays(BFLOAT16))
    results = zip(leaves(explanation.value), leaves(function(*arrays(np.float32))), strict=True)
    return {k for _, k in kernels_of(explanation)}, [(got, want.numpy()) for got, want in results]


@DEVICES
@pytest.mark.parametrize("spec", [["a", None, "b"], [None, "a", None]], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "argmax", "argmin"])
def test_reductions_read_bfloat16(
    name: str, spec: Any, devices: list[str], rng: np.random.Generator
) -> None:
    x = numbers(rng, 9, 5, 6)
    axes = (0, 1, 2) if name.startswith("arg") else (0, 1, 2, (1, 2), None)

    def reduced(x: DistributedArray) -> list[DistributedArray]:
        return [getattr(gdt, name)(x, axis=axis) for axis in axes]

    launched, results = compared(reduced, devices, [spec], x)
    assert launched
    assert all("bfloat16_t" in k.split(">")[0] for k in launched), launched
    for (got, want), axis in zip(results, axes, strict=True):
        if name.startswith(("max", "min", "arg")):
            np.testing.assert_array_equal(got.numpy(), want.astype(got.dtype))
        else:
            size = getattr(np, name)(np.abs(x), axis=axis)
            assert_rounded(got, want, 270, size, len(devices))


def test_sums_of_bfloat16_in_float32_are_not_rounded(rng: np.random.Generator) -> None:
    x = numbers(rng, 70, 40)
    got = gdt.explain(lambda x: gdt.sum(x, axis=0, dtype="float32"), placed(x, replicated(2)))
    assert [k for _, k in kernels_of(got)] == ["reduce_columns<Sum, bfloat16_t, float, float>"]
    assert got.value.dtype == np.float32
    np.testing.assert_allclose(
        got.value.numpy(), x.sum(0), 0, 70 * 2.0**-23 * np.abs(x).sum(0).max()
    )


@DEVICES
def test_moments_of_bfloat16_are_merged_in_float32(
    devices: list[str], rng: np.random.Generator
) -> None:
    x = (8 + numbers(rng, 301, 5)).astype(BFLOAT16).astype(np.float32)
    launched, results = compared(lambda x: gdt.moments(x, 0), devices, [["a", None]], x)
    assert {k.split("<")[1][:17] for k in launched} == {"bfloat16_t, float"}
    for got, want in results:
        assert_rounded(got, want, 301, np.abs(want) + 8)


@DEVICES
@pytest.mark.parametrize("split", [["a", None], [None, "a"], ["b", "a"]], ids=str)
def test_cross_entropy_reads_logits_of_bfloat16(
    split: Any, devices: list[str], rng: np.random.Generator
) -> None:
    x, labels = 4 * numbers(rng, 9, 22), rng.integers(0, 22, 9)

    def loss(x: DistributedArray, labels: DistributedArray) -> DistributedArray:
        losses = gdt.sparse_softmax_cross_entropy_with_logits(labels, x, label_smoothing=0.1)
        return gdt.sum(losses)

    launched, results = compared(gdt.value_and_grad(loss), devices, [split, split[:1]], x, labels)
    forward = "softmax_ce<bfloat16_t" if split[-1] is None else "softmax_ce_parts<bfloat16_t"
    assert any(k.startswith(forward) for k in launched), launched
    assert any(k.startswith("softmax_ce_gradient<bfloat16_t") for k in launched)
    # Losses are rounded before they are added up, so is their sum; gradients once.
    (total, wide_total), (gradient, wide) = results
    assert abs(float(total) - wide_total) <= EPSILON * abs(wide_total)
    assert gradient.dtype == BFLOAT16
    np.testing.assert_allclose(gradient.numpy().astype(float), wide, EPSILON, 1e-6)


@DEVICES
def test_batch_norm_reads_bfloat16(devices: list[str], rng: np.random.Generator) -> None:
    x, g = numbers(rng, 24, 5), numbers(rng, 24, 5)
    scale, offset = numbers(rng, 5), numbers(rng, 5)

    def normalized(*arrays: DistributedArray) -> Any:
        *operands, g = arrays
        out, pull = gdt.vjp(lambda *xs: gdt.batch_norm(*xs)[0], *operands)
        return [out, *pull(g)]

    specs = ["a", None], [None], [None], ["a", None]
    launched, results = compared(normalized, devices, specs, x, scale, offset, g)
    kernels = {name for k in launched for name in k.split(">") if "<" in name}
    for name in ("bn_moments", "bn_apply", "bn_sums", "bn_backward"):
        assert any(k.strip().startswith(f"{name}<bfloat16_t, float") for k in kernels), launched
    for got, want in results:  # of operands that ops before have rounded
        assert got.dtype == BFLOAT16
        error = np.abs(got.numpy().astype(float) - want).max()
        assert error <= 4 * EPSILON * np.abs(want).max()


# ---------------------------------------------------------------- networks


PRODUCTS = 3 * (4 + 3)  # of attention, and of other layers; forwards, and two backwards


def network() -> nn.Module:
    block = nn.Sequential(nn.LayerNorm(), nn.MultiHeadAttention(2, causal=True, key=1))
    mlp = nn.Sequential(nn.LayerNorm(), nn.Dense(32, activation="gelu", key=2), nn.Dense(16, key=3))
    model = nn.Sequential(nn.Residual(block), nn.Residual(mlp), nn.Dense(4, key=4))
    return nn.mixed_precision(model, "bfloat16")


def batch_of(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((8, 12, 16)).astype(np.float32), rng.integers(0, 4, (8, 12))


def losses_and_gradients(model: nn.Module, x: Any, labels: Any) -> Any:
    def loss(model: nn.Module) -> DistributedArray:
        return nn.losses.sparse_softmax_cross_entropy(labels, model(x))

    return gdt.value_and_grad(loss)(model)


@DEVICES
def test_a_network_and_its_gradients_run_the_kernels_of_bfloat16(
    devices: list[str], rng: np.random.Generator
) -> None:
    values = batch_of(rng)

    def run(**how: Any) -> Any:
        mesh = gdt.create_mesh([("a", 2), ("b", 2)], **how)
        with gdt.default_mesh(mesh):
            x, labels = (
                gdt.asarray(v, layout=gdt.Layout(["a", *[None] * (v.ndim - 1)], mesh))
                for v in values
            )
            model = network()
            model(x)
            return gdt.explain(losses_and_gradients, model, x, labels)

    host, device = run(), run(devices=devices)
    launched = [(op, k) for op, k in kernels_of(device) if "matrix_product" in op or "att" in op]
    products = [k for op, k in launched if op.startswith("matrix_product")]
    assert len(products) == PRODUCTS
    assert {k.split(",")[0] for k in products} == {"matmul_mma<bfloat16_t"}
    assert {k for op, k in launched if "att" in op} == {ATTENTION, GRADIENT}
    # Both round what layers hand on: about ten times on the way. The gradient of the bias of keys,
    # which changes no weights, is what is left of rounding.
    pairs = [[a.numpy() for a in leaves(found.value)] for found in (device, host)]
    largest = max(np.abs(want).max() for want in pairs[1][1:])
    for got, want in zip(*pairs, strict=True):
        assert got.dtype == want.dtype == np.float32
        assert np.abs(got - want).max() <= 4 * EPSILON * max(np.abs(want).max(), largest / 20)


def test_a_captured_step_launches_an_eager_ones_kernels_and_chains_to_the_bit(
    rng: np.random.Generator,
) -> None:
    strict_kernels.register()
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], devices=["graph:0"])
    runner = backend_of(mesh).runner
    values = [batch_of(rng) for _ in range(5)]
    with gdt.default_mesh(mesh):
        model = network()
        step = lambda x, labels: losses_and_gradients(model, x, labels)
        captured = gdt.function(step)
        for number, arrays in enumerate(values):
            layouts = [gdt.Layout(["a", *[None] * (v.ndim - 1)], mesh) for v in arrays]
            batch = [gdt.asarray(v, layout=w) for v, w in zip(arrays, layouts, strict=True)]
            results, launches = [], []
            for run in (step, captured):
                runner.ran.clear()
                results.append([g.numpy() for g in leaves(run(*batch))])
                launches.append({**runner.ran})
            for got, want in zip(*results, strict=True):
                np.testing.assert_array_equal(got, want)
            eager, of_captured = launches
            chains = [found.pop("fused", 0) for found in launches]
            if number > 3:  # by then it is captured, and what eager runs ops one by one is a chain
                assert eager.pop("softmax_ce_gradient") == 1  # the launch of the loss computes it
                assert eager == of_captured
                assert chains[0] < chains[1]
            assert eager["matmul_mma"] == PRODUCTS and "matmul_simt" not in eager
            assert eager["attention_mma_dq"] == eager["attention_mma_dkv"] == 1
        assert graph_of(captured).is_captured
