"""The job that a process belongs to, which greetings name: two programs on one port never pair.

A program is told apart by the file that Python was started with: its name and a checksum of what it
holds, but neither its folder, which hosts may mount elsewhere, nor its arguments, among which may
be the index of the process. torchrun and Slurm have a name for each of their runs.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from gdt.comm.launchers import run_name

OWN_PORT = "Give every job a port of its own; or all processes of one the same initialize(job=...)."


def facts(name: str | None) -> dict[str, str]:
    """Return what all processes of a job have in common; its `name` alone, if it has one."""
    if name is not None:
        return {"name": name}
    run = run_name()
    return {"program": _program()} | ({"run": run} if run else {})


def difference(own: dict[str, str], other: object) -> str:
    """Return how the job of another process differs from that of process 0; "" if it is the same.

    What only one of them knows is no difference, but for the name and the program."""
    if not isinstance(other, dict):
        return f"it names its job {other!r}"
    for fact in ("name", "program", "run"):
        known = fact in own and fact in other
        if own.get(fact) != other.get(fact) and (known or fact != "run"):
            texts = [repr(job[fact]) if fact in job else "none" for job in (other, own)]
            return f"the {fact} of its job is {texts[0]}, and that of process 0 {texts[1]}"
    return ""


def _program() -> str:
    """Return the name of the program's file and a checksum; "" of one without, as of `python -c`.

    Profilers and debuggers put the user's file into `sys.argv`, as Python does."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    for path in (sys.argv[0] if sys.argv else "", main or ""):
        try:
            text = Path(path).read_bytes()
        except OSError:
            continue
        if text.startswith(b"#!"):  # names the environment that it is installed in
            text = text.partition(b"\n")[2]
        checksum = hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()[:16]
        return f"{Path(path).name} ({checksum})"
    return ""
