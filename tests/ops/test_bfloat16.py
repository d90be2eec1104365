"""bfloat16: stored in 16 bits, computed with in float32, wherever a dtype is taken."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import gdt
from gdt import Layout, create_mesh, nn, optim
from gdt.array.array import DistributedArray
from gdt.array.registry import FUNCTIONS
from gdt.errors import DtypeError, GdtError
from gdt.sharding.dtypes import BFLOAT16
from gdt.state.trees import leaves
from gdt.testing import Sample, assert_consistent, choices, layouts, placed
from tests.programs.test_cuda_graph import graph_of
from tests.samples import SAMPLES
from tests.strict import engine

engine.register()
MESHES = [create_mesh([("a", 2), ("b", 2)], blocks=n) for n in (1, 4)]
GPUS = engine.mesh({"a": 2, "b": 2}, 2)
EPSILON = 2.0**-7
BY_RESOLUTION = {
    "nextafter", "spacing", "view", "viewed", "viewed_in_parts", "viewed_together",
}  # of the dtype itself, or by its bits  # fmt: skip
IN_FLOAT32 = {
    "softmax_statistics",
    "cross_entropy_of_split",
    "fused_cross_entropy",
    "astype",
    "moments_of_numbers",
}


def rounded(sample: Sample, dtype: Any) -> list[np.ndarray]:
    """The arrays of a sample with floating-point numbers that bfloat16 holds, in a dtype."""
    return [a.astype(BFLOAT16).astype(dtype) if a.dtype.kind == "f" else a for a in sample.arrays]


def values(out: Any) -> list[np.ndarray]:
    return [x.numpy() for x in leaves(out) if isinstance(x, DistributedArray)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mesh", [*MESHES, GPUS], ids=["one block", "four blocks", "two GPUs"])
def test_functions_of_bfloat16_are_those_of_float32_rounded(mesh: gdt.Mesh) -> None:
    count, one = 0, create_mesh([("one", 1)])
    for name in sorted(SAMPLES.keys() - BY_RESOLUTION):
        function, number = FUNCTIONS[name], zlib.crc32(name.encode())
        samples = [s for s in SAMPLES[name] if any(a.dtype.kind == "f" for a in s.arrays)]
        for sample in samples[number % len(samples) :][:1] if samples else ():
            wide = [gdt.asarray(a, device=one) for a in rounded(sample, np.float32)]
            with gdt.default_mesh(one), np.errstate(all="ignore"):
                expected = values(function(*sample.with_arrays(wide), **sample.static))
            *_, chosen = choices(mesh, [a.ndim for a in sample.arrays], limit=2, seed=number)
            arrays = [
                gdt.asarray(a, layout=w.resolved)
                for a, w in zip(rounded(sample, BFLOAT16), chosen, strict=True)
            ]
            with gdt.default_mesh(mesh), np.errstate(all="ignore"):
                try:
                    out = function(*sample.with_arrays(arrays), **sample.static)
                except DtypeError as refusal:
                    assert "is of dtype bfloat16" in str(refusal), name
                    assert function.__module__.startswith("gdt.linalg"), name
                    continue
            for x in leaves(out):
                if isinstance(x, DistributedArray):
                    assert_consistent(x)
            for got, want in zip(values(out), expected, strict=True):
                count += 1
                where = f"{name}, {[w.type for w in arrays]}, {dict(sample.static)}"
                is_free = name in IN_FLOAT32 or "dtype" in sample.static
                is_rounded = want.dtype == np.float32 and not is_free
                assert got.dtype in ((BFLOAT16,) if is_rounded else (BFLOAT16, want.dtype)), where
                number_type = np.complex128 if want.dtype.kind == "c" else np.float64
                finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind in "fc" else 0
                bound = 2 * EPSILON * max(1.0, float(np.max(finite, initial=0)))
                np.testing.assert_allclose(
                    got.astype(number_type), want.astype(number_type), 2 * EPSILON, bound,
                    err_msg=where,
                )  # fmt: skip
    assert count > 280


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_gradients_in_bfloat16_are_those_of_float32_rounded() -> None:
    mesh, count = MESHES[1], 0
    for name in sorted(SAMPLES.keys() - BY_RESOLUTION):
        function, number = FUNCTIONS[name], zlib.crc32(name.encode())
        sample = SAMPLES[name][number % len(SAMPLES[name])]
        if not sample.grad or function.__module__.startswith("gdt.linalg"):
            continue
        *_, chosen = choices(mesh, [a.ndim for a in sample.arrays], limit=2, seed=number)

        def gradients(dtype: Any, function: Any = function, sample: Any = sample) -> list[Any]:
            """Those of the sum of all squares of a function's results."""
            arrays = [
                gdt.asarray(a, layout=w.resolved)
                for a, w in zip(rounded(sample, dtype), chosen, strict=True)  # noqa: B023
            ]
            sources = [x for x in arrays if gdt.isdtype(x, "real floating")]
            with gdt.default_mesh(mesh), np.errstate(all="ignore"):
                with gdt.GradientTape() as tape:
                    for x in sources:
                        tape.watch(x)
                    outs = leaves(function(*sample.with_arrays(arrays), **sample.static))
                    squares = [
                        gdt.sum(gdt.astype(x, "float32") ** 2)
                        for x in outs
                        if isinstance(x, DistributedArray) and gdt.isdtype(x, "real floating")
                    ]
                    loss = sum(squares[1:], squares[0]) if squares else None
                if loss is None or not sources:
                    return []
                return tape.gradient(loss, sources, unconnected="zero")

        for got, wide in zip(gradients(BFLOAT16), gradients(np.float32), strict=True):
            count += 1
            assert got.dtype == BFLOAT16 and got.layout is wide.layout, name
            want = wide.numpy()
            bound = 4 * EPSILON * max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
            np.testing.assert_allclose(
                got.numpy().astype(float), want, 4 * EPSILON, bound, err_msg=name
            )
    assert count > 170


