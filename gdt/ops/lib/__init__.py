"""The part of `numpy.lib` that other libraries call."""

from gdt.ops.lib import stride_tricks
