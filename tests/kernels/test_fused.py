"""Generated kernels of element-wise ops: beside NumPy, and beside the kernels of CuPy's ufuncs."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest

import gdt
from examples import mnist
from gdt.backend import backend_of
from gdt.cuda import sources
from gdt.cuda.compiler import ARCHITECTURES, Cubin, compile_file
from gdt.cuda.nvrtc import nvrtc
from gdt.cuda.sources import Instance
from gdt.fusion import cuda
from gdt.fusion.cuda import FUNCTIONS, FusedKernel, generated, is_of_cuda, rounds_once, text_of
from gdt.fusion.formula import ElementGraph
from gdt.fusion.op_formula import UFUNCS
from gdt.programs import recorder
from tests.covering import covering
from tests.needs import need_compiler, need_nvrtc
from tests.strict import cuda as strict_cuda
from tests.strict.cuda import CudaGraph

from . import strict_kernels
from .emulation import EMULATED
from .harness import SANITIZERS, SCHEDULES, Execute, garbage, name, run_case
from .machine_code import opcodes, reports
from .test_compiled import CALL_BYTES, DEFAULT, disassembled

MOST_REGISTERS = 128  # of a thread, so that four blocks of 128 threads fit
FORMULAS: dict[str, tuple[str, Any]] = {  # kinds of dtypes, and what NumPy computes
    "x + y - x * y": ("fiu", lambda x, y: x + y - x * y),
    "x / (y * y + 1.0) * 0.1": ("f", lambda x, y: x / (y * y + 1) * x.dtype.type(0.1)),
    "-x if x > y else abs(y)": ("f", lambda x, y: np.where(x > y, -x, abs(y))),
    "sqrt(abs(x)) + floor(y) * ceil(x) - trunc(y) + rint(x)": (
        "f", lambda x, y: np.sqrt(abs(x)) + np.floor(y) * np.ceil(x) - np.trunc(y) + np.rint(x),
    ),
    "copysign(x, y)": ("f", np.copysign),
    "x if (x >= y) & ~(x != 5) | (y == 2) ^ (x < y) else -y": (
        "iu", lambda x, y: np.where((x >= y) & ~(x != 5) | (y == 2) ^ (x < y), x, -y),
    ),
    "(~x & (y >> 1) | x) - (x << 2) ^ 3": (
        "iu",
        lambda x, y, like=lambda n, x: x.dtype.type(n): (
            (~x & (y >> like(1, x)) | x) - (x << like(2, x)) ^ like(3, x)
        ),
    ),
    "maximum(x, y) - minimum(x, y)": ("fiu", lambda x, y: np.maximum(x, y) - np.minimum(x, y)),
    "clip(x, y, full_like(x, 2.0))": (  # CuPy's text
        "f", lambda x, y: np.where(y > 2, 2, np.where(x < y, y, np.where(x > 2, 2, x))),
    ),
    "narrow(wide(x) * 0.3) + real(bits(y) & 7)": (
        "F", lambda x, y: (x.astype("f8") * 0.3).astype("f4") + (y.view("i4") & 7).astype("f4"),
    ),
}  # fmt: skip
SHAPES = {  # of x and y
    "one": ((1,), (1,)),
    "odd": ((1037,), (1037,)),
    "large": ((70000,), (70000,)),
    "numbers": ((), (2051,)),
    "rows": ((37, 24), (24,)),
    "columns": ((37, 24), (37, 1)),
    "short rows": ((300, 3), (3,)),
    "between": ((5, 7, 12), (5, 1, 12)),
    "apart": ((4, 1, 16), (1, 9, 16)),
    "many axes": ((2, 1, 3, 1, 4), (1, 3, 1, 2, 4)),
}
OPTIONS: dict[str, Any] = {
    "dtype": ["f4", "f8", "i1", "i4", "i8", "u1", "u8"], "shapes": list(SHAPES),
    "misaligned": [False, True], "order": SCHEDULES,
}  # fmt: skip


def kernel_of(dtype: str) -> tuple[FusedKernel, list[Any]]:
    """A kernel of all formulas that take this dtype, and NumPy's functions."""
    graph = ElementGraph(FUNCTIONS)
    x, y = (graph.add("input", dtype, n) for n in range(2))
    chosen = {
        f: n
        for f, (kinds, n) in FORMULAS.items()
        if dtype[0] in kinds or (dtype == "f4" and kinds == "F")
    }
    results = [graph.write(formula, x=x, y=y) for formula in chosen]
    return FusedKernel(graph, [dtype, dtype], results, EMULATED), [*chosen.values()]


