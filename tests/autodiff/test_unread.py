"""What gradients read, and that a tape keeps nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.autodiff import reverse_mode, unread
from gdt.autodiff.backward import BACKWARDS
from gdt.engine.op import op
from gdt.errors import ArgumentError, GradientError
from gdt.sharding.layout import Layout
from gdt.testing import Oracle
from tests.allocations import allocations
from tests.replays import any_values, placed_twice
from tests.samples import SAMPLES
from tests.some_samples import ON_SOME_SAMPLES, SamplesOf

MESH = gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU")
SIZE, LAYERS = 128, 8
NBYTES = 4 * SIZE * SIZE  # of a weight, and of an activation
CALLED = reverse_mode._called


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops whose gradients have got an array without its values."""
    names: list[str] = []

    def without_values(
        op: Any, role: str, vjp: Any, g: Any, out: Any, args: Any, static: Any
    ) -> Any:
        read = unread._read(op, args)

        def stripped(x: Any, position: int) -> Any:
            if read is None or position in read or type(x) is not DistributedArray:
                return x
            names.append(op.name)
            return DistributedArray(x.type, unread.FREED)

        outs = out if type(out) is tuple else (out,)
        outs = tuple([stripped(x, -1 - n) for n, x in enumerate(outs)])
        args = tuple([stripped(x, n) for n, x in enumerate(args)])
        return CALLED(op, role, vjp, g, outs if type(out) is tuple else outs[0], args, static)

    monkeypatch.setattr(reverse_mode, "_called", without_values)
    return names


@ON_SOME_SAMPLES
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_gradients_read_what_their_ops_name(
    name: str, samples_of: SamplesOf, freed: list[str]
) -> None:
    for sample in samples_of(name):
        oracle = Oracle(FUNCTIONS[name], sample)
        if not oracle.differentiable:
            continue
        operands, _ = placed_twice(oracle.precise, MESH, seed=f"{name} {MESH.grid}")
        with any_values(), pytest.MonkeyPatch.context() as patch:
            BACKWARDS.clear()
            gradients = oracle.gradient(operands)
            patch.setattr(reverse_mode, "_called", CALLED)
            BACKWARDS.clear()
            expected = oracle.gradient(operands)
        for got, want in zip(gradients, expected, strict=True):
            assert np.array_equal(got.numpy(), want.numpy(), equal_nan=True), (name, sample)


@pytest.mark.usefixtures("registries_are_restored")
def test_a_gradient_that_reads_what_is_not_named_is_an_error(freed: list[str]) -> None:
    @op("... -> ...")
    def cube(xp: Any, x: Any, /) -> Any:
        return x * x * x

    cube.vjp(lambda g, out, x: g * 3.0 * x * x, reads="out")
    with pytest.raises(
        GradientError, match=r"only a tape referred(.|\n)* names what it reads in its op's vjp"
    ):
        gdt.grad(lambda x: gdt.sum(cube(x)))(gdt.ones(2))
    assert "cube" in freed
    with pytest.raises(ArgumentError, match="reads= names 'y', which is no operand and no output"):
        cube.vjp(lambda g, out, x: g * 3.0 * x * x, reads="y")


def test_a_gradient_may_read_any_number_of_operands() -> None:
    @gdt.custom_vjp
    def sum_of_squares(*arrays: DistributedArray) -> DistributedArray:
        return arrays[0] ** 2 + arrays[1] ** 2 + arrays[2] ** 2

    sum_of_squares.vjp(joint=lambda g, out, *arrays: [2 * g * x for x in arrays], reads="arrays")
    loss = lambda x: gdt.sum(sum_of_squares(x + 1.0, x + 2.0, x + 3.0))
    gradient = gdt.grad(loss)(gdt.zeros((SIZE, SIZE)))
    assert np.array_equal(gradient.numpy(), np.full((SIZE, SIZE), 12.0))


def layers(
    weights: list[DistributedArray], held: list[DistributedArray] | None = None
) -> DistributedArray:
    """Products with biases and residuals; a layer's gradient reads what goes in, and its tanh."""
    x = weights[0]
    for w in weights:
        y = x @ w
        if held is not None:
            held.append(y)
        y = y + w[0]
        x = x + gdt.tanh(y)
    return gdt.sum(x)


@pytest.fixture
def weights() -> list[DistributedArray]:
    rng = np.random.default_rng(0)
    return [
        gdt.asarray(rng.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE)
        for _ in range(LAYERS)
    ]


