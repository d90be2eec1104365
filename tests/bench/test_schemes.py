"""Schemes of parallel training send, and hold, what their formulas say."""

from __future__ import annotations

import pytest

from bench.schemes import ROWS, SCHEMES, SMALL, measure, theory


@pytest.mark.parametrize(
    "name",
    [
        "data 16", "ZeRO 16", "FSDP 16", "tensor 4", "tensor 4, checkpointed", "data 4 x tensor 4",
        "sequence 4", "FSDP 4 x sequence 4", "context 4", "FSDP 128 x sequence 8",
    ],
)  # fmt: skip
def test_a_step_takes_what_its_formula_says(name: str) -> None:
    scheme, size = ROWS[name]
    measured, formula = measure(scheme, size), theory(scheme, size)
    assert measured.nbytes <= 1.05 * formula.nbytes
    assert measured.collectives <= 1.2 * formula.collectives + 1
    assert measured.peak <= 1.3 * formula.peak


def test_peaks_of_abstract_devices_are_those_of_virtual_ones() -> None:
    scheme, size = SCHEMES["data 4 x tensor 4"], SMALL._replace(layers=1)
    abstract, virtual = measure(scheme, size), measure(scheme, size, "CPU")
    assert abstract[:2] == virtual[:2]
    assert abstract.peak == pytest.approx(virtual.peak, rel=0.01)
