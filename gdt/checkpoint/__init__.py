"""Checkpoints: the arrays of a model in one safetensors file, restored onto any mesh and layout.

The file holds global arrays, so meshes and layouts leave no trace in it, and `safetensors` alone
can read it. A file appears whole or not at all: it is written under a temporary name, brought to
disk, and renamed.
"""

from gdt.checkpoint.manager import CheckpointManager
from gdt.checkpoint.restoring import Restored, contents, restore, verify
from gdt.checkpoint.saving import save

__all__ = ["CheckpointManager", "Restored", "contents", "restore", "save", "verify"]
