"""Numbers that the host computes anew in every step, in recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.engine.updates import UpdateOp
from gdt.errors import DtypeError
from gdt.observe import from_host


def slowing(xp: Any, p: Any, g: Any, rate: Any, n: Any, /, *, out: Any) -> Any:
    return xp.subtract(p, g * rate / n, out=out[0])


slowing_step = UpdateOp(slowing, "..., ..., ..., ... -> ...", donate="p")


class Slowing(gdt.optim.Optimizer):
    """Whose rate falls with the number of the step, as `kind` of number."""

    def __init__(self, rate: float, kind: Callable[[int], Any]) -> None:
        super().__init__(rate)
        self.kind = kind

    def scalars(self, rate: float) -> tuple[float, ...]:
        return (rate, self.kind(self.steps))

    def step(
        self, scalars: tuple[float, ...], owners: Any, gradients: Sequence[DistributedArray]
    ) -> None:
        slowing_step.multi_tensor(owners, gradients, *scalars)


def trained(kind: Callable[[int], Any], wrapped: Callable[[Any], Any]) -> list[list[float]]:
    w, optimizer = {"w": gdt.ones(3)}, Slowing(0.5, kind)

    @wrapped
    def step(x: DistributedArray) -> DistributedArray:
        optimizer.update(w, {"w": x})
        return w["w"] * kind(2)

    return [step(gdt.ones(3)).tolist() for _ in range(6)]


def test_a_drawn_number_is_none_that_the_step_has_elsewhere() -> None:
    kept = [float(n) for n in range(9)]
    found = trained(kept.__getitem__, gdt.function)
    assert found == trained(kept.__getitem__, lambda step: step)


@pytest.mark.parametrize("wrapped", [gdt.function, lambda step: step], ids=["recorded", "plain"])
@pytest.mark.parametrize("kind", [int, bool, np.bool_, lambda n: None])
def test_numbers_that_may_be_shared_are_refused(kind: Any, wrapped: Any) -> None:
    with pytest.raises(DtypeError, match=r"float\(n\)"):
        trained(kind, wrapped)


def test_numpy_scalars_are_copied() -> None:
    for value in (np.float32(1.5), np.float64(1.5), np.int64(3)):
        (found,) = from_host("test", lambda value=value: (value,))  # type: ignore[misc]
        assert found == value and type(found) is type(value) and found is not value
