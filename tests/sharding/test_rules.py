"""Rules are proved by brute force: every strategy of a rule gives the right answer, and the
right ones that no rule lists are known by name."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.engine.op import OPS, Op
from gdt.engine.plan import Labels, Shards
from gdt.errors import ArgumentError
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.sharding.rule import Rule, out_shapes
from gdt.testing import Sample, check_rule, meshes
from gdt.testing.rules import bound_call, replicated_types, strategies_of
from tests.samples import SAMPLES

PAIRS = meshes([(2,)])
APART = PAIRS[-1]  # where partial sums are sums between blocks
PROVED = sorted(set(OPS) & set(SAMPLES))

Placement = int | str | None  # split on that axis, a partial reduction, or whole


@pytest.mark.parametrize("mesh", PAIRS, ids=["folded", "apart"])
@pytest.mark.parametrize("name", PROVED)
def test_every_strategy_of_a_rule_is_right(name: str, mesh: Mesh) -> None:
    for sample in SAMPLES[name]:
        if bound_call(OPS[name], sample)[0]:
            assert check_rule(OPS[name], sample, mesh) > 0


@pytest.mark.parametrize("name", PROVED)
def test_strategies_on_two_mesh_axes_are_right(name: str) -> None:
    (mesh,) = meshes([(2, 2)], modes=["apart"])
    for sample in SAMPLES[name][:1]:
        check_rule(OPS[name], sample, mesh)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("split", [["a", None], [None, "a"], [None, None]])
def test_padding_of_a_factor_that_another_output_keeps_enters_no_sum(
    split: list[Any], blocks: int
) -> None:
    def sums_and_parts(xp: Any, x: Any, /) -> Any:
        return xp.sum(x, axis=-2), x

    op, values = Op(sums_and_parts, "n k -> k, n k", linear="x"), np.arange(27.0).reshape(9, 3)
    layout = gdt.Layout(split, gdt.create_mesh([("a", 4)], blocks=blocks))
    x = gdt.asarray(values, layout=layout)
    for _ in range(3):
        sums, parts = op(x)
        assert np.array_equal(sums.numpy(), values.sum(0))
        assert np.array_equal(parts.numpy(), values)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("is_tuple", [False, True], ids=["array", "tuple"])
@pytest.mark.parametrize("split", [["a", None], [None, "a"], [None, None]])
def test_an_op_may_merge_one_statistic(split: list[Any], is_tuple: bool, blocks: int) -> None:
    def packed(statistic: Any) -> Any:
        return (statistic,) if is_tuple else statistic

    def root_of_maximum(xp: Any, x: Any, /) -> Any:
        return packed(xp.max(x, axis=-2))

    def merge(xp: Any, largest: Any) -> Any:
        (top,) = yield "max", (largest,)
        return packed(top)

    op = Op(
        root_of_maximum,
        "n k -> k",
        merge=merge,
        finish=lambda xp, s: xp.sqrt(s),
    )
    values = np.arange(24.0).reshape(8, 3)
    layout = gdt.Layout(split, gdt.create_mesh([("a", 4)], blocks=blocks))
    for _ in range(3):
        made = op(gdt.asarray(values, layout=layout))
        assert np.array_equal(made.numpy(), np.sqrt(values.max(0)))
    with pytest.raises(ArgumentError, match="merge of root_of_maximum is no generator"):
        Op(root_of_maximum, "n k -> k", merge=lambda xp, s: s)


# ---------------------------------------------------------------- what rules miss

RNG = np.random.default_rng(0)
START = RNG.bit_generator.state


def cut(x: Any, place: Placement) -> list[Any]:
    """An operand as two devices hold it."""
    if place is None:
        return [x, x]
    if place == "sum":
        other = RNG.standard_normal(x.shape)
        return [other, x - other]
    return np.split(x, 2, place)  # type: ignore[arg-type]


def join(parts: Sequence[Any], place: Placement) -> Any:
    """The result that two devices hold; None if they hold different replicas."""
    if place is None:
        return parts[0] if np.array_equal(*parts, equal_nan=True) else None
    if isinstance(place, int):
        return np.concatenate(parts, place)
    return {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[place](*parts)


def placements(x: Any, partial: Sequence[str]) -> list[Placement]:
    if not isinstance(x, np.ndarray):
        return [None]
    splits = [d for d in range(x.ndim) if x.shape[d] and x.shape[d] % 2 == 0]
    return [None, *(partial if x.dtype.kind in "fc" else []), *splits]


class LocalRun:
    """Runs an op's body on what one device holds, unaware of other devices."""

    def __init__(self, op: Op, operands: Sequence[Any], static: dict[str, Any]) -> None:
        (self.mesh,) = meshes([(1,)], modes=["folded"])
        self.op, types = op, replicated_types(operands, self.mesh)
        self.rule, self.sizes, self.static = op.declaration.bound_rule(types, static)
        self.out_shapes = out_shapes(self.rule, self.sizes)

    def __call__(self, operands: Sequence[Any], out_shape: tuple[int, ...]) -> tuple[Any, ...]:
        sizes, extra = self._sizes(operands), {}
        if "block_shape" in self.op.declaration.injected:
            extra["block_shape"] = (1, *out_shape)
        if "labels" in self.op.declaration.injected:
            extra["labels"] = Labels(_labels(self.rule))
        if "shards" in self.op.declaration.injected:
            start = {f: np.zeros((1,), np.int64) for f in sizes}
            valid = {f: np.full((1,), n, np.int64) for f, n in sizes.items()}
            extra["shards"] = Shards(start, valid, sizes, frozenset(), frozenset())
        ranks = max((_batch(t) for t in self.rule.ins), default=0)
        blocks = [
            a.reshape(1, *[1] * (ranks - _batch(t)), *a.shape) if _batch(t) else a[None]
            if isinstance(a, np.ndarray)
            else a
            for a, t in zip(operands, self.rule.ins, strict=True)
        ]  # fmt: skip
        if self.op.declaration.donated:
            extra["out"] = tuple(np.empty_like(blocks[d]) for d in self.op.declaration.donated)
        out = self.op.declaration.body(np, *blocks, **self.static, **extra)
        if self.op.declaration.finish is not None:
            statistics = out if isinstance(out, tuple) else (out,)
            out = self.op.declaration.finish(np, *statistics, **self._finish_static())
        return tuple(o[0] for o in (out if isinstance(out, tuple) else (out,)))

    def _finish_static(self) -> dict[str, Any]:
        reduced = math.prod(self.sizes[f] for f in self.rule.reduced(0))
        known = {**self.static, "count": reduced}
        names = inspect.signature(self.op.declaration.finish).parameters
        return {k: v for k, v in known.items() if k in names}

    def _sizes(self, operands: Sequence[Any]) -> dict[str, int]:
        sizes = dict(self.sizes)
        for term, a in zip(self.rule.ins, operands, strict=True):
            for dim, n in zip(term, np.shape(a), strict=True):
                if len(dim) == 1 and n != 1:
                    sizes[dim[0]] = n
        return sizes


