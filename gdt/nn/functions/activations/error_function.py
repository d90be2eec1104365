"""The error function, from + - * /, exp and comparisons alone.

float64: fdlibm's rational approximations (Sun Microsystems 1993, `s_erf.c`) on the four intervals
of |x| that 0.84375, 1.25 and 1 / 0.35 bound; beyond 6 it is 1. Measured against the C library over
the whole line: within 1 ulp.

float32: one rational approximation of odd degree 11 over even degree 10 on |x| < 3.8325, where erf
rounds to 1 (Eigen, `generic_fast_erf_float`). Measured: within 6.1 ulp. float16 is float32 rounded.
Large blocks of float32 on the host have another one, within 2 ulp (`gdt.fusion.elementary`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any

ROOT_HALF = math.sqrt(0.5)
DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)  # of the standard normal

SATURATION_32 = 3.832506856900711
NUMERATOR_32 = (
    1.128379106521606445312500000000000,
    1.874160766601562500000000000000000e-01,
    5.243302136659622192382812500000000e-02,
    3.658048342913389205932617187500000e-03,
    2.861979592125862836837768554687500e-04,
    2.123732201653183437883853912353516e-06,
)
DENOMINATOR_32 = (
    1.0,
    4.99425798654556274414062500e-01,
    1.12945675849914550781250000e-01,
    1.47520881146192550659179688e-02,
    1.14329601638019084930419922e-03,
    3.89185734093189239501953125e-05,
)

# |x| < 0.84375: erf x = x + x P(x^2) / Q(x^2)
P = (
    1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
    -5.77027029648944159157e-03, -2.37630166566501626084e-05,
)  # fmt: skip
Q = (
    1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
    1.32494738004321644526e-04, -3.96022827877536812320e-06,
)  # fmt: skip

# |x| < 1.25: erf x = C + PA(|x| - 1) / QA(|x| - 1)
C = 8.45062911510467529297e-01
PA = (
    -2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
    3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)  # fmt: skip
QA = (
    1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
    1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02,
)  # fmt: skip

# |x| < 1 / 0.35: erf x = 1 - exp(-x^2 - 0.5625 + RA(1 / x^2) / SA(1 / x^2)) / |x|; then RB and SB
RA = (
    -9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01,
    -6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02,
    -8.12874355063065934246e01, -9.81432934416914548592e00,
)  # fmt: skip
SA = (
    1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02,
    6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02,
    6.57024977031928170135e00, -6.04244152148580987438e-02,
)  # fmt: skip
RB = (
    -9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01,
    -1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03,
    -4.83519191608651397019e02,
)  # fmt: skip
SB = (
    1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03,
    3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02,
    -2.24409524465858183362e01,
)  # fmt: skip


def erf(xp: Any, x: Array) -> Array:
    """The error function of floating-point numbers, in a new array of their dtype.

    >>> erf(np, np.array([0.0, 1.0]))
    array([0.        , 0.84270079])
    """
    if x.dtype == np.float64:
        return _erf64(xp, x)
    return _erf32(xp, x.astype(np.float32, copy=False)).astype(x.dtype, copy=False)


def _erf32(xp: Any, x: Array) -> Array:
    x = xp.clip(x, -SATURATION_32, SATURATION_32)
    squared = x * x
    x *= _polynomial(NUMERATOR_32, squared)
    x /= _polynomial(DENOMINATOR_32, squared)
    return xp.clip(x, -1.0, 1.0, out=x)


def _erf64(xp: Any, x: Array) -> Array:
    flat = x.reshape(-1)
    magnitude = xp.abs(flat)
    out = xp.minimum(magnitude, 1)  # 1 is right beyond 6, and NaN stays NaN
    intervals = ((0.0, 0.84375, _near), (0.84375, 1.25, _middle), (1.25, 6.0, _tail))
    for low, high, approximate in intervals:
        is_inside = (magnitude >= low) & (magnitude < high)
        if xp is np:
            out[is_inside] = approximate(xp, magnitude[is_inside])
        else:  # how many elements are inside, the host would have to ask the GPU
            out = xp.where(is_inside, approximate(xp, xp.clip(magnitude, low, high)), out)
    return xp.copysign(out, flat).reshape(x.shape)


def _near(xp: Any, x: Array) -> Array:
    squared = x * x
    return x + x * (_polynomial(P, squared) / _polynomial(Q, squared))


def _middle(xp: Any, x: Array) -> Array:
    s = x - 1
    return C + _polynomial(PA, s) / _polynomial(QA, s)


def _tail(xp: Any, x: Array) -> Array:
    s = 1 / (x * x)
    left, right = (_polynomial(r, s) / _polynomial(q, s) for r, q in ((RA, SA), (RB, SB)))
    ratio = xp.where(x < 1 / 0.35, left, right)
    return 1 - xp.exp(ratio - 0.5625 - x * x) / x


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Horner's rule; coefficients from the lowest power up."""
    value = coefficients[-1] * x
    for c in coefficients[-2:0:-1]:
        value += c
        value *= x
    value += coefficients[0]
    return value
