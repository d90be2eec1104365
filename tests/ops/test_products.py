"""Products beside padding that holds infinities, and what their errors say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import DtypeError, ShapeError
from gdt.ops.products import panels
from gdt.sharding.mesh import Mesh
from gdt.testing import assert_consistent, choices, meshes, placed
from tests.allocations import allocations


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
    with pytest.raises(DtypeError, match="subscripts are of type list"):
        gdt.einsum([0, 1], gdt.ones((2, 2)))
    with pytest.raises(DtypeError, match="integers from 0 to 51"):
        gdt.einsum(gdt.ones((2, 2)), [0, -1])


def test_gradients_have_the_dtypes_of_their_operands() -> None:
    with gdt.default_mesh(gdt.create_mesh([("x", 2)])):
        x, w = gdt.ones((2, 3), "float32"), gdt.ones((3, 4), "float64")
        for product in (gdt.matmul, lambda x, w: gdt.einsum("ij,jk->k", x, w)):
            with gdt.GradientTape() as tape:
                out = gdt.sum(product(x, w))
            assert [g.dtype for g in tape.gradient(out, [x, w])] == ["float32", "float64"]


# ---------------------------------------------------------------- panels


@pytest.fixture
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gather of 64 bytes, and every partial sum of as many, takes panels. Meshes are new, so
    no plan is older."""
    monkeypatch.setattr(panels, "GATHERED", 64)
    monkeypatch.setattr(panels, "SUMMED", 64)
    monkeypatch.setattr(panels, "MOST_HELD", 0)


@pytest.mark.parametrize("blocks", [1, 2, 6])
@pytest.mark.usefixtures("small_panels")
def test_products_in_panels_are_products(blocks: int) -> None:
    """Of even and uneven shards, in every pair of layouts, beside padding that is NaN."""
    mesh, random = gdt.create_mesh([("a", 2), ("b", 3)], blocks=blocks), np.random.default_rng(0)
    for i, k, j in ((12, 24, 36), (19, 37, 41)):
        x, w, g = (random.integers(-5, 5, s).astype("f4") for s in ((i, k), (k, j), (i, j)))
        for chosen in choices(mesh, [2, 2], partial=False, limit=60):
            left, right = (placed(a, at, poison=True) for a, at in zip((x, w), chosen, strict=True))
            with gdt.GradientTape() as tape:
                out = left @ right
                total = gdt.sum(out * g)
            gradients = tape.gradient(total, [left, right])
            assert_consistent(out)
            transposed = gdt.einsum("ik,kj->ji", left, right)
            pairs = [(out, x @ w), (left @ right, x @ w), (transposed, (x @ w).T)]
            pairs += zip(gradients, (g @ w.T, x.T @ g), strict=True)
            for got, want in pairs:
                np.testing.assert_array_equal(got.numpy(), want)


# Layouts of both operands; how often each of 8 devices sends 1/8 of an operand, and what it holds:
# both operands, the product, and an operand that is gathered along another factor than the larger.
LARGE: list[tuple[list[Any], list[Any], int, int]] = [
    (["x", None], ["x", None], 7, 3),
    (["x", None], [None, "x"], 7, 3),
    ([None, "x"], [None, "x"], 7, 3),
    (["a", "b"], ["a", "b"], 3 + 1, 3),
    ([None, "x"], ["x", None], 7, 3),  # scatters sums in place of operands
    ([None, ("b", "a")], [("b", "a"), None], 7, 3),
    ([("a", "b"), None], ["a", "b"], 3 + 1, 3 + 2),
]


def matrices(blocks: int, *specs: list[Any]) -> list[gdt.DistributedArray]:
    """Matrices of small integers, of 8 MiB each, on 8 devices."""
    axes = {"x": 8} if "x" in specs[0] else {"a": 2, "b": 4}
    mesh = gdt.create_mesh(axes, blocks=blocks)
    values = np.random.default_rng(0).integers(-4, 5, (len(specs), 1024, 1024)).astype(float)
    return [gdt.asarray(v, layout=gdt.Layout(s, mesh)) for v, s in zip(values, specs, strict=True)]


@pytest.mark.parametrize(("left", "right", "sent", "held"), LARGE)
def test_no_device_holds_a_large_operand_whole(
    left: list[Any], right: list[Any], sent: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "SUMMED", 1 << 22)
    x, w = matrices(8, left, right)
    share = x.nbytes // 8
    with gdt.testing.peak_memory([x, w]) as memory, gdt.count_collectives() as counter:
        out = x @ w
    assert counter.bytes == 8 * share * sent
    assert memory.peak == held * share
    with allocations() as allocated:
        again = x @ w
    assert allocated.peak < 8 * (held + 1.5) * share  # the product, that of a panel, and panels
    folded = matrices(1, left, right)
    with gdt.count_collectives() as told:
        whole = folded[0] @ folded[1]
    assert told.collectives == counter.collectives
    for got in (again, whole):
        np.testing.assert_array_equal(got.numpy(), out.numpy())
