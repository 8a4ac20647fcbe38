"""A loop in pure Python as an arm: a linear congruential generator, `steps` times; `slowdown` plants extra steps.

The planted steps run on a second state that is thrown away, so the output does not depend on `slowdown`:
`python -m impl.loop.arm --set steps=200000 --set slowdown=0.1`.
"""

from harness import worker

# Constants of Knuth's MMIX generator (D. E. Knuth, TAOCP vol. 2, 3.3.4).
_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


def states(state: int, steps: int) -> int:
    """The generator's state after `steps` steps from `state`."""
    for _ in range(steps):
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
    return state


class Loop(worker.Workload):
    """steps: how many steps an iteration makes; seed: where it starts; slowdown: extra work, as a fraction."""

    name = "loop"
    accepts = {"steps": 100_000, "seed": 1, "slowdown": 0.0}

    def __init__(self, parameters: dict):
        super().__init__(parameters)
        if parameters["steps"] < 1:
            raise worker.Fault("steps", "a whole number of at least 1", str(parameters["steps"]), "try 100000")
        if not 0 <= parameters["slowdown"] <= 10:
            raise worker.Fault("slowdown", "a number from 0 to 10", str(parameters["slowdown"]), "try 0.1 for +10 %")

    def iterate(self) -> dict:
        steps = self.parameters["steps"]
        self.state = states(self.parameters["seed"], steps)
        states(0, round(steps * self.parameters["slowdown"]))
        return {"units": steps, "work": steps}

    def fingerprint(self) -> dict:
        return {"work": self.parameters["steps"], "digests": {"state": f"{self.state:016x}"}}


if __name__ == "__main__":
    worker.serve(Loop)
