"""Does the harness see a planted slowdown here, and see none where there is none?"""

import dataclasses
import sys
from pathlib import Path

from harness import analysis, arms, comparison, records, scenario
from harness.arms import Resolved

#: what is planted, and the margin that it must break
SLOWDOWN, MARGIN = 0.10, 0.05


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One of the two comparisons: what was planted, which verdicts are right, and which was found."""

    planted: float
    expected: tuple[str, ...]
    word: str
    reason: str
    folder: Path

    @property
    def passed(self) -> bool:
        return self.word in self.expected


def run(reports: Path, *, blocks: int, pairs: int, seed: int | None, quiet: bool) -> list[Outcome]:
    """Compare the pure-Python loop with itself plus 10 %, then with itself, both in CPU time."""
    outcomes = []
    for planted, expected in ((SLOWDOWN, ("regression",)), (0.0, ("equivalent",))):
        resolved = _resolved(planted, blocks, pairs, seed, reports)
        folder = comparison.measure(resolved, command=["selftest"], reports=reports, quiet=quiet)
        verdict = analysis.summarise(records.read(folder))["verdict"]
        outcomes.append(Outcome(planted, expected, verdict["word"], verdict["reason"], folder))
    return outcomes


def _resolved(planted: float, blocks: int, pairs: int, seed: int | None, reports: Path) -> Resolved:
    data = {
        "scenario": {
            "name": "selftest-slower" if planted else "selftest-same",
            "question": f"Is a slowdown of {planted:.0%} seen here?" if planted else "Is no difference seen as none?",
            "workload": [sys.executable, "-m", "impl.loop.arm"],
            "metric": "cpu_seconds_per_unit",
        },
        "parameters": {"steps": 100_000},
        "arms": {"plain": {}, "planted": {"slowdown": planted}},
        "schedule": {"blocks": blocks, "pairs": pairs} | ({"seed": seed} if seed is not None else {}),
        "gate": {"margin": MARGIN},
        "work": {"unit": "step", "minimum": 1},
    }
    return arms.from_scenario(scenario.parse(data, "selftest"), "plain", "planted", reports.parent)
