"""Times networks, ours and the package's, side by side: `python -m impl.lgatr.bench --help`.

A case is a network with its inputs and one step of it; the arm for harness (arm.py) runs the same cases. Cases run in
one process, interleaved, the order turned round every other round; shown are medians [least, largest] of CPU time a
step, the ratio paired by round with its 95 % interval, and peak memory of the process. For a decision use harness,
which pairs whole processes. With --autocast each case runs in its number type too, and a slower autocast is warned of.
"""

import argparse
import contextlib
import math
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness import stats

NETS = ("lgatr", "slim")
CODES = ("ours", "lgatr")
WORKS = ("net", "linear", "product", "gemm")
AUTOCASTS = ("", "bfloat16", "float16")
DTYPES = ("float32", "float64")
BATCHES = ("dense", "padded", "ragged")


@dataclass(frozen=True)
class Case:
    """What is timed.

    Attributes
    ----------
    work : str              net: a whole network; linear, product: one layer 64 -> 64 or one product of 64 channels
                            a particle; gemm: only the matrix products of the network's linear maps (a limit)
    net : str               lgatr or slim
    code : str              ours, or the package lgatr
    implementation : str    of ours: paired, dense, sparse, mixed
    sparse_linear, sparse_gp : bool    of the package and of mixed
    native : bool           ours: whether C kernels may be used
    gradient : bool         forward and backward, or forward alone without recording
    jets, particles : int   sets and their (mean) size
    batch : str             dense: all alike; padded, ragged: sizes from half to one and a half of particles, as a mask
                            or one behind the other
    blocks, mv, s, heads : int
    dtype, autocast : str   number type of weights; type of an autocast region, empty: none
    naive_amp, compile : bool
    threads, seed : int
    """

    work: str = "net"
    net: str = "lgatr"
    code: str = "ours"
    implementation: str = "paired"
    sparse_linear: bool = False
    sparse_gp: bool = True
    native: bool = True
    gradient: bool = True
    jets: int = 16
    particles: int = 40
    batch: str = "dense"
    blocks: int = 1
    mv: int = 16
    s: int = 32
    heads: int = 8
    dtype: str = "float32"
    autocast: str = ""
    naive_amp: bool = False
    compile: bool = False
    threads: int = 1
    seed: int = 1


def resident() -> tuple[int, int]:
    """Resident memory of this process in bytes, now and at most since `forget_peak`; (0, 0) without /proc."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        now, peak = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        return 0, 0
    return now, peak


def forget_peak() -> None:
    """Let the peak of `resident` begin anew; without /proc nothing happens."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def check(case: Case) -> tuple[str, str, str] | None:
    """(name, expected, found) of the first field that cannot be, None when all can."""
    implementations = ("paired", "dense", "sparse", "mixed")
    for name, allowed in (("work", WORKS), ("net", NETS), ("code", CODES), ("implementation", implementations),
                          ("dtype", DTYPES), ("autocast", AUTOCASTS), ("batch", BATCHES)):  # fmt: skip
        if getattr(case, name) not in allowed:
            return name, "one of " + ", ".join(word or "''" for word in allowed), repr(getattr(case, name))
    for name, least in (("jets", 1), ("particles", 2), ("blocks", 0), ("mv", 1), ("s", 1), ("heads", 1), ("threads", 1),
                        ("seed", 0)):  # fmt: skip
        if getattr(case, name) < least:
            return name, f"a whole number of at least {least}", str(getattr(case, name))
    if case.code == "lgatr" and case.batch == "ragged":
        return "batch ragged", "code ours", "lgatr, which has no ragged attention on the CPU"
    if case.work in ("linear", "product") and case.net == "slim":
        return f"work {case.work}", "net lgatr", "slim"
    return None


