"""Compiled loops compute what bodies of ops do, and leave to them what they do not take."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import threads
from gdt.engine import loops
from gdt.engine.loops import ChosenBody, Loop
from gdt.engine.op import OPS
from gdt.engine.plan import Shards
from gdt.engine.updates import UpdateOp
from gdt.errors import IndexRangeError
from gdt.fusion import llvm
from gdt.nn.functions.attention import loops as attention_loops
from gdt.nn.functions.cross_entropy.loops import MOST_EXPONENTIALS
from gdt.ops import comparison, lookup, scans
from gdt.ops.blocks.channel_loops import FEW, SHORT_ROW
from gdt.ops.blocks.sums import LARGEST, LONGEST
from gdt.optim.runs import SMALL
from gdt.sharding.mesh import Mesh
from gdt.testing import meshes
from tests.needs import skip
from tests.ops.test_ops import check, mesh_id
from tests.samples import SAMPLES

compiled = pytest.mark.usefixtures("compiled_loops")

WITHOUT_LOOPS = {
    "broadcast_to", "contraction", "imag", "matrix_product", "matrix_product_nt",
    "matrix_product_tn", "real", "reshape", "sum", "transpose",
}  # fmt: skip
SPECIALIZED = {name for name, op in OPS.items() if op.declaration.specialization is not None}
WITH_LOOPS = sorted(SPECIALIZED - WITHOUT_LOOPS)
USERS = ["batch_norm", "sparse_softmax_cross_entropy_with_logits", "std", "var"]
ALL_ROWS = Shards({}, {}, {"d0": 6, "d1": 8}, frozenset(), frozenset())
SPLIT_ROWS = ALL_ROWS._replace(split=frozenset(["d0"]))
SPLIT_IMAGES = Shards({}, {}, {f"d{i}": 1 for i in range(4)}, frozenset(["d2"]), frozenset())
CLASSES = Shards({}, {}, {"r0": 6, "k": 8}, frozenset(), frozenset())

random = np.random.default_rng(1)
x, y, g = random.normal(size=(3, 6, 8))
gates = random.normal(size=(6, 4, 8))  # of an LSTM
mean, variance, sums, scale, offset = np.abs(random.normal(size=(5, 1, 8)))
labels = np.arange(6)
images, more = random.normal(size=(2, 3, 2, 5, 8))  # outer, mesh, rows, columns
vector = np.abs(random.normal(size=(5, 1, 2, 1, 8)))
rate, momentum, beta1, beta2, keep, epsilon = 0.1, 0.9, 0.8, 0.7, 0.99, 1e-3

AXES = [((-2,), x), ((-1,), x), ((-2, -1), x), ((-4, -2), images), ((-2, -1), images)]
# What the bodies get, and their statics. `exact`: the loop rounds as the body does.
CALLS: dict[str, list[tuple[bool, tuple[Any, ...], dict[str, Any]]]] = {
    "adam_step": [(True, (x, mean * g, y * y, g, beta1, beta2, keep, rate, epsilon), {})],
    "batch_norm_gradient": [
        (True, operands, {"epsilon": 1e-3, "count": 6})
        for operands in (
            (g, x, sums, mean, variance, 1.0),
            (g, x, sums, mean, variance, scale),
            (images, more, vector[0], vector[1], vector[2], vector[3]),
        )
    ],
    "batch_norm_sums": [
        (False, (a, a[..., ::-1]), {"axes": axes, "keepdims": kept})
        for axes, a in AXES
        for kept in (False, True)
    ],
    "cross_entropy_of_whole": [
        (False, (labels.astype(dtype), x), {"shards": CLASSES})
        for dtype in ("int64", "int8", "uint32", "uint64")
    ],
    "lstm_cell": [(False, (gates, x), {}), (False, (gates[:, None], x[:, None]), {})],
    "lstm_cell_gradient": [
        (False, (g, y, gates, x, x - y), {}),
        (False, tuple([a.swapaxes(0, -1).copy().swapaxes(0, -1) for a in (g, y, gates, x, y)]), {}),
    ],
    "moments": [
        (False, (a,), {"axes": axes, "keepdims": kept, "shards": shards, "dtype": a.dtype})
        for axes, a in AXES
        for kept in (False, True)
        for shards in ((ALL_ROWS, SPLIT_ROWS) if a is x else (SPLIT_IMAGES,))
    ],
    "momentum_step": [
        (True, (x, y, g, rate, momentum), {"nesterov": nesterov}) for nesterov in (False, True)
    ],
    "normalize": [
        *[
            (True, (x, mean, variance, o, s), {"epsilon": 1e-3, "block_shape": x.shape})
            for o in (0.0, -0.0, 2.5, offset)
            for s in (1.0, 0.0, -0.0, scale)
        ],
        (True, (images, *vector[:4]), {"epsilon": 1e-3, "block_shape": images.shape}),
    ],
}
DONATED = {"adam_step": 3, "momentum_step": 2}


@pytest.fixture
def without_plans() -> Iterator[None]:
    """Plans are made anew, and none of those made here stays."""

    def forget() -> None:
        for name in WITH_LOOPS:
            OPS[name].plans.clear()
            if isinstance(OPS[name], UpdateOp):
                OPS[name].multi_tensor_plans.clear()

    forget()
    yield
    forget()


def chosen_body(name: str, static: dict[str, Any]) -> ChosenBody:
    return ChosenBody(OPS[name].declaration.specialization, OPS[name].declaration.body, static)


def both_ways(
    name: str, operands: tuple[Any, ...], static: dict[str, Any]
) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """What took the body's place, and what it and the body make of the operands."""
    run = chosen_body(name, static)
    made = []
    for function in (run, run.body):
        memory = {}
        if name in DONATED:
            memory["out"] = tuple([np.empty_like(a) for a in operands[: DONATED[name]]])
        out = function(*operands, **memory)
        made.append(list(out) if isinstance(out, tuple) else [out])
    return run.chosen is not run.body, *made


