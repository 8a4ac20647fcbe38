"""Writes the stored records of this folder: `python tests/data/records/make.py`; the times in them are made up.

One record for every verdict word, for every kind of void, and a hostile one. Everything comes from a seed.
`make.py NAME …` writes these alone, `make.py --golden` the texts that the pages are compared with; look at what
changed before committing.
"""

import math
import random
import sys
from pathlib import Path

import numpy as np

from harness import accuracy, records

HERE = Path(__file__).parent
VOIDS = ("crash", "exit", "killed", "timeout", "protocol", "time", "memory")

MACHINE = {
    "hostname_hash": "5d41402abc4b",
    "os": "Debian GNU/Linux 12 (bookworm)",
    "kernel": "6.1.0-18-amd64",
    "architecture": "x86_64",
    "cpu": "AMD EPYC 7B13",
    "cores": 2,
    "affinity": [0, 1],
    "memory_bytes": 25_223_634_944,
    "governor": None,
    "container": "docker",
    "load_average": [0.2, 0.3, 0.3],
}


def scenario(name, question, arms, metric, mode, blocks, pairs, **extra):
    """A resolved scenario with every default filled in."""
    inner = {
        "name": name,
        "question": question,
        "expect": extra.get("expect", ""),
        "predict": {"ratio": extra["predict"]} if "predict" in extra else {},
        "workload": extra.get("workload", ["python", "-m", "impl.mapping.arm"]),
        "metric": metric,
        "fingerprint": extra.get("fingerprint", "exact"),
        "direction": extra.get("direction", "lower"),
        "totals_rtol": 1e-12,
        "inputs": [],
        "outputs": [],
        "seed": 1,
        "warmup": 2,
        "cwd": None,
        "stdin": None,
        "setup": None,
        "prepare": None,
        "cleanup": None,
        "shell": False,
        "pin": None,
        "nice": None,
        "page_cache": None,
        "timeout": 600.0,
        "memory_limit": None,
    }
    return {
        "scenario": inner,
        "parameters": extra.get("parameters", {"depth": 4}),
        "arms": arms,
        "schedule": {"mode": mode, "blocks": blocks, "pairs": pairs},
        "gate": {"margin": extra.get("margin", 0.02), "alpha": 0.05, "strict": False, "accept": None},
        "work": {"unit": extra.get("work_unit", "pixel"), "minimum": 1},
        "limits": {"foreign_cores": 0.5},
        "accuracy": extra.get("accuracy", {}),
    }


def environment(kind):
    return {
        "python": "3.11.2",
        "implementation": "CPython",
        "executable": "/opt/venv/bin/python",
        "packages": {"numpy": "2.2.1"},
        "affinity": [0, 1],
        "locale": "C.UTF-8",
        "variables": {"OMP_NUM_THREADS": "1"},
        "revision": {"commit": "8727eed0c1b2a3948576", "dirty": False},
        "libraries": [
            {
                "name": "mapping",
                "path": "/opt/clone/impl/_mapping.so",
                "digest": "9c02" + kind * 7,
                "source_digest": "77aa01",
                "tree_digest": "77aa01",
            }
        ],
        "threads": 1,
    }


