"""Figures as inline SVG that stretches to the page's width: text keeps its size, marks keep their shape.

Positions along the page are per cent, heights are pixels. Colours are the page's CSS variables, so that a figure
follows light, dark and print; arms and states differ in shape as well, so that it can be read in grey. A figure is
one image to a screen reader, named by its `label`; the numbers stand in a table beside it.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from html import escape

from harness.report import numbers

#: more marks than this become one path each kind, without a tooltip
TOOLTIPS = 240
#: more points than this in a series are thinned to the smallest and largest of neighbours
POINTS = 2400
EDGE = 1.5  # per cent kept free at both ends of an axis


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text


class Axis:
    """A linear or logarithmic axis onto [low, high] of the target (per cent or pixels)."""

    def __init__(self, first: float, last: float, low: float = EDGE, high: float = 100 - EDGE, log: bool = False):
        self.log = log
        if log:
            first, last = math.log(first), math.log(last)
        if last - first < 1e-12:
            first, last = first - 0.01, last + 0.01
        self.first, self.last, self.low, self.high = first, last, low, high

    def __call__(self, value: float) -> float:
        position = math.log(value) if self.log else value
        share = (position - self.first) / (self.last - self.first)
        return self.low + min(1.0, max(0.0, share)) * (self.high - self.low)

    def outside(self, value: float) -> bool:
        position = math.log(value) if self.log else value
        slack = 1e-9 * (self.last - self.first)
        return not self.first - slack <= position <= self.last + slack

    def ticks(self, most: int) -> list[float]:
        """About `most` round values, two where that can be; on a logarithmic axis round ratios, 1 where it fits."""
        first, last = (math.exp(self.first), math.exp(self.last)) if self.log else (self.first, self.last)
        if self.log and last / first > 8:
            decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = [s * 10.0**d for d in decades for s in steps if not self.outside(s * 10.0**d)]
                if len(found) <= most:
                    return found
            return found[:: -(-len(found) // most)]
        step = _round_step((last - first) / max(1, most - 1))
        start = math.ceil(first / step - 1e-9)
        found = [float(f"{k * step:.10g}") for k in range(start, math.floor(last / step + 1e-9) + 1)][:most]
        return found if len(found) > 1 or most > 7 else self.ticks(most + 1)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    for factor in (1, 2, 5, 10):
        if factor * power >= least * (1 - 1e-9):
            return factor * power
    return 10 * power


def tick_text(value: float, ticks: Sequence[float]) -> str:
    """A tick's number with as many decimals as the step between ticks needs."""
    step = min((b - a for a, b in itertools.pairwise(ticks)), default=abs(value) or 1)
    decimals = min(6, max(0, -math.floor(math.log10(step) + 1e-9)))
    return f"{value:,.{decimals}f}".replace("-", numbers.MINUS)


# ---------------------------------------------------------------- marks

_SHAPES = {
    "circle": '<circle r="4"/>',
    "square": '<rect x="-3.6" y="-3.6" width="7.2" height="7.2"/>',
    "diamond": '<path d="M0-6.5 6.5 0 0 6.5-6.5 0Z"/>',
    "ring": '<circle r="3.7" class="hollow"/>',
    "cross": '<path d="M-4-4 4 4M4-4-4 4" class="stroke"/>',
    "up": '<path d="M0-5 5 4-5 4Z"/>',
    "down": '<path d="M0 5 5-4-5-4Z"/>',
}


def definitions() -> str:
    """The marks' shapes, once a page."""
    shapes = "".join(f'<g id="mark-{name}">{shape}</g>' for name, shape in _SHAPES.items())
    return f'<svg width="0" height="0" class="definitions" aria-hidden="true"><defs>{shapes}</defs></svg>'


