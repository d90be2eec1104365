"""Feed: the batches of any iterable, in passes, with a position that can be returned to.

`Batches` and grain's iterators say and take back their position (`get_state`, `set_state`), as do
torchdata's loaders (`state_dict`, `load_state_dict`). Of all others the batches taken are counted,
and a return to a position takes and drops as many.
"""

from __future__ import annotations

import base64
import contextvars
import itertools
import queue
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gdt.backend import copying_ahead
from gdt.comm.agreement import held_notes
from gdt.comm.notes import note_held
from gdt.errors import ArgumentError, error, type_text
from gdt.sharding.dtypes import name_of

REITERABLE = "Pass a list, or an object that yields its batches again in every iteration."


class Feed:
    """The batches of an iterable, one pass after another.

    batches: any iterable of batches, or an iterator, which has one pass.
    place: a function of a batch, such as one that puts it on a mesh.
    prefetch: how many batches a thread of its own takes and places ahead; 0 for no thread.

    >>> feed = Feed([1, 2, 3], place=lambda batch: batch * 10)
    >>> list(feed.take(2)), feed.position()["taken"]
    ([10, 20], 2)
    >>> list(feed.take(2)), list(feed.take(2))
    ([30], [10, 20])
    """

    def __init__(
        self,
        batches: Iterable[Any],
        place: Callable[[Any], Any] = lambda batch: batch,
        prefetch: int = 0,
    ) -> None:
        self.batches, self.place, self.prefetch = batches, place, prefetch
        self.is_iterator = isinstance(batches, Iterator)
        self.total = 0  # batches taken in all passes
        self.taken = 0  # in this pass
        self._state: Any = None  # of the source after the batch taken last
        self._iterator: Iterator[Any] | None = None
        self._stream: Generator[Any, None, None] | None = None

    def take(self, count: int | None = None) -> Iterator[Any]:
        """Yield the next `count` batches, or those up to the end of the pass.

        A pass that ends before yields fewer; the next `take` begins another.
        """
        number = 0
        while count is None or number < count:
            try:
                batch = self._next()
            except StopIteration:
                return
            number += 1
            yield batch

    def _next(self) -> Any:
        """Return the next batch; raise StopIteration, and end the pass, if there is none."""
        if self._stream is None:
            self._iterator = iter(self.batches) if self._iterator is None else self._iterator
            fetched = _fetched(self.batches, self._iterator, self.place)
            self._stream = _ahead(fetched, self.prefetch) if self.prefetch else fetched
        try:
            batch, self._state = next(self._stream)
        except StopIteration:
            self._iterator, self._stream, self.taken = None, None, 0
            raise
        self.taken, self.total = self.taken + 1, self.total + 1
        return batch

    def peek(self) -> Any:
        """Return the first batch before any is taken; an iterator without positions gives it again.

        Raises ArgumentError if there is none."""
        iterator = iter(self.batches)
        batch = next(iterator, _END)
        if batch is _END:
            raise error(ArgumentError, "fit", "there is no batch", remedy=REITERABLE)
        if self.is_iterator and not hasattr(iterator, "set_state"):
            self.batches = itertools.chain([batch], iterator)
        return self.place(batch)

    def close(self) -> None:
        """End the thread that takes batches ahead, if there is one."""
        if self._stream is not None:
            self._stream.close()

    # ---- position

    def position(self) -> dict[str, Any]:
        """Return the position after the batch taken last, of values that JSON can hold."""
        return {"total": self.total, "taken": self.taken, "state": encoded(self._state)}

    def restore(self, position: Mapping[str, Any]) -> int:
        """Go to a position of an equal feed; return how many batches had to be taken and dropped.

        Raises ArgumentError if the iterable yields fewer.
        """
        self.close()
        self.total, self.taken = position["total"], position["taken"]
        self._state, self._stream = decoded(position["state"]), None
        if self._state is not None and not self.taken:
            pass_state = self._state  # the pass has ended: the next one follows it
            self._begin_at(pass_state)
            for _ in self._iterator or ():
                pass
            self._iterator = None
            return 0
        if self._state is not None:
            self._begin_at(self._state)
            return 0
        self._iterator = iter(self.batches)
        dropped = self.total if self.is_iterator else self.taken
        for number in range(dropped):
            if next(self._iterator, _END) is _END:
                problem = f"the data end after {number} batches, of which {dropped} were used"
                remedy = "Resume with the data of the first call."
                raise error(ArgumentError, "fit", problem, remedy=remedy)
        return dropped

    def _begin_at(self, state: Any) -> None:
        """Begin a pass at a state of the source."""
        if hasattr(self.batches, "load_state_dict") and not hasattr(self.batches, "get_state"):
            self.batches.load_state_dict(state)
            self._iterator = iter(self.batches)
            return
        self._iterator = iter(self.batches)
        self._iterator.set_state(state)  # type: ignore[attr-defined]


