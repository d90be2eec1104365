"""gdt: NumPy-like arrays sharded over many devices."""

from gdt.array import DistributedArray, Shard
from gdt.layout import MATCH, UNSHARDED, ArrayType, Layout
from gdt.mesh import Mesh, create_mesh, default_mesh, get_default_mesh
from gdt.ops.contraction import matrix_product
from gdt.ops.creation import asarray, full, full_like, ones, ones_like, zeros, zeros_like
from gdt.ops.elementwise import add, divide, exp, log, multiply, negative, relu, subtract
from gdt.ops.movement import relayout, relayout_like
from gdt.ops.reductions import sum_ as sum
from gdt.ops.shapes import broadcast_to, expand_dims, reshape, squeeze, transpose
from gdt.policy import implicit_fetch
from gdt.tape import GradientTape, grad, stop_gradient, value_and_grad, vjp