class Maker:
    """Builds the entries of one comparison, unit by unit."""

    def __init__(self, name, question, names=("per-frame", "grouped"), mode="resident", blocks=8, pairs=4, **extra):
        self.random = random.Random(name)
        self.extra, self.mode = extra, mode
        self.blocks, self.pairs = blocks, {"resident": pairs, "accuracy": 0}.get(mode, 1)
        self.clock = extra.get("clock", "wall")
        self.commands = extra.get("commands")
        self.parameters = {
            "a": extra.get("parameters_a", {"frames_per_group": 1}),
            "b": extra.get("parameters_b", {"frames_per_group": 4}),
        }
        arms = {}
        for arm, arm_name in zip("ab", names):
            reference = arm_name if self.commands else f"{name}:{arm_name}"
            arms[arm] = {
                "name": arm_name,
                "reference": reference,
                "kind": "command" if self.commands else extra.get(f"kind_{arm}", "arm"),
                "parameters": self.parameters[arm],
                "command": ["python", "-m", "impl.mapping.arm"] if not self.commands else arm_name.split(),
                "cwd": "/opt/clone",
                "environment": {},
                "revision": None,
            }
        metric = extra.get("metric", "cpu_seconds_per_unit")
        document = scenario(
            name,
            question,
            {
                arm_name: {"parameters": self.parameters[arm], "run": {"kind": "arm", "env": {}, "command": None}}
                for arm, arm_name in zip("ab", names)
            },
            metric,
            mode,
            blocks,
            pairs,
            **{key: value for key, value in extra.items() if key != "metric"},
        )
        fixed = extra.get("fixed", True)
        self.entries = [
            records.Comparison(
                run="2026-11-02T101500Z-3fa9",
                created="2026-11-02T10:15:00Z",
                harness_version="0.1.0",
                command=["harness", "ab", arms["a"]["reference"], arms["b"]["reference"], "--blocks", str(blocks)],
                scenario=document,
                arms=arms,
                seed=20261102,
                plan={
                    "mode": mode,
                    "units": blocks,
                    "pairs": self.pairs,
                    "warmup": 2 if mode == "resident" else 0,
                    "fixed": fixed,
                    "cap": 2 * blocks,
                    **extra.get("plan", {}),
                },
                machine=MACHINE,
                revision={"commit": "8727eed0c1b2a3948576", "dirty": extra.get("dirty", False)},
            )
        ]
        self.unit = 0
        self.at = 0.0

    def header(self, arm):
        return {
            "kind": "header",
            "schema": 1,
            "workload": "mapping",
            "arm": self.entries[0].arms[arm]["name"],
            "parameters": {"depth": 4, **self.parameters[arm]},
            "accepts": {"depth": 4, "frames_per_group": 1},
            "inputs": [{"name": "ruby.npz", "bytes": 1_482_113, "digest": "b1946ac92492d2347c6235b4d2611184"}],
            "config_digest": "44136fa355b3678a",
            "clock": self.clock,
            "environment": environment(arm),
        }

    def load(self, foreign, arm=None, position=None, steal=0.02):
        self.entries.append(
            records.Load(
                unit=self.unit,
                method="proc+children",
                elapsed=1.2,
                arm=arm,
                position=position,
                own=0.98,
                foreign=round(foreign, 4),
                kthread=0.01,
                irq=0.0,
                steal=steal,
                unattributed=0.03,
                busy=round(1.02 + foreign, 4),
                psi_cpu=round(min(0.9, 0.05 + foreign / 4), 4),
                top=[
                    {"name": "cc1plus", "pid": 4711, "cores": round(0.8 * foreign, 3)},
                    {"name": "Xorg", "pid": 812, "cores": round(0.1 * foreign, 3)},
                ],
                sampler_seconds=0.011,
            )
        )

    def slot(self, arm, phase, index, seconds, pair=None, position=None, wall=1.06, start=None):
        units = 1000
        cpu = round(seconds * units, 9)
        self.entries.append(
            records.Slot(
                unit=self.unit,
                arm=arm,
                phase=phase,
                index=index,
                at=round(self.at, 6),
                seconds=round(cpu * wall, 9),
                cpu_seconds=cpu,
                pair=pair,
                position=position,
                outside_seconds=round(cpu * wall + 0.0002, 9),
                units=units,
                work=self.extra.get("work", 5213),
                totals={"intensity": 81.25},
                process_seconds=round(cpu * wall + 0.11, 9) if self.mode == "process" else None,
                startup_seconds=start,
                peak_rss_bytes=61_000_000,
                idle_cpu_seconds=0.0 if self.mode == "resident" else None,
            )
        )
        self.at += cpu * wall + 0.001

    def fingerprint(self, arm, when, digest="3f1a9e", work=None, total=81.25):
        self.entries.append(
            records.Fingerprint(
                unit=self.unit,
                arm=arm,
                when=when,
                work=self.extra.get("work", 5213) if work is None else work,
                digests={"keys": "c0ffee", "map": digest},
                totals={"intensity": total},
            )
        )

    def launch(self, arm, order, startup=0.31):
        self.entries.append(
            records.Launch(
                unit=self.unit,
                arm=arm,
                order=order,
                pid=3000 + 2 * self.unit + order,
                at=round(self.at, 6),
                startup_seconds=None if self.commands else startup,
                header=None if self.commands else self.header(arm),
            )
        )

    def block(
        self,
        ratio,
        noise=0.004,
        foreign=0.05,
        base=7.6e-6,
        digests=("3f1a9e", "3f1a9e"),
        work=None,
        totals=None,
        starts=(None, None),
    ):
        """One unit in which B/A is about `ratio`; `starts` are the seconds to the arms' first results."""
        first = self.random.choice("ab")
        base *= math.exp(self.random.gauss(0, 0.01))
        for order, arm in enumerate([first, "ab".replace(first, "")]):
            self.launch(arm, order)
        if self.mode == "resident":
            for arm in "ab":
                self.entries.append(records.Phase(unit=self.unit, arm=arm, name="setup", seconds=0.42, cpu_seconds=0.4))
                for index, slower in enumerate((1.35, 1.06)):
                    self.slot(arm, "warmup", index, base * slower * (ratio if arm == "b" else 1))
                self.fingerprint(arm, "warm", digests["ab".index(arm)], work, (totals or {}).get(arm, 81.25))
        if self.mode == "accuracy":
            for arm in "ab":
                self.slot(arm, "warmup", 0, base)
        for pair in range(self.pairs):
            order = self.random.choice(("ab", "ba"))
            for position, arm in enumerate(order):
                level = base * (ratio if arm == "b" else 1) * math.exp(self.random.gauss(0, noise))
                start = None if pair else starts["ab".index(arm)]
                self.slot(arm, "steady", pair, level, pair, position, start=start)
                if self.mode == "process":
                    self.load(foreign * self.random.uniform(0.5, 1.5), arm, position)
        for arm in "ab":
            self.fingerprint(arm, "end", digests["ab".index(arm)], work, (totals or {}).get(arm, 81.25))
        if self.mode == "resident":
            self.load(foreign)
        self.entries.append(records.Unit(unit=self.unit, state="complete"))
        self.unit += 1
        self.at += 0.5
        return self

    def void(self, arm, reason):
        """One unit in which an arm fails."""
        for order, name in enumerate("ab"):
            self.launch(name, order)
        details = {
            "crash": {
                "message": "the process was ended by SIGSEGV",
                "signal": "SIGSEGV",
                "stderr": "Segmentation fault\n",
            },
            "exit": {
                "message": "the process ended with exit code 3",
                "exit_code": 3,
                "stderr": 'Traceback (most recent call last):\n  File "arm.py", line 9\nValueError: no frame\n',
            },
            "killed": {"message": "the process was ended by SIGKILL", "signal": "SIGKILL"},
            "timeout": {
                "message": "no answer to iterate within 600 s",
                "stacks": 'Thread 0x7f (idle): "MainThread"\n    wait (threading.py:320)\n    iterate (arm.py:88)\n',
            },
            "protocol": {"message": "expected one JSON object, found 'hello'"},
            "time": {"message": "the arm reported 2.0 s, the exchange took 1.2 s"},
            "memory": {"message": "the process tree grew past the limit of 512 MiB", "signal": "SIGKILL"},
        }[reason]
        self.entries.append(records.Void(unit=self.unit, arm=arm, reason=reason, pair=0, **details))
        if self.mode == "resident":
            self.load(0.04)
        self.entries.append(records.Unit(unit=self.unit, state="void"))
        self.unit += 1
        self.at += 1
        return self

    def values(self, a, b):
        """The values of both arms, in the place of the last unit's end."""
        closed = self.entries.pop()
        files = {
            arm: {"path": f"values/{closed.unit}-{arm}.npz", "bytes": 48_213, "digest": f"{arm}1f0", "seconds": 0.0213}
            for arm in "ab"
        }
        self.entries.append(records.Accuracy(unit=closed.unit, reduced=accuracy.reduce(a, b), files=files))
        self.entries.append(closed)
        return self

    def note(self, about, message, **where):
        self.entries.append(records.Note(about=about, message=message, **where))
        return self

    def end(self, state="complete", message=""):
        self.entries.append(records.End(state=state, message=message))
        return self.entries

    def blocks_of(self, ratio, spread=0.003, count=None, **how):
        for _ in range(count or self.blocks):
            self.block(ratio * math.exp(self.random.gauss(0, spread)), **how)
        return self


