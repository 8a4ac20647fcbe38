"""The verdict, and what spoiled the measurement, in sentences that a person would say.

All of them are made from the summary (analysis.py) and nothing else, so every page says the same.
"""

import json
import math

from harness.report import numbers

#: metric -> (what it is, unit's name is appended with "per")
METRICS = {
    "seconds": "wall time",
    "cpu_seconds": "CPU time",
    "seconds_per_unit": "wall time",
    "cpu_seconds_per_unit": "CPU time",
    "startup_seconds": "start-up time",
    "peak_rss_bytes": "peak memory",
    "instructions": "instructions",
}
TIMES = ("seconds", "cpu_seconds", "seconds_per_unit", "cpu_seconds_per_unit", "startup_seconds")
VERDICTS = {
    "regression": "worse by more than the margin",
    "improvement": "better by more than the margin",
    "equivalent": "the same to within the margin",
    "not-worse": "not worse by more than the margin",
    "slower": "worse, by an amount that is not settled",
    "inconclusive": "the measurement does not decide",
    "wrong-result": "the outputs do not agree, so no time counts",
    "unfit": "nothing could be measured properly",
    "indistinguishable": "no difference that the results' own uncertainty would show",
    "different": "a difference beyond the results' own uncertainty",
    "undecided": "the values do not decide",
}
#: what colour a verdict has, as a class of the page
TONES = {
    "regression": "bad",
    "wrong-result": "bad",
    "slower": "open",
    "inconclusive": "open",
    "unfit": "open",
    "improvement": "good",
    "equivalent": "good",
    "not-worse": "good",
    "indistinguishable": "good",
    "different": "bad",
    "undecided": "open",
}
VOIDS = {
    "crash": "a crash",
    "exit": "a non-zero exit",
    "killed": "a kill from outside",
    "timeout": "a hang (time-out)",
    "protocol": "a broken protocol",
    "time": "a reported time longer than the exchange",
    "memory": "the memory limit",
}


def arm_name(summary: dict, arm: str, limit: int = 40) -> str:
    """The arm's name; its whole reference where both arms have one name or it has none; never longer than `limit`."""
    mine, other = summary["arms"][arm], summary["arms"]["b" if arm == "a" else "a"]
    name = mine["name"]
    if name in (other["name"], arm.upper()):  # a command has no name but its letter
        name = mine.get("reference") or name
    return numbers.shorten(printable(name), limit)


def printable(text) -> str:
    """Text without control, direction or surrogate characters, which could rewrite a page or a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in str(text))


def quoted(summary: dict, arm: str, limit: int = 40) -> str:
    """A 'per-frame', B 'grouped'."""
    return f"{arm.upper()} '{arm_name(summary, arm, limit)}'"


def metric(summary: dict) -> str:
    """What was compared: 'CPU time per pixel', 'wall time', 'cache_misses'."""
    name = summary["metric"]
    text = METRICS.get(name, printable(name))
    return f"{text} per {work_unit(summary)}" if name.endswith("_per_unit") else text


def work_unit(summary: dict) -> str:
    """What a time per unit is divided by: pixel, event, step."""
    return numbers.shorten(printable((summary.get("unit") or "").removeprefix("s/") or "unit"), 30)


def unit_word(summary: dict, many: bool = False) -> str:
    """What n counts: pairs in process mode, units where values alone were compared, blocks otherwise."""
    word = {"process": "pair", "accuracy": "unit"}.get(summary["mode"], "block")
    return word + "s" if many else word


def value(metric_name: str, number: float | None) -> str:
    """A value of the metric with its unit: '7.62 µs', '58.2 MiB', '1,230'."""
    if metric_name in TIMES:
        return numbers.seconds(number)
    if metric_name == "peak_rss_bytes":
        return numbers.size(number)
    return numbers.significant(number, 4)


def margin(summary: dict) -> str:
    return f"{100 * summary['margin']:.3g} %"


def counts(summary: dict) -> bool:
    """Whether the ratio may be read as a result: not when outputs are wrong or the measurement is unfit."""
    return summary["verdict"]["word"] not in ("wrong-result", "unfit")


def level(summary: dict) -> str:
    """The interval's level: '95 %', '98.4 %'."""
    share = summary.get("level")
    return numbers.NOTHING if share is None else f"{100 * share:.4g} %" if share < 0.98 else f"{100 * share:.3g} %"


def ratio_parts(summary: dict) -> tuple[str, str, str]:
    """Estimate, low and high of B/A with as many decimals as the interval's width carries."""
    ratio = summary.get("ratio") or {}
    low, high = ratio.get("low"), ratio.get("high")
    width = high - low if low is not None and high is not None else None
    decimals = numbers.ratio_decimals(width)
    return tuple(numbers.ratio(x, decimals) for x in (ratio.get("estimate"), low, high))


