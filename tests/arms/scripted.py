"""An arm that plays given times and, on request, every fault an arm can have; the clock never decides a test.

`python tests/arms/scripted.py --set does='"hang"' --set at=2` hangs in its third iteration, warm-up included.

does          what happens at iteration `at`, and at every `every`th after it
------------  ---------------------------------------------------------------------------------------------
work          nothing unusual (all of it: seconds, noise, level, first)
nothing       no work is done and no output made, in a fifth of the time
wrong         one digest differs
off           the keys' digest is right, the total is off by the share `by`
hang          never answers, in two threads
junk          a line on the protocol's stream that is no JSON
half          half a line, then the stream is closed and the process ends
exit          ends with exit code 3 and a sentence
crash         ends by SIGABRT
kill          ends by SIGKILL
close-pipe    closes the protocol's stream and runs on
quit          ends with exit code 0 without an answer
talk          answers twice
ignore-close  answers everything but `close`, and ignores SIGTERM
leave         leaves a daemon of a session and environment of its own behind
fork          works in `workers` forked processes that burn `burn` CPU seconds each
lie           says `seconds` by a clock that it claims to be the wall's
error         says that its input is wrong (in the header's place)
memory        takes memory until it gets none

writes        what `values` gives, of `rows` keys
------------  ---------------------------------------------------------------------------------------------
none          nothing: the arm cannot
map           values 10 with variance 4 and 25 contributors, alternately up and down by `shift` error bars
model         log odds of two classes, drawn from `seed`; those of a share `shift` are turned round
broken        a map without weights
other         a model that says another seed than it was given
missing       a map without a share `shift` of its keys
"""

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from harness import worker

PIPE = os.dup(1)
FAULTS = "work nothing wrong off hang junk half exit crash kill close-pipe quit talk ignore-close leave fork lie error"


