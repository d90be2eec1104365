"""Products beside padding that holds infinities, and what their errors say."""

from __future__ import annotations

import numpy as np
import pytest

import gdt
from gdt.errors import DtypeError, ShapeError
from gdt.sharding.mesh import Mesh
from gdt.testing import assert_consistent, choices, meshes, placed


@pytest.mark.parametrize("mesh", meshes([(4,), (2, 2)]), ids=lambda m: f"{m.sizes}{m.grid}")
@pytest.mark.parametrize("last", [np.inf, np.nan])
def test_padding_beside_infinities_adds_nothing(mesh: Mesh, last: float) -> None:
    # The last valid element of 9 over 4 shards is what its padding repeats: inf * 0 would be NaN.
    x, w = np.ones((2, 9)), np.arange(1.0, 19).reshape(9, 2)
    x[0, -1] = last
    for left, right in ((x, w), (w.T, x.T), (x, x.T)):
        # BLAS may multiply the infinity by zeros of registers that its product does not fill, and
        # then says so: whether it does depends on the processor, the values do not.
        with np.errstate(invalid="ignore"):
            want = left @ right
            for chosen in choices(mesh, [2, 2], partial=False, limit=40):
                for poison in (False, True):
                    pair = [
                        placed(a, at, poison=poison)
                        for a, at in zip((left, right), chosen, strict=True)
                    ]
                    for got in (pair[0] @ pair[1], gdt.einsum("ik,kj->ij", *pair)):
                        assert_consistent(got)
                        np.testing.assert_array_equal(got.numpy(), want)


def test_a_sum_over_a_split_label_stays_partial() -> None:
    mesh = gdt.create_mesh([("data", 4), ("model", 2)])
    x = gdt.ones((8, 6), layout=gdt.Layout(["data", "model"], mesh))
    w = gdt.ones((6, 4), layout=gdt.Layout(["model", None], mesh))
    with gdt.GradientTape() as tape:
        out = gdt.einsum("ik,kj->ij", x, w)
    assert out.layout is gdt.Layout(["data", None], mesh, partial=["model"])
    assert tape.gradient(out, w).layout is w.layout
    table = gdt.ones((9, 3), layout=gdt.Layout(["data", "model"], mesh))
    assert gdt.diagonal(table).layout is gdt.Layout(["data"], mesh, partial=["model"])


ERRORS = [
    (lambda: gdt.ones((2, 3)) @ gdt.ones((4, 2)), "matmul: factor 'k' is 3 in x but 4 in w"),
    (lambda: gdt.ones((2, 3)) @ gdt.ones((4, 5, 2)), "matmul: factor 'k' is 3 in x but 5 in w"),
    (
        lambda: gdt.ones((2, 1, 3)) @ gdt.ones((4, 3, 2)),
        "matmul: the leading axes do not broadcast",
    ),
    (lambda: gdt.matmul(gdt.ones(3), 2.0), "matmul: an operand is a scalar"),
    (
        lambda: gdt.tensordot(gdt.ones((2, 3)), gdt.ones((2, 3)), 1),
        "axis 1 of x is 3 but axis 0 of w is 2",
    ),
    (lambda: gdt.tensordot(gdt.ones(3), gdt.ones(3), 2), "do not have 2 axes"),
    (lambda: gdt.tensordot(gdt.ones(3), gdt.ones(3), ((0,), ())), "do not name as many axes"),
    (lambda: gdt.einsum("ij,jk->ik", gdt.ones((2, 3))), "einsum: 2 terms for 1 operands"),
    (lambda: gdt.einsum("ij->i", gdt.ones(3)), "'ij' does not fit operand 0 of rank 1"),
    (lambda: gdt.einsum("i->ii", gdt.ones(3)), "'i' is twice in the result"),
    (lambda: gdt.einsum("i->j", gdt.ones(3)), "'j' of the result is not one of the operands'"),
    (lambda: gdt.einsum("i1->i", gdt.ones((3, 1))), "more than letters"),
    (
        lambda: gdt.einsum("ij,ji", gdt.ones((2, 3)), gdt.ones((2, 3))),
        "label 'j' is 2 in operand 1 but 3 before",
    ),
    (lambda: gdt.einsum("ii", gdt.ones((2, 3))), "label 'i' is"),
    (lambda: gdt.einsum("...i->i", gdt.ones((2, 3))), "lacks the `...`"),
    (lambda: gdt.diagonal(gdt.ones((2, 3)), 0, 1, -1), "diagonal: axis 1 is named twice"),
]


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text for _, text in ERRORS])
def test_errors_name_what_does_not_fit(call, text: str) -> None:  # type: ignore[no-untyped-def]
    with gdt.default_mesh(gdt.create_mesh([("x", 2)])), pytest.raises(ShapeError, match=text):
        call()


def test_subscripts_are_a_text() -> None:
    with pytest.raises(DtypeError, match="subscripts are a list"):
        gdt.einsum([0, 1], gdt.ones((2, 2)))  # type: ignore[arg-type]


def test_gradients_have_the_dtypes_of_their_operands() -> None:
    with gdt.default_mesh(gdt.create_mesh([("x", 2)])):
        x, w = gdt.ones((2, 3), "float32"), gdt.ones((3, 4), "float64")
        for product in (gdt.matmul, lambda x, w: gdt.einsum("ij,jk->k", x, w)):
            with gdt.GradientTape() as tape:
                out = gdt.sum(product(x, w))
            assert [g.dtype for g in tape.gradient(out, [x, w])] == ["float32", "float64"]