def difference(summary: dict) -> str:
    """The estimate and its interval as less or more: '18.8 % less (between 17.0 % and 20.1 % less)'."""
    ratio = summary.get("ratio") or {}
    estimate, low, high = ratio.get("estimate"), ratio.get("low"), ratio.get("high")
    if estimate is None:
        return ""
    if low is None or high is None:
        amount, sense = numbers.change(estimate)
        if summary.get("method") == "deterministic":
            return f"{amount} {sense}"
        return f"{amount} {sense}, without an interval"
    width = high - low
    amount, sense = numbers.change(estimate, width)
    (low_amount, low_sense), (high_amount, high_sense) = numbers.change(low, width), numbers.change(high, width)
    if low_sense == high_sense:
        ends = (high_amount, low_amount) if low_sense == "less" else (low_amount, high_amount)
        return f"{amount} {sense} (between {ends[0]} and {ends[1]} {sense})"
    return f"{amount} {sense} (between {low_amount} {low_sense} and {high_amount} {high_sense})"


def title(summary: dict) -> str:
    """The question that a page answers: the scenario's own, or whether the values agree."""
    if values_alone(summary):
        return f"Does {quoted(summary, 'b')} give the result of {quoted(summary, 'a')}?"
    return printable(summary.get("question") or summary["scenario"])


def settings(parameters: dict) -> list[str]:
    """Parameters as on the command line: jets=64, net="slim"."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in parameters.items()]


def laid(summary: dict) -> str:
    """Parameters laid over the scenario's own: 'jets=64', 'A jets=64; B jets=16', or an empty string."""
    return of_both(*(", ".join(settings((summary.get("laid") or {}).get(arm) or {})) for arm in "ab"))


def of_both(a: str, b: str) -> str:
    """What is told of two arms, once where it is the same."""
    return printable(a if a == b else "; ".join(f"{letter} {text}" for letter, text in (("A", a), ("B", b)) if text))


def times_as_fast(summary: dict) -> str:
    """' That is 1.93 times as fast.' where the difference is too large for per cent to be read at a glance."""
    estimate = (summary.get("ratio") or {}).get("estimate")
    if estimate is None or estimate <= 0 or summary["metric"] not in TIMES:
        return ""
    if estimate <= 0.77:
        return f" It is {numbers.significant(1 / estimate)} times as fast."
    if estimate >= 1.3:
        return f" It takes {numbers.significant(estimate)} times as long."
    return ""


def _verb(summary: dict) -> str:
    return "takes" if summary["metric"] in TIMES else "uses" if summary["metric"] == "peak_rss_bytes" else "has"


def _senses(summary: dict) -> tuple[str, str]:
    """The words for better and worse."""
    if summary["metric"] in TIMES:
        return "faster", "slower"
    return "better", "worse"


def sentence(summary: dict) -> str:
    """The verdict as one would say it."""
    word = summary["verdict"]["word"]
    a, b = quoted(summary, "a"), quoted(summary, "b")
    better, worse = _senses(summary)
    quantity = metric(summary)
    compared = f"{_verb(summary)} {difference(summary)} {quantity} than {a}." if difference(summary) else ""
    compared = compared.replace(") " + quantity, f") {quantity}")
    if word == "improvement":
        return f"{b} is {better}: it {compared}{times_as_fast(summary)}"
    if word == "regression":
        counted = summary.get("method") == "deterministic"
        if counted or ((summary.get("ratio") or {}).get("low") is not None and _beyond_margin(summary)):
            return f"{b} is {worse}: it {compared}{times_as_fast(summary)}"
        return f"{b} fails where {a} does not: {numbers.plural(_voids(summary, 'b'), 'run')} gave no measurement."
    if word == "equivalent":
        return f"{b} and {a} have the same {quantity} to within the margin of {margin(summary)}."
    if word == "not-worse":
        return f"{b} is not {worse} than {a} by the margin of {margin(summary)}; whether it is {better} stays open."
    if word == "slower":
        return f"{b} is {worse} than {a}, but by how much is not settled: it {compared}"
    if word == "wrong-result":
        return f"{b} and {a} do not produce the same result, so their times do not count."
    if word == "unfit":
        return f"This comparison says nothing about {b} and {a}."
    if word == "indistinguishable":
        return f"{b} gives the result of {a} to within its uncertainty."
    if word == "different":
        return f"{b} does not give the result of {a}."
    if word == "undecided":
        return f"Whether {b} gives the result of {a} is not settled."
    for limit, name, other in (("A", a, b), ("B", b, "it")):
        if summary["verdict"]["reason"].startswith(f"arm {limit} is a ceiling"):
            return f"{name} leaves work out on purpose and shows a limit: {other} {compared}{times_as_fast(summary)}"
    if any(doubt in summary["verdict"]["reason"] for doubt in ("values agree is undecided", "values were not taken")):
        return f"Whether {b} gives the result of {a} is not settled, so its {quantity} decides nothing."
    return f"Whether {b} is {better} or {worse} than {a} stays open."


