"""HTML for notebooks: arrays, layouts, meshes, modules, and the results of explain and visualize.

Everything that comes from users (names, devices, values) is escaped, and what may be large is cut:
`ROWS` rows of a table, the summary that NumPy prints of values, and what `pictures` draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from gdt.array.array import DistributedArray
from gdt.debug.drawing import Explanation, Visualization
from gdt.debug.observers import counted
from gdt.debug.pictures import picture
from gdt.nn.module import Module, heading, note, parts
from gdt.sharding.array_type import ArrayType
from gdt.sharding.displayed import to_html
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

ROWS = 200
UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"]


@to_html.register
def _array(x: DistributedArray) -> str:
    shards = counted(x.mesh.num_local_devices(), "shard")
    facts = [
        ("bytes", _size(x.nbytes)),
        ("of a device", _size(x.type.local_nbytes)),
        ("mesh", repr(x.mesh)),
        ("stored as", f"{shards} in {counted(len(x.blocks), 'block')} here"),
    ]
    # JupyterLab lets `pre` inherit the font of the text around it.
    values = f'<pre style="margin:0;font-family:monospace">{escape(repr(x))}</pre>'
    return _page(str(x.type), _beside(picture(x.type), _table(facts) + values), _partial(x.layout))


@to_html.register
def _array_type(array_type: ArrayType) -> str:
    return _page(str(array_type), picture(array_type), _partial(array_type.layout))


@to_html.register
def _placement(placement: Visualization) -> str:
    return _array_type(placement.array_type)


@to_html.register
def _layout(layout: Layout) -> str:
    """Draw an array of one element a shard."""
    array_type = ArrayType.of(layout.shard_counts, np.dtype("int8"), layout.resolved)
    rows = [
        (f"axis {d}", ", ".join(layout.mesh.axis_names[a] for a in axes) or "unsharded", str(count))
        for d, (axes, count) in enumerate(zip(layout.dims, layout.shard_counts, strict=True))
    ]
    table = _table(rows, ("", "split over", "shards")) if rows else ""
    text = _beside(picture(array_type), f"<div>{escape(repr(layout.mesh))}</div>{table}")
    return _page(f"Layout {layout}", text, _partial(layout))


@to_html.register
def _mesh(mesh: Mesh) -> str:
    """Draw an array of one element a device."""
    names = mesh.axis_names
    array_type = ArrayType.of(mesh.sizes, np.dtype("int8"), Layout(list(names), mesh))
    processes = f", in {mesh.num_processes} processes" if mesh.num_processes > 1 else ""
    text = f"{mesh.size} devices of type {mesh.device_type()}{processes}"
    return _page(repr(mesh), f"<div>{escape(text)}</div>", picture(array_type, names))


@to_html.register
def _module(module: Module) -> str:
    return f"<div>{_part(module, '', {}, '')}</div>"


def _part(module: Module, name: str, names: dict[int, str], path: str) -> str:
    """Return a module, folded where it is a part of another.

    names: the names of the modules shown before, by identity. path: the name in the whole model."""
    summary = f"<code>{escape(heading(module, name, names))}</code>"
    if id(module) in names:
        return f"<div>{summary}</div>"
    names[id(module)] = path or "the whole"
    arrays = [
        (key, str(value.type), _size(value.nbytes), note(module, key).strip())
        for key, value in vars(module).items()
        if isinstance(value, DistributedArray)
    ]
    inner = _table(arrays) if arrays else ""
    for key, part in parts(module):
        inner += _part(part, key, names, f"{path}.{key}" if path else key)
    if not inner:
        return f'<div style="margin-left:1em">{summary}</div>'
    opened = "" if path else " open"
    return f'<details{opened} style="margin-left:1em"><summary>{summary}</summary>{inner}</details>'


@to_html.register
def _explanation(explanation: Explanation) -> str:
    header, footer, *rows = explanation.texts()
    first_rows = rows[:ROWS]
    if len(rows) > ROWS:
        first_rows.append([f"and {len(rows) - ROWS} more", *[""] * (len(header) - 1)])
    loops = [f"<div>{escape(str(loop))}</div>" for loop in explanation.loops]
    return _table(first_rows, header, footer) + "".join(loops)


# ---------------------------------------------------------------- pieces


def _page(title: str, *parts: str) -> str:
    return f"<div><div><code>{escape(title)}</code></div>{''.join(parts)}</div>"


def _beside(*parts: str) -> str:
    cells = "".join(f'<div style="overflow:auto">{part}</div>' for part in parts)
    return f'<div style="display:flex;gap:1.5em;align-items:flex-start">{cells}</div>'


def _table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), footer: Sequence[str] = ()
) -> str:
    """Return a table of text, in which line breaks and spaces at the start stay."""

    def row(cells: Sequence[str], tag: str) -> str:
        start = f'<{tag} style="text-align:left;vertical-align:top;white-space:pre-wrap">'
        return f"<tr>{''.join(f'{start}{escape(c)}</{tag}>' for c in cells)}</tr>"

    head = f"<thead>{row(header, 'th')}</thead>" if header else ""
    foot = f"<tfoot>{row(footer, 'th')}</tfoot>" if footer else ""
    body = "".join(row(cells, "td") for cells in rows)
    return f"<table>{head}<tbody>{body}</tbody>{foot}</table>"


def _partial(layout: Layout) -> str:
    return "".join(
        f"<div>{escape(f'Each device holds a part of a {reduction} over {name!r}.')}</div>"
        for name, reduction in layout.partial.items()
    )


def _size(nbytes: float) -> str:
    """Return a number of bytes in the largest unit that it fills."""
    for unit in UNITS[:-1]:
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} {UNITS[-1]}"
