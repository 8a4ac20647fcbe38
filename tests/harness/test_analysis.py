"""analysis: a record's entries become the right units, the right verdict and the same bytes, whatever the machine."""

import json
import math
import random

import made
import numpy as np
import pytest

from harness import analysis, records
from harness.analysis import Analysis, summarise


def word(entries):
    return summarise(entries)["verdict"]["word"]


def units(*ratios, pairs=3, **settings):
    """A record of blocks, each with pairs that all have one ratio."""
    return made.record([[math.log(ratio)] * pairs for ratio in ratios], pairs=pairs, units=len(ratios), **settings)


STEADY = [1.05, 1.051, 1.049, 1.052, 1.048, 1.053, 1.047, 1.054]


def test_a_block_is_one_number_however_many_pairs_it_has():
    few, many = units(*STEADY, pairs=2), units(*STEADY, pairs=50)
    assert summarise(few)["ratio"] == pytest.approx(summarise(many)["ratio"])
    five = units(*STEADY[:5], pairs=50)
    assert word(five) == "inconclusive"
    assert summarise(five)["ratio"]["low"] is None


def test_estimate_and_interval_are_those_of_the_blocks():
    found = summarise(units(*STEADY))
    assert found["ratio"]["estimate"] == pytest.approx(1.0505, abs=1e-4)
    # The fourth-smallest and fourth-largest Walsh average of eight: the 95 % row of the table.
    walsh = sorted(math.sqrt(x * y) for i, x in enumerate(STEADY) for y in STEADY[i:])
    assert (found["ratio"]["low"], found["ratio"]["high"]) == pytest.approx((walsh[3], walsh[-4]))
    assert found["median"] == pytest.approx(math.sqrt(1.05 * 1.051))
    assert found["level"] == 0.95
    assert found["won"] == 0.0
    assert found["verdict"]["word"] == "regression"
    assert found["exit_code"] == 1


def test_same_entries_same_bytes():
    made_record = units(*STEADY)
    text = json.dumps(summarise(made_record))
    again = [records.decode(records.encode(entry)) for entry in made_record]
    assert json.dumps(summarise(again)) == text
    assert json.loads(text)["schema"] == 1


def test_the_order_of_entries_inside_a_unit_does_not_matter():
    whole = units(*STEADY)
    opening, rest = whole[0], whole[1:]
    blocks = {}
    for entry in rest:
        blocks.setdefault(entry.unit, []).append(entry)
    shuffled = [opening]
    for block in blocks.values():
        closing = block.pop()
        random.Random(1).shuffle(block)
        shuffled += [*block, closing]
    assert summarise(shuffled) == summarise(whole)


def test_every_field_of_the_schema_is_there():
    text = """schema run harness_version command scenario question arms metric unit mode clock margin alpha level ratio
        median won separated units pairs set_aside voids adjusted without_setting_aside verdict exit_code predict
        fingerprints accuracy clocks foreign mde seed inputs environment"""
    found = summarise(units(*STEADY))
    assert set(text.split()) <= found.keys()
    assert {"planned", "run", "kept"} <= found["units"].keys()
    assert {"estimate", "low", "high"} <= found["ratio"].keys()
    assert {"policy", "agree", "a", "b", "differences"} <= found["fingerprints"].keys()
    assert {"method", "median_cores", "worst_cores", "unattributed", "steal", "top"} <= found["foreign"].keys()
    assert {"common", "a", "b"} == found["environment"].keys()


def test_a_record_without_units_is_unfit():
    found = summarise([made.comparison()])
    assert found["verdict"] == {"word": "unfit", "reason": "nothing was measured: no unit was completed"}
    assert found["exit_code"] == 4
    with pytest.raises(ValueError, match="expected a comparison entry first"):
        summarise([])


# ------------------------------------------------------------------------------------------------------- metrics


def slots(**both):
    """Overlay: field -> (value in A, value in B)."""
    return lambda arm, pair: {field: values[arm == "b"] for field, values in both.items()}


