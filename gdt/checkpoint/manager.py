"""CheckpointManager: numbered checkpoints of one tree, of which the newest stay."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from gdt.arguments import checked_class
from gdt.checkpoint.entries import of_first_process
from gdt.checkpoint.restoring import restore
from gdt.checkpoint.saving import save
from gdt.errors import ArgumentError, CheckpointError, error
from gdt.sharding import processes
from gdt.state.trees import Tree


def _is_running(writer: str) -> bool:
    """Return whether the process of a temporary file's writer, `process-thread`, is alive."""
    try:
        os.kill(int(writer.split("-", maxsplit=1)[0]), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # another user's process, which is alive
        return True
    return True


@checked_class(eager=True)
class CheckpointManager:
    """Numbered checkpoints of one tree in a directory, of which the newest stay.

    tree: as for `gdt.checkpoint.save`; each call saves or replaces its arrays of that time.
    directory: the directory of the files. name: the files are `{name}-1.safetensors` and so on.
    max_to_keep: the number of files that stay; None keeps all.

    Follows `tf.train.CheckpointManager`. Raises ArgumentError for a `max_to_keep` below 1, and for
    a name that is no name of a file.

    >>> import tempfile
    >>> tree = {"w": gdt.ones((2,))}
    >>> manager = gdt.CheckpointManager(tree, tempfile.mkdtemp(), max_to_keep=2)
    >>> [manager.save().name for _ in range(3)]
    ['ckpt-1.safetensors', 'ckpt-2.safetensors', 'ckpt-3.safetensors']
    >>> [path.name for path in manager.checkpoints], manager.latest.name
    (['ckpt-2.safetensors', 'ckpt-3.safetensors'], 'ckpt-3.safetensors')
    """

    def __init__(
        self,
        tree: Tree,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 5,
        *,
        name: str = "ckpt",
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise error(ArgumentError, f"max_to_keep is {max_to_keep}, not 1 or more")
        if Path(name).name != name or "\0" in name:
            raise error(
                ArgumentError,
                f"name is {name!r}, which is no name of a file",
                remedy="Folders go into `directory`.",
            )
        self.tree, self.directory = tree, Path(directory)
        self.max_to_keep, self.name = max_to_keep, name

    def __repr__(self) -> str:
        where = f"{str(self.directory)!r}, max_to_keep={self.max_to_keep}, name={self.name!r}"
        return f"CheckpointManager({type(self.tree).__name__}, {where})"

    @property
    def checkpoints(self) -> list[Path]:
        """The files of the checkpoints, oldest first."""
        return [path for _, path in self._numbered() if path.is_file()]

    @property
    def latest(self) -> Path | None:
        """The newest file; None if there is none."""
        return next(reversed(self.checkpoints), None)

    def save(self) -> Path:
        """Write the next checkpoint, remove the oldest beyond `max_to_keep`, return its path.

        >>> import tempfile
        >>> manager = gdt.CheckpointManager({"w": gdt.ones(2)}, tempfile.mkdtemp())
        >>> manager.save().name
        'ckpt-1.safetensors'
        """
        numbered = self._numbered()
        number = of_first_process(numbered[-1][0] + 1 if numbered else 1)
        path = save(self.directory / f"{self.name}-{number}.safetensors", self.tree)
        surplus = [] if self.max_to_keep is None else self.checkpoints[: -self.max_to_keep]
        unfinished = self.directory.glob(f".{glob.escape(self.name)}-*.safetensors.*.tmp")
        abandoned = [t for t in unfinished if not _is_running(t.name.split(".")[-2])]
        if processes.current().index == 0:
            for old in (*surplus, *abandoned):
                old.unlink(missing_ok=True)
        return path

    def restore(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Restore the newest checkpoint, or the one at `path`; return its path.

        Raises CheckpointError if there is none, and as `gdt.checkpoint.restore` does.

        >>> import tempfile
        >>> tree = {"w": gdt.ones(2)}
        >>> manager = gdt.CheckpointManager(tree, tempfile.mkdtemp())
        >>> path = manager.save()
        >>> tree["w"] = gdt.zeros(2)
        >>> restored = manager.restore()
        >>> tree["w"].tolist()
        [1.0, 1.0]
        """
        file = Path(path) if path is not None else of_first_process(self.latest)
        if file is None:
            raise error(CheckpointError, f"no checkpoint in {self.directory}")
        return restore(file, self.tree).path

    def restore_or_initialize(self) -> Path | None:
        """Restore the newest checkpoint and return its path; without one return None.

        >>> import tempfile
        >>> manager = gdt.CheckpointManager({"w": gdt.ones(2)}, tempfile.mkdtemp())
        >>> manager.restore_or_initialize() is None
        True
        """
        newest = of_first_process(self.latest)
        return self.restore(newest) if newest is not None else None

    def _numbered(self) -> list[tuple[int, Path]]:
        """Return the numbers and paths of all files and directories named like a checkpoint."""
        form = re.compile(re.escape(self.name) + r"-(\d+)\.safetensors")
        paths = self.directory.glob(f"{glob.escape(self.name)}-*.safetensors")
        matches = [(form.fullmatch(p.name), p) for p in paths]
        return sorted((int(m.group(1)), p) for m, p in matches if m)