def _batch(term: Any) -> int:
    return sum(1 for dim in term if dim[:1] and dim[0].startswith("..."))


def _labels(rule: Rule) -> tuple[tuple[Any, ...], ...]:
    return tuple(
        (None, *[dim[0] if dim else None for dim in term]) for term in (*rule.ins, rule.outs[0])
    )


def claimed(op: Op, operands: Sequence[Any], static: dict[str, Any]) -> set[Any]:
    """Placements of operands and outputs that the rule allows on two devices."""

    def of(layout: Layout | None) -> Placement:
        if layout is None:
            return None
        return layout.reductions[0] or next((d for d, axes in enumerate(layout.dims) if axes), None)

    strategies = strategies_of(op, operands, static, PAIRS[0])
    return {
        (tuple(map(of, w.target_layouts)), tuple(map(of, w.output_layouts))) for w in strategies
    }


def missed(op: Op, sample: Sample) -> set[str]:
    """Placements under which running on two devices is right, and which the rule does not list."""
    RNG.bit_generator.state = START  # the same numbers in any order of the tests
    operands, static = bound_call(op, sample)
    if not operands or any(isinstance(a, np.ndarray) and a.size == 0 for a in operands):
        return set()
    run = LocalRun(op, operands, static)
    # Numbers without coincidences, in the domain of one function or another.
    for low, high in ((-0.9, 0.9), (0.1, 0.9), (1.1, 1.9)):
        numbers = [
            RNG.uniform(low, high, a.shape)
            if isinstance(a, np.ndarray) and a.dtype.kind in "fc"
            else a
            for a in operands
        ]
        with np.errstate(all="ignore"):
            whole = run(numbers, run.out_shapes[0])
        if all(np.isfinite(w).all() for w in whole):
            break
    if all(w.size > 1 and (w == w.flat[0]).all() for w in whole):
        return set()  # a constant says nothing about sums
    listed = claimed(op, operands, static)
    partial = list(dict.fromkeys(["sum", op.declaration.reduce]))
    ins = itertools.product(*[placements(a, ["sum"]) for a in numbers])
    outs = list(itertools.product(*[placements(np.asarray(w), partial) for w in whole]))
    return {
        f"{', '.join(map(str, i))} -> {', '.join(map(str, o))}"
        for i, o in itertools.product(ins, outs)
        if any(p is not None for p in i)
        and not ("sum" in i and any(w.dtype.kind not in "fc" for w in whole))
        and (i, o) not in listed
        and is_right(run, numbers, whole, i, o)
    }