def in_dtype(operands: tuple[Any, ...], dtype: str) -> tuple[Any, ...]:
    return tuple(
        [
            a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
            for a in operands
        ]
    )


@pytest.fixture
def compiled_loops() -> None:
    if not loops.are_compiled():
        skip(loops.described()[0])


def test_every_op_with_a_loop_is_called() -> None:
    assert sorted(CALLS) == WITH_LOOPS


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WITH_LOOPS)
def test_a_loop_computes_what_the_body_does(name: str, dtype: str) -> None:
    for exact, operands, static in CALLS[name]:
        known = {k: np.dtype(dtype) if k == "dtype" else v for k, v in static.items()}
        used, made, expected = both_ways(name, in_dtype(operands, dtype), known)
        assert used, (operands, static)
        for a, b in zip(made, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            if exact:
                np.testing.assert_array_equal(a, b)
                if name == "normalize":  # products of zeros have signs in both
                    np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WITH_LOOPS)
def test_the_body_runs_for_other_dtypes(name: str) -> None:
    for _, operands, static in CALLS[name]:
        check_body_runs(name, in_dtype(operands, "float16"), static)


@pytest.mark.parametrize("name", sorted({*WITH_LOOPS} - {*DONATED}))
def test_the_body_runs_where_there_is_nothing(name: str) -> None:
    for _, operands, static in CALLS[name]:
        nothing = tuple([a[:0] if isinstance(a, np.ndarray) else a for a in operands])
        check_body_runs(name, nothing, static)