def test_bfloat16_promotes_as_in_jax() -> None:
    x, with_integers = gdt.ones(3, gdt.bfloat16), gdt.arange(3)
    assert (x + with_integers).dtype == (x * 0.1).dtype == (x // True).dtype == gdt.bfloat16
    assert (x + gdt.ones(3, "float16")).dtype == (x * np.float32(2)).dtype == np.float32
    assert (x * 1j).dtype == np.complex64 and (x + np.ones(3)).dtype == np.float64
    assert gdt.result_type(x, np.int64, 2.5) == gdt.bfloat16
    assert gdt.promote_types("bfloat16", "float16") == np.float32
    assert gdt.can_cast(gdt.bfloat16, "float32") and not gdt.can_cast("float16", gdt.bfloat16)
    assert gdt.isdtype(gdt.bfloat16, "real floating") and gdt.issubdtype(x.dtype, gdt.floating)
    assert gdt.finfo(x).eps == EPSILON and gdt.finfo(gdt.bfloat16).max > 3e38
    # A Python number takes the dtype of the arrays that it meets.
    assert bool((gdt.asarray([0.1], gdt.bfloat16) == 0.1)[0])
    assert float(gdt.nextafter(x, 2.0)[0]) == 1 + EPSILON == 1 + float(gdt.spacing(x)[0])


@pytest.mark.parametrize("mesh", MESHES, ids=["one block", "four blocks"])
def test_sums_are_rounded_once(mesh: gdt.Mesh) -> None:
    """A sum of ones that is rounded on the way stops at 256, where bfloat16 has even numbers."""
    ones = gdt.ones((4096, 4), gdt.bfloat16, layout=Layout([("a", "b"), None], mesh))
    assert gdt.sum(ones, axis=0).tolist() == [4096] * 4
    assert (ones.T @ ones).tolist() == [[4096] * 4] * 4
    parts = gdt.asarray([256.0, 1, 1, 1], gdt.bfloat16, layout=Layout([("a", "b")], mesh))
    assert float(gdt.sum(parts)) == 260  # 259 lies between 258 and 260
    assert float(gdt.sum(parts, dtype="float32")) == 259
    places = gdt.asarray([0] * 300, layout=Layout([("a", "b")], mesh))
    assert float(gdt.zeros(5, gdt.bfloat16).at[places].add(1.0)[0]) == 300
    gradient = gdt.grad(lambda x: gdt.sum(gdt.take(x, places)))(gdt.zeros(5, gdt.bfloat16))
    assert gradient.dtype == gdt.bfloat16 and float(gradient[0]) == 300


@pytest.mark.parametrize("mesh", MESHES, ids=["one block", "four blocks"])
def test_bfloat16_moves_between_layouts(mesh: gdt.Mesh) -> None:
    whole = np.arange(35.0).reshape(5, 7).astype(BFLOAT16)
    every = layouts(mesh, 2, partial=True)
    for n, have in enumerate(every):
        x = placed(whole, have)
        for want in every[n % 5 :: 5]:
            moved = gdt.relayout(x, want)
            assert moved.dtype == BFLOAT16 and (moved.numpy() == whole).all(), f"{have} -> {want}"
            assert x.layout is want or moved.type.nbytes == 70


def test_draws_are_those_of_float32_rounded() -> None:
    x = gdt.random.normal(1000, dtype=gdt.bfloat16, key=0)
    assert (
        x.numpy() == gdt.random.normal(1000, dtype="float32", key=0).numpy().astype(BFLOAT16)
    ).all()
    u = gdt.random.uniform(1000, dtype=gdt.bfloat16, key=0).numpy().astype(float)
    assert (u * 256 % 1 == 0).all() and u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.05


def test_steps_on_bfloat16_are_replayed_bitwise() -> None:
    layout = Layout(["a", None], MESHES[1])
    step = lambda w, x: gdt.value_and_grad(lambda w: gdt.mean(gdt.tanh(x @ w) * 0.3))(w)
    recorded = gdt.function(step, verify=1)
    w, x = (gdt.random.normal((8, 8), dtype=gdt.bfloat16, key=k, layout=layout) for k in (1, 2))
    for a in (x, x + 1, x):
        for got, want in zip(leaves(recorded(w, a)), leaves(step(w, a)), strict=True):
            assert got.type is want.type and (got.numpy() == want.numpy()).all()
    assert recorded(w, x.astype("float32"))[0].dtype == np.float32


def test_checkpoints_hold_bfloat16(tmp_path: Path) -> None:
    x = gdt.random.normal((5, 3), dtype=gdt.bfloat16, key=0, layout=Layout(["a", "b"], MESHES[1]))
    gdt.checkpoint.save(tmp_path / "c.safetensors", {"x": x})
    assert (load_file(tmp_path / "c.safetensors")["x"] == x.numpy()).all()
    tree = {"x": gdt.zeros((5, 3), gdt.bfloat16, layout=Layout([None, "a"], MESHES[0]))}
    gdt.checkpoint.restore(tmp_path / "c.safetensors", tree)
    assert (tree["x"].numpy() == x.numpy()).all()


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_dlpack_says_that_elements_are_bfloat16(mesh: Any) -> None:
    x = gdt.random.normal((5, 3), dtype=gdt.bfloat16, key=0, layout=Layout(["a", "b"], mesh))

    class Consumer:
        """An array of a library that has bfloat16, exported in the form before DLPack 1.0 or in
        that since."""

        def __init__(self, dtype: str, is_old: bool) -> None:
            self.dtype, self.is_old = dtype, is_old

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> Any:
            return x.__dlpack__(**({} if self.is_old else options))

    for value in (
        x, Consumer("torch.bfloat16", True), Consumer("<dtype: 'bfloat16'>", False)
    ):  # fmt: skip
        y = gdt.from_dlpack(value)
        assert y.dtype == gdt.bfloat16
        assert (y.numpy() == x.numpy()).all()
    with pytest.raises((BufferError, RuntimeError), match="dtype"):  # of NumPy, which has none
        np.from_dlpack(x)

    class Refusing(Consumer):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires a gradient")

    with pytest.raises(GdtError, match="a Refusing cannot be taken over: it requires a gradient"):
        gdt.from_dlpack(Refusing("torch.bfloat16", False))


def test_what_takes_no_bfloat16_says_so() -> None:
    x = gdt.ones((3, 3), gdt.bfloat16)
    for refused, what in (
        (lambda: gdt.save(io.BytesIO(), x), "NumPy's format has no bfloat16"),
        (lambda: x & x, "does not take bfloat16, bfloat16"),
        (lambda: gdt.linalg.inv(x), "x is of dtype bfloat16"),
    ):
        with pytest.raises(GdtError, match=what):
            refused()


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.RMSprop, optim.Lion])
def test_optimizers_of_bfloat16_parameters_keep_their_state_in_float32(make: Any) -> None:
    optimizer = make(0.05, momentum=0.9) if make is optim.SGD else make(0.02)
    weights = {"w": gdt.full((8, 4), 2.0, gdt.bfloat16, layout=Layout(["a", "b"], MESHES[1]))}
    before = weights["w"]
    for _ in range(20):
        _, gradients = gdt.value_and_grad(lambda p: gdt.mean(p["w"] ** 2))(weights)
        optimizer.update(weights, gradients)
    assert weights["w"].dtype == gdt.bfloat16 and (before.numpy() == 2).all()
    assert {x.dtype.name for states in optimizer.state.values() for x in states.values()} == {
        "float32"
    }
    assert float(gdt.mean(weights["w"])) < 1.9


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.RMSprop, optim.Lion])
def test_captured_steps_of_optimizers_round_no_rate_to_bfloat16(make: Any) -> None:
    """Bias corrections and decays of a captured step are numbers in the memory of the GPU."""

    def trained(is_recorded: bool) -> list[np.ndarray]:
        optimizer = make(0.05, momentum=0.9) if make is optim.SGD else make(0.0213)
        with gdt.default_mesh(engine.mesh({"a": 1})):
            weights = {"w": gdt.full((8, 4), 2.0, gdt.bfloat16)}

            def step(x: Any) -> None:
                loss = lambda p: gdt.mean((p["w"] * x) ** 2)
                optimizer.update(weights, gdt.grad(loss)(weights))

            run = gdt.function(step, state=[weights, optimizer]) if is_recorded else step
            for n in range(5):
                run(gdt.full((), 1 + n / 8, gdt.bfloat16))
            if is_recorded:
                graph = graph_of(run)
                assert graph is not None and graph.is_captured
        return values([weights, optimizer.state])

    for got, want in zip(trained(True), trained(False), strict=True):
        assert (got == want).all()