GROUPING = "Does one native call over several adjacent frames beat one call a frame?"


def improvement():
    maker = Maker("grouping", GROUPING, predict=[0.75, 0.95], expect="fewer records, less time at depth 0")
    maker.blocks_of(0.81, count=5)
    maker.block(0.86, foreign=1.9)
    return maker.blocks_of(0.81, count=3).end()


def compiled():
    """Faster, but later: the first start of all compiles, the others find what it left."""
    maker = Maker("compile", "Does compiling pay?", ("eager", "compiled"), work_unit="jet")
    for start in (80.9, 14.2, 13.9, 14.5, 14.1, 13.8, 14.4, 14.0):
        maker.block(0.5 * math.exp(maker.random.gauss(0, 0.01)), base=8e-5, starts=(1.27, start))
    return maker.end()


def regression():
    return Maker("grouping", GROUPING, predict=[0.75, 0.95]).blocks_of(1.12).end()


def equivalent():
    maker = Maker("aa-mapping", "Does an arm differ from itself?", ("a", "b"), parameters_a={}, parameters_b={})
    return maker.blocks_of(1.0, 0.002).end()


def not_worse():
    return Maker("topology", "Does a bounded edge cache cost anything?", margin=0.02).blocks_of(0.985, 0.012).end()


def slower():
    return Maker("precheck", "Does a check before each call cost anything?").blocks_of(1.02, 0.009).end()


