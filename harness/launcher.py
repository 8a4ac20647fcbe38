"""Starts one command from a small process, so that its memory can be told; a program of its own, used by process.py.

`python -I -S launcher.py HANDLE COMMAND…` A new process's ru_maxrss begins with the high-water mark of whoever
started it, so the harness's own size would hide a smaller command's. This one is small, waits for the command, writes
the largest resident set of its tree in bytes to HANDLE and ends as the command ended. It writes 0 where the
command's is not above its own.
"""

import os
import resource
import signal
import sys

handle = int(sys.argv[1])
command = sys.argv[2:]
os.set_inheritable(handle, False)
try:
    pid = os.posix_spawnp(command[0], command, os.environ)
except OSError as error:
    print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
_, status, usage = os.wait4(pid, 0)
with open("/proc/self/status") as file:  # not ru_maxrss: that one is the harness's here as well
    own = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
os.write(handle, b"%d" % (usage.ru_maxrss * 1024 if usage.ru_maxrss > own else 0))
code = os.waitstatus_to_exitcode(status)
if code < 0:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
os._exit(code)
