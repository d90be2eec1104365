"""Random cases, each drawn from a seed of its own: checked in order, by a test or from the command
line."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

Check = Callable[[int], tuple[str, str]]
"""A function that draws the case of a seed and returns what it is a case of, and how its result
differs, which is empty if it does not."""


def run(check: Check, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Check `count` cases from the seed `first` on: how many there were of each kind, and the
    differences."""
    counts: Counter[str] = Counter()
    differences = []
    for seed in range(first, first + count):
        name, difference = check(seed)
        counts[name] += 1
        if difference:
            differences.append(f"seed {seed}, {name}: {difference}")
    return counts, differences


def main(check: Check, document: str | None, cases: str, count: int) -> int:
    """Read the command line, check as many cases as it says, and print the differences; 1 if there
    is one.

    document: what `--help` says. cases: the name of the option that says how many, `count` if it is
    not there.
    """
    parser = argparse.ArgumentParser(description=document)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        f"--{cases}", type=int, default=count, dest="count", metavar="N", help="how many"
    )
    arguments = parser.parse_args()
    counts, differences = run(check, arguments.first, arguments.count)
    print("\n".join(differences))
    print(", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    print(f"{counts.total()} {cases}, {len(differences)} differ")
    return bool(differences)
