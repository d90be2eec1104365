"""Programs in several processes that are forked from one which has imported gdt: starting Python
takes longer than most of them.

`python -m tests.processes.forks CASES RESULTS` runs the cases of a JSON file, one after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
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
from .launch import LAUNCHERS, ROOT, Ended, environment, mpiexec, remove, shared_memory


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

    def is_over(self) -> bool:
        """Whether all that was started has ended."""
        return not self.are_running()

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

    def wait(self, seconds: float) -> float | None:
        """Wait until all have ended; the seconds that it took, or None if some still run when time
        is up."""
        began = time.monotonic()
        while not self.is_over():
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


class ForkedUnderMpi(Forked):
    """As `Forked`, of processes that mpiexec has started and counts as its own. options: of
    mpiexec, and a shell around each process, if there is one."""

    def __init__(self, count: int, function: Callable[[], Any], *, is_wrapped: bool) -> None:
        self._outputs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115  # kept
        self.codes, self.pids = [None] * count, [0] * count
        self._clients: dict[int, socket.socket] = {}
        self._shared: set[Path] = set()
        client = [sys.executable, "-S", "-E", str(Path(__file__).with_name("mpi_client.py"))]
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/parent")
            server.listen(count)
            server.settimeout(60.0)
            line = [*client, f"{folder}/parent"]
            if is_wrapped:
                line = ["sh", "-c", f"trap '' USR1; {shlex.join(line)}; exit $?"]
            options = ["-disable-auto-cleanup"] if is_wrapped else []
            self._mpiexec = subprocess.Popen(
                mpiexec(*options, "-n", str(count), *line),
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(count):
                self._fork(server.accept()[0], function)

    def _fork(self, client: socket.socket, function: Callable[[], Any]) -> None:
        head, descriptors, _, _ = socket.recv_fds(client, 4, 3)
        data = b""
        while len(data) < int.from_bytes(head, "big"):
            data += client.recv(1 << 16)
        variables = json.loads(data)
        index = int(variables["PMI_RANK"])
        self.pids[index] = os.fork()
        if self.pids[index] == 0:
            os.environ.clear()
            os.environ.update(variables)
            os.dup2(descriptors[2], int(variables["PMI_FD"]))
            self._run(self._outputs[index].fileno(), function)
        for descriptor in descriptors:
            os.close(descriptor)
        client.setblocking(False)
        self._clients[index] = client

    def are_running(self) -> list[int]:
        running = super().are_running()
        self._shared |= shared_memory(self.pids[i] for i in running)
        for i, client in list(self._clients.items()):
            if i not in running:
                with contextlib.suppress(OSError):
                    client.send(str(self.codes[i]).encode())
                client.close()
                del self._clients[i]
            elif self._is_gone(client):  # mpiexec has killed it
                os.kill(self.pids[i], signal.SIGKILL)
        return running

    @staticmethod
    def _is_gone(client: socket.socket) -> bool:
        try:
            return not client.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def is_over(self) -> bool:
        return super().is_over() and self._mpiexec.poll() is not None

    def end(self) -> None:
        super().end()
        self._mpiexec.kill()
        self._mpiexec.wait()
        remove(self._shared)


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
