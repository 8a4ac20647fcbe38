"""Entries and summary -> the rows that the pages show: units, iterations, environment, voids, what spoiled it; pure."""

import gzip
import math
from typing import Any

from harness import records
from harness.analysis import Analysis, UnitResult, metric_value
from harness.fingerprint import compared_digests
from harness.report import numbers, words
from harness.report.words import printable

#: a unit's state as the pages say it
STATES = {"set-aside": "set aside", "interrupted": "not finished"}


class Material:
    """What every page is made from: the entries, their analysis, the summary."""

    def __init__(self, entries: list):
        self.entries = entries
        self.analysis = Analysis(entries)
        self.summary = self.analysis.summary()

    def of(self, kind: type) -> list:
        return records.of(self.entries, kind)


def units(material: Material) -> list[dict[str, Any]]:
    """One row for every unit, in the order they ran; the figure and the table of units are made from these."""
    loads: dict[int, list[records.Load]] = {}
    for entry in material.of(records.Load):
        loads.setdefault(entry.unit, []).append(entry)
    word = words.unit_word(material.summary)
    return [_unit(unit, loads.get(unit.unit, []), word) for unit in material.analysis.units]


def _unit(unit: UnitResult, loads: list[records.Load], word: str) -> dict[str, Any]:
    state = STATES.get(unit.state, unit.state)
    ratio = math.exp(unit.value) if unit.value is not None and state != "void" else None
    orders = [pair.order for pair in unit.pairs]

    def worst(key: str) -> float | None:
        return max((value for one in loads if (value := getattr(one, key)) is not None), default=None)

    system = [value for value in (worst("kthread"), worst("irq")) if value is not None]
    why = printable(unit.why)
    tip = f"{word} {unit.unit}: "
    tip += f"B/A {numbers.ratio(ratio)}" if ratio else "no ratio"
    tip += f", {state}" + (f" ({why})" if why else "")
    tip += f", foreign load {numbers.cores(unit.foreign)} cores"
    return {
        "unit": unit.unit,
        "state": state,
        "why": why,
        "launch": unit.launch,
        "ratio": ratio,
        "pairs": [math.exp(value) for value in unit.ratios] if ratio else [],
        "order": " ".join(orders) if len(orders) <= 12 else f"{orders.count('AB')} AB, {orders.count('BA')} BA",
        "foreign": unit.foreign,
        "unattributed": worst("unattributed"),
        "steal": unit.steal,
        "system": sum(system) if system else None,
        "title": tip,
    }


def iterations(material: Material) -> dict[str, dict]:
    """arm -> {name, units: [[(phase, value), …] for each unit], values: the steady ones of kept units}."""
    analysis, summary = material.analysis, material.summary
    order = [unit.unit for unit in analysis.units]
    position = {unit: index for index, unit in enumerate(order)}
    kept = {unit.unit for unit in analysis.kept}
    launches = {(one.unit, one.arm): one for one in material.of(records.Launch)}
    series = {
        arm: {"name": words.arm_name(summary, arm, 60), "units": [[] for _ in order], "values": []} for arm in "ab"
    }
    for slot in material.of(records.Slot):
        value = metric_value(slot, summary["metric"], launches.get((slot.unit, slot.arm)))
        if value is None or not math.isfinite(value) or slot.unit not in position:  # null controls are no units
            continue
        series[slot.arm]["units"][position[slot.unit]].append((slot.phase, value))
        if slot.phase == "steady" and slot.unit in kept:
            series[slot.arm]["values"].append(value)
    return series


def quantiles(values: list[float]) -> dict[str, float] | None:
    """Smallest, 5 %, median, 95 % and largest of some values."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    return {"smallest": ordered[0], "5 %": at(0.05), "median": at(0.5), "95 %": at(0.95), "largest": ordered[-1]}


def voids(material: Material) -> list[dict[str, Any]]:
    """Every void with what is known about it."""
    rows = []
    for entry in material.of(records.Void):
        details = [f"exit code {entry.exit_code}"] if entry.exit_code is not None else []
        details += [printable(entry.signal)] if entry.signal else []
        rows.append(
            {
                "unit": entry.unit,
                "arm": entry.arm.upper(),
                "kind": words.VOIDS.get(entry.reason, printable(entry.reason)),
                "message": printable(entry.message),
                "details": ", ".join(one for one in details if one not in printable(entry.message)),
                "stderr": block_text(entry.stderr),
                "stacks": block_text(entry.stacks),
            }
        )
    return rows


def block_text(text: str) -> str:
    """Several lines of foreign text, without characters that control a terminal or the direction of reading."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.splitlines())


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested dict as {'a.b': 'text'}; lists of plain values stay on one line."""
    if isinstance(value, dict):
        found = {}
        for key in value:
            name = printable(key)
            found |= flat(value[key], f"{prefix}.{name}" if prefix else name)
        return found
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        found = {}
        for index, item in enumerate(value):
            label = item.get("name", index) if isinstance(item, dict) else index
            rest = {k: v for k, v in item.items() if k != "name"} if isinstance(item, dict) else item
            found |= flat(rest, f"{prefix}.{printable(label)}" if prefix else printable(label))
        return found
    return {prefix: plain(value)}


def plain(value: Any) -> str:
    """A plain value as text."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) if value else "none"
    if value == "":
        return "''"
    if isinstance(value, float):
        return f"{value:.12g}"
    return printable(value)


