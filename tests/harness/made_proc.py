"""Made /proc and /sys trees: what a machine with given processes, cgroups and settings would show."""

from pathlib import Path

PF_KTHREAD = 0x00200000


def write(root, **files):
    """Files by name; '__' in a name stands for '/'."""
    for name, content in files.items():
        put(root, name.replace("__", "/"), content)


def put(root, path, content):
    target = Path(root) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)


def process(
    proc,
    pid,
    *,
    name="work",
    parent=1,
    used=0,
    reaped=0,
    start=100,
    kernel=False,
    state="S",
    waited=None,
    switches=None,
    faults=0,
):
    """One process; used and reaped are in ticks of 10 ms, waited (in the run queue) in ns."""
    flags = PF_KTHREAD if kernel else 0x400000
    fields = [state, parent, pid, pid, 0, -1, flags, 0, 0, faults, 0, used, 0, reaped, 0, 20, 0, 1, 0, start, 0, 0]
    put(proc, f"{pid}/stat", f"{pid} ({name}) " + " ".join(map(str, fields)) + "\n")
    if waited is not None:
        put(proc, f"{pid}/task/{pid}/schedstat", f"123456 {waited} 7\n")
    if switches is not None:
        text = f"Name:\twork\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t{switches}\n"
        put(proc, f"{pid}/task/{pid}/status", text)


def gone(proc, pid):
    """The process is over."""
    for path in sorted(Path(proc, str(pid)).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path(proc, str(pid)).rmdir()


def machine(proc, *, user=0, system=0, irq=0, softirq=0, steal=0, idle=0, io_wait=5):
    """The machine's totals in ticks."""
    line = f"cpu  {user} 0 {system} {idle} {io_wait} {irq} {softirq} {steal} 0 0\n"
    put(proc, "stat", line + line.replace("cpu ", "cpu0") + "intr 1 2 3\nctxt 99\n")


def mounts(proc, *lines):
    """Cgroup mounts: (mount point, type, super-block options)."""
    text = "".join(
        f"{30 + i} 25 0:{30 + i} / {at} rw,relatime - {kind} {kind} {options}\n"
        for i, (at, kind, options) in enumerate(lines)
    )
    put(proc, "self/mountinfo", "25 1 0:25 / / rw - ext4 /dev/root rw\n" + text)
