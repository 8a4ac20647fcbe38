"""The kernel's own tests once more, with a library that watches every access and every undefined operation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_twins import build, compiler

ROOT = Path(__file__).resolve().parents[3]
TESTS = ("records", "groups", "fuzz", "correction", "kernel", "variants")
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


def watched() -> dict[str, str]:
    """The environment in which a library with sanitizers can be loaded into Python."""
    runtime = subprocess.run(
        [*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(runtime).is_absolute():
        if os.environ.get("CI") == "true":
            pytest.fail("expected a compiler with sanitizers, found none; install libasan")
        pytest.skip("needs a compiler with sanitizers")
    return os.environ | {
        "LD_PRELOAD": runtime,
        # Python itself keeps memory to its end; leaks are looked for by the allocation test.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree whose mapping library is built with sanitizers, and the environment to run it in."""
    folder = tmp_path_factory.mktemp("tree")
    environment = watched() | {"PYTHONPATH": str(folder)}
    for part in ("impl", "harness", "csrc", "tests/impl/mapping"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for part in ("pyproject.toml", "tests/data", "scenarios"):
        (folder / part).symlink_to(ROOT / part)
    # Without optimisation: it takes minutes over the instrumented loops, and would leave accesses out.
    making = os.environ | {"HARNESS_CFLAGS": f"-O0 -g {' '.join(FLAGS)}", "HARNESS_LDFLAGS": " ".join(FLAGS)}
    subprocess.run([sys.executable, "csrc/build.py", "mapping"], cwd=folder, env=making, check=True)
    loaded = subprocess.run(
        [sys.executable, "-c", "import impl.mapping._native as n; print(n.__file__)"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert loaded.stdout.startswith(str(folder))
    return folder, environment


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TESTS)
def test_the_kernels_tests_pass_under_sanitizers(tree, name):
    folder, environment = tree
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "pythonpath=",
               "-o", "timeout=3000"]  # fmt: skip
    command.append(f"tests/impl/mapping/test_{name}.py")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "passed" in done.stdout


ADD = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[2])
import kernel_twins
from test_records import pairs
from impl.mapping.records import add
kernel_twins.use(SimpleNamespace(setattr=setattr), sys.argv[1])
print(sum(len(add(left, right)) for left, right in pairs()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([], ""),
        ([("while (i < a.count && j < b.count) {", "while (i <= a.count && j < b.count) {")], "AddressSanitizer"),
        ([("x = key_of(&a, i), y", "x = key_of(&a, i) << (64 - (i > 40)), y")], "shift exponent 64"),
    ],
)
def test_sanitizers_see_a_broken_library(tmp_path, changes, words):
    library = build(tmp_path, [("mapping_records.c", *change) for change in changes], ["-g", *FLAGS])
    command = [sys.executable, "-c", ADD, str(library), str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=ROOT, env=watched(), capture_output=True, text=True)
    assert (done.returncode == 0) == (not changes), done.stderr
    assert words in done.stderr