def test_a_tape_keeps_what_gradients_read(weights: list[DistributedArray]) -> None:
    step = lambda: gdt.grad(layers)(weights)
    with gdt.testing.peak_memory(weights) as memory:  # op by op
        before = memory.now
        step()
    # Two arrays for each layer, of four; gradients take the place of those that have been passed.
    assert memory.peak - before <= (2 * LAYERS + 6) * NBYTES
    for _ in range(3):
        step()
    with allocations() as allocated:  # of a replay
        step()
    assert allocated.peak <= (2 * LAYERS + 6) * NBYTES
    run = gdt.function(step)
    for _ in range(4):
        run()
    with allocations() as allocated:  # of a recorded step
        run()
    assert allocated.peak <= (2 * LAYERS + 6) * NBYTES


def test_arrays_that_somebody_holds_keep_their_values(weights: list[DistributedArray]) -> None:
    held: list[DistributedArray] = []
    expected = [g.numpy() for g in gdt.grad(layers)(weights)]
    gradients = gdt.grad(lambda weights: layers(weights, held))(weights)
    assert all(np.array_equal(g.numpy(), e) for g, e in zip(gradients, expected, strict=True))
    assert np.array_equal(held[0].numpy(), (weights[0] @ weights[0]).numpy())
    assert len({x.numpy().tobytes() for x in held}) == LAYERS


def test_arrays_that_are_written_are_not_freed(weights: list[DistributedArray]) -> None:
    def loss(w: DistributedArray) -> DistributedArray:
        x = w @ w
        y = x + 1.0
        x[0] = 2.0  # the record of y has read what x was
        other = x + y
        del x, y
        return gdt.sum(gdt.tanh(other) @ w)

    step = lambda w: gdt.grad(loss)(w).numpy()
    large = step(weights[0])
    unread_limit, unread.LARGE = unread.LARGE, 1 << 40
    try:
        assert np.array_equal(step(weights[0]), large)
    finally:
        unread.LARGE = unread_limit


@pytest.mark.parametrize(
    ("is_checkpointed", "most"),
    # Of a layer what goes in; its normalised value, and a quarter of its middle; and of the last
    # one what its backward pass takes, or its two passes.
    [(False, 2.25 * LAYERS + 7), (True, LAYERS + 9)],
)
def test_partial_sums_and_their_values_are_freed(is_checkpointed: bool, most: float) -> None:
    """Tensor parallel layers: products by rows are partial sums, resolved where they are added."""
    mesh = gdt.create_mesh([("model", 4)], blocks=4)
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32) / SIZE
    columns, rows = Layout([None, "model"], mesh), Layout(["model", None], mesh)
    pairs = [
        (gdt.asarray(draw(SIZE, SIZE), layout=columns), gdt.asarray(draw(SIZE, SIZE), layout=rows))
        for _ in range(LAYERS)
    ]
    bias = gdt.asarray(draw(SIZE), layout=Layout([None], mesh))
    x = gdt.asarray(draw(SIZE, SIZE), layout=Layout([None, None], mesh))

    def layer(x: Any, up: Any, down: Any) -> Any:
        return x + (gdt.relu(gdt.layer_norm(x) @ up) @ down + bias)

    run = gdt.checkpointed(layer) if is_checkpointed else layer

    def loss(pairs: Any) -> Any:
        y = x
        for up, down in pairs:
            y = run(y, up, down)
        return gdt.sum(y)

    gdt.grad(loss)(pairs)
    with gdt.testing.peak_memory(pairs, [x]) as memory:
        before = memory.now
        gdt.grad(loss)(pairs)
    assert memory.peak - before <= most * NBYTES


def test_results_that_are_kept_in_their_tuple_keep_their_values() -> None:
    @gdt.custom_vjp
    def halves(x):
        return x[:, :SIZE] * 2, x[:, SIZE:] * 2

    halves.vjp(lambda g, out, x: gdt.concat([g[0] * 2, g[1] * 2], axis=1), reads="")

    def loss(x):
        both = halves(x)
        return gdt.sum(both[0]) + gdt.sum(gdt.sin(both[1]))

    x = gdt.zeros((256, 2 * SIZE))
    assert gdt.grad(loss)(x).numpy()[0, ::SIZE].tolist() == [2.0, 2.0]