def operands(shapes: str, dtype: str, misaligned: bool = False) -> list[np.ndarray]:
    rng, arrays = np.random.default_rng(0), []
    for shape in SHAPES[shapes]:
        size = int(np.prod(shape)) + misaligned
        x = rng.normal(0, 3 if dtype[0] == "f" else 50, size)
        if dtype[0] == "f" and size > 9:
            x[rng.integers(0, size, 9)] = [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 1e38, 1, -1]
        whole = (x if dtype[0] == "f" else x.astype("i8")).astype(dtype)
        arrays.append(whole[int(misaligned) :].reshape(shape))
    return arrays


def check_fused(dtype: str, shapes: str, misaligned: bool, execute: Execute) -> None:
    kernel, functions = kernel_of(dtype)
    x, y = operands(shapes, dtype, misaligned)
    shape = np.broadcast_shapes(x.shape, y.shape)
    outs = [garbage(shape, d) for d in kernel.results]
    execute([kernel.launch(shape, [x, y], outs)])
    for out, function in zip(outs, functions, strict=True):
        with np.errstate(all="ignore"):
            want = function(x, y).astype(out.dtype)
        np.testing.assert_array_equal(out, want)  # but for signs of zeros, which extremes choose


@pytest.mark.parametrize("case", covering(**OPTIONS), ids=name)
def test_kernels_compute_what_numpy_does(case: dict[str, Any]) -> None:
    run_case(check_fused, case)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_under_sanitizers(sanitizer: str) -> None:
    for shapes, misaligned in (("odd", False), ("rows", True), ("columns", False)):
        check_fused("f4", shapes, misaligned, Execute(sanitizer=sanitizer))


def test_indices_have_64_bits_where_32_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "INT_LIMIT", 0)
    for shapes in ("odd", "rows", "columns", "between"):
        check_fused("f4", shapes, False, Execute())


