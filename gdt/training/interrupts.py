"""Interrupts: Ctrl-C ends a training after the step that is running."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gdt.sharding import processes


def show_interrupt(
    interrupt: KeyboardInterrupt,
    hook: Callable[..., Any],
    kind: type[BaseException],
    value: BaseException,
    trace: Any,
) -> None:
    """Show the text of an interrupt alone, and any other exception by `hook`."""
    if value is interrupt:
        print(value, file=sys.stderr)
    else:
        hook(kind, value, trace)


@contextmanager
def delayed_interrupts() -> Iterator[Callable[[], bool]]:
    """Note the first Ctrl-C inside the `with` block; yield a function that says whether it came.

    The second raises KeyboardInterrupt. In several processes, which would stop after different
    steps, and outside of the main thread, where Python handles no signals, nothing is delayed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_default = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or processes.current().count > 1:
        yield lambda: False
        return
    signals: list[int] = []

    def note(number: int, frame: Any) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