def environment(summary: dict) -> dict[str, list]:
    """What both arms share, and what differs: {common: [(key, value)], differs: [(key, a, b)]}."""
    known = summary.get("environment") or {}
    a, b = flat(known.get("a") or {}), flat(known.get("b") or {})
    common = flat(known.get("common") or {})
    keys = list(dict.fromkeys([*a, *b]))
    absent = "absent"
    differs = [(key, a.get(key, absent), b.get(key, absent)) for key in keys if a.get(key) != b.get(key)]
    common |= {key: a[key] for key in keys if a.get(key) == b.get(key)}
    return {"common": [item for item in common.items() if item[0]], "differs": [item for item in differs if item[0]]}


def arms(material: Material) -> list[tuple[str, str, str, bool]]:
    """(what, A, B, differs) for what was asked of the arms: reference, parameters, command, revision."""
    opening = material.analysis.comparison
    a, b = opening.arms["a"], opening.arms["b"]
    rows = []

    def add(name: str, left: str, right: str) -> None:
        rows.append((name, left, right, left != right))

    add("arm", printable(a["name"]), printable(b["name"]))
    add("reference", printable(a.get("reference")), printable(b.get("reference")))
    left, right = flat(a.get("parameters") or {}), flat(b.get("parameters") or {})
    for key in dict.fromkeys([*left, *right]):
        if key:
            add(key, left.get(key, "default"), right.get(key, "default"))
    for key in ("kind", "revision", "command"):
        left, right = a.get(key), b.get(key)
        if key == "command":
            left, right = command_line(left or []), command_line(right or [])
        if left or right:
            add(key, printable(left or "working tree"), printable(right or "working tree"))
    return rows


def command_line(arguments: list[str]) -> str:
    """Arguments as one would type them."""
    import shlex

    return printable(shlex.join(str(argument) for argument in arguments))


def fingerprints(material: Material) -> list[tuple[str, str, str, str]]:
    """(what, A, B, agreement) of what the arms produced: yes, no, within tolerance or not compared."""
    known = material.summary.get("fingerprints") or {}
    a, b = known.get("a") or {}, known.get("b") or {}
    rtol = material.analysis.question.get("totals_rtol", 1e-12)
    rows = []
    for group in ("work", "digests", "totals"):
        left, right = a.get(group), b.get(group)
        if group == "work":
            left, right = ({} if x is None else {"": x} for x in (left, right))
        for name in dict.fromkeys([*(left or {}), *(right or {})]):
            x, y = (left or {}).get(name), (right or {}).get(name)
            both = name in (left or {}) and name in (right or {})
            label = f"{group.rstrip('s')} {printable(name)}".strip()
            shown = (plain(x) if name in (left or {}) else "absent", plain(y) if name in (right or {}) else "absent")
            rows.append((label, *shown, _agreement(group, name, x, y, both, known.get("policy"), rtol)))
    return rows


def _agreement(group: str, name: str, x: Any, y: Any, both: bool, policy: str | None, rtol: float) -> str:
    if policy == "statistical" or (group == "digests" and not compared_digests({name: ""}, policy)):
        return "not compared"  # under 'statistical' the values are
    if both and x == y:
        return "yes"
    numeric = both and group == "totals" and None not in (x, y)
    if policy == "keys" and numeric and abs(x - y) <= rtol * max(abs(x), abs(y)):
        return f"within {rtol:g}"
    return "no"


