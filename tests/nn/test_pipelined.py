"""Pipelines: the same numbers as blocks one after the other, and what they send and keep."""

from __future__ import annotations

import functools
import gc
import re
import weakref

import numpy as np
import pytest

import gdt
from gdt import nn
from gdt.errors import ArgumentError, GradientError, MeshError, ShapeError
from gdt.nn.parameters import stacked_rows

SIZE, TOKENS, ROWS, COUNT = 8, 4, 16, 4
COLUMNS, LINES = (
    r"block\.(attention\.(query|key|value)_|up\.)",
    r"block\.(attention\.output_|down\.)",
)


class Block(nn.Module):
    def __init__(self, key: int, dtype: str = "float64", dropout: float = 0.0) -> None:
        self.norm = nn.RMSNorm(SIZE, dtype=dtype)
        self.attention = nn.MultiHeadAttention(2, SIZE, causal=True, key=key, dtype=dtype)
        self.up = nn.Dense(SIZE, 2 * SIZE, activation="gelu", key=key + 100, dtype=dtype)
        self.down = nn.Dense(2 * SIZE, SIZE, key=key + 200, dtype=dtype)
        self.dropout = nn.Dropout(dropout, key=key)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.dropout(self.down(self.up(x)))


class Chain(nn.Module):
    def __init__(self, blocks) -> None:
        self.blocks = blocks

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def blocks_on(mesh, count: int = COUNT, **options):
    with gdt.default_mesh(mesh):
        return [Block(n, **options) for n in range(count)]


def layouts(mesh, kept=None) -> nn.LayoutMap:
    """Return a map that splits blocks over `stage`, features over `model` if the mesh has it."""
    used = lambda *specs: (
        nn.Sharded(kept=kept, used=["stage", *specs]) if kept else ["stage", *specs]
    )
    entries = nn.LayoutMap(mesh)
    if "model" in mesh.axis_names:
        entries[f"{COLUMNS}weight"] = used(None, "model")
        entries[f"{COLUMNS}bias"] = used("model")
        entries[f"{LINES}weight"] = used("model", None)
        others = rf"(?!{COLUMNS}(weight|bias)|{LINES}weight)"
        entries[f"{others}.*"] = used(...)
    else:
        entries[".*"] = used(...)
    return entries


def rows_on(mesh, rng, rows: int = ROWS, dtype: str = "float64"):
    x = rng.normal(size=(rows, TOKENS, SIZE)).astype(dtype)
    split = "data" if "data" in mesh.axis_names else None
    return gdt.asarray(x, layout=gdt.Layout([split, None, None], mesh))


def loss(model, x):
    return gdt.mean((model(x) - 1) ** 2)


def trained(model, x, steps: int) -> list[float]:
    optimizer = gdt.optim.Adam(1e-2).init(model)

    def step(x):
        value, gradients = gdt.value_and_grad(loss)(model, x)
        optimizer.update(model, gradients)
        return value

    run = gdt.function(step, verify=50)
    return [float(run(x)) for _ in range(steps)]


MESHES = [
    ([("stage", 4)], None),
    ([("data", 2), ("stage", 2)], None),
    ([("stage", 2), ("data", 2)], "data"),
    ([("stage", 2), ("model", 2)], None),
    ([("data", 2), ("stage", 2), ("model", 2)], "data"),
]


@functools.cache
def trained_on_one() -> tuple[list[float], dict[str, np.ndarray]]:
    mesh = gdt.create_mesh([("one", 1)])
    model = Chain(blocks_on(mesh))
    losses = trained(model, rows_on(mesh, np.random.default_rng(3)), 100)
    return losses, {name: w.numpy() for name, w in model.parameters().items()}


@pytest.mark.parametrize(("dims", "kept"), MESHES, ids=str)
@pytest.mark.parametrize(
    ("steps", "apart"),
    [pytest.param(100, False, marks=pytest.mark.networks_full), (3, False), (2, True)],
)
def test_steps_are_those_of_one_device_on_every_mesh(dims, kept, steps, apart) -> None:
    check_steps(dims, kept, steps, apart)


def test_a_hundred_steps_are_those_of_one_device() -> None:
    check_steps(*MESHES[-1], 100, False)


