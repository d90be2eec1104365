"""The text of an array is NumPy's, whatever the layout, and needs no more than its edges."""

from __future__ import annotations

import numpy as np
import pytest

import gdt
from gdt.array.printing import edges
from gdt.testing import choices, meshes, placed


def text(value: np.ndarray, type: object) -> str:
    body = np.array2string(value, separator=", ", prefix="DistributedArray(")
    return f"DistributedArray({body}, {type})"


VALUES = [
    np.array(2.5),
    np.array([]),
    np.zeros((0, 3)),
    np.zeros((3, 0, 2), "int8"),
    np.arange(9.0).reshape(9, 1) / 7,
    np.arange(24).reshape(2, 3, 4),
    np.array([True, False, True]),
    np.array([1 + 2j, 0.5 - 3e-5j]),
    np.array([np.nan, np.inf, -0.5], "float32"),
    np.arange(1200.0).reshape(24, 50),
    np.arange(2000, dtype="int16"),
]


@pytest.mark.parametrize("mesh", meshes(), ids=lambda m: f"{m.sizes}{m.grid}")
@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{v.dtype}{v.shape}")
def test_repr_is_numpys_in_every_layout(value: np.ndarray, mesh: gdt.Mesh) -> None:
    for (layout,) in choices(mesh, [value.ndim], limit=6, seed=value.size):
        for poison in (False, True):
            x = placed(value, layout, poison=poison)
            assert repr(x) == text(value, x.type)
            assert np.array_str(x) == np.array_str(value)
            assert str(x) == (repr(x) if value.ndim else str(value))


def test_repr_of_the_class_docstring() -> None:
    mesh = gdt.create_mesh([("batch", 4)])
    x = gdt.asarray([[1.0, 2.0], [3.0, 4.0]], layout=gdt.Layout(["batch", None], mesh))
    assert repr(x + 1) == (
        "DistributedArray([[2., 3.],\n                  [4., 5.]], float64[2, 2]  ['batch', -])"
    )


@pytest.mark.parametrize("items", [1, 2, 5])
@pytest.mark.parametrize("threshold", [0, 10, 10_000])
def test_print_options_are_honoured(items: int, threshold: int) -> None:
    value = np.linspace(0, 1, 12 * 11).reshape(12, 11)
    layout = gdt.Layout(["x", "y"], gdt.create_mesh([("x", 2), ("y", 3)], blocks=6))
    x = gdt.asarray(value, layout=layout)
    with np.printoptions(edgeitems=items, threshold=threshold, precision=2, suppress=True):
        assert repr(x) == text(value, x.type)


def test_only_the_edges_are_fetched() -> None:
    layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 4)], blocks=4))
    x = gdt.zeros((1000, 5000), layout=layout)
    assert edges(x, 3).shape == (7, 7)


def test_edges_of_mixed_reductions_equal_the_resolved_array() -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 2), ("c", 2)], blocks=8)
    layout = gdt.Layout([None], mesh, partial={"a": "sum", "b": "max", "c": "sum"})
    blocks = [np.full((1, 1, 1, 2), float(i) ** 2 - 9) for i in range(8)]
    x = gdt.DistributedArray(gdt.ArrayType.of((2,), np.dtype(float), layout), tuple(blocks))
    assert edges(x, 3).tolist() == x.numpy().tolist()


def test_printing_a_partial_sum_communicates_nothing() -> None:
    layout = gdt.Layout([None], gdt.create_mesh([("x", 4)], blocks=4), partial=["x"])
    x = gdt.ones(3, layout=layout)
    with gdt.count_collectives() as counted:
        assert repr(x).startswith("DistributedArray([1., 1., 1.], float64[3]  [-] + sum over 'x')")
    assert len(counted) == 0
