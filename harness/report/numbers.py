"""Numbers as a person writes them: sensible digits, a unit, a real minus sign.

Every function takes None (a quantity that the record does not have) and gives an em dash for it.
"""

import math
import re

NOTHING = "—"
MINUS = "−"
TIMES = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
SIZES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))


def _missing(value) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def significant(value: float | None, digits: int = 3) -> str:
    """A plain number with so many significant digits, thousands separated: 0.000452, 1,230, −4.5."""
    if _missing(value):
        return NOTHING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -6 <= magnitude <= 14:
        return f"{value:.{digits - 1}e}".replace("-", MINUS)
    rounded = round(value, digits - 1 - magnitude)
    magnitude = math.floor(math.log10(abs(rounded)))  # 9.996 has one digit more once it is rounded
    decimals = max(0, digits - 1 - magnitude)
    return f"{rounded:,.{decimals}f}".replace("-", MINUS)


def bare(text: str) -> str:
    """A written number without the zeros at its end that a round value does not need: 1.50 ms as 1.5 ms."""
    return re.sub(r"\.(\d*?)0+(?!\d)", lambda found: f".{found[1]}" if found[1] else "", text)


def given(value: float) -> str:
    """A number that somebody chose, in full: 0.005, 64, 1,000,000."""
    return f"{value:,.12g}".replace("-", MINUS)


def count(value: float | None) -> str:
    """A whole number with its thousands separated."""
    return NOTHING if _missing(value) else f"{round(value):,}".replace("-", MINUS)


def ratio_decimals(width: float | None, at_least: int = 2, at_most: int = 5) -> int:
    """How many decimals two ratios need so that an interval of this width shows two digits of itself."""
    if _missing(width) or width <= 0:
        return 3
    return min(at_most, max(at_least, 1 - math.floor(math.log10(width))))


def ratio(value: float | None, decimals: int = 3) -> str:
    """A ratio B/A; from 10 upwards it loses the decimals that say nothing."""
    if _missing(value):
        return NOTHING
    if value >= 10:
        return significant(value, 4)
    if 0 < value < 0.1:
        return significant(value, 3)
    return f"{value:.{decimals}f}"


def interval(low: float | None, high: float | None, decimals: int = 3) -> str:
    """Two ratios with 'to' between them, or a dash when there is no interval."""
    if _missing(low) or _missing(high):
        return NOTHING
    return f"{ratio(low, decimals)} to {ratio(high, decimals)}"


def percent(share: float | None, digits: int = 2) -> str:
    """A share of 1 in per cent, with so many significant digits but never more than two decimals."""
    if _missing(share):
        return NOTHING
    value = 100 * share
    if value == 0:
        return "0 %"
    magnitude = math.floor(math.log10(abs(value)))
    decimals = min(2, max(0, digits - 1 - magnitude))
    text = f"{value:,.{decimals}f}".replace("-", MINUS)
    if float(f"{value:.{decimals}f}") == 0:
        return f"under {10**-decimals:g} %"
    return f"{text} %"


def change(value: float | None, width: float | None = None) -> tuple[str, str]:
    """A ratio as ('18.8 %', 'less') or ('5.1 %', 'more'); ('0 %', 'more') at 1.

    The digits follow `width`, the width of the ratio's interval.
    """
    if _missing(value):
        return NOTHING, "more"
    difference = value - 1
    decimals = 1
    if not _missing(width) and width > 0:
        decimals = min(2, max(1, -2 - math.floor(math.log10(width))))
    return f"{100 * abs(difference):,.{decimals}f} %", "less" if difference < 0 else "more"


def seconds(value: float | None, digits: int = 3) -> str:
    """A duration with a fitting prefix, or minutes from 10 minutes on."""
    if _missing(value):
        return NOTHING
    if abs(value) >= 600:
        whole = round(value)
        hours, rest = divmod(whole, 3600)
        minutes = rest // 60
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest % 60:02d} s"
    if value == 0:
        return "0 s"
    scale, unit = TIMES[0]
    for scale_, unit_ in TIMES:
        if abs(value) >= scale_ * 0.9995:
            scale, unit = scale_, unit_
    return f"{significant(value / scale, digits)} {unit}"


def size(value: float | None) -> str:
    """Bytes with a binary prefix."""
    if _missing(value):
        return NOTHING
    scale, unit = SIZES[0]
    for scale_, unit_ in SIZES:
        if abs(value) >= scale_:
            scale, unit = scale_, unit_
    return f"{count(value)} B" if unit == "B" else f"{significant(value / scale)} {unit}"


def cores(value: float | None) -> str:
    """Load in cores, two decimals: 0.12."""
    if _missing(value):
        return NOTHING
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", MINUS)


def probability(value: float | None) -> str:
    """A p value: three decimals, or 'under .001'."""
    if _missing(value):
        return NOTHING
    return "p < .001" if value < 0.001 else f"p = {value:.3f}".replace("0.", ".")


def plural(number: int, word: str, many: str | None = None) -> str:
    """'1 block', '8 blocks'."""
    return f"{count(number)} {word if number == 1 else many or word + 's'}"


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters: the middle gives way to an ellipsis."""
    text = str(text)
    if len(text) <= limit:
        return text
    head = (limit - 1 + 1) // 2
    return text[:head] + "…" + text[len(text) - (limit - 1 - head) :]
