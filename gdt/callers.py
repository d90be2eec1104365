"""Who called: the user's line, of which errors and warnings speak."""

from __future__ import annotations

import sys
from types import FrameType

LIBRARIES = ("gdt", "numpy")


def frame_of_user() -> tuple[FrameType, int]:
    """The innermost frame that is neither gdt's nor NumPy's, and the `stacklevel` by which a
    warning of the function that asks names it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_of_library(frame):
        level, frame = level + 1, frame.f_back
    return frame, level


def _is_of_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in LIBRARIES or frame.f_code.co_filename.startswith("<gdt")


def line_of_user() -> str:
    """The user's line, as errors name it."""
    frame, _ = frame_of_user()
    return f"line {frame.f_lineno} of {frame.f_code.co_filename} ({frame.f_code.co_name})"