def inconclusive():
    maker = Maker("workers", "Do two workers beat one?", ("one", "two"), work_unit="event")
    return maker.blocks_of(1.02, 0.05, foreign=0.4).end()


def wrong_result():
    maker = Maker("fused", "Is the fused correction faster?", ("separate", "fused"))
    maker.block(0.7, digests=("3f1a9e", "d00d1e"), totals={"b": 63.4})
    maker.unit -= 1
    for _ in range(3):
        for arm, digest, total in (("a", "3f1a9e", 81.25), ("b", "d00d1e", 63.4)):
            maker.fingerprint(arm, "rerun", digest, None, total)
    return maker.end("stopped", "the arms' outputs disagree")


def unfit():
    maker = Maker("grouping", GROUPING)
    for index in range(16):
        maker.block(0.8, foreign=1.5 if index % 2 else 0.1)
    return maker.end("stopped", "16 of 16 units ran and 8 are kept")


def early():
    """Decided at the first of its looks."""
    return Maker("grouping", GROUPING, fixed=False).blocks_of(0.81).end()


def void_regression():
    maker = Maker("grouping", GROUPING)
    for _ in range(6):
        maker.void("b", "crash")
    return maker.blocks_of(0.81).end()


def voids():
    maker = Maker("grouping", GROUPING)
    for index, reason in enumerate(VOIDS):
        maker.void("ab"[index % 2], reason)
    return maker.blocks_of(0.81).note("resumed", "the comparison went on after an interruption", unit=7).end()


def command():
    maker = Maker(
        "command-1f0c22ab",
        "Is 'python new.py' faster than 'python old.py'?",
        ("python old.py --rows 1000", "python new.py --rows 1000"),
        mode="process",
        blocks=10,
        metric="seconds",
        work_unit="",
        fingerprint="none",
        commands=True,
        parameters_a={},
        parameters_b={},
        dirty=True,
    )
    return maker.blocks_of(0.93, 0.02, base=2.2e-4, foreign=0.3).end()


def interrupted():
    maker = Maker("grouping", GROUPING)
    return maker.blocks_of(0.81, count=3).end("interrupted", "stopped by the user")


def one_unit():
    return Maker("grouping", GROUPING, blocks=1, pairs=1).blocks_of(0.81).end()


def nothing():
    maker = Maker("grouping", GROUPING)
    return maker.end("stopped", "the build of revision 8727eed failed: gcc: no such file")


def made_map(shift=0.0, missing=0, exponent=0.0):
    """A map of 2,000 voxels; `shift` in error bars, spread over voxels by a power of their weight."""
    key = np.arange(2000)
    weight = 1 + key % 7
    arrays = {"key": key, "value": 10 + 0.5 * shift * (weight / 7) ** exponent, "variance": np.full(2000, 0.25)}
    arrays |= {"weight": weight * 1.0, "contributors": 4.0 * weight}
    return accuracy.read({name: array[missing:] for name, array in arrays.items()}, "")


