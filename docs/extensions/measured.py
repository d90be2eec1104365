"""`python -m docs.extensions.measured` writes the tables of docs/measured.json into the pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent
PAGES = [DOCS.parent / "README.md", DOCS / "measured.md"]
BEGIN, END = "<!-- steps -->\n", "<!-- end of steps -->"


def steps(measured: dict[str, Any]) -> str:
    """The table of training steps, and the sentences below it."""
    header = ["step, times NumPy in place", "arrays", *measured["columns"]]
    rows = [[r["step"], r["arrays"], *map(str, r["ratios"])] for r in measured["rows"]]
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in [header, *rows]]
    lines.insert(1, "|" + "---|" * len(header))
    alone = [
        f"{one['library']} {' and '.join(map(str, one['ratios']))}"
        for one in measured["one device"]
    ]
    return "\n".join(lines) + (
        f"\n\nOn one device without a mesh: {', '.join(alone)} times the baseline (MNIST, IMDB).\n"
        f"{measured['machine']}; {measured['versions']}; commit {measured['commit']} of "
        f"{measured['date']}; `{measured['command']}`.\n"
    )


def written(page: str) -> str:
    """A page with its tables as they are in the file."""
    before, _, rest = page.partition(BEGIN)
    table = steps(json.loads((DOCS / "measured.json").read_text())["steps"])
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text()))
