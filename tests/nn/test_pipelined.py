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


class Head(nn.Module):
    """The squared errors of rows."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(
            nn.RMSNorm(SIZE, dtype="float64"), nn.Dense(SIZE, SIZE, key=500, dtype="float64")
        )

    def __call__(self, out, y):
        return gdt.mean((self.layers(out) - y) ** 2, axis=(1, 2))


class Headed(nn.Module):
    """A model whose results a head takes, as that of a pipeline does."""

    def __init__(self, chain, head) -> None:
        self.chain, self.head = chain, head

    def __call__(self, x, *others):
        return self.head(self.chain(x), *others)


def head_on(mesh):
    with gdt.default_mesh(mesh):
        return Head()


def blocks_on(mesh, count: int = COUNT, **options):
    with gdt.default_mesh(mesh):
        return [Block(n, **options) for n in range(count)]


def layouts(mesh, kept=None) -> nn.LayoutMap:
    """Return a map that splits blocks over `stage`, features over `model` if the mesh has it."""
    used = lambda *specs: (
        nn.Sharded(kept=kept, used=["stage", *specs]) if kept else ["stage", *specs]
    )
    entries = nn.LayoutMap(mesh, allow_unmatched=True)
    entries["head.*"] = nn.Sharded(kept=kept)
    if "model" in mesh.axis_names:
        entries[f"{COLUMNS}weight"] = used(None, "model")
        entries[f"{COLUMNS}bias"] = used("model")
        entries[f"{LINES}weight"] = used("model", None)
        others = rf"(?!{COLUMNS}(weight|bias)|{LINES}weight|head)"
        entries[f"{others}.*"] = used(...)
    else:
        entries["(?!head).*"] = used(...)
    return entries


def rows_on(mesh, rng, rows: int = ROWS, dtype: str = "float64"):
    x = rng.normal(size=(rows, TOKENS, SIZE)).astype(dtype)
    split = "data" if "data" in mesh.axis_names else None
    return gdt.asarray(x, layout=gdt.Layout([split, None, None], mesh))


def loss(model, x, *targets):
    return gdt.mean(model(x, *targets) if targets else (model(x) - 1) ** 2)


def trained(model, batch, steps: int) -> list[float]:
    optimizer = gdt.optim.Adam(1e-2).init(model)

    def step(*batch):
        value, gradients = gdt.value_and_grad(loss)(model, *batch)
        optimizer.update(model, gradients)
        return value

    run = gdt.function(step, verify=50)
    return [float(run(*batch)) for _ in range(steps)]


def batch_on(mesh, head: bool):
    """Return x, and what a head compares its results with."""
    rng = np.random.default_rng(3)
    x = rows_on(mesh, rng)
    return (x, 0.1 * rows_on(mesh, rng)) if head else (x,)


MESHES = [
    ([("stage", 4)], None),
    ([("data", 2), ("stage", 2)], None),
    ([("stage", 2), ("data", 2)], "data"),
    ([("stage", 2), ("model", 2)], None),
    ([("data", 2), ("stage", 2), ("model", 2)], "data"),
]


@functools.cache
def trained_on_one(head: bool) -> tuple[list[float], dict[str, np.ndarray]]:
    mesh = gdt.create_mesh([("one", 1)])
    model = Headed(Chain(blocks_on(mesh)), head_on(mesh)) if head else Chain(blocks_on(mesh))
    losses = trained(model, batch_on(mesh, head), 100)
    return losses, {name: w.numpy() for name, w in model.parameters().items()}


@pytest.mark.parametrize(("dims", "kept"), MESHES, ids=str)
@pytest.mark.parametrize(
    ("steps", "apart", "head"),
    [
        pytest.param(100, False, False, marks=pytest.mark.networks_full),
        pytest.param(100, False, True, marks=pytest.mark.networks_full),
        (3, False, False),
        (2, True, True),
    ],
)
def test_steps_are_those_of_one_device_on_every_mesh(dims, kept, steps, apart, head) -> None:
    check_steps(dims, kept, steps, apart, head)


def test_a_hundred_steps_are_those_of_one_device() -> None:
    check_steps(*MESHES[-1], 100, False, True)


def check_steps(dims, kept, steps, apart, head) -> None:
    repeats = 2 if dict(dims)["stage"] == 2 and not apart else 1
    mesh = gdt.create_mesh(dims, blocks=int(np.prod([n for _, n in dims])) if apart else None)
    own_head = head_on(mesh) if head else None
    model = nn.Pipelined(blocks_on(mesh), "stage", 4, repeats=repeats, head=own_head)
    layouts(mesh, kept).apply(model)
    losses = trained(model, batch_on(mesh, head), steps)
    expected, weights = trained_on_one(head)
    np.testing.assert_allclose(losses, expected[:steps], rtol=1e-9)
    if steps < len(expected):
        return
    assert losses[-1] < 0.2 * losses[0]
    order = [0, 2, 1, 3] if repeats == 2 else [0, 1, 2, 3]
    chain = "chain." if head else ""
    for name, w in model.parameters().items():
        rows = [weights.get(name.replace("block.", f"{chain}blocks.{n}.")) for n in order]
        whole = weights[name] if name.startswith("head.") else np.stack(rows)
        np.testing.assert_allclose(w, whole, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 12])
def test_gradients_of_arguments_and_any_number_of_micro_batches(
    rng, checkpoint, micro_batches
) -> None:
    mesh = gdt.create_mesh([("stage", 3), ("data", 2)])
    head = checkpoint == bool(micro_batches % 2)
    batch = [rows_on(mesh, rng, 12) for _ in range(1 + head)]
    chain, own_head = Chain(blocks_on(mesh, 3)), head_on(mesh) if head else None
    model = nn.Pipelined(
        blocks_on(mesh, 3), "stage", micro_batches, checkpoint=checkpoint, head=own_head
    )
    arguments = tuple(range(len(batch) + 1))
    evaluated = gdt.value_and_grad(loss, arguments)
    value, (of_model, *gradients) = evaluated(model, *batch)
    expected, (of_chain, *others) = evaluated(Headed(chain, own_head) if head else chain, *batch)
    np.testing.assert_allclose(value, expected)
    for gradient, other, x in zip(gradients, others, batch, strict=True):
        np.testing.assert_allclose(gradient, other, atol=1e-12)
        assert gradient.layout is x.layout
    for name in [name for name in of_model if name.startswith("head.")]:
        np.testing.assert_allclose(of_model[name], of_chain[name], atol=1e-12)


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


def test_a_head_uses_nothing_of_other_stages() -> None:
    """Not even in products of zero and infinity: here they divide by zero."""

    class Logarithm(nn.Module):
        def __init__(self) -> None:
            self.scale = gdt.asarray([2.0])

        def __call__(self, out, y):
            return {"logarithm": gdt.log(self.scale * out), "of y": [y["of"] / out]}

    mesh = gdt.create_mesh([("stage", 2)])
    with gdt.default_mesh(mesh):
        blocks = [nn.Dense(1, 1, initializer="ones", dtype="float64") for _ in range(2)]
        for block, bias in zip(blocks, (-1.0, 4.0), strict=True):
            block.bias = gdt.asarray([bias])
        model = nn.Pipelined(blocks, micro_batches=2, head=Logarithm())
    x = np.ones((4, 1))
    with np.errstate(all="ignore"):
        out = model(x, {"of": 4 * x})
        gradients = gdt.grad(lambda m: gdt.sum(m(x, {"of": x})["logarithm"]))(model)
    np.testing.assert_allclose(out["logarithm"], np.full((4, 1), np.log(8.0)))
    assert out["of y"][0].tolist() == [[1.0]] * 4
    assert gradients["block.bias"].tolist() == [[1.0], [1.0]]
    assert gradients["head.scale"].tolist() == [2.0]


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


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_head_leaves_losses_to_send_to_all_stages(stages, repeats) -> None:
    micro_batches, rows, size = 8, 8, 64
    mesh = gdt.create_mesh([("stage", stages)])
    with gdt.default_mesh(mesh):
        blocks = [nn.Residual(nn.Dense(size, size, key=n)) for n in range(stages * repeats)]
    model = nn.Pipelined(blocks, "stage", micro_batches, repeats=repeats, head=squared_errors)
    x = gdt.ones((micro_batches * rows, size), "float32", device=mesh)
    with gdt.count_collectives() as counter:
        gdt.value_and_grad(loss)(model, x, x)
    one = 4 * rows * size  # bytes of a micro-batch
    borders = 2 * micro_batches * (repeats * stages - 1) * one  # point to point
    losses = 2 * micro_batches * 4 * rows * (stages - 1) // stages
    exchanged = sum(c.bytes for c in counter if c.kind == "exchange")
    assert exchanged == borders + losses <= 1.1 * borders
    assert {c.kind for c in counter if c.bytes} <= {"exchange", "all_reduce"}
    assert sum(c.bytes for c in counter if c.kind == "all_reduce") < 100  # of the mean


def squared_errors(out, y):
    return gdt.mean((out - y) ** 2, axis=-1)


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


def _tied():
    blocks = _blocks(A, A)
    return nn.Pipelined(blocks, head=nn.Sequential(nn.Flatten(), blocks[1]))


def _headed(head, *others, blocks=2):
    return lambda: nn.Pipelined(_blocks(*[A] * blocks), micro_batches=2, head=head)(X, *others)


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
    "more arrays": (
        _headed(None, X, X),
        ArgumentError,
        "without a head it takes x alone, and 2 more are given",
    ),
    "mean of a head": (
        _headed(lambda out, y: gdt.mean(out - y), X),
        ShapeError,
        "the head returns no array of the 2 rows of a micro-batch",
    ),
    "head's array of elsewhere": (
        _headed(lambda out: gdt.ones(2)),
        ShapeError,
        "the head returns no array of the 2 rows of a micro-batch",
    ),
    "rows of targets": (
        _headed(squared_errors, X[:2]),
        ShapeError,
        "argument 2 has an array of 2 rows, and x one of 4",
    ),
    "mesh of targets": (
        _headed(squared_errors, gdt.ones((4, 3), "float32")),
        MeshError,
        "argument 2 and the blocks are on two meshes",
    ),
    "mesh of a head": (
        _headed(nn.Dense(3, 1)),
        MeshError,
        "head.weight and the blocks are on two meshes",
    ),
    "unbuilt head": (
        _headed(nn.Dense(1)),
        ArgumentError,
        "the head finds its sizes at its first call",
    ),
    "tied": (_tied, ArgumentError, "layers.1.weight of the head is weight of a block"),
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
