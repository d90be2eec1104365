"""What the compiler makes of kernels, and the table of kernels/README.md.

    python -m tests.kernels.machine_code

writes the table anew. It needs NVRTC and nvdisasm, and no GPU.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdt.cuda import compiler, launches, sources
from gdt.cuda.compiler import Cubin
from gdt.cuda.launches.attention import MMA_WIDTHS, launch_shape
from gdt.cuda.launches.attention_hopper import WIDTHS
from gdt.cuda.sources import Instance

from .harness import DTYPES, empty

REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?(?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)
ARCH = "sm_90a"
# Of a multiprocessor of an H100: CUDA C++ Programming Guide, "technical specifications".
REGISTERS, THREADS, BLOCKS, SHARED = 1 << 16, 2048, 32, 227 << 10
SHARED_OF_SYSTEM = 1 << 10  # of each block
PACK = 16  # bytes, the most that one load reads
PRODUCT = re.compile(r"\b(HGMMA|HMMA|FFMA|DFMA)\b")
BEGIN, END = "<!-- python -m tests.kernels.machine_code -->\n", "<!-- end -->\n"


class Row(NamedTuple):
    """A kernel of the table.

    threads and shared: of a block, shared its bytes of dynamic memory. passes: how often it reads
    or writes its largest array. before: what the same kernel had at commit 6a84455. expected: a
    share of the rate of a copy, or of a product, as its public model has it on an H100.
    """

    instance: Instance
    threads: int
    shared: int
    passes: str
    before: str
    expected: str


def _row(
    file: str, kernel: str, types: str, threads: int, passes: str, before: str, expected: str
) -> Row:
    instance = Instance(file, kernel, tuple(types.split(", ")))
    return Row(instance, threads, 0, passes, before, expected)


def _attention_row(kernel: str, width: int, passes: str, expected: str) -> Row:
    result = ("float",) if kernel.endswith(("_dq", "_dkv")) else ()
    file = "attention_hopper.cu" if "wgmma" in kernel else "attention_mma.cu"
    instance = Instance(file, kernel, ("half_t", str(width), *result))
    _, (threads,), shared = launch_shape(instance, 1, 1)
    return Row(instance, threads, shared, passes, "none on tensor cores", expected)


def _product_row(dtype: str, tile: int, arch: str | None, before: str, expected: str) -> Row:
    """The row of x @ w, or of x @ w.T for float32 on tensor cores, in tiles of `tile` columns.

    arch: "sm_90a" for wgmma, "sm_80" for mma.sync, None for CUDA cores."""
    x = np.zeros((256, 256), DTYPES[dtype])
    options = {"tensor_cores": arch is not None, "arch": arch, "tile": tile, "pieces": 1}
    w = x.T if arch and dtype == "float32" else x
    (call,) = launches.matmul(x, w, x.copy(), empty, **options)
    return Row(call.instance, *call.block, call.shared, "1 product", before, expected)


def _long_row(dtype: str) -> Row:
    """The row of a cross-entropy of 131,072 classes."""
    logits, loss = np.zeros((1, 1 << 17), DTYPES[dtype]), np.zeros(1, np.float32)
    labels, flag = np.zeros(1, np.int32), np.zeros(1, np.uint64)
    (call,) = launches.softmax_ce(
        logits, labels, loss, loss.copy(), logits.copy(), flag, arch=ARCH
    )  # fmt: skip
    return Row(call.instance, *call.block, call.shared, "1, 1 written", "2 passes, 1 block",
               "90 % of a copy: QuACK")  # fmt: skip


BN, RED, CE, UP, RND = "batchnorm.cu", "reduce.cu", "softmax_ce.cu", "update.cu", "random.cu"
WELFORD = "85 % of a copy: apex' Welford kernels"
COPY = "85 to 90 % of a copy"
HALVES = ("float16", "bfloat16")
ROWS = [
    _row(BN, "bn_moments", "float, float, Rows", 256, "1", "1 load of 4 bytes", WELFORD),
    _row(BN, "bn_moments", "float, float, Planes", 256, "1", "1 load of 4 bytes", WELFORD),
    _row(BN, "bn_moments", "bfloat16_t, float, Rows", 256, "1", "1 load of 2 bytes", WELFORD),
    _row(BN, "bn_apply", "float, float, Rows", 256, "2", "1 load of 16 bytes, divisions", COPY),
    _row(BN, "bn_sums", "float, float, Rows", 256, "2", "2 loads of 4 bytes", COPY),
    _row(BN, "bn_backward", "float, float, Rows", 256, "3", "2 loads of 16, divisions", COPY),
    _row(RED, "reduce_rows", "Sum, float, float, float", 256, "1", "4 loads of 4 bytes",
         "90 % of a copy: CUB, fast.cu"),
    _row(RED, "reduce_rows", "Sum, bfloat16_t, float, float", 256, "1", "4 loads of 2 bytes", COPY),
    _row(RED, "reduce_columns", "Sum, float, float, float", 256, "1", "4 loads of 4 bytes", COPY),
    _row(RED, "arg_rows", "Max, float, float", 256, "1", "4 loads of 4 bytes", COPY),
    _row(CE, "softmax_ce", "float, float, int, 256, 1", 256, "1 or 2, 1 written",
         "1 load of 16 bytes", "75 to 80 %: Liger"),
    _row(CE, "softmax_ce", "bfloat16_t, float, int, 256, 1", 256, "1 or 2, 1 written",
         "1 load of 16 bytes", "75 %: Liger"),
    *(_long_row(t) for t in ("float32", "bfloat16")),
    _row(UP, "sgd", "float", 256, "3", "2 loads of 16 bytes", COPY),
    _row(UP, "adam", "float", 256, "7", "4 loads of 16 bytes", "85 to 92 %: apex"),
    _row(RND, "random_uniform", "float, unsigned, float", 256, "1 written", "4 stores of 4 bytes",
         "80 %, then bound by Philox"),
    _row(RND, "random_normal", "float, unsigned, float", 256, "1 written", "4 stores of 4 bytes",
         "20 to 30 %: bound by arithmetic"),
    *(
        _attention_row(kernel, width, passes, expected)
        for widths, kernel, passes, expected in (
            (MMA_WIDTHS, "attention_mma", "2 products", "200 to 300 TFLOP/s: FlashAttention-2"),
            (MMA_WIDTHS, "attention_mma_dq", "3 products", "150 to 200 TFLOP/s: FlashAttention-2"),
            (MMA_WIDTHS, "attention_mma_dkv", "4 products", "150 to 200 TFLOP/s: FlashAttention-2"),
            (WIDTHS, "attention_wgmma", "2 products", "350 to 600 TFLOP/s: FlashAttention-3"),
            (WIDTHS, "attention_wgmma_dq", "3 products", "300 to 500 TFLOP/s: FlashAttention-3"),
            (WIDTHS, "attention_wgmma_dkv", "4 products", "300 to 500 TFLOP/s: FlashAttention-3"),
        )
        for width in widths
    ),
    *(
        _product_row(dtype, tile, arch, before, expected)
        for dtypes, tiles, arch, before, expected in (
            (HALVES, (256, 128), ARCH, "results stored by threads",
             "763 to 808 TFLOP/s: fast.cu's kernel 11, built alike; cuBLAS 716 to 798"),
            (HALVES, (128, 64), "sm_80", "the same", "55 to 65 % of cuBLAS on an A100"),
            (("float32",), (128, 64), "sm_80", "the same", "25 to 35 % of cuBLAS"),
            (("float32",), (128, 64), None, "the same", "38 to 43 TFLOP/s: 80 to 90 % of cuBLAS"),
            (("float64",), (128, 64), "sm_80", "none on tensor cores", "55 to 65 % of cuBLAS"),
            (("float64",), (64,), None, "the same", "half of tensor cores' at most"),
        )
        for dtype in dtypes
        for tile in tiles
    ),
]  # fmt: skip


def reports(cubin: Cubin) -> dict[str, re.Match[str]]:
    """What ptxas tells of each kernel, by symbol."""
    return {m["name"]: m for m in REPORT.finditer(cubin.log)}


def static_shared(report: re.Match[str]) -> int:
    """Bytes of shared memory that a kernel has without asking."""
    found = re.search(r"(\d+) bytes smem", report["rest"])
    return int(found[1]) if found else 0


def disassembler() -> Path | None:
    """The program nvdisasm; None if it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or []) if spec else []
    found = [p for folder in folders for p in Path(folder).glob("*/bin/nvdisasm")]
    return found[0] if found else None