_END = object()


def _state_of(source: Any, iterator: Any) -> Any:
    """Return the position of an iterator, or of the source if that keeps it; None if none does."""
    if hasattr(iterator, "get_state"):
        return iterator.get_state()
    return source.state_dict() if hasattr(source, "load_state_dict") else None


def _fetched(
    source: Any, iterator: Iterator[Any], place: Callable[[Any], Any]
) -> Generator[tuple[Any, Any], None, None]:
    """Yield each batch, placed, with the state of the source after it."""
    for batch in iterator:
        yield place(batch), _state_of(source, iterator)


def _ahead(items: Iterator[Any], count: int) -> Generator[Any, None, None]:
    """Yield the items, which a thread takes up to `count` ahead; its errors are raised here."""
    ready: queue.Queue[tuple[Any, Any, BaseException | None]] = queue.Queue(count)
    is_over = threading.Event()

    def put(item: Any, notes: Any = (), problem: BaseException | None = None) -> bool:
        while not is_over.is_set():
            try:
                ready.put((item, notes, problem), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    copies = copying_ahead()  # beside what this thread computes

    def fetch() -> None:
        try:
            item = None
            with copies:
                while item is not _END:
                    with held_notes() as notes:
                        item = next(items, _END)
                    if not put(item, notes):
                        return
        except BaseException as problem:
            put(None, problem=problem)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(fetch,), name="gdt.feed", daemon=True)
    thread.start()
    try:
        while True:
            item, notes, problem = ready.get()
            if problem is not None:
                raise problem
            note_held(notes)
            if item is _END:
                return
            yield item
    finally:
        is_over.set()
        thread.join()


# ---------------------------------------------------------------- states as JSON


def encoded(value: Any) -> Any:
    """Return a state of a source in values that JSON can hold: bytes, arrays and tensors as text.

    >>> encoded({"next": 3, "rows": b"ab"})
    {'next': 3, 'rows': {'bytes': 'YWI='}}
    """
    if isinstance(value, Mapping):
        return {str(key): encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    array = np.asarray(value)
    if array.dtype.hasobject:
        problem = f"a state to save holds {type_text(value)}"
        raise error(ArgumentError, "fit", problem, remedy="It can hold numbers, text and arrays.")
    what = "array" if isinstance(value, np.ndarray | np.generic) else "tensor"
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {what: data, "dtype": name_of(array.dtype), "shape": list(array.shape)}


def decoded(value: Any) -> Any:
    """Return the state that `encoded` has turned into `value`; tuples have become lists.

    >>> decoded(encoded({"next": 3, "rows": b"ab"}))
    {'next': 3, 'rows': b'ab'}
    """
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"bytes"}:
        return base64.b64decode(value["bytes"])
    if value.keys() in ({"array", "dtype", "shape"}, {"tensor", "dtype", "shape"}):
        data = base64.b64decode(value["array" if "array" in value else "tensor"])
        array = np.frombuffer(data, value["dtype"]).reshape(value["shape"]).copy()
        # Whoever has a tensor in its state has loaded PyTorch.
        return array if "array" in value else sys.modules["torch"].from_numpy(array)
    return {key: decoded(item) for key, item in value.items()}
