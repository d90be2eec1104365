"""NVRTC 13.0, which PyTorch and JAX bring in its time, compiles every kernel file as well.

`make test` installs its wheel beside the newer one, in the environment's folder nvrtc-13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdt.cuda import compiler, launches, nvrtc, sources
from tests.needs import skip

FOLDER = Path(sys.prefix) / "nvrtc-13.0"
FILES = sorted(p.name for p in sources.source_folder().glob("*.cu"))


@pytest.fixture(scope="module", autouse=True)
def nvrtc_13_0(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    libraries = sorted(map(str, FOLDER.glob("nvidia/*/lib/libnvrtc.so.*")))
    if not libraries:
        skip(f"there is no NVRTC 13.0 in {FOLDER}: make test installs it")
    nvrtc.nvrtc.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "_candidates", lambda: libraries)
        patch.setenv("GDT_CACHE_DIR", str(tmp_path_factory.mktemp("cubins")))
        yield
    nvrtc.nvrtc.cache_clear()


@pytest.mark.parametrize(
    ("file", "arch"), [*((file, "sm_90a") for file in FILES), ("reduce.cu", "sm_75")]
)
def test_every_kernel_compiles_in_one_instance(file: str, arch: str) -> None:
    first = {i.kernel: i for i in reversed(launches.instances(file, arch))}
    cubin = compiler.compile_file(file, list(first.values()), arch)
    assert nvrtc.nvrtc().version == (13, 0)
    assert cubin.code[:4] == b"\x7fELF" and len(cubin.names) == len(first)
    assert "warning" not in cubin.log