def check_steps(dims, kept, steps, apart) -> None:
    repeats = 2 if dict(dims)["stage"] == 2 and not apart else 1
    mesh = gdt.create_mesh(dims, blocks=int(np.prod([n for _, n in dims])) if apart else None)
    model = nn.Pipelined(blocks_on(mesh), "stage", 4, repeats=repeats)
    layouts(mesh, kept).apply(model)
    losses = trained(model, rows_on(mesh, np.random.default_rng(3)), steps)
    expected, weights = trained_on_one()
    np.testing.assert_allclose(losses, expected[:steps], rtol=1e-9)
    if steps < len(expected):
        return
    assert losses[-1] < 0.2 * losses[0]
    order = [0, 2, 1, 3] if repeats == 2 else [0, 1, 2, 3]
    for name, w in model.parameters().items():
        rows = [weights[name.replace("block.", f"blocks.{n}.")] for n in order]
        np.testing.assert_allclose(w, np.stack(rows), rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 12])
def test_gradients_of_the_input_and_any_number_of_micro_batches(
    rng, checkpoint, micro_batches
) -> None:
    mesh = gdt.create_mesh([("stage", 3), ("data", 2)])
    x = rows_on(mesh, rng, 12)
    expected = gdt.value_and_grad(loss, (0, 1))(Chain(blocks_on(mesh, 3)), x)
    model = nn.Pipelined(blocks_on(mesh, 3), "stage", micro_batches, checkpoint=checkpoint)
    value, (_, gradient) = gdt.value_and_grad(loss, (0, 1))(model, x)
    np.testing.assert_allclose(value, expected[0])
    np.testing.assert_allclose(gradient, expected[1][1], atol=1e-12)
    assert gradient.layout is x.layout


def test_blocks_take_trees_and_keep_the_order_of_rows(rng) -> None:
    class Counting(nn.Module):
        def __init__(self, n: int) -> None:
            self.weight = gdt.asarray([float(n)])

        def __call__(self, x):
            return {"h": x["h"] * 2 + self.weight, "seen": [x["seen"][0] + 1]}

    mesh = gdt.create_mesh([("data", 2), ("stage", 2)])
    with gdt.default_mesh(mesh):
        model = nn.Pipelined([Counting(n) for n in range(2)], micro_batches=2)
    x = {"h": np.arange(8.0), "seen": [np.arange(8)]}
    out = model(x)
    assert out["h"].tolist() == [4 * n + 1.0 for n in range(8)]
    assert out["seen"][0].tolist() == [n + 2 for n in range(8)]
    gradient = gdt.grad(lambda m: gdt.sum(m(x)["h"] * np.arange(8.0)))(model)
    assert gradient["block.weight"].tolist() == [[56.0], [28.0]]


def test_stages_that_wait_make_no_gradient_nan() -> None:
    """They compute with rows of the batch, never with zeros, of which this block makes NaN."""

    class Inverse(nn.Module):
        def __init__(self) -> None:
            self.scale = gdt.asarray([2.0])

        def __call__(self, x):
            return self.scale / x

    mesh = gdt.create_mesh([("stage", 4)])
    with gdt.default_mesh(mesh):
        model = nn.Pipelined([Inverse() for _ in range(4)], micro_batches=2)
    with np.errstate(all="raise"):
        value, gradients = gdt.value_and_grad(lambda m: gdt.sum(m(np.ones(4))))(model)
    assert float(value) == 4.0
    assert gradients["block.scale"].tolist() == [[-2.0], [2.0], [-2.0], [2.0]]


def test_dropout_drops_other_elements_in_each_block() -> None:
    mesh = gdt.create_mesh([("stage", 2)])
    with gdt.default_mesh(mesh):
        blocks = [nn.Sequential(nn.Dense(64, 64, key=n), nn.Dropout(0.5, key=n)) for n in range(2)]
        model = nn.Pipelined(blocks, micro_batches=2)
    x = np.ones((4, 64), "float32")
    first, second = model(x).numpy(), model(x).numpy()
    assert 0.3 < (first == 0).mean() < 0.7
    assert (first != second).any()
    model.eval()
    np.testing.assert_array_equal(model(x), model(x))


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_recorded_step_drops_the_same_elements(blocks) -> None:
    mesh = gdt.create_mesh([("stage", 2)], blocks=blocks)
    x = gdt.ones((4, SIZE), layout=gdt.Layout([None, None], mesh))

    def sums(wrap) -> list[float]:
        with gdt.default_mesh(mesh):
            layers = [
                nn.Sequential(nn.Dense(SIZE, SIZE, key=n), nn.Dropout(0.5, key=n)) for n in (0, 1)
            ]
            model = nn.Pipelined(layers, micro_batches=2)
        step = wrap(lambda x: gdt.sum(model(x)))
        return [float(step(x)) for _ in range(5)]

    assert sums(gdt.function) == sums(lambda step: step)


