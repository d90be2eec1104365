"""The oracle finds what it is there to find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.engine.op import Op
from gdt.testing import Sample, check_mesh, choices, layouts, meshes, placed

(APART,) = meshes([(4,)], modes=["apart"])
X = np.random.default_rng(0).uniform(0.5, 1.5, (7, 3))


def first_shard_total(x: Any) -> Any:
    """Right only where the array is whole on every device."""
    return gdt.asarray(np.sum(x.shards[0].data), layout=gdt.Layout.replicated(x.mesh, 0))


def overwriting(x: Any) -> Any:
    out = gdt.exp(x)
    for block in x.blocks:
        block[...] = 0
    return out


def scaled(xp: Any, x: Any, /) -> Any:
    return x * 2


wrong_gradient = Op(scaled, "... -> ...", linear="x")
wrong_gradient.vjp(lambda g, out, x: 3.0 * g)

padding_enters = Op(gdt.engine.op.OPS["sum"].declaration.body, "i j -> j", fill={"x": None})


def nonlinear(xp: Any, x: Any, /) -> Any:
    return xp.exp(x)


partial_passes = Op(nonlinear, "... -> ...", linear="x")


def itself(xp: Any, x: Any, /) -> Any:
    return x[...]


undeclared_view = Op(itself, "... -> ...", linear="x")

DEFECTS: dict[str, tuple[Callable[..., Any], Sample, str]] = {
    "a value of one shard": (first_shard_total, Sample((X,), expect=np.sum, grad=False), "result"),
    "another dtype": (
        lambda x: gdt.exp(x).astype("float32"), Sample((X,), expect=np.exp, grad=False), "dtype"),
    "another shape": (
        lambda x: gdt.exp(x)[:2], Sample((X,), expect=np.exp, grad=False), "shape"),
    "an operand that changes": (
        overwriting, Sample((X,), expect=np.exp, grad=False), "operand has been changed"),
    "a wrong gradient": (
        wrong_gradient, Sample((X,), expect=lambda x: x * 2), "finite differences"),
    "padding that is seen": (
        padding_enters,
        Sample((X,), {"axis": (-2,), "keepdims": False}, lambda x, **_: x.sum(0), grad=False),
        "poisoned|result"),
    "a partial sum that is taken for a value": (
        partial_passes, Sample((X,), expect=np.exp, grad=False), "result"),
    "a view that is not declared": (
        undeclared_view, Sample((X,), expect=lambda x: x, grad=False), "view of x"),
    "a result that is nearly exact": (
        lambda x: x + 1e3 - 1e3,
        Sample((X,), expect=lambda x: x, exact=True, grad=False),
        "result"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_oracle_finds(defect: str) -> None:
    function, sample, text = DEFECTS[defect]
    with pytest.raises(AssertionError, match=text):
        check_mesh(function, sample, APART)


UNDER_O = """
import numpy as np, gdt
sample = gdt.testing.Sample((np.ones(3), 2.0), expect=np.add)
gdt.testing.check_mesh(gdt.multiply, sample, gdt.create_mesh([("x", 2)]))
"""


def test_the_oracle_finds_without_assert_statements() -> None:
    run = subprocess.run(
        [sys.executable, "-O", "-c", UNDER_O], capture_output=True, text=True, check=False
    )
    assert "AssertionError: result float64[3]" in run.stderr


def test_poison_is_in_the_padding_and_nowhere_else() -> None:
    layout = gdt.Layout(["a", None], APART)
    x = placed(X, layout, poison=True)
    np.testing.assert_array_equal(x.numpy(), X)
    assert sum(int(np.isnan(b).sum()) for b in x.blocks) == 3  # 8 rows of memory for 7
    ints = placed(np.arange(7), gdt.Layout(["a"], APART), poison=True)
    assert ints.blocks[-1].max() == np.iinfo(int).max


def test_parts_of_a_partial_sum_are_wrong_by_themselves() -> None:
    for mesh in meshes([(2, 2)], modes=["mixed", "apart"]):
        x = placed(X, gdt.Layout([None, None], mesh, partial=["a", "b"]))
        assert not any(np.array_equal(b.reshape(X.shape), X) for b in x.blocks[:-1])
        np.testing.assert_array_equal(x.numpy(), X)


def test_choices_are_all_layouts_or_a_fixed_spread() -> None:
    every = layouts(APART, 2, partial=True)
    assert len(choices(APART, [2, 2], limit=100)) == len(every) ** 2
    some = choices(APART, [2, 2], limit=5, seed=3)
    assert some == choices(APART, [2, 2], limit=5, seed=3) and len(set(some)) == 5
    assert all(w.is_fully_replicated() for w in some[0])
