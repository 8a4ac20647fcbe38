"""An arm of one's own in some fifteen lines; by hand: python sorting.py --set n=1000 --set algorithm=heap."""

import heapq

from harness import worker


class Sorting(worker.Workload):
    name = "sorting"
    accepts = {"n": 100_000, "algorithm": "timsort"}

    def setup(self):
        self.data = [(i * 7919) % self.parameters["n"] for i in range(self.parameters["n"])]

    def iterate(self):
        if self.parameters["algorithm"] == "timsort":
            self.result = sorted(self.data)
        else:
            heap = list(self.data)
            heapq.heapify(heap)
            self.result = [heapq.heappop(heap) for _ in self.data]
        return {"units": len(self.data), "work": len(self.result)}

    def fingerprint(self):
        return {"work": len(self.result), "digests": {"order": worker.digest(repr(self.result).encode())}}


if __name__ == "__main__":
    worker.serve(Sorting)
