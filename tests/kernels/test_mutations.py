"""Kernels broken on purpose: a test of the covering set has to fail for every one of them.

Each row names a check, a kernel and a text to replace. A kernel with shared memory loses a barrier,
every kernel gets a wrong bound or a wrong index. The checks are those of the other test files; a
mutation that plain runs in three orders of threads let pass is run under the sanitizers.
"""
# ruff: noqa: E501 (one mutation a line)

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdt.cuda import sources
from tests.needs import need_compiler

from .conftest import MUTATION
from .harness import Execute, close_runners
from .test_attention import check_attention
from .test_batchnorm import check_forward_and_backward
from .test_matmul import check_matmul
from .test_matmul_hopper import check_transposition, check_wgmma
from .test_random import check_draw
from .test_reduce import check_arguments, check_values
from .test_softmax_ce import check_split_classes, check_whole_rows
from .test_update import check_update

pytestmark = pytest.mark.kernels_full


def attention(execute: Execute) -> None:
    for leading, causal, mask, dropout, place in (
        ("shared keys", True, "heads", 0.4, "padding"),
        ("heads", False, "none", 0.4, "tile"),
        ("none", True, "none", 0.0, "whole"),
    ):
        check_attention(
            "float32", 150, 130, (40, 70), leading, causal, mask, dropout, place, execute
        )  # fmt: skip


def attention_mma(execute: Execute) -> None:
    for features, leading, causal, mask, dropout, place in (
        ((40, 72), "shared keys", True, "heads", 0.4, "padding"),
        ((64, 64), "none", True, "none", 0.0, "tile"),
        ((200, 24), "heads", False, "none", 0.4, "tile"),
    ):
        check_attention(
            "float16", 150, 130, features, leading, causal, mask, dropout, place, execute
        )  # fmt: skip


def attention_wgmma(execute: Execute) -> None:
    for keys, width, leading, causal, mask, dropout, place in (
        (270, 64, "shared keys", True, "heads", 0.4, "padding"),
        (270, 64, "none", True, "none", 0.0, "tile"),
        (700, 128, "none", False, "none", 0.4, "tile"),  # tiles enough for every slot twice
    ):
        check_attention(
            "float16", 400 if width == 128 else 150, keys, (width, width), leading, causal, mask, dropout, place, execute,
            "sm_90a",
        )  # fmt: skip


def softmax_ce(execute: Execute) -> None:
    for classes, place in ((37, "shared memory"), (1029, "shared memory"), (1029, "none")):
        check_whole_rows(
            "float32", "int32", 5, classes, "replicated labels", 0.1, "rows", True, "apart", place, execute
        )  # fmt: skip


def softmax_ce_cluster(execute: Execute) -> None:
    for classes, gradient in ((1029, "apart"), (37, "in place")):
        check_whole_rows(
            "float32", "int32", 2, classes, "none", 0.1, "rows", True, gradient, "cluster", execute
        )  # fmt: skip


def softmax_ce_split(execute: Execute) -> None:
    for counts in ([3, 3, 1, 0], [1030, 7]):
        check_split_classes("float32", 6, counts, 0.2, True, execute)


def batchnorm_planes(execute: Execute) -> None:
    for outer, inner, misaligned in ((120, 7, "nothing"), (1200, 8, "nothing"), (9, 8, "dy")):
        check_forward_and_backward(
            "float32", outer, 3, inner, "model and data", "both", misaligned, True, execute
        )


def batchnorm_columns(execute: Execute) -> None:
    for outer, channels, misaligned in ((37, 33, "x"), (600, 40, "nothing"), (9, 40, "dy")):
        check_forward_and_backward(
            "float32", outer, channels, 1, "model and data", "both", misaligned, True, execute
        )


def reduce_values(execute: Execute) -> None:
    for n, inner in ((30001, 1), (100, 1), (700, 40), (70, 33)):  # a block a row, a warp, columns
        check_values("Sum", "float32", 9, n, inner, (2,), True, "none", execute)


def reduce_arguments(execute: Execute) -> None:
    for n, inner in ((30001, 1), (100, 1), (700, 40), (70, 33)):
        check_arguments("Max", "float32", 9, n, inner, (2,), True, "ties", execute)


def update(*steps: str) -> Callable[[Execute], None]:
    def check(execute: Execute) -> None:
        for step in steps:
            check_update(step, "float32", "odd", False, "operands", execute)
            check_update(step, "float32", "blocks", True, "nothing", execute)

    return check


def simt(execute: Execute) -> None:
    for turned, misaligned in ((False, True), (True, False)):
        check_matmul(
            "float32", 70, 136, 99, turned, turned, "w replicated", "relu", True, 64, 2,
            misaligned, execute, has_counters=turned,
        )  # fmt: skip
    check_matmul("float32", 9, 8, 40, False, False, "both", "relu_backward", True, 64, 1, False, execute)  # fmt: skip


def counted(execute: Execute) -> None:
    """Two blocks, of which one waits for nothing but the other's arrival."""
    execute.schedule["fresh"] = True
    check_matmul("float32", 9, 7, 130, False, False, "none", "none", False, 64, 2, False, execute, has_counters=True)  # fmt: skip


def mma(execute: Execute) -> None:
    for k, turned, misaligned in ((20, False, False), (264, False, False), (264, True, True)):
        check_matmul(
            "bfloat16", 70, 136, k, turned, turned, "w replicated", "relu", True, 64, 2, misaligned,
            execute, True, has_counters=turned,
        )  # fmt: skip


