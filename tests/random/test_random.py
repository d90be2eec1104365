"""A seed gives the same numbers on every mesh, layout and storage mode; no device makes more than
its shard; keys are operands."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import DtypeError, FunctionError
from gdt.random import bits as random_bits
from gdt.random import choosing
from gdt.testing import assert_consistent, layouts, meshes

MESHES = meshes([(2,), (4,), (2, 2), (2, 3)])
LARGE = meshes([(2, 2, 2)])
SHAPES = [(), (0,), (9,), (8, 6), (5, 7), (3, 4, 5), (7, 0, 2)]

SAMPLERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "uniform": (gdt.random.uniform, random_bits.uniform),
    "normal": (gdt.random.normal, random_bits.normal),
    "truncated_normal": (gdt.random.truncated_normal, random_bits.truncated_normal),
}


def mesh_id(mesh: gdt.Mesh) -> str:
    return f"{mesh.sizes}{mesh.grid}"


def reference(sample: Callable[..., Any], shape: tuple[int, ...], *key: int, **options: Any) -> Any:
    index = np.arange(int(np.prod(shape)), dtype=np.uint64).reshape(shape)
    return sample(np, index, *key, **options)


def assert_same(x: gdt.DistributedArray, want: np.ndarray, layout: gdt.Layout) -> None:
    assert x.layout is layout and x.dtype == want.dtype and x.shape == want.shape
    assert x.numpy().tobytes() == want.tobytes()
    assert_consistent(x)


@pytest.mark.parametrize("mesh", MESHES + LARGE, ids=mesh_id)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_gives_the_same_bits(shape: tuple[int, ...], mesh: gdt.Mesh) -> None:
    wanted = reference(random_bits.uniform, shape, 5, dtype="float64")
    whole = reference(random_bits.integers, shape, 5, low=-3, high=100, dtype="int16")
    every = layouts(mesh, len(shape), partial=True)
    for layout in every[:: max(1, len(every) // 24)]:
        assert_same(gdt.random.uniform(shape, key=5, layout=layout), wanted, layout)
        drawn = gdt.random.integers(-3, 100, shape, "int16", key=5, layout=layout)
        assert_same(drawn, whole, layout)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_of_every_dtype(name: str, dtype: str, mesh: gdt.Mesh) -> None:
    draw, sample = SAMPLERS[name]
    wanted = reference(sample, (7, 6), 11, dtype=dtype)
    for layout in layouts(mesh, 2):
        assert_same(draw((7, 6), dtype=dtype, key=11, layout=layout), wanted, layout)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_bernoulli_of_a_number_and_of_an_array(mesh: gdt.Mesh) -> None:
    p = np.linspace(0, 1, 6)
    for layout in layouts(mesh, 2):
        drawn = gdt.random.bernoulli((7, 6), 0.3, key=2, layout=layout)
        assert_same(drawn, reference(random_bits.bernoulli, (7, 6), 2, p=0.3), layout)
        for given in (p, gdt.asarray(p, layout=gdt.Layout([mesh.axis_names[0]], mesh))):
            drawn = gdt.random.bernoulli((7, 6), given, key=2, layout=layout)
            assert_same(drawn, reference(random_bits.bernoulli, (7, 6), 2, p=p), layout)


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_permutation_of_numbers_and_of_an_array(mesh: gdt.Mesh) -> None:
    order = random_bits.permutation(np, 9, 4)
    value = np.arange(27.0).reshape(3, 9)
    for layout in layouts(mesh, 1, partial=True):
        assert_same(gdt.random.permutation(9, key=4, layout=layout), order, layout)
    long = random_bits.permutation(np, choosing.LONG, 4)
    for layout in layouts(mesh, 1):
        drawn = gdt.random.permutation(choosing.LONG, key=4, layout=layout)
        assert_same(drawn, long, layout)
        shuffled = gdt.random.permutation(gdt.asarray(long * 2, layout=layout), key=4)
        assert shuffled.numpy().tolist() == (long * 2)[long].tolist()
        assert bool(shuffled.layout.dims[0]) == bool(layout.dims[0])
    for layout in layouts(mesh, 2):
        shuffled = gdt.random.permutation(gdt.asarray(value, layout=layout), axis=1, key=4)
        assert shuffled.numpy().tolist() == value[:, order].tolist()


def test_a_short_order_is_computed_by_every_device() -> None:
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 8)], blocks=8))
    with gdt.count_collectives() as counter:
        order = gdt.random.permutation(1000, key=4, layout=layout)
    assert order.layout is layout and counter.bytes == 0


def test_rows_in_random_order_stay_split() -> None:
    layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 8)], blocks=8))
    x = gdt.asarray(np.arange(1 << 14).reshape(1 << 7, 1 << 7), layout=layout)
    with gdt.count_collectives() as counter:
        shuffled = gdt.random.permutation(x, key=4)
    assert shuffled.layout is layout and counter.bytes == x.nbytes * 7 // 8  # an all-to-all
    order = gdt.random.permutation(1 << 7, key=4).numpy()
    np.testing.assert_array_equal(shuffled.numpy(), x.numpy()[order])


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_scaling_keeps_dtype_layout_and_bits(mesh: gdt.Mesh) -> None:
    layout = gdt.Layout([mesh.axis_names[-1], None], mesh)
    z = reference(random_bits.normal, (5, 3), 1, dtype="float32")
    x = gdt.random.normal((5, 3), 2.0, 0.5, "float32", key=1, layout=layout)
    assert_same(x, z * np.float32(0.5) + np.float32(2), layout)
    u = reference(random_bits.uniform, (5, 3), 1, dtype="float32")
    x = gdt.random.uniform((5, 3), -1, 3, "float32", key=1, layout=layout)
    assert_same(x, u * np.float32(4) - np.float32(1), layout)
    std = np.array([1.0, 2.0, 3.0])
    x = gdt.random.normal((5, 3), std=std, dtype="float32", key=1, layout=layout)
    assert_same(x, (z * std).astype("float32"), layout)


def test_nothing_is_sent() -> None:
    layout = gdt.Layout(["x", "y"], gdt.create_mesh([("x", 2), ("y", 3)], blocks=6))
    with gdt.count_collectives() as counted:
        gdt.random.normal((9, 7), key=1, layout=layout)
        gdt.random.permutation(9, layout=gdt.Layout(["x"], layout.mesh))
    assert len(counted) == 0


# ---------------------------------------------------------------- keys and the generator


def test_a_seed_repeats_its_draws_on_any_mesh() -> None:
    found = []
    for mesh in MESHES:
        gdt.random.seed(123)
        layout = gdt.Layout([mesh.axis_names[0]], mesh)
        draws = [gdt.random.uniform(9, layout=layout), gdt.random.normal(9, layout=layout)]
        found.append([d.numpy().tobytes() for d in draws])
    assert all(f == found[0] for f in found)
    assert gdt.random.uniform(9).numpy().tobytes() != found[0][0]


def test_draws_of_the_generator_differ_from_each_other_and_from_explicit_keys() -> None:
    gdt.random.seed(5)
    seen = {gdt.random.uniform(4).numpy().tobytes() for _ in range(50)}
    seen.add(gdt.random.uniform(4, key=5).numpy().tobytes())
    assert len(seen) == 51


def test_the_state_goes_on_where_it_was() -> None:
    gdt.random.seed(9)
    gdt.random.uniform(3)
    state = gdt.random.generator.state
    first = gdt.random.uniform(3).tolist()
    gdt.random.generator.state = state
    assert gdt.random.uniform(3).tolist() == first


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_generators_are_copied_and_pickled(copied: Any) -> None:
    one = gdt.random.Generator(3)
    one.take()
    other = copied(one)
    assert [other.take() for _ in range(2)] == [one.take() for _ in range(2)]


def test_threads_never_share_a_draw() -> None:
    made = gdt.random.Generator(3)
    taken: list[tuple[int, int]] = []

    def work() -> None:
        taken.extend(made.take() for _ in range(500))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(taken) == [(3, n) for n in range(1, 4001)]


def test_keys_fold_and_split() -> None:
    key = gdt.random.key(7)
    assert gdt.random.key(key) is key
    parts = gdt.random.split(key, 3)
    assert parts.shape == (3,) and parts.numpy().tolist() == random_bits.split(np, 7, 3).tolist()
    folded = gdt.random.fold_in(key, 4)
    assert int(folded) == int(random_bits.fold_in(np, 7, 4))
    draws = [gdt.random.uniform(2, key=k).tolist() for k in (key, folded, *parts)]
    assert len({tuple(d) for d in draws}) == 5


def test_a_key_of_one_mesh_draws_on_another() -> None:
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 4)], blocks=4))
    x = gdt.random.uniform(9, key=gdt.random.key(2), layout=layout)
    assert x.tolist() == gdt.random.uniform(9, key=2).tolist()


def test_seeds_beyond_64_bits_are_told_apart() -> None:
    assert int(gdt.random.key(3)) != int(gdt.random.key(3 + 2**64))


def test_the_key_is_an_operand() -> None:
    """What a tape or a recorder sees can be run again with another key."""
    seen: list[Any] = []

    class Recorder(gdt.observe.Observer):
        wants_parts = False

        def on_op(self, op: Any, args: tuple[Any, ...], static: dict[str, Any], out: Any) -> None:
            seen.append((op, args, static))

    with gdt.observe.observing(Recorder()):
        gdt.random.uniform(4, key=1)
    op, args, static = seen[-1]
    again = op(gdt.random.key(2), *args[1:], **static)
    assert again.tolist() == gdt.random.uniform(4, key=2).tolist()


# ---------------------------------------------------------------- distributions and bad input


def test_moments() -> None:
    n = 200_000
    u, z = gdt.random.uniform(n, key=0), gdt.random.normal(n, key=0)
    t, i = gdt.random.truncated_normal(n, key=0), gdt.random.integers(6, shape=n, key=0)
    for x, mean, std in ((u, 0.5, 12**-0.5), (z, 0, 1), (t, 0, 0.8796), (i, 2.5, (35 / 12) ** 0.5)):
        v = x.numpy()
        assert abs(v.mean() - mean) < 5 * std / n**0.5 and abs(v.std() / std - 1) < 0.01
    assert u.numpy().min() >= 0 and u.numpy().max() < 1
    assert set(i.numpy().tolist()) == set(range(6))
    assert abs(gdt.random.bernoulli(n, 0.2, key=0).numpy().mean() - 0.2) < 5 * 0.4 / n**0.5


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (lambda: gdt.random.seed(-1), "seed: -1 is negative"),
        (lambda: gdt.random.seed("x"), "seed: 'x' is not an integer"),
        (lambda: gdt.random.key(1.5), "seed: 1.5 is not an integer"),
        (lambda: gdt.random.uniform(3, key=gdt.ones(2)), "a key is of dtype uint64 and rank 0"),
        (lambda: gdt.random.uniform(-3), "uniform: -3 in shape"),
        (lambda: gdt.random.uniform(3, dtype=int), "uniform: cannot draw int64"),
        (lambda: gdt.random.normal(3, dtype="complex64"), "normal: cannot draw complex64"),
        (lambda: gdt.random.integers(5, 5), r"no integer lies in \[5, 5\)"),
        (lambda: gdt.random.integers(0, 300, 3, "int8"), "int8 holds -128..127"),
        (lambda: gdt.random.bernoulli(3, 1.5), "p is 1.5, not at least 0 and at most 1"),
        (lambda: gdt.random.bernoulli(3, float("nan")), "p is nan"),
        (lambda: gdt.random.bernoulli((3,), np.ones((2, 3))), "does not broadcast"),
        (
            lambda: gdt.random.bernoulli((2,), [0.5, 1.5]),
            "p holds 1.5, not at least 0 and at most 1",
        ),
        (lambda: gdt.random.bernoulli((2,), np.array([0.5, np.nan])), "p holds nan"),
        (
            lambda: gdt.random.uniform((3,), np.zeros((2, 3)), 1.5),
            r"low of shape \[2, 3\] and high of shape \[\] do not broadcast to \[3\]",
        ),
        (lambda: gdt.random.normal((3,), gdt.zeros((2, 3))), r"mean of shape \[2, 3\]"),
        (lambda: gdt.random.truncated_normal((1,), 0.0, np.ones(3)), r"std of shape \[3\]"),
        (lambda: gdt.random.normal(3, std=-1), "normal: std is -1, not at least 0"),
        (lambda: gdt.random.normal(2, 0, [1.0, -0.5]), "normal: std holds -0.5, not at least 0"),
        (lambda: gdt.random.truncated_normal(3, 0.0, -2), "truncated_normal: std is -2"),
        (lambda: gdt.random.uniform(3, 2, 1), "(?s)high is below low.*low: 2.*high: 1"),
        (lambda: gdt.random.uniform(2, [0, 1], 0.5), "high is below low"),
        (lambda: gdt.random.uniform(3, -1e308, 1e308), "high - low is not finite"),
        (lambda: gdt.random.uniform(3, "a", 1), "low is 'a', which is no number"),
        (lambda: gdt.random.integers(0, 2.5), "integers: high is 2.5, not int"),
        (lambda: gdt.random.integers(2.0), "integers: low is 2.0, not int"),
        (lambda: gdt.random.permutation(gdt.ones(3), axis=1), "axis 1 is out of range for rank 1"),
        (lambda: gdt.random.permutation(-3), "permutation: -3 in shape"),
        (
            lambda: gdt.random.normal(3, layout=gdt.Layout.replicated(gdt.get_default_mesh(), 2)),
            "a layout of rank 2 does not fit an array of rank 1",
        ),
    ],
)
def test_bad_input_is_named(draw: Callable[[], Any], problem: str) -> None:
    with pytest.raises(gdt.errors.GdtError, match=problem):
        draw()


FIXED: dict[str, tuple[Any, ...]] = {
    "beta": (2.0, 3.0), "binomial": (10, 0.3), "chisquare": (3.0,), "choice": (5,),
    "dirichlet": ([1.0, 2.0],), "exponential": (2.0,), "f": (3.0, 4.0), "gamma": (2.0, 3.0),
    "geometric": (0.4,), "gumbel": (1.0, 2.0), "integers": (3, 9), "laplace": (1.0, 2.0),
    "logistic": (1.0, 2.0), "logseries": (0.4,), "noncentral_chisquare": (3.0, 2.0),
    "noncentral_f": (3.0, 4.0, 2.0), "power": (2.0,), "wald": (3.0, 2.0), "zipf": (3.0,),
    "lognormal": (0.5, 0.2), "multinomial": (10, [0.2, 0.8]),
    "multivariate_normal": ([1.0, 2.0], np.eye(2)), "negative_binomial": (5, 0.4),
    "normal": (1.0, 2.0), "pareto": (3.0,), "permutation": (7,), "permuted": (np.arange(6.0),),
    "poisson": (4.0,), "random": (), "rayleigh": (2.0,), "standard_cauchy": (),
    "standard_exponential": (), "standard_gamma": (2.0,), "standard_normal": (),
    "standard_t": (4.0,), "triangular": (0.0, 1.0, 3.0), "uniform": (1.0, 2.0), "weibull": (2.0,),
}  # fmt: skip
"""The parameters of each method of `default_rng`, by position."""


def test_default_rng_has_numpys_arguments_and_the_numbers_of_the_functions() -> None:
    host, mesh = np.random.default_rng(0), MESHES[-1]
    rng = gdt.random.default_rng(7)
    layout = gdt.Layout([mesh.axis_names], mesh)
    gdt.random.seed(7)
    for name, parameters in FIXED.items():
        method, function = getattr(rng, name), getattr(gdt.random, name)
        numpys = re.search(r"\((.*?)\)", str(getattr(host, name).__doc__).replace("\n", ""))
        assert numpys is not None
        expected = re.findall(r"(?:^|, *)([a-z_]+)(?==|,|$)", numpys[1])
        names = [n for n in inspect.signature(method).parameters if n != "layout"]
        others = {"out", "method", "check_valid", "tol"}  # of NumPy alone, or keywords here
        assert [n for n in names if n not in {*others, "dtype"}] == [
            n for n in expected if n not in {*others, "dtype"}
        ], name
        if name in ("permutation", "permuted"):
            x, y = method(*parameters), function(*parameters)
        elif name in ("choice", "integers"):
            x, y = method(*parameters, size=9), function(*parameters, shape=9)
            assert method(*parameters).shape == function(*parameters).shape == ()
        else:
            x, y = method(*parameters, size=9), function(9, *parameters)
            z = method(*parameters)
            function((), *parameters)  # the default generator counts as many draws
            assert z.shape == x.shape[1:], name
            of_layout = gdt.Layout([layout.sharding_specs[0], *[None] * z.ndim], mesh)
            assert method(*parameters, size=9, layout=of_layout).layout is of_layout
            function(9, *parameters)
        assert x.dtype == y.dtype, name
        np.testing.assert_array_equal(x.numpy(), y.numpy(), err_msg=name)
    assert rng.normal([0.0, 100.0], 1.0).shape == rng.multinomial([5, 6], [1.0]).shape[:1] == (2,)
    assert set(rng.integers(1, 2, 40, endpoint=True).tolist()) == {1, 2}
    assert rng.weibull([2.0, 3.0]).shape == rng.pareto([2.0, 3.0]).shape == (2,)
    assert len(rng.bytes(10)) == 10 and rng.bytes(3) != rng.bytes(3)
    x = gdt.arange(20.0, layout=layout)
    rng.shuffle(x)
    assert sorted(x.tolist()) == list(range(20)) != x.tolist() and x.layout is layout


def test_generators_of_default_rng_are_of_their_seed_alone() -> None:
    def numbers(rng: gdt.random.NumPyGenerator) -> list[float]:
        return rng.normal(size=2).tolist()

    rng = gdt.random.default_rng(3)
    assert gdt.random.default_rng(rng) is rng
    assert numbers(copy.deepcopy(rng)) == numbers(pickle.loads(pickle.dumps(rng))) == numbers(rng)
    one, other = gdt.random.default_rng(3).spawn(2)
    seeds: list[Any] = [3, [3], [3, 1], np.random.SeedSequence(4), one, other, None]
    drawn = [numbers(gdt.random.default_rng(seed)) for seed in seeds]
    assert len({x for pair in drawn for x in pair}) == 2 * len(seeds)
    for integers in ([3, 1], np.array([3, 1])):
        assert numbers(gdt.random.default_rng(integers)) == drawn[2]
    with pytest.raises(DtypeError, match="'three' is not an integer"):
        gdt.random.default_rng("three")


def test_a_recorded_step_draws_from_a_generator_of_its_state_alone() -> None:
    rng, other = gdt.random.default_rng(0), gdt.random.default_rng(0)

    @gdt.function
    def step(x: gdt.DistributedArray) -> gdt.DistributedArray:
        return x + rng.normal(size=3)

    @gdt.function
    def forgetful(x: gdt.DistributedArray) -> gdt.DistributedArray:
        return x + gdt.random.default_rng(0).normal(size=3)

    for _ in range(4):
        assert step(gdt.zeros(3)).tolist() == other.normal(size=3).tolist()
    assert len(step.programs) == 1
    assert forgetful(gdt.zeros(3)).shape == (3,)
    with pytest.raises(FunctionError, match=r"in a place that no state names \(NumPyGenerator\)"):
        forgetful(gdt.zeros(3))


def test_an_empty_draw_is_drawn_and_numpys_order_is_noticed() -> None:
    assert gdt.random.normal(0, 0.0, 1.0).shape == gdt.random.uniform(0, 0, 10).shape == (0,)
    assert gdt.random.beta(0, 1, 10).shape == (0,)
    for draw in (gdt.random.normal, gdt.random.uniform, gdt.random.laplace):
        with pytest.warns(UserWarning, match="the shape stands first: .* has no elements"):
            assert draw(0, 1, 10).shape == (0,)


def test_type_checkers_see_the_signatures_of_the_distributions() -> None:
    stubs = ast.parse((Path(gdt.random.__file__).parent / "signatures.pyi").read_text())
    seen = {n.name: n.args for n in stubs.body if isinstance(n, ast.FunctionDef)}
    for name, arguments in seen.items():
        parameters = inspect.signature(getattr(gdt.random, name)).parameters.values()
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [a.arg for a in arguments.args] == [p.name for p in positional], name
        assert [ast.unparse(d) for d in arguments.defaults] == [
            getattr(p.default, "__name__", repr(p.default))
            for p in positional
            if p.default is not p.empty
        ], name
        assert [a.arg for a in arguments.kwonlyargs] == [
            p.name for p in parameters if p.kind is p.KEYWORD_ONLY
        ], name
    modules = ("gdt.random.continuous", "gdt.random.discrete")
    made = {n for n in gdt.random.__all__ if getattr(gdt.random, n).__module__ in modules}
    assert seen.keys() == made - {"bernoulli"}  # whose signature stands in its module
