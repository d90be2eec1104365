"""Ways to split the features of a model over a mesh axis: by the names of arrays, or their shapes.

`gdt.nn.layout_maps` knows models by the names of their arrays. For a model of other names, shapes
tell the most of it: what enters and leaves a block has the width that most arrays share, and what
lies between can be split, first as columns, then as rows (Shoeybi et al. 2019, "Megatron-LM").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from gdt.nn import layout_maps
from gdt.nn.layout_map import UNITS, LayoutMap
from gdt.nn.sharded import closed
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

WAYS = ("transformer", "mlp", "cnn", "shapes")
Shapes = Mapping[str, tuple[int, ...]]


def split_features(
    way: str,
    shapes: Shapes,
    mesh: Mesh,
    axis: str,
    sequence: bool = False,
    stage: str | None = None,
    expert: str | None = None,
) -> Mapping[str, Any]:
    """Return sharding specs by the patterns of a LayoutMap.

    way: one of WAYS, or "" for features that are not split. shapes: of the parameters, by name.
    axis: the mesh axis that splits features. sequence, stage, expert: see
    `gdt.nn.layout_maps.transformer`; other ways have none of them.
    """
    if way in ("", "transformer"):
        model = axis if way else None
        return layout_maps.transformer(mesh, model, sequence=sequence, stage=stage, expert=expert)
    if way == "cnn":
        return layout_maps.cnn(mesh, axis)
    if way == "mlp":  # convolutions and the like may be in its lists too
        others = {name.rpartition(".")[0] for name, shape in shapes.items() if len(shape) > 2}
        not_others = "".join(rf"(?!{re.escape(name)}\.)" for name in sorted(others))
        return {f"{not_others}{p}": specs for p, specs in layout_maps.mlp(mesh, axis).items()}
    split = {
        n: tuple(axis if k == at else None for k in range(len(shapes[n])))
        for n, at in _by_shapes(shapes).items()
    }
    of_alike: dict[str, set[Any]] = {}  # by the pattern of the names of arrays in a list
    for name in shapes:
        of_alike.setdefault(_pattern(name), set()).add(split.get(name))
    alike = {name for name in split if len(of_alike[_pattern(name)]) == 1}
    return {
        _pattern(n) if n in alike else f"{re.escape(n)}$": [*specs] for n, specs in split.items()
    }


def split_axes(way: str, shapes: Shapes, mesh: Mesh) -> dict[str, int]:
    """Return which axis of each parameter is split, of those of which one is."""
    if way == "shapes":
        return _by_shapes(shapes)
    layouts = LayoutMap(mesh, allow_unmatched=True)
    layouts.update(split_features(way, shapes, mesh, mesh.axis_names[0]))
    found = {}
    for name, shape in shapes.items():
        specs: Any = layouts.get(name, ())
        specs = specs.sharding_specs if isinstance(specs, Layout) else closed(specs, len(shape))
        if len(specs) == len(shape) and mesh.axis_names[0] in specs:
            found[name] = [*specs].index(mesh.axis_names[0])
    return found


def _by_shapes(shapes: Shapes) -> dict[str, int]:
    """Return which axis of matrices and vectors is split."""
    if not shapes:
        return {}
    sizes = Counter(size for shape in shapes.values() for size in shape)
    width = min(sizes, key=lambda size: (-sizes[size], size))
    found = {}
    for _, unit in groupby(shapes, key=unit_of):
        names = [*unit]
        squares = [name for name in names if shapes[name] == (width, width)]
        for name in names:
            at = _hidden_axis(shapes[name], width)
            if name in squares and len(squares) > 1:
                at = 0 if name == squares[-1] else 1
            if at is not None:
                found[name] = at
    return found


def _pattern(name: str) -> str:
    """Return a pattern of the names that differ from a name in the numbers of lists alone."""
    parts = [r"\d+" if part.isdigit() else re.escape(part) for part in name.split(".")]
    return r"\.".join(parts) + "$"


def unit_of(name: str) -> str:
    """Return the name of the module in a list that holds an array; "" for what is in none."""
    match = re.match(UNITS, name)
    return match.group() if match else ""


def _hidden_axis(shape: Sequence[int], width: int) -> int | None:
    """Return which axis of a matrix or a vector is longer than the width of the model, the last
    of several; None for none."""
    longer = [at for at, size in enumerate(shape) if size > width]
    return longer[-1] if longer and len(shape) <= 2 else None
