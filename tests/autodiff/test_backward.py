"""Gradients that are replayed equal gradients that are computed op by op, bit for bit."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.autodiff.backward import BACKWARDS, Backward
from gdt.backend.abstract import DEVICE
from gdt.caches import BUDGET
from gdt.observe import Observer, observing
from gdt.testing import Oracle, Sample
from tests.replays import any_values, placed_twice
from tests.samples import SAMPLES, masks
from tests.some_samples import ON_SOME_SAMPLES, SamplesOf

MESHES = [
    gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU"),
    gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU", blocks=4),
]


@pytest.fixture(autouse=True)
def nothing_recorded() -> None:
    BACKWARDS.clear()


def replayed() -> list[Backward]:
    return [
        known
        for known in (*BACKWARDS.values(), *BACKWARDS.older.values())
        if isinstance(known, Backward)
    ]


def values(gradients: list[DistributedArray]) -> list[np.ndarray]:
    return [np.array(g.numpy()) for g in gradients]


def _is_masked(name: str, sample: Sample) -> bool:
    """Whether values decide where elements go, which no recording of other values can tell."""
    has_mask = any(a.dtype == bool for a in sample.arrays)
    return name in masks.SAMPLES or (name == "getitem" and has_mask)


@ON_SOME_SAMPLES
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_replayed_gradients_are_those_of_the_values_at_hand(
    name: str, samples_of: SamplesOf
) -> None:
    for n, sample in enumerate(samples_of(name)):
        mesh = MESHES[(n + len(name)) % 2]  # samples take turns
        oracle = Oracle(FUNCTIONS[name], sample)
        if not oracle.differentiable:
            continue
        first, second = placed_twice(oracle.precise, mesh, seed=f"{name} {mesh.grid}")
        types = [x.type for x in first]
        with any_values():
            BACKWARDS.clear()
            expected = values(oracle.gradient(second))
            BACKWARDS.clear()
            oracle.gradient(first)
            oracle.gradient(first)
            assert bool(replayed()) is not _is_masked(name, sample), (name, sample, types)
            found = values(oracle.gradient(second))
        for got, want in zip(found, expected, strict=True):
            assert np.array_equal(got, want, equal_nan=True), (name, sample, types)


def test_a_mask_of_other_values_gives_its_own_gradient() -> None:
    layout = gdt.Layout(["x"], MESHES[0])
    rng = np.random.default_rng(3)
    x = gdt.asarray(rng.standard_normal(9), layout=layout)
    gradient = gdt.grad(lambda x, mask: gdt.sum(x[mask] ** 2))
    for _ in range(6):  # masks that choose as many elements, of which the types are the same
        mask = np.roll(np.arange(9) % 3 == 0, int(rng.integers(9)))
        got = gradient(x, gdt.asarray(mask, layout=layout))
        assert np.array_equal(got.numpy(), np.where(mask, 2 * x.numpy(), 0.0))


def network(w: DistributedArray, x: DistributedArray) -> DistributedArray:
    return gdt.mean(gdt.relu(x @ w))


def test_the_third_call_of_a_signature_is_replayed() -> None:
    w, x = gdt.ones((3, 2)), gdt.ones((4, 3))
    gradient = gdt.grad(network)
    for count in (0, 1, 1):
        gradient(w, x)
        assert len(replayed()) == count
    gradient(w, gdt.ones((5, 3)))
    assert len(BACKWARDS) + len(BACKWARDS.older) == 2


def test_nothing_is_kept_alive_by_a_signature_or_a_program() -> None:
    gradient = gdt.grad(network)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            w, x = gdt.ones((3, 2)), gdt.ones((4, 3))
            gradient(w, x)
            blocks = [*w.blocks, *x.blocks]
            del w, x
            assert all(len(gc.get_referrers(b)) == 1 for b in blocks)
    finally:
        gc.enable()


def test_a_pass_of_large_constants_is_not_kept() -> None:
    gradient, before = gdt.grad(lambda x: gdt.sum(x[:-1])), DEVICE.now
    mesh = gdt.create_mesh([("x", 2)], device_type="abstract")
    for count, kept in ((100, 1), (100_000, 0)):
        BACKWARDS.clear()
        for _ in range(3):
            x = gdt.ones(count, device=mesh)
            gradient(x)
        assert len(replayed()) == kept
    del x
    gc.collect()
    assert DEVICE.now == before


def test_observers_see_every_op_of_a_gradient() -> None:
    class Ops(Observer):
        def __init__(self) -> None:
            self.count = 0

        def on_op(self, op: object, *rest: object) -> None:
            self.count += 1

    w, x = gdt.ones((3, 2)), gdt.ones((4, 3))
    counts = []
    for _ in range(4):
        with gdt.GradientTape() as tape:
            loss = network(w, x)
        ops = Ops()
        with observing(ops):
            tape.gradient(loss, w)
        counts.append(ops.count)
    assert counts[0] > 3
    assert len(set(counts)) == 1


def test_a_scalar_that_changes_is_part_of_the_signature() -> None:
    x = gdt.asarray([2.0])
    found = [float(gdt.grad(lambda x, p=p: gdt.sum(x**p))(x)[0]) for p in (1.0, 2.0, 3.0, 3.0, 3.0)]
    assert found == [1.0, 4.0, 12.0, 12.0, 12.0]


def test_statics_that_are_equal_but_differ_are_told_apart() -> None:
    x = -gdt.ones(3)
    for slope in (0.0, -0.0) * 3:
        gradient = gdt.grad(lambda x, slope=slope: gdt.sum(gdt.leaky_relu(x, slope)))(x)
        assert np.signbit(gradient.numpy()).tolist() == [str(slope)[0] == "-"] * 3


def test_a_gradient_that_draws_or_reads_is_never_replayed() -> None:
    @gdt.custom_vjp
    def noisy(x: DistributedArray) -> DistributedArray:
        return x * 1.0

    noisy.vjp(lambda g, out, x: g * gdt.random.uniform(x.shape))

    @gdt.custom_vjp
    def clipped(x: DistributedArray) -> DistributedArray:
        return x * 1.0

    clipped.vjp(lambda g, out, x: g * min(float(gdt.sum(x)), 10.0))

    x = gdt.ones(3)
    draws = [gdt.grad(lambda x: gdt.sum(noisy(x)))(x).tolist() for _ in range(4)]
    assert len({tuple(d) for d in draws}) == 4
    found = [
        gdt.grad(lambda x: gdt.sum(clipped(x)))(gdt.full((2,), v)).tolist()
        for v in (1.0, 2.0, 3.0, 9.0)
    ]
    assert found == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0], [10.0, 10.0]]
    assert not replayed()


def test_a_gradient_that_uses_an_array_from_elsewhere_is_never_replayed() -> None:
    kept = {"scale": gdt.asarray(2.0)}

    @gdt.custom_vjp
    def scaled(x: DistributedArray) -> DistributedArray:
        return x * 1.0

    scaled.vjp(lambda g, out, x: g * kept["scale"])
    gradient = gdt.grad(lambda x: gdt.sum(scaled(x)))
    for value in (2.0, 3.0, 4.0, 5.0):
        kept["scale"] = gdt.asarray(value)
        assert gradient(gdt.ones(2)).tolist() == [value, value]


def test_partial_values_are_resolved_by_a_replay() -> None:
    mesh = MESHES[1]
    layout = gdt.Layout(["x"], mesh)
    counts = []
    for n in range(4):
        x = gdt.asarray(np.arange(4.0) + n, layout=layout)
        with gdt.GradientTape() as tape:
            loss = gdt.sum(x * x)
        assert tape.gradient(loss, x).tolist() == (2 * (np.arange(4.0) + n)).tolist()
        with gdt.count_collectives() as counted:
            assert float(loss) == ((np.arange(4.0) + n) ** 2).sum()
        counts.append(len(counted))
    assert counts == [0, 0, 0, 0]


def test_the_programs_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BUDGET, "nbytes", 6 * BACKWARDS.nbytes)
    for n in range(1, 10):
        gdt.grad(network)(gdt.ones((3, 2)), gdt.ones((n, 3)))
        assert len(BACKWARDS) + len(BACKWARDS.older) <= 7
