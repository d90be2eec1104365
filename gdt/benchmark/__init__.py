"""Benchmarks of programs on meshes with pytest-benchmark: time over the number of devices.

`gdt.benchmark.plugin` is a pytest plugin: a test that takes its fixture `scaling` runs on 1, 2, 4
and 8 devices, and the bytes that it sends are recorded beside its times. `python -m gdt.benchmark
RUN.json` turns pytest-benchmark's file into tables, pictures and one HTML page, and compares runs.
"""

from gdt.benchmark.measure import COUNTS, Devices, device_counts, measure

__all__ = ["COUNTS", "Devices", "device_counts", "measure"]