def burn(seconds):
    """Use CPU."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


def take_number(path):
    """0, 1, 2 … from a file that all launches of a test share; 0 without one."""
    if not path:
        return 0
    with open(path, "ab") as file:
        file.write(b".")
        return file.tell() - 1


class Scripted(worker.Workload):
    """Says the seconds that it is given.

    Parameters
    ----------
    seconds : float    what an iteration took, by its own word
    noise : float      standard deviation of the logarithm of an iteration's time
    level : float      the same of a constant of the whole launch
    first : float, s   comes on top of every first slot of a pair, as counted in `state`, by both arms
    slow_share : float share of the launches that fall into a slow mode
    slow_by : float    by how much that mode is slower
    state : str        a file that counts launches, and with `.slots` behind it steady iterations
    launch : int       the fault happens in this launch only (counted by `state`); -1: in every one
    """

    name = "scripted"
    accepts = {
        "does": "work",
        "at": 0,
        "every": 1,
        "launch": -1,
        "seconds": 0.01,
        "noise": 0.0,
        "level": 0.0,
        "first": 0.0,
        "slow_share": 0.0,
        "slow_by": 0.15,
        "seed": 0,
        "state": "",
        "rows": 1000,
        "by": 0.22,
        "workers": 2,
        "burn": 0.0,
        "writes": "none",
        "shift": 0.0,
        "holds": 0,
    }

    def __init__(self, parameters):
        super().__init__(parameters)
        worker.choice("does", parameters["does"], [*FAULTS.split(), "memory"])
        if parameters["does"] == "error":
            raise worker.Fault("rows", "at least 1", "0", "try 1000")
        self.number = take_number(parameters["state"])
        self.random = random.Random(f"{parameters['seed']}-{self.number}")
        self.constant = self.random.gauss(0, parameters["level"])
        in_slow_mode = parameters["slow_share"] and self.random.random() < parameters["slow_share"]
        self.slow = 1 + parameters["slow_by"] if in_slow_mode else 1.0
        self.count = 0
        self.bad = False
        self.opened = False
        self.held = b"x" * parameters["holds"]  # touched memory, for a comparison that looks at it

    @property
    def clock(self):
        """A liar claims the wall's clock in its header, and states its times all the same."""
        return "wall" if self.parameters["does"] == "lie" and not self.opened else "scripted"

    def setup(self):
        self.opened = True
        if self.parameters["does"] == "ignore-close":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.parameters["does"] == "fork":
            self.pool = multiprocessing.get_context("fork").Pool(self.parameters["workers"])

    def faulty(self):
        given = self.parameters
        if given["launch"] not in (-1, self.number):
            return False
        since = self.count - given["at"]
        return since >= 0 and since % given["every"] == 0

    def iterate(self):
        given = self.parameters
        self.bad = self.faulty()
        self.count += 1
        seconds = (
            given["seconds"] * self.slow * 2.718281828459045 ** (self.constant + self.random.gauss(0, given["noise"]))
        )
        if given["first"] and take_number(given["state"] + ".slots") % 2 == 0:
            seconds += given["first"]
        done = given["rows"]
        if self.bad:
            getattr(self, "do_" + given["does"].replace("-", "_"))()
            if given["does"] == "nothing":
                done, seconds = 0, seconds / 5
        return {"seconds": seconds, "cpu_seconds": seconds, "units": given["rows"], "work": done}

    def fingerprint(self):
        if self.bad and self.parameters["does"] == "nothing":
            return {"work": 0, "digests": {"keys": worker.digest(b"")}, "totals": {"sum": 0.0}}
        output = b"other" if self.bad and self.parameters["does"] == "wrong" else b"right"
        scale = 1 + self.parameters["by"] if self.bad and self.parameters["does"] == "off" else 1.0
        keys = hashlib.sha256(b"%d %s" % (self.parameters["rows"], output)).hexdigest()[:32]
        return {"work": self.parameters["rows"], "digests": {"keys": keys}, "totals": {"sum": 1234.5 * scale}}

    def values(self, path):
        given = self.parameters
        if given["writes"] == "none":
            return super().values(path)
        import numpy as np

        key = np.arange(given["rows"])
        if given["writes"] in ("model", "other"):
            seed = given["seed"] + (given["writes"] == "other")
            random = np.random.default_rng(given["seed"])
            label = random.integers(0, 2, len(key))
            score = (2 * label - 1) + random.normal(0, 2, len(key))
            turned = random.random(len(key)) < given["shift"]
            np.savez(
                path, score=np.where(turned, -score, score), label=label, weight=np.ones(len(key)), key=key, seed=seed
            )
            return {"seed": seed}
        if given["writes"] == "missing":
            key = key[: round(len(key) * (1 - given["shift"]))]
        by = given["shift"] * 2.0 if given["writes"] == "map" else 0.0
        arrays = {"key": key, "value": 10 + by * (-1.0) ** key, "variance": np.full(len(key), 4.0)}
        arrays |= {"weight": np.ones(len(key)), "contributors": np.full(len(key), 25.0)}
        if given["writes"] == "broken":
            del arrays["weight"]
        np.savez(path, **arrays)
        return {"rows": len(key)}

    def close(self):
        if self.parameters["does"] == "ignore-close":
            wait_for_ever()
        if self.parameters["does"] == "fork":
            self.pool.terminate()
            self.pool.join()

    # ------------------------------------------------------------------------------------------------ faults

    def do_work(self): ...

    do_nothing = do_wrong = do_off = do_ignore_close = do_lie = do_work

    def do_hang(self):
        threading.Thread(target=wait_for_ever).start()
        wait_for_ever()

    def do_junk(self):
        os.write(PIPE, b"Warning: 3 frames skipped\n")

    def do_half(self):
        os.write(PIPE, b'{"kind":"iteration","phase":"st')
        self.do_quit()

    def do_exit(self):
        print("no space left on the detector", file=sys.stderr, flush=True)
        os._exit(3)

    def do_crash(self):
        os.abort()

    def do_kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def do_close_pipe(self):
        ours = os.fstat(PIPE)
        for handle in list(map(int, os.listdir("/proc/self/fd"))):
            try:
                if os.path.samestat(os.fstat(handle), ours):
                    os.close(handle)
            except OSError:
                continue
        wait_for_ever()

    def do_quit(self):
        os._exit(0)

    def do_talk(self):
        line = b'{"kind":"iteration","phase":"%s","index":0,"seconds":1e-9,"cpu_seconds":0}\n'
        os.write(PIPE, line % b"warmup" + line % b"steady")

    def do_leave(self):
        subprocess.run(["setsid", "-f", "sleep", "600"], env={"PATH": os.environ["PATH"]}, check=True)

    def do_fork(self):
        self.pool.map(burn, [self.parameters["burn"]] * self.parameters["workers"], chunksize=1)

    def do_memory(self):
        taken = []
        while True:
            taken.append(bytearray(16 << 20))


def wait_for_ever():
    while True:
        time.sleep(600)


if __name__ == "__main__":
    worker.serve(Scripted)