def _beyond_margin(summary: dict) -> bool:
    ratio, margin = summary["ratio"], summary.get("margin") or 0
    return ratio["low"] > 1 + margin or (summary.get("direction") == "higher" and ratio["high"] < 1 / (1 + margin))


def _voids(summary: dict, arm: str) -> int:
    return sum((summary.get("voids") or {}).get(arm, {}).values())


def prediction(summary: dict) -> str:
    """What was predicted and whether it came true, or an empty string."""
    predict = summary.get("predict") or {}
    low, high = predict.get("low"), predict.get("high")
    if low is None or high is None:
        return ""
    met = predict.get("met")
    outcome = "not decided" if met is None else "met" if met else "missed"
    return f"{low:g} to {high:g}: {outcome}"


def break_even(summary: dict) -> str:
    """When the arm that starts later has caught up, or an empty string where that is no question."""
    found = summary.get("break_even")
    if not found or not counts(summary):
        return ""
    longest = found["longest_seconds"]
    up_to = f" (up to {numbers.seconds(longest)})" if longest >= 2 * found["seconds"] else ""
    told = f"{found['later'].upper()} takes {numbers.seconds(found['seconds'])} longer to start{up_to}"
    work, size = found["work"], found["iteration"]
    if work is None:
        return f"{told}; whether its pace ever makes up for it is open"
    per_unit = summary["metric"].endswith("_per_unit")
    unit = work_unit(summary).removesuffix("s") if per_unit else "iteration"
    word, scale = ("iteration", size) if per_unit and size not in (None, 1) else (unit, 1)
    after, low, high = (_whole(work[key], scale) for key in ("estimate", "low", "high"))
    units = f", {numbers.plural(_whole(work['estimate']), unit)}" if scale != 1 else ""
    bounds = f"between {numbers.count(low)} and {numbers.plural(high, word)}" if high else f"from {low} {word}s on"
    return f"{told} and is ahead in wall time after {numbers.plural(after, word)}{units} ({level(summary)} {bounds})"


def _whole(amount: float | None, scale: float = 1) -> int | None:
    """How many whole things, at least one, to the two digits that mean something."""
    return None if amount is None else int(float(f"{max(1, math.ceil(amount / scale)):.2g}"))


def values_alone(summary: dict) -> bool:
    """Whether values alone were compared (`harness accuracy`), and no times."""
    return summary["mode"] == "accuracy"


# ------------------------------------------------------------------------------------------------- accuracy

METRIC_NAMES = {"auc": "AUC", "accuracy": "accuracy", "log_loss": "log loss"}
#: what a reader of pulls must know, beside the numbers
PULL_CAVEAT = (
    "Both arms share their counts, so a pull is a systematic shift in error bars of A and no test statistic. Voxels "
    "that one arm misses have none. If A itself is not converged, the shift is larger than shown."
)
SEEDS_CAVEAT = {
    "signed-rank": "The interval is exact if the differences lie symmetrically about their centre.",
    "t": "With so few seeds the interval rests on a model, normal differences; from 6 seeds on it is exact.",
    None: "One seed does not show what another seed would have changed.",
}


def accuracy(known: dict) -> list[tuple[str, str]]:
    """What the values say, as (label of at most 11 letters, text)."""
    rows = _map_rows(known) if known["kind"] == "map" else _model_rows(known)
    seconds = known.get("seconds") or {}
    if any(seconds.get(arm) is not None for arm in "ab"):
        a, b = (numbers.seconds(seconds.get(arm)) for arm in "ab")
        rows.append(("writing it", f"A {a}, B {b}"))
    return rows


