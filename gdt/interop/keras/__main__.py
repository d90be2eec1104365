"""Run a program whose Keras runs on gdt.

python -m gdt.interop.keras script.py [arguments]
python -m gdt.interop.keras -m module [arguments]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run the script, or the module after `-m`, as `python` does."""
    if not arguments or arguments == ["-m"] or arguments[0] in ("-h", "--help"):
        sys.exit(__doc__)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
