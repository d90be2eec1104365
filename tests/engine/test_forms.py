"""Forms into which ops have moved arrays: who takes them, and when they are gone."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.engine import forms
from gdt.errors import GdtError
from gdt.ops.products.contraction import matrix_product_tn

MESH = gdt.create_mesh([("a", 8)])
ROWS, COLUMNS, WHOLE = (gdt.Layout(s, MESH) for s in (["a", None], [None, "a"], [None, None]))


def operands(rng: np.random.Generator, n: int = 24) -> tuple[DistributedArray, DistributedArray]:
    """Matrices whose product moves the first one, which then has a form."""
    x, w = rng.normal(size=(n, 16)), rng.normal(size=(16, n))
    return gdt.asarray(x, layout=COLUMNS), gdt.asarray(w, layout=WHOLE)


def bytes_of(f: Callable[[], Any]) -> int:
    with gdt.count_collectives() as counter:
        f()
    return counter.bytes


# ---------------------------------------------------------------- earlier tapes


def is_never_asked(x: DistributedArray, w: DistributedArray) -> None:
    with gdt.GradientTape():
        gdt.relu(x @ w)


def ends_with_an_error(x: DistributedArray, w: DistributedArray) -> None:
    with gdt.GradientTape():
        gdt.relu(x @ w) @ x.T[:5]


def is_asked_for_what_has_no_gradient(x: DistributedArray, w: DistributedArray) -> None:
    with gdt.GradientTape() as tape:
        y = gdt.relu(x @ w)
    tape.gradient(y, gdt.asarray([1, 2]))


def is_asked(x: DistributedArray, w: DistributedArray) -> None:
    with gdt.GradientTape() as tape:
        y = gdt.relu(x @ w)
    tape.gradient(y, w)


def is_asked_twice(x: DistributedArray, w: DistributedArray) -> None:
    with gdt.GradientTape(persistent=True) as tape:
        y = gdt.relu(x @ w)
    first = bytes_of(lambda: tape.gradient(y, w))
    assert 0 < first <= bytes_of(lambda: tape.gradient(y, w))


def runs_a_function_again(x: DistributedArray, w: DistributedArray) -> None:
    with gdt.GradientTape() as tape:
        y = gdt.checkpointed(lambda x, w: gdt.relu(x @ w))(x, w)
    tape.gradient(y, w)


EARLIER = [
    is_never_asked,
    ends_with_an_error,
    is_asked_for_what_has_no_gradient,
    is_asked,
    is_asked_twice,
    runs_a_function_again,
]


@pytest.mark.parametrize("earlier", EARLIER)
def test_a_tape_moves_what_an_earlier_tape_has_moved(
    earlier: Callable[..., None], rng: np.random.Generator
) -> None:
    x, w = operands(rng)
    first = bytes_of(lambda: is_never_asked(*operands(rng)))
    assert first > 0
    try:
        earlier(x, w)
    except GdtError:
        assert earlier in (ends_with_an_error, is_asked_for_what_has_no_gradient)
    assert bytes_of(lambda: is_never_asked(x, w)) == first


def test_a_step_hands_no_form_to_a_thread_whose_tape_is_gone(rng: np.random.Generator) -> None:
    """A step puts back what it has hidden of its arguments, when another thread is done with it."""
    x, w = operands(rng)
    first = bytes_of(lambda: is_never_asked(*operands(rng)))
    begun, done = threading.Event(), threading.Event()

    @gdt.function
    def step(x: DistributedArray) -> DistributedArray:
        begun.set()
        assert done.wait(60)
        return x + 1.0

    with gdt.GradientTape() as tape:
        y = gdt.relu(x @ w)
    thread = threading.Thread(target=step, args=(x,))
    thread.start()
    assert begun.wait(60)
    tape.gradient(y, w)
    done.set()
    thread.join()
    assert bytes_of(lambda: is_never_asked(x, w)) == first


def test_tapes_of_two_threads_have_forms_of_their_own(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Also where one takes its gradient while the other one chooses among the forms."""
    x, w = operands(rng, 56)  # as no other test has: no plan
    with gdt.GradientTape(persistent=True) as other:
        loss = gdt.sum(gdt.relu(x @ w))
    choose = forms._cheaper_forms

    def choose_late(*args: Any) -> list[int]:
        monkeypatch.setattr(forms, "_cheaper_forms", choose)
        thread = threading.Thread(target=other.gradient, args=(loss, w))
        thread.start()
        thread.join()
        return choose(*args)

    monkeypatch.setattr(forms, "_cheaper_forms", choose_late)
    with gdt.GradientTape() as tape:
        for _ in range(2):
            y = gdt.relu(x @ w)
        assert tape.forms.get(x) is not None
    assert forms._cheaper_forms is choose
    np.testing.assert_allclose(y, np.maximum(x.numpy() @ w.numpy(), 0))


