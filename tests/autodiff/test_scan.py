"""`gdt.scan`: values and gradients of a loop, on every layout, and what a body may not return."""

from __future__ import annotations

import re
from collections import UserDict

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, DtypeError, GradientError, ShapeError

MESHES = [gdt.create_mesh([("a", 2), ("b", 2)], blocks=blocks) for blocks in (1, 4)]
SPECS = [
    [None, None, None], ["a", None, None], [None, "a", "b"], [("a", "b"), None, None],
    [None, ("b", "a"), None],
]  # fmt: skip


def cell(w):
    """A recurrent cell, whose carry is a tree and which returns a tree."""

    def body(carry, x):
        hidden = gdt.tanh(carry["h"] @ w + x["in"] * x["gain"])
        return {"h": hidden, "total": carry["total"] + gdt.sum(hidden)}, (hidden, x["gain"] * 2)

    return body


def by_loop(w, h, x, gain, order):
    """Return what `scan` does with `cell`, by a loop over gdt's arrays."""
    total, ys = gdt.asarray(0.0), [None] * len(order)
    for t in order:
        h = gdt.tanh(h @ w + x[t] * gain[t])
        total, ys[t] = total + gdt.sum(h), h
    return h, total, gdt.stack(ys)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("specs", SPECS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_values_and_gradients_are_those_of_a_loop(rng, mesh, specs, reverse, checkpoint) -> None:
    w, h, x, gain = (rng.normal(size=s) for s in ((3, 3), (4, 3), (5, 4, 3), (5,)))
    weigh = rng.normal(size=(5, 4, 3))

    def scanned(w, h, x, gain):
        carry, (ys, doubled) = gdt.scan(
            cell(w), {"h": h, "total": 0.0}, {"in": x, "gain": gain},
            reverse=reverse, checkpoint=checkpoint,
        )  # fmt: skip
        return carry["total"] + gdt.sum(carry["h"] ** 2 + gdt.sum(ys * weigh)) + gdt.sum(doubled)

    def looped(w, h, x, gain):
        order = range(5)[::-1] if reverse else range(5)
        last, total, ys = by_loop(w, h, x, gain, order)
        return total + gdt.sum(last**2 + gdt.sum(ys * weigh)) + gdt.sum(gain * 2)

    one = [gdt.asarray(a) for a in (w, h, x, gain)]
    layouts = [[None, None], specs[1:], specs, specs[:1]]
    arrays = [
        gdt.asarray(a, layout=gdt.Layout(s, mesh))
        for a, s in zip((w, h, x, gain), layouts, strict=True)
    ]
    expected = gdt.value_and_grad(looped, (0, 1, 2, 3))(*one)
    value, gradients = gdt.value_and_grad(scanned, (0, 1, 2, 3))(*arrays)
    np.testing.assert_allclose(value, expected[0])
    for g, e, a in zip(gradients, expected[1], arrays, strict=True):
        np.testing.assert_allclose(g, e, atol=1e-12)
        assert g.layout is a.layout


def test_a_tape_keeps_the_carries_alone() -> None:
    """A body of many large arrays between takes as much memory as one of few, but for one call."""

    def memory(count: int, checkpoint: bool) -> int:
        w = gdt.asarray(0.5)

        def body(c, x):
            for _ in range(count):
                c = gdt.sin(c * w)
            return c, None

        loss = lambda c: gdt.sum(gdt.scan(body, c, length=10, checkpoint=checkpoint)[0])
        x = gdt.ones(1000)
        gdt.grad(loss)(x)
        with gdt.testing.peak_memory([x]) as peak:
            gdt.grad(loss)(x)
        return peak.peak // 8000

    few, many = memory(2, True), memory(10, True)
    assert many - few <= 20  # of one call
    assert memory(10, False) - memory(2, False) > 100


def test_it_is_recorded_and_differentiated_twice() -> None:
    square = lambda x: gdt.scan(lambda c, y: (c * x + y, c), gdt.asarray(1.0), gdt.ones(3))[0]
    x = gdt.asarray(2.0)  # x^3 + x^2 + x + 1
    assert float(gdt.grad(gdt.grad(square))(x)) == 6 * 2 + 2
    step = gdt.function(gdt.value_and_grad(square), verify=2)
    for n in range(4):
        value, gradient = step(gdt.asarray(float(n)))
        assert (float(value), float(gradient)) == (n**3 + n**2 + n + 1, 3 * n**2 + 2 * n + 1)


def test_no_elements_have_the_shapes_of_results() -> None:
    carry, (y, none) = gdt.scan(
        lambda c, x: (c, (gdt.outer(x, x), None)), gdt.asarray(3.0), gdt.ones((0, 2))
    )
    assert float(carry) == 3.0
    assert y.shape == (0, 2, 2)
    assert none is None
    assert gdt.scan(lambda c, x: (c, x), gdt.asarray(3.0), length=0)[1] is None


def test_trees_come_back_as_they_are() -> None:
    ys = gdt.scan(
        lambda c, x: (c, UserDict(a=[x["k"]], b=None)), gdt.asarray(0.0), {"k": np.arange(3.0)}
    )[1]
    assert type(ys) is UserDict
    assert ys["a"][0].tolist() == [0.0, 1.0, 2.0]
    assert ys["b"] is None


def test_none_stays_none_in_trees() -> None:
    x = np.arange(6.0).reshape(3, 2)
    body = lambda c, row: (None, row["x"] * 2) if row["none"] is None else None
    carry, ys = gdt.scan(body, None, {"x": x, "none": None})
    assert carry is None
    assert np.array_equal(ys.numpy(), x * 2)
    gradient = gdt.grad(lambda x: gdt.sum(gdt.scan(body, None, {"x": x, "none": None})[1] ** 2))
    assert np.array_equal(gradient(gdt.asarray(x)).numpy(), 8 * x)
    carry, ys = gdt.scan(body, (None, []), {"x": x[:0], "none": None})
    assert (carry, ys.shape) == ((None, []), (0, 2))


CARRY, XS = np.zeros(2), np.ones((3, 2))
WRONG = [
    (lambda c, x: c, CARRY, XS, {}, ArgumentError, "body returns a DistributedArray, not the pair"),
    (lambda c, x: (c[:1], x), CARRY, XS, {}, ShapeError, "another array as carry than"),
    (lambda c, x: (c > 0, x), CARRY, XS, {}, DtypeError, "another array as carry than"),
    (lambda c, x: ([c, c], x), CARRY, XS, {}, ArgumentError, "carry[0], carry[1], and gets carry"),
    (lambda c, x: (None, x), CARRY, XS, {}, ArgumentError, "body returns no array, and gets carry"),
    (lambda c, x: ([c["a"]], x), {"a": CARRY}, XS, {}, ArgumentError, "gets carry['a']"),
    (lambda c, x: ([c[0], 1], x), [CARRY, CARRY], XS, {}, ArgumentError, "an int as carry[1]"),
    (lambda c, x: (c + 1, {str(int(c[0])): x}), CARRY, XS, {}, ArgumentError, "other trees y"),
    (lambda c, x: (c, 1), CARRY, XS, {}, ArgumentError, "a y that holds an int, and not"),
    (lambda c, x: (c, x), CARRY, None, {}, ArgumentError, "nothing says how often"),
    (lambda c, x: (c, x), CARRY, XS, {"length": 4}, ArgumentError, "do not fit"),
    (lambda c, x: (c, x), CARRY, None, {"length": -1}, ArgumentError, "do not fit"),
    (lambda c, x: (c, x), CARRY, None, {"length": 2.5}, ArgumentError, "length is 2.5, not"),
    (lambda c, x: (c, x), CARRY, [XS, XS[:2]], {}, ArgumentError, "do not fit"),
    (lambda c, x: (c, x), CARRY, 1.0, {}, ShapeError, "xs holds a scalar"),
    (lambda c, x: (c, x), "text", XS, {}, DtypeError, "carry holds a str"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "carry", "xs", "static", "kind", "text"), WRONG)
def test_what_does_not_fit_is_named(body, carry, xs, static, kind, text) -> None:
    with pytest.raises(kind, match=f"scan: .*{re.escape(text)}"):
        gdt.scan(body, carry, xs, **static)


def test_a_body_that_reads_values_has_no_gradient() -> None:
    body = lambda c, x: (c * float(x), None)
    assert float(gdt.scan(body, gdt.asarray(1.0), gdt.ones(2))[0]) == 1.0
    with pytest.raises(GradientError, match="cannot"):
        gdt.grad(lambda c: gdt.scan(body, c, gdt.ones(2))[0])(gdt.asarray(1.0))


def test_a_body_that_writes_into_its_carry_has_no_gradient() -> None:
    def adding(c, x):
        c += x
        return c, None

    total, _ = gdt.scan(adding, gdt.asarray([0.0]), gdt.ones((3, 1)))
    assert total.tolist() == [3.0]
    with pytest.raises(GradientError, match="adding writes into an argument in the call of line"):
        gdt.grad(lambda xs: gdt.sum(gdt.scan(adding, gdt.zeros(1), xs)[0]))(gdt.ones((3, 1)))
