"""Frames per call: gates, cuts and the timed choice, which a scripted clock decides here."""

import itertools

import numpy as np
import pytest
from jobs import assert_same_map, make_job, same_bytes

from impl.mapping.detector import PoniDetector
from impl.mapping.geometry import b_matrix
from impl.mapping.grid import Grid
from impl.mapping.groups import Piece, choose, cut, monotone, travel
from impl.mapping.kernel import Kernel, Options, bytes_per_sample
from impl.mapping.records import merge

# ---------------------------------------------------------------------------------------------- gates


def scan(step_degrees, frames=20):
    """Angles of an omega scan."""
    edges = np.zeros((frames + 1, 4))
    edges[:] = (0.02, 0.3, 0.05, 0.02)
    edges[:, 1] += np.radians(step_degrees) * np.arange(frames + 1)
    return edges[:-1].copy(), edges[1:].copy()


DETECTOR = PoniDetector((400, 500), (0.172e-3, 0.172e-3), (-0.05, 0.02), 0.5)
UB = b_matrix(4, 4, 4, np.pi / 2, np.pi / 2, np.pi / 2)


def grid(axes="hkl"):
    return Grid((-3, -3, -3), (0.004, 0.004, 0.004), (1500, 1500, 1500), axes=axes)


def test_travel_is_the_distance_between_frames_and_doubles_with_the_step():
    small, double = (travel(DETECTOR, grid(), 10.0, *scan(step), ub=UB) for step in (0.1, 0.2))
    assert 0.1 < small < 10
    assert double == pytest.approx(2 * small, rel=0.05)
    # by hand: one pixel between the first two frames
    from impl.mapping.geometry import affine

    start, end = scan(0.1, 2)
    ray = DETECTOR.rays(3.0, 4.0)
    a, b = (affine((s + e) / 2, 10.0, "hkl", ub=UB) for s, e in zip(start, end))
    distance = np.linalg.norm(((b[:, :3] @ ray + b[:, 3]) - (a[:, :3] @ ray + a[:, 3])) / 0.004)
    found = travel(DETECTOR, grid(), 10.0, start, end, ub=UB, rectangle=(3, 4, 4, 5))
    assert found == pytest.approx(distance, rel=1e-12)


def test_in_the_laboratory_nothing_travels():
    assert travel(DETECTOR, grid("lab"), 10.0, *scan(0.1)) == 0.0
    assert travel(DETECTOR, grid("alpha"), 10.0, *scan(0.1)) == 0.0
    assert travel(DETECTOR, grid("omega"), 10.0, *scan(0.1)) > 0.1


def test_pairs_with_an_excluded_frame_do_not_count():
    start, end = scan(0.1, 4)
    whole = travel(DETECTOR, grid(), 10.0, start, end, ub=UB)
    start[2, 1] += 1.0  # a jump that is excluded
    end[2, 1] += 1.0
    assert travel(DETECTOR, grid(), 10.0, start, end, ub=UB) > 10 * whole
    assert travel(DETECTOR, grid(), 10.0, start, end, ub=UB, excluded=[2]) == pytest.approx(whole, rel=0.05)
    assert travel(DETECTOR, grid(), 10.0, start, end, ub=UB, excluded=[1, 3]) == np.inf
    assert travel(DETECTOR, grid(), 10.0, start[:1], end[:1], ub=UB) == np.inf


def test_monotone_sees_interlaced_scans_but_no_noise():
    start, end = scan(0.1)
    assert monotone(start, end)
    assert monotone(start[::-1], end[::-1])
    interlaced = np.concatenate([np.arange(0, 20, 2), np.arange(1, 20, 2)])
    assert not monotone(start[interlaced], end[interlaced])
    noisy = start.copy()
    noisy[:, 0] += 1e-17 * np.random.default_rng(0).normal(size=20)
    noisy[:, 1] += 1e-17 * np.random.default_rng(1).normal(size=20)
    assert monotone(noisy, noisy + (end - start))
    shaking = start.copy()
    shaking[:, 0] += 1e-8 * (-1.0) ** np.arange(20)
    assert not monotone(shaking, shaking)
    assert monotone(start[:1], end[:1])


