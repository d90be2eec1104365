"""What tests need beside Python packages, and what becomes of a test where it is missing."""

from __future__ import annotations

import os
import shutil

import pytest

from gdt.cuda.nvrtc import nvrtc
from gdt.errors import KernelError


def skip(reason: str) -> None:
    """Skip the test; in CI, where all that the tests need is installed, it fails instead."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(reason)
    pytest.skip(reason)


def need_compiler() -> None:
    if shutil.which("g++") is None:
        skip("g++ is not installed: kernels are not executed")


def need_nvrtc() -> None:
    try:
        nvrtc()
    except KernelError as missing:
        skip(str(missing))
