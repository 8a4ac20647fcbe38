"""How do time and memory of L-GATr per particle grow with particles, jets, channels and blocks, beside the package?

`python reports/reference/lgatr_scaling.py` times a step (forward and backward, float32, one thread) of our network and
of the package `lgatr` in its fastest setting without compilation, along four axes around 16 jets of 40 particles, 16
multivector and 32 scalar channels, one block. Each point is a process of its own and one line of lgatr-scaling.jsonl
beside this file; a second start goes on where the first one ended. Shown is the least CPU time of the steps, and by how
much the step raised the process's peak resident memory above what it had before. `--show` draws lgatr-scaling.svg and
prints the table from the file alone.
"""

from pathlib import Path

from scaling import Scaling, clock, machine, rise

RECORD = Path(__file__).with_name("lgatr-scaling.jsonl")
#: what is varied -> its values; `mv` also sets the scalar channels, twice as many
AXES = {
    "particles": (5, 10, 20, 40, 80, 160),
    "jets": (1, 4, 16, 64),
    "mv": (4, 8, 16, 32),
    "blocks": (1, 2, 4, 8),
}
WORDS = {"particles": "particles a jet", "jets": "jets a batch", "mv": "multivector channels", "blocks": "blocks"}
BASE = {"particles": 40, "jets": 16, "mv": 16, "blocks": 1}
CODES = {"ours": {}, "lgatr": {"code": "lgatr", "sparse_linear": True, "sparse_gp": False}}
#: glibc gives large blocks back and gets them page by page again otherwise, which costs both, the package more
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "67108864",
}
LEAST, MOST, SECONDS = 5, 200, 1.0


def point(case: dict) -> dict:
    """Time and memory of one case, in this process."""
    from impl.lgatr import bench

    small = {"particles": 2, "jets": 1, "mv": 2, "s": 2, "heads": 1, "blocks": 1}
    bench.Job(bench.Case(**(case | small))).step()  # what the libraries take once is no part of the step
    job = bench.Job(bench.Case(**case))
    memory = rise(job.step)
    return {"tokens": job.particles, **clock(job.step, SECONDS, LEAST, MOST), "bytes": memory, **machine()}


def plan() -> list[tuple[str, int, str]]:
    return [(axis, value, code) for axis, values in AXES.items() for value in values for code in CODES]


def case_of(axis: str, value: int, code: str) -> dict:
    sizes = BASE | {axis: value}
    return sizes | {"s": 2 * sizes["mv"], "heads": min(8, sizes["mv"])} | CODES[code]


def show(lines: list[dict]) -> None:
    """The figure, and a table in Markdown."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(2, len(AXES), sharex="col", squeeze=False)
    print("| axis | value | ours, µs a token | lgatr | ratio | ours, kB a token | lgatr | ratio |\n"
          "|---|---|---|---|---|---|---|---|")  # fmt: skip
    for column, (axis, values) in enumerate(AXES.items()):
        found = {code: {line["value"]: line for line in lines if line["axis"] == axis and line["code"] == code}
                 for code in CODES}  # fmt: skip
        for row, (name, scale) in enumerate((("seconds", 1e6), ("bytes", 1e-3))):
            axes = panels[row][column]
            for code, of in found.items():
                known = [value for value in values if value in of]
                axes.plot(known, [scale * of[v][name] / of[v]["tokens"] for v in known], marker="o", label=code)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(values, [str(value) for value in values])
            axes.minorticks_off()
        panels[1][column].set_xlabel(WORDS[axis])
        for value in values:
            one, two = (found[code].get(value) for code in CODES)
            if one and two:
                cells = []
                for name, scale in (("seconds", 1e6), ("bytes", 1e-3)):
                    a, b = (scale * line[name] / line["tokens"] for line in (one, two))
                    cells += [f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}"]
                print(f"| {WORDS[axis]} | {value} | " + " | ".join(cells) + " |")
    panels[0][0].set_ylabel("CPU µs a token")
    panels[1][0].set_ylabel("peak memory, kB a token")
    panels[0][0].legend()
    figure.suptitle("L-GATr, forward and backward, float32, one thread")
    figure.savefig(RECORD.with_suffix(".svg"), metadata={"Date": None})


def words(line: dict) -> str:
    return f"{1e6 * line['seconds'] / line['tokens']:.1f} µs, {line['bytes'] / line['tokens'] / 1e3:.1f} kB"


SCALING = Scaling(__file__, RECORD, plan(), case_of, point, words, show, ENVIRONMENT)

if __name__ == "__main__":
    raise SystemExit(SCALING.main(__doc__))