PLANTED = {  # what becomes of a piece of fused.cuh, and what finds it
    "the last elements are left out": ("if (!packs || !ROWS)", "if (!packs)"),
    "one element too many": ("n < to;", "n <= to;"),
    "a row of the block before": ("middle * static_cast<I>(nest", "outer * static_cast<I>(nest"),
    "elements of another row": ("(n - row * packs) * N", "(n - row) * N"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_seen(bug: str, tmp_path: Path) -> None:
    for header in sources.source_folder().glob("*.cuh"):
        shutil.copy(header, tmp_path)
    have, planted = PLANTED[bug]
    header = tmp_path / "fused.cuh"
    assert header.read_text().count(have) == 1
    header.write_text(header.read_text().replace(have, planted))
    kernel, _ = kernel_of("f4")
    pairs = [("f4", False), ("f4", True)]
    for dtypes in (pairs, pairs[::-1], pairs[:1] * 2):
        text = text_of(kernel.graph, dtypes, kernel.outputs)
        (tmp_path / generated(text)).write_text(text)
    with pytest.raises(AssertionError):
        for shapes in ("odd", "rows", "columns", "between"):
            check_fused("f4", shapes, False, Execute(folder=tmp_path))


def test_launches_are_prepared_for_blocks_that_lie_alike() -> None:
    kernel, functions = kernel_of("f4")
    runner, alive = EMULATED.runner, []
    before, prepared = runner.prepared, []
    for shapes, misaligned in [("rows", False), ("odd", False)] * 2 + [("odd", True)] * 2:
        x, y = (a.copy() if not misaligned else a for a in operands(shapes, "f4", misaligned))
        alive.append((x, y))
        for first, second in ((x, y), (y, y), (np.asfortranarray(x), y)):
            outs = kernel(np.broadcast_shapes(x.shape, y.shape), [first, second])
            for out, function in zip(outs, functions, strict=True):
                with np.errstate(all="ignore"):
                    want = function(first, second).astype(out.dtype)
                np.testing.assert_array_equal(out, np.broadcast_to(want, out.shape))
        prepared.append(runner.prepared - before)
    first, second, *rest, last = prepared
    assert 0 < first < second == rest[0] == rest[1] < last == rest[2]


def test_no_elements_are_no_launch() -> None:
    kernel, _ = kernel_of("f4")
    empty = np.zeros((0, 3), np.float32)
    ran = EMULATED.runner.ran["fused"]
    assert [out.shape for out in kernel((0, 3), [empty, empty])] == [(0, 3)] * len(kernel.outputs)
    assert EMULATED.runner.ran["fused"] == ran


# ---------------------------------------------------------------- compiled


def compiled(text: str, arch: str) -> Any:
    file = generated(text)
    indices = [(i, r) for i in ("unsigned", "unsigned long long") for r in ("true", "false")]
    return compile_file(file, [Instance(file, "fused", i) for i in indices], arch)


@pytest.mark.parametrize(
    "arch",
    [a if a in DEFAULT else pytest.param(a, marks=pytest.mark.kernels_full) for a in ARCHITECTURES],
)
def test_kernels_of_every_architecture_spill_nothing(arch: str) -> None:
    need_nvrtc()
    for dtype, ones in (("f4", (False, True)), ("f8", (False, False)), ("i1", (True, False))):
        kernel, _ = kernel_of(dtype)
        pairs = [(dtype, is_one) for is_one in ones]
        cubin = compiled(text_of(kernel.graph, pairs, kernel.outputs), arch)
        assert "warning" not in cubin.log
        code = disassembled(cubin)
        for symbol, report in reports(cubin).items():
            allowed = CALL_BYTES if dtype == "f8" else 0
            assert max(int(report["stores"]), int(report["loads"])) <= allowed
            assert int(report["registers"]) <= MOST_REGISTERS
            found = opcodes(code[symbol])
            width = 64 if dtype == "i1" else 128  # of 8 elements at most
            assert any(o.startswith(f"LDG.E.{width}") for o in found)
            # With 64-bit indices ptxas may divide packs in stores.
            assert "Iy" in symbol or any(o.startswith(f"STG.E.{width}") for o in found)
            assert dtype == "f8" or not any(o.startswith(("LDL", "STL")) for o in found)


def test_a_product_is_rounded_before_it_is_added() -> None:
    need_nvrtc()
    graph = ElementGraph(FUNCTIONS)
    x, y = (graph.add("input", "f4", n) for n in range(2))
    text = text_of(graph, [("f4", False)] * 2, [graph.write("x * y + x", x=x, y=y)])
    (code, *_) = disassembled(compiled(text, "sm_90a")).values()
    assert not opcodes(code)["FFMA"]
    assert opcodes(code)["FMUL"] >= 4


def test_float16_is_rounded_to_the_nearest_after_each_op() -> None:
    need_nvrtc()
    graph = ElementGraph(FUNCTIONS)
    x, y = (graph.cast(graph.add("input", "f2", n), "f4") for n in range(2))
    product = graph.cast(graph.cast(graph.write("x * y", x=x, y=y), "f2"), "f4")
    total = graph.cast(graph.write("x + y", x=product, y=y), "f2")
    text = text_of(graph, [("f2", False)] * 2, [total])
    for arch in DEFAULT:
        (code, *_) = disassembled(compiled(text, arch)).values()
        names = [*opcodes(code).elements()]
        assert not opcodes(code)["FFMA"] and any(n.startswith("LDG.E.128") for n in names)
        # Of 8 products, and of 8 sums in pairs.
        rounding = [n for n in names if re.match(r"F2FP?\..*F16", n)]
        assert len(rounding) >= 8 + 4 and not [n for n in rounding if re.search("R[ZMP]", n)]


# ---------------------------------------------------------------- beside CuPy's ufuncs

ROUTINES = {  # what CuPy's kernels of float32 compute; a formula has its bits
    "add": "in0 + in1", "subtract": "in0 - in1", "multiply": "in0 * in1",
    "divide": "static_cast<out0_type>(in0) / static_cast<out0_type>(in1)",
    "negative": "-in0", "square": "in0 * in0", "sqrt": "sqrt(in0)", "reciprocal": "1 / in0",
    "absolute": "fabsf(in0)", "copysign": "copysign(in0, in1)", "floor": "floor(in0)",
    "ceil": "ceil(in0)", "trunc": "trunc(in0)", "rint": "rint(in0)",
    "less": "in0 < in1", "less_equal": "in0 <= in1", "greater": "in0 > in1",
    "greater_equal": "in0 >= in1", "equal": "in0 == in1", "not_equal": "in0 != in1",
    "isnan": "isnan(in0)", "isinf": "isinf(in0)", "isfinite": "isfinite(in0)",
    "maximum": "(isnan(in0) | isnan(in1)) ? out0_type(NAN) : out0_type(max(in0, in1))",
    "minimum": "(isnan(in0) | isnan(in1)) ? out0_type(NAN) : out0_type(min(in0, in1))",
    "exp": "exp(in0)", "expm1": "expm1(in0)", "log": "log(in0)", "log1p": "log1p(in0)",
    "tanh": "tanh(in0)", "sin": "sin(in0)", "cos": "cos(in0)",
}  # fmt: skip
OTHERWISE = {  # names of ufuncs with formulas, of other dtypes or with more lines
    "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "logical_and", "logical_not",
    "logical_or", "logical_xor", "sign",
}  # fmt: skip


def routine(ufunc: str, dtype: str = "f4") -> str:

    ops = getattr(cupy, ufunc)._ops.ops
    (found,) = {o.routine for o in ops if {*o.in_types} == {np.dtype(dtype)}}
    return found.removeprefix("out0 = ")


def test_cupys_ufuncs_of_float16_compute_in_float32_and_round() -> None:
    names = {"add", "subtract", "multiply", "divide", "sqrt", "negative", "absolute", "greater",
             "less", "equal", "not_equal", "maximum"}  # fmt: skip
    assert {name: routine(name, "f2") for name in names} == {n: ROUTINES[n] for n in names}
    folder = Path(cupy.__file__).parent / "_core" / "include" / "cupy"
    assert "return float16(max(float(x), float(y)));" in (folder / "float16.cuh").read_text()


def test_cupys_ufuncs_compute_what_kernels_do() -> None:
    ufuncs = {*UFUNCS, *FUNCTIONS} - {"clip"}
    assert ufuncs == {*ROUTINES, *OTHERWISE} - {"floor", "ceil", "trunc"}  # which are bodies
    assert {name: routine(name) for name in ROUTINES} == ROUTINES


def test_functions_are_the_same_code_whether_products_are_fused_or_not() -> None:
    """CuPy compiles its kernels with products and sums fused where the compiler can."""
    need_nvrtc()
    functions = ["sqrt", *sorted(FUNCTIONS - {"maximum", "minimum", "clip"})]
    source = "\n".join(
        f'extern "C" __global__ void {f}_(const float* x, float* y) {{ *y = {f}(*x); }}'
        for f in functions
    )
    options = ["-arch=sm_90a", "-std=c++17"]
    codes = []
    for own in ([], ["--fmad=false"]):
        code, _, log = nvrtc().compile("functions.cu", source, {}, [*options, *own], [])
        codes.append(disassembled(Cubin(code, {}, log)))
    assert len(codes[0]) == len(functions)
    assert codes[0] == codes[1]


def test_what_the_hosts_polynomials_compute_is_not_part_of_a_kernel() -> None:
    assert is_of_cuda("x * sigmoid(x)") and is_of_cuda("clip(x, y, z)")
    for formula in ("erf(x)", "power_or_product(x, y)", "x + fma(x, x, x)"):
        assert not is_of_cuda(formula)


# ---------------------------------------------------------------- recorded steps


@pytest.fixture
def mesh() -> Iterator[gdt.Mesh]:
    need_compiler()
    strict_kernels.register()
    with gdt.default_mesh(gdt.create_mesh([("x", 2), ("y", 2)], devices=["graph:0"])) as made:
        yield made


def calls_of(step: Any) -> list[list[str]]:
    return [[f.name for f in k.fused] for k in step.programs[0].instructions if k.fused]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_chain_of_a_captured_step_is_one_kernel_with_its_bits(
    dtype: str, mesh: gdt.Mesh, rng: np.random.Generator
) -> None:
    """Of bfloat16 every op rounds its result, as its plan does."""

    def chain(x: Any, row: Any) -> Any:
        y = gdt.tanh(x * row) * gdt.exp(-0.3 * x * x) + gdt.maximum(x, row)
        y = gdt.clip(gdt.silu(y), -0.5, 0.5)
        return gdt.where(y > 0, y, y * y), gdt.astype(y > 0.25, "float32") - y

    values = rng.normal(size=(10, 12)).astype("f4")
    values[3, :4] = 3e38, -3e38, 1e-40, -0.0
    x = gdt.asarray(values, layout=gdt.Layout(["x", None], mesh)).astype(dtype)
    row = gdt.asarray(rng.normal(size=12).astype("f4")).astype(dtype)
    step, ran = gdt.function(chain), backend_of(mesh).runner.ran
    for _ in range(5):
        before = ran["fused"]
        for got, want in zip(step(x, row), chain(x, row), strict=True):
            assert got.type is want.type
            np.testing.assert_array_equal(got.numpy(), want.numpy())
        x = x * 1.5
    assert ran["fused"] - before == 1
    ((ops),) = calls_of(step)
    assert sorted(ops) == sorted(
        [
            *["add", "cast", "clip_between", "exp", "greater", "greater", "maximum"],
            *["multiply"] * 5, "silu", "subtract", "tanh", "where",
        ]
    )  # fmt: skip
    assert all(r[0].graph.is_captured for r, _ in step._recordings.values())


FLOAT16_STEPS: list[tuple[Callable[..., Any], list[str]]] = [  # and what is one kernel of each
    (lambda x, y, f: x * 0.1 + y / 3 - 0.7, ["multiply", "divide", "add", "subtract"]),
    (lambda x, y, f: gdt.relu(x) + (1 - y) * x, ["relu", "subtract", "multiply", "add"]),
    (
        lambda x, y, f: gdt.where((x > 0.1) | (x + y > 0), x, y * x),
        ["greater", "add", "greater", "bitwise_or", "multiply", "where"],
    ),
    (lambda x, y, f: gdt.sqrt(abs(-x)) - abs(y), ["negative", "abs", "sqrt", "abs", "subtract"]),
    (
        lambda x, y, f: (x.astype("float32") * f).astype("float16") + y,
        ["widen", "multiply", "cast", "add"],
    ),
    (lambda x, y, f: gdt.silu(x) * 2 - x, ["multiply", "subtract"]),
    (lambda x, y, f: gdt.tanh(x) * gdt.maximum(x, y), ["multiply"]),
    (lambda x, y, f: x * 70000.0 + y, []),
]


@pytest.mark.parametrize(("step", "together"), FLOAT16_STEPS)
def test_each_op_on_float16_rounds_its_steps(
    step: Callable[..., Any], together: list[str], mesh: gdt.Mesh, rng: np.random.Generator
) -> None:
    """Bodies compute in float16, so what has two steps that round is no formula."""
    values, other = (rng.normal(size=(10, 12)).astype("f4") for _ in range(2))
    values[3, :6], other[:, ::3] = (6e4, -6e4, 1e-7, -0.0, np.inf, 6e-8), other[:, ::3] * 1e-3
    layout = gdt.Layout(["x", None], mesh)
    f, y = (gdt.asarray(a, layout=layout) for a in (other[::-1].copy(), other))
    x, y = gdt.asarray(values, layout=layout).astype("float16"), y.astype("float16")
    recorded = gdt.function(step)
    for _ in range(5):
        with np.errstate(all="ignore"):
            got, want = recorded(x, y, f), step(x, y, f)
        assert got.type is want.type
        np.testing.assert_array_equal(got.numpy(), want.numpy())
        numbers = ~np.isnan(want.numpy())
        signs = [np.signbit(a.numpy())[numbers] for a in (got, want)]
        np.testing.assert_array_equal(*signs)
        x = x * -1.25
    assert calls_of(recorded) == ([together] if together else [])


def test_formulas_whose_steps_round_once_are_told_apart() -> None:
    for formula in ("x + y", "x if (x > 0.0) | (x != x) else 0.0", "-x", "x * 0.5", "sqrt(abs(x))"):
        assert rounds_once(formula)
    for formula in ("x * y + z", "x * sigmoid(x)", "exp(x)", "x * 0.1", "x if x + y > 0.0 else y"):
        assert not rounds_once(formula)


def test_an_op_whose_kernel_refuses_is_part_of_a_chain(
    mesh: gdt.Mesh, rng: np.random.Generator
) -> None:
    """The kernel of normalisation takes no factors of each feature: its body has a formula."""
    x = gdt.asarray(rng.normal(size=(6, 40)).astype("f4"), layout=gdt.Layout(["x", None], mesh))
    scale, offset = (gdt.asarray(rng.normal(size=40).astype("f4")) for _ in range(2))
    layer = lambda x, scale, offset: gdt.relu(gdt.layer_norm(x, scale, offset))
    step, ran = gdt.function(layer), backend_of(mesh).runner.ran
    for _ in range(5):
        before = ran["fused"]
        got, want = step(x, scale, offset), layer(x, scale, offset)
        np.testing.assert_array_equal(got.numpy(), want.numpy())
        x = x * 1.5
    assert calls_of(step) == [["normalize", "relu"]]
    assert ran["fused"] - before == 1


def test_what_kernels_do_not_compute_is_left_to_cupy(mesh: gdt.Mesh) -> None:
    """Polynomials of the host, float64's functions, and dtypes that kernels have not."""
    layout = gdt.Layout(["x"], mesh)
    for function, dtype in (
        (gdt.erf, "f4"),
        (gdt.gelu, "f4"),
        (gdt.exp, "f8"),
        (gdt.square, "c8"),
    ):
        step = gdt.function(lambda x, function=function: function(x + 1) * 2, verify=0)
        for _ in range(3):
            step(gdt.ones(8, dtype=dtype, layout=layout))
        assert calls_of(step) == []


def test_numbers_that_are_drawn_in_each_step_leave_it_captured(mesh: gdt.Mesh) -> None:
    optimizer = gdt.optim.SGD(lambda step: 0.5 / (step + 1))
    weights = {"w": gdt.zeros(8, dtype="float32", layout=gdt.Layout(["x"], mesh))}

    @gdt.function
    def step(g: Any) -> None:
        optimizer.update(weights, {"w": g * 2 - g})

    for _ in range(5):
        step(gdt.ones(8, dtype="float32", layout=gdt.Layout(["x"], mesh)))
    assert calls_of(step) == [["multiply", "subtract"]]
    assert all(r[0].graph.is_captured for r, _ in step._recordings.values())
    want = -0.5 * (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
    np.testing.assert_allclose(weights["w"].numpy(), want, rtol=1e-6)


def launches(step: Any, *arrays: Any) -> int:
    """The launches and copies in the CUDA graph of a step."""
    made: list[int] = []

    class Counted(CudaGraph):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(len(self._graph.steps))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_cuda, "CudaGraph", Counted)
        for _ in range(4):
            step(*arrays)
    (count,) = made
    return count


def test_launches_of_steps_before_and_after(
    mesh: gdt.Mesh, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    x = gdt.asarray(rng.normal(size=(16, 520)).astype("f4"), layout=gdt.Layout(["x", None], mesh))
    y = gdt.asarray(rng.integers(0, 10, 16), layout=gdt.Layout(["x"], mesh))

    def training(dtype: str | None = None) -> Any:
        model = mnist.MLP([520, 16, 12, 10], gdt.Layout([None, None], mesh))
        optimizer = gdt.optim.SGD(0.1)
        if dtype is not None:
            gdt.nn.mixed_precision(model, dtype)
        loss = lambda m, x, y: gdt.nn.losses.sparse_softmax_cross_entropy(y, m(x))

        @gdt.function
        def step(x: Any, y: Any) -> Any:
            value, gradients = gdt.value_and_grad(loss)(model, x, y)
            optimizer.update(model, gradients)
            return value

        return step

    half, float16 = x.astype("bfloat16"), x.astype("float16")
    gelu = lambda x: gdt.gelu(x, approximate=True)
    normal = lambda x: gdt.exp(-0.5 * x * x) / math.sqrt(2 * math.pi) * (x > -1)
    after = [launches(training(dtype), x, y) for dtype in (None, "bfloat16", "float16")]
    after += [launches(gdt.function(f), x) for f in (gelu, normal)]
    after += [launches(gdt.function(f), half) for f in (gdt.relu, gelu, normal)]
    after += [launches(gdt.function(normal), float16)]
    monkeypatch.setattr(recorder, "fused", lambda instructions, *_: list(instructions))
    before = [launches(training(dtype), x, y) for dtype in (None, "bfloat16", "float16")]
    before += [launches(gdt.function(f), x) for f in (gelu, normal)]
    before += [launches(gdt.function(f), half) for f in (gdt.relu, gelu, normal)]
    before += [launches(gdt.function(normal), float16)]
    assert list(zip(before, after, strict=True)) == [
        *[(28, 16), (62, 31), (43, 31), (10, 1), (6, 1)],
        *[(4, 1), (12, 1), (18, 1), (6, 3)],
    ]
