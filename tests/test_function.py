"""gdt.function: replayed steps are the steps themselves, bit for bit, whatever changes around them."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.array import FUNCTIONS, DistributedArray
from gdt.errors import FunctionError
from gdt.function import MANY, Function
from gdt.mesh import Mesh
from gdt.testing import Oracle, choices
from gdt.testing.operands import placed

from .samples import SAMPLES

FOLDED = gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU")
APART = gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU", blocks=4)
ON_BOTH = pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])

HOST = {"nonzero", "unique"}  # shapes that depend on values
STATE: dict[str, Any] = {"scale": gdt.asarray(1.0)}
RATE = 0.5


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, list | tuple):
        return [leaf for t in tree for leaf in leaves(t)]
    return [tree]


def same(a: Any, b: Any) -> bool:
    return all(
        np.array_equal(x.numpy(), y.numpy(), equal_nan=x.dtype.kind in "fc")
        if isinstance(x, DistributedArray)
        else x == y
        for x, y in zip(leaves(a), leaves(b), strict=True)
    )


# ---------------------------------------------------------------- every function


@ON_BOTH
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_replay_computes_with_the_values_at_hand(name: str, mesh: Mesh) -> None:
    for sample in SAMPLES[name]:
        arrays = sample.arrays
        seed = zlib.crc32(f"{name} {mesh.grid} function".encode())
        (chosen,) = choices(mesh, [a.ndim for a in arrays], limit=1, seed=seed)
        others = [np.roll(a.reshape(-1), 1).reshape(a.shape) for a in arrays]

        def call(*operands: DistributedArray, sample: Any = sample) -> Any:
            return FUNCTIONS[name](*sample.with_arrays(operands), **sample.static)

        with warnings.catch_warnings(), np.errstate(all="ignore"), gdt.default_mesh(mesh):
            warnings.simplefilter("ignore")
            first = [placed(a, w) for a, w in zip(arrays, chosen, strict=True)]
            second = [placed(a, w) for a, w in zip(others, chosen, strict=True)]
            expected = call(*second)
            if not all(isinstance(leaf, DistributedArray) for leaf in leaves(expected)):
                continue
            step = gdt.function(call)
            try:
                step(*first), step(*first)
            except FunctionError as e:
                assert "on the host" in str(e), e
                continue
            found = step(*second)
        assert len(step.programs) == 1
        assert same(found, expected), (name, sample, chosen)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_functions_that_cannot_be_recorded_are_known(name: str) -> None:
    pytest.skip("placeholder")


# ---------------------------------------------------------------- trainings


class Network(nn.Module):
    def __init__(self, mesh: Mesh) -> None:
        layout = gdt.Layout([None, "y"], mesh)
        self.dense1 = nn.Dense(6, 8, weight_layout=layout)
        self.norm = nn.BatchNorm(8, gdt.Layout(["y"], mesh))
        self.dropout = nn.Dropout(0.25)
        self.dense2 = nn.Dense(8, 3, weight_layout=gdt.Layout(["y", None], mesh))

    def __call__(self, x: DistributedArray) -> DistributedArray:
        return self.dense2(self.dropout(self.norm(gdt.relu(self.dense1(x)))))
