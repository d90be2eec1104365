"""Ops on bfloat16 on the emulated device: kernels read it and write it, without casts.

A kernel and the float32 plan add up the same products, which float32 holds exactly, in another
order. So where an op is one sum of products of operands, the kernel's result is that of the float32
plan, but for the order of the sum, rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.engine.rounded import Rounded
from gdt.sharding.dtypes import BFLOAT16

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
    parts = 4  # at most so many are rounded, and added up
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