# ---------------------------------------------------------------- the lives of forms


def test_a_form_is_gone_with_its_tape(rng: np.random.Generator) -> None:
    x, w = operands(rng)
    with gdt.GradientTape() as tape:
        gdt.relu(x @ w)
    form = weakref.ref(tape.forms.get(x))
    assert form() is not None
    del tape
    assert form() is None


def test_a_form_is_gone_with_its_array() -> None:
    x, form = gdt.ones((24, 16), layout=COLUMNS), gdt.ones((24, 16), layout=ROWS)
    kept = forms.Forms()
    kept.put(x, form)
    form = weakref.ref(form)
    assert kept.get(x) is form() is not None
    del x
    assert form() is None
    assert not kept.entries


def test_a_form_is_gone_with_the_memory_of_its_array() -> None:
    """Of an array to which only the record of a tape refers."""
    shape = (512, 256)
    sources = [gdt.ones(shape, layout=layout) for layout in (ROWS, COLUMNS)]
    with gdt.GradientTape() as tape:
        x, y = (source + 1.0 for source in sources)
        total = x + y
        (form,) = [weakref.ref(kept) for _, kept in tape.forms.entries.values()]
        del x, y
        loss = gdt.sum(total * 2.0)
    assert form() is None
    for gradient in tape.gradient(loss, sources):
        assert np.array_equal(gradient.numpy(), np.full(shape, 2.0))


@pytest.mark.parametrize("shown", [lambda x: x, lambda x: x[:, :]])
def test_a_written_array_and_its_view_have_no_form_of_before(
    shown: Callable[..., DistributedArray], rng: np.random.Generator
) -> None:
    x, w = operands(rng)
    with gdt.GradientTape() as tape:
        y = shown(x)
        gdt.relu(y @ w)
        assert tape.forms.get(y) is not None
        x[0] = 5.0
        after = gdt.relu(y @ w)
    np.testing.assert_allclose(after, np.maximum(x.numpy() @ w.numpy(), 0))


def test_a_step_takes_no_forms_from_around_it(rng: np.random.Generator) -> None:
    """As in a gradient function that calls a step: each call moves the same, recorded or not."""
    x, w = operands(rng)
    step = gdt.function(lambda x, w: gdt.sum(gdt.relu(x @ w)))
    kept = forms.Forms()
    with forms.keeping_forms(kept):
        gdt.relu(x @ w)
        assert kept.get(x) is not None
        results = {float(step(x, w)) for _ in range(4)}
    assert len(results) == 1
    assert step.programs


@pytest.mark.parametrize("left", [("b", "c", "a"), ("c", "b", "a")])
def test_what_has_moved_is_not_moved_back(left: tuple[str, ...], rng: np.random.Generator) -> None:
    """Some of these pairs of layouts have a strategy for what has moved that would move it back."""
    mesh = gdt.create_mesh({"a": 2, "b": 2, "c": 2}, device_type="CPU")
    values = rng.normal(size=(2, 8, 16)), rng.normal(size=(2, 8, 20))
    x = gdt.asarray(values[0], layout=gdt.Layout(left, mesh))
    for right in sorted({*itertools.permutations(["a", "b", "c", None, None, None], 3)}, key=str):
        w = gdt.asarray(values[1], layout=gdt.Layout(right, mesh))
        with gdt.GradientTape():
            out = matrix_product_tn(x, w)
        np.testing.assert_allclose(out.numpy(), np.einsum("bki,bkj->ij", *values), rtol=1e-12)
