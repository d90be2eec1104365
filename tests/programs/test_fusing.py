"""Recorded steps as loops: the bits of the step as written, its warnings, and its memory."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import threads
from gdt.engine import blocks as blocks_of_plans
from gdt.engine.op import OPS
from gdt.engine.ownership import is_owned
from gdt.fusion import llvm
from gdt.fusion.op_formula import UFUNCS
from gdt.programs import fused_function, fusing, slices
from tests.programs.fused_chains import bits, differences
from tests.replays import any_values
from tests.samples import SAMPLES

SIZE = 3 * fusing.SMALLEST
FORMULAS = [
    name
    for name in sorted({*OPS} & {*SAMPLES})
    if name in UFUNCS or hasattr(OPS[name].declaration.body, "formula")
]


@pytest.fixture(params=["compiled", "in slices"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Loops, and NumPy's functions on slices."""
    if request.param == "in slices":
        monkeypatch.setattr(llvm, "WANTED", False)
    elif llvm.problem():
        pytest.skip(llvm.problem())
    yield request.param


def recorded(step: Any) -> Any:
    """A recorded step that nothing verifies, and that so shows its own results."""
    return gdt.function(step, verify=0)


def fused_ops(step: Any) -> list[list[str]]:
    return [[f.name for f in k.fused] for k in step.programs[0].instructions if k.fused]


