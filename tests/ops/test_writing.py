"""`x[i] = v` and NumPy's functions that write: the array changes, and no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.caches import BUDGET
from gdt.errors import FunctionError, GradientError, RangeError
from gdt.testing import meshes
from tests.allocations import allocations

_rng = np.random.default_rng(3)
MESHES = meshes([(4,), (2, 2)], modes=["folded", "apart"])
SHAPES = [(11,), (7, 5), (4, 4, 4), (0, 3)]


def split(value: np.ndarray, mesh: gdt.Mesh, axis: int = 0) -> gdt.DistributedArray:
    specs = [mesh.axis_names[0] if d == axis else None for d in range(value.ndim)]
    return gdt.asarray(value, layout=gdt.Layout(specs, mesh))


def calls(a: np.ndarray) -> list[Callable[[Any, Any], Any]]:
    """Functions of NumPy's namespace, or gdt's, and of an array that they write."""
    mask = _rng.random(a.shape) > 0.5
    some: list[Callable[[Any, Any], Any]] = [
        lambda xp, x: xp.place(x, mask, [1.0, 2.0, 3.0]),
        lambda xp, x: xp.putmask(x, mask, [1.0, 2.0, 3.0]),
        lambda xp, x: xp.putmask(x, mask, a * 2),
        lambda xp, x: xp.copyto(x, 3.0, where=mask),
        lambda xp, x: xp.copyto(x, a * 2),
    ]
    if a.size:
        some += [
            lambda xp, x: xp.put(x, [0, -1, 3, 0], [1.0, 2.0]),
            lambda xp, x: xp.put(x, [0, 99, -105], 9.0, mode="wrap"),
            lambda xp, x: xp.put(x, [0, 99, -105], [9.0, 8.0, 7.0], mode="clip"),
        ]
    if a.size and a.ndim > 1:
        order, value = np.argsort(a, axis=0), _rng.standard_normal(a.shape)
        some += [
            lambda xp, x: xp.fill_diagonal(x, [5.0, 6.0], wrap=True),
            lambda xp, x: xp.fill_diagonal(x, 5.0),
            lambda xp, x: xp.put_along_axis(x, order, value, axis=0),
            lambda xp, x: xp.put_along_axis(x, order[..., :1] % a.shape[-1], 7.0, axis=-1),
        ]
    return some


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: str(m.grid))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_functions_write_as_numpy_s(shape: tuple[int, ...], mesh: gdt.Mesh) -> None:
    a = _rng.standard_normal(shape)
    for call in calls(a):
        for axis, xp in ((0, gdt), (len(shape) - 1, np)):
            x, expected = split(a, mesh, axis), a.copy()
            layout = x.layout
            call(xp, x)
            call(np, expected)
            np.testing.assert_array_equal(x.numpy(), expected)
            assert x.layout is layout


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: str(m.grid))
def test_writing_changes_views_and_no_other_array(mesh: gdt.Mesh) -> None:
    a = np.arange(12.0)
    x = split(a, mesh)
    others = [x.copy(), gdt.relayout(x, [None]), x + 0, x.flatten(), x[[0, 1]], x[x > 3]]
    views = [(x.reshape(3, 4), a.reshape(3, 4)), (x[2:5], a[2:5]), (x.T, a.T), (x[:], a)]
    before = [other.numpy().copy() for other in others]
    x[3] = 100.0
    x[x > 8] = -1.0
    x[[0, 1]] += 5.0
    x[::-2] = x[:6]
    a[3], a[a > 8] = 100.0, -1.0
    a[a > 8] = -1.0
    a[[0, 1]] += 5.0
    a[::-2] = a[:6].copy()
    np.testing.assert_array_equal(x.numpy(), a)
    for other, value in [*zip(others, before, strict=True), *views]:
        np.testing.assert_array_equal(other.numpy(), value)


def test_partial_sums_are_resolved_before_they_are_written() -> None:
    mesh = gdt.create_mesh([("x", 2)])
    x = split(np.ones((2, 3)), mesh).sum(axis=0)
    assert x.layout.partial
    x[1] = 7.0
    assert x.tolist() == [2.0, 7.0, 2.0]


@pytest.mark.parametrize("layout", [["x", None], [None, None]])
def test_functions_with_nothing_to_do_return_another_array(layout: list[Any]) -> None:
    mesh = gdt.create_mesh([("x", 2)])
    x = gdt.ones((4, 2), layout=gdt.Layout(layout, mesh))
    results = [
        x.astype(x.dtype), x.copy(), gdt.concat([x]), gdt.tile(x, 1), gdt.pad(x, 0),
        gdt.pad(x, 0, mode="edge"), gdt.roll(x, 0), +x, x.conj(), x.round(),
        gdt.relayout(x, x.layout), x.relayout(layout), gdt.relayout_like(x, x),
    ]  # fmt: skip
    with gdt.GradientTape() as tape:
        functions = (gdt.negative, lambda x: x[:], lambda x: x.astype("f8"),
                     lambda x: gdt.relayout(x, x.layout))  # fmt: skip
        total = gdt.sum(sum(f(x) for f in functions))
    assert tape.gradient(total, x).tolist() == [[2.0, 2.0]] * 4
    for y in results:
        y[0] = -1.0
        assert y.tolist()[0] == [-1.0, -1.0] and x.tolist() == [[1.0, 1.0]] * 4


@pytest.mark.parametrize("blocks", [1, 2])
def test_writing_to_a_resolved_sum_leaves_the_partial_one_as_it_is(blocks: int) -> None:
    mesh = gdt.create_mesh([("x", 2)], blocks=blocks)
    partial = gdt.sum(gdt.ones((4, 2), layout=gdt.Layout(["x", None], mesh)), axis=0)
    resolved = partial.resolve()  # whose blocks nobody else refers to
    resolved[0] = -1.0
    resolved[1:][...] = -2.0
    assert resolved.tolist() == [-1.0, -2.0] and partial.tolist() == [4.0, 4.0]
    partial = gdt.sum(gdt.ones((4, 2), layout=gdt.Layout(["x", None], mesh)), axis=0)
    for resolved in (gdt.relayout(partial, partial.layout.resolved), partial.resolve()):
        resolved[0] = -1.0
        assert resolved.tolist() == [-1.0, 4.0] and partial.tolist() == [4.0, 4.0]
    first, second = (gdt.relayout(partial, partial.layout.resolved) for _ in range(2))
    first[0] = -1.0
    assert second.tolist() == partial.tolist() == [4.0, 4.0]


def test_values_go_to_their_owners_alone() -> None:
    mesh = gdt.create_mesh([("x", 4)], blocks=4)
    x, value = split(np.zeros(4000), mesh), split(np.ones(1000), mesh)
    with gdt.count_collectives() as counter:
        x.at[1000:2000].set(value)
        x.at[1000:2000].set(1.0)
        x.at[np.arange(4000) % 2 == 0].set(1.0)
    assert counter.bytes == 750 * 8  # of a fourth, which is not there yet


def test_gradients_pass_through_writes() -> None:
    def f(w: Any, xp: Any) -> Any:
        out = xp.zeros(3)
        out[0] = w[0] * 2
        out[1:] = w[1:] * w[0]
        out[1] = out[0] * out[1]
        return out.sum()

    w, step = np.arange(1.0, 4.0), 1e-6
    gradient = gdt.grad(lambda w: f(w, gdt))(gdt.asarray(w))
    differences = [(f(w + d, np) - f(w - d, np)) / (2 * step) for d in step * np.eye(3)]
    np.testing.assert_allclose(gradient.numpy(), differences, rtol=1e-6)


def test_a_source_that_is_written_has_no_gradient() -> None:
    w = gdt.asarray([1.0, 2.0])
    with gdt.GradientTape(persistent=True) as tape:
        loss = gdt.sum(w * w)
    w[0] = 5.0
    with pytest.raises(GradientError, match=r"x\.at\[i\]"):
        tape.gradient(loss, w)


def test_gradients_of_a_function_that_writes_to_its_argument_are_at_what_it_is_given() -> None:
    def writes(w: gdt.DistributedArray) -> gdt.DistributedArray:
        square = w * w
        w[0] = 3.0
        w += square
        return gdt.sum(w * w)

    def returns(w: gdt.DistributedArray) -> gdt.DistributedArray:
        return gdt.sum((w.at[0].set(3.0) + w * w) ** 2)

    w = gdt.asarray([1.0, 2.0])
    assert gdt.grad(writes)(w).tolist() == gdt.grad(returns)(w).tolist() == [16.0, 60.0]
    assert gdt.grad(lambda tree: writes(tree["w"]))({"w": w})["w"].tolist() == [16.0, 60.0]
    assert w.tolist() == [1.0, 2.0]


def test_what_a_tape_recorded_before_a_write_keeps_its_value() -> None:
    w = gdt.asarray([1.0, 2.0])
    with gdt.GradientTape() as tape:
        factor = w * 3.0
        loss = gdt.sum(factor * w)
    factor[0] = 100.0
    assert tape.gradient(loss, w).tolist() == [6.0, 12.0]


def test_recorded_steps_write_to_their_own_arrays_and_to_those_that_are_state() -> None:
    @gdt.function
    def step(a: gdt.DistributedArray, v: gdt.DistributedArray) -> gdt.DistributedArray:
        b = a * 2
        b[0] = v
        b[1:] = b[:-1]
        return b

    for v in range(4):
        assert step(gdt.arange(4), gdt.asarray(v)).tolist() == [v, v, 2, 4]

    @gdt.function
    def writes(a: gdt.DistributedArray) -> gdt.DistributedArray:
        a[0] = a[0] + 1
        return a

    x = gdt.zeros(2)
    view = x[:1]
    for n in range(1, 6):
        assert writes(x).tolist() == x.tolist() == [n, 0.0] and view.tolist() == [n]

    @partial(gdt.function, state=[{}])
    def unnamed(a: gdt.DistributedArray) -> gdt.DistributedArray:
        x[0] = a[0]
        return a

    unnamed(gdt.ones(1))  # runs as written
    with pytest.raises(FunctionError, match=r"x\.at\[i\]"):
        unnamed(gdt.zeros(1))
    assert x.tolist() == [1.0, 0.0]


ERRORS = [
    (IndexError, lambda x: x.__setitem__(10, 1), "index 10 is out of range"),
    (ValueError, lambda x: x.__setitem__(slice(2), [1, 2, 3]), "does not broadcast"),
    (TypeError, lambda x: x.__setitem__(0, "s"), "^__setitem__: value is a str"),
    (TypeError, lambda x: x.__setitem__(0, 1j), "cannot be an element"),
    (TypeError, lambda x: x.astype("int64").at[0].add(1.5), "cannot be combined"),
    (TypeError, lambda x: x.astype("int64").at[0].divide(2), "quotient"),
    (IndexError, lambda x: x.__setitem__(np.ones(3, bool), 1), "mask of shape"),
    (ValueError, lambda x: gdt.update_at(x, 1, 0, how="other"), "how is 'other'"),
    (IndexError, lambda x: gdt.put(x, [70], 1), "index 70"),
    (ValueError, lambda x: gdt.put(x, [0], 1, mode="no"), "mode"),
    (ValueError, lambda x: gdt.place(x, np.ones(4, bool), []), "no value"),
    (TypeError, lambda x: gdt.copyto(x.astype(int), [1.5] * 4), "cannot be cast"),
    (TypeError, lambda x: gdt.copyto(x.astype(int), 2.5), "2.5 cannot be cast to int64"),
    (TypeError, lambda x: gdt.copyto(x > 0, 3), "3 cannot be cast to bool"),
    (ValueError, lambda x: gdt.fill_diagonal(x, 1), "rank"),
    (TypeError, lambda x: gdt.put(np.zeros(3), [1], 1), "ndarray"),
]
OVERFLOWS: list[Callable[[Any, Any], Any]] = [
    lambda xp, x: x.__setitem__(0, 300),
    lambda xp, x: x.__setitem__(0, -1),
    lambda xp, x: x.__setitem__(slice(None), [1, 2, 300, 4]),
    lambda xp, x: xp.add(x, 300),
    lambda xp, x: xp.full_like(x, 300),
    lambda xp, x: xp.asarray([1, 300], dtype="uint8"),
    lambda xp, x: xp.put(x, [0], 300),
    lambda xp, x: xp.putmask(x, x == 0, [1, 300]),
    lambda xp, x: xp.place(x, x == 0, [300]),
    lambda xp, x: xp.copyto(x, 300),
    lambda xp, x: xp.put_along_axis(x, np.array([0]), 300, 0),
    lambda xp, x: xp.fill_diagonal(x.reshape(2, 2), 300),
]


@pytest.mark.parametrize("call", OVERFLOWS)
def test_a_number_that_the_dtype_cannot_hold_is_an_error_as_numpys(
    call: Callable[[Any, Any], Any],
) -> None:
    host = np.zeros(4, "uint8")
    with pytest.raises(OverflowError):
        call(np, host)
    x = split(np.zeros(4, "uint8"), MESHES[0])
    with pytest.raises(RangeError, match="out of bounds for uint8"):
        call(gdt, x)
    assert x.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("kind", "call", "text"), ERRORS, ids=[text for _, _, text in ERRORS])
def test_mistakes_are_named(kind: type[Exception], call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(kind, match=text):
        call(split(np.zeros(4), MESHES[0]))


def test_an_element_of_flat_is_read_without_a_copy_of_the_array() -> None:
    x = split(np.arange(60_000.0).reshape(300, 200), MESHES[-1], axis=1)
    BUDGET.clear()  # full caches that turn meanwhile would be copied
    assert float(x.flat[777]) == 777
    with allocations() as allocated:
        assert float(x.flat[778]) == 778
    assert allocated.peak < x.nbytes / 8


@pytest.mark.parametrize("shape", [*SHAPES, ()])
def test_flat_reads_and_writes_as_numpys(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    mask = np.arange(size) % 3 == 1
    cases: list[tuple[Any, Any]] = [
        (slice(2, 9), [1.0, 2.0]), (slice(None), 5.0), (slice(None, None, 5), [3.0]),
        (mask, [8.0, 9.0]),
        (slice(None), []), (..., []),
        (slice(20, None, -3), [1, 2, 3]), (slice(4, 4), 1.0), ([0, -1, 2][:size], [1, 2, 3][:size]),
        *([(3, 7.0), (-2, 1.0), (np.int64(0), 2.0)] if size > 3 else []),
    ]  # fmt: skip
    for mesh in MESHES:
        for axis in range(max(len(shape), 1)):
            host = _rng.standard_normal(shape)
            x = split(host, mesh, axis)
            before, layout = x * 1, x.layout
            assert len(x.flat) == size and [float(v) for v in x.flat] == host.ravel().tolist()
            for index, value in cases:
                np.testing.assert_array_equal(np.asarray(x.flat[index]), host.flat[index])
                x.flat[index] = value
                host.flat[index] = value
                np.testing.assert_array_equal(x.numpy(), host)
                assert x.layout is layout
            x.flat, host.flat = [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]
            assert np.array_equal(x.numpy(), host) and np.array_equal(np.asarray(x.flat), host.flat)
            assert not size or not np.array_equal(before.numpy(), host)
            for wrong in (lambda x=x: x.flat[size], lambda x=x: x.flat.__setitem__(size, 1.0)):
                with pytest.raises(IndexError, match=f"index {size} is out of range"):
                    wrong()
            for index in ((0, 0), None, True, np.ones(size + 1, bool)):
                with pytest.raises(IndexError):
                    x.flat[index]
                with pytest.raises(IndexError):
                    x.flat[index] = 1.0