@pytest.mark.parametrize(
    ("metric", "overlay", "ratio"),
    [
        ("seconds", {"seconds": (2.0, 3.0)}, 1.5),
        ("cpu_seconds", {"seconds": (2.0, 3.0), "cpu_seconds": (1.0, 3.0)}, 3.0),
        ("seconds_per_unit", {"seconds": (2.0, 3.0), "units": (1, 3)}, 0.5),
        ("cpu_seconds_per_unit", {"cpu_seconds": (2.0, 3.0), "units": (1, 3)}, 0.5),
        ("peak_rss_bytes", {"peak_rss_bytes": (100.0, 110.0)}, 1.1),
        ("startup_seconds", {"startup_seconds": (0.1, 0.2)}, 2.0),
        ("misses", {"counters": ({"misses": 10.0}, {"misses": 40.0})}, 4.0),
    ],
)
def test_metrics_are_taken_from_their_fields(metric, overlay, ratio):
    blocks = [made.unit(u, [0.0, 0.0], slot=slots(**overlay)) for u in range(6)]
    found = summarise(made.record(blocks, scenario={"metric": metric}))
    assert found["ratio"]["estimate"] == pytest.approx(ratio)
    assert found["ratio"]["low"] == pytest.approx(ratio)


def test_start_up_of_resident_arms_is_one_value_a_block():
    blocks = [made.unit(u, [0.1, 0.2, 0.3]) for u in range(6)]
    for block in blocks:
        for entry in block:
            if isinstance(entry, records.Launch):
                entry.startup_seconds = 0.3 if entry.arm == "b" else 0.1
    found = summarise(made.record(blocks, scenario={"metric": "startup_seconds"}))
    assert found["ratio"]["estimate"] == pytest.approx(3)
    assert found["won"] == 0


def test_a_metric_that_nobody_reports_measures_nothing():
    found = summarise(units(*STEADY, scenario={"metric": "misses"}))
    assert found["verdict"]["word"] == "unfit"
    assert "'misses'" in found["verdict"]["reason"]


def test_a_unit_is_never_left_out_for_its_value():
    zero = made.unit(3, [0.05, 0.05], slot=lambda arm, pair: {"seconds": 0.0} if (arm, pair) == ("b", 1) else {})
    blocks = [[0.05, 0.05]] * 8
    found = summarise(made.record([zero if u == 3 else block for u, block in enumerate(blocks)]))
    assert found["verdict"]["word"] == "inconclusive"
    assert found["verdict"]["reason"] == "block 3 has no 'seconds' above 0 in both arms"


def test_more_is_better_where_the_scenario_says_so():
    assert word(units(*STEADY, scenario={"direction": "higher"})) == "improvement"
    found = summarise(units(*[1 / x for x in STEADY], scenario={"direction": "higher"}))
    assert found["verdict"]["word"] == "regression"
    assert found["ratio"]["estimate"] < 1
    assert found["won"] == 0


def test_share_won_and_separation_are_beside_the_interval():
    assert summarise(units(*[1 / x for x in STEADY]))["won"] == 1.0
    assert summarise(units(*[1 / x for x in STEADY]))["separated"] is True
    assert summarise(units(*STEADY))["separated"] is False
    mixed = [made.unit(u, [-0.05, 0.01, -0.05, -0.05]) for u in range(8)]
    found = summarise(made.record(mixed))
    assert found["won"] == 0.75
    assert found["separated"] is False


def test_both_clocks_are_shown_and_a_disagreement_is_said():
    blocks = [made.unit(u, [0.05, 0.05], cpu=[0.0, 0.001]) for u in range(8)]
    found = summarise(made.record(blocks))["clocks"]
    assert found["wall"]["word"] == "regression"
    assert found["cpu"]["word"] == "equivalent"
    assert found["note"] == "the clocks disagree: regression in wall time, equivalent in CPU time"
    agreeing = summarise(units(*STEADY, scenario={"metric": "cpu_seconds_per_unit"}))["clocks"]
    assert agreeing["wall"]["metric"] == "seconds_per_unit"
    assert agreeing["note"] is None


@pytest.mark.parametrize(("band", "met"), [([1.04, 1.06], True), ([0.9, 1.0], False)])
def test_a_prediction_is_met_or_missed(band, met):
    found = summarise(units(*STEADY, scenario={"predict": {"ratio": band}}))
    assert found["predict"] == {"low": band[0], "high": band[1], "met": met}


def test_a_prediction_is_about_its_two_arms_alone():
    measured = [units(*STEADY)[0].arms[arm]["name"] for arm in ("a", "b")]
    band = {"ratio": [1.04, 1.06]}
    assert summarise(units(*STEADY, scenario={"predict": band | {"arms": measured}}))["predict"]["met"] is True
    assert summarise(units(*STEADY, scenario={"predict": band | {"arms": measured[::-1]}}))["predict"] is None


def test_no_prediction_no_field():
    assert summarise(units(*STEADY))["predict"] is None


# ------------------------------------------------------------------------------------------------- void, aside


