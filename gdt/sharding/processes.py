"""The processes that run the program together, and the index of this one.

`gdt.distributed.initialize` announces them once, before the first mesh is created. Until then this
process is the only one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """The processes that run one program.

    index: the index of this process. hosts: the name of each process's host, by process index.
    """

    index: int = 0
    hosts: tuple[str, ...] = ("localhost",)

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self.hosts)

    def owners(self, size: int) -> int:
        """Return how many processes own a mesh of `size` coordinates."""
        return self.count if size > 1 else 1

    def place_on_host(self, index: int) -> tuple[int, int]:
        """Return the rank of process `index` among the processes of its host, and their number."""
        neighbours = [i for i, host in enumerate(self.hosts) if host == self.hosts[index]]
        return neighbours.index(index), len(neighbours)


_current = Processes()


def current() -> Processes:
    """Return the processes of this program."""
    return _current


def announce(processes: Processes) -> None:
    """Make `processes` the processes of this program."""
    global _current  # noqa: PLW0603  # a fact of the process, like its id
    _current = processes
