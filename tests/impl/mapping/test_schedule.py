"""Three ways to run one plan give one map, and none of them can hang, lose a frame or hide a failure."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from made_scans import LAB, NOWHERE, files, job_file, made_job, records_of, slow_map

from impl.mapping import plan, run, schedule, stages
from impl.mapping.checkpoint import EmptyMap, Router
from impl.mapping.kernel import MappingError
from impl.mapping.schedule import SCHEDULES, Interrupted, Slots, Stop
from impl.mapping.work import Work, rays_to


def mapped(job, schedule="grouped", **how):
    """Map and add up a job; grid -> records."""
    run.map_job(job, schedule=schedule, **how)
    run.finalise(job)
    return {name: records_of(run.records_path(job, name)) for name, _ in job.grids}


def work_of(job, folder):
    """(work, router) of a fresh plan."""
    stack = job.open()
    one = run.make_plan(job, stack)
    return Work(job, stack, one), Router(folder, one, [name for name, _ in job.grids])


def ends(task, seconds=60):
    """Run a task in a thread that must end; returns what it raised. The seconds only turn a hang into a failure."""
    raised = []

    def body():
        try:
            task()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the run hangs"
    return raised[0] if raised else None


class Steps:
    """A Work some of whose steps are replaced; the others are the real ones."""

    def __init__(self, work, **steps):
        self._work = work
        for name, step in steps.items():
            setattr(self, name, step)

    def __getattr__(self, name):
        return getattr(self._work, name)


# ---------------------------------------------------------------------------------------------------- one map


@pytest.mark.parametrize(
    ("depth", "exposure", "frames_per_call", "counts"),
    [
        (0, "continuous", 2, "real"),
        (0, "stationary", 1, "integer"),
        (1, "continuous", 3, "real"),
        (2, "stationary", 4, "real"),
    ],
)
def test_the_map_is_that_of_the_slow_way(tmp_path, depth, exposure, frames_per_call, counts):
    job = made_job(
        tmp_path, depth=depth, exposure=exposure, frames_per_call=frames_per_call, counts=counts, frames=5, rows=9,
        columns=7, excluded=[2], grids=LAB, masked=0.1 if counts == "integer" else 0.0,
    )  # fmt: skip
    for name, found in mapped(job).items():
        expected = slow_map(job, name)
        assert found.key().tolist() == sorted(expected)
        for k, column in enumerate(found.columns()[2:]):
            np.testing.assert_allclose(column, [expected[key][k] for key in sorted(expected)], rtol=1e-12)


@pytest.mark.parametrize("frames_per_call", [1, 3])
def test_every_schedule_gives_the_same_bytes(tmp_path, frames_per_call):
    found = {}
    for name in SCHEDULES:
        job = made_job(tmp_path / name, frames=7, grids=LAB, frames_per_call=frames_per_call)
        mapped(job, name)
        found[name] = files(job.scratch, "*.part") | files(job.scratch, "*.records")
    assert found["inline"] == found["grouped"] == found["per-frame-pool"]
    assert len(found["inline"]) == 8


def test_ways_that_must_not_change_a_byte(tmp_path):
    found = []
    for k, how in enumerate(({}, {"fused": False}, {"layout": "copy"}, {"subdivision": "corner-cache"})):
        job = made_job(tmp_path / str(k), frames=4, depth=1)
        mapped(job, **how)
        found.append(files(job.scratch, "*.records"))
    assert all(other == found[0] for other in found)
    with pytest.raises(ValueError, match="layout: expected 'view' or 'copy', found 'views'"):
        run.map_job(made_job(tmp_path / "x"), layout="views")


@pytest.mark.parametrize("frames_per_call", [2, 4])
def test_grouped_contributors_equal_those_frame_by_frame(tmp_path, frames_per_call):
    single = mapped(made_job(tmp_path / "1", frames_per_call=1), "per-frame-pool")["hkl"]
    grouped = mapped(made_job(tmp_path / "f", frames_per_call=frames_per_call))["hkl"]
    assert single.key().tobytes() == grouped.key().tobytes()
    assert single.contributors.tobytes() == grouped.contributors.tobytes()
    np.testing.assert_allclose(single.sum_intensity, grouped.sum_intensity, rtol=1e-12)
    assert single.sum_intensity.tobytes() != grouped.sum_intensity.tobytes()  # the counts are not dyadic: order shows


@pytest.mark.parametrize("changed", [{"frames_per_call": 1}, {"budget": "200 MiB"}, {"checkpoints": 1}, {"threads": 1}])
def test_other_plans_differ_in_the_last_bits_at_most(tmp_path, changed):
    job = {"frames": 8, "rows": 300, "columns": 200}
    first, other = (
        mapped(made_job(tmp_path / "1", **job))["hkl"],
        mapped(made_job(tmp_path / "2", **job | changed))["hkl"],
    )
    assert first.key().tobytes() == other.key().tobytes()
    assert first.contributors.tobytes() == other.contributors.tobytes()
    np.testing.assert_allclose(first.sum_intensity, other.sum_intensity, rtol=1e-12)


def test_rays_that_start_beside_the_axes_are_those_of_the_detector(tmp_path):
    panel = made_job(tmp_path).instrument
    rows, columns, origin = np.arange(41) - 0.5, np.arange(21) - 0.5, np.array([1e-4, -2e-4, 3e-5])
    found = rays_to(np.ascontiguousarray(panel.position(rows[:, None], columns[None, :])), origin)
    assert found.tobytes() == panel.corner_rays(0, 40, 0, 20, origin).tobytes()


def test_a_sample_beside_the_axes_is_mapped_from_where_it_turned_to(tmp_path):
    found = []
    for name in ("cached", "not", "centred"):
        path = job_file(tmp_path / name, frames=4, frames_per_call=1, step=0.01)
        if name != "centred":
            path.write_text(path.read_text().replace("[crystal]", "[crystal]\nposition_mm = [2, 1, 3]"))
        job = run.Job.read(path)
        assert job.fixed_origin is (name == "centred")
        if name == "not":
            one = run.make_plan(job, job.open())
            folder = run.share_folder(job, (1, 1))
            folder.mkdir(parents=True)
            plan.write(plan.Plan(**one.content() | {"rays_cached": False}), folder / "plan.json")
        found.append(mapped(job)["hkl"])
    assert found[0].key().tobytes() == found[1].key().tobytes()
    assert found[0].sum_intensity.tobytes() == found[1].sum_intensity.tobytes()
    assert found[0].key().tobytes() != found[2].key().tobytes()


def test_shares_make_the_single_map(tmp_path):
    single = mapped(made_job(tmp_path / "1", frames=11))["hkl"]
    job = made_job(tmp_path / "3", frames=11)
    for index in (3, 1, 2):
        done = run.map_job(job, (index, 3))
        assert done.mapped == done.frames == (3, 4, 4)[index - 1]
        if index != 2:
            with pytest.raises(run.StorageError, match="expected 3 shares, found"):
                run.finalise(job)
    assert run.status(job).complete
    run.finalise(job, clean=True)
    found = records_of(run.records_path(job, "hkl"))
    assert not files(job.scratch, "*.part")
    assert found.key().tobytes() == single.key().tobytes()
    assert found.contributors.tobytes() == single.contributors.tobytes()
    for name in ("sum_intensity", "sum_variance", "sum_weight"):
        np.testing.assert_allclose(getattr(found, name), getattr(single, name), rtol=1e-12)
    with pytest.raises(run.StorageError, match="expected shares of 2, found share 1 of 3; go on with that split"):
        run.map_job(job, (1, 2))


# ---------------------------------------------------------------------------------------------------- going on


def test_going_on_maps_only_what_is_missing(tmp_path):
    job = made_job(tmp_path / "a", frames=12, checkpoints=6)
    run.map_job(job)
    before = files(job.scratch)
    assert run.map_job(job).mapped == 0
    folder = run.share_folder(job, (1, 1)) / "hkl"
    (folder / "r0002_p0000.part").unlink()
    (folder / "r0004_p0000.part").write_bytes(b"damaged")
    read, said = [], []
    original = Work.read

    def counted(self, frame):
        read.append(frame)
        return original(self, frame)

    Work.read = counted
    try:
        done = run.map_job(job, say=said.append)
    finally:
        Work.read = original
    assert sorted(read) == [4, 5, 8, 9]
    assert done.mapped == 4
    assert any("8 of 12 frames are there already" in text for text in said)
    assert any("r0004_p0000.part: expected a whole file of records" in text for text in said)
    assert files(job.scratch) == before


def test_a_stored_plan_is_never_chosen_again(tmp_path):
    job = made_job(tmp_path, frames=6, frames_per_call=3)
    run.map_job(job)
    before = files(job.scratch)
    said = []
    again = made_job(tmp_path, frames=6, frames_per_call=1, threads=1, budget="600 MiB", checkpoints=1)
    assert run.map_job(again, say=said.append).mapped == 0
    assert any("3 frames a call, as planned; 1 needs another scratch" in text for text in said)
    assert files(job.scratch) == before


def test_parts_of_another_library_are_added_up_but_not_gone_on_with(tmp_path, monkeypatch):
    job = made_job(tmp_path)
    run.map_job(job)
    monkeypatch.setattr(run, "library_digest", lambda: "f" * 64)
    with pytest.raises(run.StorageError, match="expected parts of the library ffffffffffff, found"):
        run.map_job(job)
    assert run.finalise(job)["hkl"]["frames_covered"] == 8


def test_another_job_is_refused_on_the_same_scratch(tmp_path):
    run.map_job(made_job(tmp_path))
    other = made_job(tmp_path, seed=2)
    for command in (run.map_job, run.status, run.finalise):
        with pytest.raises(run.StorageError, match="expected the state of job"):
            command(other)


def test_a_budget_that_makes_many_parts_gives_the_map_all_the_same(tmp_path):
    whole = mapped(made_job(tmp_path / "1", frames=6, frames_per_call=1, checkpoints=1))["hkl"]
    job = made_job(tmp_path / "2", frames=6, frames_per_call=1, checkpoints=1)
    stack = job.open()
    one = run.make_plan(job, stack)
    folder = run.share_folder(job, (1, 1))
    folder.mkdir(parents=True)
    plan.write(plan.Plan(**one.content() | {"flush_bytes": 8_000}), folder / "plan.json")
    found = mapped(job)["hkl"]
    assert len(files(job.scratch)) == 6
    assert found.key().tobytes() == whole.key().tobytes()
    assert found.contributors.tobytes() == whole.contributors.tobytes()
    np.testing.assert_allclose(found.sum_intensity, whole.sum_intensity, rtol=1e-12)


def chosen(folder, **changed):
    job = made_job(folder, frames_per_call=0, **changed)
    one = run.make_plan(job, job.open())
    return one.frames_per_call, one.evidence


def test_frames_a_call_are_timed_where_that_pays(tmp_path, monkeypatch):
    assert chosen(tmp_path) == (1, "too short a job for timing to pay")
    monkeypatch.setattr(run, "WORTH_TIMING", 0)
    coarse = {"frames": 20, "rows": 70, "columns": 60, "step": 0.2}
    timed = []

    def choose(kernel, pieces, travelled, is_monotone, affordable):
        timed.append([len(piece) for piece in pieces])
        found = real(kernel, pieces, travelled, is_monotone, affordable, rounds=1)
        assert set(found.evidence["candidates"]) <= {2, 4, 8, 16}
        assert affordable(1)
        assert not affordable(10**6)
        return found

    real = run.groups.choose
    monkeypatch.setattr(run.groups, "choose", choose)
    count, reason = chosen(tmp_path, **coarse)
    assert timed == [[16, 16]]
    assert count in (1, 2, 4, 8, 16)
    assert "pairs" in reason or "clearly faster" in reason
    # far apart, or interlaced by frames that are left out: not even tried
    assert chosen(tmp_path, frames=20, step=0.0005) == (1, AnyText("voxels apart"))
    assert timed[-1] == []


class AnyText(str):
    """Equal to any text that holds it."""

    def __eq__(self, other):
        return str(self) in other

    __hash__ = str.__hash__


# ---------------------------------------------------------------------------------------------------- empty maps


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_empty_grid_is_an_error_on_every_schedule_and_again(tmp_path, name):
    job = made_job(tmp_path, grids=NOWHERE)
    for _ in range(2):
        with pytest.raises(EmptyMap, match="grid 'nowhere': expected records of 8 frames, found none"):
            run.map_job(job, schedule=name)
    allowed = made_job(tmp_path, grids=NOWHERE, allow_empty="true")
    assert run.map_job(allowed, schedule=name).empty == ["nowhere"]
    assert run.finalise(allowed)["nowhere"]["rows"] == 0
    with pytest.raises(EmptyMap, match="grid 'nowhere'"):
        run.finalise(job)


def test_a_share_may_miss_a_grid_but_the_job_may_not(tmp_path):
    job = made_job(tmp_path, grids=NOWHERE)
    said = []
    for index in (1, 2):
        assert run.map_job(job, (index, 2), say=said.append).empty == ["nowhere"]
    assert "grid 'nowhere' is empty in share 2 of 2" in said
    with pytest.raises(EmptyMap, match="grid 'nowhere'"):
        run.finalise(job)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_lost_frame_is_named(tmp_path, name):
    job = made_job(tmp_path, frames=6, frames_per_call=1)
    work, router = work_of(job, tmp_path / "scratch")

    def read(frame):
        found = work.read(frame)
        if frame >= 1:  # all but one frame are lost
            found.counts[:] = np.nan
        return found

    error = ends(lambda: schedule.run(Steps(work, read=read), router, name))
    assert isinstance(error, EmptyMap)
    assert "expected pixels to map, found that all are masked or not finite; leave it out" in str(error)
    assert "frame " in str(error)


def test_frames_of_equal_content_are_said(tmp_path):
    said, original = [], Work.read
    Work.read = lambda self, frame: original(self, 3 if frame == 5 else frame)
    try:
        done = run.map_job(made_job(tmp_path), say=said.append)
    finally:
        Work.read = original
    assert done.equal == [(3, 5)]
    assert "frames 3 and 5 have equal content; was one read twice?" in said


# ---------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("step", ["read", "correct", "map"])
def test_a_failure_ends_the_run_with_that_failure(tmp_path, name, step):
    job = made_job(tmp_path, frames=12)
    work, router = work_of(job, tmp_path / "scratch")
    real, calls = getattr(work, step), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise MappingError(f"{step}: expected success, found the third call")
        return real(*arguments)

    error = ends(lambda: schedule.run(Steps(work, **{step: failing}), router, name))
    assert str(error) == f"{step}: expected success, found the third call"
    missing = [n for n in router.todo if router.needed(n)]
    assert missing
    # and what was written can be gone on with to the same bytes
    router = Router(tmp_path / "scratch", work.plan, ["hkl"])
    schedule.run(work, router, name)
    whole = Router(tmp_path / "whole", work.plan, ["hkl"])
    schedule.run(work, whole, "inline")
    assert files(tmp_path / "scratch") == files(tmp_path / "whole")


def test_the_first_failure_is_raised_after_the_others_have_ended(tmp_path, monkeypatch):
    job = made_job(tmp_path, frames=4, frames_per_call=2, checkpoints=2)
    work, router = work_of(job, tmp_path / "scratch")
    running, known, ended, real = threading.Event(), threading.Event(), [], schedule._Pools._may_start

    def may_start(pools, started):
        if pools.failure is not None:
            known.set()
        return real(pools, started)

    def read(frame):
        if frame == 1:
            assert running.wait(30)
            raise MappingError("first")
        if frame == 0:
            running.set()
            assert known.wait(30)  # still at work when the other's failure is known
            ended.append(frame)
            raise MappingError("second")
        return work.read(frame)

    monkeypatch.setattr(schedule._Pools, "_may_start", may_start)
    error = ends(lambda: schedule.run(Steps(work, read=read), router, "grouped"))
    assert str(error) == "first"
    assert ended == [0]


def test_calls_whose_frames_are_all_there_are_still_mapped(tmp_path):
    job = made_job(tmp_path, frames=2, frames_per_call=1, checkpoints=2)
    work, router = work_of(job, tmp_path / "scratch")
    other = threading.Event()

    def read(frame):
        if frame == 1:
            other.set()
            raise MappingError("frame 1")
        assert other.wait(30)
        return work.read(frame)

    assert str(ends(lambda: schedule.run(Steps(work, read=read), router, "grouped"))) == "frame 1"
    assert [n for n in router.todo if router.needed(n)] == [1]


def test_nothing_waits_with_a_time_out(tmp_path):
    """A reader that is slow by 30 polls of any length: the run must not depend on how long it waits."""
    job = made_job(tmp_path, frames=4, frames_per_call=2)
    work, router = work_of(job, tmp_path / "scratch")
    release, reports = threading.Event(), []

    def read(frame):
        if frame == 3:
            assert release.wait(30)
        return work.read(frame)

    def report(kind, facts):
        if kind == "watchdog":
            reports.append(facts)
            release.set()

    task = lambda: schedule.run(Steps(work, read=read), router, "grouped", report, watchdog=0.05)  # noqa: E731
    assert ends(task) is None
    router.finish()  # the watchdog spoke, and cut nothing
    assert reports[0]["outstanding"] >= 1
    assert "fill call" in reports[0]["tasks"]


def test_a_slow_first_frame_does_not_let_records_pile_up(tmp_path):
    job = made_job(tmp_path, frames=40, frames_per_call=1)
    work, router = work_of(job, tmp_path / "scratch")
    begun, release, most = set(), threading.Event(), []
    lock, window = threading.Lock(), work.plan.in_flight

    def read(frame):
        with lock:
            begun.add(frame)
            full = len(begun) >= window
        if full:
            release.set()
        if frame == 0:
            assert release.wait(30)
            with lock:
                most.append(len(begun))
        return work.read(frame)

    assert ends(lambda: schedule.run(Steps(work, read=read), router, "grouped")) is None
    assert most == [window]
    assert len(begun) == 40


def test_given_executors_are_used_and_left_running(tmp_path):
    job = made_job(tmp_path)
    work, router = work_of(job, tmp_path / "scratch")
    with ThreadPoolExecutor(5, "mine") as pool:  # more threads than kernels
        names = set()

        def read(frame):
            names.add(threading.current_thread().name.split("_")[0])
            return work.read(frame)

        schedule.run(Steps(work, read=read), router, "grouped", executors=(pool, pool))
        assert names == {"mine"}
        assert pool.submit(int, 3).result() == 3
    router.finish()


def test_a_pool_that_is_shut_down_ends_the_run(tmp_path):
    job = made_job(tmp_path)
    work, router = work_of(job, tmp_path / "scratch")
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    error = ends(lambda: schedule.run(work, router, "grouped", executors=(pool, pool)))
    assert "cannot schedule new futures after shutdown" in str(error)


def test_a_request_to_stop_ends_the_run_between_two_steps(tmp_path):
    for name in SCHEDULES:
        job = made_job(tmp_path / name, frames=12)
        work, router = work_of(job, tmp_path / name / "scratch")
        stop, calls = Stop(), []

        def read(frame, work=work, stop=stop, calls=calls):
            calls.append(frame)
            if len(calls) == 6:
                stop.signal = 15
                for tell in stop._tell:
                    tell()
            return work.read(frame)

        error = ends(lambda work=work, read=read, router=router, name=name, stop=stop: schedule.run(
            Steps(work, read=read), router, name, stop=stop))  # fmt: skip
        assert isinstance(error, Interrupted)
        assert error.signal == 15
        assert len(calls) < 12


def test_slots_are_claimed_and_completed_once():
    slots = Slots(3, (12, 13), ["a", "b"])
    assert slots.claim(1) == (13, "b")
    with pytest.raises(ValueError, match="call 3, slot 1: expected it unclaimed, found it claimed"):
        slots.claim(1)
    with pytest.raises(ValueError, match="call 3, slot 0: expected it claimed once, found it never claimed"):
        slots.complete(0, "facts")
    slots.complete(1, "facts")
    with pytest.raises(ValueError, match="found it completed twice"):
        slots.complete(1, "facts")
    with pytest.raises(ValueError, match="call 3, slot 0: expected frame 12, found none filled in"):
        slots.take()
    slots.claim(0)
    slots.complete(0, "more")
    assert slots.take() == ["more", "facts"]


def test_an_unfilled_slot_is_not_mapped(tmp_path, monkeypatch):
    job = made_job(tmp_path, frames=4)
    work, router = work_of(job, tmp_path / "scratch")
    monkeypatch.setattr(schedule.Slots, "complete", lambda self, slot, facts: None)
    error = ends(lambda: schedule.run(work, router, "grouped"))
    assert "found none filled in" in str(error)
    assert not files(tmp_path / "scratch")


def test_a_kernel_that_saw_fewer_samples_is_refused(tmp_path, monkeypatch):
    from impl.mapping.kernel import Kernel

    real = Kernel.counters
    monkeypatch.setattr(Kernel, "counters", lambda self: real(self) | {"samples": real(self)["samples"] - 1})
    with pytest.raises(MappingError, match="samples mapped, found"):
        run.map_job(made_job(tmp_path))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"excluded": [8]}, "job.excluded: expected frames below 8, found 8"),
        ({"excluded": ["0-7"]}, "job.excluded: expected frames left to map, found none"),
        ({"budget": "100 MiB"}, "budget: expected about"),
    ],
)
def test_jobs_that_cannot_be_planned_are_a_sentence(tmp_path, changed, words):
    with pytest.raises((run.SourceError, MappingError)) as error:
        run.map_job(made_job(tmp_path, **changed))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bad_schedule_or_nothing_to_go_on_with_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="schedule: expected one of inline, grouped, per-frame-pool, found 'pool'"):
        run.map_job(made_job(tmp_path), schedule="pool")
    with pytest.raises(run.StorageError, match="expected a run to go on with, found none; start it with map"):
        run.map_job(made_job(tmp_path / "b"), fresh=False)


# ---------------------------------------------------------------------------------------------------- stages


def test_stages_are_counted_and_put_back(tmp_path):
    before = [getattr(owner, name) for _, owner, name in stages.SITES]
    with stages.measured() as found:
        done = run.map_job(made_job(tmp_path, frames=6))
    assert [getattr(owner, name) for _, owner, name in stages.SITES] == before
    report = found.report(done.mapped, done.seconds)
    calls = {stage["stage"]: stage["calls"] for stage in report["stages"]}
    assert calls == {"read": 6, "correct": 6, "map": 3, "add": 3, "fold": 3, "write": 3, "finish part": 3}
    for stage in report["stages"]:
        assert stage["wall"] == pytest.approx(stage["on_core"] + stage["blocked"])
        assert 0 <= stage["on_core"] <= report["cpu_seconds"]
    assert stages.table(report)[0].startswith("stage")
    with pytest.raises(RuntimeError), stages.measured(probe=False):
        raise RuntimeError
    assert [getattr(owner, name) for _, owner, name in stages.SITES] == before


def test_on_core_and_blocked_are_told_apart():
    found, event = stages.Measured(), threading.Event()
    threading.Timer(0.2, event.set).start()
    found.wrap("read", event.wait)(30)

    def burn():
        begin = stages._on_core()
        while stages._on_core() - begin < 50_000_000:
            pass

    found.wrap("map", burn)()
    found.stop()
    read, mapping = found.report(1, 1.0)["stages"]
    assert read["blocked"] > 0.15 > read["on_core"]
    assert mapping["on_core"] >= 0.05
