"""Every kernel, compiled for every architecture: registers, spills, memory, instructions."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdt.cuda import compiler, launches, sources
from gdt.cuda.compiler import ARCHITECTURES
from gdt.cuda.runner import KernelCall
from tests.needs import need_nvrtc, skip

from .harness import empty

REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)
REGISTERS = {  # a multiprocessor has 65,536, so 128 let two blocks of 256 threads in, 255 one
    "attention": 255,
    "attention_dq": 255,
    "attention_dkv": 255,
    "matmul_simt": 128,
    "matmul_mma": 255,
    "matmul_wgmma": 168,  # of 384 threads; the warpgroups then share out the same registers anew
}
REGISTERS_ELSE = 80
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
# Many instances: one in so many, all of them under kernels_full.
SLOW = {"attention.cu": 5, "matmul_hopper.cu": 3}
DEFAULT = {"sm_75", "sm_90a"}  # the oldest and the main target; the others are marked kernels_full
PATTERNS = {  # instructions that a kernel must, or must not, be made of
    "softmax_ce": ["LDG.E.128", "STG.E.128"],
    "bn_apply": ["LDG.E.128", "STG.E.128"],
    "bn_backward": ["LDG.E.128", "STG.E.128"],
    "sgd": ["LD.E.128", "ST.E.128"],  # addresses from a table are of no known memory
    "momentum": ["LD.E.128", "ST.E.128"],
    "adam": ["LD.E.128", "ST.E.128"],
    "matmul_simt": ["LDG.E", "LDS", "FFMA"],
    "matmul_mma": ["HMMA", "LDGSTS", "LDSM"],
    "matmul_wgmma": [
        *("HGMMA", "UTMALDG.3D", "SYNCS", "USETMAXREG", "LDS.128", "STS.64"),
        *("FENCE.VIEW.ASYNC", "WARPGROUP.ARRIVE"),  # of barriers for copies, of sums for products
    ],
}
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


def reports(cubin: compiler.Cubin) -> dict[str, re.Match[str]]:
    """What ptxas tells of each kernel, by symbol."""
    return {m["name"]: m for m in REPORT.finditer(cubin.log)}


def static_shared(report: re.Match[str]) -> int:
    """Bytes of shared memory that a kernel has without asking."""
    found = re.search(r"(\d+) bytes smem", report["rest"])
    return int(found[1]) if found else 0


def test_every_source_has_instances_and_every_kernel_is_among_them() -> None:
    for file in FILES:
        assert {i.kernel for i in launches.instances(file)} == set(sources.declarations(file))


@pytest.mark.parametrize(("file", "arch", "step"), targets())
def test_kernels_fit_their_registers_and_spill_nothing(file: str, arch: str, step: int) -> None:
    cubin = compiled(file, arch, step)
    assert "warning" not in cubin.log
    assert SERIALIZED not in cubin.log
    by_symbol = reports(cubin)
    for expression, symbol in cubin.names.items():
        report = by_symbol[symbol]
        kernel = expression.split("<")[0]
        allowed = CALL_BYTES if "double" in expression else 0
        assert max(int(report["stores"]), int(report["loads"])) <= allowed, f"{expression} spills"
        assert int(report["registers"]) <= REGISTERS.get(kernel, REGISTERS_ELSE), expression
        assert static_shared(report) <= SHARED_LIMIT, expression


def test_the_slots_and_slabs_of_hopper_fit_a_multiprocessor() -> None:
    known = sources.constants("matmul_hopper.cu")
    swizzle = known["ATOM_BYTES"]  # on whose multiples dynamic memory begins, after the barriers
    assert known["SLOTS_BYTES"] + known["SLABS_BYTES"] + swizzle <= SHARED_OF_BLOCK["sm_90a"]
    feeder, multipliers = known["FEEDER_REGISTERS"], known["MULTIPLIER_REGISTERS"]
    assert known["WARPGROUP"] * (feeder + known["MULTIPLIERS"] * multipliers) <= 1 << 16


def calls_with_most_shared_memory() -> Iterator[KernelCall]:
    for dtype, turned in product((np.float16, np.float32), (False, True)):
        x = np.zeros((128, 128), dtype)
        sides = (x.T, x) if turned else (x, x.T)
        yield from launches.matmul(*sides, x.copy(), empty, tensor_cores=True, tile=128, pieces=1)
    for dtype in (np.float32, np.float64):
        size = launches.ROW_CACHE_BYTES // np.dtype(dtype).itemsize
        for classes in (launches.SHORT_ROW, size - 8):  # the longest rows that are kept
            logits, loss = np.zeros((4, classes), dtype), np.zeros(4, dtype)
            labels, flag = np.zeros(4, np.int32), np.zeros(1, np.uint64)
            yield from launches.softmax_ce(logits, labels, loss, loss.copy(), logits.copy(), flag)


def test_no_block_asks_for_more_shared_memory_than_there_is() -> None:
    for call in calls_with_most_shared_memory():
        assert call.shared
        file, kernel = call.instance.file, call.instance.kernel
        cubin = compiled(file, "sm_90a")
        total = call.shared + static_shared(reports(cubin)[cubin.names[str(call.instance)]])
        for arch, limit in SHARED_OF_BLOCK.items():
            if arch not in launches.WITHOUT.get(kernel, ()):
                assert total <= limit, f"{call.instance} on {arch}"


def disassembler() -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or []) if spec else []
    found = [p for folder in folders for p in Path(folder).glob("*/bin/nvdisasm")]
    if not found:
        skip("nvidia-cuda-nvdisasm is not installed")
    return found[0]


def code_of(cubin: compiler.Cubin, folder: Path) -> dict[str, str]:
    """The disassembled code of each kernel, by symbol."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin.code)
    command = [str(disassembler()), "-c", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = re.split(r"\n\.text\.(\w+):", text)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def opcodes(code: str) -> Counter[str]:
    """The number of each instruction in disassembled code."""
    opcode = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", re.M)
    return Counter(opcode.findall(code))


def products(code: str) -> list[str]:
    """The lines of products of a warpgroup in disassembled code."""
    return [line for line in code.splitlines() if "HGMMA" in line]


@pytest.mark.parametrize(("file", "arch", "step"), targets())
def test_kernels_are_made_of_the_expected_instructions(
    file: str, arch: str, step: int, tmp_path: Path
) -> None:
    cubin = compiled(file, arch, step)
    code = code_of(cubin, tmp_path)
    for expression, symbol in cubin.names.items():
        found = opcodes(code[symbol])
        kernel, types = expression.split("<")[0], expression.partition("<")[2]
        if "double" in types:
            continue
        expected = PATTERNS.get(kernel, [])
        if types.startswith("float"):  # ldmatrix moves 16-bit elements only
            expected = [w.replace("LDSM", "LDS") for w in expected]
        for wanted in expected:
            assert any(o.startswith(wanted) for o in found), f"{expression} has no {wanted}"
        assert not any(o.startswith(("LDL", "STL")) for o in found), f"{expression}: local memory"
        # Sums are rounded to the nearest number where they are narrowed.
        assert not [o for o in found if re.fullmatch(r"F2FP?\..*\b(RZ|RM|RP)\b.*", o)], expression
        if kernel == "matmul_wgmma":
            *_, x_across, w_along = (flag == "true" for flag in re.findall("true|false", types))
            flags = {tuple(re.findall(r"\.tnsp([AB])", line)) for line in products(code[symbol])}
            assert flags == {("A",) * x_across + ("B",) * (not w_along)}, expression


def test_random_numbers_do_not_fuse_products_and_sums() -> None:
    assert "--fmad=false" in compiler.FILE_OPTIONS["random.cu"]
