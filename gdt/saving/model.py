"""save_model and load_model: a folder of `model.json` and the file of arrays that it names.

Each save writes its arrays to a file of a new name. Renaming `model.json` into place is what
replaces the model before it, arrays and all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gdt.arguments import checked
from gdt.checkpoint import contents, restore, save
from gdt.checkpoint.entries import of_first_process, unlike
from gdt.checkpoint.restoring import read_alike
from gdt.checkpoint.saving import in_all_processes, write_whole
from gdt.errors import CheckpointError, GdtError, error
from gdt.nn.compiling import Compilation
from gdt.nn.module import Module, join_scope
from gdt.ops.creation import zeros
from gdt.saving.encoding import Decoder, Encoder
from gdt.sharding import processes
from gdt.sharding.mesh import Mesh, create_mesh
from gdt.training.strategies import current_strategy
from gdt.training.trainer import Trainer

FORMAT, VERSION = "gdt model", 1
OPTIONS = ("optimizer", "loss", "metrics", "weighted_metrics", "clip_norm", "eager")


@checked
def save_model(
    model: Module, path: str | os.PathLike[str], *, include_optimizer: bool = True
) -> Path:
    """Write a whole model to a folder: `model.json` and `arrays-*.safetensors`; return the folder.

    Register the program's own classes and functions first (`gdt.saving.register`).
    include_optimizer: whether a compiled model's optimizer, loss and metrics are written too. The
    file of arrays has a new name in every save, and the arrays have their names in `model.state()`.
    A model that was in the folder is replaced, by renaming `model.json`, when the new one is whole;
    then the arrays of the old one are removed.

    Several processes save the same model to one folder, which they compare first.

    Raises CheckpointError, which names the attribute, for a value that a file cannot hold; and for
    a folder that cannot be written.

    >>> import tempfile
    >>> folder = gdt.saving.save_model(gdt.nn.Dense(2, 1), tempfile.mkdtemp())
    >>> gdt.load_model(folder).weight.shape
    (2, 1)
    """
    folder, encoder = Path(path), Encoder()
    architecture = encoder.encode(model, "")
    compilation = None
    if include_optimizer and model._compilation is not None:
        trainer = model._compilation.trainer
        options = {name: getattr(trainer, name) for name in OPTIONS}
        compilation = encoder.encode(options, "compilation")
    layouts = {
        name: [list(x.shape), x.dtype.name, encoder.encode(x.layout, name)]
        for name, x in encoder.arrays.items()
    }
    parts = {"arrays": layouts, "model": architecture, "compilation": compilation}
    _agree(folder, json.dumps(parts, indent=1))
    file = f"arrays-{of_first_process(secrets.token_hex(4))}.safetensors"
    if encoder.arrays:
        save(folder / file, dict(encoder.arrays))
    head = {"format": FORMAT, "version": VERSION, "file": file, "crc32": _checksum(parts)}
    text = json.dumps({**head, **parts}, indent=1)
    in_all_processes(partial(_replace, folder, text), folder / "model.json")
    return folder


def _agree(folder: Path, text: str) -> None:
    """Raise CheckpointError in all processes if they save different models."""
    found = unlike(text, f"save_model to {folder}")
    if found is None:
        return
    lines = zip_longest(found.first.splitlines(), found.other.splitlines(), fillvalue="nothing")
    line, its_line = next(pair for pair in lines if pair[0] != pair[1])
    raise error(
        CheckpointError,
        f"processes save different models to {folder}: "
        f"{line.strip()} in process 0, {its_line.strip()} in {found.process}",
        operands=dict(found.sides),
        remedy="Every process saves the same model; nothing was written.",
    )


def _replace(folder: Path, text: str) -> None:
    """Replace a folder's JSON file, and remove the arrays that it named; process 0 does."""
    if processes.current().index != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    old = None
    with contextlib.suppress(CheckpointError):  # there is none, or not one of a model
        old = folder / _read(folder)[0]["file"]
    write_whole(folder / "model.json", text.encode())
    if old is not None:
        with contextlib.suppress(OSError):
            old.unlink()


