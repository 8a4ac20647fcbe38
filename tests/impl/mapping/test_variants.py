"""Every variant of the kernel gives the same bytes, and a twin with one thing broken does not."""

import os
import shutil
import subprocess
from pathlib import Path

import kernel_twins as twins
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import assert_same_map, make_job, same_bytes

from impl.mapping.grid import Grid
from impl.mapping.kernel import INSTRUCTIONS, Kernel, MappingError, Options, best_instructions

HERE = Path(__file__).resolve().parent
SETS = [name for name in INSTRUCTIONS if name != "best"][: 1 + ["plain", "avx2", "avx512"].index(best_instructions())]


def tile(seed, depth, continuous, rows=70, columns=83, **given):
    """A tile over several bricks, with troubles, part of it outside the grid."""
    return make_job(seed, depth, rows, columns, 2, continuous, chunk=(16, 8, 32), place=(50, 33), clip=0.7, **given)


CASES = [
    (0, "none"),
    (1, "none"),
    (1, "mixed"),
    (2, "none"),
    (2, "all"),
    (3, "none"),
    (3, "mixed"),
    (4, "none"),
    (4, "mixed"),
]


@pytest.mark.parametrize(("depth", "continuous"), CASES)
@pytest.mark.parametrize("on_edges", [False, True])
def test_flat_lattice_gives_the_bytes_of_the_recursion(depth, continuous, on_edges):
    small = {3: 20, 4: 20}.get(depth, 70 if continuous == "none" else 40)
    if depth == 4 and continuous == "mixed":
        small = 5  # the recursion takes 0.1 ms a pixel
    job = tile(depth, depth, continuous, small, small + 13, on_edges=on_edges)
    expected = job.map(subdivision="corner-passing", accumulate="radix")
    assert len(expected) > 50
    for instructions in SETS:
        for way in ({"filter": True}, {"filter": False}, {"accumulate": "radix"}, {"threads": 3}, {"work_block": 50}):
            options = {"accumulate": "bitmap", "subdivision": "flat", "instructions": instructions} | way
            assert same_bytes(job.map(**options), expected), options


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_jobs_are_the_same_in_every_variant(data):
    depth = data.draw(st.integers(0, 3))
    job = make_job(
        data.draw(st.integers(0, 2**32)),
        depth,
        rows=data.draw(st.integers(1, 9)),
        columns=data.draw(st.integers(1, 70)),
        frames=data.draw(st.integers(1, 3)),
        continuous=data.draw(st.sampled_from(["none", "all", "mixed"])),
        step=data.draw(st.sampled_from([0.02, 0.5, 2.0, 500.0])),
        clip=data.draw(st.sampled_from([1.0, 0.5, 0.05])),
        chunk=data.draw(st.sampled_from([(64, 64, 64), (4, 8, 2), (3, 5, 7), (1, 1, 1), (128, 128, 64)])),
        place=data.draw(st.sampled_from([(0, 0), (60, 61)])),
        on_edges=data.draw(st.booleans()),
    )
    expected = job.map()
    for instructions in SETS:
        options = {
            "subdivision": "flat",
            "instructions": instructions,
            "filter": data.draw(st.booleans()),
            "accumulate": data.draw(st.sampled_from(["auto", "radix", "bitmap"])),
            "threads": data.draw(st.integers(1, 2)),
            "work_block": data.draw(st.sampled_from([0, 1, 37, 10_000])),
        }
        assert same_bytes(job.map(**options), expected), options


def test_the_variants_are_really_different_ways():
    job = tile(1, 2, "none")
    (exact, a), (filtered, b) = (job.map_counted(subdivision="flat", filter=f) for f in (False, True))
    assert same_bytes(exact, filtered)
    assert a["fallbacks"] == 0 < b["fallbacks"] < 0.2 * b["evaluations"]
    assert b["evaluations"] > job.map_counted()[1]["evaluations"]
    assert job.map_counted(accumulate="bitmap")[1]["bitmap"] == 1
    assert job.map_counted(accumulate="radix")[1]["bitmap"] == 0
    runs, bricks = (job.map_counted(order=order, count_blocks=True) for order in ("flat-runs", "bricks"))
    assert_same_map(runs[0], bricks[0])
    assert not same_bytes(runs[0], bricks[0])
    assert runs[1]["block_records"] != bricks[1]["block_records"] >= bricks[1]["records"]


def test_automatic_accumulation_sorts_where_few_samples_share_a_chunk():
    dense = make_job(1, 0, 64, 64, 2, "none", step=4, chunk=(64, 64, 64))
    sparse = make_job(1, 0, 64, 64, 2, "none", step=0.1, chunk=(4, 4, 4))
    assert dense.map_counted()[1]["bitmap"] == 1
    assert sparse.map_counted()[1]["bitmap"] == 0
    assert same_bytes(sparse.map(), sparse.map(accumulate="bitmap"))


