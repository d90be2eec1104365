"""attention.cu against float64 NumPy, and in the engine against whole arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.cuda import launches
from gdt.errors import KernelError
from gdt.ops.blocks.philox import CounterRun
from gdt.random.bits import bernoulli
from tests.covering import covering, every

from .emulation import EmulatedBackend
from .harness import (
    DTYPES,
    EPSILONS,
    SANITIZERS,
    SCHEDULES,
    Execute,
    assert_close,
    garbage,
    name,
    normal,
    run_case,
)

HEADS = {  # leading axes of the queries, and of keys and values
    "none": ((), ()),
    "heads": ((2, 2), (2, 2)),
    "shared keys": ((2, 2), (2, 1)),
}
OPTIONS: dict[str, Any] = {
    "dtype": ["float32", "float16", "bfloat16"],
    "queries": [1, 5, 65],
    "keys": [1, 64, 70, 130],
    # Of 16-bit floats those in packs of 8 run on tensor cores.
    "features": [(1, 3), (40, 8), (8, 40), (130, 66), (33, 256), (72, 96), (200, 24)],
    "leading": list(HEADS),
    "causal": [False, True],
    "mask": ["none", "all", "keys", "heads"],
    "dropout": [0.0, 0.4],
    "place": ["whole", "tile", "padding"],
    "order": SCHEDULES,
}
KEY = 2**63 + 5


def reference(
    q: Any, k: Any, v: Any, g: Any, sees: Any, kept: Any, scale: float
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """The result, log-sum-exp, products, and gradients in q, k and v, in float64."""
    q, k, v, g = (a.astype(np.float64) for a in (q, k, v, g))
    scores = np.where(sees, scale * q @ k.swapaxes(-1, -2), -np.inf)
    high = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(high == -np.inf, 0, high))
    total = weights.sum(-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        lse = (high + np.log(total))[..., 0]
    out = (weights * kept) @ v
    products = (out * g).sum(-1)
    of_scores = weights * (kept * (g @ v.swapaxes(-1, -2)) - products[..., None])
    g_q, g_k = scale * of_scores @ k, scale * of_scores.swapaxes(-1, -2) @ q
    return out, lse, products, g_q, g_k, (weights * kept).swapaxes(-1, -2) @ g


def rounding(
    q: Any, k: Any, v: Any, g: Any, sees: Any, kept: Any, scale: float, dtype: str
) -> list[Any]:
    """How far the gradients may be off where the factors of their products are rounded to 16 bits:
    half of an epsilon of each term, and what is lost of numbers that are too small."""
    if dtype == "float32" or k.shape[-1] % 8 or v.shape[-1] % 8:
        return [0.0] * 3
    q, k, v, g = (a.astype(np.float64) for a in (q, k, v, g))
    _, lse, products, *_ = reference(q, k, v, g, sees, kept, scale)
    weights = np.where(sees, np.exp(scale * q @ k.swapaxes(-1, -2) - lse[..., None]), 0)
    of_scores = weights * (kept * (g @ v.swapaxes(-1, -2)) - products[..., None])
    half = EPSILONS[dtype] / 2
    smallest = 2.0**-25 if dtype == "float16" else 0.0
    of_scores, weights = (
        half * np.abs(a) + smallest
        for a in (of_scores, np.broadcast_to(weights * kept, sees.shape))
    )
    return [
        scale * of_scores @ np.abs(k),
        scale * of_scores.swapaxes(-1, -2) @ np.abs(q),
        weights.swapaxes(-1, -2) @ np.abs(g),
    ]


def check_attention(
    dtype: str,
    queries: int,
    keys: int,
    features: tuple[int, int],
    leading: str,
    causal: bool,
    mask: str,
    dropout: float,
    place: str | tuple[int, int],
    execute: Execute,
    arch: str | None = None,
) -> None:
    """Compare a tile of queries and a tile of keys of each item, somewhere in longer sequences.

    place: a word, or the positions of the first query and of the first key. arch: one whose own
    kernels have to run.
    """
    rng = np.random.default_rng(0)
    q_heads, k_heads = HEADS[leading]
    (e, f), heads = features, math.prod(q_heads)
    places = {"whole": (0, 0), "tile": (70, 40), "padding": (3, 2)}
    first = places[place] if isinstance(place, str) else place
    missing = (1, 3) if place == "padding" else (0, 0)
    totals = [
        max(a + n - gone, 1) for a, n, gone in zip(first, (queries, keys), missing, strict=True)
    ]
    q, k = normal(rng, (*q_heads, queries, e), dtype), normal(rng, (*k_heads, keys, e), dtype)
    v, g = normal(rng, (*k_heads, keys, f), dtype), normal(rng, (*q_heads, queries, f), dtype)
    mesh_ndim, scale = len(q_heads), 0.7 / math.sqrt(e)
    rows = first[0] + np.arange(queries)[:, None]
    columns = first[1] + np.arange(keys)
    sees = np.broadcast_to((rows < totals[0]) & (columns < totals[1]), (*q_heads, queries, keys))
    if causal:
        sees = sees & (columns <= rows)
    shape = {
        "none": None,
        "all": (*[1] * mesh_ndim, *totals),
        "keys": (*[1] * mesh_ndim, 1, totals[1]),
        "heads": (*q_heads, totals[0], 1),
    }[mask]
    masks = None if shape is None else rng.random(shape) < 0.6
    if masks is not None:
        whole = np.broadcast_to(masks, (*masks.shape[:-2], *totals))
        inside = np.minimum(rows, totals[0] - 1), np.minimum(columns, totals[1] - 1)
        sees = sees & whole[..., inside[0], inside[1]]
    kept, head = np.ones(1), None
    if dropout:
        head = rng.permutation(heads).reshape(q_heads).astype(np.int64)
        starts = (head[..., None] * totals[0] + rows[:, 0]) * totals[1] + first[1]
        drawn = bernoulli(np, CounterRun(starts, keys), KEY, p=1 - dropout)
        kept = drawn / (1 - dropout)
    is_offset = place != "whole"
    ones = [1] * mesh_ndim
    sight = launches.Sight(
        *totals,
        scale,
        causal,
        np.full(ones, first[0], np.int32) if is_offset else None,
        np.full(q_heads, first[1], np.int32) if is_offset else None,
        masks,
        np.full(1, KEY, np.uint64) if dropout else None,
        dropout,
        head,
    )
    if dtype == "bfloat16" and any(n % 8 for n in features):
        return  # which no kernel takes
    want, want_lse, products, *gradients = reference(q, k, v, g, sees, kept, scale)
    out, lse = (
        garbage((*q_heads, queries, f), q.dtype),
        garbage((*q_heads, queries), DTYPES["float32"]),
    )
    calls = launches.attention(q, k, v, out, lse, sight, mesh_ndim=mesh_ndim, arch=arch)
    execute(calls)
    size = 4.0 / (1 - dropout)
    assert_close(out, want, dtype, e + keys, size)
    unseen = want_lse == -np.inf
    assert (lse[unseen] == -np.inf).all()
    assert_close(np.where(unseen, 0, lse), np.where(unseen, 0, want_lse), dtype, e + keys, 4.0)
    result = q.dtype if dtype == "bfloat16" else DTYPES["float32"]
    got = [garbage(a.shape, result) for a in gradients]
    sums = want_lse.astype(np.float32), products.astype(np.float32)
    calls += launches.attention_gradients(
        q, k, v, g, *sums, tuple(got), sight, mesh_ndim=mesh_ndim, arch=arch
    )
    execute(calls[1:])
    assert not arch or all("wgmma" in call.instance.kernel for call in calls)
    slack = rounding(q, k, v, g, sees, kept, scale, dtype)
    for gradient, exact, more in zip(got, gradients, slack, strict=True):
        terms = e + f + max(keys, queries)
        assert_close(gradient, exact, dtype, terms, size * math.sqrt(f + e), more)


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_results_and_gradients(case: dict[str, Any]) -> None:
    run_case(check_attention, case)


NARROW = {
    "features": [(1, 3), (40, 8), (8, 40)],
    "keys": [70, 130],
    "leading": ["none", "shared keys"],
}
WIDE = {"features": [(130, 66), (33, 256), (72, 96), (200, 24)], "keys": [130], "leading": ["none"]}


@pytest.mark.kernels_full
@pytest.mark.parametrize("sizes", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("dtype", OPTIONS["dtype"])
def test_results_and_gradients_in_full(dtype: str, sizes: dict[str, Any]) -> None:
    fewer = {"dtype": [dtype], "queries": [65], "order": ["random"]}
    for case in every(**(OPTIONS | fewer | sizes)):
        run_case(check_attention, case)


LAST_OF_TILE = {14, 30, 62}  # offsets with which a tile ends one key past what a query sees


@pytest.mark.parametrize(
    "offset",
    [
        pytest.param(n, marks=() if n in LAST_OF_TILE else pytest.mark.kernels_full)
        for n in range(64)
    ],
)
def test_causal_tiles_end_with_the_last_key_that_a_query_sees(offset: int) -> None:
    for dtype in ("float32", "float16"):
        check_attention(
            dtype, 70, 130, (8, 8), "none", True, "none", 0.0, (offset, 0), Execute("random")
        )


@pytest.mark.kernels_full
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    ("dtype", "features"),
    [("float32", (33, 40)), ("float16", (40, 72)), ("bfloat16", (136, 24))],
)
def test_results_and_gradients_under_sanitizers(
    sanitizer: str, dtype: str, features: tuple[int, int]
) -> None:
    check_attention(
        dtype, 65, 70, features, "shared keys", True, "heads", 0.4, "padding",
        Execute(sanitizer=sanitizer),
    )  # fmt: skip


def test_more_features_than_a_block_holds_have_no_kernel() -> None:
    q, v = np.zeros((3, 4), np.float32), np.zeros((3, 257), np.float32)
    lse = np.zeros(3, np.float32)
    with pytest.raises(KernelError, match="attention: no kernel takes 257 features"):
        launches.attention(q, q, v, v.copy(), lse, launches.Sight(3, 3, 1.0))
    wide = q.astype(np.float64)
    with pytest.raises(KernelError, match="attention: no kernel takes float64"):
        launches.attention(wide, wide, wide, wide.copy(), lse, launches.Sight(3, 3, 1.0))


@pytest.mark.parametrize(
    ("dtype", "arch", "kernel"),
    [
        ("float32", None, "attention"),
        ("float16", None, "attention_mma"),
        ("float16", "sm_90a", "attention_wgmma"),
    ],
)
def test_results_have_the_same_bits_without_the_log_sum_exp(
    dtype: str, arch: str | None, kernel: str, rng: np.random.Generator
) -> None:
    q, k, v = (normal(rng, (2, n, 64), dtype) for n in (70, 130, 130))
    sight, execute = launches.Sight(70, 130, 0.1, True), Execute("random")
    outs = [garbage(q.shape, q.dtype) for _ in range(2)]
    lse = garbage((2, 70), DTYPES["float32"])
    for out, sums in zip(outs, (lse, None), strict=True):
        (call,) = launches.attention(q, k, v, out, sums, sight, mesh_ndim=1, arch=arch)
        assert call.instance.kernel == kernel
        execute([call])
    assert outs[0].tobytes() == outs[1].tobytes()


def test_infinite_and_nan_scores_give_what_numpy_gives() -> None:
    q = np.array([[1], [np.nan], [np.inf], [-np.inf], [1e38]], np.float32)
    k = np.array([[1], [2], [-3]], np.float32)
    v = np.array([[1], [2], [4]], np.float32)
    out, lse = garbage((5, 1), q.dtype), garbage((5,), q.dtype)
    Execute()(launches.attention(q, k, v, out, lse, launches.Sight(5, 3, 1.0)))
    assert np.isfinite(out[0, 0])
    assert np.isnan(out[1:4]).all()
    assert np.isnan(lse[1:4]).all()
    assert out[4] == 2  # the weights of the smaller scores are 0
    assert lse[4] == np.float32(2e38)


def test_a_query_whose_scores_are_all_infinitely_small_has_no_weights() -> None:
    q, k, v = (np.full((n, 1), value, np.float32) for n, value in ((1, -np.inf), (2, 1), (2, 3)))
    g, products = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    out, lse, dv = (garbage(shape, q.dtype) for shape in ((1, 1), (1,), (2, 1)))
    gradients = garbage(q.shape, q.dtype), garbage(k.shape, q.dtype), dv
    sight = launches.Sight(1, 2, 1.0)
    Execute()(launches.attention(q, k, v, out, lse, sight))
    Execute()(launches.attention_gradients(q, k, v, g, lse, products, gradients, sight))
    assert out == 0
    assert lse == -np.inf
    assert not dv.any()


# ---------------------------------------------------------------- in the engine

WHOLE, ROWS, RING = [None, None], ["b", None], [("a", "b"), None]
SPLITS = [
    [WHOLE, WHOLE, WHOLE], [ROWS, WHOLE, WHOLE], [WHOLE, ROWS, ROWS],
    [["a", "b"], ROWS, ["b", "a"]],
]  # fmt: skip
# Statics, and the layout of a mask (None: no mask).
CALLS: list[tuple[dict[str, Any], Any]] = [
    ({"causal": True}, None),
    ({"dropout": 0.3, "key": 5}, [None] * 4),
    ({"causal": True, "dropout": 0.2, "key": 6}, ["a", None, None, None]),
]


def results_and_gradients(arrays: list[Any], mask: Any, g: Any, call: dict[str, Any]) -> list[Any]:
    out, pull = gdt.vjp(lambda q, k, v: gdt.attention(q, k, v, mask, **call), *arrays)
    return [out, *pull(g)]


@pytest.mark.parametrize("count", [1, 4], ids=["one block", "four blocks"])
def test_every_split_runs_the_kernels_and_equals_the_body(
    count: int, emulated: EmulatedBackend, rng: np.random.Generator
) -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], devices=[f"emu:{i}" for i in range(count)])
    # Of four tiles the last has one of the queries, and none of the keys.
    shapes = (2, 3, 13, 4), (2, 1, 9, 4), (2, 1, 9, 5), (2, 3, 13, 5)
    *arrays, g = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    seen = rng.random((2, 1, 13, 9)) < 0.5
    seen[0, 0, 2] = False  # a query that sees no key
    for n, (call, mask_specs) in enumerate(CALLS):
        mask = mask_specs and gdt.asarray(seen, layout=gdt.Layout(mask_specs, mesh))
        wide = [gdt.asarray(a.astype(np.float64)) for a in (*arrays, g)]
        exact = results_and_gradients(wide[:3], None if mask is None else seen, wide[3], call)
        for specs in ([RING] * 3, *SPLITS[n :: len(CALLS)]):
            placed = [
                gdt.asarray(a, layout=gdt.Layout([None, None, *spec], mesh))
                for a, spec in zip(arrays, specs, strict=True)
            ]
            cotangent = gdt.asarray(g, layout=gdt.Layout.replicated(mesh, 4))
            explanation = gdt.explain(results_and_gradients, placed, mask, cotangent, call)
            assert {row.kernel for row in explanation.rows if row.op.startswith("attention")} == {
                "attention<float, 128>", "attention_dq<float, 128> attention_dkv<float, 128>",
            }  # fmt: skip
            for result, want in zip(explanation.value, exact, strict=True):
                assert_close(result.numpy(), want.numpy(), "float32", 16, 8.0)


@pytest.mark.parametrize(
    ("features", "arch", "kernels"),
    [
        (
            4,
            "sm_80",
            {"attention<half_t, 128>", "attention_dq<half_t, 128> attention_dkv<half_t, 128>"},
        ),
        (
            8,
            "sm_80",
            {
                "attention_mma<half_t, 64>",
                "attention_mma_dq<half_t, 64, float> attention_mma_dkv<half_t, 64, float>",
            },
        ),
        (
            64,
            "sm_90a",
            {
                "attention_wgmma<half_t, 64>",
                "attention_wgmma_dq<half_t, 64, float> attention_wgmma_dkv<half_t, 64, float>",
            },
        ),
    ],
)
def test_half_precision_runs_the_kernels(
    features: int, arch: str, kernels: set[str], emulated: EmulatedBackend,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(emulated.runner, "arch", arch)
    mesh = gdt.create_mesh([("a", 2)], devices=["emu:0"])
    arrays = [rng.standard_normal((2, 5, features)).astype(np.float16) for _ in range(4)]
    *placed, g = [gdt.asarray(a, layout=gdt.Layout(["a", None, None], mesh)) for a in arrays]
    explanation = gdt.explain(results_and_gradients, placed, None, g, {"causal": True})
    assert {row.kernel for row in explanation.rows if row.op.startswith("attention")} == kernels
    *wide, wide_g = [gdt.asarray(a.astype(np.float64)) for a in arrays]
    exact = results_and_gradients(wide, None, wide_g, {"causal": True})
    for result, want in zip(explanation.value, exact, strict=True):
        assert result.dtype == np.float16
        assert_close(result.numpy(), want.numpy(), "float16", 16, 8.0)


def test_float64_and_mixed_dtypes_run_the_body_and_say_so(emulated: EmulatedBackend) -> None:
    mesh = gdt.create_mesh([("a", 2)], devices=["emu:0"])
    x = gdt.ones((3, 4), "float64", layout=gdt.Layout.replicated(mesh, 2))
    for v, reason in (
        (x, "attention: no kernel takes float64"),
        (x.astype("float32"), "operands are of float32, float64"),
    ):
        explanation = gdt.explain(gdt.attention, x, x, v)
        (kernel,) = [row.kernel for row in explanation.rows if row.op == "attention_of_tiles"]
        assert kernel.startswith("body: ")
        assert reason in kernel
        assert explanation.value.tolist() == [[1.0] * 4] * 3
