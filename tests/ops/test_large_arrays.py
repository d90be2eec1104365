"""What works on large arrays keeps them split: bytes sent near the least there are, no device ever
holds more than a few shards, results as NumPy has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.backend import backend_of
from gdt.comm.transport import transport_of
from gdt.ops.products import panels
from gdt.testing import meshes
from tests.allocations import allocations

DEVICES = 8
MOST_HELD = 3.0  # shards that a device may hold beside those of the operands
SLACK = 1.2  # of the bytes that are sent
STORED_APART = gdt.create_mesh([("x", DEVICES)], blocks=DEVICES)
SMALL_MESHES = meshes([(8,), (2, 4), (4, 2)])

_rng = np.random.default_rng(5)


def placed(value: np.ndarray, specs: list[Any], mesh: gdt.Mesh = STORED_APART) -> Any:
    return gdt.asarray(value, layout=gdt.Layout(specs, mesh))


class Large:
    """A call on large split arrays. least: bytes that all devices have to send, in units of the
    bytes of the first operand. host_nbytes: bytes of operands that the host gives. rounding: the
    largest difference to the expected result, relative to its largest element."""

    def __init__(
        self,
        call: Callable[..., Any],
        *operands: tuple[np.ndarray, list[Any]],
        least: float,
        expect: Callable[..., Any] | None = None,
        host_nbytes: int = 0,
        rounding: float = 0.0,
    ) -> None:
        self.call, self.operands, self.least, self.rounding = call, operands, least, rounding
        self.expect, self.host_nbytes = expect or call, host_nbytes


VECTOR = _rng.standard_normal(1 << 18)
MATRIX = VECTOR.reshape(512, 512)
GROUPS = _rng.integers(0, 1 << 16, VECTOR.size)
COUNTS = _rng.integers(0, 5, VECTOR.size)
SKEWED = np.where(np.arange(VECTOR.size) < VECTOR.size - 8, 0, VECTOR.size // 8)
EVERY_THIRD = np.arange(0, VECTOR.size, 3)
ORDER = _rng.permutation(VECTOR.size)
WHOLE_NUMBERS = GROUPS.astype(float)  # whose sums are exact
SQUARE = _rng.integers(-4, 5, (1024, 1024)).astype(float)
REGULAR = SQUARE[:512, :512].copy()
DEFINITE = REGULAR @ REGULAR.T + 512 * np.eye(512)
KERNEL = np.arange(9.0)
UNEVEN = _rng.standard_normal(499 * 501)
MOVED = (DEVICES - 1) / DEVICES  # of an array that all devices spread over all


def _written(x: np.ndarray, index: np.ndarray, value: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[index] = value
    return out


CALLS = {
    "reshape at other boundaries": Large(
        lambda x: x.reshape(501, 499), (UNEVEN.reshape(499, 501), ["x", None]), least=0.02
    ),
    "reshape of an uneven vector": Large(
        lambda x: x.reshape(499, 501), (UNEVEN, ["x"]), least=0.035
    ),
    "reshape to a short first axis": Large(
        lambda x: x.reshape(4, 128, 512), (MATRIX, ["x", None]), least=MOVED
    ),
    "a permutation": Large(
        lambda x: x[ORDER], (VECTOR, ["x"]), least=MOVED, host_nbytes=ORDER.nbytes
    ),
    "a permutation of rows": Large(
        lambda x: x[ORDER[:512] % 512], (MATRIX, ["x", None]), least=MOVED
    ),
    "a split index": Large(lambda x, i: x[i], (VECTOR, ["x"]), (ORDER, ["x"]), least=2 * MOVED),
    "a mask": Large(lambda x, m: x[m], (VECTOR, ["x"]), (VECTOR > 0, ["x"]), least=MOVED / 2),
    "a mask of rows": Large(
        lambda x, m: x[m], (MATRIX, ["x", None]), (MATRIX[:, 0] > 0, ["x"]), least=MOVED / 2
    ),
    "nonzero": Large(np.flatnonzero, (VECTOR > 0, ["x"]), least=4 * MOVED),
    "sort": Large(np.sort, (VECTOR, ["x"]), least=2 * MOVED),
    "sort of equal elements": Large(np.sort, (np.ones(1 << 18), ["x"]), least=2 * MOVED),
    "argsort": Large(np.argsort, (VECTOR, ["x"]), least=2.5 * MOVED),
    "sort of split columns": Large(
        lambda x: np.sort(x, axis=0), (MATRIX, ["x", None]), least=MOVED
    ),
    "isin of few": Large(lambda x: np.isin(x, VECTOR[:99]), (VECTOR, ["x"]), least=0.01),
    "searchsorted": Large(
        np.searchsorted, (np.sort(VECTOR), ["x"]), (VECTOR, ["x"]), least=2 * MOVED
    ),
    "unique": Large(gdt.unique, (GROUPS, ["x"]), least=2 * MOVED, expect=np.unique),
    "first ten": Large(
        lambda x: gdt.top_k(x, 10)[1],
        (VECTOR, ["x"]),
        least=0,
        expect=lambda x: np.argsort(-x)[:10],
    ),
    "unique rows": Large(
        lambda x: gdt.unique(x, axis=0),
        ((GROUPS % 3).reshape(-1, 64), ["x", None]),
        least=2.5 * MOVED,
        expect=lambda x: np.unique(x, axis=0),
    ),
    "repeat by counts": Large(
        lambda x: gdt.repeat(x, COUNTS),
        (VECTOR, ["x"]),
        least=0.1,
        host_nbytes=COUNTS.nbytes,
        expect=lambda x: np.repeat(x, COUNTS),
    ),
    "repeat by split counts": Large(
        gdt.repeat, (VECTOR, ["x"]), (COUNTS, ["x"]), least=0.1, expect=np.repeat
    ),
    "repeat of the last elements": Large(
        gdt.repeat, (VECTOR, ["x"]), (SKEWED, ["x"]), least=0.01, expect=np.repeat
    ),
    "writing at a split index": Large(
        lambda x, i, v: x.at[i].set(v),
        (VECTOR, ["x"]),
        (ORDER, ["x"]),
        (VECTOR, ["x"]),
        least=2 * MOVED,
        expect=_written,
    ),
    "writing an interval": Large(
        lambda x, v: x.at[1000:].set(v),
        (VECTOR, ["x"]),
        (VECTOR[1000:], ["x"]),
        least=0.03,
        expect=lambda x, v: np.concatenate([x[:1000], v]),
    ),
    "ravel of split columns": Large(lambda x: x.ravel(), (MATRIX, [None, "x"]), least=MOVED),
    "take along a vector": Large(
        lambda x, i: np.take_along_axis(x, i, 0),
        (VECTOR, ["x"]),
        (ORDER, ["x"]),
        least=2 * MOVED,
    ),
    "take along split rows": Large(
        lambda x, i: np.take_along_axis(x, i, 0),
        (MATRIX, ["x", None]),
        (GROUPS.reshape(512, 512) % 512, ["x", None]),
        least=2 * MOVED,
    ),
    "interpolation between split points": Large(
        np.interp,
        (VECTOR, ["x"]),
        (np.sort(VECTOR), ["x"]),
        (WHOLE_NUMBERS, ["x"]),
        least=2 * MOVED,
    ),
    "bincount of a large range": Large(
        np.bincount,
        (ORDER, ["x"]),
        least=2 * MOVED,
        host_nbytes=ORDER.nbytes,  # of the ones that are added
    ),
    "sums of a large range": Large(
        np.bincount, (ORDER, ["x"]), (WHOLE_NUMBERS, ["x"]), least=2 * MOVED
    ),
    "delete": Large(
        lambda x: np.delete(x, EVERY_THIRD),
        (VECTOR, ["x"]),
        least=MOVED,
        host_nbytes=2 * VECTOR.nbytes,
    ),
    "delete by a split mask": Large(
        np.delete, (VECTOR, ["x"]), (VECTOR < 0, ["x"]), least=MOVED / 2
    ),
    "delete at split places": Large(np.delete, (VECTOR, ["x"]), (GROUPS, ["x"]), least=2 * MOVED),
    "insert": Large(
        lambda x, v: np.insert(x, EVERY_THIRD, v),
        (VECTOR, ["x"]),
        (VECTOR[EVERY_THIRD], ["x"]),
        least=(0.4 + 2 * 4 / 3) * MOVED,  # joined, and then indices and rows of the result
        host_nbytes=4 * VECTOR.nbytes,  # the order of old and new elements, while it is made
    ),
    "stack": Large(lambda x, y: np.stack([x, y]), (VECTOR, ["x"]), (VECTOR, ["x"]), least=0),
    "convolution": Large(
        lambda x: gdt.convolve(x, KERNEL),
        (WHOLE_NUMBERS, ["x"]),
        least=0.01,
        expect=lambda x: np.convolve(x, KERNEL),
    ),
    "roll": Large(lambda x: np.roll(x, x.size // 3), (VECTOR, ["x"]), least=1),
    "cumulative sum": Large(np.cumsum, (WHOLE_NUMBERS, ["x"]), least=0.01),
    "put along a vector": Large(
        lambda x, i, v: x.at[i].add(v),
        (VECTOR, ["x"]),
        (ORDER, ["x"]),
        (VECTOR, ["x"]),
        least=2 * MOVED,
        expect=lambda x, i, v: x + v[np.argsort(i)],
    ),
    "product": Large(
        np.matmul, (SQUARE, ["x", None]), (SQUARE, ["x", None]), least=DEVICES * MOVED
    ),
    "product by columns": Large(
        np.matmul, (SQUARE, [None, "x"]), (SQUARE, [None, "x"]), least=DEVICES * MOVED
    ),
    "product with its transpose": Large(
        lambda x: x.T @ x, (SQUARE, ["x", None]), least=DEVICES * MOVED
    ),
    # Three all-to-alls each, of complex numbers, or of half as many of them for real ones; of the
    # transform of these, every element is needed where the last ones are first.
    "fft": Large(np.fft.fft, (VECTOR + 1j, ["x"]), least=3 * MOVED, rounding=1e-12),
    "fft of reals": Large(np.fft.rfft, (VECTOR, ["x"]), least=3 * MOVED + 1, rounding=1e-12),
    "inverse fft of reals": Large(
        np.fft.irfft, (np.fft.rfft(VECTOR), ["x"]), least=3 * MOVED + 1, rounding=1e-12
    ),
    "fft of an odd number": Large(
        np.fft.fft, (UNEVEN + 1j, ["x"]), least=3 * MOVED, rounding=1e-12
    ),
    "hfft": Large(np.fft.hfft, (np.fft.rfft(VECTOR), ["x"]), least=3 * MOVED + 1, rounding=1e-12),
    # Both triangles go to every device, in panels; for `solve` rows become columns, and rows again.
    "solve": Large(
        np.linalg.solve,
        (REGULAR, ["x", None]),
        (REGULAR[::-1].copy(), ["x", None]),
        least=(DEVICES + 3) * MOVED,
        rounding=1e-9,
    ),
    "solve for a vector": Large(
        np.linalg.solve,
        (REGULAR, [None, "x"]),
        (REGULAR[0], ["x"]),
        least=DEVICES * MOVED,
        rounding=1e-9,
    ),
    "inverse": Large(np.linalg.inv, (REGULAR, ["x", None]), least=DEVICES * MOVED, rounding=1e-9),
    "determinant": Large(
        np.linalg.slogdet, (REGULAR, ["x", None]), least=DEVICES / 2 * MOVED, rounding=1e-9
    ),
    "Cholesky": Large(
        np.linalg.cholesky, (DEFINITE, ["x", None]), least=DEVICES * MOVED, rounding=1e-9
    ),
}


GROWING: dict[str, Callable[[Any], Any]] = {
    "delete": lambda x: gdt.delete(x, np.arange(0, x.size, 3)),
    "insert": lambda x: gdt.insert(x, np.arange(0, x.size, 3), x[:1]),
    "unique rows": lambda x: gdt.unique(x.reshape(64, -1), axis=0),
    "unique columns": lambda x: gdt.unique(x.reshape(64, -1), axis=1),
    "lexsort": lambda x: gdt.lexsort([x, x > 0, -x]),
    "slices": lambda x: gdt.apply_along_axis(lambda row: row * 2, 1, x.reshape(-1, 4)),
    "interp": lambda x: gdt.interp(x, gdt.sort(x), x),
    "bincount": lambda x: gdt.bincount(abs(x).astype(int) + 9000),
}


@pytest.mark.parametrize("blocks", [1, DEVICES])
@pytest.mark.parametrize("name", GROWING)
def test_collectives_do_not_grow_in_number_with_the_data(name: str, blocks: int) -> None:
    mesh, counts = gdt.create_mesh([("x", DEVICES)], blocks=blocks), []
    for size in (1024, 8192):
        x = placed(VECTOR[:size], ["x"], mesh)
        with gdt.count_collectives() as counter:
            GROWING[name](x)
        counts.append(len(counter))
    assert counts[0] == counts[1] <= 20


def spread(value: Any) -> list[gdt.DistributedArray]:
    return list(value) if isinstance(value, tuple | list) else [value]


@pytest.mark.parametrize("name", CALLS)
def test_large_arrays_stay_split(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = backend_of(STORED_APART).pool  # type: ignore[attr-defined]
    monkeypatch.setattr(pool, "capacity", 0)  # recycled memory would not be counted
    pool.trim()
    monkeypatch.setattr(panels, "SUMMED", 1 << 18)  # as if devices were as small as these arrays
    large = CALLS[name]
    operands = [placed(value, specs) for value, specs in large.operands]
    nbytes = operands[0].nbytes
    sent = transport_of(STORED_APART).bytes
    before = sent.total()
    results = spread(large.call(*operands))
    assert sent.total() - before <= SLACK * large.least * nbytes + 20_000
    for result, expected in zip(
        results, spread(large.expect(*[value for value, _ in large.operands])), strict=True
    ):
        atol = large.rounding * np.abs(expected).max() if large.rounding else 0.0
        np.testing.assert_allclose(result.numpy(), expected, 0.0, atol)
        assert all(block.nbytes <= 1.5 * result.nbytes / DEVICES + 1000 for block in result.blocks)
    with allocations() as allocated:
        large.call(*operands)
    data = sum(operand.nbytes for operand in operands) + large.host_nbytes
    data = max(data, sum(result.nbytes for result in results))
    assert allocated.peak <= MOST_HELD * data + 1_000_000


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "std", "nansum", "cumsum"])
def test_a_wider_dtype_is_added_up_in(name: str) -> None:
    """NumPy's dtype of float64 equals None, for which it was taken."""
    x = np.random.default_rng(0).uniform(0.9, 1.1, (1000, 500)).astype("float32")
    for axis, spec in itertools.product((None, 0, 1), (None, "a")):
        want = getattr(np, name)(x, axis=axis, dtype="float64")
        array = gdt.asarray(x, layout=gdt.Layout([spec, None], gdt.create_mesh([("a", 4)])))
        call = lambda x, axis=axis: getattr(gdt, name)(x * 1, axis=axis, dtype="float64")
        step = gdt.function(call)
        for got in (call(array), *[step(array) for _ in range(4)]):
            assert got.dtype == np.float64
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
