"""matmul_hopper.cu against float64 NumPy, and what it leaves to matmul.cu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from gdt.cuda import launches
from gdt.cuda.launches import transpose
from gdt.cuda.launches.matmul_operands import MatrixOperand
from gdt.cuda.sources import parameters
from gdt.errors import KernelError
from tests.covering import covering, every

from .harness import SANITIZERS, SCHEDULES, Execute, empty, garbage, name, normal, run_case
from .test_matmul import check_matmul, operand

ARCH = "sm_90a"
MODES = ("early", "late", "tossed")
PAD = 8  # elements, of every type a multiple of 16 bytes
OPTIONS: dict[str, Any] = {
    "dtype": ["float16", "bfloat16"],
    "m": [1, 70, 130],
    "n": [3, 136, 264],
    "k": [2, 64, 99, 200],
    "x_t": [False, True],
    "w_t": [False, True],
    "leading": ["none", "both", "w replicated", "x replicated"],
    "activation": launches.ACTIVATIONS,
    "has_bias": [False, True],
    "tile": [128, 256],
    "pieces": [1, 2],
    "multiprocessors": [1, 3],
    "wide_result": [False, True],
    "order": SCHEDULES,
    "async_mode": MODES,
}
TF32_OPTIONS = OPTIONS | {"dtype": ["float32"]}


def check_wgmma(**options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transpose, "OPERATIONS_OF_BYTE", 0)
        patch.setattr(transpose, "OPERATIONS_OF_LAUNCH", 0)
        calls = check_matmul(**options, misaligned=False, tensor_cores=True, arch=ARCH, pad=PAD)
    moved = options["x_t"] + (not options["w_t"]) if options["dtype"] == "float32" else 0
    kernels = [call.instance.kernel for call in calls]
    assert kernels[: moved + 1] == ["transpose"] * moved + ["matmul_wgmma"]


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_matmul_on_hopper(case: dict[str, Any]) -> None:
    run_case(check_wgmma, case)


@pytest.mark.parametrize("case", covering(**TF32_OPTIONS)[::2], ids=name)
def test_matmul_on_hopper_in_tf32(case: dict[str, Any]) -> None:
    run_case(check_wgmma, case)


@pytest.mark.kernels_full
@pytest.mark.parametrize("options", [OPTIONS, TF32_OPTIONS], ids=["16 bits", "tf32"])
def test_matmul_on_hopper_in_full(options: dict[str, Any]) -> None:
    fewer: dict[str, Any] = {
        "m": [130],
        "n": [3, 264],
        "k": [200],
        "leading": ["w replicated"],
        "activation": ["none", "relu_backward"],
        "multiprocessors": [3],
        "order": ["random"],
        "async_mode": ["tossed"],
    }
    for case in every(**(options | fewer)):
        run_case(check_wgmma, case)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_matmul_on_hopper_under_sanitizers(sanitizer: str) -> None:
    for async_mode, n, tile, leading in (
        ("early", 67, 128, "w replicated"),
        ("tossed", 72, 256, "none"),  # of two blocks of a cluster
    ):
        check_wgmma(
            dtype="bfloat16", m=130, n=n, k=200, x_t=True, w_t=True, leading=leading,
            activation="relu", has_bias=True, tile=tile, pieces=1 + n % 2, multiprocessors=3,
            execute=Execute("random", async_mode, sanitizer),
        )  # fmt: skip


def test_results_are_the_same_bits_where_the_accelerator_stores_them() -> None:
    """By threads, where the result begins at an odd place; and by elements, where bias and the
    operand of ReLU's gradient do."""
    rng = np.random.default_rng(0)
    x, w = normal(rng, (70, 64), "float16"), normal(rng, (64, 200), "float16")
    places = ((False, False), (True, False), (False, True))  # whether out, others are misaligned
    for activation in launches.ACTIVATIONS:
        has_aux, results = activation == "relu_backward", []
        for (is_odd, are_odd), async_mode in zip(places, ("late", "early", "tossed"), strict=True):
            same = np.random.default_rng(1)
            bias = normal(same, (200,), "float16", are_odd)
            aux = normal(same, (70, 200), "float16", are_odd) if has_aux else None
            out = normal(rng, (70, 200), "float16", is_odd)
            (call,) = launches.matmul(
                x, w, out, empty, bias=bias, aux=aux, activation=activation, tensor_cores=True,
                arch=ARCH, tile=128, pieces=1, multiprocessors=1,
            )  # fmt: skip
            names = [p.name for p in parameters(call.instance)]
            assert call.arguments[names.index("has_map")] == (not is_odd)
            Execute("random", async_mode)([call])
            results.append(out.tobytes())
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("order", "async_mode"), [*zip(SCHEDULES, MODES, strict=True)])
@pytest.mark.parametrize("turned", [False, True])
def test_blocks_of_a_cluster_share_w(order: str, async_mode: str, turned: bool) -> None:
    """Three tiles below each other, of which the last is alone; one cluster, and two."""
    check_wgmma(
        dtype="bfloat16" if turned else "float16", m=270, n=260 + 4 * turned, k=330, x_t=turned,
        w_t=turned, leading="none", activation="relu", has_bias=turned, tile=256, pieces=1,
        cluster=2, multiprocessors=5 if turned else 2, execute=Execute(order, async_mode),
    )  # fmt: skip


