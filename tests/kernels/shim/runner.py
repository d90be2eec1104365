"""Builds `kernels/*.cu` with g++ against the shim, and runs `gdt.cuda.runner.KernelCall`s on
NumPy arrays.

    CpuRunner("reduce.cu", instances, None, None).run(call, order="reverse")

runs the kernel itself, thread by thread, in this process, between guard bytes; with a sanitizer
("address", which includes undefined behaviour, or "thread") in a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from gdt.cuda import runner, sources
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import Instance, Parameter
from gdt.cuda.tensor_map import TensorMap

from . import worker

HERE = Path(__file__).resolve().parent
HEADER = "cuda_cpu.hpp"
BUILD_FOLDER = HERE.parents[2] / "build" / "shim"
KEPT = 30 * 86400  # seconds for which a library is kept that is not used
GUARD_BYTES = 4096
ORDERS = ("forward", "reverse", "random")
ASYNC_MODES = ("early", "late", "tossed")
COMMON = (
    "-std=c++17", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique",
    "-fno-strict-aliasing", "-ffp-contract=off",
)  # fmt: skip
FLAGS = {
    None: ("-O1", "-march=native", "-fno-math-errno"),  # most kernels run once
    "address": (
        "-O1", "-g", "-fsanitize=address,undefined", "-fsanitize=bounds-strict",
        "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
    ),
    "thread": ("-O1", "-g", "-fsanitize=thread", "-fno-omit-frame-pointer"),
}  # fmt: skip
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "report_signal_unsafe=0:history_size=2:exitcode=0",
}
FIXED = ["setarch", "-R"]  # addresses, which the thread sanitizer wants; some containers refuse
RUN_TIMES = {"address": "libasan.so", "thread": "libtsan.so"}


class LaunchError(AssertionError):
    """What the shim or a sanitizer found wrong with a launch."""


def build(
    file: str, instances: Sequence[Instance], sanitizer: str | None, folder: Path | None
) -> Path:
    """Compile one kernel file with these instances into a shared library, or find it built."""
    text, headers_folder = sources.read_source(file, folder), folder or sources.source_folder()
    headers = sources.included(file, folder)
    shim = [p.read_text() for p in sorted(HERE.glob("*.hpp"))]
    names = sorted({str(i) for i in instances})
    flags = [*COMMON, *FLAGS[sanitizer]]
    name = f"{Path(file).stem}-{sanitizer or 'plain'}"
    unit = translation_unit(file, text, names, sources.structs(file, folder))
    with built(f"{name}-{digest(file, text, headers, shim, names, flags)}.so") as out:
        if not out.exists():
            header = precompiled(sanitizer or "plain", shim, flags)
            includes = [f"-I{header.parent}", f"-I{HERE}", f"-I{headers_folder}"]
            compile_unit(unit, ["g++", *flags, *includes], out)
            remove_old()
    return out


def precompiled(name: str, shim: Sequence[str], flags: Sequence[str]) -> Path:
    """Compile the shim's headers, which are a third of the time of a small kernel, once for all
    libraries with these flags, or find them compiled."""
    with built(f"shim-{name}-{digest(shim, flags)}.headers/{HEADER}.gch") as out:
        if not out.exists():
            header = f'#include "{HERE / HEADER}"'
            compile_unit(header, ["g++", *flags, "-x", "c++-header"], out)
    return out


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


@contextlib.contextmanager
def built(name: str) -> Iterator[Path]:
    """A file in the folder of builds, which no other process makes at the same time."""
    out = BUILD_FOLDER / name
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of tests want the same library at once
        yield out
        os.utime(out)


def remove_old() -> None:
    """Remove libraries of kernels as they were, and the files that locked them."""
    for path in BUILD_FOLDER.rglob("*.*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - KEPT:
                path.unlink()


def compile_unit(unit: str, command: Sequence[str], out: Path) -> None:
    """Compile the text of a translation unit; `out` is written whole or not at all."""
    with tempfile.TemporaryDirectory(dir=BUILD_FOLDER) as work:
        (Path(work) / "unit.cpp").write_text(unit)
        command = [*command, "unit.cpp", "-o", "unit.so"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LaunchError(f"{' '.join(command)}\n{done.stderr[:4000]}")
        os.replace(Path(work) / "unit.so", out)


UNIT = """#include "cuda_cpu.hpp"
namespace {{
#line 1 "{file}"
{text}
#line 1 "entries"
{sizes}
const shim::Entry entries[] = {{{entries}}};
}}
#define PUBLIC extern "C" __attribute__((visibility("default")))
PUBLIC const char* gdt_message() {{ return shim::runtime.message; }}
PUBLIC char* gdt_stacks(char* shared) {{ return shim::share_stacks(shared); }}
PUBLIC int gdt_launch(const char* name, const unsigned* grid, const unsigned* block, size_t shared,
                      void** arguments, const shim::Options* options) {{
  for (auto& e : entries)
    if (!strcmp(e.name, name))
      return shim::launch(e.call, grid, block, shared, arguments, options);
  return shim::report("no kernel %s", name), 1;
}}
"""


def translation_unit(
    file: str, text: str, names: Sequence[str], structs: Mapping[str, np.dtype[Any]]
) -> str:
    """The source and a table of its instances; the sizes check what was read from the source."""
    entry = '{{"{0}", [](void** a) {{ shim::call(&{0}, a); }}}}'
    sizes = [f"static_assert(sizeof({name}) == {d.itemsize});" for name, d in structs.items()]
    entries = ",\n".join(entry.format(name) for name in names)
    return UNIT.format(file=file, text=text, sizes="\n".join(sizes), entries=entries)


class CpuRunner:
    """Runs calls of one kernel file on the CPU; `folder` may hold other sources than gdt's."""

    def __init__(
        self, file: str, instances: Sequence[Instance], sanitizer: str | None, folder: Path | None
    ):
        self.sanitizer, self.folder = sanitizer, folder
        self.path = build(file, instances, sanitizer, folder)
        apart = sanitizer is not None or folder is not None  # foreign sources may crash
        self._library = None if apart else worker.load(str(self.path))
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes]

    def run(
        self,
        call: KernelCall,
        order: str = "forward",
        async_mode: str = "late",
        seed: int = 0,
        fresh: bool = False,
    ) -> None:
        """Run a call; the arrays change as on a GPU. Anything wrong raises `LaunchError`."""
        arguments = runner.check(call, self.folder)
        signature = sources.parameters(call.instance, self.folder)
        schedule = ORDERS.index(order), ASYNC_MODES.index(async_mode), fresh, call.cluster, seed
        packed, roots = pack(call, signature, arguments, struct.pack("iiiiQQ", *schedule, 0))
        after, message = self._execute(packed)
        if message:
            raise LaunchError(f"{call.instance}: {message}")
        pairs = zip(signature, arguments, strict=True)
        results = [a for p, a in pairs if p.pointer and not p.const and a is not None]
        written = {id(root_of(a)) for a in (*results, *call.pointees)}
        patched = {place for (place, _), _ in packed.addresses}
        for i, (root, before, now) in enumerate(zip(roots, packed.buffers, after, strict=True)):
            if id(root) in written:
                ctypes.memmove(root.ctypes.data, now, len(now))
            elif i not in patched and now != before:
                raise LaunchError(f"{call.instance}: wrote to a const argument")

    def _execute(self, packed: worker.Packed) -> tuple[list[bytes], str]:
        if self._library is not None:
            return worker.execute(self._library, packed, GUARD_BYTES)
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(vars(packed), self._process.stdin)
            self._process.stdin.flush()
            result: tuple[list[bytes], str] = pickle.load(self._process.stdout)
            return result
        except (EOFError, BrokenPipeError):
            self._log.seek(0)
            report = self._log.read().decode(errors="replace")
            self.close()
            return [], report or "the process died"

    def _start(self) -> subprocess.Popen[bytes]:
        script = [sys.executable, str(HERE / "worker.py"), str(self.path)]
        environment = dict(os.environ)
        if self.sanitizer is not None:
            find = ["g++", f"-print-file-name={RUN_TIMES[self.sanitizer]}"]
            found = subprocess.run(find, capture_output=True, text=True, check=True)
            environment |= SANITIZER_OPTIONS | {"LD_PRELOAD": found.stdout.strip()}
        probe = [*FIXED, "true"]
        if self.sanitizer == "thread" and not subprocess.call(probe, stderr=subprocess.DEVNULL):
            script = [*FIXED, *script]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
        pipe = subprocess.PIPE
        command = [*script, str(0 if self.sanitizer else GUARD_BYTES)]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, env=environment)

    def close(self) -> None:
        """End the sanitizer's process, if there is one."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError), self._log:
                self._process.communicate()
            self._process = None


def root_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def pack(
    call: KernelCall, signature: Sequence[Parameter], arguments: Sequence[Any], options: bytes
) -> tuple[worker.Packed, list[np.ndarray[Any, Any]]]:
    """Replace every address in a call, also those in a table, by (buffer, offset)."""
    held = [a.array if isinstance(a, TensorMap) else a for a in arguments]
    arrays = [a for a in (*held, *call.pointees) if isinstance(a, np.ndarray)]
    roots = list({id(r): r for r in map(root_of, arrays)}.values())

    def find(address: int) -> worker.Pointer | None:
        offsets = [(i, address - root.ctypes.data) for i, root in enumerate(roots)]
        return next(((i, o) for i, o in offsets if 0 <= o < max(1, roots[i].nbytes)), None)

    contents, addresses = [], []
    for i, (p, a, array) in enumerate(zip(signature, arguments, held, strict=True)):
        place = find(array.ctypes.data) if isinstance(array, np.ndarray) else None
        if p.pointer or isinstance(a, TensorMap):
            contents.append(bytes(8) if p.pointer else a.plain(0).tobytes())
            addresses += [((len(roots) + i, 0), place)] if place else []
        else:
            contents.append(a.tobytes())
        if p.name == "table" and place is not None:
            targets = enumerate(map(find, a.reshape(-1).tolist()))
            addresses += [((place[0], place[1] + 8 * k), t) for k, t in targets if t]
    grid, block = ((*t, 1, 1)[:3] for t in (call.grid, call.block))
    buffers = [ctypes.string_at(r.ctypes.data, r.nbytes) for r in roots]
    name = str(call.instance)
    return worker.Packed(
        name, grid, block, call.shared, buffers, contents, addresses, options
    ), roots
