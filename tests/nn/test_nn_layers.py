"""The layers of `gdt.nn`: sizes given or found at the first call, layouts, and NumPy's results."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import UNSHARDED, Layout, create_mesh, nn
from gdt.errors import ArgumentError, IndexRangeError, ShapeError

MESHES = [
    create_mesh([("batch", 4), ("model", 2)]),
    create_mesh([("batch", 4), ("model", 2)], blocks=8),
]


@pytest.mark.parametrize(
    ("late", "early"),
    [
        (lambda: nn.Dense(3, key=1), lambda: nn.Dense(4, 3, key=1)),
        (nn.LayerNorm, lambda: nn.LayerNorm(4)),
        (nn.RMSNorm, lambda: nn.RMSNorm(4)),
        (lambda: nn.GroupNorm(2), lambda: nn.GroupNorm(2, 4)),
    ],
)
def test_sizes_are_found_at_the_first_call(late: Any, early: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 4)).astype(np.float32)
    layer, sized = late(), early()
    assert not layer.parameters() and "?" in repr(layer)
    layer = pickle.loads(pickle.dumps(copy.deepcopy(layer)))  # a spec is copied with its layer
    placed = gdt.asarray(x, layout=Layout(["batch", None], MESHES[0]))
    np.testing.assert_allclose(layer(placed).numpy(), sized(x).numpy(), rtol=1e-5, atol=1e-6)
    assert list(layer.parameters()) == list(sized.parameters())
    assert {p.mesh for p in layer.parameters().values()} == {MESHES[0]}
    assert repr(layer) == repr(sized)
    with pytest.raises(ShapeError):
        layer(x[:, :3])
    with pytest.raises(ShapeError):
        late()(np.float32(1.0))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_parameter_has_a_layout_of_its_own(mesh: Any) -> None:
    split, whole = Layout(["model"], mesh), Layout([UNSHARDED], mesh)
    dense = nn.Dense(6, 4, Layout(["model", None], mesh), bias_layout=split)
    assert (dense.weight.layout.rank, dense.bias.layout) == (2, split)
    norm = nn.LayerNorm(4, whole, offset_layout=split)
    assert (norm.scale.layout, norm.offset.layout) == (whole, split)
    for late in (nn.Dense(4, None, Layout([None, "model"], mesh)), nn.RMSNorm(layout=split)):
        late(gdt.ones((2, 6), "float32", layout=Layout.replicated(mesh, 2)))
        assert all(p.layout.dims[-1] == (1,) for p in late.parameters().values())


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("specs", [[None, None], ["model", None], [None, "model"]])
def test_a_split_vocabulary_gives_the_rows_and_gradients_of_a_whole_one(
    mesh: Any, specs: Any, rng: np.random.Generator
) -> None:
    layer = nn.Embedding(7, 3, Layout(specs, mesh), key=1)
    table, ids = layer.weight.numpy(), rng.integers(0, 7, (4, 5))
    placed = gdt.asarray(ids, layout=Layout(["batch", None], mesh))
    np.testing.assert_array_equal(layer(placed).numpy(), table[ids])
    x = rng.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(layer.logits(x).numpy(), x @ table.T, rtol=1e-5)
    g = rng.standard_normal((4, 5, 3)).astype(np.float32)
    gradient = gdt.grad(lambda layer: gdt.sum(layer(placed) * g))(layer)["weight"]
    expected = np.zeros_like(table)
    np.add.at(expected, ids, g)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert gradient.layout is layer.weight.layout
    with pytest.raises(IndexRangeError, match="index 7 is out of range"):
        layer(ids + 7 - ids.max())


def test_layers_without_arrays_put_others_together() -> None:
    x = gdt.asarray([[-1.0, 2.0]])
    assert nn.Add()([x, x, 1.0]).tolist() == [[-1.0, 5.0]]
    assert nn.Concatenate(axis=0)([x, 2 * x]).tolist() == [[-1.0, 2.0], [-2.0, 4.0]]
    block = nn.Residual(nn.Sequential(nn.Dense(2, 2, use_bias=False), nn.Activation("relu")))
    assert list(block.parameters()) == ["layer.layers.0.weight"]
    inner = np.maximum(x.numpy() @ block.parameters()["layer.layers.0.weight"].numpy(), 0)
    np.testing.assert_allclose(block(x).numpy(), x.numpy() + inner)
    with pytest.raises(ArgumentError, match=r"Add: arrays is .*, not a list of arrays"):
        nn.Add()(x)


def test_sizes_that_are_none_are_refused() -> None:
    for make in (nn.Dense, lambda: nn.Dense(0), lambda: nn.Dense(3, -1), lambda: nn.GroupNorm(0)):
        with pytest.raises(ArgumentError):
            make()
    with pytest.raises(ShapeError, match="2 groups do not divide"):
        nn.GroupNorm(2)(gdt.ones((2, 3)))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: nn.MaxPool(0), "MaxPool: size is 0"),
        (lambda: nn.AveragePool((2, 0)), r"AveragePool: size is \(2, 0\)"),
        (lambda: nn.MaxPool((2, 2), (1,)), r"MaxPool: strides is \(1,\)"),
        (lambda: nn.MaxPool(2, padding="bogus"), "MaxPool: padding is 'bogus'"),
        (lambda: nn.MaxPool(2.5), "MaxPool: size is 2.5, not int"),
        (lambda: nn.Conv2D(4, 3, padding="bogus"), "Conv2D: padding is 'bogus'"),
        (lambda: nn.Conv2DTranspose("a", 3), "Conv2DTranspose: channels is 'a', not int"),
        (lambda: nn.Conv2D("a", 3), "Conv2D: channels is 'a', not int"),
    ],
)
def test_layers_refuse_bad_arguments_by_their_own_name(make: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        make()


def test_names_of_keras_lead_to_the_layers() -> None:
    for name, own in nn.KERAS_NAMES.items():
        assert own.split("(")[0] in nn.__all__ and name not in nn.__all__
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}; write gdt.nn.{own}")):
            getattr(nn, name)
    assert not hasattr(nn, "Pooling")
