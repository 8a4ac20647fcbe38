"""Ends the arms of a harness that was killed; a program of its own, started once by process.py.

`python -I -S guard.py FAMILY` waits for the end of its standard input, whose other end only the harness holds: it
comes when the harness ends, however that happens. Then every process whose mark (see process.py) begins with
FAMILY, and everything below it, gets SIGTERM and half a second later SIGKILL, until none is left. After an orderly
end there is none. What is read until then names temporary files and folders, `+PATH` and a zero byte when one is begun,
`-PATH` when it is gone: those that are left are removed, once no process is left to write into them. It imports nothing
but os, signal, sys and time before that: it must be small and start at once.
"""

import os
import signal
import sys
import time

GRACE = 0.5


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _family_of(pid):
    text = _read(f"/proc/{pid}/limits")
    start = text.find(b"Max file locks")
    words = text[start + 14 : start + 80].split()[:1] if start >= 0 else []
    return int(words[0]) >> 22 << 22 if words and words[0].isdigit() else None


def _living():
    """pid -> (parent, start time) of every process that is not a zombie."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            text = _read(f"/proc/{name}/stat")
            fields = text[text.rfind(b")") + 2 :].split()
            if len(fields) > 19 and fields[0] not in (b"Z", b"X"):
                found[int(name)] = (int(fields[1]), fields[19])
    return found


def tree(family, known):
    """Living processes of the family and below it, with those that were known before; (pid, start time) each."""
    living = _living()
    reached = {pid for pid in living if (pid, living[pid][1]) in known or _family_of(pid) == family}
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in living.items() if parent in reached} - reached
        reached |= more
        grown = bool(more)
    reached.discard(os.getpid())
    return {(pid, living[pid][1]) for pid in reached}


def end(family):
    """Signal until nothing is left."""
    begin = time.monotonic()
    known, told = set(), set()
    while found := tree(family, known):
        known |= found
        kill = time.monotonic() - begin > GRACE
        for one in found:
            if kill or one not in told:
                told.add(one)
                try:
                    os.kill(one[0], signal.SIGKILL if kill else signal.SIGTERM)
                    os.kill(one[0], signal.SIGCONT)
                except OSError:
                    continue
        time.sleep(0.02)


def listen(handle):
    """Read until the end; the paths that were begun and not ended."""
    heard = b""
    while chunk := os.read(handle, 65536):
        heard += chunk
    left = {}
    for said in heard.split(b"\0")[:-1]:
        left.pop(said[1:], None)
        if said[:1] == b"+":
            left[said[1:]] = True
    return list(left)


def remove(paths):
    """Remove files and folders that may be there."""
    import shutil

    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b".")
    os.close(1)
    left = listen(0)
    end(int(sys.argv[1]))
    if left:
        remove(left)
