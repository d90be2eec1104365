"""Calls of an op of several outputs for the first one alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.engine.first_output import first_output
from gdt.engine.op import Op
from gdt.nn.functions.cross_entropy.sparse import fused_cross_entropy
from gdt.observe import OBSERVERS, Observer

LOSS = first_output(fused_cross_entropy)


class Told(Observer):
    """An observer that notes ops and their results."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def on_op(self, op: Any, args: Any, static: Any, out: Any) -> None:
        self.results.append((op, out))


def operands(dtype: str = "float32", specs: Any = ("x", None)) -> list[gdt.DistributedArray]:
    """Labels and logits; the mesh's only axis is `x`."""
    mesh = gdt.create_mesh([("x", 2)], device_type="CPU")
    logits = np.arange(20, dtype="f4").reshape(4, 5)
    labels = gdt.asarray([0, 4, 1, 2], layout=gdt.Layout(specs[:1], mesh))
    return [labels, gdt.asarray(logits, layout=gdt.Layout(specs, mesh)).astype(dtype)]


@pytest.mark.parametrize("specs", [("x", None), (None, "x"), (None, None)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_first_output_is_that_of_the_whole_op(specs: Any, dtype: str) -> None:
    for static in ({}, {"label_smoothing": 0.5}):
        first = LOSS(*operands(dtype, specs), **static)
        whole, *_ = fused_cross_entropy(*operands(dtype, specs), **static)
        assert first.type is whole.type
        np.testing.assert_array_equal(first.astype("f4").numpy(), whole.astype("f4").numpy())


def test_observers_are_told_of_all_outputs() -> None:
    (labels, logits), told = operands(), Told()
    token = OBSERVERS.set((told,))
    try:
        LOSS(labels, logits)
    finally:
        OBSERVERS.reset(token)
    ((ran, outputs),) = told.results
    assert ran is fused_cross_entropy
    assert len(outputs) == 3
    _, gradient = gdt.value_and_grad(lambda x: gdt.sum(LOSS(labels, x)))(logits)
    np.testing.assert_allclose(gdt.sum(gradient, axis=-1).numpy(), np.zeros(4), atol=1e-6)


def test_errors_name_the_op_and_its_argument() -> None:
    with pytest.raises(gdt.errors.GdtError, match=r"^fused_cross_entropy: .*'smoothing'"):
        LOSS(*operands(), smoothing=1)


def test_a_specialization_which_makes_all_outputs_is_left_out() -> None:
    def halves(xp: Any, x: Any, /) -> tuple[Any, Any]:
        return x / 2, x

    op: Op[..., Any] = Op(halves, "... -> ..., ...")
    op.specialize(lambda body, x: lambda x: (x / 2, x))
    half, x = first_output(op), gdt.asarray([2.0, 4.0])
    for _ in range(3):
        assert half(x).tolist() == [1.0, 2.0]