def test_a_void_unit_is_counted_replaced_and_no_unit():
    blocks = [made.void(0, "b"), made.void(1, "a", "timeout"), *[made.unit(u, [0.05, 0.05]) for u in range(2, 10)]]
    entries = made.record(blocks)
    found = summarise(entries)
    assert found["units"] | {"set_aside": None} == {
        "planned": 8,
        "run": 10,
        "kept": 8,
        "wrong": 0,
        "set_aside": None,
    }
    assert found["voids"] == {"a": {"timeout": 1}, "b": {"crash": 1}}
    assert found["void_shares"]["b"] == {
        "void": 1,
        "of": 10,
        "low": pytest.approx(0.00253, abs=1e-5),
        "high": pytest.approx(0.445, abs=1e-3),
    }
    assert found["verdict"]["word"] == "regression"
    assert analysis.next_unit(entries) is None
    assert analysis.next_unit(entries[:-1]) == 9


def test_measured_slots_of_a_void_unit_count_for_nothing():
    half = made.unit(0, [5.0, 5.0], close=False)
    entries = made.record([half + made.void(0, "b"), *[made.unit(u, [0.0, 0.001]) for u in range(1, 9)]])
    found = summarise(entries)
    assert found["verdict"]["word"] == "equivalent"
    assert found["units"]["kept"] == 8


def test_an_interrupted_unit_is_run_again_and_does_not_count():
    entries = made.record([[0.0, 0.0], made.unit(1, [5.0], close=False)])
    assert analysis.next_unit(entries) == 1
    assert summarise(entries)["units"]["run"] == 1


def test_b_that_always_crashes_is_a_regression_and_a_base_that_does_is_unfit():
    for arm, expected in (("b", "regression"), ("a", "unfit")):
        entries = made.record([made.void(u, arm) for u in range(5)])
        assert analysis.next_unit(entries) is None
        assert word(entries) == expected


def loaded(*cores, steal=0.0):
    return [made.unit(u, [0.05, 0.05], foreign=one, steal=steal) for u, one in enumerate(cores)]


def test_units_are_set_aside_by_load_alone_and_replaced():
    entries = made.record(loaded(*[0.1] * 7, 1.5), limits={"foreign_cores": 1.0})
    assert analysis.next_unit(entries) == 8
    found = summarise(entries)
    assert found["set_aside"] == {"load": 1}
    assert found["units"]["kept"] == 7
    assert found["units"]["set_aside"] == {"7": "1.50 cores of foreign load and steal, above 1"}
    assert found["without_setting_aside"] == {"word": "regression"}
    assert found["foreign"]["worst_cores"] == 1.5
    assert found["foreign"]["median_cores"] == 0.1
    assert found["foreign"]["method"] == "cgroup"


def test_steal_counts_as_load():
    entries = made.record(loaded(*[0.6] * 8, steal=0.5), limits={"foreign_cores": 1.0})
    assert summarise(entries)["units"]["kept"] == 0
    assert word(entries) == "unfit"


def test_without_a_limit_nothing_is_set_aside():
    assert summarise(made.record(loaded(*[9.0] * 8)))["units"]["kept"] == 8


def test_setting_aside_looks_at_both_slots_of_a_pair():
    for position in (0, 1):
        pair = made.unit(0, [0.05], mode="process", close=False)
        for place in (0, 1):
            cores = 2.0 if place == position else 0.0
            pair.append(
                records.Load(unit=0, method="cgroup", elapsed=1, arm="ab"[place], position=place, foreign=cores)
            )
        pair.append(records.Unit(unit=0, state="complete"))
        found = summarise(made.record([pair], mode="process", limits={"foreign_cores": 1.0}))
        assert found["set_aside"] == {"load": 1}


def test_a_verdict_that_hangs_on_setting_aside_is_inconclusive():
    quiet = [made.unit(u, [0.05, 0.05], foreign=0.0) for u in range(8)]
    loud = [made.unit(u, [-0.07, -0.06], foreign=3.0) for u in range(8, 11)]
    found = summarise(made.record(quiet + loud, limits={"foreign_cores": 1.0}))
    assert found["verdict"]["word"] == "inconclusive"
    assert found["without_setting_aside"]["word"] == "inconclusive"
    assert found["verdict"]["reason"].startswith("regression without and inconclusive with the 3 blocks set aside")


# ------------------------------------------------------------------------------------------------------- outputs


def replaced(block, arm, when="end", **fields):
    """A block in which one arm's fingerprint is another."""
    return [
        made.fingerprint(entry.unit, arm, when, **fields)
        if isinstance(entry, records.Fingerprint) and entry.arm == arm
        else entry
        for entry in block
    ]


