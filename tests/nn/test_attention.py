"""Attention: every split of its operands, what a ring sends and holds, and the layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gdt
from gdt import Layout, create_mesh, nn
from gdt.errors import ArgumentError, DtypeError, GradientError, LayoutError, ShapeError
from gdt.nn.functions.attention import blocks as attention_blocks
from gdt.nn.functions.attention import loops as attention_loops
from gdt.testing import Oracle, Sample
from tests.samples.attention import attention


def meshes() -> list[Any]:
    return [create_mesh([("a", 2), ("b", 4)], blocks=blocks) for blocks in (1, 8)]


Q, K, RING = ["b", None], [None, None], [("a", "b"), None]
SPLITS = [
    [K, K, K], [Q, Q, Q], [RING, RING, RING], [Q, K, K], [K, Q, Q], [["a", "b"], Q, ["b", "a"]],
]  # fmt: skip


@pytest.mark.parametrize("mesh", meshes(), ids=str)
def test_every_split_of_positions_and_heads_gives_one_result_and_its_gradients(
    mesh: Any, rng: np.random.Generator
) -> None:
    normal = rng.standard_normal
    causal = Sample((*normal((2, 2, 3, 13, 4)), normal((2, 3, 13, 5))), {"causal": True}, attention)
    oracle = Oracle(gdt.attention, causal)
    for split in SPLITS:
        oracle.check(mesh, [Layout([None, None, *specs], mesh) for specs in split])
    for specs in (["a", "b", None, None], ["a", None, "b", None], [None, "a", "b", None]):
        oracle.check(mesh, [Layout(specs, mesh)] * 3)


@pytest.mark.parametrize("mesh", meshes(), ids=str)
def test_masks_and_shared_keys_in_every_split(mesh: Any, rng: np.random.Generator) -> None:
    normal = rng.standard_normal
    mask = rng.random((2, 1, 5, 11)) < 0.5
    mask[0, 0, 2] = False  # a query that sees no key
    arrays = normal((2, 4, 5, 4)), normal((2, 1, 11, 4)), normal((2, 1, 11, 3)), mask
    plain = Oracle(gdt.attention, Sample(arrays, {"scale": 0.4}, attention))
    dropped = Oracle(gdt.attention, Sample(arrays, {"dropout": 0.3, "key": 5}, attention))
    for split in SPLITS:
        layouts = [Layout([None, None, *specs], mesh) for specs in split]
        plain.check(mesh, [*layouts, Layout.replicated(mesh, 4)])
        dropped.check(mesh, [*layouts, Layout(["a", None, None, "b"], mesh)])
    heads = Layout([None, ("b", "a"), None, None], mesh)  # more parts than heads
    batch = Layout(["b", None, None, None], mesh)
    dropped.check(mesh, [heads, batch, batch, Layout.replicated(mesh, 4)])


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_scores_equal_the_whole_matrix(
    causal: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HOST_BLOCK", (4, 3)), ("HOST_CAUSAL_BLOCK", (4, 3)), ("HOST_SCORES", 24)):
        monkeypatch.setattr(attention_blocks, name, value)
    static = {"causal": causal, "dropout": 0.25, "key": 2}
    sample = Sample(tuple(rng.standard_normal((3, 2, 3, 13, 4))), static, attention)
    mesh = create_mesh([("a", 3)])
    oracle = Oracle(gdt.attention, sample)
    for specs in ([None] * 4, [None, None, "a", None]):
        oracle.check(mesh, [Layout(specs, mesh)] * 3)


@pytest.mark.parametrize("causal", [True, False])
def test_compiled_loops_compute_the_same(
    causal: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = rng.random((2, 3, 130, 70)) < 0.5
    mask[0, 0, 2] = False  # a query that sees no key
    g, arrays = rng.standard_normal((2, 3, 130, 8)), rng.standard_normal((3, 2, 3, 130, 8))

    def results(dtype: str, fewest: float) -> list[np.ndarray]:
        monkeypatch.setattr(attention_loops, "FEWEST_SCORES", fewest)
        q, k, v, cotangent = (a.astype(dtype) for a in (*arrays, g))
        call = lambda a: gdt.attention(*a, mask, causal=causal)
        inputs = [gdt.asarray(a) for a in (q, k[..., :70, :], v[..., :70, :])]
        gradients = gdt.grad(lambda a: gdt.sum(call(a) * cotangent))(inputs)
        return [np.asarray(a) for a in (call(inputs), *gradients)]

    for name in ("HOST_BLOCK", "HOST_CAUSAL_BLOCK"):
        monkeypatch.setattr(attention_blocks, name, (64, 32))
    exact, bodies, loops = (
        results("float64", 1),
        results("float32", math.inf),
        results("float32", 1),
    )
    for a, b, c in zip(exact, bodies, loops, strict=True):
        atol = 4 * np.abs(a - b).max()  # of as many roundings
        np.testing.assert_allclose(c, a, rtol=0, atol=atol)


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize("size", [32, 27])
def test_a_ring_sends_what_theory_says(size: int, blocks: int) -> None:
    """Forward t - 1 permutes of [K V]; backward as many of [K V] and of [dK dV]; nothing else."""
    mesh = create_mesh([("context", 8)], blocks=blocks)
    layout = Layout([None, None, "context", None], mesh)
    arrays = [gdt.random.normal((2, 4, size, 16), key=i, layout=layout) for i in range(3)]
    nbytes = 2 * 8 * arrays[0].type.local_nbytes  # of keys and values together, with their padding
    run = lambda *arrays: gdt.attention(*arrays, causal=True)
    rows = gdt.explain(lambda: run(*arrays)).rows
    assert [c.bytes for row in rows for c in row.collectives] == [nbytes] * 7
    loss = lambda *arrays: gdt.sum(run(*arrays))
    rows = gdt.explain(lambda: gdt.grad(loss, argnums=(0, 1, 2))(*arrays)).rows
    sent = [(c.kind, c.bytes) for row in rows for c in row.collectives]
    assert sent == [*[("exchange", nbytes)] * 21, ("all_reduce", 2 * 7 * 8)]  # and the loss


@pytest.mark.parametrize(("blocks", "share"), [(8, 2 / 8), (1, 1)])
def test_a_split_sequence_never_holds_more_than_its_share(blocks: int, share: float) -> None:
    """The 128 MiB of scores are never stored; the largest block is keys and values of one tile, or
    all keys where all tiles share a block."""
    stored_bytes = lambda b: (
        b.itemsize * math.prod(n for n, s in zip(b.shape, b.strides, strict=True) if s)
    )
    mesh = create_mesh([("context", 8)], blocks=blocks)
    layout = Layout([None, "context", None], mesh)
    arrays = [gdt.random.normal((1, 4096, 8), key=i, layout=layout) for i in range(3)]
    sizes: list[int] = []

    class Largest(gdt.observe.Observer):
        wants_parts = True

        def on_op(self, op: Any, args: Any, static: Any, out: Any) -> None:
            outs = out if isinstance(out, tuple) else (out,)
            arrays = [a for a in outs if isinstance(a, gdt.DistributedArray)]
            sizes.extend(stored_bytes(block) for a in arrays for block in a.blocks)

    with gdt.observe.observing(Largest()):
        gdt.grad(lambda *a: gdt.sum(gdt.attention(*a)), argnums=(0, 1, 2))(*arrays)
    assert max(sizes) == share * arrays[0].type.nbytes


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("lead", [(5, 2), (3, 1), (1, 1), (2,)])
def test_queries_may_differ_in_masks_alone(lead: tuple[int, ...], blocks: int) -> None:
    rng, mesh = np.random.default_rng(0), gdt.create_mesh([("x", 4)], blocks=blocks)
    q, k, v = rng.standard_normal((3, *lead[2:], 6, 4))
    mask = rng.random((*lead, 6, 6)) < 0.7
    split = [
        gdt.asarray(a, layout=Layout([None] * (a.ndim - 2) + ["x", None], mesh)) for a in (q, k, v)
    ]
    g = rng.standard_normal((*np.broadcast_shapes(lead, q.shape[:-2]), 6, 4))
    out, pull = gdt.vjp(lambda q, k, v: gdt.attention(q, k, v, mask), *split)

    def whole(q: Any, k: Any, v: Any) -> Any:
        scores = gdt.where(gdt.asarray(mask), q @ k.mT / 2, -1e30)
        return gdt.softmax(scores) @ v

    expected, pull_whole = gdt.vjp(whole, *map(gdt.asarray, (q, k, v)))
    np.testing.assert_allclose(out.numpy(), expected.numpy(), atol=1e-12)
    for a, b in zip(pull(gdt.asarray(g)), pull_whole(gdt.asarray(g)), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-12)


@pytest.mark.parametrize("blocks", [1, 4])
def test_keys_and_values_may_differ_in_heads(blocks: int, rng: np.random.Generator) -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=blocks)
    operands = [rng.standard_normal(shape) for shape in ((2, 3, 6, 4), (1, 3, 6, 4), (2, 1, 6, 2))]
    layout = Layout([None, None, "x", None], mesh)
    oracle = Oracle(gdt.attention, Sample(tuple(operands), {"causal": True}, attention))
    oracle.check(mesh, [layout] * 3)


def test_no_queries_have_no_results() -> None:
    keys = gdt.ones((3, 4))
    assert gdt.attention(keys[:0], keys, keys).shape == (0, 4)
    assert gdt.attention(gdt.ones((0, 3, 4)), keys, keys).shape == (0, 3, 4)
    split = gdt.relayout(keys, Layout(["x", None], gdt.create_mesh([("x", 2)])))
    for k in (keys, split):
        for shape in ((0, 3), (2, 1, 0, 3)):  # of masks
            mask = gdt.ones(shape, "bool", layout=Layout.replicated(k.mesh, len(shape)))
            q = gdt.zeros((*shape[:-2], 0, 4), layout=Layout.replicated(k.mesh, len(shape)))
            with gdt.GradientTape() as tape:
                tape.watch(k)
                found = gdt.attention(q, k, k, mask=mask)
                total = gdt.sum(found)
            assert found.shape == q.shape
            assert tape.gradient(total, k).tolist() == [[0.0] * 4] * 3


def test_the_gradients_of_dropout_are_those_of_the_whole_matrix_with_the_same_weights_dropped(
    rng: np.random.Generator,
) -> None:
    mesh = create_mesh([("a", 4)], blocks=4)
    key = gdt.random.key(11)
    split = Layout([None, "a", None], mesh)
    arrays = [gdt.asarray(x, layout=split) for x in rng.standard_normal((3, 2, 10, 4))]

    def whole(q: Any, k: Any, v: Any) -> Any:
        weights = gdt.softmax(q @ k.mT / 2)
        kept = gdt.random.bernoulli(weights.shape, 0.4, key=key, layout=Layout([None] * 3, mesh))
        return weights * kept / 0.4 @ v

    ring = lambda q, k, v: gdt.attention(q, k, v, dropout=0.6, key=key)
    for run, dense in ((ring, whole), (gdt.function(ring), whole)):
        results = [
            gdt.grad(lambda *x, f=f: gdt.sum(f(*x) ** 2), argnums=(0, 1, 2))(*arrays)
            for f in (run, dense)
        ]
        for own, expected in zip(*results, strict=True):
            np.testing.assert_allclose(own.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)


def test_a_layer_drops_other_weights_in_every_step_of_training_and_none_otherwise() -> None:
    plain = nn.MultiHeadAttention(2, 8, key=1)
    layer = nn.MultiHeadAttention(2, 8, key=1, dropout=0.5)
    mesh = create_mesh([("a", 2), ("b", 2)], blocks=4)
    x = gdt.random.normal((2, 6, 8), dtype="float32", key=2)
    assert np.array_equal(layer(x, training=False), plain(x))
    first, second = layer(x).numpy(), layer(x).numpy()
    assert not np.allclose(first, second)
    layer.dropout.calls = 0
    for specs in (["a", "b", None], [None, "a", "b"]):
        again = layer(gdt.relayout(x, Layout(specs, mesh))).numpy()
        np.testing.assert_allclose(again, first, rtol=1e-5, atol=1e-6)
        layer.dropout.calls = 0
    assert list(layer.parameters()) == list(plain.parameters())
    assert set(layer.state()) - set(plain.state()) == {"dropout.key"}
    layer.eval()
    assert np.array_equal(layer(x), plain(x))


def test_half_precision_is_computed_in_float32(rng: np.random.Generator) -> None:
    arrays = rng.standard_normal((3, 2, 9, 8)).astype(np.float16)
    y = gdt.attention(*arrays, causal=True)
    assert y.dtype == np.float16
    whole = attention(*arrays.astype(np.float64), causal=True)
    np.testing.assert_allclose(y.numpy(), whole, atol=2e-3)
    assert np.isfinite(gdt.attention(*(arrays * 200), causal=True).numpy()).all()


def reference(layer: Any, x: np.ndarray, mask: Any = None) -> np.ndarray:
    """The layer in NumPy: (batch, positions, size)."""
    state = {name: a.numpy() for name, a in layer.state().items()}
    project = lambda part, x: x @ state[f"{part}_weight"] + state.get(f"{part}_bias", 0)
    split = lambda y: y.reshape(*y.shape[:2], -1, layer.head_size).swapaxes(1, 2)
    q, k, v = (split(project(part, x)) for part in ("query", "key", "value"))
    if layer.rotary:
        half = layer.head_size // 2
        angles = np.arange(x.shape[1])[:, None] / 10_000 ** (np.arange(half) / half)
        turn = np.exp(1j * angles)
        complex_of = lambda y: (y[..., :half] + 1j * y[..., half:]) * turn
        q, k = (np.concatenate([z.real, z.imag], -1) for z in map(complex_of, (q, k)))
    k, v = (a.repeat(layer.heads // layer.key_heads, axis=1) for a in (k, v))
    y = attention(q, k, v, None if mask is None else mask[:, None], layer.causal)
    return project("output", y.swapaxes(1, 2).reshape(*x.shape[:2], -1))


def test_turned_positions_are_part_of_recorded_steps() -> None:
    layer = nn.MultiHeadAttention(2, 8, rotary=True, causal=True, key=0)
    x = gdt.random.normal((2, 5, 8), dtype="float32")
    step = gdt.function(layer.__call__)
    for _ in range(3):
        np.testing.assert_array_equal(step(x), layer(x))


@pytest.mark.parametrize("mesh", meshes(), ids=str)
@pytest.mark.parametrize(
    "static",
    [
        {"causal": True, "rotary": True},
        {"key_heads": 2, "use_bias": False, "head_size": 6},
    ],
)
def test_multi_head_attention_in_numpy_and_split(
    mesh: Any, static: Any, rng: np.random.Generator
) -> None:
    layer = nn.MultiHeadAttention(4, 8, key=1, dtype=np.float64, **static)
    lazy = nn.MultiHeadAttention(4, key=1, dtype=np.float64, **static)
    x, mask = rng.standard_normal((2, 6, 8)), rng.random((2, 6, 6)) < 0.8
    mask = None if static.get("causal") else mask
    expected = reference(layer, x, mask)
    np.testing.assert_allclose(lazy(x, mask=mask).numpy(), expected, atol=1e-12)
    assert list(lazy.parameters()) == list(layer.parameters())
    columns, rows = Layout([None, "a"], mesh), Layout(["a", None], mesh)
    parts = dict.fromkeys(("query_weight", "key_weight", "value_weight"), columns)
    parts["output_weight"] = rows
    tensor = nn.MultiHeadAttention(4, 8, key=1, dtype=np.float64, layouts=parts, **static)
    for specs in ([None, None, None], [None, "b", None], ["b", None, None]):
        y = tensor(gdt.asarray(x, layout=Layout(specs, mesh)), mask=mask)
        np.testing.assert_allclose(y.numpy(), expected, atol=1e-12)


def test_the_heads_of_a_context() -> None:
    layer = nn.MultiHeadAttention(2, 4, key=1)
    assert layer(gdt.ones((2, 3, 4), "float32"), gdt.ones((2, 5, 4), "float32")).shape == (2, 3, 4)
    assert repr(layer).startswith("MultiHeadAttention(4, 2 heads)  80 parameters")


@pytest.mark.parametrize(
    ("run", "error_type", "message"),
    [
        (
            lambda x: gdt.attention(x, x[:, :2], x),
            ShapeError,
            "attention: queries have 4 features, and keys 2",
        ),
        (lambda x: gdt.attention(x, x, x[:2]), ShapeError, "there are 3 keys and 2 values"),
        (lambda x: gdt.attention(x, x[:0], x[:0]), ShapeError, "there are no keys"),
        (lambda x: gdt.attention(x, x, x, mask=x), DtypeError, "attention: mask is not bool"),
        (lambda x: gdt.attention(x, x, x, mask=x[:2] > 0), ShapeError, "a mask of (2, 4)"),
        (
            lambda x: gdt.attention(gdt.stack([x, x]), gdt.stack([x] * 3), x),
            ShapeError,
            "leading axes (2,), (3,), () do not broadcast",
        ),
        (
            lambda x: nn.MultiHeadAttention(2)(x[None], mask=np.ones((1, 2, 3, 3), bool)),
            ShapeError,
            "the mask has 4 axes, and x 3",
        ),
        (lambda x: gdt.attention(x.astype(int), x, x), DtypeError, "not floating-point"),
        (lambda x: gdt.attention(x, x, x, dropout=1, key=0), ArgumentError, "dropout is 1"),
        (lambda x: gdt.attention(x, x, x, dropout=0.5), ArgumentError, "dropout has no key"),
        (
            lambda x: gdt.attention(x, x, x, dropout=0.5, key=x),
            ArgumentError,
            "key is float64[3, 4]",
        ),
        (lambda x: gdt.attention(x, x, x, dropout=0.5, key=-1), ArgumentError, "key is int64[]"),
        (lambda x: gdt.attention(x, x, x, dropout=0.5, key=True), ArgumentError, "key is bool[]"),
        (nn.MultiHeadAttention(3), ArgumentError, "3 heads do not divide 4 features"),
        (lambda x: nn.MultiHeadAttention(3, key_heads=2), ArgumentError, "2 heads of keys do not"),
        (
            lambda x: nn.MultiHeadAttention(2, layouts={"query": Layout([None], x.mesh)}),
            LayoutError,
            "'query' is no parameter",
        ),
        (lambda x: nn.rotary(np.ones((3, 3))), ShapeError, "x has 3 features, which are not pairs"),
    ],
)
def test_errors_name_what_does_not_fit(run: Any, error_type: Any, message: str) -> None:
    with pytest.raises(error_type) as caught:
        run(gdt.ones((3, 4)))
    assert message in str(caught.value)


def test_statics_may_be_arrays_of_one_number() -> None:
    x = gdt.random.normal((3, 4), key=0)
    want = gdt.attention(x, x, x, causal=True, scale=2.0, dropout=0.5, key=1)
    found = gdt.attention(
        x, x, x, causal=np.array(True), scale=np.array(2), dropout=np.array(0.5), key=1
    )  # fmt: skip
    assert found.tolist() == want.tolist()


class Gpt(nn.Module):
    """A decoder of two blocks, pre-norm, with learned positions and a head tied to the table."""

    def __init__(self, vocabulary: int = 11, size: int = 8, length: int = 12) -> None:
        self.tokens = nn.Embedding(vocabulary, size, key=1, dtype=np.float64)
        self.positions = nn.Embedding(length, size, key=2, dtype=np.float64)
        self.blocks = [
            nn.Sequential(
                nn.Residual(
                    nn.Sequential(
                        nn.LayerNorm(size, dtype=np.float64),
                        nn.MultiHeadAttention(2, size, causal=True, key=3 + i, dtype=np.float64),
                    )
                ),
                nn.Residual(
                    nn.Sequential(
                        nn.LayerNorm(size, dtype=np.float64),
                        nn.Dense(size, 4 * size, activation="gelu", key=5 + i, dtype=np.float64),
                        nn.Dense(4 * size, size, key=7 + i, dtype=np.float64),
                    )
                ),
            )
            for i in range(2)
        ]
        self.norm = nn.LayerNorm(size, dtype=np.float64)

    def __call__(self, ids: Any) -> Any:
        x = self.tokens(ids)
        layout = Layout.of(ids.mesh, (ids.layout.dims[1],))
        x = x + self.positions(gdt.arange(ids.shape[1], layout=layout))
        for block in self.blocks:
            x = block(x)
        return self.tokens.logits(self.norm(x))


TENSOR = {
    r".*\.(query|key|value)_weight": [None, "model"],
    r".*\.(query|key|value)_bias": ["model"],
    r".*\.output_weight": ["model", None],
    r".*\.layers\.1\.weight": [None, "model"],  # of the MLP, up
    r".*\.layers\.1\.bias": ["model"],
    r".*\.layers\.2\.weight": ["model", None],  # and down
    r"tokens\.weight": ["model", None],
}


@pytest.mark.parametrize("blocks", [1, 8])
def test_a_transformer_learns_the_same_in_every_layout(
    blocks: int, rng: np.random.Generator
) -> None:
    mesh = create_mesh([("data", 4), ("model", 2)], blocks=blocks)
    tokens = rng.integers(0, 11, (4, 13))
    curves = []
    for specs, layouts in (
        ([None, None], {}),
        (["data", None], {}),
        (["data", None], TENSOR),
        (["data", "model"], {}),
        ([None, ("data", "model")], {}),
    ):
        layout_map = nn.LayoutMap(mesh)
        layout_map.update(layouts)
        with layout_map.scope():
            model = Gpt()
        layout, optimizer = Layout(specs, mesh), gdt.optim.SGD(0.1)
        x, y = (gdt.asarray(t, layout=layout) for t in (tokens[:, :-1], tokens[:, 1:]))
        losses = []
        for _ in range(3):
            with gdt.GradientTape() as tape:
                loss = nn.losses.sparse_softmax_cross_entropy(y, model(x))
            optimizer.update(model, tape.gradient(loss, model))
            losses.append(float(loss))
        curves.append(losses)
    np.testing.assert_allclose(curves[1:], [curves[0]] * (len(curves) - 1), rtol=1e-9)
    assert curves[0][-1] < curves[0][0]


def test_a_second_derivative_says_what_to_write() -> None:
    inner = gdt.grad(lambda x: gdt.sum(gdt.attention(x, x, x) ** 2))
    with pytest.raises(GradientError, match=r"(?s)attention: its gradient.*gdt.softmax"):
        gdt.grad(lambda x: gdt.sum(inner(x)))(gdt.ones((4, 3)))
