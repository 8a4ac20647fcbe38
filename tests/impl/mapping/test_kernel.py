"""The C kernel against the reference, and against itself in every way that must not matter."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import assert_same_map, make_job, same_bytes

from impl.mapping.grid import Grid
from impl.mapping.kernel import SUBDIVISIONS, Kernel, MappingError, Options, bytes_per_sample
from impl.mapping.pipeline import bands
from impl.mapping.records import COLUMNS, Records, add, merge
from impl.mapping.reference import footprint, reference_map

quick = settings(max_examples=160, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def jobs(draw):
    continuous = draw(st.sampled_from(["none", "all", "mixed"]))
    depth = draw(st.integers(0, 4 if continuous == "none" else 3))
    small = depth == 3 and continuous != "none"
    return make_job(
        draw(st.integers(0, 2**32)),
        depth,
        rows=draw(st.integers(1, 1 if small else 3)),
        columns=draw(st.integers(1, 2 if small else 4)),
        frames=draw(st.integers(1, 1 if small else 2)),
        continuous=continuous,
        step=draw(st.sampled_from([0.25, 0.6, 2.0, 30.0])),
        clip=draw(st.sampled_from([1.0, 0.6, 0.2])),
        chunk=draw(st.sampled_from([(64, 64, 64), (4, 8, 2), (3, 5, 7), (1, 1, 1)])),
        place=draw(st.sampled_from([(0, 0), (63, 62)])),
        on_edges=draw(st.booleans()),
    )


@quick
@given(jobs())
def test_kernel_agrees_with_the_reference(job):
    expected = reference_map(
        job.grid, job.intensity, job.variance, job.rays, job.tables, job.stationary, job.depth, job.mask
    )
    for subdivision in SUBDIVISIONS:
        assert_same_map(job.map(subdivision=subdivision), expected)


def test_the_comparison_rejects_broken_maps():
    job = make_job(5, 2, frames=2)
    right = job.map()
    assert len(right) > 5
    for name in COLUMNS:
        wrong = Records(*(column.copy() for column in right.columns()))
        getattr(wrong, name)[3] += 1 if name != "sum_weight" else 1e-9
        with pytest.raises(AssertionError):
            assert_same_map(wrong, right)
    shifted = make_job(5, 2, frames=2)
    step = np.array(shifted.grid.step)
    shifted.grid = Grid(np.array(shifted.grid.minimum) + 0.01 * step, step, shifted.grid.shape, shifted.grid.chunk)
    with pytest.raises(AssertionError):
        assert_same_map(shifted.map(), right)


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("continuous", ["none", "mixed"])
def test_threads_work_blocks_and_subdivision_never_move_a_bit(depth, continuous):
    size = 70 >> max(0, depth - 1 - (continuous == "none"))
    job = make_job(depth, depth, size + 3, size, 3 if depth < 3 else 2, continuous, chunk=(8, 8, 8), place=(37, 50))
    first, counted = job.map_counted()
    assert len(first) > 100
    ways = itertools.chain(
        ({"threads": t, "work_block": b} for t, b in ((1, 7), (2, 0), (2, 5), (3, 4096), (5, 1), (2, 64))),
        ({"subdivision": name, "threads": 2} for name in SUBDIVISIONS),
    )
    for options in ways:
        other, counters = job.map_counted(**options)
        assert same_bytes(first, other), options
        if options.get("subdivision") != "flat":
            assert counters["leaves"] == counted["leaves"]


def test_sums_add_in_the_visiting_order_and_another_order_is_seen():
    rows, columns, frames = 130, 70, 2
    job = make_job(11, 0, rows, columns, frames, "none", step=5, place=(40, 100), chunk=(16, 16, 16))
    right = job.map()
    frame, row, column = np.indices((frames, rows, columns)).reshape(3, -1)
    valid = (
        np.isfinite(job.intensity) & np.isfinite(job.variance) & (np.nan_to_num(job.variance, nan=-1) >= 0) & ~job.mask
    ).reshape(-1)
    shares = np.full(frames * rows * columns, -1)
    keys = {key: n for n, key in enumerate(right.key().tolist())}
    for n in np.flatnonzero(valid):
        i, j = row[n], column[n]
        corners = [job.rays[i, j], job.rays[i + 1, j], job.rays[i, j + 1], job.rays[i + 1, j + 1]]
        if not np.isfinite(corners).all():
            continue
        found = footprint(job.grid, [c.tolist() for c in corners], job.tables[frame[n]].tolist(), 0, True)
        if found:
            chunk, local = job.grid.keys([next(iter(found))])
            shares[n] = keys[int(chunk[0]) << 32 | int(local[0])]

    def added(order):
        order = order[shares[order] >= 0]
        total = np.zeros(len(right))
        np.add.at(total, shares[order], job.intensity.reshape(-1)[order])
        return total.tobytes()

    bricks = np.lexsort((column, row, frame, (column + 100) // 64, (row + 40) // 64))
    assert added(bricks) == right.sum_intensity.tobytes()
    assert added(np.arange(len(row))) != right.sum_intensity.tobytes()  # frame by frame
    assert added(bricks[::-1]) != right.sum_intensity.tobytes()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_corner_passing_evaluates_what_the_formula_says_at_most(depth):
    for continuous, children, corners, new in (("none", 4, 4, 5), ("all", 8, 8, 19)):
        if continuous == "all" and depth == 4:
            continue
        # a voxel far smaller than a leaf: every cell splits to the end
        job = make_job(1, depth, 1, 1, continuous=continuous, step=1e-3, trouble=False)
        counters = job.map_counted()[1]
        worst = corners + new * (children**depth - 1) // (children - 1) + children**depth
        assert counters["evaluations"] == worst
        assert counters["leaves_max"] <= children**depth


def test_depth_0_evaluates_once_per_valid_sample():
    job = make_job(3, 0, 40, 50, 2, "mixed")
    counters = job.map_counted()[1]
    assert counters["samples"] == 4000
    assert counters["evaluations"] == counters["valid"] < 4000
    # and does not depend on the exposure's ends
    middle = job.tables[:, 1:2].copy()
    job.tables[:] = middle
    assert same_bytes(job.map(), make_job(3, 0, 40, 50, 2, "mixed").map())


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("continuous", ["none", "all"])
def test_a_grid_that_holds_the_tile_keeps_weight_and_intensity(depth, continuous):
    if continuous == "all" and depth == 4:
        depth = 3
    job = make_job(8, depth, 5, 6, continuous=continuous, trouble=False)
    records = job.map()
    assert records.sum_weight.sum() == pytest.approx(30, rel=1e-12)
    assert records.sum_intensity.sum() == pytest.approx(job.intensity.sum(), rel=1e-12)
    key = records.key()
    assert (key[1:] > key[:-1]).all()


def edge_distance(job):
    """How near, in voxels, any corner of any pixel comes to a voxel edge at any exposure position."""
    at = np.einsum("fmij,rcj->fmrci", job.tables[..., :3], job.rays) + job.tables[:, :, None, None, :, 3]
    steps = (at - np.array(job.grid.minimum)) / np.array(job.grid.step)
    return np.abs(steps - np.round(steps)).min()


@pytest.mark.parametrize(
    ("depth", "continuous", "rows", "columns"),
    [(d, "none", 6, 7) for d in range(5)] + [(d, "all", 5, 5) for d in range(3)] + [(3, "all", 2, 3), (4, "all", 1, 1)],
)
def test_tiles_of_half_a_voxel_a_step_are_those_of_the_reference(depth, continuous, rows, columns):
    redrawn = 0
    for seed in range(40, 60):
        job = make_job(seed, depth, rows, columns, continuous=continuous, step=2.0, trouble=False)
        if edge_distance(job) > 1e-9:
            break
        redrawn += 1
    assert redrawn <= 1
    expected = reference_map(job.grid, *job.arrays(), depth)
    assert len(expected) > rows * columns / 2
    for subdivision in ("corner-passing", "flat"):
        assert_same_map(job.map(subdivision=subdivision), expected)


def test_deeper_subdivision_finds_more_voxels_and_settles():
    counts = [len(make_job(21, d, 24, 24, step=1.0, trouble=False).map(subdivision="flat")) for d in range(4)]
    still = [len(make_job(21, d, 24, 24, 1, "none", step=1.0, trouble=False).map()) for d in range(7)]
    for found, last in ((counts, 3), (still, 6)):
        assert found[1] > found[0]
        assert found[last] < 2 * found[1]
    assert abs(still[6] / still[5] - 1) <= 0.05


def test_samples_of_one_voxel_average_and_their_variances_add():
    # two pixels, one voxel: (I1 + I2)/2 and (V1 + V2)/4
    job = make_job(1, 2, 1, 2, 1, "none", step=1e6, trouble=False)
    job.intensity[:], job.variance[:] = [[[3.0, 5.0]]], [[[2.0, 6.0]]]
    records = job.map()
    assert (records.intensity()[0], records.variance()[0], records.contributors[0]) == (4.0, 2.0, 2)
    # one pixel over several voxels: its intensity in each, and w² V summed gives back V where the weights are whole
    job = make_job(1, 3, 1, 1, 1, "none", step=0.3, trouble=False)
    records = job.map()
    assert len(records) > 3
    np.testing.assert_allclose(records.intensity(), job.intensity[0, 0, 0])
    np.testing.assert_allclose(records.variance(), job.variance[0, 0, 0])
    np.testing.assert_allclose(records.sum_variance, records.sum_weight**2 * job.variance[0, 0, 0])
    assert records.sum_weight.sum() == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize("depth", range(5))
def test_keys_ascend_with_four_threads_and_tiny_blocks(depth):
    job = make_job(depth + 30, depth, 16, 18, 1, "none")
    key = job.map(threads=4, work_block=3).key()
    assert len(key) > 20
    assert (key[1:] > key[:-1]).all()


def test_deepest_depths_finish_and_conserve_weight():
    for depth, continuous, step in ((8, "none", 0.4), (5, "all", 0.6)):
        job = make_job(2, depth, 1, 2, continuous=continuous, step=step, trouble=False)
        maps = [job.map(subdivision=name) for name in SUBDIVISIONS]
        assert same_bytes(maps[0], maps[1])
        assert same_bytes(maps[0], maps[2])
        assert maps[0].sum_weight.sum() == pytest.approx(2, rel=1e-12)


def test_a_leaf_list_longer_than_its_buffer_is_complete():
    job = make_job(4, 6, 1, 1, continuous="none", step=0.02, trouble=False)
    records, counters = job.map_counted()
    assert counters["leaves"] > 2000
    assert len(records) > 300
    expected = reference_map(job.grid, job.intensity, job.variance, job.rays, job.tables, job.stationary, 6)
    assert_same_map(records, expected)


def test_all_samples_in_one_voxel_give_one_record():
    job = make_job(1, 2, 20, 30, 50, "none", step=1e6, trouble=False)
    records = job.map(threads=3, work_block=11)
    assert len(records) == 1
    assert records.contributors[0] == 30_000
    assert records.sum_weight[0] == 30_000


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("continuous", ["none", "all"])
@pytest.mark.parametrize("rectangle", [(0, 20, 0, 24), (3, 9, 5, 20), (13, 20, 0, 24), (7, 8, 23, 24)])
def test_a_tile_view_gives_the_bytes_of_a_copied_tile(depth, continuous, rectangle):
    job = make_job(9, depth, 20, 24, 3, continuous, place=(0, 0))
    r0, r1, c0, c1 = rectangle
    cut = (slice(None), slice(r0, r1), slice(c0, c1))
    rays = job.rays[r0 : r1 + 1, c0 : c1 + 1].copy()
    with Kernel(job.grid, Options(depth=depth)) as kernel:
        copied = kernel.map(
            job.intensity[cut].copy(),
            job.variance[cut].copy(),
            rays,
            job.tables,
            job.stationary,
            mask=job.mask[cut].copy(),
            place=(r0, c0),
        )
        viewed = kernel.map_view(
            [f.copy() for f in job.intensity],
            [f.copy() for f in job.variance],
            rays,
            job.tables,
            job.stationary,
            rectangle,
            mask=[f.copy() for f in job.mask],
        )
    assert len(copied)
    assert same_bytes(copied, viewed)


def test_bands_of_a_tile_merge_to_the_whole():
    job = make_job(6, 1, 30, 20, 2, "all")
    whole = job.map()
    parts = []
    with Kernel(job.grid, Options(depth=1)) as kernel:
        for r0, r1 in ((0, 11), (11, 12), (12, 30)):
            arrays = (np.ascontiguousarray(a[:, r0:r1]) for a in (job.intensity, job.variance))
            mask = np.ascontiguousarray(job.mask[:, r0:r1])
            rays = job.rays[r0 : r1 + 1].copy()
            parts.append(kernel.map(*arrays, rays, job.tables, job.stationary, mask=mask, place=(r0, 0)))
    assert_same_map(merge(parts), whole)
    assert same_bytes(merge(parts), add(add(parts[0], parts[1]), parts[2]))
    assert len(merge([])) == 0


# ---------------------------------------------------------------------------------------------- refusals


def refused(kernel, job, **replaced):
    names = ("intensity", "variance", "rays", "tables", "stationary", "mask")
    arguments = {name: getattr(job, name) for name in names} | replaced
    with pytest.raises((TypeError, ValueError)) as error:
        kernel.map(**arguments)
    return str(error.value)


def test_arrays_that_would_need_a_hidden_copy_are_refused():
    job = make_job(1, 1, 4, 6, 2)
    odd = np.zeros(job.intensity.size * 8 + 1, np.uint8)[1:].view(np.float64).reshape(job.intensity.shape)
    with Kernel(job.grid, Options(depth=1)) as kernel:
        for name in ("intensity", "variance", "rays", "tables"):
            array = getattr(job, name)
            assert "float64" in refused(kernel, job, **{name: array.astype(np.float32)})
            assert "contiguous" in refused(kernel, job, **{name: np.asfortranarray(array)})
            strided = np.repeat(array, 2, axis=-1)[..., ::2]
            assert "contiguous" in refused(kernel, job, **{name: strided})
            assert "NumPy" in refused(kernel, job, **{name: array.tolist()})
            assert "float64" in refused(kernel, job, **{name: array.astype(">f8")})
        assert "contiguous" in refused(kernel, job, intensity=odd)
        assert "bool" in refused(kernel, job, mask=job.mask.astype(np.uint8))
        assert "shape" in refused(kernel, job, mask=job.mask[:1])
        assert "shape" in refused(kernel, job, rays=job.rays[:-1].copy())
        assert "shape" in refused(kernel, job, tables=job.tables[:, :-1].copy())
        assert "bool" in refused(kernel, job, stationary=job.stationary.astype(int))
        frames = [f.copy() for f in job.intensity]
        for bad in ((0, 5, 0, 6), (2, 2, 0, 6), (-1, 3, 0, 6), (0, 4, 3, 7)):
            with pytest.raises(ValueError, match="rectangle"):
                kernel.map_view(frames, frames, job.rays, job.tables, job.stationary, bad)
        with pytest.raises(TypeError, match="float64"):
            kernel.map_view(
                [f.astype(np.float32) for f in frames], frames, job.rays, job.tables, job.stationary, (0, 4, 0, 6)
            )
    with pytest.raises(ValueError, match="closed"):
        kernel.map(*job.arrays())


@pytest.mark.parametrize("depth", [0, 1, 3, 5, 8])
@pytest.mark.parametrize("precheck", ["records", "leaves"])
def test_exactly_the_needed_budget_is_accepted(depth, precheck):
    job = make_job(1, depth, 3, 5, 2, "none", trouble=False)
    job.mask[:] = True
    need = 30 * bytes_per_sample(depth, False, precheck)
    assert len(job.map(budget=need, precheck=precheck)) == 0
    with pytest.raises(MappingError, match=f"at least {need} bytes, found {need - 30}"):
        job.map(budget=need - 30, precheck=precheck)


def test_bytes_per_sample_are_those_of_the_formula():
    assert [bytes_per_sample(d, False) for d in range(4)] == [208, 448, 448, 448]
    assert bytes_per_sample(3, False, "leaves") == 5248
    assert bytes_per_sample(5, True, "leaves") == 128 + 2 * 8**5 * 40
    assert bytes_per_sample(9, False) == 0


def test_a_job_whose_events_outgrow_the_budget_is_refused():
    # a thousand voxels in a pixel: the record-based precheck admits what the budget cannot hold
    job = make_job(3, 6, 6, 6, 1, "none", step=0.01, trouble=False)
    with pytest.raises(MappingError, match="events"):
        job.map(budget=36 * bytes_per_sample(6, False))
    assert len(job.map()) > 10_000


def test_a_large_detector_is_planned_in_few_bands():
    for depth in range(9):
        planned = bands(2527, 2463, 1, depth, False, 1 << 30)
        assert len(planned) < 20
        assert planned[0][0] == 0
        assert planned[-1][1] == 2527
        assert all(a[1] == b[0] for a, b in itertools.pairwise(planned))
    with pytest.raises(MappingError, match="one pixel"):
        bands(10, 10, 4, 2, False, 100)
    with pytest.raises(MappingError, match="one row"):
        bands(10, 10, 4, 2, False, 3000)


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [((2**21, 2**21, 2**22), (64, 64, 64)), ((10, 10, 10), (2048, 2048, 1024)), ((2**20, 2**20, 2**10), (8, 8, 8))],
)
def test_a_grid_too_large_for_its_ids_is_refused_by_both_sides(shape, chunk):
    with pytest.raises(ValueError, match="take a larger step"):
        Grid((0, 0, 0), (1, 1, 1), shape, chunk)
    job = make_job(1, 0, trouble=False)
    smuggled = Grid((0, 0, 0), (1, 1, 1), (1, 1, 1))
    object.__setattr__(smuggled, "shape", shape)
    object.__setattr__(smuggled, "chunk", chunk)
    job.grid = smuggled
    with pytest.raises(MappingError, match="ids"):
        job.map()


@pytest.mark.parametrize(
    "options",
    [{"depth": 9}, {"depth": -1}, {"threads": 0}, {"threads": 257}, {"subdivision": "corner"}, {"precheck": "x"},
     {"accumulate": "sort"}, {"instructions": "sse"}, {"order": "rows"},
     {"work_block": -1}, {"budget": -1}],
)  # fmt: skip
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        Options(**options)


def test_a_kernel_can_be_used_again_after_a_refusal():
    job = make_job(1, 2, 8, 8, 2)
    with Kernel(job.grid, Options(depth=2, threads=2)) as kernel:
        first = kernel.map(*job.arrays(), mask=job.mask)
        refused(kernel, job, intensity=job.intensity.astype(np.float32))
        small = make_job(2, 2, 2, 2, 1)
        kernel.map(*small.arrays(), mask=small.mask)
        assert same_bytes(first, kernel.map(*job.arrays(), mask=job.mask))


def test_the_grid_and_the_kernel_number_voxels_alike():
    rng = np.random.default_rng(0)
    for chunk in ((64, 64, 64), (3, 5, 7)):
        grid = Grid((-1, -2, 3), (0.1, 0.2, 0.3), (70, 33, 129), chunk)
        voxels = rng.integers(0, grid.shape, (500, 3))
        keys = grid.keys(voxels)
        np.testing.assert_array_equal(grid.indices(*keys), voxels)
        found, inside = grid.voxels(grid.centres(voxels))
        assert inside.all()
        np.testing.assert_array_equal(found, voxels)
    found, inside = grid.voxels([[np.nan, 0, 0], [np.inf, 0, 4], [-1, -2, 3], [6, -2, 3], [-1.0001, -2, 3]])
    assert inside.tolist() == [False, False, True, False, False]


# ---------------------------------------------------------------------------------------------- reject


@settings(quick, max_examples=150)
@given(jobs())
def test_rejecting_never_changes_a_record(job):
    for subdivision in SUBDIVISIONS:
        kept = job.map(subdivision=subdivision, reject=False)
        assert same_bytes(kept, job.map(subdivision=subdivision, reject=True))


@pytest.mark.parametrize(("continuous", "corners"), [("none", 4), ("all", 8)])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_grid_that_is_never_reached_costs_the_corners_alone(continuous, corners, depth):
    job = make_job(3, depth, 6, 5, 2, continuous, trouble=False)
    grid = job.grid
    far = np.array(grid.minimum) + 50 * np.array(grid.step) * np.array(grid.shape)
    job.grid = Grid(far, grid.step, grid.shape, grid.chunk)
    records, counters = job.map_counted(reject=True)
    assert len(records) == 0
    assert counters["skipped"] == counters["valid"] == 60
    assert counters["evaluations"] == 60 * corners
    records, counters = job.map_counted(reject=False)
    assert len(records) == counters["skipped"] == 0
    assert counters["evaluations"] > 60 * corners
    records, counters = job.map_counted(reject=True, subdivision="flat")
    assert len(records) == counters["evaluations"] == 0
    assert counters["skipped"] == 60


def test_a_grid_of_one_voxel_inside_a_pixel_skips_the_others():
    job = make_job(12, 3, 5, 5, 1, "none", step=0.05, trouble=False)
    records = job.map()
    middle = records.key()[len(records) // 2]
    voxel = job.grid.indices(np.array([middle >> np.uint64(32)]), np.array([middle & np.uint64(0xFFFFFFFF)]))[0]
    low = np.array(job.grid.minimum) + voxel * np.array(job.grid.step)
    job.grid = Grid(low, job.grid.step, (1, 1, 1))
    records, counters = job.map_counted(reject=True)
    assert len(records) == 1
    assert counters["skipped"] >= 20
    assert same_bytes(records, job.map(reject=False))