def is_right(
    run: LocalRun,
    operands: Sequence[Any],
    whole: Sequence[Any],
    ins: Sequence[Placement],
    outs: Sequence[Placement],
) -> bool:
    shape = list(whole[0].shape)
    if isinstance(outs[0], int):
        shape[outs[0]] //= 2
    for _ in range(2):  # a wrong split of a partial sum may pass by luck
        try:
            with np.errstate(all="ignore"):
                parts = [cut(a, p) for a, p in zip(operands, ins, strict=True)]
                results = [run([p[i] for p in parts], tuple(shape)) for i in range(2)]
                joined = [join(r, p) for r, p in zip(zip(*results, strict=True), outs, strict=True)]
        except (ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, FloatingPointError):
            return False
        for got, want in zip(joined, whole, strict=True):
            if got is None or got.shape != want.shape or not np.allclose(got, want, equal_nan=True):
                return False
    return True


# Right placements that no rule lists, and why.
CARRIER = "what the carrier holds does not matter, only how it is split"
IDENTITY = {"sum -> sum": "only where no axis is reduced"}
MISSED = {
    "largest_number": {"0 -> max, None": "only where every shard has a number"},
    "smallest_number": {"0 -> min, None": "only where every shard has a number"},
    "at_numbers": {
        "sum, None -> None": "only where all parts are NaN",
        "None, sum -> sum": "only where nothing is NaN",
        "sum, sum -> sum": "only where nothing is NaN",
    },
    "add_at": {
        "None, None, sum -> None": CARRIER,
        "0, None, sum -> 0": CARRIER,
        "0, 0, sum -> sum": CARRIER,
        "1, 0, sum -> sum": CARRIER,
        "sum, None, sum -> sum": CARRIER,
    },
    "add_along_axis": {
        "None, None, sum -> None": CARRIER,
        "0, 0, sum -> sum": CARRIER,
        "1, None, sum -> 1": CARRIER,
        "sum, None, sum -> sum": CARRIER,
    },
    "momentum_step": {
        "sum, sum, sum, None, None -> sum, sum": "gradients are resolved in one bundle before",
    },
    "sgd_step": {"sum, sum, None -> sum": "gradients are resolved in one bundle before"},
    "batch_norm_gradient": {
        "sum, sum, sum, None, None, None -> sum": "sums over the batch are resolved together",
        "sum, None, sum, sum, None, None -> sum": "sums over the batch are resolved together",
        "None, None, None, None, None, sum -> sum": "the scale is a parameter",
    },
    "batch_norm_sums": {
        "None, sum -> None, sum": "a normalised value is never partial",
        "sum, None -> sum, sum": "the gradient that follows needs g itself",
    },
    "normalize": {
        "sum, sum, None, sum, None -> sum": "no mean is partial where x is",
        "None, None, None, sum, sum -> sum": "offset and scale are parameters",
    },
    "divide": {"sum, None -> sum": "only where the divisor has no 0"},
    "moments": {
        "sum -> sum, None": "only where one element is reduced",
        "sum -> sum, sum": "only where one element is reduced",
    },
    "max": IDENTITY,
    "min": IDENTITY,
    "prod": IDENTITY,
    "weighted_log": {
        "None, sum -> sum": "only where no logarithm is infinite",
        "sum, None -> sum": "only where no logarithm is infinite",
    },
    "power": {"sum, None -> sum": "only where the exponent is 1"},
    "heaviside": {
        "None, sum -> None": "only where no x is 0",
        "0, sum -> 0": "only where no x is 0",
    },
    "nextafter": {
        "sum, None -> sum": "only as near as rounding",
        "sum, sum -> sum": "only as near as rounding",
    },
    "spacing": {"sum -> sum": "only as near as rounding"},
    "where": {
        "None, sum, None -> sum": "only where the other choice is 0",
        "None, None, sum -> None": "only where the condition never chooses it",
    },
}


