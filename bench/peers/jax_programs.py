"""The programs of `bench.programs` in JAX: jit on one device, and over 8 host devices."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bench.programs.program import Operand, Program, in_tree
from bench.programs.worker import Prepare, Run, serve

NAMESPACE = SimpleNamespace(**vars(jnp) | {"erf": jax.scipy.special.erf})


def contender(devices: int) -> Prepare:
    """Return what prepares a program on this number of devices."""

    def prepare(program: Program, size: int) -> Run:
        jax.config.update("jax_num_cpu_devices", devices)
        mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

        def placed(operand: Operand) -> jax.Array:
            axes = range(operand.values.ndim)
            spec = P(*("x" if axis == operand.axis else None for axis in axes))
            return jax.device_put(operand.values, NamedSharding(mesh, spec))

        def run(*arrays: jax.Array) -> object:
            return program.run(NAMESPACE, *arrays)

        operands = [in_tree(placed, tree) for tree in program.operands(size)]
        step = jax.jit(jax.value_and_grad(run, has_aux=True) if program.has_gradient else run)
        return lambda: jax.block_until_ready(step(*operands))

    return prepare


CONTENDERS = {"one-device": contender(1), "devices": contender(8)}

if __name__ == "__main__":
    serve(CONTENDERS, {"jax": jax.__version__})
