"""Files of models in several processes: the first writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from gdt import distributed


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
