"""The distributed array: its blocks, operators and methods, NumPy's and DLPack's protocols, how
values are placed on a mesh, and how they come back to the host.

A `DistributedArray` is an `ArrayType` and a tuple of blocks, one for each physical device of this
process. How many blocks there are is a fact of the mesh: `create_mesh(..., blocks=1)`, the default
on a host, keeps all coordinates in one block; `blocks=mesh.size` stores each coordinate apart and
moves data between them through a transport, as a box of GPUs does. Tests of movement, ops and
training run in both modes: in one block every layout is the same matrix product, so that mode alone
proves little.

Blocks are never written while an array has them: `x[i] = v` gives x new blocks, so no other array
changes with it. Host views are read-only, and `gdt.asarray` copies. Arrays may be used in several
threads.
"""
