"""Programs of guides and tutorials of Keras have the losses of JAX on gdt; `guides` runs all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.interop.keras import guides

JAX = json.loads(guides.STORED.read_text())
CASES = [
    ("tickets", "one"),
    ("tickets", "data 2, model 4"),
    ("gan", "data 8"),
    ("gan_by_fit", "data 4, model 2, rows"),
    ("transformer", "data 4, model 2, rows"),
    ("transformer", "data 2, model 4"),
    ("digits", "data 2, model 4"),
    ("mirrored", "data 8"),
    ("accumulation", "data 4, model 2, rows"),
    ("ema", "data 2, model 4"),
    ("executions", "data 8"),
    ("class_weight", "data 3"),
    ("sample_weight", "data 2, model 4"),
    ("mixed_bfloat16", "data 8"),
    ("loss_scale", "data 2, model 4"),
]
TOLERANCES = {"mixed_bfloat16": 1e-2, "loss_scale": 1e-2}  # products are rounded in other places


@pytest.mark.parametrize(("program", "layout"), CASES)
def test_losses_are_those_of_jax(program: str, layout: str) -> None:
    losses = guides.losses(program, layout, 10)
    expected = JAX[program.removesuffix("_by_fit")][: len(losses)]
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCES.get(program, 1e-5))
