"""Records made from numbers: entries of a comparison that never ran, for tests of what comes after records.jsonl."""

import math

from harness import records, schedule


def comparison(
    *,
    mode="resident",
    units=8,
    pairs=10,
    seed=1,
    scenario=None,
    gate=None,
    work=None,
    limits=None,
    arms=None,
    plan=None,
):
    """The entry that opens a record, with the defaults of a scenario file."""
    question = {
        "name": "made",
        "question": "Is B faster?",
        "expect": "",
        "predict": {"ratio": None},
        "workload": None,
        "metric": "seconds",
        "direction": "lower",
        "fingerprint": "exact",
        "totals_rtol": 1e-12,
    } | (scenario or {})
    described = {
        arm: {"name": name, "reference": f"made:{name}", "kind": "arm", "parameters": {}, "command": [name]}
        | ((arms or {}).get(arm) or {})
        for arm, name in (("a", "old"), ("b", "new"))
    }
    return records.Comparison(
        run="20260101T000000Z-aaaaaa",
        created="2026-01-01T00:00:00+00:00",
        harness_version="0",
        command=["harness", "ab", "made:old", "made:new"],
        scenario={
            "scenario": question,
            "parameters": {},
            "arms": {"old": {}, "new": {}},
            "schedule": {"mode": mode, "blocks": units, "pairs": pairs},
            "gate": {"margin": 0.02, "alpha": 0.05, "strict": False} | (gate or {}),
            "work": {"unit": "unit", "minimum": 0.0} | (work or {}),
            "limits": {"foreign_cores": None} | (limits or {}),
        },
        arms=described,
        seed=seed,
        plan={"mode": mode, "units": units, "pairs": pairs, "warmup": 0, "fixed": True, "cap": 2 * units}
        | (plan or {}),
        machine={"cpu": "made"},
        revision={"commit": None, "dirty": None},
    )


def fingerprint(unit, arm, when="end", *, work=5.0, digests=None, totals=None):
    return records.Fingerprint(
        unit=unit,
        arm=arm,
        when=when,
        work=work,
        digests={"out": "aa"} if digests is None else digests,
        totals={} if totals is None else totals,
    )


def unit(
    number,
    ratios,
    *,
    mode="resident",
    seed=1,
    base=0.1,
    cpu=None,
    foreign=None,
    steal=0.0,
    prints=True,
    close=True,
    work=5.0,
    header=None,
    slot=None,
):
    """One complete unit whose pairs have these log ratios; `slot` overlays fields of a slot: (arm, pair) -> dict."""
    plan = schedule.plan_unit(seed, number, mode, len(ratios))
    entries = [
        records.Launch(unit=number, arm=letter.lower(), order=order, pid=1, at=0.0, startup_seconds=0.01, header=header)
        for order, letter in enumerate(plan.launch)
    ]
    for index, ratio in enumerate(ratios):
        for position, letter in enumerate(plan.pairs[index]):
            arm = letter.lower()
            seconds = base * (math.exp(ratio) if arm == "b" else 1.0)
            cpu_ratio = ratio if cpu is None else cpu[index]
            fields = {
                "unit": number,
                "arm": arm,
                "phase": "steady",
                "index": 0 if mode == "process" else index,
                "at": float(number),
                "seconds": seconds,
                "cpu_seconds": base * (math.exp(cpu_ratio) if arm == "b" else 1.0),
                "pair": index,
                "position": position,
                "work": work,
            }
            entries.append(records.Slot(**(fields | (slot(arm, index) if slot else {}))))
    if prints:
        entries += [fingerprint(number, arm, work=work) for arm in "ab"]
    if foreign is not None:
        entries.append(
            records.Load(unit=number, method="cgroup", elapsed=1.0, foreign=foreign, steal=steal, unattributed=0.01)
        )
    if close:
        entries.append(records.Unit(unit=number, state="complete"))
    return entries


def void(number, arm, reason="crash"):
    return [
        records.Void(unit=number, arm=arm, reason=reason, message=f"{reason} of {arm}"),
        records.Unit(unit=number, state="void"),
    ]


def record(blocks, /, **settings):
    """A whole record in which each block is a log ratio, a list of them, or entries made above."""
    opening = comparison(**settings)
    mode, seed = opening.plan["mode"], opening.seed
    entries = [opening]
    for number, one in enumerate(blocks):
        if isinstance(one, (int, float)):
            one = [one]
        if one and isinstance(one[0], records.Entry):
            entries += one
        else:
            entries += unit(number, one, mode=mode, seed=seed)
    return entries