def test_more_pages_than_fit_fall_back_to_smaller_ones():
    # far more chunks of 2^18 voxels touched than 2^14 slots
    job = make_job(1, 0, 200, 200, 1, "none", trouble=False)
    low, high = box(job)
    job.grid = Grid(low, (high - low) / (1 << 20), (1 << 20,) * 3, (1 << 10, 1 << 10, 1 << 9))
    small = Grid(low, job.grid.step, job.grid.shape, (1 << 10, 1 << 10, 1 << 10))
    records, counters = job.map_counted(accumulate="radix")
    assert counters["pages"] > 1 << 14
    assert len(records) > 1 << 14
    voxels = job.grid.indices(records.chunk, records.local)
    job.grid = small
    other = job.map(accumulate="radix", subdivision="flat")
    found = small.indices(other.chunk, other.local)
    assert {tuple(v) for v in voxels.tolist()} == {tuple(v) for v in found.tolist()}


@pytest.mark.skipif(len(SETS) == 3, reason="this machine has every instruction set")
def test_instructions_that_the_machine_lacks_are_refused():
    missing = ["plain", "avx2", "avx512"][len(SETS)]
    with pytest.raises(MappingError, match="outside"):
        make_job(1, 1).map(instructions=missing)


def test_a_frame_that_leaves_its_estimated_box_is_still_right():
    # One ray far from its neighbours: no estimate from a few corners can know it.
    job = make_job(4, 1, 30, 30, 1, "none", step=0.5, trouble=False)
    job.rays[13, 17] = job.rays[0, 0] + 40 * (job.rays[0, 1] - job.rays[0, 0])
    job.rays[13, 17] /= np.linalg.norm(job.rays[13, 17])
    low = np.array(job.grid.minimum) - 200 * np.array(job.grid.step)
    job.grid = Grid(low, job.grid.step, tuple(np.array(job.grid.shape) + 400), (4, 4, 4))
    records, counters = job.map_counted(subdivision="flat")
    assert counters["boxes_missed"] == 1
    assert same_bytes(records, job.map())


# ---------------------------------------------------------------------------------------------- broken twins


def coarse(seed, depth, continuous, rows=4, columns=16, pixel=0.08, **given):
    """Pixels of `pixel` radians, so wide that the curvature of a pixel is a good part of a voxel."""
    job = make_job(seed, depth, rows, columns, 1, continuous, trouble=False, **given)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    y, x = np.meshgrid(*((np.arange(n + 1) - n / 2) * pixel for n in (rows, columns)), indexing="ij")
    rays = np.stack([np.sin(x) * np.cos(y), np.cos(x) * np.cos(y), np.sin(y)], axis=-1) @ turn.T
    job.rays = np.ascontiguousarray(rays / np.linalg.norm(rays, axis=-1, keepdims=True))
    return job


def box(job):
    """Least and largest coordinates of the corners in the middle of the first frame."""
    middle = job.tables[0, 2**job.depth]
    coordinates = np.einsum("ij,rcj->rci", middle[:, :3], job.rays) + middle[:, 3]
    return coordinates.min(axis=(0, 1)), coordinates.max(axis=(0, 1))


def gridded(job, voxels):
    """The job with a grid of that many voxels over the box of its corners."""
    low, high = box(job)
    step = (high - low) / voxels
    job.grid = Grid(low - 3 * step, step, tuple(((high - low) / step + 6).astype(int)), (8, 8, 8))
    return job


TWINS = {
    "filter margin zero": (
        [("mapping.c", "t->margin = fmaxf(t->margin, (float)margin * 1.0001f);", "t->margin = 0.0f;")],
        [],
    ),
    "no slack": (
        [("mapping_subdivide.c", "(1.01 * gradient * (chord / 2 + 2 * error) + spread)", "-0.0 * spread")],
        [],
    ),
    "topmost cell does not win": (
        [
            (
                "mapping_flat.inc",
                "for (int size = 1; size <= n; size *= 2) {",
                "for (int size = 1; size <= 1; size *= 2) {",
            )
        ],
        [],
    ),
    "contraction on": ([], ["-O2", "-ffp-contract=fast", "-mfma"]),
}


def test_the_filter_needs_its_margin(tmp_path, monkeypatch):
    jobs = [gridded(coarse(seed, 1, "none", 8, 20), 20) for seed in range(3)]
    expected = [job.map(subdivision="flat", filter=False) for job in jobs]
    assert all(same_bytes(job.map(subdivision="flat", filter=True), right) for job, right in zip(jobs, expected))
    twins.use(monkeypatch, twins.build(tmp_path, *TWINS["filter margin zero"]))
    assert not all(same_bytes(job.map(subdivision="flat", filter=True), right) for job, right in zip(jobs, expected))
    assert all(same_bytes(job.map(subdivision="flat", filter=False), right) for job, right in zip(jobs, expected))


