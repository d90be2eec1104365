"""softmax_ce.cu against float64 NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gdt.cuda import launches
from tests.covering import covering, every

from .harness import (
    DTYPES,
    SANITIZERS,
    SCHEDULES,
    Execute,
    assert_close,
    empty,
    garbage,
    name,
    normal,
    run_case,
    with_sanitizers,
)

IGNORE = -100
IN_CLUSTER: dict[str, Any] = {"arch": "sm_90a", "shared_limit": 0}  # whatever the row's length
OPTIONS: dict[str, Any] = {
    "dtype": list(DTYPES),
    "label_dtype": ["int32", "int64"],
    "rows": [1, 5, 9],
    "classes": [1, 3, 10, 37, 1027],
    "leading": ["none", "split", "replicated labels"],
    "smoothing": [0.0, 0.1],
    "scale": ["none", "one", "rows"],
    "misaligned": [False, True],
    "gradient": ["none", "apart", "in place"],
    "place": ["shared memory", "none"],  # where a row is kept
    "order": SCHEDULES,
}
CLUSTER_OPTIONS = OPTIONS | {
    "rows": [1, 2],
    "leading": ["none", "replicated labels"],
    "place": ["cluster"],
}


def reference(x: Any, labels: Any, scale: Any, smoothing: float) -> tuple[Any, Any, Any]:
    """Loss, log-sum-exp and gradient in float64, over the last axis."""
    classes = x.shape[-1]
    high = x.max(-1, keepdims=True)
    lse = np.log(np.exp(x - high).sum(-1)) + high[..., 0]
    target = np.full(x.shape, smoothing / classes)
    valid = (labels >= 0) & (labels < classes)
    np.put_along_axis(
        target, np.where(valid, labels, 0)[..., None], 1 - smoothing + smoothing / classes, -1
    )
    loss = lse - (target * x).sum(-1)
    gradient = (np.exp(x - lse[..., None]) - target) * scale[..., None]
    kept = labels != IGNORE
    loss = np.where(kept, np.where(valid, loss, np.nan), 0.0)
    return loss, lse, np.where((kept & valid)[..., None], gradient, 0.0)


def shapes(leading: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading axes of the logits and of the labels."""
    return {
        "none": ((), ()),
        "split": ((3, 2), (3, 2)),
        "replicated labels": ((3, 2), (3, 1)),
    }[leading]


def check_whole_rows(
    dtype: str,
    label_dtype: str,
    rows: int,
    classes: int,
    leading: str,
    smoothing: float,
    scale: str,
    misaligned: bool,
    gradient: str,
    place: str,
    execute: Execute,
) -> None:
    rng = np.random.default_rng(0)
    logits_leading, labels_leading = shapes(leading)
    logits = normal(rng, (*logits_leading, rows, classes), dtype, misaligned)
    labels = rng.integers(0, classes, (*labels_leading, rows)).astype(label_dtype)
    if rows > 4:
        labels[..., 2] = IGNORE
    wide = np.dtype("float64" if dtype == "float64" else "float32")
    factors = None
    if scale != "none":
        factors = rng.standard_normal((*labels_leading, rows if scale == "rows" else 1)).astype(
            wide
        )
    used = np.ones((1,)) if factors is None else factors.astype(np.float64)
    want = reference(
        logits.astype(np.float64),
        np.broadcast_to(labels, (*logits_leading, rows)),
        np.broadcast_to(used, (*logits_leading, rows)),
        smoothing,
    )
    loss, lse = (garbage((*logits_leading, rows), wide) for _ in range(2))
    out = {"none": None, "apart": garbage(logits.shape, logits.dtype), "in place": logits}[gradient]
    flag = np.full(1, 2**64 - 1, np.uint64)
    where = {"shared memory": {}, "none": {"shared_limit": 0}, "cluster": IN_CLUSTER}[place]
    (call,) = launches.softmax_ce(
        logits,
        labels,
        loss,
        lse,
        out,
        flag,
        scale=factors,
        mesh_ndim=len(logits_leading),
        smoothing=smoothing,
        ignore=IGNORE,
        **where,
    )
    assert call.instance.kernel == "softmax_ce" + "_cluster" * (place == "cluster")
    execute([call])
    assert flag[0] == 2**64 - 1
    assert_close(loss, want[0], dtype, classes, 4.0)
    assert_close(lse, want[1], dtype, classes, 4.0)
    if out is None:
        return
    assert_close(out, want[2], dtype, classes, float(np.abs(used).max()))
    if gradient == "in place" or leading == "replicated labels":
        return
    alone, ones, apart = garbage(lse.shape, wide), np.ones_like(lse), garbage(out.shape, out.dtype)
    options: dict[str, Any] = {
        "mesh_ndim": len(logits_leading), "smoothing": smoothing, "ignore": IGNORE,
    }  # fmt: skip
    execute(launches.softmax_ce(logits, labels, ones, alone, None, flag, **options, **where))
    assert (ones.tobytes(), alone.tobytes()) == (loss.tobytes(), lse.tobytes())
    ones[:] = 1
    execute(launches.softmax_ce(logits, labels, ones, None, None, flag, **options, **where))
    assert ones.tobytes() == loss.tobytes()
    ones[:] = 1
    calls = launches.softmax_ce_gradient(
        logits, labels, alone, ones, apart, total=classes, scale=factors, **options
    )
    execute(calls)
    assert apart.tobytes() == out.tobytes()


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_loss_and_gradient_of_whole_rows(case: dict[str, Any]) -> None:
    run_case(check_whole_rows, case)