def mma_of_float64(execute: Execute) -> None:
    check_matmul(
        "float64", 70, 72, 37, False, False, "none", "none", False, 64, 2, False, execute, True
    )


def wgmma(execute: Execute) -> None:
    for m, n, k, turned, tile, pieces in (
        (130, 67, 200, True, 128, 2),
        (70, 264, 328, False, 256, 1),
        (100, 200, 64, False, 128, 1),
        (260, 300, 328, False, 256, 1),
    ):
        check_wgmma(
            dtype="bfloat16", m=m, n=n, k=k, x_t=turned, w_t=turned, leading="w replicated",
            activation="relu_backward" if n == 200 else "relu", has_bias=True, tile=tile, pieces=pieces, multiprocessors=2,
            cluster=2 if m == 260 else 1, execute=execute,
        )  # fmt: skip


def draws(*kinds: tuple[str, str]) -> Callable[[Execute], None]:
    def check(execute: Execute) -> None:
        for kind in kinds:
            check_draw(kind, "rows", 1025, 2**63 + 5, 2**40 + 7, execute)

    return check


ATTENTION, ATTENTION_MMA = (attention, "attention.cu"), (attention_mma, "attention_mma.cu")
ATTENTION_WGMMA = (attention_wgmma, "attention_hopper.cu")
SOFTMAX = (softmax_ce, "softmax_ce.cu")
SPLIT = (softmax_ce_split, "softmax_ce.cu")
IN_CLUSTER = (softmax_ce_cluster, "softmax_ce.cu")
PLANES, COLUMNS = (batchnorm_planes, "batchnorm.cu"), (batchnorm_columns, "batchnorm.cu")
VALUES, ARGUMENTS = (reduce_values, "reduce.cu"), (reduce_arguments, "reduce.cu")
SIMT, MMA, WGMMA = (simt, "matmul.cu"), (mma, "matmul.cu"), (wgmma, "matmul_hopper.cu")
SGD, MOMENTUM = update("sgd"), update("momentum", "nesterov")
ADAM = update("adam")
ALL_DRAWS = (
    ("random_bits", draws(("bits", "uint32"), ("bits", "uint64"))),
    ("random_uniform", draws(("uniform", "float32"))),
    ("random_normal", draws(("normal", "float32"), ("normal", "float64"))),
    ("random_truncated", draws(("truncated", "float32"))),
    ("random_integers", draws(("integers", "int8"), ("integers", "uint64"))),
    ("random_bernoulli", draws(("bernoulli", "bool"))),
)
BARRIER = "  __syncthreads();\n"
BARRIERS = re.compile(r"__sync(?:threads|warp)\(\)")
AFTER_WRITE = "scratch[thread / WARP] = value;\n  __syncthreads();"

MERGE_BARRIER = "    __syncthreads();\n"  # of block.cuh, in merge_columns

