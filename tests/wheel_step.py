"""Run by check_wheel.sh where only the wheel is installed: the package is whole and works.

Usage: python wheel_step.py REPOSITORY
"""

import sys
from importlib.resources import files
from pathlib import Path

import gdt


def check_kernel_sources(repository: Path) -> int:
    """Every kernel source of the repository is in the wheel, byte for byte; returns how many."""
    packaged = files("gdt") / "kernel_sources"
    sources = [
        path for path in (repository / "kernels").iterdir() if path.suffix in (".cu", ".cuh")
    ]
    for source in sources:
        assert (packaged / source.name).read_bytes() == source.read_bytes(), source.name
    return len(sources)


if __name__ == "__main__":
    repository = Path(sys.argv[1])
    assert not Path(next(iter(gdt.__path__))).is_relative_to(repository), "not the wheel's gdt"
    assert (files("gdt") / "py.typed").is_file()
    count = check_kernel_sources(repository)
    print(f"wheel: gdt imported from its own environment, {count} kernel sources found")