def clocks(summary: dict) -> list[dict[str, Any]]:
    """Both clocks: which one decides, its ratio with its interval, and what it would say alone."""
    rows = []
    for name, label in (("wall", "wall time"), ("cpu", "CPU time")):
        clock = (summary.get("clocks") or {}).get(name)
        if not clock:
            continue
        low, high = clock.get("low"), clock.get("high")
        decimals = numbers.ratio_decimals(high - low if low is not None and high is not None else None)
        rows.append(
            {
                "name": label,
                "decides": clock.get("metric") == summary["metric"],
                "estimate": clock.get("estimate"),
                "low": low,
                "high": high,
                "ratio": numbers.ratio(clock.get("estimate"), decimals),
                "interval": numbers.interval(low, high, decimals),
                "word": clock.get("word", ""),
            }
        )
    return rows


def beside(summary: dict) -> list[list[str]]:
    """[what, A, B, B/A, interval] of memory, start, set-up and counters; what is equal has no interval."""
    rows = []
    for name, found in (summary.get("beside") or {}).items():
        write = numbers.significant
        if name.endswith("_bytes"):
            name, write = name.removesuffix("_bytes"), numbers.size
        elif name.endswith("_seconds"):
            name, write = name.removesuffix("_seconds"), numbers.seconds
        elif float(found["a"]).is_integer() and float(found["b"]).is_integer():
            write = numbers.count
        label = {"peak_rss": "peak memory", "startup": "start to first result", "setup": "set-up"}.get(
            name, name.replace("_", " ")
        )
        ratio = found["ratio"] or {}
        low, high = ratio.get("low"), ratio.get("high")
        if found["a"] == found["b"] and (low is None or low == high == 1):
            rows.append([label, write(found["a"]), write(found["b"]), "equal", ""])
            continue
        decimals = numbers.ratio_decimals(high - low if low is not None and high is not None else None)
        rows.append(
            [
                label,
                write(found["a"]),
                write(found["b"]),
                numbers.ratio(ratio.get("estimate"), decimals),
                numbers.interval(low, high, decimals),
            ]
        )
    return rows


STEADY = {
    "flat": "steady from the start",
    "warm-up": "steady after a warm-up",
    "slowdown": "slower in the end than in the beginning",
    "none": "never steady",
}
METHODS = {
    "fixed": "a number of units fixed beforehand",
    "looks": "looks at fixed numbers of units, with repeated intervals",
    "anytime": "a test that may be looked at any time",
    "deterministic": "three runs, no interval: the metric is deterministic",
}
STOPPED = {
    "complete": "all planned units are kept",
    "decided": "the verdict was clear at a look",
    "futility": "no verdict was to be expected any more",
    "cap": "twice the planned units had run",
    "voids": "the voids decided",
    "time": "the time budget was used up",
}


def checks(summary: dict) -> list[tuple[str, str]]:
    """How it was decided, and what was looked at so that the number can be believed: (what, found)."""
    rows = []
    method = summary.get("method")
    if method:
        rows.append(("decided by", METHODS.get(method, printable(method))))
    if summary.get("looks"):
        rows.append(("looks at", ", ".join(str(look) for look in summary["looks"])))
    if summary.get("stopped"):
        rows.append(("stopped because", STOPPED.get(summary["stopped"], printable(summary["stopped"]))))
    if summary.get("p_worse") is not None:
        rows.append(
            ("evidence that B is worse than the margin", f"one-sided {numbers.probability(summary['p_worse'])}")
        )
    variance = summary.get("variance") or {}
    if variance.get("block") is not None:
        rows.append((f"spread between {words.unit_word(summary, True)}", numbers.percent(variance["block"])))
    if variance.get("pair") is not None:
        rows.append(("spread of pairs inside a block", numbers.percent(variance["pair"])))
    if summary.get("median") is not None:
        rows.append(("plain median of B/A", numbers.ratio(summary["median"], 4)))
    order = summary.get("order") or {}
    position, carry_over = order.get("position"), order.get("carry_over")
    if position and position.get("ratio") is not None:
        rows.append(("second slot over first", _tested(position)))
    if carry_over and carry_over.get("ratio") is not None:
        weak = " (too few units to see much)" if carry_over.get("little_power") else ""
        rows.append(("carry-over from one slot to the next", _tested(carry_over) + weak))
    if order.get("serial") is not None:
        serial = f"{order['serial']:.2f}".replace("-", numbers.MINUS)
        rows.append((f"correlation of neighbouring {words.unit_word(summary, True)}", serial))
    guard = summary.get("guard") or {}
    if guard.get("p") is not None:
        rows.append(("load depends on the arm", numbers.probability(guard["p"])))
    control = summary.get("control") or {}
    if control.get("p") is not None:
        units = numbers.plural(control.get("units") or 0, words.unit_word(summary))
        rows.append(("A differs from itself", f"{numbers.probability(control['p'])} ({units})"))
    modes = summary.get("modes") or {}
    if modes.get("split") is not None and modes.get("above"):
        shares = ", ".join(f"{arm.upper()} {numbers.percent(share)}" for arm, share in sorted(modes["above"].items()))
        rows.append((f"values above {words.value(summary['metric'], modes['split'])}", shares))
    for arm, steady in sorted((summary.get("steady") or {}).items()):
        if steady:
            text = STEADY.get(steady["class"], printable(steady["class"]))
            if steady.get("start"):
                text += f" (from iteration {steady['start']})"
            rows.append((f"iterations of {arm.upper()}", text))
    return rows


