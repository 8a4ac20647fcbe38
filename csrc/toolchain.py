"""Says in one sentence what is missing to build the C libraries, before pip prints a page about it."""

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path


def missing() -> str | None:
    """What is missing on this machine, and what to do; None when nothing is."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this script also runs where the package cannot)
        return f"harness needs Python 3.11 or newer, found {sys.version.split()[0]}; run make PYTHON=python3.11 ..."
    if importlib.util.find_spec("ensurepip") is None:
        return "Python's venv module is incomplete (no ensurepip); install it: apt install python3-venv"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: '{compiler}' is not on PATH; install one: apt install gcc"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        return f"Python's headers are missing ({header}); install them: apt install python3-dev"
    return None


if __name__ == "__main__":
    if sentence := missing():
        sys.exit(f"error: {sentence}")
