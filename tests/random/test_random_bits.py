"""Random bits: published vectors, equality of the two paths, distributions, limits, keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import gdt
from gdt import errors
from gdt.ops.blocks import philox
from gdt.ops.blocks.philox import CounterRun
from gdt.random import bits as random_bits
from gdt.random import loops
from gdt.random.normal_quantile import quantile

N = 200_000
FLOATS = [np.float16, np.float32, np.float64]
DRAWS = {
    "bits32": random_bits.bits32,
    "bits64": random_bits.bits64,
    "uniform16": lambda *a: random_bits.uniform(*a, dtype=np.float16),
    "uniform32": random_bits.uniform,
    "uniform64": lambda *a: random_bits.uniform(*a, dtype=np.float64),
    "integers32": lambda *a: random_bits.integers(*a, low=-5, high=100),
    "integers64": lambda *a: random_bits.integers(*a, low=0, high=10**12),
    "bernoulli": lambda *a: random_bits.bernoulli(*a, p=0.3),
    "normal32": random_bits.normal,
    "normal64": lambda *a: random_bits.normal(*a, dtype=np.float64),
    "truncated32": random_bits.truncated_normal,
    "truncated64": lambda *a: random_bits.truncated_normal(*a, dtype=np.float64),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()


# The generator ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, 0, "6627e8d5e169c58d bc57ac4c9b00dbd8"),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, "408f276d41c83b0e a20bc7c66d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            "d16cfe0994fdcceb 5001e42024126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected):
    words = tuple(np.array([word], np.uint64) for word in counter)
    a, b = philox.philox(np, words, np.array([key], np.uint64))
    assert f"{int(a[0]):016x} {int(b[0]):016x}" == expected


def plain_philox(counter: int, key: int) -> list[int]:
    """The definition in Python integers: the four words of a 128-bit counter."""
    c0, c1, c2, c3 = ((counter >> shift) % 2**32 for shift in (0, 32, 64, 96))
    k0, k1 = key % 2**32, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            p1 >> 32 ^ c1 ^ k0,
            p1 % 2**32,
            p0 >> 32 ^ c3 ^ k1,
            p0 % 2**32,
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


WORD = st.integers(0, 2**64 - 1)


@given(index=WORD, key=WORD, stream=WORD)
@settings(max_examples=100)
def test_elements_take_the_words_that_the_docs_say(index, key, stream):
    at = np.array(index, np.uint64)
    narrow = plain_philox(index // 4 + (stream << 64), key)
    wide = plain_philox(index // 2 + (stream << 64), key)
    high, low = wide[:2] if index % 2 == 0 else wide[2:]
    assert int(random_bits.bits32(np, at, key, stream)) == narrow[index % 4]
    assert int(random_bits.bits64(np, at, key, stream)) == (high << 32) + low


# The two paths ------------------------------------------------------------------------------------


@every_draw
@given(start=st.integers(0, 2**63), length=st.integers(0, 70), key=WORD, stream=WORD)
@settings(max_examples=20)
def test_a_run_equals_its_scattered_indices(draw, start, length, key, stream):
    index = np.arange(length, dtype=np.uint64) + np.uint64(start)
    assert same_bits(draw(np, CounterRun(start, length), key, stream), draw(np, index, key, stream))


@every_draw
def test_runs_across_tiles_equal_their_scattered_indices(draw, monkeypatch):
    run = draw(np, CounterRun(3, 5000), 1, 2)
    monkeypatch.setattr(philox, "TILE", 64)
    assert same_bits(draw(np, CounterRun(3, 5000), 1, 2), run)
    assert same_bits(draw(np, np.arange(3, 5003), 1, 2), run)


@given(
    starts=st.lists(st.integers(0, 2**40), min_size=1, max_size=9),
    length=st.integers(0, 40),
    tile=st.sampled_from([4, 16, 1 << 15]),
)
@settings(max_examples=50)
def test_rows_of_a_run_may_begin_anywhere(starts, length, tile):
    starts = np.array(starts, np.uint64)
    index = starts[:, None] + np.arange(length, dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(philox, "TILE", tile)
        for draw in (random_bits.bits32, random_bits.bits64):
            assert same_bits(draw(np, CounterRun(starts, length), 5), draw(np, index, 5))


@pytest.mark.parametrize("boundary", [2**33, 2**34, 2**35])
def test_a_run_carries_into_the_upper_counter_word(boundary):
    index = np.arange(boundary - 9, boundary + 9, dtype=np.uint64)
    for draw in (random_bits.bits32, random_bits.bits64):
        assert same_bits(draw(np, CounterRun(boundary - 9, 18), 5), draw(np, index, 5))


@every_draw
def test_any_shape_and_strides_of_indices(draw):
    index = np.arange(240, dtype=np.uint64).reshape(4, 6, 10)
    whole = draw(np, CounterRun(0, 240), 9)
    assert same_bits(draw(np, index[::-2, :, ::3], 9), whole.reshape(4, 6, 10)[::-2, :, ::3].copy())
    assert draw(np, np.uint64(17), 9) == whole[17]


def test_keys_and_streams_may_be_arrays():
    keys, streams = np.array([[1], [2]], np.uint64), np.array([3, 4, 5], np.uint64)
    run = random_bits.bits32(
        np, CounterRun(np.zeros((2, 3), np.int64), 6), keys[..., None], streams[:, None]
    )
    for i, key in enumerate([1, 2]):
        for j, stream in enumerate([3, 4, 5]):
            assert same_bits(run[i, j], random_bits.bits32(np, CounterRun(0, 6), key, stream))
    assert same_bits(
        random_bits.uniform(np, CounterRun(0, 9), np.array(7, np.uint64)),
        random_bits.uniform(np, CounterRun(0, 9), 7),
    )


# Distributions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["uniform32", "uniform64"])
@pytest.mark.parametrize("key", [0, 1, 2**63])
def test_uniforms_are_uniform(draw, key):
    x = DRAWS[draw](np, CounterRun(0, N), key).astype(np.float64)
    assert stats.kstest(x, "uniform").pvalue > 1e-3
    assert abs(x.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / N)
    assert abs(x.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / N)


@pytest.mark.parametrize("draw", ["normal32", "normal64"])
@pytest.mark.parametrize("key", [0, 1, 2**63])
def test_normals_are_normal(draw, key):
    x = DRAWS[draw](np, CounterRun(0, N), key).astype(np.float64)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((x**power).mean() - moment) < 5 * np.sqrt(variance / N)


@pytest.mark.parametrize("draw", ["truncated32", "truncated64"])
def test_truncated_normals_fill_minus_two_to_two(draw):
    x = DRAWS[draw](np, CounterRun(0, N), 3).astype(np.float64)
    assert stats.kstest(x, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert -2 <= x.min() < -1.99 and 1.99 < x.max() <= 2
    assert abs(x.std() - 0.87962566) < 0.005


def test_neighbouring_elements_streams_and_keys_are_uncorrelated():
    draws = [
        random_bits.normal(np, CounterRun(0, N), key, stream, dtype=np.float64)
        for key in (0, 1)
        for stream in (0, 1)
    ]
    draws.append(np.roll(draws[0], 1))
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 5 / np.sqrt(N)


@pytest.mark.parametrize("count", [2, 3, 100, 1 << 16])
def test_integers_are_uniform(count):
    x = random_bits.integers(np, CounterRun(0, N), 11, low=0, high=count)
    seen = np.bincount(x, minlength=count)
    assert len(seen) == count
    assert stats.chisquare(seen).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.999, 1.0])
def test_bernoulli_has_its_probability(p):
    x = random_bits.bernoulli(np, CounterRun(0, N), 12, p=p)
    assert x.dtype == np.bool_
    assert abs(x.mean() - p) <= 5 * np.sqrt(p * (1 - p) / N)


def test_bernoulli_takes_an_array_of_probabilities():
    x = random_bits.bernoulli(
        np, CounterRun(np.arange(3) * 1000, 1000), 1, p=np.array([[0], [0.5], [1]])
    )
    assert x.mean(axis=1)[[0, 2]].tolist() == [0, 1]
    assert 0.4 < x[1].mean() < 0.6


# Limits -------------------------------------------------------------------------------------------


@pytest.fixture
def constant_bits(monkeypatch):
    """Make the generator return one value of the word, such as all ones."""

    def give(word: int) -> None:
        def philox_of(xp, counter, key):
            shape = np.broadcast_shapes(*(np.shape(c) for c in counter), np.shape(key))
            return np.full(shape, word, np.uint64), np.full(shape, word, np.uint64)

        monkeypatch.setattr(philox, "philox", philox_of)

    return give


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_reaches_zero_and_never_one(dtype, constant_bits):
    constant_bits(2**64 - 1)
    top = random_bits.uniform(np, CounterRun(0, 4), 0, dtype=dtype)
    assert top.dtype == dtype
    assert (top == 1 - np.finfo(dtype).epsneg).all()
    constant_bits(0)
    assert (random_bits.uniform(np, CounterRun(0, 4), 0, dtype=dtype) == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("word", [0, 2**64 - 1, 2**63, 2**63 - 1, 0x7FFFFFFF7FFFFFFF])
def test_normals_are_finite_and_truncated_ones_bounded(dtype, word, constant_bits):
    constant_bits(word)
    assert np.isfinite(random_bits.normal(np, CounterRun(0, 4), 0, dtype=dtype)).all()
    assert (np.abs(random_bits.truncated_normal(np, CounterRun(0, 4), 0, dtype=dtype)) <= 2).all()


RANGES = [
    (np.iinfo(dtype).min, np.iinfo(dtype).max + 1, dtype)
    for dtype in (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64)
] + [(0, 2, np.bool_), (-3, -2, np.int64), (5, 2**64, np.uint64), (-7, 2**32 - 7, np.int64)]


@pytest.mark.parametrize(("low", "high", "dtype"), RANGES)
def test_integers_cover_their_range_and_not_its_end(low, high, dtype, constant_bits):
    draw = {"low": low, "high": high, "dtype": dtype}
    constant_bits(0)
    assert random_bits.integers(np, CounterRun(0, 3), 0, **draw).tolist() == [low] * 3
    constant_bits(2**64 - 1)
    last = random_bits.integers(np, CounterRun(0, 3), 0, **draw)
    assert last.dtype == dtype
    assert last.tolist() == [high - 1] * 3


@given(low=st.integers(-(2**63), 2**63 - 2), key=WORD, data=st.data())
@settings(max_examples=200)
def test_integers_are_the_exact_multiply_shift(low, key, data):
    count = data.draw(st.integers(1, 2**63 - low))
    width, bits = (32, random_bits.bits32) if count <= 2**16 else (64, random_bits.bits64)
    expected = [low + (word * count >> width) for word in bits(np, CounterRun(0, 8), key).tolist()]
    drawn = random_bits.integers(np, CounterRun(0, 8), key, low=low, high=low + count)
    assert drawn.tolist() == expected


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        ({"low": 3, "high": 3}, errors.ShapeError, r"no integer lies in \[3, 3\)"),
        ({"low": 0, "high": 300, "dtype": np.uint8}, errors.DtypeError, "uint8 holds 0..255"),
        ({"low": -1, "high": 3, "dtype": np.uint8}, errors.DtypeError, "not all of -1..2"),
        (
            {"low": 0, "high": 3, "dtype": np.float32},
            errors.DtypeError,
            "float32 is not an integer",
        ),
    ],
)
def test_integers_name_what_is_wrong(call, kind, text):
    with pytest.raises(kind, match=text):
        random_bits.integers(np, CounterRun(0, 3), 0, **call)


@pytest.mark.parametrize("draw", ["uniform", "normal", "truncated_normal"])
def test_floating_draws_refuse_other_dtypes(draw):
    with pytest.raises(errors.DtypeError, match=f"{draw}: cannot draw int32"):
        getattr(random_bits, draw)(np, CounterRun(0, 3), 0, dtype=np.int32)


# The quantile -------------------------------------------------------------------------------------


def test_float32_quantile_is_within_6_ulp_of_scipy():
    edges = np.array([0, 1, 2**31 - 1, 2**31 - 2])
    bits = np.concatenate([edges, random_bits.bits32(np, CounterRun(0, N), 1) >> 1])
    bits = np.concatenate([bits, 2**31 - 1 - (bits >> 12)])  # and the far tail
    q, tail = (bits + 0.5) / 2**32, (2**31 - 1 - bits + 0.5) / 2**32
    expected = np.where(q < 0.2, np.sqrt(2) * special.erfinv(2 * q), -special.ndtri(tail))
    z = quantile(np, bits.astype(np.int32), np.dtype(np.float32))
    assert (np.abs(z - expected) <= 6 * np.spacing(expected.astype(np.float32))).all()


# Signed bits and the nearest float64 to the quantile of 1/2 + (bits + 1/2) / 2^64, from 50 digits.
QUANTILES = [
    (0x0, 6.794229552421306e-20),
    (0x1, 2.0382688657263917e-19),
    (0x3039, 1.6775632187883446e-15),
    (0x10000000007, 1.4940668789435076e-07),
    (0x80000000000000, 0.004895777906342452),
    (0x1000000000000000, 0.1573106846101707),
    (0x2000000000000000, 0.31863936396437514),
    (0x4000000000000000, 0.6744897501960817),
    (0x22A355923B17B8D8, 0.3459365043729754),
    (0x3000000000000000, 0.4887764111146695),
    (0x3800000000000000, 0.579132162255556),
    (0x6CCCCCCCCCCCCC00, 1.439531470938456),
    (0x6CCCCCCCCCCCD000, 1.4395314709384561),
    (0x7800000000000000, 1.8627318674216515),
    (0x7E00000000000000, 2.4175590162365053),
    (0x7FFC000000000000, 3.841930685501911),
    (0x7FFFFF0000000000, 5.294704084854681),
    (0x7FFFFFFFC0000001, 6.443934526750472),
    (0x7FFFFFFFE0000000, 6.548269367970847),
    (0x7FFFFFFFF0000000, 6.65103538016712),
    (0x7FFFFFFFFFF00000, 7.423939875108593),
    (0x7FFFFFFFFFFFFC00, 8.292419151624657),
    (0x7FFFFFFFFFFFFFFD, 8.979884744630784),
    (0x7FFFFFFFFFFFFFFF, 9.155293772686072),
]


def test_float64_quantile_is_within_5_ulp_of_the_true_value():
    bits = np.array([word for word, _ in QUANTILES])
    expected = np.array([z for _, z in QUANTILES])
    for sign, words in [(1, bits), (-1, ~bits)]:
        z = quantile(np, words, np.dtype(np.float64))
        assert (np.abs(sign * z - expected) <= 5 * np.spacing(expected)).all()


# Permutations and keys ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_permutation_holds_every_index_once(n):
    order = random_bits.permutation(np, n, 4)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_permutation_keeps_the_order_of_equal_bits(constant_bits):
    constant_bits(5)
    assert random_bits.permutation(np, 6, 0).tolist() == list(range(6))


def test_permutations_are_equally_likely():
    orders = [tuple(random_bits.permutation(np, 3, key).tolist()) for key in range(3000)]
    assert stats.chisquare([orders.count(order) for order in sorted(set(orders))]).pvalue > 1e-3


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_a_seed_below_2_to_64_is_its_key(seed):
    key = random_bits.key_from_seed(np, seed)
    assert (key.dtype, key.shape, int(key)) == (np.uint64, (), seed)


def test_seeds_of_any_size_have_keys_of_their_own():
    seeds = [1, 2**64, 2**64 + 1, 2**65 + 1, 2**128 + 1, 10**100]
    assert len({int(random_bits.key_from_seed(np, seed)) for seed in seeds}) == len(seeds)


def test_a_negative_seed_is_an_error():
    with pytest.raises(errors.ShapeError, match="seed: -1 is negative"):
        random_bits.key_from_seed(np, -1)


def test_derived_keys_differ_and_do_not_depend_on_how_they_are_batched():
    keys = random_bits.split(np, 5, 100)
    folded = random_bits.fold_in(np, 5, np.arange(100, dtype=np.uint64))
    assert len({*keys.tolist(), *folded.tolist()}) == 200
    assert same_bits(random_bits.split(np, 5, 7), keys[:7])
    assert int(random_bits.fold_in(np, 5, 42)) == int(folded[42])
    assert same_bits(random_bits.split(np, keys, 3)[8], random_bits.split(np, keys[8], 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sampler", [random_bits.uniform, random_bits.normal])
def test_loops_and_threads_give_the_same_bits(
    sampler: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin in the middle of a counter, and that cross a multiple of 2^32 counters."""
    run = CounterRun(np.array([3, 2**34 - 70_001]), 140_001)
    for module in (loops, philox):
        monkeypatch.setattr(module, "SMALLEST", 1 << 62)
    expected = sampler(np, run, 2**63 + 5, 2**40 + 1, dtype)
    monkeypatch.undo()
    assert np.array_equal(sampler(np, run, 2**63 + 5, 2**40 + 1, dtype), expected)
    monkeypatch.setattr(philox, "SMALLEST", 1 << 10)
    with gdt.host_threads(3):
        assert np.array_equal(sampler(np, run, 2**63 + 5, 2**40 + 1, dtype), expected)


def test_loops_meet_where_formulas_of_the_quantile_meet() -> None:
    """The middle, both sides of where the centre ends, every power of two of the tails, and the
    ends."""
    for dtype, width in ((np.float64, 64), (np.float32, 32)):
        half, centre = 2 ** (width - 1), int(0.425 * 2**width)
        upper = [half - 1 - 2**k for k in range(width - 1)] + [0, 1, 2, half - 1]
        upper += range(
            centre - 2 ** (width // 2), centre + 2 ** (width // 2), 2 ** (width // 2 - 5)
        )
        ends = np.array([*upper, *[2**width - 1 - word for word in upper]], f"u{width // 8}")
        words = np.resize(ends, loops.SMALLEST)
        kind = np.dtype(dtype)
        values = loops.normal(words.copy(), kind)
        signed = words.copy().view(f"i{kind.itemsize}")
        if values is not None:  # there is numba
            assert np.array_equal(values, quantile(np, signed, kind))
