"""Instructions by callgrind: the same in every run, more for more work, and only what was asked for."""

import sys

import pytest

from harness import instructions
from harness.errors import UnfitError
from harness.process import VoidSlot

needs_valgrind = pytest.mark.skipif(not instructions.available(), reason="valgrind is not installed")

# a protocol arm without imports, whose set-up costs far more than its iterations
ARM = """
import sys
def say(text): sys.stdout.write(text + chr(10)); sys.stdout.flush()
say('{"kind":"header","schema":1,"workload":"w","clock":"scripted"}')
for line in sys.stdin:
    if 'setup' in line:
        sum(i for i in range(100000))
        say('{"kind":"phase","name":"setup","seconds":1,"cpu_seconds":1}')
    elif 'iterate' in line:
        sum(i for i in range(%d))
        phase = 'warmup' if 'warmup' in line else 'steady'
        say('{"kind":"iteration","phase":"%%s","index":0,"seconds":1,"cpu_seconds":1}' %% phase)
    else:
        say('{"kind":"closed"}')
        break
"""


def count(command, speaks_protocol=False):
    return instructions.count(command, cwd="/", environment={}, speaks_protocol=speaks_protocol, timeout=60)


def loop(turns):
    return count(["sh", "-c", f"i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done"]).instructions


@needs_valgrind
def test_a_command_counts_the_same_every_time_and_more_when_it_does_more():
    runs = [loop(2000) for _ in range(2)]
    assert max(runs) - min(runs) < 0.001 * min(runs)
    more = loop(4000) - runs[0]
    assert 1_000 < more / 2000 < 100_000


@needs_valgrind
def test_programs_that_a_command_starts_count_and_mere_forks_do_not():
    alone = count(["sh", "-c", "true"])
    started = count(["sh", "-c", "/bin/true; true"])
    forked = count(["sh", "-c", "(:); true"])
    assert started.instructions > alone.instructions + 10_000
    assert (alone.forked, started.forked, forked.forked) == (0, 0, 1)
    assert forked.instructions < started.instructions


@needs_valgrind
def test_a_command_reads_its_standard_input(tmp_path):
    path = tmp_path / "given"
    path.write_text("here")
    command = ["sh", "-c", 'read -r word || test "$word" = here']
    assert instructions.count(
        command, cwd="/", environment={}, speaks_protocol=False, timeout=60, stdin=path
    ).instructions
    with pytest.raises(VoidSlot, match="exit"):
        count(command)


@needs_valgrind
def test_linear_algebra_gets_one_thread_unless_somebody_chose(monkeypatch):
    """OpenBLAS's idle threads spin, which alone varies the count of `import numpy` by millions."""
    for variable in instructions.ONE_THREAD:
        monkeypatch.delenv(variable, raising=False)
    command = ["sh", "-c", 'test "$OMP_NUM_THREADS$OPENBLAS_NUM_THREADS$MKL_NUM_THREADS" = 111']
    count(command)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(VoidSlot, match="exit"):
        count(command)


@pytest.mark.slow
@needs_valgrind
def test_an_arms_count_is_one_iteration_without_its_set_up():
    words = [sys.executable, "-S", "-c"]
    short, long = (count([*words, ARM % turns], speaks_protocol=True).instructions for turns in (2000, 4000))
    turn = (long - short) / 2000
    assert 10 < turn < 1000
    assert short < 5000 * turn


def test_without_valgrind_it_is_a_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnfitError, match="metric 'instructions': expected valgrind, found none on PATH; install it"):
        count(["true"])