@pytest.mark.parametrize("case", covering(**CLUSTER_OPTIONS)[::2], ids=name)
def test_loss_and_gradient_of_rows_in_clusters(case: dict[str, Any]) -> None:
    run_case(check_whole_rows, case)


@pytest.mark.kernels_full
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradient_of_whole_rows_in_full(dtype: str) -> None:
    fewer = {"dtype": [dtype], "rows": [5], "order": ["random"]}
    for case in every(**(OPTIONS | fewer)):
        run_case(check_whole_rows, case)
    fewer = {"dtype": [dtype], "rows": [1], "leading": ["none"], "label_dtype": ["int32"]}
    for case in every(**(CLUSTER_OPTIONS | fewer)):
        run_case(check_whole_rows, case)


def test_clusters_are_chosen_for_long_rows_on_hopper() -> None:
    for dtype, classes, arch, has_gradient, cluster in (
        ("float32", 16_000, "sm_90a", True, 1),  # one block has all of the row
        ("float32", 17_000, "sm_90a", True, 8),
        ("float32", 17_000, "sm_90a", False, 8),  # with the same bits
        ("float32", 17_000, "sm_80", True, 1),
        ("float32", 227_000, "sm_90a", True, 8),
        ("float32", 228_000, "sm_90a", True, 1),  # one block would fill half of a multiprocessor
        ("bfloat16", 32_000, "sm_90a", True, 1),
        ("bfloat16", 256_000, "sm_90a", True, 8),
    ):
        logits, loss = np.zeros((2, classes), DTYPES[dtype]), np.zeros(2, np.float32)
        gradient = logits.copy() if has_gradient else None
        labels, flag = np.zeros(2, np.int32), np.zeros(1, np.uint64)
        (call,) = launches.softmax_ce(logits, labels, loss, loss.copy(), gradient, flag, arch=arch)
        assert (call.cluster, call.grid) == (cluster, (2 * cluster, 1))
        assert (call.instance.kernel == "softmax_ce_cluster") == (cluster > 1)


def test_a_long_row_is_the_sum_of_its_parts() -> None:
    """A row as long as a vocabulary, whose last part is shorter than the others."""
    check_whole_rows(
        "bfloat16", "int64", 1, 50_257, "none", 0.1, "one", True, "apart", "cluster",
        Execute("reverse"),
    )  # fmt: skip


@pytest.mark.parametrize(("classes", "sanitizer"), with_sanitizers(1029, 11))
def test_whole_rows_under_sanitizers(sanitizer: str, classes: int) -> None:
    for gradient, rows, place in (
        ("apart", 5, "shared memory"), ("in place", 5, "none"), ("in place", 1, "cluster"),
    ):  # fmt: skip
        check_whole_rows(
            "float32", "int32", rows, classes, "replicated labels", 0.1, "rows", True,
            gradient, place, Execute(sanitizer=sanitizer),
        )  # fmt: skip


def check_split_classes(
    dtype: str, rows: int, counts: list[int], smoothing: float, scaled: bool, execute: Execute
) -> None:
    """Classes over len(counts) coordinates; each holds max(counts), counts[i] of them real."""
    rng = np.random.default_rng(1)
    devices, local, total = len(counts), max(counts), sum(counts)
    whole = normal(rng, (rows, total), dtype)
    labels = rng.integers(0, total, rows).astype(np.int32)
    start = np.cumsum([0, *counts[:-1]]).astype(np.int32)
    edges = start[start < total][:rows]  # labels that are the first class of a coordinate
    labels[: len(edges)] = edges
    labels[-1:] = IGNORE if rows > 1 else 0
    if rows > 1:
        whole[-1, 0] = np.nan  # of which an ignored row shows nothing
    logits = np.full((devices, rows, local), np.inf, whole.dtype)
    for i, (first, count) in enumerate(zip(start, counts, strict=True)):
        logits[i, :, :count] = whole[:, first : first + count]
    real = np.array(counts, np.int32)
    wide = np.dtype("float64" if dtype == "float64" else "float32")
    scale = rng.standard_normal(rows).astype(wide) if scaled else None
    parts, loss, lse = (
        empty((devices, rows, 4), wide),
        garbage((rows,), wide),
        garbage((rows,), wide),
    )
    flag = np.full(1, 2**64 - 1, np.uint64)
    labels_here = labels[None]
    execute(
        launches.softmax_ce_parts(logits, labels_here, parts, start=start, count=real, mesh_ndim=1)
    )
    execute(
        launches.softmax_ce_merge(
            parts, labels, loss, lse, flag, total=total, smoothing=smoothing, ignore=IGNORE
        )
    )
    gradient = garbage(logits.shape, logits.dtype)
    high = parts[..., 0].max(0)
    with np.errstate(invalid="ignore"):
        below = (parts[..., 1] * np.exp(parts[..., 0] - high)).sum(0).astype(wide)
    execute(
        launches.softmax_ce_gradient(
            logits, labels_here, high[None], below[None], gradient, total=total,
            scale=None if scale is None else scale[None], start=start, count=real,
            mesh_ndim=1, smoothing=smoothing, ignore=IGNORE,
        )
    )  # fmt: skip
    used = np.ones(rows) if scale is None else scale.astype(np.float64)
    want = reference(whole.astype(np.float64), labels, used, smoothing)
    assert flag[0] == 2**64 - 1
    assert_close(loss, want[0], dtype, total, 4.0)
    assert_close(lse, want[1], dtype, total, 4.0)
    for i, (first, count) in enumerate(zip(start, counts, strict=True)):
        part = want[2][:, first : first + count]
        assert_close(gradient[i, :, :count], part, dtype, total, float(np.abs(used).max()))
        assert not gradient[i, :, count:].astype(np.float64).any()


