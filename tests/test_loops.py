"""Compiled loops compute what bodies of ops do, and leave to them what they do not take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import loops
from gdt.errors import IndexRangeError
from gdt.loops import Loop, LoopBody
from gdt.mesh import Mesh
from gdt.op import OPS
from gdt.plan import Shards
from gdt.testing import meshes

from .test_ops import check_all, mesh_id

WITH_LOOPS = sorted(name for name, op in OPS.items() if op.loop_body is not None)
USERS = ["batch_norm", "relu", "sparse_softmax_cross_entropy_with_logits", "std", "var"]
ALL_ROWS = Shards({}, {}, {"d0": 6, "d1": 5}, frozenset(), frozenset())
SPLIT_ROWS = ALL_ROWS._replace(split=frozenset(["d0"]))
CLASSES = Shards({}, {}, {"r0": 6, "k": 5}, frozenset(), frozenset())

x, y, g = np.random.default_rng(1).normal(size=(3, 6, 5))
mean, variance, sums = np.abs(np.random.default_rng(2).normal(size=(3, 1, 5)))
scale, offset = np.random.default_rng(3).normal(size=(2, 1, 5))
labels = np.arange(6) % 5
rate, momentum, beta1, beta2, keep, epsilon = 0.1, 0.9, 0.8, 0.7, 0.99, 1e-3

# What the bodies get, and their statics. `exact`: the loop rounds as the body does.
CALLS: dict[str, list[tuple[bool, tuple[Any, ...], dict[str, Any]]]] = {
    "adam_step": [
        (True, (x, mean * g, y * y, g, beta1, beta2, keep, rate, epsilon), {"decay": decay})
        for decay in (False, True)
    ],
    "batch_norm_gradient": [
        (True, (g, x, sums, mean, variance, s), {"epsilon": 1e-3, "count": 6}) for s in (1.0, scale)
    ],
    "batch_norm_sums": [
        (False, (g, x), {"axes": axes, "keepdims": kept})
        for axes in ((-2,), (-1,), (-2, -1))
        for kept in (False, True)
    ],
    "cross_entropy_gradient": [(True, (g[:, 0], labels, x), {"shards": CLASSES})],
    "cross_entropy_of_whole": [
        (False, (labels.astype(kind), x), {"shards": CLASSES}) for kind in ("int64", "int8", "u4")
    ],
    "moments": [
        (False, (x,), {"axes": axes, "keepdims": kept, "shards": shards, "dtype": x.dtype})
        for axes in ((-2,), (-1,), (-2, -1))
        for kept in (False, True)
        for shards in (ALL_ROWS, SPLIT_ROWS)
    ],
    "momentum_step": [
        (True, (x, y, g, rate, momentum), {"nesterov": nesterov}) for nesterov in (False, True)
    ],
    "normalize": [
        (True, (x, mean, variance, o, s), {"epsilon": 1e-3, "block_shape": x.shape})
        for o in (0.0, 2.5, offset)
        for s in (1.0, scale)
    ],
    "relu_gradient": [(True, (g, y), {})],
    "sgd_step": [(True, (np.tile(x, (200, 1)), np.tile(g, (200, 1)), rate), {})],
}
DONATED = {"adam_step": 3, "momentum_step": 2, "sgd_step": 1}


@pytest.fixture
def without_plans() -> Iterator[None]:
    """Plans are made anew, and none of those made here stays."""

    def forget() -> None:
        for name in WITH_LOOPS:
            OPS[name].plans.clear()
            OPS[name].plans_of_all.clear()

    forget()
    yield
    forget()


def both_ways(
    name: str, operands: tuple[Any, ...], static: dict[str, Any]
) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """What took the body's place, and what it and the body make of the operands."""
    run = LoopBody(OPS[name].loop_body, OPS[name].body, static)
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


def test_every_op_with_a_loop_is_called() -> None:
    assert sorted(CALLS) == WITH_LOOPS


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
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", WITH_LOOPS)
def test_the_body_runs_for_other_dtypes(name: str) -> None:
    for _, operands, static in CALLS[name]:
        check_body_runs(name, in_dtype(operands, "float16"), static)


