"""Starting the programs of `tests.processes.programs`, over MPI or over sockets alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LAUNCHERS = {"MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK", "PMI_FD", "WORLD_SIZE", "RANK"}


class Ended(NamedTuple):
    """How the processes of a program ended: exit codes and what each printed as errors."""

    codes: list[int]
    errors: list[str]


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without what a launcher has put there."""
    kept = {k: v for k, v in os.environ.items() if k not in LAUNCHERS}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return kept | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path} | more


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.processes.programs", name, *map(str, arguments)]


def mpiexec(*options: str) -> list[str]:
    """MPICH's launcher: the one of this environment, or of the machine."""
    own = Path(sys.executable).with_name("mpiexec")
    found = str(own) if own.exists() else shutil.which("mpiexec")
    assert found, "there is no mpiexec: pip install 'gdt[mpi]'"
    return [found, *options]


def shared_memory(pids: Iterable[int]) -> set[Path]:
    """The files of shared memory of MPICH that processes have mapped, which stay behind where one
    of them is killed."""
    texts = []
    for pid in pids:
        with suppress(OSError):
            texts.append(Path(f"/proc/{pid}/maps").read_text())
    return {Path(name) for text in texts for name in re.findall(r"/dev/shm/mpich_shm_\w+", text)}


def remove(files: Iterable[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


def results(count: int, name: str, output: Path, *arguments: object) -> list[Any]:
    """What every process of a program returned, started by mpiexec; one runs without it."""
    launcher = mpiexec("-n", str(count)) if count > 1 else []
    done = subprocess.run(
        [*launcher, *command(name, output, *arguments)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{name} in {count} processes:\n{done.stdout}\n{done.stderr}"
    return [json.loads(Path(f"{output}.{i}").read_text()) for i in range(count)]


def by_sockets(count: int, name: str, output: Path, *arguments: object) -> list[Any]:
    """What every process of a program returned, without MPI."""
    done = ended(start(count, *command(name, output, *arguments)), 300)
    assert done.codes == [0] * count, f"{name} in {count} processes: {done.errors}"
    return [json.loads(Path(f"{output}.{i}").read_text()) for i in range(count)]


def start(count: int, *line: str, **more: str) -> list[subprocess.Popen[str]]:
    """Processes that find each other as torchrun's do."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            line,
            env=environment(**{"RANK": str(i)} | shared | more),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]


def ended(processes: list[subprocess.Popen[str]], seconds: float) -> Ended:
    """Wait until all have ended; those that take longer for it are killed, and it is an error."""
    try:
        errors = [p.communicate(timeout=seconds)[1] for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.wait()
    return Ended([p.returncode for p in processes], errors)