def test_one_wrong_output_fails_whatever_the_times():
    blocks = [made.unit(u, [-1.0, -1.0]) for u in range(8)]
    blocks[5] = replaced(blocks[5], "b", digests={"out": "bb"})
    entries = made.record(blocks)
    found = summarise(entries)
    assert found["verdict"] == {
        "word": "wrong-result",
        "reason": "arm B 'new', block 5, end: digest out bb differs from aa; the odd one is B 'new'",
    }
    assert found["exit_code"] == 1
    assert found["units"]["kept"] == 7
    assert found["units"]["wrong"] == 1
    assert analysis.wrong(entries)


def test_less_work_than_the_minimum_is_wrong_even_if_nothing_is_compared():
    def idle(arm, pair):
        return {"work": 0.0} if (arm, pair) == ("b", 1) else {}

    blocks = [made.unit(u, [-1.0, -1.0], slot=idle if u == 2 else None) for u in range(8)]
    found = summarise(made.record(blocks, work={"minimum": 1.0}, scenario={"fingerprint": "none"}))
    assert found["verdict"]["word"] == "wrong-result"
    assert found["verdict"]["reason"] == "arm B 'new', block 2: work of at least 1 expected, found 0"
    assert found["units"]["kept"] == 7


def test_an_iteration_that_did_less_than_its_arm_does_is_wrong():
    def idle(arm, pair):
        return {"work": 4.0} if (arm, pair) == ("b", 1) else {}

    blocks = [made.unit(u, [-1.0, -1.0], slot=idle if u == 2 else None) for u in range(8)]
    found = summarise(made.record(blocks))
    assert found["verdict"]["word"] == "wrong-result"
    assert "work 4.0 differs from 5.0" in found["verdict"]["reason"]


def test_totals_that_moved_are_wrong_where_keys_and_counts_stayed():
    def moved(arm, pair):
        return {"totals": {"sum": 1.22 if arm == "b" else 1.0}}

    blocks = [made.unit(u, [0.0, 0.0], slot=moved) for u in range(8)]
    assert word(made.record(blocks, scenario={"fingerprint": "keys"})) == "wrong-result"
    assert word(made.record(blocks, scenario={"fingerprint": "keys", "totals_rtol": 0.3})) == "equivalent"
    assert word(made.record(blocks, scenario={"fingerprint": "none"})) == "equivalent"


def test_ten_wrong_runs_of_every_kind_and_medians_without_them():
    """Case T10: fast and empty, equal counts with other totals, wrong at normal speed; the first run of A as well."""
    empty = {"work": 0.0, "digests": {"out": "00"}}
    other = {"digests": {"out": "aa"}, "totals": {"sum": 1.22}}
    bad = {
        0: ("a", {"digests": {"out": "bb"}}),
        7: ("b", empty),
        11: ("b", other),
        16: ("b", {"digests": {"out": "cc"}}),
    }
    pairs = []
    for u in range(20):
        ratio = -1.6 if u == 7 else 0.0
        pair = made.unit(u, [ratio], mode="process", work=0.0 if u == 7 else 5.0)
        pair = [
            made.fingerprint(u, entry.arm, work=5.0, totals={"sum": 1.0})
            if isinstance(entry, records.Fingerprint)
            else entry
            for entry in pair
        ]
        if u in bad:
            arm, fields = bad[u]
            pair = replaced(pair, arm, **({"totals": {"sum": 1.0}} | fields))
        pairs.append(pair)
    found = summarise(made.record(pairs, mode="process", units=20, work={"minimum": 1}))
    assert found["verdict"]["word"] == "wrong-result"
    assert found["exit_code"] == 1
    assert found["units"]["wrong"] == 4
    assert found["voids"] == {"a": {}, "b": {}}
    assert found["fingerprints"]["a"]["digests"] == {"out": "aa"}
    assert {one["unit"] for one in found["fingerprints"]["differences"]} >= {0, 11, 16}
    assert found["values"]["b"]["least"] == pytest.approx(0.1)
    assert found["ratio"]["estimate"] == pytest.approx(1)


def test_reruns_do_not_touch_the_unit_they_follow():
    entries = units(*STEADY)
    before = summarise(entries)
    entries.append(records.Launch(unit=7, arm="a", order=0, pid=2, at=9.0, startup_seconds=99.0))
    entries.append(made.fingerprint(7, "a", "rerun"))
    assert summarise(entries) == before


