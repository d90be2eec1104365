"""Programs of Keras' guides have the losses on gdt that they have on JAX; `guides` runs all."""

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
]


@pytest.mark.parametrize(("program", "layout"), CASES)
def test_losses_are_those_of_jax(program: str, layout: str) -> None:
    expected = JAX[program.removesuffix("_by_fit")][:10]
    losses = guides.losses(program, layout, 10)[:10]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