def test_clusters_are_chosen_where_hardly_any_block_of_them_is_idle() -> None:
    for m, n, out, multiprocessors, cluster, grid in (
        (256, 256, "float16", 132, 2, 2),  # two tiles below each other
        (384, 256, "float16", 132, 1, 3),
        (33 * 128, 256, "float16", 132, 2, 34),
        (33 * 128, 256, "float16", 5, 2, 4),  # of an odd number of multiprocessors one is idle
        (256, 256, "float16", 1, 1, 1),
        (256, 256, "float32", 132, 1, 2),
    ):
        x, w = np.zeros((m, 64), np.float16), np.zeros((64, n), np.float16)
        (call,) = launches.matmul(
            x, w, np.zeros((m, n), out), empty, tensor_cores=True, arch=ARCH, tile=256, pieces=1,
            multiprocessors=multiprocessors,
        )  # fmt: skip
        assert (call.cluster, call.grid) == (cluster, (grid,))
        assert call.instance.arguments[-1] == str(cluster)


def test_copies_of_a_slot_wrap_around_with_long_contractions() -> None:
    for tile in (128, 256):  # 6 and 4 slots
        check_wgmma(
            dtype="float16", m=64, n=64, k=64 * 15 + 8, x_t=False, w_t=False, leading="none",
            activation="none", has_bias=False, tile=tile, pieces=1, execute=Execute(),
        )  # fmt: skip


def check_transposition(execute: Execute) -> None:
    x = normal(np.random.default_rng(0), (2, 70, 131), "float32")
    transposed, call = transpose.transposed(MatrixOperand.of(x, 1), empty, 1)
    execute([call])
    written = dict(zip([p.name for p in parameters(call.instance)], call.arguments, strict=True))
    assert written["out"].shape == (2, 131, 72)
    np.testing.assert_array_equal(transposed, x)
    np.testing.assert_array_equal(written["out"][..., 70:], 0)


@pytest.mark.parametrize("misaligned", [False, True])
def test_a_transposed_operand_gives_the_bits_of_one_that_lies_so(misaligned: bool) -> None:
    """Rows of 99 elements begin anywhere, those of the copies at packs of 16 bytes."""
    rng = np.random.default_rng(0)
    x, w = (operand(rng, (2,), *s, t, "float32", misaligned) for s, t in (((70, 99), True),
            ((99, 133), False)))  # fmt: skip
    along = [np.zeros((2, n, 100), np.float32)[..., :99] for n in (70, 133)]
    along[0][:], along[1][:] = x, w.swapaxes(-1, -2)
    results = []
    for operands, limit in (((x, w), 0), ((along[0], along[1].swapaxes(-1, -2)), 2**30)):
        results.append(garbage((2, 70, 133), x.dtype))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transpose, "OPERATIONS_OF_BYTE", 0)
            patch.setattr(transpose, "OPERATIONS_OF_LAUNCH", limit)
            calls = launches.matmul(
                *operands, results[-1], empty, tensor_cores=True, arch=ARCH, mesh_ndim=1
            )
        Execute("random")(calls)
        assert len(calls) == (1 if limit else 3)
    assert results[0].tobytes() == results[1].tobytes()


