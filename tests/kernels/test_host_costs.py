"""The tables of docs/gpus.md: what recorded steps launch, as counted now."""

from __future__ import annotations

import re

import pytest

from .host_costs import COUNTED, PAGE, op_counts, step_table

pytestmark = pytest.mark.usefixtures("own_backends")


def test_the_page_has_the_frames_of_ops() -> None:
    page = PAGE.read_text()
    for name, found in op_counts().items():
        (row,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|.*\|.*\|$", page, re.M)[:1]
        frames, *rest = map(int, row.split("|"))
        assert found["frames"] <= frames  # Python 3.12 has no frames of comprehensions
        assert [found.get(k, 0) for k in COUNTED[1:]] == rest


def test_the_page_has_the_launches_of_recorded_steps() -> None:
    page, counts = PAGE.read_text(), {}
    for line in step_table()[2:]:
        name, *_, launches, nodes = line.strip("| ").split(" | ")
        assert re.search(rf"^\| {name} \| .* \| {launches} \| {nodes} \|$", page, re.M)
        counts[name] = int(launches), int(nodes)
    assert counts["MNIST"] == (1, 18)
