"""Which processes run the program together, and which of them this one is.

`gdt.distributed.initialize` says so, once, before the first mesh is made; until then there is one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """The processes that run one program. index: of this one; hosts: of each, by its index."""

    index: int = 0
    hosts: tuple[str, ...] = ("localhost",)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.hosts)

    def place_on_host(self, index: int) -> tuple[int, int]:
        """Number of a process among those of its host, and how many these are."""
        same = [i for i, host in enumerate(self.hosts) if host == self.hosts[index]]
        return same.index(index), len(same)


_current = Processes()


def current() -> Processes:
    """The processes of this program."""
    return _current


def announce(processes: Processes) -> None:
    """Set what `current` returns."""
    global _current  # noqa: PLW0603  # a fact of the process, like its id
    _current = processes
