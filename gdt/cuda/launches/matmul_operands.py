"""The operands of a matrix product: how their matrices lie in memory."""

from __future__ import annotations

from dataclasses import dataclass

from gdt.cuda.launches.calls import Array, Leading
from gdt.errors import KernelError, error


@dataclass(frozen=True)
class MatrixOperand:
    """An operand of a product: a matrix for each item, stored by rows, or by columns if transposed.

    lead_only: a view of the leading axes of `array`. row: the elements from one row in memory to
    the next.
    """

    array: Array
    lead_only: Array
    transposed: bool
    row: int

    @staticmethod
    def of(array: Array, mesh_ndim: int) -> MatrixOperand:
        """Describe `array`; raise KernelError if neither its rows nor its columns are
        contiguous."""
        return MatrixOperand(array, leading_axes(array, mesh_ndim), *_orientation(array, mesh_ndim))


@dataclass(frozen=True)
class Operands:
    """The operands x: (items, m, k) and w: (items, k, n), and their leading axes."""

    x: MatrixOperand
    w: MatrixOperand
    bias_lead: Array | None
    leading: Leading
    m: int
    n: int
    k: int

    @staticmethod
    def of(x: Array, w: Array, bias: Array | None, mesh_ndim: int) -> Operands:
        """Describe the operands; raise KernelError for operands that no kernel takes."""
        sides = MatrixOperand.of(x, mesh_ndim), MatrixOperand.of(w, mesh_ndim)
        bias_lead = None if bias is None else leading_axes(bias, mesh_ndim)
        leading = Leading(mesh_ndim, *(side.lead_only for side in sides), bias_lead)
        m, k = x.shape[mesh_ndim:]
        return Operands(*sides, bias_lead, leading, m, w.shape[-1], k)


def leading_axes(array: Array, mesh_ndim: int) -> Array:
    """Return a view of the leading axes of `array`; kernels take the inner strides separately."""
    return array[(..., *(slice(1),) * (array.ndim - mesh_ndim))]


def _orientation(array: Array, mesh_ndim: int) -> tuple[bool, int]:
    """Return whether the matrices are stored by columns, and the elements from one row in memory to
    the next."""
    item = array.dtype.itemsize
    rows, columns = array.shape[mesh_ndim:]
    down, across = (s // item for s in array.strides[mesh_ndim:])
    if array.size == 0:
        return False, columns
    if across == 1 or columns == 1:
        return False, down if rows > 1 else columns
    if down == 1 or rows == 1:
        return True, across
    problem = f"an operand of shape {array.shape} walks memory neither by rows nor by columns"
    raise error(KernelError, "matmul", problem)