# (check, file), kernel, which file is changed (None: the kernel's), old text, new text
MUTATIONS = [
    (*ATTENTION, "attention", None, "    __syncthreads();  // no thread reads the last slices any more\n", ""),
    (*ATTENTION, "attention", None, "    __syncthreads();  // the slices are complete\n", ""),
    (*ATTENTION, "attention", None, "total[i] = share * total[i]", "total[i] = total[i]"),
    (*ATTENTION, "attention", None, "sums[i][n] *= share", "sums[i][n] *= 1.f"),
    (*ATTENTION, "attention", None, "with = SIDE / 2; with;", "with = SIDE / 4; with;"),
    (*ATTENTION, "attention", "attention.cuh", "min(problem.keys, problem.total_keys - key)", "problem.keys"),
    (*ATTENTION, "attention", "attention.cuh", "problem.causal && key > query)", "problem.causal && key >= query)"),
    (*ATTENTION, "attention", "attention.cuh", "min(query, problem.mask_queries - 1)", "min(key, problem.mask_queries - 1)"),
    (*ATTENTION, "attention", "attention.cuh", "index & 2 ? high : low", "index & 2 ? low : high"),
    (*ATTENTION, "attention", "attention.cuh", "first_key + key + many_keys - 1 > first_query", "first_key + key > first_query"),
    (*ATTENTION, "attention", "attention.cuh", "first_query + query - first_key)", "first_query + query - 1 - first_key)"),
    (*ATTENTION, "attention_dq", None, "    __syncthreads();  // no thread reads the last rows any more\n", ""),
    (*ATTENTION, "attention_dq", None, "    __syncthreads();  // the rows, and the weights, are complete\n", ""),
    (*ATTENTION, "attention_dq", None, "kept * product_of_g - product", "product_of_g - product"),
    (*ATTENTION, "attention_dq", None, "n * TILE >= y.width", "(n + 1) * TILE >= y.width"),
    (*ATTENTION, "attention_dq", None, "if (row < rows && column < width)", "if (row <= rows && column < width)"),
    (*ATTENTION, "attention_dkv", None, "  __syncthreads();  // no thread reads the last tile any more\n", ""),
    (*ATTENTION, "attention_dkv", None, "sight.first_key + place.first - sight.first_query", "sight.first_key + place.first + 1 - sight.first_query"),
    (*ATTENTION, "attention_dkv", None, "BY_KEYS ? x : y, own_key", "BY_KEYS ? y : x, own_key"),
    (*ATTENTION, "attention_dkv", None, "end = sight.queries;", "end = sight.queries - TILE;"),
    (*ATTENTION, "attention_dkv", None, "scales[i] = problem.scale, ones", "scales[i] = 1.f, ones"),
    (*ATTENTION_MMA, "attention_mma", None, "    __syncthreads();  // the keys have arrived; no thread reads the last values any more\n", ""),
    (*ATTENTION_MMA, "attention_mma", None, "    __syncthreads();  // the values have arrived; no thread reads the keys any more\n", ""),
    (*ATTENTION_MMA, "attention_mma", None, "copy_async_wait<0>();\n    __syncthreads();  // the values", "copy_async_wait<1>();\n    __syncthreads();  // the values"),
    (*ATTENTION_MMA, "attention_mma", None, "total[s][half] = share * total", "total[s][half] = total"),
    (*ATTENTION_MMA, "attention_mma", None, "* 2; i++) sums[s][i / 2][2 * half + i % 2] *= share", "* 2; i++) sums[s][i / 2][2 * half] *= share"),
    (*ATTENTION_MMA, "attention_mma", None, "s * STRIP + lane % 16, k + lane / 16 * 8", "s * STRIP + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8"),
    (*ATTENTION_MMA, "attention_mma", None, "k * 8 + lane % 16, from", "k * 8 + lane % 8, from"),
    (*ATTENTION_MMA, "attention_mma", "scores.cuh", "shuffle_xor(value, 2)", "shuffle_xor(value, 1)"),
    (*ATTENTION_MMA, "attention_mma", None, "inside ? PACK_BYTES : 0", "PACK_BYTES"),
    (*ATTENTION_MMA, "attention_mma", None, "row_of(keys, at + KEYS, problem.features),\n                                 end - at - KEYS", "row_of(keys, at + KEYS, problem.features),\n                                 end - at"),
    (*ATTENTION_MMA, "attention_mma", "attention.cuh", "first_key + key + many_keys - 1 > first_query", "first_key + key + many_keys - 2 > first_query"),
    (*ATTENTION_MMA, "attention_mma", "attention.cuh", "first_query + query - first_key)", "first_query + query - 1 - first_key)"),
    (*ATTENTION_MMA, "attention_mma", None, "highest == -infinity<float>() ? 0.f : highest,", "highest,"),
    (*ATTENTION_MMA, "attention_mma_dq", None, "own_row(half), problem.queries - 1)", "own_row(half), problem.queries)"),
    (*ATTENTION_MMA, "attention_mma_dq", None, "      __syncthreads();  // these tiles have arrived; no thread reads those of the step before\n", ""),
    (*ATTENTION_MMA, "attention_mma_dq", None, "      __syncthreads();  // no thread reads the only tiles any more\n", ""),
    (*ATTENTION_MMA, "attention_mma_dq", None, "tiles + (step % STAGES * 2 + matrix)", "tiles + (0 * step % STAGES * 2 + matrix)"),
    (*ATTENTION_MMA, "attention_mma_dq", None, "own_lse[i / 2 % 2]", "own_lse[0]"),
    (*ATTENTION_MMA, "attention_mma_dq", "scores.cuh", "kept ? factor * product_of_g : 0.f", "factor * product_of_g"),
    (*ATTENTION_MMA, "attention_mma_dkv", None, "sight.first_key + place.first - sight.first_query", "sight.first_key + place.first + 1 - sight.first_query"),
    (*ATTENTION_MMA, "attention_mma_dkv", "scores.cuh", "BY_KEYS ? x : y, own_key", "BY_KEYS ? y : x, own_key"),
    (*ATTENTION_MMA, "attention_mma_dkv", None, "from = blockIdx.y * OUT * 8", "from = blockIdx.y * OUT * 4"),
    (*ATTENTION_MMA, "attention_mma_dkv", None, "g * 8 + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8", "g * 8 + lane % 16, k + lane / 16 * 8"),
    (*ATTENTION_MMA, "attention_mma_dkv", None, "at + j / 2 * 8 + own_column() + j % 2, problem", "at + j / 2 * 8 + own_column(), problem"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "      ptx::warpgroup_fence();\n      tiles.multiply", "      tiles.multiply"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "ptx::warpgroup_fence();\n    tiles.await", "tiles.await"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "ptx::barrier_wait(&filled[slot(n, matrix)], round(n) & 1)", "ptx::barrier_wait(&filled[slot(n, matrix)], n & 1)"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "    await(n, matrix);\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "      tiles.await(n - 1, 1);\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "        ptx::barrier_wait(&emptied[slot(n, matrix)], round(n) & 1 ^ 1);\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "    ptx::barrier_wait(&filled[Shared::SLOTS], 0);\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "barrier_init(&emptied[i], MULTIPLIERS)", "barrier_init(&emptied[i], 1)"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "      ptx::barrier_init_fence();\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "    __syncthreads();\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "barrier_arrive_expecting(full, BYTES)", "barrier_arrive_expecting(full, BYTES / 2)"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "describe_tile(tile(n, matrix), BOX, ATOM_BYTES)", "describe_tile(tile(n, matrix), BOX, ATOM_BYTES / 2)"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "describe_tile(tile(n, matrix), BOX, ATOM_BYTES)", "describe_tile(tile(n, matrix), BOX / 2, ATOM_BYTES)"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "own * ROWS_BYTES + row * ROW_BYTES, 0", "own * ROWS_BYTES, 0"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "start + n * LENGTH, others", "n, others"),
    (*ATTENTION_WGMMA, "attention_wgmma", "hopper.cuh", "descriptor + (bytes >> 4)", "descriptor + bytes"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "      ptx::warpgroup_finish<1>(scores);\n      tiles.release(n, 0);", "      tiles.release(n, 0);"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "      ptx::warpgroup_finish<0>(sums);\n      ptx::warpgroup_keep(weights);", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "      ptx::warpgroup_finish<0>(sums);\n      ptx::warpgroup_keep(weights);\n      tiles.release(n - 1, 1);\n", "      tiles.release(n - 1, 1);\n      ptx::warpgroup_finish<0>(sums);\n"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "sums[i] *= softmax.share[i / 2 % 2]", "sums[i] *= 1.f"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "sums[i] *= softmax.share[i / 2 % 2]", "sums[i] *= softmax.share[i % 2]"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "total[half] = share[half] * total[half]", "total[half] = total[half]"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "highest == -infinity<float>() ? 0.f : highest;", "highest;"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "end_of_keys(row + 1)", "end_of_keys(row)"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "to_pair(from[2 * i], from[2 * i + 1], T())", "to_pair(from[2 * i + 1], from[2 * i], T())"),
    (*ATTENTION_WGMMA, "attention_wgmma", None, "if (!bits.keeps(i)) scores[i] = 0.f;", ""),
    (*ATTENTION_WGMMA, "attention_wgmma", "scores.cuh", "shuffle_xor(value, 2)", "shuffle_xor(value, 1)"),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", None, "finish<1>(scores);\n      ptx::warpgroup_finish<1>(gradients);", "finish<2>(scores);\n      ptx::warpgroup_finish<2>(gradients);"),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", None, "      ptx::warpgroup_finish<0>(sums);\n      ptx::warpgroup_keep(left);\n      tiles.release(n - 1, 0);\n", "      tiles.release(n - 1, 0);\n      ptx::warpgroup_finish<0>(sums);\n"),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", None, "      tiles.release(n - 1, 0);\n      tiles.round_to(left", "      tiles.release(n, 0);\n      tiles.round_to(left"),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", None, "      ptx::warpgroup_finish<0>(sums);\n      ptx::warpgroup_keep(left);\n", ""),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", None, "tiles.add(sums, left, n - 1, 0);", "tiles.add(sums, left, n - 1, 1);"),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", None, "own_lse[i / 2 % 2], own_product", "own_lse[0], own_product"),
    (*ATTENTION_WGMMA, "attention_wgmma_dq", "scores.cuh", "kept ? factor * product_of_g : 0.f", "factor * product_of_g"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", None, "    __syncwarp();\n    with_bits", "    with_bits"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", None, "slab + i / 4 * 8 + own_column() + i % 2", "slab + i / 4 * 8 + own_column()"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", None, "sight.first_key + place.first - sight.first_query", "sight.first_key + place.first + 1 - sight.first_query"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", None, "min(at + i * WARP + own_lane()", "min(n * COLUMNS + i * WARP + own_lane()"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", None, "    ptx::warpgroup_finish<0>(k_sums);\n    ptx::warpgroup_keep(left);\n    tiles.release(n, 0);\n", "    tiles.release(n, 0);\n    ptx::warpgroup_finish<0>(k_sums);\n"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", None, "tiles.add(k_sums, left, n, 0);", "tiles.add(k_sums, left, n, 1);"),
    (*ATTENTION_WGMMA, "attention_wgmma_dkv", "scores.cuh", "BY_KEYS ? x : y, own_key", "BY_KEYS ? y : x, own_key"),
    (*SOFTMAX, "softmax_ce", "block.cuh", AFTER_WRITE, AFTER_WRITE.replace(BARRIER.strip(), "")),
    (*SOFTMAX, "softmax_ce", "block.cuh", "for (int i = 1; i < WARPS; i++)", "for (int i = 2; i < WARPS; i++)"),
    (*SOFTMAX, "softmax_ce", None, "row.sum *= exponential(row.max - high);", ""),
    (*SOFTMAX, "softmax_ce", "block.cuh", "i = head + body * N + thread; i < n;", "i = head + body * N + thread; i < n - 1;"),
    (*SOFTMAX, "softmax_ce", None, "if (row >= rows) return;  // whole", "if (row > rows) return;  // whole"),
    (*SOFTMAX, "softmax_ce", None, "x[y.index]", "x[y.index + 1]"),
    (*SOFTMAX, "softmax_ce", None, "row_bytes<T>(classes) + misalignment(x)", "row_bytes<T>(classes - 8) + misalignment(x)"),
    (*SOFTMAX, "softmax_ce", None, "if (ROW_THREADS == WARP) __syncwarp();", ""),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "ptx::cluster_sync();  // all blocks", "// all blocks"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "ptx::cluster_sync();  // the parts", "// the parts"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "ptx::cluster_sync();  // the parts", "__syncthreads();  // the parts"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "(&parts[rank]) + i, thread,", "(&parts[thread]) + i, thread,"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "(&parts[rank]) + i, thread,", "(&parts[rank]) + i, rank,"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "for (int i = 1; i < CLUSTER; i++) whole", "for (int i = 1; i < CLUSTER - 1; i++) whole"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "min(classes, rank * part), count", "min(classes, thread % 2 * part), count"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "count = min(part, classes - first)", "count = part"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "{y.index - first,", "{y.index,"),
    (*IN_CLUSTER, "softmax_ce_cluster", None, "misalignment(x + first) == misalignment(out)", "true"),
    (*SPLIT, "softmax_ce_parts", "block.cuh", AFTER_WRITE, AFTER_WRITE.replace(BARRIER.strip(), "")),
    (*SPLIT, "softmax_ce_parts", None, "here >= 0 && here < valid", "here >= 0 && here <= valid"),
    (*SPLIT, "softmax_ce_parts", None, "visit<LOADS>(x, valid, thread", "visit<LOADS>(x, classes, thread"),
    (*SPLIT, "softmax_ce_parts", None, "part[3] = whole.total", "part[3] = whole.sum"),
    (*SPLIT, "softmax_ce_merge", None, "for (int i = 0; i < count; i++)", "for (int i = 0; i < count - 1; i++)"),
    (*SPLIT, "softmax_ce_merge", None, "logit += part[2]", "logit += part[3]"),
    (*SPLIT, "softmax_ce_merge", None, "(static_cast<long long>(i) * rows + row) * 4", "(static_cast<long long>(i) * count + row) * 4"),
    (*SPLIT, "softmax_ce_gradient", None, "{y - (start ? start[item] : 0)", "{y - (start ? start[0] : 0)"),
    (*SPLIT, "softmax_ce_gradient", None, "for (int i = valid + thread; i < classes;", "for (int i = valid + thread + 1; i < classes;"),
    (*SPLIT, "softmax_ce_gradient", None, "smoothing / A(total)", "smoothing / A(classes)"),
    (*PLANES, "bn_moments", "block.cuh", AFTER_WRITE, AFTER_WRITE.replace(BARRIER.strip(), "")),
    (*PLANES, "bn_moments", None, "if (column >= row_packs) column -= row_packs, row++;", "if (column > row_packs) column -= row_packs, row++;"),
    (*PLANES, "bn_moments", None, "rows = valid ? valid[item] : outer;\n  const T* from = x + offset(item, axes, x_strides);\n  const Of", "rows = outer;\n  const T* from = x + offset(item, axes, x_strides);\n  const Of"),
    (*COLUMNS, "bn_moments", None, "steps += WIDTH / SLOTS", "steps += WIDTH"),
    (*COLUMNS, "bn_moments", "block.cuh", MERGE_BARRIER, ""),
    (*COLUMNS, "bn_moments", "block.cuh", "rows = blockDim.y / 2; rows;", "rows = blockDim.y / 4; rows;"),
    (*COLUMNS, "bn_moments", "block.cuh", "packs(aligned && width % N == 0)", "packs(width % N == 0)"),
    (*COLUMNS, "bn_moments", "block.cuh", "packs(aligned && width % N == 0)", "packs(aligned)"),
    (*COLUMNS, "bn_moments", None, "shift[i] + beyond, m2", "shift[0] + beyond, m2"),
    (*PLANES, "bn_merge", None, "threadIdx.y != 0 || c >= channels", "threadIdx.y != 0 || c > channels"),
    (*PLANES, "bn_merge", None, "int s = threadIdx.y; c", "int s = threadIdx.y + 1; c"),
    (*PLANES, "bn_merge", None, "(s) * 3 * channels", "(s) * 2 * channels"),
    (*PLANES, "bn_apply", None, "row_step = step / row_packs", "row_step = step / row_packs + 1"),
    (*PLANES, "bn_apply", None, "centre[i] = mean[at_mean + c];\n    factor", "centre[i] = mean[c];\n    factor"),
    (*COLUMNS, "bn_apply", None, "addend[k % SLOTS]);", "addend[0]);"),
    (*COLUMNS, "bn_apply", "block.cuh", "if (has(i)) row[column(i)] = pack.of[i];", "row[column(i)] = pack.of[i];"),
    (*PLANES, "bn_sums", "block.cuh", AFTER_WRITE, AFTER_WRITE.replace(BARRIER.strip(), "")),
    (*PLANES, "bn_sums", None, "inside[k] = walk.inside(), at", "inside[k] = true, at"),
    (*PLANES, "bn_sums", None, "part[channels + c] = sums[i].dy_xhat", "part[channels + c] = sums[i].dy"),
    (*COLUMNS, "bn_sums", "block.cuh", MERGE_BARRIER, ""),
    (*COLUMNS, "bn_sums", None, "misalignment(a) == 0 && misalignment(b) == 0", "misalignment(a) == 0"),
    (*COLUMNS, "bn_sums", None, "g * A(widen(pair.first.of[k]))", "g * A(widen(pair.first.of[0]))"),
    (*PLANES, "bn_backward", None, "slope[i] = product[c]", "slope[i] = total[c]"),
    (*PLANES, "bn_backward", None, "inverse = A(1) / n[c]", "inverse = A(2) / n[0]"),
    (*PLANES, "bn_backward", None, "aligned<T>(from, to) && misalignment(given) == 0", "aligned<T>(from, to)"),
    (*COLUMNS, "bn_backward", None, "row(blockIdx.y * blockDim.y + threadIdx.y)", "row(blockIdx.y * blockDim.y + threadIdx.y + 1)"),
    (*VALUES, "reduce_rows", "block.cuh", "int with = WARP / 2; with;", "int with = WARP / 4; with;"),
    (*VALUES, "reduce_rows", None, "if (row < outer && threadIdx.x == 0) out", "if (row <= outer && threadIdx.x == 0) out"),
    (*VALUES, "reduce_rows", None, "row >= outer ? 0 : count ? count[item] : n,\n           [&]", "row >= outer ? 0 : n,\n           [&]"),
    (*VALUES, "reduce_rows", None, "block_reduce<THREADS / WARP>", "block_reduce<THREADS / WARP / 2>"),
    (*VALUES, "reduce_rows", None, "blockIdx.y * blockDim.x + threadIdx.x, gridDim", "blockIdx.y * WARP + threadIdx.x, gridDim"),
    (*VALUES, "reduce_rows", "block.cuh", "first += LOADS * threads", "first += threads"),
    (*VALUES, "reduce_rows", "block.cuh", "if (first + k * threads < body) use", "if (first + k * threads <= body) use"),
    (*VALUES, "reduce_columns", None, "row += LOADS * step", "row += step"),
    (*VALUES, "reduce_columns", None, "if (row + k * step >= n) break;", "if (row + k * step >= n - 1) break;"),
    (*VALUES, "reduce_columns", "block.cuh", MERGE_BARRIER, ""),
    (*VALUES, "reduce_columns", "block.cuh", "scratch[i][thread + rows * blockDim.x]);", "scratch[i][thread + rows * blockDim.x - 1]);"),
    (*VALUES, "reduce_columns", None, "if (place.has(i)) to", "to"),
    (*ARGUMENTS, "arg_rows", "block.cuh", "int with = WARP / 2; with;", "int with = WARP / 4; with;"),
    (*ARGUMENTS, "arg_rows", None, "a.index < b.index ? a : b", "a.index > b.index ? a : b"),
    (*ARGUMENTS, "arg_rows", None, "(start ? start[item] : 0)", "(start ? start[0] : 0)"),
    (*ARGUMENTS, "arg_rows", "block.cuh", "use(head + (first + k * threads) * N, loaded[k])", "use((first + k * threads) * N, loaded[k])"),
    (*ARGUMENTS, "arg_columns", None, "loaded[k].of[i], row + k * step)", "loaded[k].of[i], row)"),
    (*ARGUMENTS, "arg_columns", "block.cuh", MERGE_BARRIER, ""),
    (*ARGUMENTS, "arg_columns", None, "outer(blockIdx.x / tiles)", "outer(blockIdx.x / (tiles + 1))"),
    (*ARGUMENTS, "arg_finish", None, "if (i >= size || threadIdx.y != 0) return;", "if (i > size || threadIdx.y != 0) return;"),
    (*ARGUMENTS, "arg_finish", None, "part < count; part +=", "part < count - 1; part +="),
    (*ARGUMENTS, "arg_finish", None, "index[at]}", "index[i]}"),
    (SGD, "update.cu", "sgd", None, "block - row[FIRST_BLOCK_COLUMN]) * CHUNK", "block - row[FIRST_BLOCK_COLUMN]) * CHUNK / 2"),
    (SGD, "update.cu", "sgd", None, "left < CHUNK ? left : CHUNK", "CHUNK"),
    (SGD, "update.cu", "sgd", None, "+ FIRST_BLOCK_COLUMN] <= block) low", "+ FIRST_BLOCK_COLUMN] < block) low"),
    (MOMENTUM, "update.cu", "momentum", None, "high = middle - 1", "high = middle - 2"),
    (MOMENTUM, "update.cu", "momentum", None, "nesterov ? x.of[k] + change", "nesterov ? x.of[k]"),
    (MOMENTUM, "update.cu", "momentum", None, "misalignment(arrays[i]) == misalignment(arrays[0])", "true"),
    (ADAM, "update.cu", "adam", None, "return {arrays[0], arrays[1], arrays[2]", "return {arrays[0], arrays[2], arrays[1]"),
    (ADAM, "update.cu", "adam", None, "store(p.new_second + i, v)", "store(p.new_moment + i, v)"),
    (ADAM, "update.cu", "adam", None, "keep = scalars[2]", "keep = scalars[1]"),
    (*SIMT, "matmul_simt", None, "next_w);\n    __syncthreads();", "next_w);\n"),
    (*SIMT, "matmul_simt", None, "feed_w.load(end - first));\n  __syncthreads();", "feed_w.load(end - first));\n"),
    *[
        (*family, kernel, None, old, old.replace(BARRIER.strip(), ""))
        for family, kernel in ((SIMT, "matmul_simt"), (MMA, "matmul_mma"))
        for old in ("RowOf row_of) {\n  __syncthreads();", "{{slab[i]}});\n  __syncthreads();")
    ],
    (*SIMT, "matmul_simt", None, "i < n ? p[i] : T(0)", "i <= n ? p[i] : T(0)"),
    (*SIMT, "matmul_simt", "matmul.cuh", "if (row >= m || column >= n) return;", "if (row >= m || column > n) return;"),
    (*SIMT, "matmul_simt", None, "i / 4 * 64 + thread * 4", "i / 4 * 64 + thread * 3"),
    (*SIMT, "matmul_finish", None, "if (at >= size) return;", "if (at > size) return;"),
    (*SIMT, "matmul_finish", None, "for (int piece = 0; piece < pieces; piece++)", "for (int piece = 1; piece < pieces; piece++)"),
    (*SIMT, "matmul_finish", None, "static_cast<int>(at % n)", "static_cast<int>(at % m)"),
    *[
        (*family, kernel, None, old, new)
        for family, kernel in ((SIMT, "matmul_simt"), (MMA, "matmul_mma"))
        for old, new in (
            ("pieces - 1u;\n  __syncthreads();", "pieces - 1u;\n"),
            ("gridDim.z * size, pieces", "size, pieces"),
            ("if (threadIdx.x == 0) *arrived = 0;", ""),
        )
    ],
    (counted, "matmul.cu", "matmul_simt", None, "ptx::count_arrival(arrived)", "atomicAdd(arrived, 1u)"),
    (*MMA, "matmul_mma", "matmul.cuh", "A value = widen(narrow<O>(sums.of[i]));", "A value = sums.of[i];"),
    (*MMA, "matmul_mma", None, "ptx::copy_async_wait<STAGES - 2>();", "ptx::copy_async_wait<STAGES - 1>();"),
    (*MMA, "matmul_mma", None, "__syncthreads();  // this step's tiles have arrived", "// this step's tiles have arrived"),
    (*MMA, "matmul_mma", None, "__syncthreads();  // no thread reads the last tiles any more", ""),
    (*MMA, "matmul_mma", None, "min(side.left(first_line + line, from + k), PER_PACK)", "PER_PACK"),
    (*MMA, "matmul_mma", None, "matrix % 2 * 8 + row, k + matrix / 2 * 8)", "matrix / 2 * 8 + row, k + matrix % 2 * 8)"),
    (check_transposition, "transpose.cu", "transpose", None, "  __syncthreads();\n", ""),
    (check_transposition, "transpose.cu", "transpose", None, "tile[line * ACROSS + (j ^ line / PACK)]", "tile[line * ACROSS + (j ^ line % PACK)]"),
    (check_transposition, "transpose.cu", "transpose", None, "e < below && c", "e <= below && c"),
    (check_transposition, "transpose.cu", "transpose", None, "packs && left", "left"),
    (mma_of_float64, "matmul.cu", "matmul_mma", None, "i / 2 * 8, k + lane % 4 + i % 2 * 4", "i % 2 * 8, k + lane % 4 + i / 2 * 4"),
    (*WGMMA, "matmul_wgmma", None, "ptx::barrier_wait(&filled[turn.slot], turn.parity);", ""),
    (*WGMMA, "matmul_wgmma", None, "ptx::barrier_wait(&emptied[turn.slot], turn.parity ^ 1);", ""),
    (*WGMMA, "matmul_wgmma", None, "ptx::barrier_wait(&filled[turn.slot], turn.parity);", "ptx::barrier_wait(&filled[turn.slot], turn.parity ^ 1);"),
    (*WGMMA, "matmul_wgmma", None, "__syncthreads();\n  Turn", "Turn"),
    (*WGMMA, "matmul_wgmma", None, "    ptx::barrier_init_fence();", ""),
    (*WGMMA, "matmul_wgmma", None, "ptx::warpgroup_fence();", ""),
    (*WGMMA, "matmul_wgmma", "hopper.cuh", "SWIZZLE_128 = 1ull << 62", "SWIZZLE_128 = 2ull << 62"),
    (*WGMMA, "matmul_wgmma", None, "ptx::warpgroup_wait<1>();", ""),
    (*WGMMA, "matmul_wgmma", None, "ptx::warpgroup_finish(sums);", ""),
    (*WGMMA, "matmul_wgmma", None, "&filled[turn.slot], SLOT)", "&filled[turn.slot], TileX::BYTES)"),
    (*WGMMA, "matmul_wgmma", None, "  __syncwarp();  // no thread reads the slab any more", ""),
    (*WGMMA, "matmul_wgmma", None, "sums[i + 1]}});\n    __syncwarp();", "sums[i + 1]}});"),
    (*WGMMA, "matmul_wgmma", None, "    if (lane == 0) ptx::store_wait<1>();  // this box has been read\n", ""),
    (*WGMMA, "matmul_wgmma", None, "ptx::store_wait<1>();", "ptx::store_wait<2>();"),
    (*WGMMA, "matmul_wgmma", None, "    ptx::store_wait<0>();  // the slab has been read\n", ""),
    (*WGMMA, "matmul_wgmma", None, "ptx::store_wait<1>();  // this box has been read\n    __syncwarp();", "ptx::store_wait<1>();"),
    (*WGMMA, "matmul_wgmma", None, "    ptx::store_fence();\n", ""),
    (*WGMMA, "matmul_wgmma", None, "    ptx::store_fence();\n    __syncwarp();\n", "    ptx::store_fence();\n"),
    (*WGMMA, "matmul_wgmma", None, "    ptx::store_fence();\n    __syncwarp();\n", "    __syncwarp();\n    ptx::store_fence();\n"),
    (*WGMMA, "matmul_wgmma", None, "      ptx::store_commit();\n", ""),
    (*WGMMA, "matmul_wgmma", None, "      __syncwarp();\n      finish_box", "      finish_box"),
    (*WGMMA, "matmul_wgmma", None, "column / N ^ row % 8", "column / N ^ row % 4"),
    (*WGMMA, "matmul_wgmma", None, "first / SLAB_COLUMNS % 2 * BOX_BYTES", "0"),
    (*WGMMA, "matmul_wgmma", None, "i * 2 % SLAB_COLUMNS + lane / SLAB_ROWS * 8", "i * 2 % SLAB_COLUMNS"),
    (*WGMMA, "matmul_wgmma", None, "to_row >= sink.m || to_column >= sink.n", "to_row > sink.m || to_column > sink.n"),
    (*WGMMA, "matmul_wgmma", None, "{corner.row, corner.column + first}, lane", "{corner.row, corner.column}, lane"),
    (*WGMMA, "matmul_wgmma", None, "barrier_init(&emptied[slot], CLUSTER * MULTIPLIERS)", "barrier_init(&emptied[slot], CLUSTER)"),
    (*WGMMA, "matmul_wgmma", None, "barrier_init(&emptied[slot], CLUSTER * MULTIPLIERS)", "barrier_init(&emptied[slot], MULTIPLIERS)"),
    (*WGMMA, "matmul_wgmma", None, "if (CLUSTER > 1) ptx::cluster_sync();  // a block", "// a block"),
    (*WGMMA, "matmul_wgmma", None, "if (CLUSTER > 1) ptx::cluster_sync();  // while", "// while"),
    (*WGMMA, "matmul_wgmma", None, "ptx::barrier_arrive_in(emptied, thread_of_group)", "ptx::barrier_arrive(emptied)"),
    (*WGMMA, "matmul_wgmma", None, "+ rank * ShareW::BYTES", ""),
    (*WGMMA, "matmul_wgmma", None, "task.column + rank * (TILE_N / CLUSTER)", "task.column"),
    (*WGMMA, "matmul_wgmma", None, "task.row + rank * TILE_M, at", "task.row, at"),
    (*WGMMA, "matmul_wgmma", None, "task.row + rank * TILE_M + group_row", "task.row + group_row"),
    (*WGMMA, "matmul_wgmma", None, "first_task = blockIdx.x / CLUSTER", "first_task = blockIdx.x"),
    (*WGMMA, "matmul_wgmma", None, "if (++slot == STAGES) slot = 0, parity ^= 1;", "if (++slot == STAGES) slot = 0;"),
    (*WGMMA, "matmul_wgmma", "hopper.cuh", "describe_tile(tile + at, BOX, ATOM_BYTES)", "describe_tile(tile + at, BOX, ATOM_BYTES / 2)"),
    (*WGMMA, "matmul_wgmma", None, "task.end; at += K", "task.end - K; at += K"),
    (*WGMMA, "matmul_wgmma", "matmul.cuh", "if (row >= m || column >= n) return;", "if (row >= m || column > n) return;"),
    (*WGMMA, "matmul_wgmma", None, "at != task.first || step != 0", "step != 0"),
    *[
        (check, "random.cu", kernel, changed, old, new)
        for kernel, check in ALL_DRAWS
        for changed, old, new in (
            (None, "at + i >= 0 && at + i < length", "at + i >= 0 && at + i <= length"),
            (None, "% BYTES == 0 && at >= 0 &&", "% BYTES == 0 &&"),
            ("philox.cuh", "round < 10", "round < 9"),
            ("philox.cuh", "c2 = high0 ^ c3 ^ k1", "c2 = high0 ^ c3 ^ k0"),
            (None, "element_bits<B>(words, i)", "element_bits<B>(words, 0)"),
        )
    ],
    (ALL_DRAWS[2][1], "random.cu", "random_normal", None, "root - 1.6f", "root - 1.5f"),
]  # fmt: skip


