"""What the NCCL transport uses of CuPy exists, with the signatures that the recorded NCCL has.

CuPy's wrapper cannot be loaded without NCCL, whose wheel is 300 MB; a library of empty functions
with NCCL's names will do to look at it.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip
from tests.recorded_nccl import NUMBERS, OPS, Communicator, RecordedNccl

FUNCTIONS = [
    "AllGather", "AllReduce", "Bcast", "Broadcast", "CommAbort", "CommCount", "CommCuDevice",
    "CommDestroy", "CommGetAsyncError", "CommInitAll", "CommInitRank", "CommInitRankConfig",
    "CommSplit", "CommUserRank", "GetErrorString", "GetUniqueId", "GetVersion", "GroupEnd",
    "GroupStart", "Recv", "Reduce", "ReduceScatter", "Send",
]  # fmt: skip
METHODS = [
    "allReduce", "allGather", "reduceScatter", "send", "recv", "check_async_error", "abort",
    "broadcast", "commSplit", "reduce",
]  # fmt: skip
LOOK = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
from cupy_backends.cuda.libs import nccl
made = nccl.NcclCommunicator
print(json.dumps({
    "methods": {n: getattr(made, n).__doc__ for n in dir(made) if n[0] != "_"},
    "made": made.__doc__,
    "functions": {n: getattr(nccl, n).__doc__ for n in dir(nccl) if callable(getattr(nccl, n))},
    "constants": {n: getattr(nccl, n) for n in dir(nccl) if n.startswith("NCCL_")},
    "available": nccl.available,
    "error": [k.__name__ for k in nccl.NcclError.__mro__],
}, default=str))
"""


@pytest.fixture(scope="module")
def cupy_nccl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What there is in `cupy.cuda.nccl` of the CuPy that is installed."""
    if importlib.util.find_spec("cupy_backends") is None:
        skip("CuPy is not installed")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip("there is no C compiler")
    directory: Path = tmp_path_factory.mktemp("nccl")
    source, library = directory / "nccl.c", directory / "libnccl.so.2"
    source.write_text("".join(f"int nccl{name}(void) {{ return 0; }}\n" for name in FUNCTIONS))
    build = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
    subprocess.run(build, check=True)
    look = [sys.executable, "-c", LOOK, str(library)]
    done = subprocess.run(look, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def parameters(text: str) -> list[str]:
    """The names in a signature as Cython writes it: `f(self, intptr_t sendbuf, int op)`."""
    inside = re.search(r"\(([^)]*)\)", text)
    assert inside is not None, text
    parts = [p.split("=")[0].split()[-1] for p in inside.group(1).split(",") if p.strip()]
    return [p for p in parts if p not in ("self", "/")]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_signature_that_is_used(name: str, cupy_nccl: Any) -> None:
    recorded = [p for p in inspect.signature(getattr(Communicator, name)).parameters if p != "self"]
    assert parameters(cupy_nccl["methods"][name]) == recorded


def test_a_communicator_is_made_as_it_is_recorded(cupy_nccl: Any) -> None:
    recorded = inspect.signature(RecordedNccl().NcclCommunicator).parameters
    assert parameters(cupy_nccl["made"])[:3] == list(recorded)


@pytest.mark.parametrize("name", ["groupStart", "groupEnd", "get_unique_id", "get_version"])
def test_a_function_takes_no_arguments(name: str, cupy_nccl: Any) -> None:
    assert parameters(cupy_nccl["functions"][name]) == []


def test_types_and_reductions_have_their_numbers(cupy_nccl: Any) -> None:
    recorded = {f"NCCL_{name}": number for name, number in (NUMBERS | OPS).items()}
    assert {name: cupy_nccl["constants"].get(name) for name in recorded} == recorded


def test_errors_are_those_that_are_caught(cupy_nccl: Any) -> None:
    assert cupy_nccl["available"] is True
    assert cupy_nccl["error"][:2] == ["NcclError", "RuntimeError"]