def test_random_chains_have_the_bits_of_the_step_as_written(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusing, "SMALLEST", 1)
    monkeypatch.setattr(blocks_of_plans, "SMALLEST_OP", 1)
    first = 0 if mode == "compiled" else 1000
    found = [line for seed in range(first, first + 60) for line in differences(seed)]
    assert not found


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_has_the_bits_of_the_body_on_every_sample(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if llvm.problem():
        pytest.skip(llvm.problem())
    monkeypatch.setattr(fusing, "SMALLEST", 1)
    count = 0
    for sample in SAMPLES[name]:

        def step(*arrays: Any, sample: Any = sample) -> Any:
            y = OPS[name](*sample.with_arrays(arrays), **sample.static)
            return y, gdt.bitwise_or(y, y) if y.dtype == bool else gdt.equal(y, y)  # a chain

        replayed, arrays = recorded(step), [gdt.asarray(a) for a in sample.arrays]
        with any_values():
            written = [y.numpy() for y in step(*arrays)]
            for _ in range(3):
                results = [y.numpy() for y in replayed(*arrays)]
        for have, want in zip(results, written, strict=True):
            assert have.dtype == want.dtype and np.array_equal(bits(have), bits(want)), sample
        count += bool(fused_ops(replayed))
    assert count, f"no sample of {name} has operands for which its formula stands"


def test_a_chain_is_one_instruction_that_shows_its_ops(mode: str) -> None:
    @recorded
    def step(x: Any, rate: Any) -> Any:
        y = gdt.exp(-x) * rate
        return gdt.where(y > 0.5, y, x) + gdt.sqrt(rate)

    x, rate = gdt.asarray(np.linspace(0, 3, SIZE, dtype="f4")), gdt.asarray(np.float32(2))
    for _ in range(3):
        step(x, rate)
    (ops,) = fused_ops(step)
    # The root of the rate alone is computed before, once.
    assert sorted(ops) == ["add", "exp", "greater", "multiply", "negative", "where"]
    source = step.programs[0].source
    assert source.count("fused(") == 1
    assert "# r" in source and "= where(" in source


def test_an_instruction_between_divides_a_chain() -> None:
    @recorded
    def step(x: Any) -> Any:
        y = x * 2 + 1
        return y / gdt.cumsum(y) - 1

    x = gdt.asarray(np.ones(SIZE, "f4"))
    for _ in range(3):
        result = step(x)
    assert fused_ops(step) == [["multiply", "add"], ["divide", "subtract"]]
    np.testing.assert_allclose(result.numpy(), 1 / np.arange(1, SIZE + 1) - 1, rtol=1e-6)


def test_a_chain_reads_another_of_smaller_blocks(mode: str) -> None:
    x = np.random.default_rng(2).normal(size=(3, SIZE)).astype("f4")
    row = x[0].copy()

    @recorded
    def step(x: Any, row: Any) -> Any:
        factor = row * 2 + 1
        return x * factor - 1

    for _ in range(3):
        result = step(gdt.asarray(x), gdt.asarray(row))
    assert fused_ops(step) == [["multiply", "add"], ["multiply", "subtract"]]
    np.testing.assert_array_equal(result.numpy(), x * (row * 2 + 1) - 1)


def test_operands_in_different_orders_of_memory_keep_the_order_of_the_result(mode: str) -> None:
    """Sums along an axis depend on it, to the last bit."""
    x, y = np.random.default_rng(3).normal(size=(2, 150, 210)).astype("f4")
    y = np.asfortranarray(y)

    def sums(x: Any, y: Any) -> list[Any]:
        return [gdt.sum(z * x + 1, axis=axis) for z in (y, x) for axis in (0, 1, None)]

    step, operands = recorded(sums), [gdt.asarray(x).T, gdt.asarray(y.T).T.T]
    for pair in (operands, operands[::-1], [operands[0], operands[0]]):
        expected = sums(*pair)
        for _ in range(3):
            for a, b in zip(step(*pair), expected, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_chains_longer_than_a_slice(mode: str) -> None:
    x = np.random.default_rng(4).normal(size=2 * slices.SLICE + 77).astype("f4")
    step = recorded(lambda x: x * x + 1 - x)
    for _ in range(3):
        result = step(gdt.asarray(x))
    np.testing.assert_array_equal(result.numpy(), x * x + 1 - x)


def test_indices_that_are_arrays_are_no_chain() -> None:
    mesh = gdt.create_mesh([("a", 4)], blocks=2, mesh_name="indices")
    mask = np.arange(7) > 3
    gradient = gdt.grad(lambda x: gdt.sum(x[mask] * 2 + 1))
    x = gdt.asarray(np.arange(7.0), layout=gdt.Layout(["a"], mesh))
    for _ in range(4):  # the second is recorded, and later ones are replayed
        assert gradient(x).tolist() == [0, 0, 0, 0, 2, 2, 2]


def test_small_blocks_and_single_ops_are_left_as_they_are() -> None:
    step = recorded(lambda x, y: (x * 2 + 1, gdt.cumsum(y * y)))
    for _ in range(3):
        step(gdt.ones(fusing.SMALLEST - 1), gdt.ones(SIZE))
    assert fused_ops(step) == []


def test_a_replay_warns_as_numpy_does(mode: str) -> None:
    step = recorded(lambda x: 1 / (x - 1) + 1)
    good, bad = np.full(SIZE, 3, "f4"), np.full(SIZE, 3, "f4")
    bad[5] = 1
    for _ in range(3):
        step(gdt.asarray(good))
    assert fused_ops(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = step(gdt.asarray(bad)).numpy()
        assert ["divide by zero" in str(w.message) for w in caught] == [True]
        bad[5] = np.nan  # which no operation has made
        step(gdt.asarray(bad))
        assert len(caught) == 1
    assert np.isinf(result[5])
    bad[5] = 1
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        step(gdt.asarray(bad))


def test_an_infinite_operand_hides_nothing_of_other_ops(mode: str) -> None:
    """Neither a value that a formula leaves to the body, nor what NumPy warns of."""
    step = recorded(lambda x, y: (gdt.sin(x) * 2, 1 / x - 1, gdt.minimum(x, y), x - y))
    x, bound = np.linspace(1, 3, SIZE, dtype="f4"), gdt.asarray(np.float32(np.inf))
    x[7] = 50000  # an angle of which the formula makes NaN
    for value, message in ((50000, ""), (0, "divide by zero"), (np.inf, "invalid value")):
        x[7] = value
        for _ in range(4):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                results = step(gdt.asarray(x), bound)
            assert [message in str(w.message) for w in caught] == [True] * bool(message)
        want = gdt.sin(gdt.asarray(x)) * 2
        np.testing.assert_array_equal(results[0].numpy(), want.numpy())
    assert fused_ops(step)


def test_infinities_that_ops_pass_on_are_one_loop(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = recorded(lambda x, mask: gdt.exp(x + mask) * 2)
    x, mask = np.ones(SIZE, "f4"), np.where(np.arange(SIZE) % 3, 0, -np.inf).astype("f4")
    for _ in range(3):
        step(gdt.asarray(x), gdt.asarray(mask))
    (segment,) = [k.function for k in step.programs[0].instructions if k.fused]
    monkeypatch.setattr(segment, "run_one_by_one", None)
    result = step(gdt.asarray(x), gdt.asarray(mask)).numpy()
    assert (result == np.where(np.isinf(mask), 0, gdt.exp(x).numpy() * 2)).all()


def test_integers_are_compared_with_numbers_beyond_their_dtype(mode: str) -> None:
    step = recorded(lambda x: gdt.where((x < 300) & (x != -300), x, x * x))
    x = np.arange(SIZE).astype("i1")
    for _ in range(3):
        np.testing.assert_array_equal(step(gdt.asarray(x)).numpy(), x)


def test_numbers_that_are_drawn_in_each_step_are_read_anew(mode: str) -> None:
    optimizer = gdt.optim.SGD(lambda step: 0.5 / (step + 1))
    weights = {"w": gdt.asarray(np.zeros(SIZE, "f4"))}

    @recorded
    def step(g: Any) -> None:
        optimizer.update(weights, {"w": g * 2 - g})

    g = gdt.asarray(np.ones(SIZE, "f4"))
    for _ in range(4):
        step(g)
    want = np.float32(-0.5 * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    np.testing.assert_allclose(weights["w"].numpy(), want, rtol=1e-6)


def test_numbers_of_a_recording_are_no_part_of_the_loop() -> None:
    """A rate that changes in every step would make a loop each time."""
    if llvm.problem():
        pytest.skip(llvm.problem())
    step = recorded(lambda x, rate, count: (x * rate + 1, x * x + count, x > rate))
    x = np.linspace(-3, 3, SIZE, dtype="f4")
    array, made = gdt.asarray(x), set()
    for rate, count in ((0.3, 7), (1e-3, -8), (0.1, 123456789)):
        for _ in range(3):
            results = step(array, rate, count)
        (ops,) = [k.function.run for k in step.programs[-1].instructions if k.fused]
        made |= {id(function) for function in ops._functions.values()}
        want = x * np.float32(rate) + 1, x * x + np.float32(count), x > np.float32(rate)
        for have, expected in zip(results, want, strict=True):
            np.testing.assert_array_equal(have.numpy(), expected)
    assert len(step.programs) == 3 and len(made) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_parts_in_threads_are_what_whole_blocks_are(mode: str, count: int) -> None:
    rng = np.random.default_rng(0)
    x, row = rng.normal(size=(1400, 800)).astype("f4"), rng.normal(size=(800,)).astype("f4")
    column = rng.normal(size=(1400, 1)).astype("f4")
    step = recorded(lambda x, row, column: (x * row - column) / (x * x + 1))
    with gdt.host_threads(count):
        for _ in range(3):
            result = step(*map(gdt.asarray, (x, row, column)))
        assert fused_ops(step)
        np.testing.assert_array_equal(result.numpy(), (x * row - column) / (x * x + 1))


@pytest.mark.parametrize("layout", [["rows", None], [None, "rows"]])
def test_blocks_of_several_devices_are_computed_in_one_go(
    layout: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if llvm.problem():
        pytest.skip(llvm.problem())
    mesh = gdt.create_mesh([("rows", 6)], blocks=6, mesh_name="in one go")
    x, y = np.random.default_rng(0).normal(size=(2, 600, 510)).astype("f4")
    row = gdt.asarray(x[0].copy(), layout=gdt.Layout([layout[1]], mesh))
    placed = [gdt.asarray(a, layout=gdt.Layout(layout, mesh)) for a in (x, y)]
    step = recorded(lambda x, y, row: (gdt.exp(x * y) + row, x / row))
    counts = []
    together = threads.together

    def counting(calls: Any) -> Any:
        counts.append(len(calls))
        return together(calls)

    monkeypatch.setattr(threads, "together", counting)
    with gdt.host_threads(4):
        for _ in range(4):
            results = step(*placed, row)
    assert counts[-1] == 4 and fused_ops(step)
    written = gdt.exp(placed[0] * placed[1]) + row, placed[0] / row
    for a, b in zip(results, written, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_block_that_repeats_one_element_is_read_as_that(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a sum is such a view; another call of the step may have a whole block."""
    step = recorded(lambda x, y: x * y + 1)
    x = np.random.default_rng(5).normal(size=(90, 120)).astype("f4")
    column, number = np.broadcast_to(x[:, :1], x.shape), np.broadcast_to(x[0, 0], x.shape)
    orders = [number, x, number, column, x, column, number]
    for other in [number] * 3 + orders:
        y = gdt.broadcast_to(gdt.asarray(other[:1, :1]), x.shape) if other is number else None
        y = gdt.asarray(other) if y is None else y
        np.testing.assert_array_equal(step(gdt.asarray(x), y).numpy(), x * other + 1)
    assert fused_ops(step)
    if mode == "compiled":
        monkeypatch.setattr(fused_function, "arranged", None)
        step(gdt.asarray(x), gdt.broadcast_to(gdt.asarray(x[:1, :1]), x.shape))


def test_long_chains_on_small_blocks_of_several_devices_are_one_loop() -> None:
    if llvm.problem():
        pytest.skip(llvm.problem())
    mesh = gdt.create_mesh([("rows", 8)], blocks=8, mesh_name="small blocks")
    values = np.random.default_rng(0).normal(size=(8, fusing.SMALLEST // 8)).astype("f4")
    x = gdt.asarray(values, layout=gdt.Layout(["rows", None], mesh))

    def chain(x: Any, count: int) -> Any:
        for n in range(count):
            x = x * 1.5 + n
        return x

    long, short = (recorded(partial(chain, count=n)) for n in (fusing.SHORTEST // 2, 1))
    for _ in range(4):
        result, _ = long(x), short(x)
    assert len(fused_ops(long)[0]) == fusing.SHORTEST and fused_ops(short) == []
    np.testing.assert_array_equal(result.numpy(), chain(values, fusing.SHORTEST // 2))


def test_small_work_is_not_handed_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "together", None)
    mesh = gdt.create_mesh([("rows", 8)], blocks=8, mesh_name="small work")
    step = recorded(lambda x: x * 2 + 1)
    x = gdt.ones((8, fusing.SMALLEST), layout=gdt.Layout(["rows", None], mesh))
    with gdt.host_threads(2):
        for _ in range(4):
            step(x)
    assert fused_ops(step)


def test_nothing_of_a_recording_is_garbage_that_refers_to_its_arrays(mode: str) -> None:
    """Updates would copy parameters to which it refers until it is collected."""
    w, x = {"w": gdt.asarray(np.ones((90, 120), "f4"))}, gdt.asarray(np.ones((90, 120), "f4"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            gdt.grad(lambda w, x: gdt.sum(gdt.mean(w["w"] * x * 2, axis=1) ** 2))(w, x)
        assert is_owned(w, "w") == [True]
    finally:
        gc.enable()


def test_a_chain_takes_the_memory_of_operands_and_results() -> None:
    """Temporaries of 12 ops would take twelve times as much, or twice with recycled memory."""
    size = 1 << 20

    def chain(x: Any) -> Any:
        for n in range(6):
            x = x * 1.5 + n
        return x

    step, x = recorded(chain), gdt.asarray(np.ones(size, "f4"))
    for _ in range(3):
        step(x)
    gdt.free_memory()
    tracemalloc.start()
    result = step(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 1.05 * result.blocks[0].nbytes


def test_gradients_of_a_chain_are_those_of_the_step_as_written(mode: str) -> None:
    rng = np.random.default_rng(1)
    w, x = (gdt.asarray(rng.normal(size=(90, 120)).astype("f4")) for _ in range(2))

    def loss(w: Any, x: Any) -> Any:
        y = gdt.tanh(w * x) * gdt.exp(-0.5 * w * w) + gdt.maximum(w, x)
        return gdt.sum(gdt.where(y > 0, y, y * y))

    step = recorded(gdt.value_and_grad(loss))
    value, gradient = gdt.value_and_grad(loss)(w, x)
    for _ in range(4):
        again, same = step(w, x)
        assert float(again) == float(value)
        np.testing.assert_array_equal(same.numpy(), gradient.numpy())
    assert fused_ops(step)
