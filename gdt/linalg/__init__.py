"""Linear algebra with the names of `numpy.linalg`, on matrices that are split in any way.

**Stacks of matrices** that are split along the axes in front are computed where they are. A split
of the matrices themselves moves to the axes in front, by an all-to-all, if these are long enough.

**Tall matrices**, with at least as many rows for each device as columns, keep their rows split
(TSQR): `qr`, `svd` without full matrices, `svdvals`, `pinv`, `lstsq`, `matrix_rank`. What is
gathered is one triangle for each device.

**Large square matrices** are decomposed panel by panel (right-looking Cholesky, and LU with partial
pivoting), and no device holds more than three times its share of operands and results: `cholesky`,
`solve`, `inv`, `det`, `slogdet`. Up to 256 KiB they are gathered, which sends less.

**Other split matrices** are gathered, and every device holds them whole: `eigh`, `eigvalsh`, `eig`,
`eigvals`, and what `qr` and `svd` are asked for of matrices that are not tall. `gdt.explain` shows
the all-gather, and ops that are named after the whole matrix, such as `eigh_of_whole`.

Gradients exist for all of them, except for Q of `qr` in the mode `"complete"` and `svd` with full
matrices where matrices are not square.
"""

from gdt.errors import LinAlgError
from gdt.linalg.decompositions import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from gdt.linalg.norms import cond, matrix_norm, norm, vector_norm
from gdt.linalg.products import (
    cross,
    diagonal,
    matmul,
    matrix_power,
    matrix_transpose,
    multi_dot,
    outer,
    tensordot,
    trace,
    vecdot,
)
from gdt.linalg.solving import (
    det,
    inv,
    lstsq,
    matrix_rank,
    pinv,
    slogdet,
    solve,
    tensorinv,
    tensorsolve,
)

__all__ = [
    "LinAlgError",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]
