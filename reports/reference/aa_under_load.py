"""Does the harness raise false alarms, and find +5 %, while another process burns both cores in bursts?

`python reports/reference/aa_under_load.py` runs 60 comparisons of a loop with itself and 30 with 5 % more work, each
resident, in CPU time, of 12 blocks; one line a comparison is appended to aa-under-load.jsonl beside this file, and a
second start goes on where the first one ended. `--show` prints what the file says. The burning processes are this
program's own children, so `foreign` in the file is only what others used beside them.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("aa-under-load.jsonl")
PLAN = [("same", 0.0)] * 60 + [("slower", 0.05)] * 30
STEPS, BLOCKS, PAIRS, MARGIN = 85_000, 12, 5, 0.02


def burn(seed: int) -> None:
    """Bursts of full load and rests, exponential with a mean of 2 s each."""
    chance = random.Random(seed)
    while os.getppid() != 1:
        end = time.monotonic() + chance.expovariate(0.5)
        while time.monotonic() < end:
            pass
        time.sleep(chance.expovariate(0.5))


@contextlib.contextmanager
def bursts():
    """One burning process a core."""
    processes = [multiprocessing.Process(target=burn, args=(seed,), daemon=True) for seed in range(os.cpu_count())]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def measure(slowdown: float, seed: int) -> dict:
    """One comparison; verdict, interval and load."""
    from harness import analysis, arms, comparison, records, scenario

    data = {
        "scenario": {
            "name": "aa-under-load",
            "question": "Is there a difference?",
            "workload": [sys.executable, "-m", "impl.loop.arm"],
            "metric": "cpu_seconds",
        },
        "parameters": {"steps": STEPS},
        "arms": {"a": {}, "b": {"slowdown": slowdown}},
        "schedule": {"blocks": BLOCKS, "pairs": PAIRS, "warmup": 1, "seed": seed},
        "gate": {"margin": MARGIN},
        "work": {"unit": "step", "minimum": 1},
    }
    resolved = arms.from_scenario(scenario.parse(data, "aa-under-load"), "a", "b", ROOT)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=ROOT / ".harness") as folder:
        path = comparison.measure(resolved, command=["aa-under-load"], reports=Path(folder), quiet=True)
        summary = analysis.summarise(records.read(path))
    wall = summary["clocks"]["wall"]
    return {
        "word": summary["verdict"]["word"],
        "ratio": summary["ratio"],
        "alarm": not summary["ratio"]["low"] <= 1 <= summary["ratio"]["high"],
        "wall": {key: wall[key] for key in ("estimate", "low", "high", "word")},
        "foreign": summary["foreign"]["median_cores"],
        "blocks": summary["units"]["kept"],
        "seconds": round(time.monotonic() - begin, 1),
    }


def done() -> list[dict]:
    """The comparisons that the file holds."""
    if not RECORD.exists():
        return []
    return [json.loads(line) for line in RECORD.read_text().splitlines() if line.endswith("}")]


def show(found: list[dict]) -> None:
    """Rates with exact bounds."""
    from harness.stats import share_interval

    for name, _ in dict.fromkeys(PLAN):
        rows = [row for row in found if row["name"] == name]
        if not rows:
            continue
        alarms = sum(row["alarm"] for row in rows)
        low, high = share_interval(alarms, len(rows))
        words = {word: sum(row["word"] == word for row in rows) for word in sorted({row["word"] for row in rows})}
        foreign = sorted(row["foreign"] for row in rows)[len(rows) // 2]
        print(
            f"{name}: {alarms} of {len(rows)} intervals exclude 1 (95 % bounds {low:.3f} to {high:.3f}); "
            f"verdicts {words}; {foreign:.2f} foreign cores in the median"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print what was found so far")
    options = parser.parse_args()
    found = done()
    if not options.show:
        (ROOT / ".harness").mkdir(exist_ok=True)
        with bursts(), RECORD.open("a") as file:
            for number, (name, slowdown) in list(enumerate(PLAN))[len(found) :]:
                row = {"number": number, "name": name, **measure(slowdown, seed=1000 + number)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{number + 1} of {len(PLAN)}: {name}: {row['word']}", file=sys.stderr)
        found = done()
    show(found)