SPLIT_OPTIONS: dict[str, Any] = {
    "dtype": list(DTYPES),
    "rows": [1, 6],
    "counts": [[5, 5], [3, 3, 1, 0], [1030, 7]],
    "smoothing": [0.0, 0.2],
    "scaled": [False, True],
    "order": SCHEDULES,
}


@pytest.mark.parametrize("case", covering(**SPLIT_OPTIONS), ids=name)
def test_classes_split_over_devices_equal_whole_rows(case: dict[str, Any]) -> None:
    run_case(check_split_classes, case)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_split_classes_under_sanitizers(sanitizer: str) -> None:
    check_split_classes("float32", 6, [3, 3, 1, 0], 0.2, True, Execute(sanitizer=sanitizer))


@pytest.mark.parametrize(
    ("label", "noted"),
    [(3, 3), (-1, 2**32 - 1), (2**31 - 1, 2**31 - 1), (2**40, 2**31 - 1), (-(2**40), 2**31 + 1)],
)
def test_label_out_of_range_sets_the_flag_and_reads_nothing(label: int, noted: int) -> None:
    logits = np.zeros((7, 3), np.float32)
    labels = np.array([0, 1, IGNORE, 2, label, 1, label], np.int64)
    for options in ({}, IN_CLUSTER):
        loss, lse, gradient = (garbage(s, logits.dtype) for s in ((7,), (7,), (7, 3)))
        flag = np.full(1, 2**64 - 1, np.uint64)
        Execute("reverse")(
            launches.softmax_ce(logits, labels, loss, lse, gradient, flag, **options)
        )
        assert divmod(int(flag[0]), 2**32) == (4, noted)
        assert np.isnan(loss).tolist() == [False] * 4 + [True, False, True]
        assert not gradient[[2, 4, 6]].any() and gradient[[0, 1, 3, 5]].all()


def test_a_label_out_of_range_is_noted_by_its_row_of_all_items() -> None:
    logits, labels = np.zeros((2, 5, 3), np.float32), np.zeros((2, 5), np.int32)
    labels[1, 2] = 4
    loss, lse = (garbage((2, 5), logits.dtype) for _ in range(2))
    flag = np.full(1, 2**64 - 1, np.uint64)
    Execute()(launches.softmax_ce(logits, labels, loss, lse, None, flag, mesh_ndim=1))
    assert divmod(int(flag[0]), 2**32) == (5 + 2, 4)


def test_two_labels_out_of_range_do_not_race_for_the_flag() -> None:
    logits, labels = np.zeros((9, 3), np.float32), np.zeros(9, np.int32)
    labels[[1, 8]] = 3, 4  # in different blocks
    loss, lse = (garbage((9,), logits.dtype) for _ in range(2))
    flag = np.full(1, 2**64 - 1, np.uint64)
    execute = Execute("reverse", sanitizer="thread")
    execute(launches.softmax_ce(logits, labels, loss, lse, None, flag))
    assert divmod(int(flag[0]), 2**32) == (1, 3)


def test_infinite_and_nan_logits_give_what_numpy_gives() -> None:
    inf, nan = np.inf, np.nan
    logits = np.array(
        [[-inf, 0, 1], [nan, 0, 1], [inf, 0, 1], [-inf, -inf, -inf], [0, 1, nan]], np.float32
    )
    for options in ({}, IN_CLUSTER):
        labels = np.full(5, 1, np.int32)
        loss, lse, gradient = (garbage(s, logits.dtype) for s in ((5,), (5,), (5, 3)))
        flag = np.full(1, 2**64 - 1, np.uint64)
        Execute()(launches.softmax_ce(logits, labels, loss, lse, gradient, flag, **options))
        assert np.isfinite(loss[0])
        assert np.isnan(loss[1:]).all()
        assert np.isfinite(gradient[0]).all()
        assert np.isnan(gradient[[1, 3, 4]]).all()
        labels[:] = IGNORE
        Execute()(
            launches.softmax_ce(logits, labels, loss, lse, gradient, flag, ignore=IGNORE, **options)
        )
        assert not loss.any() and not gradient.any()
