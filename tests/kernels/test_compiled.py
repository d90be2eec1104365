"""Every kernel, compiled for every architecture: registers, spills, memory, instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from gdt.cuda import compiler, launches, sources
from gdt.cuda.compiler import ARCHITECTURES
from gdt.cuda.runner import KernelCall
from tests.needs import need_nvrtc, skip

from .harness import empty
from .machine_code import (
    BEGIN,
    END,
    PACK,
    ROWS,
    blocks_of,
    code_of,
    disassembler,
    in_flight,
    inner_loops,
    load_widths,
    opcodes,
    product_loop,
    reports,
    static_shared,
)

REGISTERS = {  # a multiprocessor has 65,536, so 128 let two blocks of 256 threads in, 255 one
    "attention": 255,
    "attention_dq": 255,
    "attention_dkv": 255,
    "attention_mma": 255,
    "attention_mma_dq": 255,
    "attention_mma_dkv": 255,
    "matmul_simt": 128,
    "matmul_mma": 255,
    **dict.fromkeys(["attention_wgmma", "attention_wgmma_dq", "attention_wgmma_dkv"], 168),
    "matmul_wgmma": 168,  # of 384 threads; the warpgroups then share out the same registers anew
}
REGISTERS_ELSE = 80
REGISTERS_OF_16_BITS = 128  # of a kernel whose threads have twice as many channels, or columns
SHARED_LIMIT = 48 << 10
SHARED_OF_BLOCK = {  # CUDA C++ Programming Guide, "technical specifications per compute capability"
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_89": 99 << 10,
    "sm_90a": 227 << 10,
    "sm_100": 227 << 10,
    "sm_120": 99 << 10,
}
# The math library's float64 subroutines are called, and calls save a few registers in memory.
CALL_BYTES = 64
FILES = sorted(p.name for p in sources.source_folder().glob("*.cu"))
# Many instances: one in so many, in which every kernel, dtype, tile and flag is, all of them under
# kernels_full.
SLOW = {
    **{
        "attention.cu": 5,
        "attention_mma.cu": 5,
        "attention_hopper.cu": 5,
        "matmul_hopper.cu": 8,
        "matmul.cu": 7,
    },
    **{"reduce.cu": 7, "softmax_ce.cu": 8, "batchnorm.cu": 3},
}
DEFAULT = {"sm_75", "sm_90a"}  # the oldest and the main target; the others are marked kernels_full
ATTENTION_MMA = ["HMMA", "LDGSTS.E.BYPASS.128", "LDSM.16.M88.4", "LDSM.16.MT88.4"]
ATTENTION_WGMMA = [
    *("HGMMA", "UTMALDG.3D", "SYNCS", "USETMAXREG", "FENCE.VIEW.ASYNC", "WARPGROUP.ARRIVE"),
    *("MUFU.EX2", "F2FP", "STG.E"),
]
PATTERNS = {  # instructions that a kernel must, or must not, be made of
    "softmax_ce": ["LDG.E.128", "STG.E.128"],
    "softmax_ce_cluster": ["LDG.E.128", "STS.128", "UCGABAR_ARV", "UCGABAR_WAIT", "STG.E.128"],
    "softmax_ce_gradient": ["LDG.E.128", "STG.E.128"],
    "bn_apply": ["LDG.E.128", "STG.E.128"],
    "bn_backward": ["LDG.E.128", "STG.E.128"],
    "sgd": ["LD.E.128", "ST.E.128"],  # addresses from a table are of no known memory
    "momentum": ["LD.E.128", "ST.E.128"],
    "adam": ["LD.E.128", "ST.E.128"],
    "random_uniform": ["STG.E."],
    "random_normal": ["STG.E."],
    "attention_mma": ATTENTION_MMA,
    "attention_mma_dq": ATTENTION_MMA,
    "attention_mma_dkv": ATTENTION_MMA,
    "attention_wgmma": ATTENTION_WGMMA,
    "attention_wgmma_dq": ATTENTION_WGMMA,
    "attention_wgmma_dkv": ATTENTION_WGMMA,
    "transpose": ["LDG.E.128", "STS.128", "LDS", "STG.E.128"],
    "matmul_simt": ["LDG.E", "LDS", "FFMA"],
    "matmul_mma": ["HMMA", "LDGSTS", "LDSM"],
    "matmul_wgmma": [
        *("HGMMA", "UTMALDG.3D", "SYNCS", "USETMAXREG", "LDS.128", "STS.64"),
        *("FENCE.VIEW.ASYNC", "WARPGROUP.ARRIVE"),  # of barriers for copies, of sums for products
    ],
}
# Loads of 16 bytes of a thread that are under way at the same time, in a loop of a kernel bound by
# memory; an SM shall have IN_FLIGHT bytes of them.
LOADS = dict.fromkeys(
    ["bn_moments", "bn_apply", "bn_sums", "bn_backward", "reduce_rows", "reduce_columns",
     "arg_rows", "arg_columns", "softmax_ce", "softmax_ce_cluster", "softmax_ce_parts",
     "softmax_ce_gradient", "sgd", "adam"], 4,
) | {"momentum": 6}  # fmt: skip
IN_FLIGHT = 32 << 10
# Results of 16 bits: the accelerator sees them in shared memory after a fence.
STORED = r"STSM\.16\.M88\.4.*FENCE\.VIEW\.ASYNC\.S.*UTMASTG\.3D.*UTMACMDFLUSH"
PRODUCTS = {"matmul_simt": "DFMA", "matmul_mma": "DMMA"}  # of float64
OTHERS = {"double", "half_t", "int", "Min"}  # compiled like those that are looked at
THREADS, ROW_OF_LOGITS = 256, 128  # of a block; where a warp has a row of logits
SERIALIZED = "wgmma.mma_async instructions are serialized"  # ptxas, of registers touched too early


@pytest.fixture(scope="module", autouse=True)
def installed_nvrtc() -> None:
    need_nvrtc()


def targets() -> list[Any]:
    """File, architecture, and every how many instances are compiled."""
    full = pytest.mark.kernels_full
    every = [
        pytest.param(file, arch, 1, marks=() if arch in DEFAULT and file not in SLOW else full)
        for file in FILES
        for arch in ARCHITECTURES
        if launches.instances(file, arch)
    ]
    return every + [pytest.param(file, "sm_90a", SLOW[file]) for file in SLOW]


def compiled(file: str, arch: str, step: int = 1) -> compiler.Cubin:
    return compiler.compile_file(file, launches.instances(file, arch)[::step], arch)


def disassembled(cubin: compiler.Cubin) -> dict[str, str]:
    """The disassembled code of each kernel, by symbol."""
    program = disassembler()
    if program is None:
        skip("nvidia-cuda-nvdisasm is not installed")
        raise AssertionError
    return code_of(cubin, program)


def test_the_table_of_the_readme_has_every_kernel_that_memory_or_tensor_cores_bound() -> None:
    text = (sources.source_folder() / "README.md").read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    for row in ROWS:
        assert f"| `{row.instance}` |" in text
        assert row.instance in launches.instances(row.instance.file, "sm_90a")


def test_every_source_has_instances_and_every_kernel_is_among_them() -> None:
    for file in FILES:
        every = launches.instances(file)
        assert {i.kernel for i in every} == set(sources.declarations(file))
        assert {i.kernel for i in every[:: SLOW.get(file, 1)]} == set(sources.declarations(file))


@pytest.mark.parametrize(("file", "arch", "step"), targets())
def test_kernels_fit_their_registers_and_spill_nothing(file: str, arch: str, step: int) -> None:
    cubin = compiled(file, arch, step)
    assert "warning" not in cubin.log
    assert SERIALIZED not in cubin.log
    by_symbol = reports(cubin)
    for expression, symbol in cubin.names.items():
        report = by_symbol[symbol]
        allowed = CALL_BYTES if "double" in expression and "matmul" not in expression else 0
        assert max(int(report["stores"]), int(report["loads"])) <= allowed, f"{expression} spills"
        assert int(report["registers"]) <= most_registers(expression), expression
        assert static_shared(report) <= SHARED_LIMIT, expression


def most_registers(expression: str) -> int:
    """The registers that a kernel may have."""
    kernel, _, types = expression.partition("<")
    if kernel in LOADS and re.match(r"(\w{3}, )?(half_t|bfloat16_t)\b", types):
        return REGISTERS_OF_16_BITS
    return REGISTERS.get(kernel, REGISTERS_ELSE)


@pytest.mark.parametrize("file", ["batchnorm.cu", "reduce.cu", "softmax_ce.cu", "update.cu"])
def test_memory_is_read_in_packs_of_which_many_are_under_way(file: str) -> None:
    chosen = [
        i
        for i in launches.instances(file)
        if i.kernel in LOADS and not OTHERS.intersection(i.arguments)
    ]
    assert {i.kernel for i in chosen} == set(LOADS) & set(sources.declarations(file))
    cubin = compiler.compile_file(file, chosen, "sm_90a")
    code, report = disassembled(cubin), reports(cubin)
    for expression, symbol in cubin.names.items():
        kernel = expression.split("<")[0]
        loop = max(inner_loops(code[symbol]), key=lambda text: load_widths(text)[PACK])
        assert load_widths(loop)[PACK] >= LOADS[kernel], expression
        assert "CALL" not in loop or kernel == "adam", expression  # of a root and a quotient
        threads = ROW_OF_LOGITS if expression.endswith("32, 4>") else THREADS
        own = static_shared(report[symbol])
        if kernel == "softmax_ce_cluster":  # of the longest rows that clusters have
            own += launches.CLUSTER_PART_BYTES
        blocks = blocks_of(int(report[symbol]["registers"]), threads, own)
        assert in_flight(code[symbol], blocks, threads) >= IN_FLIGHT, expression


def test_the_slots_and_slabs_of_hopper_fit_a_multiprocessor() -> None:
    known = sources.constants("matmul_hopper.cu")
    swizzle = known["ATOM_BYTES"]  # on whose multiples dynamic memory begins, after the barriers
    assert known["SLOTS_BYTES"] + known["SLABS_BYTES"] + swizzle <= SHARED_OF_BLOCK["sm_90a"]
    for file in ("matmul_hopper.cu", "attention_hopper.cu"):  # they share out those of the block
        known = sources.constants(file)
        feeder, multipliers = known["FEEDER_REGISTERS"], known["MULTIPLIER_REGISTERS"]
        shared_out = known["WARPGROUP"] * (feeder + known["MULTIPLIERS"] * multipliers)
        assert shared_out <= known["HOPPER_THREADS"] * REGISTERS["matmul_wgmma"]


def calls_with_most_shared_memory() -> Iterator[KernelCall]:
    for dtype, turned in product((np.float16, np.float32, np.float64), (False, True)):
        x = np.zeros((128, 128), dtype)
        sides = (x.T, x) if turned else (x, x.T)
        yield from launches.matmul(*sides, x.copy(), empty, tensor_cores=True, tile=128, pieces=1)
    for dtype in (np.float32, np.float64):
        size = launches.ROW_CACHE_BYTES // np.dtype(dtype).itemsize
        for classes in (launches.SHORT_ROW, size - 8):  # the longest rows that are kept
            logits, loss = np.zeros((4, classes), dtype), np.zeros(4, dtype)
            labels, flag = np.zeros(4, np.int32), np.zeros(1, np.uint64)
            yield from launches.softmax_ce(logits, labels, loss, loss.copy(), logits.copy(), flag)
        size = 8 * launches.CLUSTER_PART_BYTES // np.dtype(dtype).itemsize
        logits, loss = np.zeros((1, size - 8 * 8), dtype), np.zeros(1, dtype)
        yield from launches.softmax_ce(
            logits, labels[:1], loss, loss.copy(), logits.copy(), flag, arch="sm_90a"
        )


def test_no_block_asks_for_more_shared_memory_than_there_is() -> None:
    for call in calls_with_most_shared_memory():
        assert call.shared
        file = call.instance.file
        cubin = compiler.compile_file(file, [call.instance], "sm_90a")
        total = call.shared + static_shared(reports(cubin)[cubin.names[str(call.instance)]])
        for arch, limit in SHARED_OF_BLOCK.items():
            if call.instance in launches.instances(file, arch):
                assert total <= limit, f"{call.instance} on {arch}"


def products(code: str) -> list[str]:
    """The lines of products of a warpgroup in disassembled code."""
    return [line for line in code.splitlines() if "HGMMA" in line]


@pytest.mark.parametrize(("file", "arch", "step"), targets())
def test_kernels_are_made_of_the_expected_instructions(file: str, arch: str, step: int) -> None:
    cubin = compiled(file, arch, step)
    code = disassembled(cubin)
    for expression, symbol in cubin.names.items():
        found = opcodes(code[symbol])
        kernel, types = expression.split("<")[0], expression.partition("<")[2]
        if "double" in types and kernel not in PRODUCTS:
            continue
        expected = PATTERNS.get(kernel, [])
        if types.startswith(("float", "double")):  # ldmatrix moves 16-bit elements only
            expected = [w.replace("LDSM", "LDS") for w in expected]
        if types.startswith("double"):
            expected = [re.sub("HMMA|FFMA", PRODUCTS[kernel], w) for w in expected]
        for wanted in expected:
            assert any(o.startswith(wanted) for o in found), f"{expression} has no {wanted}"
        assert not any(o.startswith(("LDL", "STL")) for o in found), f"{expression}: local memory"
        if kernel.startswith(("attention_mma", "attention_wgmma")):
            assert not [o for o in found if re.fullmatch(r"(LD|ST).*\.[US]16.*", o)], expression
        # Sums are rounded to the nearest number where they are narrowed.
        assert not [o for o in found if re.fullmatch(r"F2FP?\..*\b(RZ|RM|RP)\b.*", o)], expression
        if kernel in ("matmul_simt", "matmul_wgmma"):  # products wait for no elements
            loop = opcodes(product_loop(code[symbol]))
            assert any(o.startswith(("FFMA", "DFMA", "HGMMA")) for o in loop), expression
            slow = [o for o in loop if re.match(r"LDG|STG|LDS(?!(\.U)?\.128)|STS|MEMBAR", o)]
            assert not slow, expression
        if kernel == "matmul_wgmma":
            is_stored = bool(re.search(STORED, code[symbol], re.S))
            assert is_stored == (types.split(", ")[1] != "float"), expression
            has_cluster = {"UTMALDG.3D.MULTICAST", "UCGABAR_ARV", "UCGABAR_WAIT"} <= set(found)
            assert has_cluster == types.endswith(", 2>"), expression
            *_, x_across, w_along = (flag == "true" for flag in re.findall("true|false", types))
            flags = {tuple(re.findall(r"\.tnsp([AB])", line)) for line in products(code[symbol])}
            assert flags == {("A",) * x_across + ("B",) * (not w_along)}, expression


def test_registers_of_products_under_way_are_left_alone() -> None:
    """Of attention on Hopper, which computes weights while products are under way: from a product
    to its wait no other instruction names its sums, or the first register of its left factor.

    Exponentials under way: forward of 64 weights of a thread, and two shares; of dq, whose loop
    has pieces of code with and without a mask, of 32 weights in each."""
    exponentials = {"attention_wgmma": 66, "attention_wgmma_dq": 64, "attention_wgmma_dkv": 0}
    file = "attention_hopper.cu"
    cubin = compiled(file, "sm_90a", SLOW[file])
    code = disassembled(cubin)
    for expression, symbol in cubin.names.items():
        groups: list[set[str]] = [set()]
        overlapped = 0
        for line in code[symbol].splitlines():
            named = re.findall(r"\bR\d+\b", line)
            if product := re.search(r"HGMMA\.64x(\d+)x16\S* R(\d+), (R\d+, )?gdesc", line):
                columns, first = int(product[1]), int(product[2])
                groups[-1] |= {f"R{first + i}" for i in range(columns // 2)}
                groups[-1] |= set(product[3].rstrip(", ").split() if product[3] else ())
                groups += [set()] if "gsb0" in line else []
            elif wait := re.search(r"DEPBAR\.LE gsb0, 0x(\d+)", line):
                groups = groups[max(len(groups) - 1 - int(wait[1]), 0) :]
            else:
                assert not set().union(*groups).intersection(named), f"{expression}: {line}"
                overlapped += len(groups) > 1 and "MUFU.EX2" in line
        assert overlapped == exponentials[expression.split("<")[0]], expression


def test_random_numbers_do_not_fuse_products_and_sums() -> None:
    assert "--fmad=false" in compiler.FILE_OPTIONS["random.cu"]