@checked
def load_model(
    path: str | os.PathLike[str], *, mesh: Mesh | None = None, compile: bool = True
) -> Any:
    """Return the model of a folder that `save_model`, or `model.save`, has written.

    mesh: the mesh of the model's arrays. An axis of an array stays split over a mesh axis if `mesh`
        has one of that name, and is whole otherwise. None takes the mesh of the strategy in whose
        scope this is called, or else makes one like that of the saved model.
    compile: whether the model is compiled as it was, with the optimizer's state.

    Nothing of the file is executed, and no constructor runs: register classes and functions that
    gdt does not have first (`gdt.saving.register`).

    Raises CheckpointError for a file that is missing, damaged, or of another version, for a class
    or function that is not registered, and if several processes read different models.

    >>> import tempfile
    >>> folder = gdt.nn.Sequential(gdt.nn.Dense(3, 2, key=0)).save(tempfile.mkdtemp())
    >>> model = gdt.load_model(folder, mesh=gdt.create_mesh([("x", 2)]))
    >>> model(gdt.ones((4, 3), "float32")).shape, model[0].weight.mesh
    ((4, 2), Mesh(x=2))
    """
    folder, strategy = Path(path), current_strategy()
    mesh = strategy.mesh if mesh is None and strategy is not None else mesh
    content = read_alike("load_model", folder / "model.json", lambda: _read(folder))
    meshes = (lambda dims: mesh) if mesh is not None else _mesh_like
    try:
        decoder = Decoder({}, meshes)
        places = {
            name: zeros(tuple(shape), dtype, layout=decoder.decode(layout))
            for name, (shape, dtype, layout) in content["arrays"].items()
        }
        if places:
            restore(folder / content["file"], places)
        decoder.arrays = places
        model: Module = decoder.decode(content["model"])
        options = decoder.decode(content["compilation"]) if compile else None
        for _, module in model.modules():
            join_scope(module)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        if isinstance(cause, GdtError):
            raise
        problem = f"{folder / 'model.json'} is damaged ({type(cause).__name__}: {cause})"
        raise error(CheckpointError, problem) from None
    if options is not None:
        model._compilation = Compilation(Trainer(model, **options))
    return model


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32 of the parts of a model's JSON file."""
    parts = [content.get(name) for name in ("arrays", "model", "compilation")]
    return f"{zlib.crc32(json.dumps(parts).encode()):08x}"


def _read(folder: Path) -> tuple[Mapping[str, Any], str]:
    """Return the content of a model's JSON file with its checksum, or raise CheckpointError."""
    file = folder / "model.json"
    try:
        content = json.loads(file.read_text())
    except OSError as cause:
        problem = f"{file} cannot be read ({cause.strerror})"
        remedy = "Pass the folder that model.save(folder) has written."
        raise error(CheckpointError, problem, remedy=remedy) from None
    except ValueError as cause:
        raise error(CheckpointError, f"{file} is damaged ({cause})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise error(CheckpointError, f"{file} is no model of gdt")
    if content.get("version") != VERSION:
        problem = f"{file} is of version {content.get('version')}, and this gdt reads {VERSION}"
        raise error(CheckpointError, problem)
    checksum = _checksum(content)
    if content.get("crc32", checksum) != checksum:
        problem, remedy = f"{file} is damaged", "A file that was edited has no crc32."
        raise error(CheckpointError, problem, remedy=remedy)
    arrays = content.setdefault("file", "arrays.safetensors")
    if not re.fullmatch(r"arrays(-\w+)?\.safetensors", str(arrays)):
        problem = f"{file} is damaged: {arrays!r} is no name of a file of arrays"
        raise error(CheckpointError, problem)
    if content.get("arrays"):
        contents(folder / arrays)  # raises for a file that is missing or damaged
    return content, checksum


def _mesh_like(dims: Any) -> Mesh:
    """Return a mesh of these axes and sizes."""
    names, sizes = dims
    try:
        return create_mesh(list(zip(names, sizes, strict=True)))
    except GdtError as cause:
        problem = (
            f"the model's mesh {dict(zip(names, sizes, strict=True))} cannot be made ({cause})"
        )
        remedy = "Name one: load_model(path, mesh=...)."
        raise error(CheckpointError, problem, remedy=remedy) from None
