"""Puts the commit of its sources into a package that is built of a checkout."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Commit(BuildHookInterface):
    """A hook of hatchling, which writes `gdt/commit.txt` into wheels and source archives."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a build; an editable package reads its commit when it is asked for."""
        package = Path(self.root) / "gdt"
        reader = runpy.run_path(str(package / "benchmark" / "commit.py"))
        name = reader["FILE"]
        commit = reader["commit_of"](package)
        if commit and version != "editable" and not (package / name).exists():
            self._folder = tempfile.TemporaryDirectory()
            file = Path(self._folder.name) / name
            file.write_text(commit + "\n", encoding="utf-8")
            build_data["force_include"][str(file)] = f"gdt/{name}"
