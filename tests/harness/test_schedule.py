"""schedule: coins are fair, recorded by a seed and blind to what happened; a comparison ends when it should."""

import numpy as np
import pytest

from harness import schedule
from harness.schedule import Step, Tally

GOLDEN_PAIRS = ["AB", "BA", "BA", "BA", "BA", "AB", "AB", "AB"]
GOLDEN_BLOCK = ("BA", "BA BA BA AB AB AB")


def tally(**counts):
    base = dict.fromkeys(("run", "kept", "wrong", "set_aside", "void", "voids_a", "voids_b"), 0)
    return Tally(**({"planned": 8, "cap": 16} | base | counts))


def test_order_is_the_seeds():
    assert [schedule.plan_unit(7, unit, "process", 1).pairs[0] for unit in range(8)] == GOLDEN_PAIRS
    plan = schedule.plan_unit(7, 3, "resident", 6)
    assert (plan.launch, " ".join(plan.pairs)) == GOLDEN_BLOCK
    assert plan.cores == ()


def test_a_units_coins_do_not_depend_on_any_other_unit():
    later = [schedule.plan_unit(5, unit, "duet", 4) for unit in (9, 3, 12)]
    assert later == [schedule.plan_unit(5, unit, "duet", 4) for unit in (9, 3, 12)]
    more = schedule.plan_unit(5, 3, "duet", 40)
    assert more.pairs[:4] == later[1].pairs
    assert more.cores[:4] == later[1].cores


def test_coins_are_fair_and_independent_of_one_another():
    plans = [schedule.plan_unit(seed, unit, "duet", 4) for seed in range(200) for unit in range(10)]
    coins = np.array([[one == "AB" for one in (plan.launch, *plan.pairs, *plan.cores)] for plan in plans], float)
    share = coins.mean(axis=0)
    assert np.all(np.abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(plans)))
    between = np.corrcoef(coins.T)
    np.fill_diagonal(between, 0)
    assert np.all(np.abs(between) < 4.5 / np.sqrt(len(plans)))
    in_a_row = np.array([coins[i, 0] == coins[i + 1, 0] for i in range(len(plans) - 1)])
    assert abs(in_a_row.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(plans))


def test_in_process_mode_a_unit_is_one_pair_and_its_launch_is_the_pairs_order():
    for unit in range(20):
        plan = schedule.plan_unit(1, unit, "process", 10)
        assert plan.pairs == (plan.launch,)


@pytest.mark.parametrize(("mode", "unit", "pairs"), [("duel", 0, 1), ("resident", -1, 1), ("resident", 0, 0)])
def test_nonsense_is_refused(mode, unit, pairs):
    with pytest.raises(ValueError, match="expected"):
        schedule.plan_unit(1, unit, mode, pairs)


@pytest.mark.parametrize(
    ("counts", "step"),
    [
        ({}, Step(True)),
        ({"run": 8, "kept": 7, "void": 1, "voids_b": 1}, Step(True)),
        ({"run": 9, "kept": 8, "void": 1, "voids_b": 1}, Step(False, "complete")),
        ({"run": 15, "kept": 6, "set_aside": 9}, Step(True)),
        ({"run": 16, "kept": 7, "set_aside": 9}, Step(False, "cap")),
        ({"run": 8, "kept": 7, "wrong": 1}, Step(False, "complete")),
        ({"run": 4, "void": 4, "voids_b": 4}, Step(True)),
        ({"run": 5, "void": 5, "voids_b": 5}, Step(False, "voids")),
        ({"run": 5, "void": 5, "voids_a": 5}, Step(False, "voids")),
        ({"run": 7, "void": 7, "voids_a": 1, "voids_b": 6}, Step(True)),
    ],
)
def test_a_void_or_set_aside_unit_is_replaced_until_the_cap(counts, step):
    assert schedule.next_step(tally(**counts), 0.05) == step


def test_five_voids_in_one_arm_and_none_in_the_other_decide():
    assert not schedule.voids_decide(4, 0, 0.05)
    assert schedule.voids_decide(5, 0, 0.05)
    assert not schedule.voids_decide(5, 1, 0.05)
    assert not schedule.voids_decide(0, 0, 0.05)
    assert not schedule.voids_decide(6, 0, 0.01)
    assert schedule.voids_decide(7, 0, 0.01)
