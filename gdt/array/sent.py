"""Blocks that devices move beside their computation, which waits when somebody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdt.array.deferred import DeferredBlocks
from gdt.comm.launch import Launch

Block = Any


class SentBlocks(DeferredBlocks):
    """A stand-in for blocks that a launch makes: its reader lets computation wait for the launch.

    launch: None once somebody has read them. made: the blocks, which may not be there yet.
    """

    launch: Launch | None
    made: Sequence[Block]

    def __new__(cls, launch: Launch, made: Sequence[Block]) -> SentBlocks:
        sent = super().__new__(cls)
        sent.launch, sent.made = launch, tuple(made)
        return sent

    def _compute(self) -> Sequence[Block]:
        launch = self.launch
        if launch is not None:
            launch.join()
        self.launch = None
        return self.made
