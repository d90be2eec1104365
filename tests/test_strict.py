"""Every sample of tests/samples on devices whose arrays refuse what CuPy refuses."""

from __future__ import annotations

import warnings
import zlib
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.testing import Oracle, choices
from gdt.testing.operands import placed

from .samples import SAMPLES, masks, sets
from .strict import contract, engine

engine.register()
WAITS = {"getitem", *masks.SAMPLES, *sets.SAMPLES}  # for how many elements a mask chooses
MESHES = {"8 on one": ({"x": 4, "y": 2}, 1), "4 on two": ({"x": 2, "y": 2}, 2)}


def check(name: str, how: str, samples: int | None, layouts: int) -> None:
    mesh = engine.mesh(*MESHES[how])
    for n, sample in enumerate(SAMPLES[name][:samples]):
        oracle = Oracle(FUNCTIONS[name], sample)
        seed = zlib.crc32(f"{name} {n} {how}".encode())
        ranks = [a.ndim for a in sample.arrays]
        for chosen in choices(mesh, ranks, limit=layouts, seed=seed):
            oracle.check(mesh, chosen)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - contract.LACKED))
def test_function_on_strict_devices(name: str) -> None:
    check(name, "8 on one", samples=2, layouts=1)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - WAITS - contract.LACKED))
def test_a_planned_call_does_not_wait_for_the_device(name: str) -> None:
    mesh = engine.mesh(*MESHES["4 on two"])
    for n, sample in enumerate(SAMPLES[name][:2]):
        (chosen,) = choices(mesh, [a.ndim for a in sample.arrays], limit=1, seed=n)
        with warnings.catch_warnings(), gdt.default_mesh(mesh):
            warnings.simplefilter("ignore")
            arrays = [placed(a, w) for a, w in zip(sample.arrays, chosen, strict=True)]
            call = partial(FUNCTIONS[name], *sample.with_arrays(arrays), **sample.static)
            call()
            before = len(engine.CUPY.transfers)
            call()
        assert not engine.CUPY.transfers[before:]


@pytest.mark.parametrize(
    ("ufunc", "char"), [("bitwise_xor", "b"), ("hypot", "f"), ("logaddexp", "d"), ("hypot", "e")]
)
def test_nothing_is_reduced_to_numpys_identity(ufunc: str, char: str) -> None:
    """CuPy has `reduce` of sums and products alone."""
    host = np.empty((4, 0), char)
    x = gdt.asarray(host, layout=gdt.Layout(["x", None], engine.mesh(*MESHES["8 on one"])))
    got, want = (getattr(np, ufunc).reduce(a, axis=1) for a in (x, host))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("char", "?bBhHiIlLefdFD")
def test_values_of_every_dtype_are_combined_at_places(char: str, rng: np.random.Generator) -> None:
    """CuPy's `add.at` has few dtypes, and its ufuncs for other ways have no `at`."""
    x, values = (rng.integers(0, 50, n).astype(char) for n in (8, 40))
    values = values * values.dtype.type(1j) if char in "FD" else values
    places, ways = rng.integers(0, 8, 40), {"add": np.add}
    if char not in "FD":
        ways |= {"min": np.minimum, "max": np.maximum}
    if x.dtype.kind in "biu":
        ways["multiply"] = np.multiply
    mesh = engine.mesh(*MESHES["4 on two"])
    for way, spec in product([*ways, "set"], ("x", None)):
        expected = x.copy()
        if way == "set":
            expected[places] = values
        else:
            ways[way].at(expected, places, values)
        operands = [gdt.asarray(a, layout=gdt.Layout([spec], mesh)) for a in (x, places, values)]
        got = gdt.update_at(operands[0], operands[2], operands[1], way).numpy()
        assert got.dtype == x.dtype and (got == expected).all()


def test_a_strategy_trains_measures_and_saves_on_strict_devices(tmp_path: Path) -> None:
    strategy = gdt.MirroredStrategy(mesh=engine.mesh(*MESHES["4 on two"]))
    rng, metrics = np.random.default_rng(0), ["accuracy", gdt.metrics.ConfusionMatrix(3)]
    x, y = rng.standard_normal((20, 6)).astype("float32"), rng.integers(0, 3, 20)
    with strategy.scope():
        layers = [gdt.nn.Dense(6, 8, activation="relu"), gdt.nn.BatchNorm(8), gdt.nn.Dropout(0.2)]
        model = gdt.nn.Sequential(*layers, gdt.nn.Dense(8, 3))
        optimizer = gdt.optim.LossScaling(gdt.optim.MovingAverage(gdt.optim.Adam(0.01)))
        model.compile(
            optimizer, "sparse_softmax_cross_entropy", metrics, clip_norm=1.0, run_eagerly=True
        )
    stopping = gdt.training.EarlyStopping("loss", restore_best_weights=True)
    model.fit(x, y, 8, 2, 0, stopping, class_weight={0: 2.0}, resume=tmp_path, save_every=1)
    other = gdt.load_model(model.save(tmp_path / "model"), mesh=strategy.mesh)
    np.testing.assert_array_equal(model.predict(x), other.predict(x))
    rows = strategy.run(lambda rows: rows * 2, (x,))
    np.testing.assert_array_equal(np.concatenate(strategy.experimental_local_results(rows)), 2 * x)


@pytest.mark.cupy_full
@pytest.mark.parametrize("how", MESHES)
@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - contract.LACKED))
def test_every_sample_on_strict_devices(name: str, how: str) -> None:
    check(name, how, samples=None, layouts=3)
