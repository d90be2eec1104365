"""Files of models in several processes: the first writes them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from keras.src.callbacks import BackupAndRestore, CSVLogger, ModelCheckpoint

from gdt import distributed

BACKUP = (
    "backup_dir",
    "_weights_path",
    "_training_metadata_path",
    "_prev_weights_path",
    "_prev_training_metadata_path",
)
PATHS = {BackupAndRestore: BACKUP, CSVLogger: ("filename",), ModelCheckpoint: ("filepath",)}
"""Callbacks that write files, with their attributes that are paths."""


def written_once(save: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of models that writes a file: of several processes the first writes it.

    All take part, for the arrays may be split over them: what the others write goes to a folder of
    their own that is deleted. All go on when the file is there.
    """

    @wraps(save)
    def call(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        if distributed.process_index() == 0:
            save(self, filepath, *args, **kwargs)
        else:
            with tempfile.TemporaryDirectory() as folder:
                save(self, Path(folder) / Path(filepath).name, *args, **kwargs)
        distributed.barrier(save.__name__)

    return call


@contextmanager
def callbacks_written_once(callbacks: Iterable[Any]) -> Iterator[None]:
    """Have the first of several processes write the files of callbacks in a `with` block.

    Callbacks of the others have, in the block, paths in a folder that is deleted after it. It holds
    a copy of what a BackupAndRestore reads, which the first process may write to meanwhile.
    """
    is_first = distributed.process_index() == 0
    moved: list[tuple[Any, str, str]] = []
    with nullcontext("") if is_first else tempfile.TemporaryDirectory() as folder:
        for i, callback in enumerate(callbacks) if folder else ():
            moved += _moved(callback, Path(folder, str(i)))
        try:
            distributed.barrier("callbacks")
            yield
            distributed.barrier("callbacks")
        finally:
            for callback, name, path in moved:
                setattr(callback, name, path)


def _moved(callback: Any, folder: Path) -> Iterator[tuple[Any, str, str]]:
    """Give a callback paths in a folder; yield the attributes with the paths that they were."""
    names = [name for kind, own in PATHS.items() if isinstance(callback, kind) for name in own]
    for name in names:
        path = Path(getattr(callback, name))
        copy = folder / path.absolute().relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        if "backup_dir" in names and path.is_file():
            shutil.copyfile(path, copy)
        yield callback, name, getattr(callback, name)
        setattr(callback, name, str(copy))
