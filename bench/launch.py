"""Running the benchmarks that are commands of their own."""

from __future__ import annotations

import os
import socket
import sys
import traceback
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


def run_forked(count: int, run: Callable[[int, str], object]) -> None:
    """Call `run(index, address)` in so many forks of this process, for `gdt.distributed.initialize`
    at an address of this host; exit with an error if one of them fails."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pids = []
    for index in range(count):
        pids.append(os.fork())
        if not pids[-1]:
            code = 1
            try:
                run(index, address)
                code = 0
            except BaseException:  # the process ends without the interpreter
                traceback.print_exc()
            finally:
                os._exit(code)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(codes):
        sys.exit(f"one of {count} processes has failed")
