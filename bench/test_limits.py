"""Benchmarks of the machine's rates, with which the report compares the other benchmarks."""

from gdt.benchmark.limit_tests import test_copy_bandwidth, test_matmul_rate

__all__ = ["test_copy_bandwidth", "test_matmul_rate"]

pytest_plugins = ["gdt.benchmark.plugin"]
