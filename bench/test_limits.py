"""What the machine can do: the rates that the report compares every other measurement with."""

from gdt.benchmark.limit_tests import test_copy_bandwidth, test_matmul_rate

__all__ = ["test_copy_bandwidth", "test_matmul_rate"]

pytest_plugins = ["gdt.benchmark.plugin"]