def network(name: str) -> nn.Module:
    if name == "MLP":
        return nn.Sequential(nn.Dense(16, 32, activation="relu", key=1), nn.Dense(32, 4, key=2))
    block = nn.Sequential(nn.LayerNorm(), nn.MultiHeadAttention(2, causal=True, key=1))
    mlp = nn.Sequential(nn.LayerNorm(), nn.Dense(32, activation="gelu", key=2), nn.Dense(16, key=3))
    return nn.Sequential(nn.Residual(block), nn.Residual(mlp), nn.Dense(4, key=4))


def losses_of(model: nn.Module, batch: tuple[Any, Any]) -> list[float]:
    """The losses of a model in 60 steps of Adam."""
    optimizer = optim.Adam(0.01)

    def loss(model: nn.Module, x: Any, labels: Any) -> Any:
        return nn.losses.sparse_softmax_cross_entropy(labels, model(x))

    @gdt.function
    def step(x: Any, labels: Any) -> Any:
        value, gradients = gdt.value_and_grad(loss)(model, x, labels)
        optimizer.update(model, gradients)
        return value

    with gdt.default_mesh(MESHES[1]):
        model(batch[0])
        return [float(step(*batch)) for _ in range(60)]


@pytest.mark.parametrize("name", ["MLP", "transformer"])
def test_the_policy_trains_as_float32_does(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((16, 8, 16)).astype("f4")
    labels = (x @ rng.standard_normal((16, 4))).argmax(axis=-1)
    layout = Layout(["a", None, None], MESHES[1])
    batch = gdt.asarray(x, layout=layout), gdt.asarray(labels, device=MESHES[1])
    model = nn.mixed_precision(network(name), "bfloat16")
    half, plain = losses_of(model, batch), losses_of(network(name), batch)
    assert half[-1] < 0.6 * half[0]
    assert half[-1] == pytest.approx(plain[-1], rel=0.02) and half[-1] != plain[-1]
    assert {a.dtype.name for a in model.state().values()} == {"float32"}
