"""The tables of docs/gpus.md: what recorded steps launch, as counted now."""

from __future__ import annotations

import re

from .host_costs import PAGE, step_table


def test_the_page_has_the_launches_of_recorded_steps() -> None:
    page, counts = PAGE.read_text(), {}
    for line in step_table()[2:]:
        name, *_, launches, nodes = line.strip("| ").split(" | ")
        assert re.search(rf"^\| {name} \| .* \| {launches} \| {nodes} \|$", page, re.M)
        counts[name] = int(launches), int(nodes)
    assert counts["MNIST"] == (1, 18)
