"""The page cache before a slot: warm, cold, or without the files that the job reads.

warm                 the files are read once, so that no slot pays for the disk
own-files-evicted    the files are written back and dropped from the cache; everything else stays
cold                 the whole cache of the machine is dropped; root only, and everybody on the machine pays

Evicting is a request: pages that somebody has mapped stay. So `prepare` returns what share is cached afterwards.
Source: posix_fadvise(2), mincore(2), proc(5) drop_caches.
"""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

from harness.errors import ConfigurationError, sentence

MODES = ("warm", "cold", "own-files-evicted")


def prepare(mode: str, paths: Iterable[str | os.PathLike]) -> float:
    """Put the cache into the state `mode`; outside timed windows.

    Parameters
    ----------
    paths : files or folders   what the job reads

    Returns
    -------
    float                      share of the files' bytes that are cached now, 0 to 1

    Raises
    ------
    ConfigurationError         unknown mode, a path that cannot be read, or no right to drop the machine's cache
    """
    if mode not in MODES:
        raise ConfigurationError(sentence("page_cache", "one of " + ", ".join(MODES), repr(mode)))
    found = files(paths)
    if mode == "warm":
        for path in found:
            _read(path)
    else:
        for path in found:
            _evict(path)
        if mode == "cold":
            _drop_everything()
    return cached_share(found)


def files(paths: Iterable[str | os.PathLike]) -> list[Path]:
    """All regular files that the paths name, those below folders included; ConfigurationError for a missing one."""
    found: list[Path] = []
    for given in map(Path, paths):
        if given.is_dir():
            found.extend(path for path in sorted(given.rglob("*")) if path.is_file())
        elif given.is_file():
            found.append(given)
        else:
            raise ConfigurationError(sentence("page_cache", "files that are there", f"'{given}'", "check 'inputs'"))
    return found


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            sentence("page_cache", "files that can be read", f"'{path}'", error.strerror or "")
        ) from None


def _read(path: Path) -> None:
    handle = _open(path)
    try:
        while os.read(handle, 1 << 20):
            pass
    finally:
        os.close(handle)


def _evict(path: Path) -> None:
    handle = _open(path)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)  # dirty pages cannot be dropped
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def _drop_everything() -> None:
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3\n")
    except OSError as error:
        raise ConfigurationError(
            sentence(
                "page_cache = 'cold'",
                "the right to drop the machine's cache",
                (error.strerror or str(error)).lower(),
                "run as root, or use 'own-files-evicted'",
            )
        ) from None


def cached_share(paths: Iterable[Path]) -> float:
    """Share of the files' bytes that are in the page cache; 1 for no bytes at all."""
    cached = total = 0
    for path in paths:
        size = path.stat().st_size
        total += size
        cached += _cached_bytes(path, size)
    return min(1.0, cached / total) if total else 1.0


def _cached_bytes(path: Path, size: int) -> int:
    if size == 0:
        return 0
    handle = _open(path)
    try:
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        resident = (ctypes.c_ubyte * pages)()
        # a private writable map only so that ctypes hands out its address; nothing is written
        with mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
            held = ctypes.c_char.from_buffer(view)
            address = ctypes.addressof(held)
            del held
            mincore = ctypes.CDLL(None, use_errno=True).mincore
            mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            if mincore(address, size, ctypes.addressof(resident)) != 0:
                return 0
    finally:
        os.close(handle)
    return sum(flag & 1 for flag in resident) * mmap.PAGESIZE