@pytest.mark.parametrize("name", PROVED)
def test_rules_list_every_strategy_that_is_right(name: str) -> None:
    strategies = {strategy for sample in SAMPLES[name] for strategy in missed(OPS[name], sample)}
    known = set(MISSED.get(name, {}))
    assert strategies <= known, (
        f"{name}: the rule does not list {strategies - known}, which are right: declare "
        "linear= (a RuleSpec where it depends on statics), or add them to MISSED with the reason"
    )
    assert strategies == known, f"{name}: MISSED has {known - strategies}, which are not missed"


# ---------------------------------------------------------------- rules that are wrong

X, W = RNG.standard_normal((4, 6)), RNG.standard_normal((6, 8))


def broken(name: str, rule: str, **options: Any) -> Op:
    """An op of the registry under another rule."""
    op = OPS[name]
    declared = op.declaration
    kept = {n: getattr(declared, n) for n in ("reduce", "merge", "finish", "prepare", "fill")}
    return Op(declared.body, rule, **{**kept, **options})


BROKEN = {
    "a contracted factor is split in one operand only": (
        broken("matrix_product", "... i k, l j -> ... i j", linear="x, w"),
        Sample((X, W), expect=np.matmul),
    ),
    "a contracted factor is not summed over": (
        broken("matrix_product", "... i k, k j -> ... i j", reduce="max"),
        Sample((X, W), expect=np.matmul),
    ),
    "rows and columns are exchanged": (
        broken("matrix_product", "i k, k j -> j i", linear="x, w"),
        Sample((X, W), expect=np.matmul),
    ),
    "a product is linear in both operands together": (
        broken("multiply", "..., ... -> ...", linear="x + y"),
        Sample((X, X + 1), expect=np.multiply),
    ),
    "a sum is linear in each operand": (
        broken("add", "..., ... -> ...", linear="x, y"),
        Sample((X, X + 1), expect=np.add),
    ),
    "an exponential is linear": (
        broken("exp", "... -> ...", linear="x"),
        Sample((X,), expect=np.exp),
    ),
    "parts of a sum are combined by their maximum": (
        broken("sum", "i j -> i", linear="x", reduce="max"),
        Sample((X,), {"axis": 1}, expect=np.sum),
    ),
    "padding enters a sum": (
        broken("sum", "i j -> j", linear="x", fill={"x": None}),
        Sample((X[:3],), {"axis": 0}, expect=np.sum),
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_the_proof_fails_for_a_broken_rule(defect: str) -> None:
    op, sample = BROKEN[defect]
    with pytest.raises((AssertionError, gdt.errors.GdtError, ValueError)):
        check_rule(op, sample, APART)


def test_operands_with_their_mesh_axes_in_another_order_than_the_meshs_stay() -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 3)])
    layout = gdt.Layout([("b", "a"), None], mesh)
    x, w = gdt.ones((12, 4), layout=layout), gdt.ones((4, 2), layout=gdt.Layout([None] * 2, mesh))
    with gdt.no_moves():
        assert (x + x).layout is (x @ w).layout is layout