@np.errstate(all="ignore")
def check_body_runs(name: str, operands: tuple[Any, ...], static: dict[str, Any]) -> None:
    used, made, expected = both_ways(name, operands, static)
    assert not used
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", WITH_LOOPS)
def test_operands_may_lie_in_memory_in_any_order(name: str) -> None:
    def scattered(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        wide = np.zeros([2 * n for n in a.shape[::-1]], a.dtype).T
        view = wide[tuple([slice(None, None, 2)] * a.ndim)]
        view[...] = a
        view.flags.writeable = False
        return view

    for _, operands, static in CALLS[name]:
        _, made, _ = both_ways(name, tuple(map(scattered, operands)), static)
        _, _, expected = both_ways(name, operands, static)
        for a, b in zip(made, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@compiled
@pytest.mark.parametrize("name", ["batch_norm_sums", "moments"])
def test_large_blocks_in_another_order_are_not_copied(name: str) -> None:
    large = np.asfortranarray(random.normal(size=(LARGEST // 8 + 1, 8)).astype(np.float32))
    operands = (large, large)[: len(CALLS[name][0][1])]
    static = {**CALLS[name][0][2], **({"dtype": large.dtype} if name == "moments" else {})}
    used, made, expected = both_ways(name, operands, static)
    assert used
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    in_rows = tuple(map(np.ascontiguousarray, operands))
    for a, b in zip(both_ways(name, in_rows, static)[1], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", sorted(DONATED))
@pytest.mark.parametrize("order", ["C", "F", "gaps"])
def test_updates_in_place_and_beside(name: str, order: str) -> None:
    def placed(a: np.ndarray) -> np.ndarray:
        if order == "gaps":
            wide = np.zeros((*a.shape, 2), a.dtype)
            wide[..., 0] = a
            return wide[..., 0]
        return np.array(a, order=order)

    for _, operands, static in CALLS[name]:
        count = DONATED[name]
        _, _, expected = both_ways(name, operands, static)
        run = chosen_body(name, static)
        for free in (False, True):
            given = [placed(a) if isinstance(a, np.ndarray) else a for a in operands]
            before = [a.copy() for a in given[:count]]
            out = tuple(given[:count] if free else [placed(np.zeros_like(a)) for a in before])
            made = run(*given, out=out)
            for a, b in zip(made, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
            for a, b in zip(given, before, strict=False):
                assert free or np.array_equal(a, b)


@pytest.mark.parametrize("name", ["batch_norm_gradient", "normalize"])
def test_memory_of_any_order_is_written(name: str) -> None:
    for _, operands, static in CALLS[name]:
        run = chosen_body(name, static)
        shape = operands[0].shape
        for out in (np.empty(shape), np.empty(shape, order="F")):
            assert run(*operands, out=out) is out
            np.testing.assert_array_equal(out, run.body(*operands))


@compiled
def test_what_is_infinite_or_no_number_stays_so() -> None:
    special = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]] * 2)
    with np.errstate(all="ignore"):
        for name, operands in {
            "normalize": (special, special[:1], special[1:] ** 2, 0.0, 1.0),
            "cross_entropy_of_whole": (np.array([0, 5]), special),
        }.items():
            static = dict(CALLS[name][0][2])
            if "block_shape" in static:
                static["block_shape"] = special.shape
            used, made, expected = both_ways(name, operands, static)
            assert used
            for a, b in zip(made, expected, strict=True):
                np.testing.assert_array_equal(a, b)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("table", "points"),
    [((9, 4), (3, 5)), ((7, 3, 5), (4,)), ((5,), (40,)), ((0, 4), (0,)), ((3, 0), (5,))],
)
def test_rows_are_added_with_the_bits_of_the_body(
    table: tuple[int, ...], points: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = random.normal(size=(*points, *table[1:])).astype(dtype)
    g.flat[: g.size // 3] = [-0.0, np.inf, np.nan][len(table) - 1]
    rows = random.integers(max(table[0], 1), size=(*points, *(1,) * (len(table) - 1)))
    held = random.random(rows.shape) < 0.7
    steps = [*(0,) * len(points), *lookup.strides_of(table)[1:]]
    for values in (g, np.asfortranarray(g), g[..., ::-1]):
        for mask in (None, held):
            args = np, values, rows * math.prod(table[1:]), mask, steps, table
            looped = lookup.scatter_add(*args)
            with monkeypatch.context() as patch:
                patch.setattr(lookup, "_add_rows", {"f": None, "d": None})
                expected = lookup.scatter_add(*args)
            assert looped.shape == table
            assert looped.tobytes() == expected.tobytes()


@compiled
def test_exponentials_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_loops, "FEWEST_SCORES", 1)
    scores = (20 * random.normal(size=(3, 40, 50))).astype(np.float32)
    scores[0, 0, :3] = np.nan, np.inf, -np.inf
    scores[0, 1, :2], scores[0, 2] = (np.inf, -np.inf), -np.inf
    scores[0, 3, ::2] = -np.inf
    scores[0, 4, 0], scores[0, 5, :2] = -np.nan, (-0.0, 3e38)
    first = random.normal(size=(3, 40, 1)).astype(np.float32)
    first[1] = -np.inf
    largest = scores.max(-1, keepdims=True)
    beyond = np.where(largest < 1e38, largest + first**2, np.inf)  # NaN, too
    for is_maximum in (True, False):
        shifts, maxima = [(first if is_maximum else beyond).copy() for _ in range(2)]
        weights = attention_loops.exponentials(np, scores.copy(), shifts, is_maximum)
        with monkeypatch.context() as patch, np.errstate(all="ignore"):
            patch.setattr(attention_loops, "FEWEST_SCORES", math.inf)
            expected = attention_loops.exponentials(np, scores.copy(), maxima, is_maximum)
            exact = np.exp((scores - np.where(maxima == -np.inf, 0, maxima)).astype(np.float64))
        has_nan = np.isnan(expected).any(-1)
        np.testing.assert_array_equal(has_nan[0, :6], [True, True, False, False, True, False])
        np.testing.assert_array_equal(has_nan, np.isnan(weights).any(-1))
        np.testing.assert_array_equal(maxima[~has_nan], shifts[~has_nan])
        weights, exact = weights[~has_nan], exact[~has_nan]
        np.testing.assert_array_equal(weights == 0, exact < math.exp(-87))
        np.testing.assert_allclose(weights, exact, rtol=8.4e-8, atol=2e-38)


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [LONGEST, 10 * LONGEST])
def test_moments_far_from_zero(dtype: str, count: int) -> None:
    far = np.random.default_rng(0).normal(1e4, 1.0, (count, SHORT_ROW)).astype(dtype)
    static = {"axes": (-2,), "shards": SPLIT_ROWS, "dtype": far.dtype}
    used, (middle, spread, rest), _ = both_ways("moments", (far,), static)
    assert used is (dtype == "float32" or count <= LONGEST)
    exact = np.array([math.fsum(c) / count for c in far.T.tolist()])
    off = [math.fsum((v - m) ** 2 for v in c) / count for c, m in zip(far.T, exact, strict=True)]
    np.testing.assert_allclose(middle.astype(float) + rest, exact, rtol=1e-14)
    np.testing.assert_allclose(spread, off, rtol=1e-12 if dtype == "float64" else 1e-5)


def test_the_body_runs_where_it_is_faster_or_knows_more() -> None:
    cut = ALL_ROWS._replace(uneven=frozenset(["d0"]))
    short = np.ones((FEW + 1, SHORT_ROW - 1))
    rows = np.ones((MOST_EXPONENTIALS // 8 + 1, 8))
    for name, operands, static in [
        ("moments", (short,), {"axes": (-2,), "shards": ALL_ROWS, "dtype": short.dtype}),
        ("batch_norm_sums", (short, short), {"axes": (-2,), "keepdims": False}),
        ("normalize", (short, short[:1], short[:1], 0.0, 1.0), {"block_shape": short.shape}),
        ("batch_norm_gradient", (short, short, *[short[:1]] * 3, 1.0), {"count": 2}),
        ("cross_entropy_of_whole", (np.zeros(len(rows), int), rows), {"shards": CLASSES}),
        ("cross_entropy_of_whole", (labels[:1], np.ones((1, LONGEST + 1))), {"shards": CLASSES}),
        ("cross_entropy_of_whole", (labels[:1], np.ones((1, 1))), {"shards": CLASSES}),
        ("cross_entropy_of_whole", (labels, x), {"shards": CLASSES, "label_smoothing": 0.1}),
        ("cross_entropy_of_whole", (labels, x), {"shards": CLASSES, "ignore_index": 1}),
    ]:
        known = {"epsilon": 1e-3} if name in ("normalize", "batch_norm_gradient") else {}
        check_body_runs(name, operands, known | static)
    assert chosen(name="moments", operands=(x,), axes=(-2,), shards=cut, dtype=x.dtype) is None


def chosen(name: str, operands: tuple[Any, ...], **static: Any) -> Any:
    """What runs in the place of a body."""
    return chosen_body(name, static).choose(*operands)


@pytest.mark.parametrize("epsilon", [np.float64(1e-3), np.float32(1e-3), 1, np.longdouble(1e-3)])
def test_epsilon_of_any_kind(epsilon: Any) -> None:
    small = x.astype(np.float32)
    with_loops = gdt.batch_norm(small, epsilon=epsilon)[0]
    normalized = (small - small.mean(0)) / np.sqrt(small.var(0) + epsilon)
    assert with_loops.dtype == normalized.dtype
    np.testing.assert_allclose(with_loops.numpy(), normalized, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [gdt.asarray, np.float64, np.float32])
@pytest.mark.parametrize("size", [4, SMALL])
def test_rates_that_are_arrays(make: Any, size: int) -> None:
    for name, others in {"sgd_step": (), "momentum_step": (0.9,)}.items():
        kept = {"p": gdt.ones((size,)), "v": gdt.zeros((size,))}
        owners = [(kept, "p"), (kept, "v")][: DONATED.get(name, 1)]
        OPS[name].update(owners, gdt.ones((size,)), make(0.1), *others)
        np.testing.assert_allclose(kept["p"].numpy(), 0.9, rtol=1e-6)


@pytest.mark.parametrize("wrong", [-1, 8, 2**40])
def test_a_label_that_is_no_class(wrong: int) -> None:
    bad = labels.copy()
    bad[3] = wrong
    for blocks in (None, 2):
        rows = gdt.Layout(["x"], gdt.create_mesh([("x", 2)], blocks=blocks))
        with pytest.raises(IndexRangeError, match=f"label {wrong} is outside 0..7"):
            gdt.sparse_softmax_cross_entropy_with_logits(gdt.asarray(bad, layout=rows), x)


def test_a_number_where_a_loop_takes_an_array() -> None:
    static = {"epsilon": 1e-3, "block_shape": mean.shape}
    check_body_runs("normalize", (2.0, mean, variance, 0.0, 1.0), static)


@pytest.mark.parametrize("mesh", meshes([(1,), (4,), (2, 2)]), ids=mesh_id)
@pytest.mark.parametrize("name", [*WITH_LOOPS, *USERS])
@pytest.mark.usefixtures("without_plans")
def test_ops_without_loops(name: str, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "WANTED", False)
    monkeypatch.setattr(Loop, "_compile", None)
    for n in range(len(SAMPLES[name])):
        check(name, n, mesh, limit=2, gradients=1, second=0)


# ---------------------------------------------------------------- with numba and without


def in_python(code: str, **variables: str) -> str:
    """What a program prints, with these environment variables."""
    path = os.pathsep.join([variables.pop("FIRST", ""), str(Path(gdt.__file__).parents[1])])
    environment = {"PATH": os.environ["PATH"], **variables, "PYTHONPATH": path.lstrip(os.pathsep)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


STEP = """
import sys
import numpy as np
import gdt
from gdt.engine import loops
rows = gdt.Layout(["b", None], gdt.create_mesh([("b", 2)]))
y, mean, variance = gdt.batch_norm(np.arange(12.0).reshape(4, 3) + gdt.zeros((4, 3), layout=rows))
print(mean.tolist(), variance.tolist())
print(*loops.described(), sep=" | ")
"""
MOMENTS = "[4.5, 5.5, 6.5] [11.25, 11.25, 11.25]"


@pytest.mark.parametrize("value", ["0", "OFF", "False", "no"])
def test_loops_can_be_turned_off(value: str) -> None:
    out = in_python(STEP + "assert 'numba' not in sys.modules", GDT_COMPILED_LOOPS=value)
    assert out.splitlines() == [MOMENTS, "turned off by GDT_COMPILED_LOOPS |"]


@pytest.mark.parametrize(
    "source, found, remedy",
    [
        (None, "numba is not installed", "pip install 'gdt[fast]'"),
        ("raise ImportError('needs NumPy 1')", "ImportError: needs NumPy 1", "--upgrade numba"),
        ("raise OSError('no llvmlite')", "OSError: no llvmlite", "--upgrade numba"),
        ("", "AttributeError: module 'numba' has no attribute 'config'", "--upgrade numba"),
    ],
)
def test_without_a_numba_that_works(
    source: str | None, found: str, remedy: str, tmp_path: Path
) -> None:
    package = tmp_path / "numba"
    package.mkdir()
    missing = "raise ModuleNotFoundError('No module', name='numba')"
    (package / "__init__.py").write_text(missing if source is None else source)
    moments, described = in_python(STEP, FIRST=str(tmp_path)).splitlines()
    assert moments == MOMENTS
    assert found in described and remedy in described


def test_loops_that_would_run_in_python_do_not() -> None:
    out = in_python(STEP, NUMBA_DISABLE_JIT="1")
    assert out.splitlines() == [MOMENTS, "turned off by NUMBA_DISABLE_JIT |"]


@pytest.mark.parametrize(
    "code, expected",
    [
        ("1", False),
        ("gdt.var(gdt.asarray([1, 2]))", False),
        ("gdt.batch_norm(gdt.ones((3, 2)))", loops.are_compiled()),
    ],
)
def test_numba_is_imported_where_a_loop_runs(code: str, expected: bool) -> None:
    out = in_python(f"import sys, gdt; {code}; print('numba' in sys.modules)")
    assert out == str(expected)


@compiled
@pytest.mark.parametrize("problem", [RuntimeError("no locator"), OSError("disk full"), EOFError()])
def test_loops_need_nothing_kept(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = loops._numba()[0]
    compile_loop = numba.njit

    def njit(signature: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise problem
        return compile_loop(signature, **options)

    monkeypatch.setattr(numba, "njit", njit)

    def doubled(a: Any, out: Any) -> None:
        for i in range(a.size):
            out[i] = 2 * a[i]

    out = np.empty(3)
    Loop(doubled, "input, output")["d"](np.arange(3.0), out)
    assert out.tolist() == [0.0, 2.0, 4.0]


@compiled
def test_what_numba_cannot_compile_runs_in_numpy() -> None:
    broken = Loop(lambda a: a.no_such_attribute, "input")
    with pytest.warns(RuntimeWarning, match="numba cannot compile"):
        assert broken["f"] is None
    assert broken["f"] is None  # and says so once


@compiled
def test_damaged_loops_on_disk_are_compiled_again(tmp_path: Path) -> None:
    for _ in range(2):
        out = in_python(STEP, NUMBA_CACHE_DIR=str(tmp_path))
        assert out.splitlines()[0] == MOMENTS
        kept = [p for p in tmp_path.rglob("*") if p.suffix in (".nbi", ".nbc")]
        assert kept
        for path in kept:
            path.write_bytes(path.read_bytes()[:100])


@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 11])
def test_sums_of_rows_are_numpys(rows: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory that is used again, which a first call has not."""
    monkeypatch.setattr(scans, "SMALLEST", 1 << 10)
    values = np.random.default_rng(rows).standard_normal((rows, 1 << 13)).astype(dtype)
    values[:, 0] = -0.0
    values[-1, 5000] = np.inf
    expected = values.cumsum(axis=1)
    x, columns = gdt.asarray(values), gdt.asarray(values.T)
    for count in (1, 2, 3):
        with gdt.host_threads(count):
            assert gdt.cumsum(x, axis=1).numpy().tobytes() == expected.tobytes()
            assert np.array_equal(gdt.cumsum(columns, axis=0).numpy(), expected.T)
            whole = gdt.cumsum(x, axis=1, dtype=np.float64).numpy()
            assert np.array_equal(whole, values.cumsum(axis=1, dtype=np.float64))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint64", "complex64"])
def test_choices_are_numpys(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SMALLEST", 50)
    monkeypatch.setattr(comparison, "SMALLEST_OP", 50)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 255, (50, 7, 8), np.uint8).view(dtype) for _ in range(2))
    frozen, columns = x.copy(), np.asfortranarray(x)
    frozen.flags.writeable = False
    mask = rng.random(x.shape) < 0.5
    unaligned = np.frombuffer(b"." + x.tobytes(), dtype, offset=1).reshape(x.shape)
    for condition in (mask, mask[::-1], mask.T.copy().T, mask[:1], mask.astype(np.int8)):
        for a in (x, frozen, columns, unaligned, x[:, ::-1], 3, x.dtype.type(2), x[:, :, :1]):
            for b in (y, 0, 0.5, np.ones(x.shape, np.complex128), y[0], columns):
                for count in (1, 3):
                    with gdt.host_threads(count):
                        chosen = comparison.chosen(condition, a, b)
                    expected = np.where(condition, a, b)
                    assert chosen.dtype == expected.dtype
                    assert chosen.tobytes() == expected.tobytes()


@pytest.mark.parametrize("blocks", [1, 3])
def test_choices_of_large_blocks_are_numpys(blocks: int) -> None:
    size = 3 * comparison.SMALLEST_OP + 1
    mesh = gdt.create_mesh([("x", 3)], blocks=blocks, mesh_name="choices")
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    split = gdt.asarray(x, layout=gdt.Layout(["x"], mesh))
    for function in (
        lambda xp, x: xp.where(x > 0, x, 0),
        lambda xp, x: xp.where(x > 0, -x, x),
        lambda xp, x: xp.where(x > 0, 1.5, x),
    ):
        assert np.array_equal(function(gdt, split).numpy(), function(np, x))
