"""Weights of attention, and the gradients of scores, as compiled loops over blocks in float32.

exp(x) = 2^n exp(s), where n is x / log(2) rounded and |s| <= log(2) / 2, with a polynomial of
degree 7 for exp(s) (Cephes, `expf`). Measured on [-87, 0]: a relative error below 8.4e-8; that of
NumPy's is below 1.9e-7. Smaller x give 0, as NumPy's do below -103.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.engine.loops import Loop, loop

Block = Any

FEWEST_SCORES = 1 << 15  # a loop over fewer gains less than the import of numba takes

LOWEST = np.float32(-87.0)  # below it exp(x) may be less than the smallest normal number
LOG2_E = np.float32(1.44269504)
LOG_2, REST = np.float32(0.693359375), np.float32(-2.12194440e-4)  # log(2) is their sum
P2, P3, P4 = np.float32(0.5), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
P5, P6, P7 = map(np.float32, (8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4))
# A number of this size is rounded to an integer; its last 8 bits are n + 127, the exponent of 2^n.
SHIFTER = np.float32(1.5 * 2**23 + 127)


@loop("output, output, int", fuses=True)
def _exponentials(scores: Block, shifts: Block, is_maximum: int) -> None:
    zero, one, columns = np.float32(0), np.float32(1), scores.size // shifts.size
    sign, others = np.int32(31), np.int32(0x7FFFFFFF)
    for r in range(shifts.size):
        row, own = scores[r * columns : (r + 1) * columns], shifts[r : r + 1]
        if is_maximum:  # that of integers in the order of the floats: compilers use vectors for it
            integers, integer = row.view(np.int32), own.view(np.int32)
            largest = integer[0] ^ ((integer[0] >> sign) & others)
            for c in range(columns):
                largest = max(largest, integers[c] ^ ((integers[c] >> sign) & others))
            integer[0] = largest ^ ((largest >> sign) & others)
        shift = zero if own[0] == -np.inf else own[0]
        bits = row.view(np.uint32)
        for c in range(columns):
            x = row[c] - shift
            shifted = x * LOG2_E + SHIFTER
            n = shifted - SHIFTER
            s = x - n * LOG_2 - n * REST
            polynomial = ((((P7 * s + P6) * s + P5) * s + P4) * s + P3) * s + P2
            y = polynomial * (s * s) + s + one
            row[c] = shifted
            bits[c] = bits[c] << np.uint32(23)  # those of 2^n
            row[c] = zero if x < LOWEST else y * row[c]


@loop("output, input, input")
def _score_gradients(gradients: Block, weights: Block, products: Block) -> None:
    columns = gradients.size // products.size
    for r in range(products.size):
        row, own = gradients[r * columns :][:columns], weights[r * columns :][:columns]
        for c in range(columns):
            row[c] = (row[c] - products[r]) * own[c]


def exponentials(xp: Any, scores: Block, shifts: Block, is_maximum: bool = False) -> Block:
    """Overwrite scores with exp(scores - shifts), where a shift of -inf is taken for 0, and return
    them.

    scores: (heads, queries, keys), without gaps. shifts: (heads, queries, 1). is_maximum: whether
    the shifts, which then have no gaps, first become the largest scores where those are larger;
    otherwise no shift is less than its scores, but for rounding.
    """
    run = _loop(xp, _exponentials, scores)
    if run is not None:
        run(scores.ravel(), shifts.ravel(), is_maximum)
        return scores
    if is_maximum:
        xp.maximum(shifts, scores.max(axis=-1, keepdims=True), out=shifts)
    scores -= xp.where(shifts == -np.inf, shifts.dtype.type(0), shifts)
    return xp.exp(scores, out=scores)


def score_gradients(xp: Any, gradients: Block, weights: Block, products: Block) -> Block:
    """Overwrite the gradients of weights with those of scores, (gradients - products) * weights,
    and return them.

    gradients, weights: (heads, queries, keys), without gaps. products: (heads, queries, 1).
    """
    run = _loop(xp, _score_gradients, gradients)
    if run is not None:
        run(gradients.ravel(), weights.ravel(), products.ravel())
        return gradients
    gradients -= products
    gradients *= weights
    return gradients


def _loop(xp: Any, of_dtypes: Loop, scores: Block) -> Any:
    """Return the loop for scores; None on GPUs, in float64 and for few scores."""
    is_fit = xp is np and scores.dtype == np.float32 and scores.size >= FEWEST_SCORES
    return of_dtypes["f"] if is_fit else None