def _map_rows(known: dict) -> list[tuple[str, str]]:
    counted = known["counted"]
    unit = "contributors a voxel" if counted else "times the measured exposure"
    measured = f"; {numbers.significant(known['contributors'])} were measured" if counted else ""
    visible = known["contributors_for_unit_pull"]
    rows = [("exposure", f"{numbers.bare(numbers.significant(known['exposure']))} {unit}{measured}")]
    for label, found in (("shift there", known["shift"]), ("pull", known["pull"])):
        if found:
            text = ", ".join(
                f"{name} {numbers.significant(found[key])}"
                for key, name in (("median", "median"), ("p90", "90 %"), ("p99", "99 %"))
            )
            if "rms" in found:
                text += f", rms {numbers.significant(found['rms'])}, largest {numbers.significant(found['largest'])}, "
                text += f"signed mean {numbers.significant(found['signed_mean'])}"
            rows.append((label, f"{text} (error bars of A)"))
    if known["pull"]:
        rows.append(("visible at", f"{numbers.significant(visible)} {unit}" if visible else "no exposure"))
    rows.append(
        (
            "voxels",
            f"{numbers.count(known['shared'])} shared; only A {numbers.count(known['only_a'])} "
            f"({numbers.percent(known['only_a_share'])} of its weight), only B {numbers.count(known['only_b'])} "
            f"({numbers.percent(known['only_b_share'])}); {numbers.given(100 * known['tolerance'])} % may be missed",
        )
    )
    if known["without_bar"]:
        share = numbers.percent(known["without_bar_share"])
        rows.append(("no bar", f"{numbers.count(known['without_bar'])} shared voxels ({share} of the weight)"))
    ratios = (numbers.ratio(known[f"{name}_ratio"], 6) for name in ("weight", "intensity"))
    rows.append(("totals B/A", "weight {}, value times weight {}".format(*ratios)))
    return rows


def _model_rows(known: dict) -> list[tuple[str, str]]:
    rows = [
        (
            "seeds",
            f"{numbers.count(known['seeds'])}, {numbers.count(known['events'])} events in all"
            + (f"; {numbers.count(known['seeds_needed'])} in all are needed" if known["seeds_needed"] else ""),
        ),
        ("tolerance", f"±{numbers.given(known['tolerance'])} {METRIC_NAMES[known['metric']]}"),
    ]
    rows += [(METRIC_NAMES[name], interval_text(interval)) for name, interval in known["intervals"].items()]
    moved = known["moved"]
    rows.append(
        (
            "scores",
            f"moved by {numbers.significant(moved['median'])} in the median event, 99 % by at most "
            f"{numbers.significant(moved['p99'])}, the largest by {numbers.significant(moved['largest'])} "
            "(of the worst seed)",
        )
    )
    rows.append(("decisions", f"{numbers.count(known['changed'])} changed ({numbers.percent(known['changed_share'])})"))
    return rows


def interval_text(interval: dict) -> str:
    """A difference B - A with its interval: '+0.0012, between -0.0003 and +0.0027'."""
    estimate = signed(interval["estimate"])
    if interval["low"] is None:
        return f"{estimate}, no interval"
    return f"{estimate}, between {signed(interval['low'])} and {signed(interval['high'])}"


def signed(number: float | None) -> str:
    """A number with its sign: +0.0012, −0.4, 0."""
    text = numbers.significant(number)
    return f"+{text}" if number is not None and number > 0 else text


def caveat(known: dict) -> str:
    """What one must know to read the values' comparison."""
    if known["kind"] == "map":
        return PULL_CAVEAT
    return SEEDS_CAVEAT[(known["difference"] or {"method": None})["method"]]


def exit_meaning(code: int | None) -> str:
    return {
        0: "pass",
        1: "fail",
        2: "configuration error",
        3: "undecided",
        4: "unfit to measure",
        130: "interrupted",
    }.get(code, "")