@pytest.mark.parametrize("name", sorted({*WITH_LOOPS} - {*DONATED, "relu_gradient"}))
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
def test_operands_may_lie_in_memory_in_any_way(name: str) -> None:
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
        run = LoopBody(OPS[name].loop_body, OPS[name].body, static)
        for free in (False, True):
            given = [placed(a) if isinstance(a, np.ndarray) else a for a in operands]
            before = [a.copy() for a in given[:count]]
            out = tuple(given[:count] if free else [placed(np.zeros_like(a)) for a in before])
            made = run(*given, out=out)
            for a, b in zip(made if count > 1 else [made], expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
            for a, b in zip(given, before, strict=False):
                assert free or np.array_equal(a, b)


@pytest.mark.parametrize("name", ["batch_norm_gradient", "normalize", "relu_gradient"])
def test_memory_of_any_order_is_written(name: str) -> None:
    for _, operands, static in CALLS[name]:
        run = LoopBody(OPS[name].loop_body, OPS[name].body, static)
        for out in (np.empty(x.shape), np.empty(x.shape, order="F")):
            assert run(*operands, out=out) is out
            np.testing.assert_array_equal(out, run.body(*operands))


def test_what_is_infinite_or_no_number_stays_so() -> None:
    special = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]] * 2)
    with np.errstate(all="ignore"):
        for name, operands in {
            "relu_gradient": (special, special[:, ::-1].copy()),
            "normalize": (special, special[:1], special[1:] ** 2, 0.0, 1.0),
            "cross_entropy_of_whole": (np.array([0, 5]), special),
            "cross_entropy_gradient": (special[:, 0], np.array([0, 5]), special),
        }.items():
            static = dict(CALLS[name][0][2])
            if "block_shape" in static:
                static["block_shape"] = special.shape
            used, made, expected = both_ways(name, operands, static)
            assert used
            for a, b in zip(made, expected, strict=True):
                np.testing.assert_array_equal(a, b)


def test_moments_far_from_zero() -> None:
    far = np.random.default_rng(0).normal(1e4, 1.0, (4096, 8)).astype(np.float32)
    static = {"axes": (-2,), "shards": SPLIT_ROWS, "dtype": far.dtype}
    used, (middle, spread, rest), _ = both_ways("moments", (far,), static)
    assert used
    np.testing.assert_allclose(middle.astype(float) + rest, far.mean(0, dtype=float), rtol=1e-10)
    np.testing.assert_allclose(spread, far.var(0, dtype=float), rtol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_a_label_that_is_no_class(wrong: int) -> None:
    bad = labels.copy()
    bad[3] = wrong
    for blocks in (None, 2):
        rows = gdt.Layout(["x"], gdt.create_mesh([("x", 2)], blocks=blocks))
        with pytest.raises(IndexRangeError, match=f"label {wrong} is outside 0..4"):
            gdt.sparse_softmax_cross_entropy_with_logits(gdt.asarray(bad, layout=rows), x)


def test_a_number_where_a_loop_takes_an_array() -> None:
    static = {"epsilon": 1e-3, "block_shape": mean.shape}
    check_body_runs("normalize", (2.0, mean, variance, 0.0, 1.0), static)


@pytest.mark.parametrize("mesh", meshes([(1,), (4,), (2, 2)]), ids=mesh_id)
@pytest.mark.parametrize("name", [*WITH_LOOPS, *USERS])
@pytest.mark.usefixtures("without_plans")
def test_ops_without_loops(name: str, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LoopBody", None)
    with loops.wanted(False):
        check_all(name, mesh, limit=4, gradients=2, second=0)


# ---------------------------------------------------------------- with numba and without


def in_python(code: str, **variables: str) -> str:
    """What a program prints, with these environment variables."""
    root = Path(__file__).resolve().parents[1]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", **variables}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


STEP = """
import sys
{before}
import numpy as np
import gdt
from gdt import loops
rows = gdt.Layout(["b", None], gdt.create_mesh([("b", 2)]))
y, mean, variance = gdt.batch_norm(np.arange(12.0).reshape(4, 3) + gdt.zeros((4, 3), layout=rows))
print(mean.tolist(), variance.tolist())
print(loops.are_compiled(), loops.described())
{after}
"""
MOMENTS = "[4.5, 5.5, 6.5] [11.25, 11.25, 11.25]"


@pytest.mark.parametrize("value", ["0", "off", "false"])
def test_loops_can_be_turned_off(value: str) -> None:
    code = STEP.format(before="", after="assert 'numba' not in sys.modules")
    out = in_python(code, GDT_COMPILED_LOOPS=value)
    assert out.splitlines() == [MOMENTS, "False ('turned off by GDT_COMPILED_LOOPS', '')"]


def test_without_numba() -> None:
    missing = STEP.format(before="sys.modules['numba'] = None", after="")
    moments, found = in_python(missing).splitlines()
    assert moments == MOMENTS
    assert found.startswith("False ('no: import of numba halted")
    assert "pip install 'gdt[fast]'" in found


def test_loops_that_would_run_in_python_do_not() -> None:
    out = in_python(STEP.format(before="", after=""), NUMBA_DISABLE_JIT="1")
    assert out.splitlines() == [MOMENTS, "False ('no: NUMBA_DISABLE_JIT is set', '')"]


def test_gdt_is_imported_without_numba() -> None:
    assert in_python("import sys, gdt; print('numba' in sys.modules)") == "False"


@pytest.mark.parametrize("problem", [RuntimeError("no locator"), OSError("disk full")])
def test_loops_need_no_folder(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
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