def _tested(effect: dict) -> str:
    return f"{numbers.ratio(effect['ratio'], 4)}, {numbers.probability(effect.get('p'))}"


def load(summary: dict) -> list[tuple[str, str]]:
    """Load around the units, in words."""
    foreign = summary.get("foreign") or {}
    rows = [
        ("method", printable(foreign.get("method") or "none")),
        ("other processes, median", f"{numbers.cores(foreign.get('median_cores'))} cores"),
        ("other processes, worst unit", f"{numbers.cores(foreign.get('worst_cores'))} cores"),
        ("not attributed", f"{numbers.cores(foreign.get('unattributed'))} cores"),
        ("steal", f"{numbers.cores(foreign.get('steal'))} cores"),
    ]
    for process in (foreign.get("top") or [])[:5]:
        rows.append((f"process {printable(process.get('name'))}", f"{numbers.cores(process.get('cores'))} cores"))
    return rows


def notes(material: Material) -> list[str]:
    """Notes of the record, in words; equal ones once, with how often they came."""
    counts: dict[str, int] = {}
    for entry in material.of(records.Note):
        text = f"{printable(entry.about)}: {printable(entry.message)}"
        counts[text] = counts.get(text, 0) + 1
    return [text if number == 1 else f"{text} ({number} times)" for text, number in counts.items()]


def record_gz(entries: list) -> bytes:
    """The record as a gzip file: the same bytes for the same entries."""
    return gzip.compress(b"".join(records.encode(entry) + b"\n" for entry in entries), compresslevel=9, mtime=0)


def facts(summary: dict) -> list[tuple[str, str]]:
    """The numbers beside the verdict and its reason: (label of at most 11 letters, text)."""
    laid = words.laid(summary)
    rows = [("parameters", laid)] if laid else []
    if words.values_alone(summary):
        return [*rows, (words.unit_word(summary, True), _units(summary)), *accuracy(summary)[1:]]
    estimate, low, high = words.ratio_parts(summary)
    bounds = f", {words.level(summary)} between {low} and {high}" if low != numbers.NOTHING else ", no interval"
    counts = "" if words.counts(summary) else "; it does not count"
    rows.append((words.unit_word(summary, True), _units(summary)))
    if estimate != numbers.NOTHING and "B/A = " not in summary["verdict"]["reason"]:
        rows.append(("B/A", f"{estimate}{bounds} ({words.metric(summary)}){counts}"))
    for clock in clocks(summary):
        if not clock["decides"] and clock["estimate"] is not None:
            bounds = f"between {clock['interval'].replace(' to ', ' and ')}" if clock["low"] else "no interval"
            rows.append((clock["name"], f"{clock['ratio']}, {bounds}{counts}"))
    values = summary.get("values") or {}
    medians = [(values.get(arm) or {}).get("median") for arm in "ab"]
    if None not in medians:
        a, b = (words.value(summary["metric"], median) for median in medians)
        rows.append(("medians", f"A {a}, B {b}"))
    memory = next((row for row in beside(summary) if row[0] == "peak memory"), None)
    if memory:
        _, a, b, found, bounds = memory
        change = "" if found in ("equal", numbers.NOTHING) else f"; {found}"
        change += f", between {bounds.replace(' to ', ' and ')}" if change and bounds != numbers.NOTHING else ""
        rows.append(("peak memory", f"A {a}, B {b}{change}"))
    paid = words.break_even(summary)
    if paid:
        rows.append(("break-even", paid))
    predicted = words.prediction(summary)
    if predicted:
        rows.append(("predicted", predicted))
    visible = summary.get("mde")
    if visible:
        rows.append(("visible", f"an effect of {numbers.percent(visible)} (in 80 of 100 comparisons like this)"))
    foreign = summary.get("foreign") or {}
    if foreign.get("method"):
        rows.append(
            (
                "other load",
                f"{numbers.cores(foreign.get('median_cores'))} cores in the median, "
                f"{numbers.cores(foreign.get('worst_cores'))} in the worst {words.unit_word(summary)} "
                f"({printable(foreign['method'])})",
            )
        )
    else:
        rows.append(("other load", "not measured"))
    rows.append(("outputs", outputs(summary)))
    if summary.get("accuracy"):
        rows += accuracy(summary)[:1]
    return rows


