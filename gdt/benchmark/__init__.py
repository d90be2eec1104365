"""Benchmarks of programs on meshes, with pytest-benchmark: how time changes with the devices.

`gdt.benchmark.plugin` is the pytest plugin: a test that takes the fixture `scaling` runs on 1, 2, 4
and 8 devices, and what it sends is written beside its times. `python -m gdt.benchmark RUN.json`
turns what pytest-benchmark has written into tables, pictures and one HTML page, and compares runs.
"""

from gdt.benchmark.measure import COUNTS, Devices, device_counts, measure

__all__ = ["COUNTS", "Devices", "device_counts", "measure"]
