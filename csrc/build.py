"""Builds the C libraries as Python extensions; run by setup.py, or by hand: python csrc/build.py NAME…

Each library NAME has its manual in csrc/NAME.h: the declarations between `/* declarations */` and
`/* end of declarations */` are handed to cffi as they stand, so the header is the only place where they are
written. The C sources of a library are csrc/NAME*.c; every csrc file named in `LIBRARIES` is part of its source
digest, which the library carries as NAME_source_digest().
"""

import functools
import hashlib
import os
import shutil
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
#: library -> (extension module, translation units, headers and included files)
LIBRARIES = {
    "events": ("impl.events._native", ["events.c"], ["events.h"]),
    "gnn": ("impl.gnn._native", ["gnn.c"], ["gnn.h", "gnn_step.h"]),
    "lgatr": ("impl.lgatr._native", ["lgatr.c"], ["lgatr.h", "lgatr_body.h"]),
    "mapping": (
        "impl.mapping._native",
        [
            "mapping.c",
            "mapping_correct.c",
            "mapping_records.c",
            "mapping_subdivide.c",
            "mapping_flat_plain.c",
            "mapping_flat_avx2.c",
            "mapping_flat_avx512.c",
        ],
        [
            "mapping.h",
            "mapping_internal.h",
            "mapping_lanes.h",
            "mapping_flat.inc",
            "mapping_sums.inc",
            "mapping_correct.inc",
        ],
    ),
}
# -ffp-contract=off: a contracted multiply-add moves last bits, so results would depend on the machine.
# -fno-trapping-math: nobody reads the exception flags, and to keep them GCC makes branches of clamps: no vectors then.
FLAGS = [
    "-O3",
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
]


def source_digest(name: str) -> str:
    """SHA-256 over the names and bytes of a library's files and of this script, as 64 hex digits."""
    _, units, headers = LIBRARIES[name]
    digest = hashlib.sha256()
    for file in sorted([*units, *headers, "build.py"]):
        digest.update(file.encode() + b"\0" + (HERE / file).read_bytes() + b"\0")
    return digest.hexdigest()


def builder(name: str, base: Path | None = None) -> FFI:
    """The cffi builder of one library; `base` is the folder that its relative paths start from (the current one)."""
    module, units, headers = LIBRARIES[name]
    # setuptools wants sources relative to the folder of setup.py, which is the current one when it builds.
    relative = {file: os.path.relpath(HERE / file, base) for file in [*units, *headers, "build.py"]}
    text = (HERE / f"{name}.h").read_text()
    declarations = text.split("/* declarations */", 1)[1].split("/* end of declarations */", 1)[0]
    ffi = FFI()
    ffi.cdef(declarations)
    ffi.set_source(
        module,
        f'#include "{name}.h"',
        sources=[relative[file] for file in units],
        include_dirs=[os.path.relpath(HERE, base)],
        depends=list(relative.values()),
        define_macros=[("HARNESS_SOURCE_DIGEST", f'"{source_digest(name)}"')],
        extra_compile_args=[*FLAGS, *os.environ.get("HARNESS_CFLAGS", "").split()],
        extra_link_args=["-pthread", *os.environ.get("HARNESS_LDFLAGS", "").split()],
        libraries=["m"],
    )
    return ffi


# cffi looks a builder up by name among this file's globals and calls it.
globals().update({name: functools.partial(builder, name) for name in LIBRARIES})


if __name__ == "__main__":
    root = HERE.parent
    for name in sys.argv[1:] or LIBRARIES:
        build = root / ".harness" / "build" / name
        build.mkdir(parents=True, exist_ok=True)
        built = Path(builder(name, build).compile(tmpdir=str(build), verbose=False))
        target = root / built.relative_to(build)
        temporary = target.with_suffix(".new")
        shutil.copy2(built, temporary)
        temporary.replace(target)  # never write into a library that a process has mapped
        print(target.relative_to(root))