# ---------------------------------------------------------------- what is sent and kept


@pytest.mark.parametrize(
    ("dims", "micro_batches", "repeats"),
    [
        ([("stage", 4)], 8, 1),
        ([("stage", 2)], 4, 2),
        ([("data", 2), ("stage", 2)], 4, 1),
        ([("stage", 2), ("data", 2)], 4, 2),
        ([("data", 2), ("stage", 2), ("model", 2)], 4, 1),
    ],
    ids=str,
)
def test_a_micro_batch_is_sent_once_across_each_border(dims, micro_batches, repeats) -> None:
    sizes = dict(dims)
    mesh = gdt.create_mesh(dims)
    model = nn.Pipelined(
        blocks_on(mesh, 4, dtype="float32"), "stage", micro_batches, repeats=repeats
    )
    layouts(mesh).apply(model)
    rows = 4 * micro_batches
    x = rows_on(mesh, np.random.default_rng(0), rows, "float32")
    with gdt.count_collectives() as counter:
        gdt.value_and_grad(loss)(model, x)
    stages, copies = sizes["stage"], sizes.get("model", 1)
    one = 4 * (rows // micro_batches) * TOKENS * SIZE * copies  # bytes of a micro-batch
    borders = 2 * micro_batches * (repeats * stages - 1) * one
    results = 2 * micro_batches * one * (stages - 1) // stages  # from the last stage to all
    exchanges = [c for c in counter if c.kind == "exchange"]
    assert sum(c.bytes for c in exchanges) == borders + results
    assert len(exchanges) == 2 * (micro_batches * repeats + stages - 2) + 2
    over_data = [c for c in counter if c.axes == ("data",)]  # of the gradients, once
    assert len(over_data) == ("data" in sizes)


def test_the_memory_of_a_stage_is_that_of_its_inputs() -> None:
    """With a checkpoint: per micro-batch its input at the stage, the rows of x, and a share of the
    results; without, all that blocks compute between."""
    mesh = gdt.create_mesh([("stage", 4)], blocks=4)

    def peak(micro_batches: int, checkpoint: bool) -> int:
        model = nn.Pipelined(
            blocks_on(mesh, dtype="float32"), "stage", micro_batches, checkpoint=checkpoint
        )
        x = rows_on(mesh, np.random.default_rng(0), 512 * micro_batches, "float32")
        gdt.value_and_grad(loss)(model, x)
        with gdt.testing.peak_memory(model) as memory:
            gdt.value_and_grad(loss)(model, x)
        return memory.peak

    one = 4 * 512 * TOKENS * SIZE
    assert peak(8, True) - peak(4, True) <= 4 * 3.5 * one
    assert peak(8, False) - peak(4, False) > 4 * 10 * one


# ---------------------------------------------------------------- what is refused


def _blocks(*options, mesh=(("stage", 2),)):
    with gdt.default_mesh(gdt.create_mesh(list(mesh))):
        return [nn.Dense(3, 3, key=n, **o) for n, o in enumerate(options)]


A, B = {"activation": "relu"}, {"activation": "tanh"}


class Moments(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.BatchNorm(3)

    def __call__(self, x):
        return self.norm(x)


def _moments():
    with gdt.default_mesh(gdt.create_mesh([("stage", 2)])):
        return nn.Pipelined([Moments(), Moments()], micro_batches=2)


X = np.ones((4, 3), "float32")
REFUSED = {
    "unlike options": (
        lambda: nn.Pipelined(_blocks(A, B)),
        ArgumentError,
        "block 1 differs from block 0 in activation",
    ),
    "unlike shapes": (
        lambda: nn.Pipelined([*_blocks(A), nn.Dense(3, 4, activation="relu")]),
        ArgumentError,
        "block 1 differs from block 0 in",
    ),
    "unlike classes": (
        lambda: nn.Pipelined([*_blocks(A), nn.LayerNorm(3)]),
        ArgumentError,
        "block 1 differs from block 0 in its class",
    ),
    "unlike functions": (
        lambda: nn.Pipelined(_blocks({"activation": lambda x: x}, {"activation": lambda x: -x})),
        ArgumentError,
        "differs from block 0 in activation",
    ),
    "no blocks": (lambda: nn.Pipelined([]), ArgumentError, "there are no blocks"),
    "no module": (
        lambda: nn.Pipelined([gdt.relu]),
        ArgumentError,
        "blocks is a list, not Sequence[gdt.nn.module.Module]",
    ),
    "no arrays": (
        lambda: nn.Pipelined([nn.Flatten(), nn.Flatten()]),
        ArgumentError,
        "the blocks have no arrays",
    ),
    "twice": (lambda: nn.Pipelined(_blocks(A) * 2), ArgumentError, "block 1 is in the list twice"),
    "unbuilt": (
        lambda: nn.Pipelined([nn.Dense(3), nn.Dense(3)]),
        ArgumentError,
        "block 0 finds its sizes at its first call",
    ),
    "count": (
        lambda: nn.Pipelined(_blocks(A, A, A)),
        ArgumentError,
        "3 blocks are no multiple of 2 stages",
    ),
    "repeats": (
        lambda: nn.Pipelined(_blocks(A, A), micro_batches=2, repeats=2),
        ArgumentError,
        "2 blocks are no multiple of 2 stages times 2 repeats",
    ),
    "few": (
        lambda: nn.Pipelined(_blocks(A, A, A, A), repeats=2),
        ArgumentError,
        "1 micro-batches are less than 2 stages",
    ),
    "zero": (
        lambda: nn.Pipelined(_blocks(A, A), micro_batches=0),
        ArgumentError,
        "micro_batches is 0",
    ),
    "axis": (lambda: nn.Pipelined(_blocks(A, A), "stages"), MeshError, "no mesh axis 'stages'"),
    "mesh": (
        lambda: nn.Pipelined(_blocks(A, A))(gdt.ones((4, 3), "float32")),
        MeshError,
        "x and the blocks are on two meshes",
    ),
    "rows": (
        lambda: nn.Pipelined(_blocks(A, A), micro_batches=3)(X),
        ShapeError,
        "3 micro-batches do not divide the rows of x",
    ),
    "scalar": (lambda: nn.Pipelined(_blocks(A, A))(1.0), ShapeError, "do not divide the rows of x"),
    "no rows": (
        lambda: nn.Pipelined(_blocks(A, A))(X[:0]),
        ShapeError,
        "do not divide the rows of x",
    ),
    "moments": (
        lambda: _moments()(X),
        ArgumentError,
        "the call of a block puts another array into norm.moving_mean",
    ),
    "moments of a step": (
        lambda: gdt.grad(lambda m: gdt.sum(m(X)))(_moments()),
        (ArgumentError, GradientError),
        "moving_",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named(name) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=re.escape(text)):
        call()


def test_blocks_that_change_shapes_are_named() -> None:
    class Wider(nn.Module):
        def __init__(self) -> None:
            self.weight = gdt.ones((3, 4))

        def __call__(self, x):
            return x @ self.weight

    with gdt.default_mesh(gdt.create_mesh([("stage", 2)])):
        model = nn.Pipelined([Wider(), Wider()])
    with pytest.raises(ShapeError, match="a block returns other arrays than it gets"):
        model(np.ones((2, 3)))


def test_stacked_arrays_are_made_where_they_lie() -> None:
    """No device holds the arrays of more blocks than its own, once they are made."""
    mesh = gdt.create_mesh([("stage", 4)], blocks=4)
    model = nn.Pipelined(blocks_on(mesh, dtype="float32"), "stage")
    whole = Chain(blocks_on(mesh, dtype="float32"))
    for name, w in model.parameters().items():
        assert w.layout.sharding_specs[0] == "stage"
        assert w.blocks[0].shape[1] == 1
        rows = [whole.parameters()[name.replace("block.", f"blocks.{n}.")] for n in range(COUNT)]
        np.testing.assert_array_equal(w, np.stack([r.numpy() for r in rows]))
    assert "4 blocks over stage 4, 1 micro-batches" in repr(model)


def test_rows_that_have_been_stacked_are_free() -> None:
    mesh = gdt.create_mesh([("stage", 2)], blocks=2)
    rows = [gdt.ones((3,), device=mesh) for _ in range(4)]
    held = [weakref.ref(row) for row in rows]
    gc.disable()  # no cycles either
    try:
        stacked = stacked_rows(rows, gdt.Layout(["stage", None], mesh))
        del rows
        assert stacked.shape == (4, 3) and stacked.numpy().sum() == 12
        assert [row() for row in held] == [None] * 4
    finally:
        gc.enable()
