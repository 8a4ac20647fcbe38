"""The spacetime algebra Cl(1,3), generated from its metric: products, signs, linear bases and the paired layout.

A multivector has 16 components, the blades of t, x, y, z in lexicographic order by grade: 1 | t x y z | tx ty tz xy xz
yz | txy txz tyz xyz | txyz. A blade is kept as a bit mask of its generators (bit 0 is t); the product of two blades
is the exclusive or of their masks with a sign. Nothing here is a table: everything follows from `METRIC`.

Trap: the dual used by the linear maps is multiplication by the pseudoscalar I from the right; I anticommutes with the
odd grades, so left and right differ there.
"""

from functools import lru_cache
from itertools import combinations

#: squares of the generators t, x, y, z
METRIC = (1, -1, -1, -1)
#: component -> bit mask of its generators
BLADES = tuple(sum(1 << g for g in chosen) for grade in range(5) for chosen in combinations(range(4), grade))
#: bit mask -> component
INDEX = {mask: i for i, mask in enumerate(BLADES)}
#: component -> grade
GRADES = tuple(mask.bit_count() for mask in BLADES)
#: grade -> slice of components
GRADE_SLICES = tuple(slice(GRADES.index(g), GRADES.index(g) + GRADES.count(g)) for g in range(5))
PSEUDOSCALAR = 15


def blade_product(a: int, b: int) -> tuple[int, int]:
    """Product of two blades, given and returned as bit masks: (mask, sign).

    Moving each generator of b leftwards past the larger ones of a flips the sign; a pair of equal generators
    contracts to its square.
    """
    swaps = sum(((a >> shift) & b).bit_count() for shift in range(1, 4))
    sign = -1 if swaps % 2 else 1
    for g, square in enumerate(METRIC):
        if (a & b) >> g & 1:
            sign *= square
    return a ^ b, sign


@lru_cache(maxsize=1)
def product_terms() -> tuple[tuple[int, int, int, int], ...]:
    """The 256 terms (i, j, k, sign) of the geometric product: out_i += sign · x_j · y_k."""
    terms = []
    for j, a in enumerate(BLADES):
        for k, b in enumerate(BLADES):
            mask, sign = blade_product(a, b)
            terms.append((INDEX[mask], j, k, sign))
    return tuple(sorted(terms))


def reverse_signs() -> tuple[int, ...]:
    """Sign of each component under reversal of the order of its generators."""
    return tuple(-1 if grade * (grade - 1) // 2 % 2 else 1 for grade in GRADES)


def involution_signs() -> tuple[int, ...]:
    """Sign of each component under x -> -x of every generator."""
    return tuple(-1 if grade % 2 else 1 for grade in GRADES)


@lru_cache(maxsize=1)
def inner_signs() -> tuple[int, ...]:
    """Diagonal m of the invariant inner product <~x y>_0 = Σ m_i x_i y_i."""
    return tuple(sign * blade_product(mask, mask)[1] for sign, mask in zip(reverse_signs(), BLADES))


@lru_cache(maxsize=1)
def dual() -> tuple[tuple[int, int], ...]:
    """Right multiplication by the pseudoscalar, as (source, sign) for each output component."""
    rows: list[tuple[int, int]] = [(0, 0)] * 16
    for j, mask in enumerate(BLADES):
        out, sign = blade_product(mask, BLADES[PSEUDOSCALAR])
        rows[INDEX[out]] = (j, sign)
    return tuple(rows)


@lru_cache(maxsize=2)
def linear_terms(subgroup: bool) -> tuple[tuple[int, int, int, int], ...]:
    """Unit entries (a, i, j, sign) of the basis of equivariant maps: out_i += weight_a · sign · x_j.

    a = 0…4 projects on grade a. With the subgroup SO⁺(1,3) alone, a = 5…9 also takes the dual of grade a - 5; the full
    Lorentz group with parity and time reversal forbids those.
    """
    terms = [(grade, i, i, 1) for i, grade in enumerate(GRADES)]
    if subgroup:
        terms += [(5 + GRADES[j], i, j, sign) for i, (j, sign) in enumerate(dual())]
    return tuple(sorted(terms))


def pair_planes() -> tuple[tuple[int, int, int, int], ...]:
    """The complex-pair layout: (re, re_sign, im, im_sign) for the eight pairs in which dual(x) is multiplication by i.

    Order: scalar and pseudoscalar; the four vector components with their axial partners; the three electric
    components with their magnetic partners. Component `im` is stored as im_sign · x_im, so that
    plane_im = sign of the dual is absorbed and every equivariant linear map acts on all planes of a sector alike.
    """
    image = {}
    for i, (j, sign) in enumerate(dual()):
        image[j] = (i, sign)
    return tuple((re, 1, *image[re]) for re in (0, 1, 2, 3, 4, 5, 6, 7))


def zero_shares() -> dict[str, float]:
    """Share of zeros by count in the coefficient lists of the linear maps and of the product."""
    return {
        "linear, subgroup": 1 - len(linear_terms(True)) / (16 * 16),
        "linear, full group": 1 - len(linear_terms(False)) / (16 * 16),
        "geometric product": 1 - len(product_terms()) / 16**3,
        "linear, subgroup, whole basis": 1 - len(linear_terms(True)) / (10 * 16 * 16),
        "linear, full group, whole basis": 1 - len(linear_terms(False)) / (5 * 16 * 16),
    }