def test_runs_end_at_their_size_at_gaps_and_at_every_boundary():
    assert cut(range(10), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert cut(range(10), 4, [0, 5]) == [[0, 1, 2, 3], [4], [5, 6, 7, 8], [9]]
    assert cut(range(10), 4, {3} | {7}) == [[0, 1, 2], [3, 4, 5, 6], [7, 8, 9]]  # two grids' checkpoints
    assert cut([0, 1, 3, 4, 5, 6], 3) == [[0, 1], [3, 4, 5], [6]]
    assert cut([], 3) == []
    rng = np.random.default_rng(0)
    for _ in range(100):
        frames = np.flatnonzero(rng.random(40) < 0.8).tolist()
        size, boundaries = int(rng.integers(1, 9)), set(rng.integers(0, 40, 3).tolist())
        runs = cut(frames, size, boundaries)
        assert list(itertools.chain(*runs)) == frames
        assert max(map(len, runs)) <= size
        for run in runs:
            assert run == list(range(run[0], run[0] + len(run)))
            assert not boundaries & set(run[1:])
        for a, b in itertools.pairwise(runs):  # no run is shorter than it must be
            assert len(a) == size or b[0] != a[-1] + 1 or b[0] in boundaries
    with pytest.raises(ValueError, match="at least 1, found 0"):
        cut(range(3), 0)
    with pytest.raises(ValueError, match="expected ascending indices, found 1 after 2"):
        cut([0, 2, 1], 4)


# ---------------------------------------------------------------------------------------------- choice


class Clock:
    """Seconds by how many frames a call the kernel maps: each reading belongs to what ran since the last."""

    def __init__(self, seconds, kernel):
        self.seconds, self.kernel, self.now, self.read, self.order = seconds, kernel, 0.0, 0, []

    def __call__(self):
        self.read += 1
        if self.read % 2 == 0:  # a side has run
            size = self.kernel.sizes.pop()
            self.kernel.sizes.clear()
            self.order.append(size)
            took = self.seconds[size]
            self.now += took(len(self.order)) if callable(took) else took
        return self.now


class Watched:
    """A real kernel that remembers how many frames its calls had."""

    def __init__(self, kernel):
        self.kernel, self.sizes = kernel, []

    def map_view(self, intensity, *arguments, **given):
        self.sizes.append(len(intensity))
        return self.kernel.map_view(intensity, *arguments, **given)


def piece(frames=8):
    job = make_job(3, 0, 12, 10, frames, "all", trouble=False)
    return job, Piece(
        list(job.intensity), list(job.variance), None, job.rays, (0, 12, 0, 10), job.tables, job.stationary
    )


def chosen(seconds, travelled=0.7, is_monotone=True, frames=8, budget=1 << 30, **given):
    job, one = piece(frames)
    with Kernel(job.grid, Options(depth=0, budget=budget)) as kernel:
        watched = Watched(kernel)
        clock = Clock(seconds, watched)
        return choose(watched, [one], travelled, is_monotone, clock=clock, **given), clock


FASTER = {1: 1.0, 2: 0.85, 4: 0.79, 8: 0.82}


def test_the_least_ratio_that_won_every_pair_is_chosen():
    choice, clock = chosen(FASTER)
    assert choice.frames_per_call == 4
    found = choice.evidence["candidates"]
    assert {size: round(one["median"], 3) for size, one in found.items()} == {2: 0.85, 4: 0.79, 8: 0.82}
    assert all(one["won"] == one["pairs"] == 7 for one in found.values())
    assert "0.79 of the CPU time of one frame a call, 7 of 7 pairs" in choice.reason
    assert choice.evidence["stopped"] == "16: no probe of so many frames"
    # interleaved, the order turns, and the first pair is a warm-up
    assert clock.order[:16] == [2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2]


def test_without_a_clear_gain_it_is_one_frame():
    assert chosen({1: 1.0, 2: 1.0, 4: 1.01, 8: 1.2})[0].frames_per_call == 1
    # faster in the median, but not in every pair
    sometimes = {1: 1.0, 2: lambda n: 1.1 if n == 5 else 0.8, 4: 1.3, 8: 1.4}
    choice, _ = chosen(sometimes)
    assert choice.frames_per_call == 1
    assert choice.evidence["candidates"][2]["median"] == pytest.approx(0.8)
    assert choice.evidence["candidates"][2]["won"] == 6
    # too few pairs to say
    assert chosen(FASTER, rounds=5)[0].frames_per_call == 1
    # a slow first pair is the warm-up and does not count
    assert chosen(FASTER | {4: lambda n: 9.0 if n in (17, 18) else 0.5})[0].frames_per_call == 4


@pytest.mark.parametrize(("voxels", "more"), [(0.0, True), (0.7, True), (1.0, False), (3.2, False), (np.inf, False)])
def test_frames_that_travel_a_voxel_are_not_tried(voxels, more):
    choice, clock = chosen(FASTER, travelled=voxels)
    assert (choice.frames_per_call > 1) == more
    assert bool(clock.order) == more
    assert choice.evidence["travel"] == voxels


def test_an_interlaced_scan_is_not_tried():
    choice, clock = chosen(FASTER, is_monotone=False)
    assert choice.frames_per_call == 1
    assert not clock.order
    assert "interlaced" in choice.reason


def test_a_tight_budget_ends_the_list():
    assert chosen(FASTER, affordable=lambda frames: frames < 4)[0].frames_per_call == 2
    choice, clock = chosen(FASTER, affordable=lambda frames: False)
    assert choice.frames_per_call == 1
    assert not clock.order
    assert choice.evidence["stopped"] == "2: more memory than there is"
    # what the kernel itself refuses
    one_frame = 120 * bytes_per_sample(0, True)
    choice, _ = chosen(FASTER, budget=one_frame)
    assert choice.frames_per_call == 1
    assert "expected a budget of at least" in choice.evidence["stopped"]
    assert chosen(FASTER, budget=3 * one_frame)[0].frames_per_call == 2


def test_a_real_clock_gives_evidence_too():
    job, one = piece()
    with Kernel(job.grid, Options(depth=0)) as kernel:
        choice = choose(kernel, [one, one], 0.5, True, candidates=(1, 2), rounds=6)
    assert len(choice.evidence["candidates"][2]["ratios"]) == 12
    assert choice.frames_per_call in (1, 2)


# ---------------------------------------------------------------------------------------------- what a group gives


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("continuous", ["none", "all"])
def test_a_group_is_its_frames_merged(depth, continuous):
    job = make_job(depth + 20, depth, 20, 17, 8, continuous)
    with Kernel(job.grid, Options(depth=depth, subdivision="flat")) as kernel:

        def mapped(size):
            parts = []
            for run in cut(range(8), size):
                part = slice(run[0], run[-1] + 1)
                arrays = (array[part] for array in (job.intensity, job.variance))
                parts.append(kernel.map(*arrays, job.rays, job.tables[part], job.stationary[part], mask=job.mask[part]))
            return parts

        alone = mapped(1)
        for size in (2, 8):
            groups = mapped(size)
            assert len(groups) == 8 // size
            assert_same_map(merge(groups), merge(alone))
        assert sum(map(len, alone)) > sum(map(len, mapped(8)))


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_one_frame_a_call_by_view_has_the_bytes_of_its_own_tile(depth):
    job = make_job(7, depth, 18, 21, 1, "all")
    with Kernel(job.grid, Options(depth=depth)) as kernel:
        own = kernel.map(*job.arrays(), mask=job.mask)
        view = kernel.map_view(
            list(job.intensity),
            list(job.variance),
            job.rays,
            job.tables,
            job.stationary,
            (0, 18, 0, 21),
            list(job.mask),
        )
        runs = job.map(order="flat-runs")
    assert same_bytes(own, view)
    assert_same_map(own, runs, rtol=1e-14)


def test_eight_overlapping_frames_meet_fewer_voxels():
    job = make_job(5, 0, 64, 64, 8, "all", step=1.0, trouble=False)
    start = np.zeros((8, 4))
    start[:, 1] = np.arange(8) * 1e-4
    from impl.mapping.geometry import exposure_tables

    job.tables, job.stationary = exposure_tables(start, start + [0, 1e-4, 0, 0], 0, 10.0, "phi")
    low = (job.tables[..., :3] @ job.rays.reshape(-1, 3).T + job.tables[..., 3:]).min(axis=(0, 1, 3))
    job.grid = Grid(tuple(low - 1), (0.002, 0.002, 0.002), (5000, 5000, 5000))
    group = job.map_counted(count_blocks=True)[1]["block_records"]
    alone = 0
    with Kernel(job.grid, Options(depth=0, count_blocks=True)) as kernel:
        for f in range(8):
            arrays = (array[f : f + 1] for array in (job.intensity, job.variance))
            kernel.map(*arrays, job.rays, job.tables[f : f + 1], job.stationary[f : f + 1])
            alone += kernel.counters()["block_records"]
    assert 0 < group < 0.85 * alone