def barely_reached(seed):
    """A grid that a pixel's curved inside reaches, but the box of its corners does not; None where there is none."""
    job = coarse(seed, 4, "none", pixel=0.3)
    points = []
    for u in np.linspace(0, 1, 17):
        for v in np.linspace(0, 1, 17):
            c = (1 - v) * ((1 - u) * job.rays[1, 4] + u * job.rays[2, 4]) + v * (
                (1 - u) * job.rays[1, 5] + u * job.rays[2, 5]
            )
            points.append(c / np.linalg.norm(c))
    middle = job.tables[0, 16]
    inside = np.array(points) @ middle[:, :3].T + middle[:, 3]
    corners = job.rays[1:3, 4:6].reshape(4, 3) @ middle[:, :3].T + middle[:, 3]
    for axis in range(3):
        beyond = inside[:, axis].max() - corners[:, axis].max()
        if beyond > 0.01 * np.ptp(inside[:, axis]):
            best = inside[inside[:, axis].argmax()]
            step = np.ptp(inside, axis=0) / 4
            low = best - step / 2
            low[axis] = corners[:, axis].max() + beyond / 10
            job.grid = Grid(low, step, (1, 1, 1))
            for name in ("intensity", "variance", "mask"):
                setattr(job, name, getattr(job, name)[:, 1:2, 4:5].copy())
            job.rays = job.rays[1:3, 4:6].copy()
            return job
    return None


def test_rejecting_needs_its_slack(tmp_path, monkeypatch):
    jobs = [job for job in map(barely_reached, range(60)) if job is not None]
    jobs = [job for job in jobs if len(job.map(reject=False))]
    assert len(jobs) > 3
    assert all(same_bytes(job.map(reject=True), job.map(reject=False)) for job in jobs)
    twins.use(monkeypatch, twins.build(tmp_path, *TWINS["no slack"]))
    assert not all(same_bytes(job.map(reject=True), job.map(reject=False)) for job in jobs)


def test_the_topmost_resolved_cell_must_win(tmp_path, monkeypatch):
    jobs = [gridded(coarse(seed, 2, "none", 4, 4, pixel=0.3), 2) for seed in range(60)]
    assert all(job.map_counted(subdivision="flat")[1]["boxes_missed"] == 0 for job in jobs)
    expected = [job.map() for job in jobs]
    twins.use(monkeypatch, twins.build(tmp_path, *TWINS["topmost cell does not win"]))
    assert not all(same_bytes(job.map(subdivision="flat"), right) for job, right in zip(jobs, expected))


def centred(seed):
    """One pixel whose centre lies exactly on the lower edges of the grid's only voxel."""
    job = make_job(seed, 0, 1, 1, 1, "none", trouble=False)
    corners = [job.rays[u, v] for v in (0, 1) for u in (0, 1)]
    x, y, z = (0.5 * (0.5 * a + 0.5 * b) + 0.5 * (0.5 * c + 0.5 * d) for a, b, c, d in zip(*corners))
    norm = np.sqrt((x * x + y * y) + z * z)
    x, y, z = x / norm, y / norm, z / norm
    low = [((a * x + b * y) + c * z) + d for a, b, c, d in job.tables[0, 1]]
    job.grid = Grid(low, job.grid.step, (1, 1, 1))
    return job


@pytest.mark.skipif(len(SETS) < 2, reason="this machine has no fused multiply-add to contract to")
def test_contraction_is_seen(tmp_path, monkeypatch):
    jobs = [centred(seed) for seed in range(60)]
    assert all(len(job.map()) == 1 for job in jobs)
    twins.use(monkeypatch, twins.build(tmp_path, *TWINS["contraction on"]))
    assert not all(len(job.map()) == 1 for job in jobs)


@pytest.fixture(scope="module")
def allocation_program(tmp_path_factory):
    """The program that lets every allocation fail once."""
    program = tmp_path_factory.mktemp("allocation") / "allocation"
    subprocess.run(
        [*twins.compiler(), "-std=c11", "-O1", "-g", "-pthread", "-fno-math-errno", "-ffp-contract=off",
         '-DHARNESS_SOURCE_DIGEST="test"', f"-I{twins.CSRC}", "-include", str(HERE / "allocation.h"),
         *(str(twins.CSRC / unit) for unit in twins.UNITS), str(HERE / "allocation.c"), "-o", str(program), "-lm"],
        check=True,
    )  # fmt: skip
    return program


def test_every_failed_allocation_is_an_error_and_nothing_leaks(allocation_program):
    done = subprocess.run([str(allocation_program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 50  # allocations that were made to fail


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_failed_allocations_leave_no_invalid_access_behind(allocation_program):
    if shutil.which("valgrind") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("expected valgrind on PATH, found none; install it")
        pytest.skip("needs valgrind")
    command = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=all"]
    done = subprocess.run([*command, str(allocation_program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 50


def test_a_kernel_of_another_grid_is_independent():
    job, other = tile(1, 1, "none"), tile(2, 1, "none")
    with Kernel(job.grid, Options(depth=1)) as a, Kernel(other.grid, Options(depth=1)) as b:
        first = a.map(*job.arrays(), mask=job.mask, place=job.place)
        b.map(*other.arrays(), mask=other.mask, place=other.place)
        assert same_bytes(first, a.map(*job.arrays(), mask=job.mask, place=job.place))
