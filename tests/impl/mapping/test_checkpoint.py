"""Parts on disk and the router: what is written is what was added, whatever the order, the cuts and the damage."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from impl.mapping import checkpoint, parts, plan
from impl.mapping.checkpoint import EmptyMap, Facts, Levels, Lock, Router, duplicates, finalise, guard_empty
from impl.mapping.parts import Part, StorageError, Summary, Writer, merged
from impl.mapping.records import COLUMNS, Records

JOB = "a" * 64


def batch(seed, rows=200, chunks=9, voxels=50):
    """Records with sums that no order keeps exactly."""
    rng = np.random.default_rng(seed)
    key = np.unique(rng.integers(0, chunks * voxels, rows))
    n = len(key)
    return Records(
        (key // voxels).astype(np.uint32),
        (key % voxels).astype(np.uint32),
        rng.normal(5, 3, n),
        rng.uniform(0, 9, n),
        rng.uniform(0.01, 4, n),
        rng.integers(1, 9, n).astype(np.uint32),
    )


def reference(batches):
    """key -> sums, added in the order given by plain Python."""
    out = {}
    for records in batches:
        for key, *row in zip(records.key().tolist(), *(column.tolist() for column in records.columns()[2:])):
            old = out.setdefault(key, [0.0, 0.0, 0.0, 0])
            for k, value in enumerate(row):
                old[k] += value
    return out


def assert_is(records, batches, rtol=1e-13):
    expected = reference(batches)
    assert records.key().tolist() == sorted(expected)
    for k, name in enumerate(COLUMNS[2:]):
        np.testing.assert_allclose(getattr(records, name), [expected[key][k] for key in sorted(expected)], rtol=rtol)


def content(records):
    return b"".join(column.tobytes() for column in records.columns())


def make_plan(frames=range(16), frames_per_call=2, checkpoints=3, flush_bytes=1 << 30, **changed):
    calls, ranges = plan.cut_ranges(frames, frames_per_call, checkpoints)
    given = {
        "job": JOB, "share": (1, 1), "calls": calls, "ranges": ranges, "bands": ((0, 4),), "evidence": "given",
        "frames_per_call": frames_per_call, "workers": 1, "threads": 1, "in_flight": 2, "readers": 1, "work_block": 0,
        "kernel_bytes": 1, "flush_bytes": flush_bytes, "rays_cached": True, "library": "c" * 64,
    }  # fmt: skip
    return plan.Plan(**given | changed)


def facts(call):
    return [Facts(frame, f"xxh3-128:{frame:032x}", 10, ((2.0, 4.0, None),)) for frame in call]


def insert(router, call, made=None):
    frames = router.plan.calls[call]
    router.insert(frames, made or {grid: batch(call * 10 + k) for k, grid in enumerate(router.grids)}, facts(frames))


def run(folder, made_plan, order=None, grids=("g",), stop=None):
    router = Router(folder, made_plan, grids)
    for call in [n for n in (order or router.todo) if n in router.todo][:stop]:
        insert(router, call)
    return router


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.part"))}


# ---------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("rows", [0, 1, 5000])
@pytest.mark.parametrize("block", [7, 1 << 19])
def test_what_is_written_is_read(tmp_path, monkeypatch, rows, block):
    monkeypatch.setattr(parts, "BLOCK_ROWS", block)
    records = batch(1, rows, chunks=90)
    with Writer(tmp_path / "a.part") as writer:
        for first in range(0, len(records), 1000):
            writer.append(Records(*(column[first : first + 1000] for column in records.columns())))
        footer = writer.finish({"said": [1, "two"]})
    part = Part(tmp_path / "a.part")
    part.verify()
    assert part.footer == footer
    assert footer["said"] == [1, "two"]
    assert footer["zero_records"] is (rows == 0)
    assert content(part.read(0, part.rows)) == content(records)
    for first, last in ((0, min(3, rows)), (len(records) // 3, len(records) // 2), (5, 5)):
        assert content(part.read(first, last)) == content(Records(*(c[first:last] for c in records.columns())))
    ids, starts = np.unique(records.chunk, return_index=True)
    assert part.ids.tolist() == ids.tolist()
    assert part.starts.tolist() == [*starts.tolist(), len(records)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.part"]


def test_columns_have_one_checksum_however_they_are_cut(tmp_path, monkeypatch):
    found = []
    for block in (11, 1 << 19):
        monkeypatch.setattr(parts, "BLOCK_ROWS", block)
        with Writer(tmp_path / "a.part") as writer:
            writer.append(batch(3))
            found.append(writer.finish({})["columns"])
    assert found[0] == found[1]


def test_every_damaged_byte_is_detected(tmp_path):
    with Writer(tmp_path / "a.part") as writer:
        writer.append(batch(1, 40))
        writer.finish({"job": JOB})
    data = (tmp_path / "a.part").read_bytes()
    for place in range(len(parts.MAGIC), len(data)):
        bad = bytearray(data)
        bad[place] ^= 0x10
        (tmp_path / "b.part").write_bytes(bad)
        with pytest.raises(StorageError, match=r"b\.part: expected a whole file of records, found"):
            Part(tmp_path / "b.part").verify()
    for size in (0, 5, 100, len(data) - 1):
        (tmp_path / "b.part").write_bytes(data[:size])
        with pytest.raises(StorageError):
            Part(tmp_path / "b.part").verify()


def test_keys_out_of_order_are_refused(tmp_path):
    with Writer(tmp_path / "a.part") as writer:
        writer.append(batch(1))
        with pytest.raises(ValueError, match="expected keys above"):
            writer.append(batch(1))
    assert not list(tmp_path.iterdir())


def full_disk(monkeypatch, buffering=-1):
    """Every part is written to a device that is full."""
    monkeypatch.setattr(parts, "open_new", lambda path: Path("/dev/full").open("wb", buffering))  # noqa: SIM115


def write_one(path):
    with Writer(path) as writer:
        writer.append(batch(1))
        writer.finish({})


@pytest.mark.parametrize("buffering", [0, -1])  # the write fails at once, or when the file is finished
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch, buffering):
    full_disk(monkeypatch, buffering)
    with pytest.raises(
        StorageError, match=r"a\.part: expected room to write, found No space left on device; make room"
    ):
        write_one(tmp_path / "a.part")
    assert not list(tmp_path.iterdir())


def test_windows_have_the_bytes_of_the_whole(tmp_path):
    made = [batch(k, rows=300) for k in range(5)] + [Records.empty()]
    for k, records in enumerate(made):
        with Writer(tmp_path / f"{k}.part") as writer:
            writer.append(records)
            writer.finish({})
    opened = [Part(tmp_path / f"{k}.part") for k in range(6)]
    whole = list(merged(opened))
    assert len(whole) == 1
    assert_is(whole[0], made)
    for rows in (1, 300, 800):
        windows = list(merged(opened, rows))
        assert len(windows) > 1
        joined = Records(*map(np.concatenate, zip(*(w.columns() for w in windows))))
        assert content(joined) == content(whole[0])
    assert list(merged([opened[5]])) == []


# ---------------------------------------------------------------------------------------------------- summaries


def affine_fingerprint(records):
    """The twin: a hash that is affine in the key."""
    key = records.chunk.astype(np.uint64) * np.uint64(1000003) + records.local
    return int((key * records.contributors).sum(dtype=np.uint64))


def test_the_fingerprint_sees_two_contributors_that_move_apart():
    ones = np.ones(4)
    records = [
        Records(np.zeros(4, np.uint32), np.array(local, np.uint32), ones, ones, ones, np.ones(4, np.uint32))
        for local in ([10, 20, 30, 40], [11, 19, 30, 40])
    ]
    found = [Summary(), Summary()]
    for summary, made in zip(found, records):
        summary.add(made)
    assert affine_fingerprint(records[0]) == affine_fingerprint(records[1])
    for half in (slice(0, 16), slice(16, 32)):
        assert found[0].fingerprint[half] != found[1].fingerprint[half]


def test_the_fingerprint_does_not_depend_on_the_cuts():
    made = [batch(k) for k in range(4)]
    apart, together = Summary(), Summary()
    for records in made:
        one = Summary()
        one.add(records)
        apart.include(one.facts())
    levels = Levels()
    for records in made:
        levels.insert(records)
    together.add(levels.take())
    assert apart.fingerprint == together.fingerprint
    assert apart.contributors == together.contributors
    assert apart.rows > together.rows
    assert apart.sum_intensity == pytest.approx(together.sum_intensity, rel=1e-13)
    # splitmix64 of Steele, Lea & Flood: the published first outputs of seed 0 are those of the counter's multiples
    gamma = np.array([0, 0x9E3779B97F4A7C15], np.uint64)
    assert [f"{x:x}" for x in parts.splitmix64(gamma)] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4"]


# ---------------------------------------------------------------------------------------------------- the router


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_levels_equal_the_direct_sum(count):
    made, levels = [batch(k) for k in range(count)], Levels()
    for records in made:
        levels.insert(records)
    assert_is(levels.take(), made)
    assert (levels.bytes, levels.batches, len(levels.take())) == (0, 0, 0)


@pytest.mark.parametrize("flush_bytes", [1, 8_000, 1 << 30])
def test_any_order_gives_the_same_files(tmp_path, flush_bytes):
    one = make_plan(flush_bytes=flush_bytes)
    run(tmp_path / "a", one, grids=("g", "h")).finish()
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(one.calls)).tolist()
        run(tmp_path / f"b{seed}", one, order, grids=("g", "h")).finish()
        assert files(tmp_path / f"b{seed}") == files(tmp_path / "a")
    assert len(files(tmp_path / "a")) == {1: 16, 8_000: 10, 1 << 30: 6}[flush_bytes]


def test_adding_in_order_of_arrival_would_not_give_the_same_bytes():
    made, orders = [batch(k) for k in range(8)], (range(8), (3, 1, 0, 2, 7, 5, 4, 6))
    sums = []
    for order in orders:
        levels = Levels()
        for k in order:
            levels.insert(made[k])
        sums.append(levels.take())
    assert sums[0].key().tobytes() == sums[1].key().tobytes()
    assert content(sums[0]) != content(sums[1])


def test_threads_that_insert_at_once_lose_nothing(tmp_path):
    one = make_plan(range(64), 1, 4, flush_bytes=9_000)
    run(tmp_path / "a", one).finish()
    router, errors = Router(tmp_path / "b", one, ("g",)), []
    gate = threading.Barrier(8)

    def work(first):
        gate.wait()
        try:
            for call in range(first, 64, 8):
                insert(router, call)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    router.finish()
    assert not errors
    assert files(tmp_path / "b") == files(tmp_path / "a")


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_run_that_stopped_anywhere_goes_on_to_the_same_files(tmp_path, stop):
    one = make_plan(flush_bytes=8_000)
    run(tmp_path / "a", one).finish()
    run(tmp_path / "b", one, stop=stop)
    before = files(tmp_path / "b")
    (tmp_path / "b" / "g" / "r0002_p0000.part.tmp").write_bytes(b"half a part")
    router = Router(tmp_path / "b", one, ("g",))
    covered = {n for n in range(8) if n not in router.todo}
    assert all(files(tmp_path / "b")[name] == data for name, data in before.items())
    assert len(covered) <= stop  # only whole parts count
    assert router.frames_covered() == 2 * len(covered)
    for call in router.todo:
        insert(router, call)
    router.finish()
    assert files(tmp_path / "b") == files(tmp_path / "a")
    assert Router(tmp_path / "b", one, ("g",)).todo == []


def test_a_resumed_run_maps_only_what_one_grid_lacks(tmp_path):
    one = make_plan(range(6), 1, 3)
    run(tmp_path, one, grids=("g", "h")).finish()
    before = files(tmp_path)
    (tmp_path / "h" / "r0001_p0000.part").unlink()
    router = Router(tmp_path, one, ("g", "h"))
    assert router.todo == [2, 3]
    assert router.needed(2) == ("h",)
    for call in (2, 3):
        router.insert(one.calls[call], {"h": batch(call * 10 + 1)}, facts(one.calls[call]))
    router.finish()
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:200] + b"\0" + data[201:], "differs from its checksum"),
        (lambda data: data[:-9], "another ending"),
        (lambda data: b"", "0 bytes"),
    ],
)
def test_a_damaged_part_is_named_and_mapped_again(tmp_path, damage, words):
    one = make_plan(flush_bytes=1)
    run(tmp_path, one).finish()
    before, said = files(tmp_path), []
    path = tmp_path / "g" / "r0001_p0001.part"
    path.write_bytes(damage(path.read_bytes()))
    router = Router(tmp_path, one, ("g",), said.append)
    assert words in said[0]
    assert path.name in said[0]
    assert "expected the parts before it" in said[1]  # what followed it in its range goes too
    assert router.todo == [n for n in range(*one.ranges[1]) if n > one.ranges[1][0]]
    for call in router.todo:
        insert(router, call)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "other",
    [{"job": "b" * 64}, {"frames_per_call": 1}, {"checkpoints": 2}, {"flush_bytes": 5}, {"threads": 2}, {"bands": ()}],
)
def test_parts_of_another_plan_are_not_taken(tmp_path, other):
    run(tmp_path, make_plan()).finish()
    said = []
    router = Router(tmp_path, make_plan(**other), ("g",), said.append)
    assert len(router.todo) == len(router.plan.calls)
    assert said
    assert not files(tmp_path)


def test_frames_that_are_no_call_are_refused(tmp_path):
    router = Router(tmp_path, make_plan(range(8), 2, 2), ("g",))

    def refused(frames, words, given=None):
        with pytest.raises(ValueError, match=words):
            router.insert(frames, {"g": batch(0)}, given or facts(frames))

    refused((3, 4), r"frames \[3, 4\]: expected frames of one range, found that they straddle \[0, 1\]")
    refused((1, 2), "another cut")
    refused((0,), "another cut")
    refused((8, 9), "found others")
    refused((), "found others")
    refused((0, 1), "expected one fact each", facts((0, 2)))
    insert(router, 0)
    refused((0, 1), "expected them once, found them again")


def test_after_a_failed_write_nothing_enters_any_more(tmp_path, monkeypatch):
    one = make_plan(range(8), 1, 1, flush_bytes=1)
    router = Router(tmp_path, one, ("g",))
    insert(router, 0)
    full_disk(monkeypatch)
    with pytest.raises(StorageError, match="No space left"):
        insert(router, 1)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="No space left"):
        insert(router, 2)
    assert list(files(tmp_path)) == ["g/r0000_p0000.part"]
    with pytest.raises(ValueError, match="expected all 8 calls in parts, found 7 missing, the first is call 1"):
        router.finish()
    router = Router(tmp_path, one, ("g",))
    for call in router.todo:
        insert(router, call)
    run(tmp_path / "whole", one).finish()
    assert files(tmp_path / "whole") == {k: v for k, v in files(tmp_path).items() if not k.startswith("whole")}


def test_one_empty_grid_among_several_is_named(tmp_path):
    one = make_plan(range(4), 1, 2)
    for _ in range(2):  # also when everything is there already: an empty part must not be believed
        router = Router(tmp_path, one, ("full", "hollow"))
        for call in router.todo:
            router.insert(one.calls[call], {"full": batch(call), "hollow": Records.empty()}, facts(one.calls[call]))
        router.finish()
        assert Part(tmp_path / "hollow" / "r0000_p0000.part").footer["zero_records"] is True
        assert guard_empty(router, allow_empty=True) == ["hollow"]
        with pytest.raises(EmptyMap, match="grid 'hollow': expected records of 4 frames, found none; check its range"):
            guard_empty(router, allow_empty=False)
    assert Router(tmp_path, one, ("full", "hollow")).needed(0) == ("hollow",)
    run(tmp_path / "good", one).finish()
    assert guard_empty(Router(tmp_path / "good", one, ("g",)), allow_empty=False) == []


def test_frames_of_equal_content_are_flagged():
    made = [{"frame": k, "digest": digest} for k, digest in enumerate("abcabd")]
    assert duplicates(made) == [(0, 3), (1, 4)]
    assert duplicates(made[:3]) == []


def test_a_scratch_has_one_run(tmp_path):
    first = Lock(tmp_path)
    with pytest.raises(StorageError, match=r"expected no other run on this scratch, found process \d+; wait for it"):
        Lock(tmp_path)
    first.release()
    Lock(tmp_path).release()
    with pytest.raises(StorageError, match="a scratch folder"):
        Lock(tmp_path / "missing")


# ---------------------------------------------------------------------------------------------------- the end


def test_the_final_file_is_the_sum_and_tells_its_frames(tmp_path):
    one = make_plan(flush_bytes=8_000)
    router = run(tmp_path, one)
    footer = finalise(JOB, range(16), [router], "g", tmp_path / "g.map", window=100)
    part = Part(tmp_path / "g.map")
    part.verify()
    assert_is(part.read(0, part.rows), [batch(call * 10) for call in range(8)])
    assert footer["frames_covered"] == 16
    assert [fact["frame"] for fact in footer["frames"]] == list(range(16))
    assert footer["frames"][3]["factors"] == [[2.0, 4.0, None]]
    finalise(JOB, range(16), [router], "g", tmp_path / "h.map")
    assert Part(tmp_path / "h.map").footer["columns"] == footer["columns"]  # whatever the window


def test_shares_add_up_to_the_single_job(tmp_path):
    shares = [plan.share_of(range(10), (k, 3)) for k in (1, 2, 3)]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    routers = []
    for k, frames in enumerate(shares):
        one = make_plan(frames, 1, 2, share=(k + 1, 3))
        router = Router(tmp_path / str(k), one, ("g",))
        for (frame,) in one.calls:
            router.insert((frame,), {"g": batch(frame)}, facts((frame,)))
        routers.append(router)
    finalise(JOB, range(10), routers[::-1], "g", tmp_path / "g.map")
    part = Part(tmp_path / "g.map")
    assert_is(part.read(0, part.rows), [batch(k) for k in range(10)], rtol=1e-12)
    with pytest.raises(StorageError, match="expected 10 frames in parts of grid 'g', found 3 missing, the first is 3"):
        finalise(JOB, range(10), [routers[0], routers[2]], "g", tmp_path / "x.map")
    with pytest.raises(StorageError, match="some twice"):
        finalise(JOB, range(10), [*routers, routers[1]], "g", tmp_path / "x.map")
    with pytest.raises(StorageError, match="a part of job bbbb"):
        finalise("b" * 64, range(10), routers, "g", tmp_path / "x.map")
    assert not (tmp_path / "x.map").exists()


def test_a_final_file_that_lost_a_record_is_refused(tmp_path, monkeypatch):
    router = run(tmp_path, make_plan())

    def short(parts_, window):
        for records in merged(parts_, window):
            yield Records(*(column[1:] for column in records.columns()))

    monkeypatch.setattr(checkpoint, "merged", short)
    with pytest.raises(StorageError, match="contributors"):
        finalise(JOB, range(16), [router], "g", tmp_path / "g.map")
    assert not (tmp_path / "g.map").exists()


# ---------------------------------------------------------------------------------------------------- the plan


def test_calls_keep_size_gaps_and_ranges():
    calls, ranges = plan.cut_ranges([0, 1, 2, 3, 4, 6, 7, 8], 2, 3)
    assert calls == ((0, 1), (2, 3), (4,), (6, 7), (8,))
    assert ranges == ((0, 1), (1, 3), (3, 5))
    assert plan.cut_ranges(range(6), 4, 1, breaks=(3,))[0] == ((0, 1, 2), (3, 4, 5))
    calls, ranges = plan.cut_ranges(range(100), 4, 10)
    assert sum(map(len, calls)) == 100
    assert len(ranges) == 10
    assert [a for a, _ in ranges[1:]] == [b for _, b in ranges[:-1]]
    assert len(plan.cut_ranges([5], 4, 10)[1]) == 1


@pytest.mark.parametrize("depth", range(9))
@pytest.mark.parametrize("grids", [1, 2])
def test_shares_of_the_budget_add_up_and_bands_are_few(depth, grids):
    for threads in (1, 2, 8):
        for frames in (1, 2, 4):
            budget = 4 << 30
            made = plan.layout((2527, 2463), frames, depth, True, grids, budget, threads, 2)
            assert sum(made.parts.values()) <= budget
            assert len(made.bands) < 20
            assert made.bands[0][0] == 0
            assert made.bands[-1][1] == 2527
            assert [a for a, _ in made.bands[1:]] == [b for _, b in made.bands[:-1]]
            assert made.workers * made.threads <= threads
            assert made.in_flight > made.workers >= 1
            assert 2 * made.flush_bytes * grids <= budget // 4


def test_workers_do_not_grow_with_the_frames_a_call():
    workers = [plan.layout((2527, 2463), f, 0, True, 1, 10 << 30, 24, 4).workers for f in (1, 2, 4, 8)]
    assert workers == sorted(workers, reverse=True)
    assert workers[0] > workers[-1] >= 1


def test_a_budget_that_is_too_small_says_what_is_needed():
    with pytest.raises(plan.MappingError) as error:
        plan.layout((2527, 2463), 4, 0, True, 1, 1 << 30, 2, 2)
    need = int(str(error.value).split("about ")[1].split()[0])
    plan.layout((2527, 2463), 4, 0, True, 1, need + 1_000_000, 2, 2)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    one = make_plan()
    plan.write(one, tmp_path / "plan.json")
    assert plan.read(tmp_path / "plan.json") == one
    assert plan.read(tmp_path / "plan.json").digest() == one.digest()
    assert plan.read(tmp_path / "none.json") is None
    for text in ("{", "[]", "{}", json.dumps({"job": 1})):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(StorageError, match="expected a plan, found none"):
            plan.read(tmp_path / "plan.json")


@pytest.mark.parametrize("share", [(0, 2), (3, 2), (1, 0), (-1, 2), (1, 11)])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="share: expected"):
        plan.share_of(range(10), share)
