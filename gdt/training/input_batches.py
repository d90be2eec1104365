"""Batches that feed a strategy: placed when they are taken, and joined from those of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdt.errors import ArgumentError, error
from gdt.state.trees import leaves, with_leaves


@dataclass(frozen=True)
class InputContext:
    """A process's place among those that feed a strategy; all are fed by one program here."""

    num_replicas_in_sync: int
    num_input_pipelines: int = 1
    input_pipeline_id: int = 0

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the rows of one replica; raise ArgumentError if they do not divide."""
        rows, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            problem = f"{global_batch_size} rows do not divide by {self.num_replicas_in_sync}"
            raise error(ArgumentError, "get_per_replica_batch_size", problem)
        return rows


class PlacedBatches:
    """Batches that are placed when they are taken."""

    def __init__(self, batches: Iterable[Any], place: Callable[[Any], Any]) -> None:
        self.batches, self.place = batches, place

    def __iter__(self) -> Iterator[Any]:
        return map(self.place, self.batches)

    def __len__(self) -> int:
        batches: Any = self.batches
        return len(batches)


class JoinedBatches:
    """Batches that join `count` others along their rows; the last one joins those that are left."""

    def __init__(self, batches: Iterable[Any], count: int) -> None:
        self.batches, self.count = batches, count

    def __iter__(self) -> Iterator[Any]:
        group: list[Any] = []
        for batch in self.batches:
            group.append(batch)
            if len(group) == self.count:
                yield _concatenated(group)
                group = []
        if group:
            yield _concatenated(group)

    def __len__(self) -> int:
        batches: Any = self.batches
        return math.ceil(len(batches) / self.count)


def _concatenated(batches: Sequence[Any]) -> Any:
    """Return one batch with the rows of several."""
    columns = zip(*[leaves(batch) for batch in batches], strict=True)
    arrays = [np.concatenate([np.asarray(x) for x in column]) for column in columns]
    return with_leaves(batches[0], arrays)
