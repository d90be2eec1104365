"""attention_hopper.cu against float64 NumPy, and what it leaves to other kernels of attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from tests.covering import covering, every

from .harness import SANITIZERS, SCHEDULES, Execute, garbage, name, normal, run_case
from .test_attention import HEADS, OPTIONS, check_attention

ARCH = "sm_90a"
HOPPER_OPTIONS: dict[str, Any] = OPTIONS | {
    "dtype": ["float16", "bfloat16"],
    "queries": [1, 65, 150],
    "keys": [1, 64, 130, 300],
    "features": [(64, 64), (128, 128)],
    "async_mode": ["early", "late", "tossed"],
}


def check_wgmma(**options: Any) -> None:
    check_attention(**options, arch=ARCH)


@pytest.mark.parametrize("case", covering(**HOPPER_OPTIONS), ids=name)
def test_results_on_hopper(case: dict[str, Any]) -> None:
    run_case(check_wgmma, case)


@pytest.mark.kernels_full
@pytest.mark.parametrize("width", [64, 128])
def test_results_on_hopper_in_full(width: int) -> None:
    fewer = {"queries": [150], "keys": [130, 300], "order": ["random"], "async_mode": ["tossed"]}
    for case in every(**(HOPPER_OPTIONS | fewer | {"features": [(width, width)]})):
        run_case(check_wgmma, case)


@pytest.mark.kernels_full
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_results_on_hopper_under_sanitizers(sanitizer: str) -> None:
    for async_mode in ("early", "late", "tossed"):
        check_wgmma(
            dtype="bfloat16", queries=130, keys=290, features=(64, 64), leading="none", causal=True,
            mask="heads", dropout=0.4, place="padding",
            execute=Execute("random", async_mode, sanitizer),
        )  # fmt: skip


@pytest.mark.parametrize("offset", [14, 62, 127, 128])
def test_causal_tiles_on_hopper_end_with_the_last_key_that_a_query_sees(offset: int) -> None:
    for keys in (130, 260):
        check_wgmma(
            dtype="float16", queries=150, keys=keys, features=(64, 64), leading="none", causal=True,
            mask="none", dropout=0.0, place=(offset, 0), execute=Execute("random"),
        )  # fmt: skip


def call_of(q: Any, k: Any, v: Any, scale: float = 0.1, arch: str | None = ARCH) -> Any:
    """The call, and its result."""
    items, queries = math.prod(np.broadcast_shapes(q.shape[:-2], k.shape[:-2])), q.shape[-2]
    out = garbage((items, queries, v.shape[-1]), q.dtype)
    lse = garbage((items, queries), np.dtype(np.float32))
    sight = launches.Sight(queries, k.shape[-2], scale)
    how: dict[str, Any] = {"mesh_ndim": q.ndim - 2, "arch": arch}
    (call,) = launches.attention(q, k, v, out, lse, sight, **how)
    return call, out


def test_no_item_reads_the_next_one_and_every_schedule_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (normal(rng, (2, 150, 64), "float16") for _ in range(3))
    v[1] = np.inf
    results = []
    for order in SCHEDULES:
        call, out = call_of(q, k, v)
        Execute(order, "tossed")([call])
        assert np.isfinite(out[0]).all()
        assert not np.isfinite(out[1]).any()
        results.append(out[0].tobytes())
    assert len(set(results)) == 1


def test_what_wgmma_does_not_take_runs_on_the_other_kernels() -> None:
    rng = np.random.default_rng(0)

    def operands(width: int = 64, dtype: str = "float16", misaligned: bool = False) -> list[Any]:
        return [normal(rng, (3, 9, width), dtype, misaligned) for _ in range(3)]

    q, k, v = operands()
    assert call_of(q, k, v)[0].instance.kernel == "attention_wgmma"
    apart = np.zeros((3, 16, 64), np.float16)[:, :9]  # items with gaps between them
    assert call_of(apart, apart, apart)[0].instance.kernel == "attention_wgmma"
    odd = np.lib.stride_tricks.as_strided(np.zeros(4096, np.float16), (3, 9, 64), (1156, 128, 2))
    for given, kernel in (
        ((q, k, v, 0.1, "sm_100"), "attention_mma"),
        ((q, k, v, 0.1, None), "attention_mma"),
        ((q, k, v, 0.0), "attention_mma"),
        ((q, k, v, -0.1), "attention_mma"),
        ((q, k, operands(128)[2]), "attention_mma"),
        (operands(72), "attention_mma"),
        (operands(256), "attention_mma"),
        ((q, k[::-1], v), "attention_mma"),  # a negative stride
        ((q, odd, v), "attention_mma"),  # items that lie no multiple of 16 bytes apart
        (operands(misaligned=True), "attention"),
        (operands(dtype="float32"), "attention"),
    ):
        assert call_of(*given)[0].instance.kernel == kernel


def test_as_many_items_as_heads_and_batches_share_maps() -> None:
    """Keys of grouped queries are one map, in which several items have the same place."""
    rng = np.random.default_rng(0)
    (q_heads, k_heads) = HEADS["shared keys"]
    q, k = normal(rng, (*q_heads, 9, 64), "float16"), normal(rng, (*k_heads, 9, 64), "float16")
    call, _ = call_of(q, k, k)
    maps = [a for a in call.arguments if hasattr(a, "box_rows")]
    assert [m.sizes for m in maps] == [(64, 9, 4), (64, 9, 2), (64, 9, 2)]
    assert [m.box_rows for m in maps] == [128, 128, 128]