def spoiled(summary: dict) -> list[tuple[str, str]]:
    """What spoiled the measurement, the gravest first: (what happened, what to do about it)."""
    found: list[tuple[str, str]] = []
    many, units = unit_word(summary, True), summary.get("units") or {}
    voids = summary.get("voids") or {}
    for arm in "ab":
        kinds = voids.get(arm) or {}
        if kinds:
            what = ", ".join(f"{numbers.count(n)} × {VOIDS.get(kind, printable(kind))}" for kind, n in kinds.items())
            found.append((f"Void in {arm.upper()}: {what}.", "The record keeps the end of its error output; read it."))
    if values_alone(summary):  # load and clocks touch no value
        return found
    aside = {reason: number for reason, number in (summary.get("set_aside") or {}).items() if number}
    for reason, number in aside.items():
        found.append(
            (
                f"{numbers.plural(number, unit_word(summary))} set aside for the {printable(reason)} beside "
                f"{'it' if number == 1 else 'them'}.",
                "Stop what runs beside the arms, or measure on a quieter machine.",
            )
        )
    without = (summary.get("without_setting_aside") or {}).get("word")
    if without and aside and without != summary["verdict"]["word"]:
        found.append((f"With the {many} set aside counted, the verdict would be {without}.", "Measure again."))
    if units.get("wrong"):
        found.append(
            (
                f"{numbers.plural(units['wrong'], unit_word(summary))} gave a wrong output.",
                "Compare the fingerprints; no time counts until they agree.",
            )
        )
    elif (summary.get("fingerprints") or {}).get("agree") is False:
        found.append(("The outputs differ.", "No time counts until they agree."))
    note = (summary.get("clocks") or {}).get("note")
    if note:
        found.append((f"{note[0].upper()}{printable(note[1:])}.", "Waiting or threads show in wall time only."))
    if summary.get("asymmetric"):
        found.append(
            (
                "The ratios are asymmetric: their median and the estimate differ by more than half the interval.",
                "Look at the distribution for a second mode.",
            )
        )
    planned, kept = units.get("planned"), units.get("kept")
    ratio = summary.get("ratio") or {}
    ended = summary["verdict"]["word"] == "wrong-result" or summary.get("stopped") == "voids"  # more would say no more
    if planned is not None and kept is not None and kept < planned and not ended:
        found.append((f"Only {kept} of {planned} {many} count.", "Go on with it (--resume), or measure again."))
    elif (
        counts(summary) and ratio.get("estimate") and not ratio.get("low") and summary.get("method") != "deterministic"
    ):
        asked = "--pairs" if summary["mode"] == "process" else "--blocks"
        found.append((f"There are too few {many} for an interval.", f"Ask for more with {asked}."))
    foreign = summary.get("foreign") or {}
    worst, median = foreign.get("worst_cores"), foreign.get("median_cores")
    if worst is not None and worst >= 0.25:
        busiest = next((process.get("name") for process in foreign.get("top") or [] if process.get("name")), None)
        most = f", most of it {printable(busiest)}" if busiest else ""
        found.append(
            (
                f"Other processes used {numbers.cores(median)} cores in the median {unit_word(summary)} and "
                f"{numbers.cores(worst)} in the worst{most}.",
                "Pairs cancel most of this; for a narrower interval stop them.",
            )
        )
    if (foreign.get("steal") or 0) >= 0.1:
        found.append(
            (
                f"The hypervisor took away {numbers.cores(foreign['steal'])} cores (steal).",
                "Read the CPU clock, or use a machine of your own.",
            )
        )
    if (foreign.get("unattributed") or 0) > 0.15:
        found.append(
            (
                f"{numbers.cores(foreign['unattributed'])} cores were used by short-lived processes or the kernel.",
                "Look for storms of short processes.",
            )
        )
    if foreign.get("method") in ("stat-only", "totals"):
        found.append(
            (
                f"Foreign load could be seen only as a total (method {foreign['method']}).",
                "Run outside a container to see which processes it was.",
            )
        )
    if (summary.get("fingerprints") or {}).get("policy") == "none":
        found.append(
            (
                "Outputs were not compared (policy none).",
                "Name the files the arms write in `outputs`, so that a wrong result is noticed.",
            )
        )
    if summary.get("clock") == "scripted":
        found.append(("The times were scripted by the arms, not measured.", "This is a test of the harness itself."))
    if (summary.get("guard") or {}).get("load_depends_on_arm"):
        found.append(
            (
                "The load beside it depends on the arm, so nothing was set aside or adjusted for it.",
                "Look for helpers that an arm starts.",
            )
        )
    above = (summary.get("modes") or {}).get("above") or {}
    if any(0.05 <= share <= 0.95 for share in above.values()):
        shares = " and ".join(f"{arm.upper()} in {numbers.percent(share)}" for arm, share in sorted(above.items()))
        found.append((f"There are two modes; the slower one is taken by {shares} of the slots.", "Look for its cause."))
    for arm, steady in sorted((summary.get("steady") or {}).items()):
        if steady and steady.get("class") in ("slowdown", "none"):
            what = "got slower in its process" if steady["class"] == "slowdown" else "never became steady"
            found.append((f"{arm.upper()} {what}.", "Look at its iterations; more warm-up may help."))
    for adjusted in summary.get("adjusted") or []:
        found.append((f"Adjusted for {printable(adjusted)}.", "The interval takes this into account."))
    return found


def ratio_senses(summary: dict) -> tuple[str, str]:
    """What a ratio below 1 and one above 1 mean, for the two ends of an axis."""
    if summary["metric"] in TIMES:
        return "B faster", "B slower"
    if summary.get("direction") == "higher":
        return "B worse", "B better"
    return "B less", "B more"