def mark(shape: str, x: float, y: float, style: str, title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<use href="#mark-{shape}" x="{_number(x)}%" y="{_number(y)}" class="{style}">{tip}</use>'
        if tip
        else (f'<use href="#mark-{shape}" x="{_number(x)}%" y="{_number(y)}" class="{style}"/>')
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{_number(x1)}%" y1="{_number(y1)}" x2="{_number(x2)}%" y2="{_number(y2)}" class="{style}"/>'


def box(x1: float, x2: float, top: float, height: float, style: str, title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{_number(x1)}%" y="{_number(top)}" width="{_number(max(0.0, x2 - x1))}%" '
        f'height="{_number(max(0.0, height))}" class="{style}">{tip}</rect>'
    )


def text(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{_number(x)}%" y="{_number(y)}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def _anchor(x: float) -> str:
    return "start" if x < 6 else "end" if x > 94 else "middle"


def dots(points: Sequence[tuple[float, float]], style: str) -> str:
    """Many round dots (x in per cent, y in pixels) as one path that stretches with the page."""
    if not points:
        return ""
    steps = "".join(f"M{round(100 * x)} {round(10 * y)}h0" for x, y in points)
    return _stretched(f'<path d="{steps}" class="{style}"/>')


def bars(columns: Sequence[tuple[float, float, float, float]], style: str) -> str:
    """Filled columns (x1, x2 in per cent, top, bottom in pixels) as one path that stretches with the page."""
    steps = "".join(
        f"M{round(100 * x1)} {round(10 * top)}H{round(100 * x2)}V{round(10 * bottom)}H{round(100 * x1)}Z"
        for x1, x2, top, bottom in columns
        if bottom - top > 0.04
    )
    return _stretched(f'<path d="{steps}" class="{style}"/>') if steps else ""


def curve(points: Sequence[tuple[float, float]], style: str) -> str:
    """A line through points (x in per cent, y in pixels) that stretches with the page."""
    steps = "".join(f"{'L' if index else 'M'}{round(100 * x)} {round(10 * y)}" for index, (x, y) in enumerate(points))
    return _stretched(f'<path d="{steps}" class="{style}"/>') if steps else ""


def _stretched(inner: str) -> str:
    return (
        '<svg class="stretch" width="100%" height="1000" viewBox="0 0 10000 10000" preserveAspectRatio="none">'
        + inner
        + "</svg>"
    )


def figure(height: float, inner: Sequence[str], label: str, axis: str = "", axis_width: int = 0) -> str:
    """One figure: an optional column of axis labels and the stretching plot, a single image to a screen reader."""
    side = (
        f'<svg class="axis" width="{axis_width}" height="{_number(height)}" aria-hidden="true">{axis}</svg>'
        if axis_width
        else ""
    )
    plot = f'<svg class="plot" width="100%" height="{_number(height)}" aria-hidden="true">{"".join(inner)}</svg>'
    return f'<div class="figure" role="img" aria-label="{escape(label)}">{side}<div class="area">{plot}</div></div>'


def y_labels(axis: Axis, ticks: Sequence[float], width: int, words: Callable[[float], str]) -> str:
    """The numbers left of a plot, right-aligned against it."""
    return "".join(
        f'<text x="{width - 6}" y="{_number(axis(tick) + 4)}" text-anchor="end">{escape(words(tick))}</text>'
        for tick in ticks
    )


# ---------------------------------------------------------------- figures


def interval(
    rows: Sequence[dict], margin: float, label: str, senses: tuple[str, str] = ("B faster", "B slower")
) -> str:
    """Intervals of B/A above each other, against the margin's band, to scale on a logarithmic axis.

    rows : {name, estimate, low, high, kind}; kind "main" (heavy), "side" (thin) or "band" (a prediction: no estimate)
    """
    values = [1 / (1 + margin), 1 + margin, 1.0]
    for row in rows:
        values += [row[key] for key in ("estimate", "low", "high") if row.get(key)]
    values = [value for value in values if 0 < value < math.inf]
    first, last = min(values), max(values)
    stretch = (last / first) ** 0.06
    axis = Axis(first / stretch, last * stretch, log=True)
    step, top = 44, 24
    bottom = top + step * len(rows) + 4
    band = (axis(1 / (1 + margin)), axis(1 + margin))
    inner = [
        box(*band, top - 4, bottom - top + 4, "margin", f"margin: {numbers.percent(margin)} either way"),
        line(axis(1), top - 4, axis(1), bottom, "one"),
        line(EDGE, bottom, 100 - EDGE, bottom, "rule"),
    ]
    ones = axis(1)
    if ones > 18:
        inner.append(text(ones - 1.2, 13, f"← {senses[0]}", "sense", "end"))
    if ones < 82:
        inner.append(text(ones + 1.2, 13, f"{senses[1]} →", "sense", "start"))
    for index, row in enumerate(rows):
        y = top + step * index + 29
        inner.append(text(0, y - 13, row["name"], f"row {row['kind']}", "start"))
        low, high, estimate = row.get("low"), row.get("high"), row.get("estimate")
        kind = row["kind"]
        if low and high:
            if kind == "band":
                inner.append(box(axis(low), axis(high), y - 4, 8, "predicted", row["name"]))
            else:
                inner.append(line(axis(low), y, axis(high), y, f"interval {kind}"))
                for end in (low, high):
                    inner.append(line(axis(end), y - 5, axis(end), y + 5, f"interval {kind}"))
        if estimate and kind != "band":
            inner.append(mark("diamond", axis(estimate), y, f"estimate {kind}", f"{row['name']}: {estimate:.5g}"))
    ticks = axis.ticks(6)
    for tick in ticks:
        x = axis(tick)
        inner.append(line(x, bottom, x, bottom + 5, "rule"))
        inner.append(text(x, bottom + 19, tick_text(tick, ticks), "", _anchor(x)))
    return figure(bottom + 26, inner, label)


STATES = {
    "kept": ("circle", "kept"),
    "set aside": ("ring", "aside"),
    "void": ("cross", "void"),
    "wrong": ("cross", "void"),
    "not finished": ("ring", "aside"),
}
LOADS = (
    ("foreign", "other processes"),
    ("unattributed", "not attributed"),
    ("steal", "steal"),
    ("system", "kernel threads, interrupts"),
)


def units(rows: Sequence[dict], margin: float, estimate: float | None, limit: float | None, label: str) -> str:
    """Units in the order they ran, B/A above, load in cores beneath; the margin only where it is near.

    rows : {unit, state "kept" | "set aside" | "void", ratio, pairs [ratio …], foreign, unattributed, steal, system,
    title}
    """
    count = max(1, len(rows))
    ratios = sorted(row["ratio"] for row in rows if row["ratio"])
    inner_pairs = sorted(ratio for row in rows for ratio in row["pairs"])
    shown = [*ratios]
    if inner_pairs:  # single pairs may stick out: the figure is about units
        shown += [inner_pairs[len(inner_pairs) // 20], inner_pairs[-1 - len(inner_pairs) // 20]]
    low, high = (min(shown), max(shown)) if shown else (1.0, 1.0)
    near = max(high / low, 1 + margin) ** 2
    if low / near <= 1 <= high * near:  # the margin belongs into view unless it would flatten everything
        low, high = min(low, 1 / (1 + margin)), max(high, 1 + margin)
    stretch = (high / low) ** 0.05
    top, height, gap, load_height = 8, 170, 40, 74
    y = Axis(low / stretch, high * stretch, top + height, top, log=True)
    x = Axis(-0.5, count - 0.5, 0.5, 99.5)
    width = 58
    ticks = y.ticks(5)
    inner = [line(0, y(tick), 100, y(tick), "grid") for tick in ticks]
    if not y.outside(1):
        inner.append(box(0, 100, y(1 + margin), y(1 / (1 + margin)) - y(1 + margin), "margin"))
        inner.append(line(0, y(1), 100, y(1), "one"))
    if estimate:
        inner.append(line(0, y(estimate), 100, y(estimate), "estimate-line"))
    cloud = [
        (x(position + 0.5 * ((k + 0.5) / len(row["pairs"]) - 0.5)), y(ratio))
        for position, row in enumerate(rows)
        if len(row["pairs"]) > 1
        for k, ratio in enumerate(row["pairs"])
    ]
    inner.append(dots(thin(cloud), "pair-dots"))
    if count <= TOOLTIPS:
        for position, row in enumerate(rows):
            shape, style = STATES[row["state"]]
            place = y(row["ratio"]) if row["ratio"] else top + height - 8
            inner.append(mark(shape, x(position), place, style, row["title"]))
    else:
        for state, (_, style) in STATES.items():
            chosen = [
                (x(position), y(row["ratio"]) if row["ratio"] else top + height - 8)
                for position, row in enumerate(rows)
                if row["state"] == state
            ]
            inner.append(dots(thin(chosen) if state == "kept" else chosen, f"dots {style}"))
    # Load, stacked.
    base = top + height + gap + load_height
    totals = [_total(row) for row in rows]
    most = max([0.2, *totals, *([limit] if limit and limit < 4 * max([0.2, *totals]) else [])]) * 1.06
    load = Axis(0, most, base, base - load_height)
    for tick in load.ticks(3):
        inner.append(line(0, load(tick), 100, load(tick), "grid"))
    size = -(-2 * len(rows) // POINTS)  # of many units the one with the most load stands for its neighbours
    stacks = [
        (first, min(first + size, len(rows)), max(rows[first : first + size], key=_total))
        for first in range(0, len(rows), size or 1)
    ]
    level = [0.0] * len(stacks)
    for key, _ in LOADS:
        columns = []
        for index, (first, last, row) in enumerate(stacks):
            amount = max(0.0, row[key] or 0)
            columns.append((x(first - 0.38), x(last - 0.62), load(level[index] + amount), load(level[index])))
            level[index] += amount
        inner.append(bars(columns, f"load-{key}"))
    if limit and limit <= most:
        inner.append(line(0, load(limit), 100, load(limit), "limit"))
    inner.append(line(0, base, 100, base, "rule"))
    every = max(1, round(_round_step(count / 8)))
    for position in range(0, count, every):
        inner.append(
            text(x(position), base + 16, str(rows[position]["unit"]) if rows else "", "", _anchor(x(position)))
        )
    axis = y_labels(y, ticks, width, lambda tick: tick_text(tick, ticks))
    load_ticks = load.ticks(3)
    axis += y_labels(load, load_ticks, width, lambda tick: tick_text(tick, load_ticks))
    inner.append(text(0, base - load_height - 10, "load beside it, cores", "row", "start"))
    return figure(base + 22, inner, label, axis, width)


def _total(row: dict) -> float:
    return sum(row[key] or 0 for key, _ in LOADS)


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about POINTS points: of neighbours in x only the lowest and the highest stay."""
    if len(points) <= POINTS:
        return points
    size = -(-2 * len(points) // POINTS)
    kept = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        low, high = min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def iterations(series: dict, words: Callable[[float], str], label: str) -> str:
    """Every iteration of both arms in the order they ran, A above B, warm-up shaded.

    series : arm -> {name, units [[(phase, value), …] for every unit]}

    Both arms share a scale unless it would flatten them: then each has its own, and says so.
    """
    values = {arm: [value for unit in data["units"] for _, value in unit] for arm, data in series.items()}
    pooled = [value for found in values.values() for value in found]
    if not pooled:
        return ""
    common = _span(pooled)
    spans = {arm: _span(found) if found else common for arm, found in values.items()}
    apart = common[1] - common[0] > 4 * max(high - low for low, high in spans.values())
    top, height, gap, width = 20, 92, 30, 74
    inner, side = [], ""
    for index, (arm, data) in enumerate(series.items()):
        start = top + index * (height + gap)
        y = Axis(*(spans[arm] if apart else common), start + height, start)
        ticks = y.ticks(4)
        note = " (its own scale)" if apart else ""
        inner.append(text(0, start - 6, f"{arm.upper()}  {data['name']}{note}", "row", "start"))
        inner += [line(0, y(tick), 100, y(tick), "grid") for tick in ticks]
        inner += _slots(arm, data["units"], y, start, height)
        inner.append(line(0, start + height, 100, start + height, "rule"))
        side += y_labels(y, ticks, width, lambda tick: numbers.bare(words(tick)))
    total = top + len(series) * (height + gap) - gap + 8
    return figure(total, inner, label, side, width)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Where nearly all of some values lie, with room around them."""
    ordered = sorted(values)
    low = ordered[math.floor(0.005 * (len(ordered) - 1))]
    high = ordered[math.ceil(0.995 * (len(ordered) - 1))]
    pad = 0.08 * (high - low) or 0.05 * abs(high) or 1
    return (max(0.0, low - pad) if low >= 0 else low - pad), high + pad


def _slots(arm: str, units: Sequence[Sequence[tuple[str, float]]], y: Axis, start: float, height: float) -> list[str]:
    """One arm's iterations in columns of units: warm-up faint on a shade, what the axis cuts off large at its edge."""
    x = Axis(0, max(1, len(units)), 0, 100)
    shades = []
    points: dict[str, list] = {"warmup": [], "steady": [], "clipped": []}
    for number, unit in enumerate(units):
        left, right = x(number + 0.04), x(number + 0.96)
        step = (right - left) / max(1, len(unit))
        warm = sum(phase == "warmup" for phase, _ in unit)
        if warm:
            shades.append((left, left + warm * step, start, start + height))
        for position, (phase, value) in enumerate(unit):
            kind = "clipped" if y.outside(value) else phase
            points[kind].append((left + (position + 0.5) * step, y(value)))
    edges = [x(number) for number in range(len(units) + 1)] if len(units) <= 60 else []
    return [
        bars(shades, "warm"),
        *(line(edge, start, edge, start + height, "grid") for edge in edges),
        *(dots(thin(found), f"slot {arm} {kind}") for kind, found in points.items()),
    ]


def distribution(series: dict, words: Callable[[float], str], label: str) -> str:
    """Histograms of both arms' steady values on one axis, A upwards, B downwards, medians marked.

    series : arm -> {name, values}
    """
    pooled = sorted(value for data in series.values() for value in data["values"])
    if len(pooled) < 2:
        return ""
    first = pooled[math.floor(0.005 * (len(pooled) - 1))]
    last = pooled[math.ceil(0.995 * (len(pooled) - 1))]
    if last <= first:
        first, last = first - (0.02 * abs(first) or 1), last + (0.02 * abs(last) or 1)
    x = Axis(first, last)
    bins = max(8, min(64, round(2 * len(pooled) ** 0.5)))
    counts = {}
    for arm, data in series.items():
        counts[arm] = [0] * bins
        for value in data["values"]:
            share = (value - first) / (last - first)
            counts[arm][min(bins - 1, max(0, int(share * bins)))] += 1
    most = max(1, *(max(c) for c in counts.values()))
    height, middle = 66, 92
    inner = []
    for arm, sign in zip(series, (-1, 1)):
        columns = []
        for index, number in enumerate(counts[arm]):
            left = EDGE + (100 - 2 * EDGE) * (index + 0.06) / bins
            right = EDGE + (100 - 2 * EDGE) * (index + 0.94) / bins
            extent = height * number / most
            columns.append(
                (left, right, middle - extent, middle) if sign < 0 else (left, right, middle, middle + extent)
            )
        inner.append(bars(columns, f"histogram {arm}"))
        values = sorted(series[arm]["values"])
        if values:
            median = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
            end = middle + sign * (height + 6)
            inner.append(line(x(median), middle, x(median), end, f"median {arm}"))
            name = f"{arm.upper()} median {words(median)}"
            inner.append(text(x(median), end + (14 if sign > 0 else -5), name, "row", _anchor_wide(x(median))))
    inner.append(line(0, middle, 100, middle, "rule"))
    bottom = middle + height + 26
    ticks = x.ticks(5)
    inner.append(line(0, bottom, 100, bottom, "rule"))
    for tick in ticks:
        inner.append(line(x(tick), bottom, x(tick), bottom + 5, "rule"))
        inner.append(text(x(tick), bottom + 19, numbers.bare(words(tick)), "", _anchor(x(tick))))
    return figure(bottom + 26, inner, label)


def pulls(known: dict, label: str) -> str:
    """A map's pulls as shares of the weight on a logarithmic axis, with the exposure at which each would be one bar.

    known : the summary's `accuracy` of a map
    """
    shares = known["histogram"]["shares"]
    filled = [index for index, share in enumerate(shares) if share > 0]
    first, last = (filled[0], filled[-1]) if filled else (20, 40)
    # One error bar belongs into view, at the measured exposure (pull 1) and at the one asked about.
    scale = known["contributors"] or 1.0
    one = math.sqrt(scale / known["exposure"])
    low = min(0.5 * 10 ** (-4 + first / 10), 0.5 * one, 0.5)  # with room for a label left of the first bin
    high = max(10 ** (-4 + (last + 1) / 10), 2 * one, 2.0)
    x = Axis(low, high, log=True)
    top, height = 26, 110
    bottom = top + height
    most = max([*shares, 1e-9])
    columns = [
        (x(10 ** (-4 + index / 10)), x(10 ** (-4 + (index + 1) / 10)), bottom - height * share / most, bottom)
        for index, share in enumerate(shares)
        if share > 0
    ]
    inner = [bars(columns, "histogram a")]
    for pull, name, anchor in ((known["pull"]["median"], "median ", "end"), (known["pull"]["p90"], " 90 %", "start")):
        if pull > 0:  # to the left and to the right of their lines, which may lie close together
            place = x(pull)
            inner.append(line(place, top - 20, place, bottom, "estimate-line"))
            inner.append(text(place, top - 12, name, "row", anchor))
    inner.append(line(x(one), top - 8, x(one), bottom, "limit"))
    inner.append(line(EDGE, bottom, 100 - EDGE, bottom, "rule"))
    if known["histogram"]["zero"] > 0:
        share = f"{numbers.percent(known['histogram']['zero'])} of the weight agrees exactly"
        inner.append(text(100, bottom + 35, share, "row", "end"))
    for tick in x.ticks(6):
        place = x(tick)
        inner.append(line(place, bottom, place, bottom + 5, "rule"))
        inner.append(text(place, bottom + 19, numbers.significant(tick, 1), "", _anchor(place)))
        inner.append(text(place, bottom + 51, numbers.significant(scale / tick**2, 2), "", _anchor(place)))
    inner.append(text(0, bottom + 35, "the exposure at which such a pull is one error bar:", "row", "start"))
    return figure(bottom + 58, inner, label)


def seeds(known: dict, label: str) -> str:
    """A model's differences B - A over seeds, with estimate and interval, against plus or minus the tolerance.

    known : the summary's `accuracy` of a model whose every seed has a difference
    """
    rows, interval, tolerance = known["per_seed"], known["difference"], known["tolerance"]
    values = [row["difference"] for row in rows]
    values += [interval[key] for key in ("estimate", "low", "high") if interval[key] is not None]
    reach = max(abs(value) for value in [*values, tolerance]) * 1.1 or 1.0
    top, height, width = 8, 150, 74
    y = Axis(-reach, reach, top + height, top)
    x = Axis(-0.5, len(rows) - 0.5, 0.5, 99.5)
    ticks = y.ticks(5)
    inner = [line(0, y(tick), 100, y(tick), "grid") for tick in ticks]
    inner.append(
        box(0, 100, y(tolerance), y(-tolerance) - y(tolerance), "margin", f"tolerance: {tolerance:g} either way")
    )
    inner.append(line(0, y(0), 100, y(0), "one"))
    inner.append(line(0, y(interval["estimate"]), 100, y(interval["estimate"]), "estimate-line"))
    for end in ("low", "high"):
        if interval[end] is not None:
            inner.append(line(0, y(interval[end]), 100, y(interval[end]), "interval side"))
    for position, row in enumerate(rows):
        title = f"seed {row['seed']}: {row['difference']:+.4g}"
        inner.append(mark("circle", x(position), y(row["difference"]), "kept", title))
    every = max(1, round(_round_step(max(1, len(rows)) / 8)))
    for position in range(0, len(rows), every):
        inner.append(text(x(position), top + height + 16, str(rows[position]["seed"]), "", _anchor(x(position))))
    return figure(
        top + height + 22, inner, label, y_labels(y, ticks, width, lambda tick: tick_text(tick, ticks)), width
    )


def _anchor_wide(x: float) -> str:
    return "start" if x < 25 else "end" if x > 75 else "middle"


def history(points: Sequence[dict], label: str, words: Callable[[float], str], log: bool = True) -> str:
    """A value with its interval over successive comparisons.

    points : {value, low, high, title, change (bool: a change point starts here)}
    """
    values = [p[key] for p in points for key in ("value", "low", "high") if p.get(key)]
    if not values:
        return ""
    first, last = min(values), max(values)
    if log:
        first, last = min(first, 0.98), max(last, 1.02)
        stretch = (last / first) ** 0.06
        first, last = first / stretch, last * stretch
    else:
        pad = 0.08 * (last - first) or 0.05 * abs(last) or 1
        first, last = max(0.0, first - pad), last + pad
    top, height, width = 8, 130, 74
    y = Axis(first, last, top + height, top, log=log)
    x = Axis(-0.5, len(points) - 0.5, 0.5, 99.5)
    ticks = y.ticks(5)
    inner = [line(0, y(tick), 100, y(tick), "grid") for tick in ticks]
    if log:
        inner.append(line(0, y(1), 100, y(1), "one"))
    for position, point in enumerate(points):
        if point.get("change"):
            inner.append(line(x(position - 0.5), top, x(position - 0.5), top + height, "limit"))
        if point.get("low") and point.get("high"):
            inner.append(line(x(position), y(point["low"]), x(position), y(point["high"]), "interval side"))
        if point.get("value"):
            inner.append(mark("circle", x(position), y(point["value"]), "kept", point["title"]))
    inner.append(line(0, top + height, 100, top + height, "rule"))
    return figure(top + height + 10, inner, label, y_labels(y, ticks, width, words), width)