def test_operands_are_transposed_where_the_product_is_worth_it() -> None:
    def moved(m: int, n: int, k: int, x_t: bool, w_t: bool, dtype: Any = np.float32) -> Any:
        memory = np.zeros(1, dtype)  # seen as more than there is: nothing is launched
        lie = lambda rows, columns, turned: as_strided(
            memory,
            (rows, columns),
            [s * memory.itemsize for s in ((1, rows) if turned else (columns, 1))],
        )
        return launches.matmul_transposes(lie(m, k, x_t), lie(k, n, w_t), arch=ARCH)

    assert moved(4096, 4096, 4096, True, False) == (True, True)
    assert moved(4096, 4096, 4096, False, False) == (False, True)
    assert moved(4096, 4096, 4096, False, True) == (False, False)
    assert moved(4096, 4096, 4096, True, False, np.float16) == (False, False)
    assert moved(512, 8192, 8192, False, False) == (False, True)  # 512 uses of each element
    assert moved(500, 8192, 8192, False, False) == (False, False)
    assert moved(512, 512, 512, False, False) == (False, False)  # a launch takes as long


def test_infinities_outside_of_an_operand_are_not_read() -> None:
    x, w = np.full((70, 104), np.inf, np.float16), np.full((104, 40), np.inf, np.float16)
    x[:, :99], w[:99, :33] = 1, 1
    out = garbage((70, 33), x.dtype)
    calls = launches.matmul(x[:, :99], w[:99, :33], out, empty, tensor_cores=True, arch=ARCH)
    Execute()(calls)
    assert calls[0].instance.kernel == "matmul_wgmma"
    assert (out == 99).all()


def test_lengths_at_the_limit_of_32_bits_are_refused() -> None:
    memory = np.zeros(64, np.float16)  # seen as more than there is: nothing is launched
    huge = as_strided(memory, (2**31 - 8, 8), (16, 2))
    w, small = np.zeros((8, 8), np.float16), np.zeros((1, 1), np.float16)
    with pytest.raises(KernelError, match="lengths 2147483640, 8 and 8 are past 2"):
        launches.matmul(huge, w, small, empty, tensor_cores=True, arch=ARCH)
    many = as_strided(memory, (2**24, 2**12, 8), (0, 16, 2))
    wide = as_strided(memory, (2**24, 8, 2**12), (0, 16, 2))
    with pytest.raises(KernelError, match="4294967296 tiles are past 2"):
        launches.matmul(many, wide, small, empty, tensor_cores=True, arch=ARCH, mesh_ndim=1)


def test_what_the_accelerator_cannot_copy_runs_by_mma_and_says_why() -> None:
    rng = np.random.default_rng(0)
    shape = lambda dtype, turned=False, misaligned=False, pad=PAD, rows=9, columns=24: operand(
        rng, (), rows, columns, turned, dtype, misaligned, pad
    )
    half, single = np.float16, np.float32
    for x, w, arch, says in (
        (shape("float16"), shape("float16", rows=24), "sm_100", "needs sm_90a, not sm_100"),
        (shape("float16"), shape("float16", rows=24), None, "needs sm_90a, not None"),
        (shape("float32"), shape("float32", rows=24), ARCH, "only where memory runs along"),
        (shape("float32", True), shape("float32", True, rows=24), ARCH, "only where memory runs"),
        (shape("float16", misaligned=True), shape("float16", rows=24), ARCH, "x: the array does"),
        (
            shape("float16"),
            shape("float16", pad=1, rows=24, columns=9),
            ARCH,
            "w: a stride of 18 bytes is no positive multiple of 16",
        ),
        (np.zeros((9, 0), half), np.zeros((0, 8), half), ARCH, "nothing to contract"),
    ):
        reason = launches.matmul_refusal(x, w, arch=arch)
        assert reason is not None
        assert says in reason
        out = garbage((9, w.shape[1]), x.dtype)
        calls = launches.matmul(x, w, out, empty, tensor_cores=True, arch=arch)
        assert calls[0].instance.kernel == "matmul_mma"
    x, w = shape("float16"), shape("float16", rows=24)
    assert launches.matmul_refusal(x, w, arch=ARCH) is None
    reason = launches.matmul_refusal(x[::-1], w, arch=ARCH)
    assert reason is not None
    assert "a stride of -48 bytes" in reason
    backwards = normal(rng, (3, 9, 24), "float16")[::-1]
    reason = launches.matmul_refusal(backwards, w[None], arch=ARCH, mesh_ndim=1)
    assert reason is not None
    assert "not between 1 and 2^32" in reason
    with pytest.raises(KernelError, match="no kernel"):
        launches.matmul(
            x, w, np.zeros((9, 24), single), empty, tensor_cores=True, arch=ARCH, tile=64
        )
