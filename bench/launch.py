"""Running the benchmarks that are commands of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable


def launch(main: Callable[[], object], saved: str = "Nothing was written.") -> None:
    """Run `main`; Ctrl-C ends it with one line, which says what was saved, and status 130."""
    try:
        main()
        return
    except KeyboardInterrupt:
        pass  # bars of progress end with the frames of `main`, before the line
    print(f"\nInterrupted. {saved}", file=sys.stderr)
    sys.exit(130)