def code_of(cubin: Cubin, program: Path) -> dict[str, str]:
    """The disassembled code of each kernel, by symbol."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin.code)
        command = [str(program), "-c", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = re.split(r"\n\.text\.(\w+):", text)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def opcodes(code: str) -> Counter[str]:
    """The number of each instruction in disassembled code."""
    opcode = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]+)", re.M)
    return Counter(opcode.findall(code))


def product_loop(code: str) -> str:
    """The loop of disassembled code, without one within, that multiplies most."""
    return max(inner_loops(code), key=lambda loop: len(PRODUCT.findall(loop)))


def inner_loops(code: str) -> list[str]:
    """The loops of disassembled code that have no loop within."""
    lines = code.splitlines()
    labels = {line.rstrip(":"): n for n, line in enumerate(lines) if line.startswith(".L")}
    ends: dict[int, int] = {}
    for n, line in enumerate(lines):
        target = re.search(r"\bBRA\b.*?`\((\.L\w+)\)", line)
        if target and labels[target[1]] < n:
            ends[labels[target[1]]] = n
    return [
        "\n".join(lines[a:b])
        for a, b in ends.items()
        if not any(a < c and d < b for c, d in ends.items())
    ]


def load_widths(code: str) -> Counter[int]:
    """The loads from global memory in disassembled code, by their bytes."""
    widths: Counter[int] = Counter()
    for name, count in opcodes(code).items():
        if re.match(r"LDG?\.E", name):
            found = re.search(r"\.(?:[US](8|16)|(64|128))\b", name)
            bits = int(found[1] or found[2]) if found else 32
            widths[bits // 8] += count
    return widths


def blocks_of(registers: int, threads: int, shared: int) -> int:
    """The blocks that a multiprocessor of an H100 runs at the same time."""
    own = -(-registers // 8) * 8 * threads
    return min(REGISTERS // own, THREADS // threads, BLOCKS, SHARED // (shared + SHARED_OF_SYSTEM))


def in_flight(code: str, blocks: int, threads: int) -> int:
    """The bytes that a multiprocessor has under way in the loop that reads most."""
    loops = map(load_widths, inner_loops(code))
    most = max((sum(w * n for w, n in loop.items()) for loop in loops), default=0)
    return blocks * threads * most


def table() -> list[str]:
    """The lines of the table."""
    program = disassembler()
    assert program is not None, "nvdisasm is not installed"
    lines = [
        "| kernel | registers | spilled | blocks an SM | KiB in flight an SM | loads by bytes"
        " (in the loop) | products a tile | passes | before | expected |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for file in dict.fromkeys(row.instance.file for row in ROWS):
        known = launches.instances(file, ARCH)
        wanted = [row for row in ROWS if row.instance.file == file]
        assert all(row.instance in known for row in wanted)
        cubin = compiler.compile_file(file, [row.instance for row in wanted], ARCH)
        codes, found = code_of(cubin, program), reports(cubin)
        lines += [_line(row, found[s], codes[s]) for row in wanted
                  for s in [cubin.names[str(row.instance)]]]  # fmt: skip
    return lines


def _line(row: Row, report: re.Match[str], code: str) -> str:
    registers = int(report["registers"])
    blocks = blocks_of(registers, row.threads, row.shared + static_shared(report))
    loops = sorted(map(load_widths, inner_loops(code)), key=lambda widths: widths[PACK])
    loads = ", ".join(f"{n} of {b}" for b, n in sorted(loops[-1].items()) if n) if loops else ""
    products: int | str = sum(
        n for name, n in opcodes(code).items() if name.startswith(("HMMA", "DMMA"))
    )
    kib = in_flight(code, blocks, row.threads) / 1024
    if row.instance.kernel == "matmul_simt":  # of a thread, for each k; one of two tiles is fetched
        found = Counter(PRODUCT.findall(product_loop(code)))
        products = " ".join(f"{n} {name}" for name, n in found.items())
        loads, kib = "16, before the loop", static_shared(report) // 2 * blocks / 1024
    elif products:
        loads, kib = "cp.async of 16", row.shared * blocks / 1024
    if tiles := sum(n for name, n in opcodes(code).items() if name.startswith("HGMMA")):
        # Of most the first and last products of a row of tiles are there again, before and behind
        # the loop; that of matmul_wgmma has two tiles, and one more is before it.
        again = {"attention_wgmma_dkv": 1, "matmul_wgmma": 3}.get(row.instance.kernel, 2)
        products = tiles // again
        slabs = sources.constants(row.instance.file).get("SLABS_BYTES", 0)  # of results
        loads, kib = "TMA", (row.shared - slabs) * blocks / 1024
    return (
        f"| `{row.instance}` | {registers} | {report['stores']} | {blocks} | {kib:.0f} | {loads} |"
        f" {products or ''} | {row.passes} | {row.before} | {row.expected} |"
    )


def main() -> None:
    """Write the table into kernels/README.md."""
    path = sources.source_folder() / "README.md"
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(before + BEGIN + "\n".join(table()) + "\n" + END + after)


if __name__ == "__main__":
    main()