@pytest.fixture
def clean() -> Iterator[None]:
    yield
    close_runners()


def strategies() -> Iterator[Execute]:
    for order in ("forward", "reverse", "random"):
        yield Execute(order, "late")
    yield Execute(sanitizer="thread")
    yield Execute(sanitizer="address")


def found_by(check: Callable[[Execute], None], folder: Path) -> str | None:
    """The first schedule or sanitizer that shows the bug."""
    for execute in strategies():
        execute.folder = folder
        try:
            check(execute)
        except AssertionError:
            schedule = f"{execute.schedule['order']}, {execute.schedule['async_mode']}"
            return f"{execute.sanitizer} sanitizer" if execute.sanitizer else f"plain, {schedule}"
    return None


def test_every_kernel_has_three_mutations() -> None:
    counts = Counter(kernel for _, _, kernel, *_ in MUTATIONS)
    files = sorted(sources.source_folder().glob("*.cu"))
    assert set(counts) == {k for f in files for k in sources.declarations(f.name)}
    assert min(counts.values()) >= 3


def test_every_barrier_is_missing_in_a_mutation() -> None:
    for source in sources.source_folder().glob("*.cu*"):
        text = source.read_text()
        removed = [
            range(found.start(), found.end())
            for _, file, _, changed, old, new in MUTATIONS
            if (changed or file) == source.name
            and len(BARRIERS.findall(new)) < len(BARRIERS.findall(old))
            for found in re.finditer(re.escape(old), text)
        ]
        for barrier in BARRIERS.finditer(text):
            line = text.count("\n", 0, barrier.start()) + 1
            assert any(barrier.start() in place for place in removed), f"{source.name}:{line}"


@pytest.mark.parametrize(
    ("check", "kernel"), {check: kernel for check, _, kernel, *_ in MUTATIONS}.items()
)
@pytest.mark.usefixtures("clean")
def test_an_unbroken_kernel_passes_the_same_checks(
    check: Callable[[Execute], None], kernel: str, tmp_path: Path
) -> None:
    need_compiler()
    for source in sources.source_folder().glob("*.cu*"):
        shutil.copy(source, tmp_path)
    assert found_by(check, tmp_path) is None


@pytest.mark.parametrize("number", range(len(MUTATIONS)))
@pytest.mark.usefixtures("clean")
def test_a_test_fails_for_every_mutation(
    number: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    need_compiler()
    check, file, kernel, changed, old, new = MUTATIONS[number]
    for source in sources.source_folder().glob("*.cu*"):
        shutil.copy(source, tmp_path)
    target = tmp_path / (changed or file)
    text = target.read_text()
    assert old in text, f"{target.name} no longer holds {old!r}"
    target.write_text(text.replace(old, new))
    found = found_by(check, tmp_path)
    row = f"{number:3} {kernel:18} {changed or file:16} {old[:44]!r:48} {found or 'SURVIVED'}"
    record_property(MUTATION, row)
    assert found is not None