class Job:
    """A case made ready: `step` does it once, `outputs` are those of the last step."""

    def __init__(self, case: Case):
        import torch

        import impl.lgatr as ours
        from impl.lgatr import native

        torch.set_num_threads(case.threads)
        self.case, self.torch, self.native = case, torch, native
        self.dtype = getattr(torch, case.dtype)
        generator = torch.Generator().manual_seed(case.seed)
        self.lengths = [case.particles] * case.jets
        if case.batch != "dense":
            low, high = (case.particles + 1) // 2, case.particles + case.particles // 2
            self.lengths = torch.randint(low, high + 1, (case.jets,), generator=generator).tolist()
        self.particles = sum(self.lengths)
        self.mask, self.kwargs = None, {}
        torch.manual_seed(case.seed)
        {"net": self._net, "linear": self._layer, "product": self._layer, "gemm": self._gemm}[case.work](
            generator, ours
        )
        self.outputs: list = []

    def _draw(self, generator, *shape):
        return self.torch.randn(*shape, generator=generator, dtype=self.torch.float64).to(self.dtype)

    def _ours(self, ours):
        """The network of this case in our code, float64 and from the seed, whoever's network is timed."""
        case = self.case
        common = {"naive_amp": case.naive_amp}
        if case.net == "slim":
            self.sizes = {
                "num_blocks": case.blocks, "in_v_channels": 1, "out_v_channels": 1, "hidden_v_channels": case.mv,
                "in_s_channels": 7, "out_s_channels": 1, "hidden_s_channels": case.s, "num_heads": case.heads,
            }  # fmt: skip
            return ours.LGATrSlim(**self.sizes, **common)
        self.sizes = {
            "num_blocks": case.blocks, "in_mv_channels": 1, "out_mv_channels": 1, "hidden_mv_channels": case.mv,
            "in_s_channels": 7, "out_s_channels": 1, "hidden_s_channels": case.s,
            "attention": {"num_heads": case.heads}, "mlp": {},
        }  # fmt: skip
        return ours.LGATr(**self.sizes, primitives=self._primitives(), **common)

    def _primitives(self):
        case = self.case
        if case.code == "lgatr":
            return {"sparse_linear": case.sparse_linear, "sparse_gp": case.sparse_gp}
        if case.implementation == "mixed":
            return {"implementation": "mixed", "sparse_linear": case.sparse_linear, "sparse_gp": case.sparse_gp}
        return {"implementation": case.implementation}

    def _net(self, generator, ours):
        torch, case = self.torch, self.case
        net = self._ours(ours)
        if case.code == "lgatr":
            import lgatr

            weights = net.state_dict()
            if case.net == "slim":
                net = lgatr.LGATrSlim(**self.sizes, naive_amp=case.naive_amp)
            else:
                net = lgatr.LGATr(**self.sizes, primitives=self._primitives(), naive_amp=case.naive_amp)
            net.load_state_dict(weights)
        self.net = net.to(self.dtype)
        size = 4 if case.net == "slim" else 16
        mv = self._draw(generator, self.particles, 1, size)
        s = self._draw(generator, self.particles, 7)
        if case.batch == "ragged":
            self.kwargs = {"lengths": tuple(self.lengths)}
        else:
            from impl.lgatr import embed

            (mv, mask), (s, _) = embed.pad(self.lengths, mv), embed.pad(self.lengths, s)
            if case.batch == "padded":
                self.mask, self.kwargs = mask, {"attn_mask": embed.attention_mask(mask)}
        self.mv, self.s = mv.requires_grad_(case.gradient), s
        self.call = self.net
        if case.compile:
            self.call = torch.compile(self.net)

        def forward():
            return [out for out in self.call(self.mv, self.s, **self.kwargs) if out is not None]

        self.forward, self.leaves = forward, [self.mv]

    def _layer(self, generator, ours):
        from impl.lgatr import primitives, rows

        case, n, c = self.case, self.particles, 64
        config = primitives.PrimitivesConfig(**self._primitives()) if case.code == "ours" else None
        self.net = None
        x, y = (self._draw(generator, n, c, 16) for _ in range(2))
        weight = self._draw(generator, c, c, 10) / c
        if case.code == "lgatr":
            import lgatr
            from lgatr.primitives import equi_linear, geometric_product

            config = lgatr.PrimitivesConfig(**self._primitives())
            linear, product = (
                (lambda: equi_linear(x, weight, config=config)),
                (lambda: geometric_product(x, y, config=config)),
            )
        elif config.paired:  # on its own layout, as inside a network
            kernels = self.native if case.native and self.native.usable(x) else None
            shape = rows.LinearShape(c, 0, c, 0, True, False)
            x, y = rows.pack(x, None), rows.pack(y, None)
            if kernels:
                linear = lambda: kernels.linear(x, kernels.pack_weight([weight], shape), shape)  # noqa: E731
                product = lambda: kernels.product(x, y, c, None)  # noqa: E731
            else:
                linear = lambda: rows.linear(x, rows.pack_weight([weight], shape), shape)  # noqa: E731
                product = lambda: rows.product(x, y, c, None)  # noqa: E731
        else:
            linear = lambda: primitives.equi_linear(x, weight, config)  # noqa: E731
            product = lambda: primitives.geometric_product(x, y, config)  # noqa: E731
        self.leaves = [x, weight] if case.work == "linear" else [x, y]
        for leaf in self.leaves:
            leaf.requires_grad_(case.gradient)
        call = linear if case.work == "linear" else product
        if case.compile:
            call = self.torch.compile(call)
        self.forward = lambda: [call()]

    def _gemm(self, generator, ours):
        """The products of all linear maps of the network on matrices of their sizes; with gradient dX and dW too."""
        torch, case, n = self.torch, self.case, self.particles
        net = self._ours(ours)
        sizes = []
        for module in net.modules():
            if hasattr(module, "shape") and case.net == "lgatr":
                z, v, _ = module.shape.matrices
                sizes += [(n, *z), (4 * n, *v), (3 * n, *v)]
            elif type(module).__name__ == "SlimLinear":
                sizes.append((4 * n, module.weight_v.shape[1], module.weight_v.shape[0]))
                if module.linear_s is not None:
                    sizes.append((n, module.linear_s.in_features, module.linear_s.out_features))
        self.net, self.leaves = None, []
        products = []
        for m, k, o in sizes:
            x, w, out = self._draw(generator, m, k), self._draw(generator, k, o), torch.empty(m, o, dtype=self.dtype)
            products.append((x, w, out))
            if case.gradient:
                dy = self._draw(generator, m, o)
                products.append((dy, w.T, torch.empty_like(x)))
                products.append((x.T, dy, torch.empty_like(w)))

        def forward():
            for a, b, out in products:
                torch.mm(a, b, out=out)
            return [products[-1][2]]

        self.forward = forward

    def step(self) -> None:
        torch, case = self.torch, self.case
        with contextlib.ExitStack() as stack:
            if not case.native:
                stack.enter_context(self.native.disabled())
            if case.work == "gemm":
                self.outputs = self.forward()
                return
            if not case.gradient:
                stack.enter_context(torch.no_grad())
            if case.autocast:
                stack.enter_context(torch.autocast("cpu", dtype=getattr(torch, case.autocast)))
            for leaf in (*self.leaves, *(self.net.parameters() if self.net is not None else ())):
                leaf.grad = None
            self.outputs = self.forward()
            if case.gradient:
                loss = sum(self._kept(out).float().square().sum() for out in self.outputs)
        if case.gradient:
            with contextlib.nullcontext() if case.native else self.native.disabled():
                loss.backward()

    def _kept(self, out):
        """The outputs of particles, without those of padding."""
        return out if self.mask is None else out[self.mask]

    def totals(self) -> dict[str, float]:
        """Sums that two ways to do the same work must agree on: squares of outputs and of gradients."""
        if self.case.work == "gemm":
            return {}
        kept = [self._kept(out.detach()).double() for out in self.outputs]
        found = {f"output{i}": float(out.square().sum()) for i, out in enumerate(kept)}
        if self.case.gradient:
            found["gradient"] = sum(float(leaf.grad.double().square().sum()) for leaf in self.leaves)
            if self.net is not None:
                grads = [p.grad for p in self.net.parameters() if p.grad is not None]
                found["parameters"] = sum(float(grad.double().square().sum()) for grad in grads)
        return found


