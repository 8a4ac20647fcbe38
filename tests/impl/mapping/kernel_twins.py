"""Builds broken twins of the C library: the same sources with one thing changed, loaded beside the real one."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from cffi import FFI

from impl.mapping import kernel

CSRC = Path(__file__).resolve().parents[3] / "csrc"
specification = importlib.util.spec_from_file_location("harness_csrc_build", CSRC / "build.py")
build_script = importlib.util.module_from_spec(specification)
specification.loader.exec_module(build_script)
UNITS = tuple(build_script.LIBRARIES["mapping"][1])


def compiler() -> list[str]:
    """The C compiler of Python extensions; under a sanitizer, which watches no twin, the test is skipped."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("what is built here is not what the sanitizer watches")
    return (sysconfig.get_config_var("CC") or "cc").split()[:1]


def build(folder, changes=(), flags=()):
    """Compile the library with text replaced in its sources: changes are (file, old, new); returns the path.

    It is compiled as for a machine of which nothing is known: plain C alone.
    """
    folder = Path(folder)
    for file in CSRC.glob("mapping*"):
        if file.suffix in (".c", ".h", ".inc"):
            plain = file.read_text().replace("#if defined(__x86_64__) && defined(__GNUC__)", "#if 0")
            (folder / file.name).write_text(plain)
    for name, old, new in changes:
        text = (folder / name).read_text()
        if text.count(old) != 1:
            raise AssertionError(f"{name}: expected '{old}' once, found {text.count(old)}")
        (folder / name).write_text(text.replace(old, new))
    out = folder / "twin.so"
    subprocess.run(
        [*compiler(), "-std=c11", "-O0", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-ffp-contract=off",
         '-DHARNESS_SOURCE_DIGEST="twin"', *flags, *(str(folder / unit) for unit in UNITS), "-o", str(out), "-lm"],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
    return out


def use(monkeypatch, path) -> None:
    """Let impl.mapping.kernel call the library at path."""
    text = (CSRC / "mapping.h").read_text()
    ffi = FFI()
    ffi.cdef(text.split("/* declarations */", 1)[1].split("/* end of declarations */", 1)[0])
    library = ffi.dlopen(str(path))
    monkeypatch.setattr(kernel, "_ffi", ffi)
    monkeypatch.setattr(kernel, "_lib", library)
