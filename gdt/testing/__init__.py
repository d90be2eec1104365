"""The oracle: any function, on any layout and any mesh, equals itself on whole arrays.

    sample = Sample((np.ones((5, 3)), np.ones(3)), expect=np.add)
    for mesh in meshes():
        check_mesh(gdt.add, sample, mesh)

For every choice of layouts the function runs twice: on operands as `gdt.asarray` places them, and
with *poison* (NaN, the largest integer) in the padding of uneven operands, which must not reach any
result. The oracle checks values, shape, dtype, shards and memory of the results; that operands have
not changed; and gradients: on one device against finite differences, in every layout against one
device.
"""

from gdt.testing.layouts import choices, layouts, meshes
from gdt.testing.memory import peak_memory
from gdt.testing.operands import assert_close, assert_consistent, placed, tolerance
from gdt.testing.oracle import Oracle, Sample, check, check_mesh
from gdt.testing.rules import check_rule