def outputs(summary: dict) -> str:
    """Whether what the arms produced agrees, under which policy."""
    known = summary.get("fingerprints") or {}
    policy = known.get("policy", "none")
    if policy == "none":
        return "not compared (policy none)"
    agree = known.get("agree")
    if agree is None and policy == "statistical" and summary.get("accuracy"):
        return f"undecided (policy {policy})"
    if agree is None or (agree and policy != "statistical" and None in (known.get("a"), known.get("b"))):
        return f"nothing to compare (policy {policy})"
    return f"{'agree' if agree else 'DIFFER'} (policy {policy})"


def _units(summary: dict) -> str:
    units = summary.get("units") or {}
    text = f"{numbers.count(units.get('kept'))} of {numbers.count(units.get('planned'))} planned are kept"
    if units.get("run") is not None and units.get("run") != units.get("kept"):
        text += f", {numbers.count(units['run'])} ran"
    if summary["mode"] not in ("process", "accuracy") and summary.get("pairs"):
        text += f", {numbers.plural(summary['pairs'], 'pair')} in each"
    if words.counts(summary) and summary.get("won") is not None:
        text += f"; B won {numbers.percent(summary['won'])}"
        if summary.get("separated"):
            text += ", and every B beats every A"
    return text


def differences(summary: dict) -> list[str]:
    """Where the arms' outputs disagree, one sentence each."""
    found = []
    for one in (summary.get("fingerprints") or {}).get("differences") or []:
        expected, got = plain(one.get("expected")), plain(one.get("found"))
        found.append(
            printable(
                f"{str(one.get('arm')).upper()}, {words.unit_word(summary)} {one.get('unit')}, {one.get('when')}: "
                f"{one.get('what')} is {got}, expected {expected}"
            )
        )
    return found


def accuracy(summary: dict) -> list[tuple[str, str]]:
    """What the comparison of the results' values says; empty where none was made."""
    known = summary.get("accuracy")
    if not known:
        return []
    return [("values", f"{known['word']}: {known['reason']}"), *words.accuracy(known)]


def seeds(summary: dict) -> list[list[str]]:
    """One row for every seed of a model: seed, events, metric of A, of B, difference, scores moved, decisions."""
    known = summary.get("accuracy") or {}
    metric = known.get("metric")
    return [
        [
            str(seed["seed"]),
            numbers.count(seed["events"]),
            *(numbers.significant(seed[arm][metric], 5) for arm in "ab"),
            words.signed(seed["difference"]),
            numbers.significant(seed["moved"]["p99"]),
            numbers.count(seed["changed"]),
        ]
        for seed in known.get("per_seed") or []
    ]


def seeds_head(summary: dict) -> list[str]:
    """The names of the columns of `seeds`."""
    name = words.METRIC_NAMES[summary["accuracy"]["metric"]] if seeds(summary) else ""
    return ["seed", "events", f"A {name}", f"B {name}", "difference", "99 % of scores moved by", "decisions changed"]


def void_shares(summary: dict) -> list[str]:
    """How often each arm gave no measurement, with exact intervals; empty where none did."""
    found = []
    shares = summary.get("void_shares") or {}
    if not any((shares.get(arm) or {}).get("void") for arm in "ab"):
        return []
    for arm in "ab":
        share = shares.get(arm) or {}
        if share.get("of"):
            found.append(
                f"{arm.upper()}: {numbers.count(share['void'])} of {numbers.count(share['of'])} "
                f"(between {numbers.percent(share['low'])} and {numbers.percent(share['high'])}, 95 %)"
            )
    return found


def inputs(summary: dict) -> list[tuple[str, str, str]]:
    """(name, size, digest) of the files that the arms read."""
    return [
        (printable(one.get("name")), numbers.size(one.get("bytes")), printable(one.get("digest")))
        for one in summary.get("inputs") or []
    ]


def provenance(material: Material) -> str:
    """Where the record comes from, in one line."""
    opening = material.analysis.comparison
    revision = opening.revision or {}
    commit = revision.get("commit")
    tree = f"revision {commit[:12]}" + (" with changes" if revision.get("dirty") else "") if commit else "no revision"
    end = material.analysis.end
    state = end.state if end else "not finished"
    return (
        f"run {opening.run}, started {opening.created}, {state}; harness {opening.harness_version}, {tree}, "
        f"seed {opening.seed}, record schema {opening.schema}"
    )
