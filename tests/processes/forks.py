"""Programs in several processes that are forked from one which has imported gdt: starting Python
takes longer than most of them.

`python -m tests.processes.forks CASES RESULTS` runs the cases of a JSON file, one after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import programs
from .launch import LAUNCHERS, ROOT, Ended, environment


class Forked:
    """Processes that run a function, and find each other as torchrun's do."""

    def __init__(self, count: int, function: Callable[[], Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self._outputs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115  # kept
        self.codes: list[int | None] = [None] * count
        self.pids: list[int] = []
        for i in range(count):
            pid = os.fork()
            if pid == 0:
                os.environ.update(shared, RANK=str(i))
                self._run(self._outputs[i].fileno(), function)
            self.pids.append(pid)

    @staticmethod
    def _run(output: int, function: Callable[[], Any]) -> None:
        """What a child does, as the interpreter does it."""
        code = 1
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            function()
            code = 0
        except BaseException as failure:
            sys.last_value = failure
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def text(self, i: int) -> str:
        """What a process has printed so far."""
        end = self._outputs[i].seek(0, os.SEEK_END)
        return os.pread(self._outputs[i].fileno(), end, 0).decode(errors="replace")

    def are_running(self) -> list[int]:
        """The processes that have not ended."""
        for i in [i for i, code in enumerate(self.codes) if code is None]:
            pid, status = os.waitpid(self.pids[i], os.WNOHANG)
            if pid:
                self.codes[i] = os.waitstatus_to_exitcode(status)
        return [i for i, code in enumerate(self.codes) if code is None]

    def wait(self, seconds: float, at_most: int = 0) -> float | None:
        """Wait until no more than `at_most` processes run; the seconds that it took, or None if
        they still run when time is up."""
        began = time.monotonic()
        while len(self.are_running()) > at_most:
            if time.monotonic() - began > seconds:
                return None
            time.sleep(0.005)
        return time.monotonic() - began

    def end(self) -> None:
        """Kill the processes that have not ended."""
        for i in self.are_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[i], signal.SIGKILL)
        self.wait(10.0)


def run(cases: Sequence[dict[str, Any]], folder: Path) -> list[Ended]:
    """How the processes of each case end. A case names a program with its arguments, how many
    processes run it, and the variables that their environment has more."""
    given, found = folder / "cases.json", folder / "ended.json"
    given.write_text(json.dumps(cases))
    line = [sys.executable, "-m", "tests.processes.forks", str(given), str(found)]
    subprocess.run(line, env=environment(), cwd=ROOT, check=True, timeout=60 + 30 * len(cases))
    return [Ended(*ended) for ended in json.loads(found.read_text())]


def main() -> None:
    for name in LAUNCHERS & os.environ.keys():
        del os.environ[name]
    found = []
    for case in json.loads(Path(sys.argv[1]).read_text()):

        def program(case: dict[str, Any] = case) -> None:
            os.environ.update(case.get("environment", {}))
            sys.argv[1:] = [case["name"], os.devnull, *case["arguments"]]
            programs.main()

        processes = Forked(case["count"], program)
        processes.wait(30.0)
        processes.end()
        errors = [processes.text(i) for i in range(case["count"])]
        found.append((processes.codes, errors))
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