def test_a_ceiling_is_exempt_from_agreement_and_never_wins():
    blocks = [replaced(made.unit(u, [-0.5, -0.5], work=5.0), "b", digests={"out": "bb"}) for u in range(8)]
    found = summarise(made.record(blocks, arms={"b": {"kind": "ceiling"}}))
    assert found["verdict"]["word"] == "inconclusive"
    assert found["verdict"]["reason"].startswith("arm B is a ceiling: it leaves work out and cannot win; B/A = 0.6065")


# ------------------------------------------------------------------------------------------ the cases T2 and T4


def test_the_estimate_is_the_ratio_of_two_wide_distributions():
    """Case T2: N(20, 5) against N(18, 5) ms over 400 pairs."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(20, 5, 400), rng.normal(18, 5, 400)
    a, b = np.maximum(a, 1), np.maximum(b, 1)
    found = summarise(made.record(list(np.log(b / a)), mode="process", units=400, pairs=1))
    assert found["ratio"]["estimate"] == pytest.approx(0.90, abs=0.04)
    half = (found["ratio"]["high"] - found["ratio"]["low"]) / 2
    assert half == pytest.approx(0.034, abs=0.008)
    assert found["verdict"]["word"] == "improvement"
    assert "±" not in json.dumps(found, ensure_ascii=False)


@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_too_few_pairs_are_never_significant(n):
    """Case T4: B ten times slower."""
    found = summarise(made.record([math.log(10)] * n, mode="process", units=n, pairs=1))
    assert found["verdict"]["word"] == "inconclusive"
    assert found["exit_code"] == 3
    assert "6 units are needed" in found["verdict"]["reason"]
    assert found["ratio"]["low"] is None
    assert found["ratio"]["estimate"] == pytest.approx(10)


def test_environment_is_told_once_where_arms_share_it():
    header = {
        "clock": "wall",
        "inputs": [{"name": "scan", "bytes": 1, "digest": "d"}],
        "environment": {"python": "3.11"},
    }
    blocks = [made.unit(u, [0.0], header=dict(header)) for u in range(6)]
    for block in blocks:
        for entry in block:
            if isinstance(entry, records.Launch):
                entry.header = header | {"environment": {"python": "3.11", "threads": entry.arm}}
    found = summarise(made.record(blocks))
    assert found["environment"]["common"]["python"] == "3.11"
    assert found["environment"]["a"] == {"threads": "a"}
    assert found["environment"]["b"] == {"threads": "b"}
    assert found["inputs"] == header["inputs"]
    assert found["clock"] == "wall"


def test_a_scripted_clock_is_said():
    blocks = [made.unit(u, [0.0], header={"clock": "scripted"}) for u in range(6)]
    assert summarise(made.record(blocks))["clock"] == "scripted"


def test_units_are_there_for_the_pages():
    entries = made.record([made.void(0, "a"), *loaded(0.1, 0.2)[1:]])
    found = Analysis(entries).units
    assert [(one.unit, one.state) for one in found] == [(0, "void"), (1, "kept")]
    assert found[0].why == "crash of a"
    assert found[1].value == pytest.approx(0.05)
    assert found[1].foreign == 0.2


@pytest.mark.parametrize("plan", [{}, {"fixed": False}, {"method": "anytime"}, {"control": True}, {"quads": True}])
@pytest.mark.parametrize("mode", ["resident", "process"])
def test_a_record_that_lacks_any_of_its_entries_still_has_a_verdict(mode, plan):
    """Whatever an interruption, a crash or another version left out: an answer, never an exception."""
    chance = random.Random(f"{mode} {sorted(plan)}")
    for _ in range(12):
        n = chance.randint(0, 14)
        blocks = []
        for u in range(n):
            block = made.unit(u, [chance.gauss(0.02, 0.03)] * 2, mode="resident", foreign=chance.random(), close=False)
            if chance.random() < 0.1:
                block += made.void(u, chance.choice("ab"))
            else:
                block.append(records.Unit(unit=u, state="complete"))
            blocks.append(block)
        entries = made.record(blocks, mode=mode, units=8, plan=plan, limits={"foreign_cores": 0.9})
        entries = [entries[0]] + [entry for entry in entries[1:] if chance.random() < 0.95]
        found = summarise(entries)
        assert found["verdict"]["word"] in analysis.gate.EXIT_CODES
        assert found["verdict"]["reason"]
        json.dumps(found, allow_nan=False)
        step = analysis.next_step(entries)
        assert step.go == (step.reason == "")
        if found["units"]["kept"] < 6:
            assert found["verdict"]["word"] in ("inconclusive", "unfit", "wrong-result", "regression")