def made_model(seed, worse=0.0):
    """Three classes, 400 events; a share `worse` of the events loses its logits."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, 400)
    score = random.normal(0, 1, (400, 3))
    score[np.arange(400), label] += 1.5
    score[random.random(400) < worse] *= 0.0
    arrays = {"score": np.round(score, 4), "label": label, "weight": np.ones(400), "key": np.arange(400), "seed": seed}
    return accuracy.read(arrays, "")


def values_alone(units, make_a, make_b, **extra):
    """A record of harness accuracy."""
    names = extra.pop("names", ("depth-3", "depth-0"))
    maker = Maker("depth", "How deep must a pixel be divided?", names, "accuracy", units, **extra)
    maker.entries[0].command[1] = "accuracy"
    for unit in range(units):
        maker.block(1.0)
        maker.entries = [one for one in maker.entries if not isinstance(one, records.Fingerprint)]
        maker.values(make_a(unit), make_b(unit))
    return maker.end()


def indistinguishable():
    """Two maps at an exposure of their own, a voxel missed, none of the others shifted by half an error bar."""
    return values_alone(
        1, lambda _: made_map(), lambda _: made_map(0.2, missing=1, exponent=2.0), accuracy={"exposure": 64.0}
    )


def different():
    """A worse model, over eight seeds."""
    return values_alone(
        8,
        made_model,
        lambda seed: made_model(seed, worse=0.1),
        names=("float32", "bfloat16"),
        plan={"seeds": 8, "first_seed": 0},
        accuracy={"metric": "accuracy", "tolerance": 0.01, "seeds": 8},
    )


def undecided():
    """Three seeds are not enough."""
    return values_alone(
        3,
        made_model,
        lambda seed: made_model(seed, worse=0.02 * seed),
        names=("float32", "bfloat16"),
        plan={"seeds": 3, "first_seed": 0},
        accuracy={"seeds": 3},
    )


def statistical():
    """Faster, and other values: no improvement."""
    maker = Maker("fused", "Is the fused correction faster?", ("separate", "fused"), fingerprint="statistical")
    maker.block(0.7, digests=("3f1a9e", "d00d1e"))
    return maker.values(made_map(), made_map(1.3)).end("stopped", "outputs are wrong")


def hostile():
    """Names that attack the page, arms of 300 characters, text in many scripts, zero variance."""
    maker = Maker(
        '"><script>alert(1)</script>',
        "Bleibt \x1b[31m\u202e<b>Ä</b> schneller als 日本語 & עברית? | `code` ]]> </style></script><!-- {{ 7*7 }} {% raw %}",  # noqa: E501
        ("<img src=x onerror=alert(1)>|`" + "x" * 270, "🦊" * 150 + "e\u0301" * 75),
        blocks=6,
        pairs=2,
        parameters_a={"<i>key</i>": "<script>alert(2)</script>"},
        parameters_b={"<i>key</i>": "</td></table>\u202eevil"},
        work_unit="</svg><script>alert(3)</script>",
        clock="scripted",
    )
    maker.random.gauss = lambda mean, _: mean
    maker.blocks_of(1.0)
    maker.entries[1].header["environment"]["variables"]["LD_<script>"] = "\x1b[31mred\x1b[0m\x00\n\r"
    maker.void("b", "exit")
    maker.entries[-3].stderr = "\x1b[2J</pre><script>alert(4)</script>\udcff".replace("\udcff", "\ufffd")
    return maker.end("complete", "</title><script>alert(5)</script>")


RECORDS = {
    "improvement": improvement,
    "compiled": compiled,
    "regression": regression,
    "equivalent": equivalent,
    "not-worse": not_worse,
    "slower": slower,
    "inconclusive": inconclusive,
    "wrong-result": wrong_result,
    "unfit": unfit,
    "early": early,
    "void-regression": void_regression,
    "voids": voids,
    "command": command,
    "interrupted": interrupted,
    "one-unit": one_unit,
    "nothing": nothing,
    "hostile": hostile,
    "indistinguishable": indistinguishable,
    "different": different,
    "undecided": undecided,
    "statistical": statistical,
}


def main():
    if "--golden" in sys.argv:
        sys.path.insert(0, str(HERE.parents[1] / "harness"))
        import test_report

        test_report.write_golden()
        return
    for name, make in RECORDS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        (HERE / f"{name}.jsonl").write_bytes(b"".join(records.encode(entry) + b"\n" for entry in make()))


if __name__ == "__main__":
    main()
