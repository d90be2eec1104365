"""Build the wheel, install it in a clean environment, and run tests/wheel_step.py there.

Usage: python -m tests.check_wheel

No package index is asked: the clean environment has links to what the wheel requires (and to
nothing else), as it is installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
NO_INDEX = ["--quiet", "--no-deps", "--no-index"]


def requirements(name: str) -> set[str]:
    """The distributions that must be installed beside `name`, without its extras."""
    lines = map(Requirement, distribution(name).requires or [])
    direct = {r.name for r in lines if r.marker is None or r.marker.evaluate({"extra": ""})}
    return direct.union(*map(requirements, direct))


def link(name: str, folder: Path) -> None:
    """Link the files and folders of an installed distribution into another `folder`."""
    installed = distribution(name)
    for top in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
        (folder / top).symlink_to(Path(str(installed.locate_file(top))).resolve())


def main(work: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", *NO_INDEX, "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", work, ROOT], check=True)
    venv = work / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    for name in requirements("gdt"):
        link(name, Path(sysconfig.get_path("purelib", vars={"base": str(venv)})))
    python = str(venv / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", *NO_INDEX, *work.glob("*.whl")], check=True)
    subprocess.run([python, "-m", "pip", "--quiet", "check"], check=True)
    shutil.copy(ROOT / "tests" / "wheel_step.py", work)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([python, "wheel_step.py", ROOT], cwd=work, env=environment, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        main(Path(work))
