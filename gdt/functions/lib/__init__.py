"""The part of `numpy.lib` that other libraries call."""

from gdt.functions.lib import stride_tricks