# ---------------------------------------------------------------------------------------------------- command line


def _cases(base: Case) -> dict[str, Case]:
    peer = replace(base, code="lgatr")
    found = {"paired": replace(base, implementation="paired")}
    if base.net == "slim":
        found["torch"] = replace(base, native=False)
        found["lgatr"] = peer
        return found
    found["paired-torch"] = replace(base, implementation="paired", native=False)
    found |= {name: replace(base, implementation=name) for name in ("dense", "sparse")}
    for linear in (False, True):
        for product in (False, True):
            found[f"lgatr-{'sd'[not linear]}{'sd'[not product]}"] = replace(
                peer, sparse_linear=linear, sparse_gp=product
            )
    found["gemm"] = replace(base, work="gemm")
    return found


def _compiled_cases(base: Case) -> dict[str, Case]:
    """Compiled ones, minutes each without a cache: run only where they are named."""
    sparse = replace(base, implementation="sparse", compile=True)
    return {
        "compiled": sparse if base.net == "lgatr" else replace(base, compile=True),
        "lgatr-compiled": replace(base, code="lgatr", sparse_linear=True, sparse_gp=True, compile=True),
    }


def measure(jobs: dict[str, Job], rounds: int, say=lambda text: None) -> dict[str, list[float]]:
    """CPU milliseconds of each step, jobs interleaved; two rounds before are not counted."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 2):
        order = list(jobs) if turn % 2 else list(reversed(jobs))
        for name in order:
            start = time.process_time()
            jobs[name].step()
            if turn >= 2:
                times[name].append((time.process_time() - start) * 1e3)
        say(f"round {turn + 1} of {rounds + 2}")
    return times


def steps_to_pay(first: dict[str, float], times: dict[str, list[float]], cases: dict[str, Case]) -> list[str]:
    """A sentence for every compiled case: after how many steps its first one is paid for, against its code eager."""
    found = []
    for name, case in cases.items():
        eager = [other for other, given in cases.items() if given.code == case.code and not given.compile]
        if not case.compile or not eager:
            continue
        best = min(eager, key=lambda other: statistics.median(times[other]))
        gain = (statistics.median(times[best]) - statistics.median(times[name])) / 1e3
        wait = first[name] - first[best]
        after = f"after {math.ceil(max(wait, 0) / gain)} steps" if gain > 0 else "never, for its steps take longer"
        found.append(f"{name}: first step {first[name]:.1f} s; compiling pays against {best} {after}")
    return found


def paired_ratio(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """B/A over rounds: the Hodges-Lehmann estimate and its exact 95 % interval, infinite below 6 rounds."""
    d = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    low, high = stats.signed_rank_interval(d, 0.95)
    with contextlib.suppress(OverflowError):
        return math.exp(stats.hodges_lehmann(d)), math.exp(low), math.exp(high)
    return math.exp(stats.hodges_lehmann(d)), 0.0, math.inf


def slower_autocasts(times: dict[str, list[float]], cases: dict[str, Case]) -> list[str]:
    """A sentence for every case under autocast that takes longer than the same case without it."""
    found = []
    for name, case in cases.items():
        plain = next((other for other, given in cases.items() if given == replace(case, autocast="")), None)
        if not case.autocast or plain is None:
            continue
        ratio, low, _ = paired_ratio(times[plain], times[name])
        if low > 1:
            found.append(
                f"{name}: {case.autocast} takes {ratio:.2f} times {case.dtype} on this machine; leave autocast out"
            )
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.lgatr.bench", description=__doc__.split("\n")[0])
    defaults = asdict(Case())
    for name, value in defaults.items():
        if name in ("code", "implementation", "native", "work", "sparse_linear", "sparse_gp"):
            continue  # these are what the cases differ in
        if isinstance(value, bool):
            parser.add_argument("--" + name.replace("_", "-"), action=argparse.BooleanOptionalAction, default=value)
        else:
            parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--case", action="append", help="cases to run, all that need no compiler by default")
    parser.add_argument("--rounds", type=int, default=7)
    options = vars(parser.parse_args(argv))
    chosen, rounds = options.pop("case"), options.pop("rounds")
    base = Case(**options)
    fault = check(base)
    if fault:
        parser.error("{}: expected {}, found {}".format(*fault))
    cases = _cases(base)
    chosen = chosen or list(cases)
    cases |= _compiled_cases(base)
    unknown = [name for name in chosen if name not in cases]
    if unknown:
        parser.error(f"--case: expected one of {', '.join(cases)}, found '{unknown[0]}'")
    cases = {name: cases[name] for name in chosen if not check(cases[name])}
    if base.autocast:  # the gemm has no autocast region
        cases = {name: case for name, case in cases.items() if case.work != "gemm"}
        cases |= {f"{name} {case.dtype}": replace(case, autocast="") for name, case in cases.items()}
    jobs = {}
    for name in cases:
        try:
            jobs[name] = Job(cases[name])
        except ImportError as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    first_steps = {}
    for name, job in jobs.items():
        start = time.perf_counter()
        job.step()
        first_steps[name] = time.perf_counter() - start
    times = measure(jobs, rounds, lambda text: print(text, file=sys.stderr))
    first = next(iter(times))
    wide = max(14, *map(len, times))
    print(f"{'case':{wide}s} {'CPU ms':>9s} {'[least, largest]':>22s}  ratio to {first} [95 %]")
    for name, values in times.items():
        span = f"[{min(values):.2f}, {max(values):.2f}]"
        ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*paired_ratio(times[first], values))
        print(f"{name:{wide}s} {statistics.median(values):9.2f} {span:>22s}  {ratio}")
    run = {name: cases[name] for name in times}
    for sentence in (*slower_autocasts(times, run), *steps_to_pay(first_steps, times, run)):
        print(sentence)
    print(f"peak_rss_bytes {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
