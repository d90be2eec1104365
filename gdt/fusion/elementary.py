"""Elementary functions as formulas, which LLVM turns into vectors.

Each reduces its argument to a short interval, evaluates a polynomial there and undoes the
reduction, without a branch; the error is below 2 units in the last place, which
`tests/fusion/test_elementary.py` shows. The comment beside a polynomial says which function it
approximates. Those of float32 are minimax fits by Lawson's algorithm (1961), weighted for the
relative error of the result, whose coefficients were rounded to float32 one after the other.
The reductions are those of Cody and Waite (Software Manual for the Elementary Functions, 1980);
erf's two intervals are those of N. Juffa.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gdt.fusion.formula import FORMULAS


def polynomial(x: str, coefficients: Sequence[float]) -> str:
    """Horner's scheme of a polynomial, whose constant term comes first.

    >>> polynomial("x", [1.0, 0.5, 0.25])
    'fma(fma(0.25, x, 0.5), x, 1.0)'
    """
    text = repr(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        text = f"fma({text}, {x}, {c!r})"
    return text


FORMULAS["squared"] = "x * x"  # of the absolute value

# ---------------------------------------------------------------- exponentials

SHIFT, SHIFT_BITS = 12582912.0, 0x4B400000
"""1.5 * 2 ** 23: adding it rounds a number to an integer, which is in the low bits of the sum."""
# log(2) as two numbers; the first has 16 bits, so that its products with integers are exact.
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.428606765330187e-06

# x = n * log(2) + r, where abs(r) is at most log(2) / 2: exp(x) = 2 ** n * exp(r).
REDUCED = f"""
shifted = fma(x, 1.4426950408889634, {SHIFT})
n = bits(shifted) - {SHIFT_BITS}
m = shifted - {SHIFT}
r = fma(m, -{LN2_LOW}, fma(m, -{LN2_HIGH}, x))
"""
# Both: (exp(r) - 1 - r) / r ** 2
EXP = polynomial("r", [0.49999994, 0.16666521, 0.041668277, 0.008368688, 0.0013819853])
EXPM1 = polynomial("r", [0.5, 0.16666666, 0.041666493, 0.008333543, 0.0013932344, 0.00019764283])

FORMULAS["power_of_2"] = "number((x + 127) << 23)"
FORMULAS["exp"] = f"""
x = -104.0 if x < -104.0 else x
x = 89.0 if x > 89.0 else x
{REDUCED}
half = n >> 1
fma({EXP} * r, r, r + 1.0) * power_of_2(half) * power_of_2(n - half)
"""
FORMULAS["expm1"] = f"""
is_tiny = abs(x) < 1e-20
tiny = x
x = -18.0 if x < -18.0 else x
x = 89.0 if x > 89.0 else x
{REDUCED}
scale = power_of_2(n - 1)
tiny if is_tiny else fma(scale, fma({EXPM1} * r, r, r), scale - 0.5) * 2.0
"""

# ---------------------------------------------------------------- logarithms

ROOT_HALF_BITS = 0x3F3504F3  # of sqrt(1 / 2)
# (log(1 + f) - f + f ** 2 / 2) / f ** 3, for 1 + f between the roots of 1/2 and 2
LOG = polynomial(
    "f",
    [
        0.3333333,
        -0.2500082,
        0.20001243,
        -0.1662341,
        0.1420154,
        -0.1315955,
        0.12762485,
        -0.076369405,
    ],
)
# log(x * (1 + y)) of a positive x and a y near 0, the relative error of x
FORMULAS["log_and_error"] = f"""
is_small = x < 1.17549435e-38
i = bits(x * 8388608.0 if is_small else x) - {ROOT_HALF_BITS}
e = real(i >> 23)
e = e - 23.0 if is_small else e
f = number((i & 0x7FFFFF) + {ROOT_HALF_BITS}) - 1.0
square = f * f
tail = fma({LOG} * f, square, -0.5 * square) + y
fma(e, {LN2_HIGH}, f + fma(e, {LN2_LOW}, tail))
"""
# The logarithm of x, where y is what the reduction gives: right for positive finite x alone.
FORMULAS["log_or_special"] = """
special = nan if x < 0.0 else (-inf if x == 0.0 else x)
y if (x > 0.0) & (x < inf) else special
"""
FORMULAS["log"] = "log_or_special(x, log_and_error(x, x - x))"
FORMULAS["log1p"] = """
u = x + 1.0
error = (x - (u - 1.0)) / u
y = log_or_special(u, log_and_error(u, error))
x if abs(x) < 1e-8 else y
"""

# ---------------------------------------------------------------- tanh and erf

# (tanh(x) / x - 1) / z of z = x * x, up to 0.625
TANH = polynomial("z", [-0.3333328, 0.1333141, -0.05373714, 0.020630825, -0.005695813])
FORMULAS["tanh"] = f"""
a = abs(x)
z = x * x
near = fma({TANH} * z, a, a)
far = 1.0 - 2.0 / (exp(a + a) + 1.0)
copysign(near if a < 0.625 else far, x)
"""
# erf(x) / x - 1 of z = x * x, up to 1; and -log(1 - erf(a)), from 0.98 to 4
ERF_NEAR = polynomial(
    "z", [0.12837912, -0.37612325, 0.11280175, -0.026711227, 0.004917484, -0.00056312163]
)
ERF_FAR = polynomial(
    "a",
    [-0.00018847025, 1.1295804, 0.63321614, 0.10842252, -0.025210705, 0.0042054607,
     -0.00044151675, 2.1702075e-05],
)  # fmt: skip
FORMULAS["erf"] = f"""
a = abs(x)
z = x * x
near = fma({ERF_NEAR}, a, a)
a = 4.0 if a > 4.0 else a
far = 1.0 - exp(-{ERF_FAR})
copysign(near if a < 0.99 else far, x)
"""

# ---------------------------------------------------------------- sine and cosine

FARTHEST = 30000.0
"""The largest angle that is reduced. Of larger ones the result is NaN, and NumPy computes them."""
# x = n * pi / 2 + r, where abs(r) is at most pi / 4; pi / 2 is the sum of three numbers.
TURNED = f"""
shifted = fma(x, 0.6366197723675814, {SHIFT})
n = bits(shifted) - {SHIFT_BITS}
m = shifted - {SHIFT}
r = fma(m, -1.5707963705062866, x)
r = fma(m, 4.371138828673793e-08, r)
r = fma(m, 1.7151245100058819e-15, r)
z = r * r
sine = fma({polynomial("z", [-0.16666667, 0.0083333794, -0.00019853079, 2.832806e-06])} * z, r, r)
cosine = fma({polynomial("z", [0.041666646, -0.001388731, 2.4432336e-05])}, z * z,
    fma(z, -0.5, 1.0))
"""
FORMULAS["sin"] = f"""
{TURNED}
y = cosine if (n & 1) == 1 else sine
y = -y if (n & 2) == 2 else y
y = x if abs(x) < 0.0002 else y
y if abs(x) <= {FARTHEST} else nan
"""
FORMULAS["cos"] = f"""
{TURNED}
y = sine if (n & 1) == 1 else cosine
y = -y if ((n + 1) & 2) == 2 else y
y if abs(x) <= {FARTHEST} else nan
"""

# ---------------------------------------------------------------- powers

# In float64: log2((1 + s) / (1 - s)) / s of w = s * s; and 2 ** r, for abs(r) up to 1/2
LOG2 = polynomial(
    "w",
    [2.885390081777269, 0.9617966955957643, 0.5770775087994396, 0.41225178820440445,
     0.31822820865274565, 0.30587928352465854],
)  # fmt: skip
EXP2 = polynomial(
    "r",
    [0.999999999961621, 0.6931471807287203, 0.24022651198755499, 0.05550410352818512,
     0.009618027172707457, 0.0013333922867096646, 0.00015469317319578689, 1.5201898382640699e-05],
)  # fmt: skip
FORMULAS["power"] = f"""
a = abs(x)
is_small = a < 1.17549435e-38
i = bits(a * 8388608.0 if is_small else a) - {ROOT_HALF_BITS}
e = real(i >> 23)
e = wide(e - 23.0 if is_small else e)
u = wide(number((i & 0x7FFFFF) + {ROOT_HALF_BITS}))
s = (u - 1.0) / (u + 1.0)
w = s * s
exponent = wide(y) * fma({LOG2}, s, e)
exponent = -200.0 if exponent < -200.0 else exponent
exponent = 200.0 if exponent > 200.0 else exponent
m = rint(exponent)
r = exponent - m
n = bits(narrow(m) + {SHIFT}) - {SHIFT_BITS}
half = n >> 1
p = narrow({EXP2}) * power_of_2(half) * power_of_2(n - half)
is_edge = (a == 0.0) | (a == inf)
grows = ~((y > 0.0) ^ (a > 1.0))
p = inf if is_edge & grows else p
p = 0.0 if is_edge & ~grows else p
is_integer = trunc(y) == y
half_of = 0.5 * y
is_odd = is_integer & (trunc(half_of) != half_of)
p = -p if is_odd & (bits(x) < 0) else p
p = nan if (x < 0.0) & ~is_integer & (a < inf) else p
p = p if x == x else x
p = p if y == y else y
1.0 if (y == 0.0) | (x == 1.0) | ((a == 1.0) & (abs(y) == inf)) else p
"""
# The second, third and fourth power are products. Of a known exponent one case is left.
FORMULAS["power_or_product"] = """
square = x * x
product = square * square if y == 4.0 else (square * x if y == 3.0 else square)
product if (y == 2.0) | (y == 3.0) | (y == 4.0) else power(x, y)
"""

# ---------------------------------------------------------------- choices

FORMULAS["maximum"] = "x if (x > y) | (x != x) else y"
FORMULAS["minimum"] = "x if (x < y) | (x != x) else y"
FORMULAS["clip"] = """
x = x if (x >= y) | (x != x) else y
x if (x <= z) | (x != x) else z
"""

# ---------------------------------------------------------------- activations

FORMULAS["sigmoid"] = """
e = exp(-abs(x))
(1.0 if x >= 0.0 else e) / (e + 1.0)
"""
FORMULAS["softplus"] = "log1p(exp(-abs(x))) + (x if x > 0.0 else 0.0)"

# ---------------------------------------------------------------- float64

# The same reductions, with Taylor series, which are short enough on these intervals.
SHIFT_64, SHIFT_64_BITS = 6755399441055744.0, 0x4338000000000000
LN2_HIGH_64, LN2_LOW_64 = 0.6931471803691238, 1.9082149292705877e-10  # the first has 33 bits
EXP_64 = polynomial("r", [1 / math.factorial(n) for n in range(2, 14)])  # as EXP above
EXPM1_64 = polynomial("r", [1 / math.factorial(n) for n in range(2, 18)])  # up to 0.6
REDUCED_64 = f"""
shifted = fma(x, 1.4426950408889634, {SHIFT_64})
m = shifted - {SHIFT_64}
r = fma(m, -{LN2_LOW_64}, fma(m, -{LN2_HIGH_64}, x))
"""
# 2 ** x of an integer x that is a float64: the low bits of the sum become the exponent.
FORMULAS["two_to f8"] = f"number((bits(x + {SHIFT_64}) + 1023) << 52)"
FORMULAS["exp f8"] = f"""
x = -746.0 if x < -746.0 else x
x = 710.0 if x > 710.0 else x
{REDUCED_64}
half = rint(m * 0.5)
fma({EXP_64} * r, r, r + 1.0) * two_to(half) * two_to(m - half)
"""
FORMULAS["expm1 f8"] = f"""
is_tiny = abs(x) < 1e-160
tiny = x
x = -38.0 if x < -38.0 else x
x = 710.0 if x > 710.0 else x
shifted = fma(x, 1.4426950408889634, {SHIFT_64})
m = 0.0 if abs(x) < 0.6 else shifted - {SHIFT_64}
r = fma(m, -{LN2_LOW_64}, fma(m, -{LN2_HIGH_64}, x))
scale = two_to(m - 1.0)
tiny if is_tiny else fma(scale, fma({EXPM1_64} * r, r, r), scale - 0.5) * 2.0
"""
ROOT_HALF_64_BITS = 0x3FE6A09E667F3BCD
ONE_BITS, FRACTION_BITS, EXPONENT_BITS = 0x3FF0000000000000, 0xFFFFFFFFFFFFF, 0x4330000000000000
# (2 * atanh(s) - 2 * s) / s of w = s * s
ATANH = polynomial("w", [2 / (2 * n + 1) for n in range(1, 12)])
FORMULAS["log_and_error f8"] = f"""
is_small = x < 2.2250738585072014e-308
i = bits(x * 18014398509481984.0 if is_small else x) + {ONE_BITS - ROOT_HALF_64_BITS}
e = number((i >> 52) | {EXPONENT_BITS}) - 4503599627371519.0
e = e - 54.0 if is_small else e
f = number((i & {FRACTION_BITS}) + {ROOT_HALF_64_BITS}) - 1.0
s = f / (f + 2.0)
w = s * s
half = 0.5 * f * f
tail = fma(s, fma({ATANH}, w, half), fma(e, {LN2_LOW_64}, y)) - half
fma(e, {LN2_HIGH_64}, f + tail)
"""
FORMULAS["log1p f8"] = """
u = x + 1.0
error = (x - (u - 1.0)) / u
y = log_or_special(u, log_and_error(u, error))
x if abs(x) < 1e-16 else y
"""
# (tanh(a) / a - 1) / z of z = a * a
TANH_64 = polynomial(
    "z",
    [-1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075, -929569 / 638512875,
     6404582 / 10854718875, -443861162 / 1856156927625, 18888466084 / 194896477400625,
     -113927491862 / 2900518163668125],
)  # fmt: skip
FORMULAS["tanh f8"] = f"""
a = abs(x)
z = a * a
t = expm1(a + a)
far = t / (t + 2.0) if a < 1.0 else 1.0 - 2.0 / (t + 2.0)
copysign(fma({TANH_64} * z, a, a) if a < 0.25 else far, x)
"""
FARTHEST_64 = 1e6
SINE_64 = polynomial("z", [(-1) ** n / math.factorial(2 * n + 1) for n in range(1, 10)])
COSINE_64 = polynomial("z", [(-1) ** n / math.factorial(2 * n) for n in range(2, 11)])
TURNED_64 = f"""
shifted = fma(x, 0.6366197723675814, {SHIFT_64})
n = bits(shifted)
m = shifted - {SHIFT_64}
r = fma(m, -1.5707963267948966, x)
r = fma(m, -6.123233995736766e-17, r)
r = fma(m, 1.4973849048591698e-33, r)
z = r * r
sine = fma({SINE_64} * z, r, r)
half = 0.5 * z
w = 1.0 - half
cosine = w + fma({COSINE_64}, z * z, (1.0 - w) - half)
"""
FORMULAS["sin f8"] = f"""
{TURNED_64}
y = cosine if (n & 1) == 1 else sine
y = -y if (n & 2) == 2 else y
y = x if abs(x) < 1e-8 else y
y if abs(x) <= {FARTHEST_64} else nan
"""
FORMULAS["cos f8"] = f"""
{TURNED_64}
y = sine if (n & 1) == 1 else cosine
y = -y if ((n + 1) & 2) == 2 else y
y if abs(x) <= {FARTHEST_64} else nan
"""

ELEMENTARY = frozenset({"exp", "log", "log1p", "tanh", "sin", "cos"})
"""The functions that are also ufuncs of NumPy with one operand."""
