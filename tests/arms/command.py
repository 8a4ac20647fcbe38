"""A command that does a job from outside: it burns CPU, writes a file, and has a fault in some of its runs.

`python command.py --out result.txt --does empty --every 20 --state runs` leaves an empty file in every 20th run.
The fault happens in the runs whose number (counted in the file `state`) leaves `at` when divided by `every`.

work     nothing unusual
empty    the output is empty, in a fifth of the time
missing  no output
wrong    another output
off      as many lines, another total (22 % more)
exit     exit code 3
crash    SIGABRT
hang     never ends, with a thread and a child
slow     ten times the time
"""

import argparse
import os
import subprocess
import sys
import threading
import time


def wait_for_ever():
    while True:
        time.sleep(600)


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=0.0, help="CPU to burn")
parser.add_argument("--out", default="")
parser.add_argument("--does", default="work")
parser.add_argument("--state", default="")
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--at", type=int, default=0)
parser.add_argument("--says", type=float, default=None, help="print an iteration line that says these seconds")
options = parser.parse_args()

number = 0
if options.state:
    with open(options.state, "ab") as file:
        file.write(b".")
        number = file.tell() - 1
does = options.does if number % options.every == options.at % options.every else "work"

seconds = options.seconds * {"empty": 0.2, "slow": 10.0}.get(does, 1.0)
end = time.process_time() + seconds
while time.process_time() < end:
    pass
if does == "exit":
    print("error: no space left on the detector", file=sys.stderr)
    sys.exit(3)
if does == "crash":
    os.abort()
if does == "hang":
    subprocess.Popen(["sleep", "600"])
    threading.Thread(target=wait_for_ever).start()
    wait_for_ever()
rows = [1.0, 2.0, 3.0]
if does == "wrong":
    rows[0] = 1.5
if does == "off":
    rows = [1.22 * row for row in rows]
if options.out and does != "missing":
    with open(options.out, "w") as file:
        file.write("" if does == "empty" else "".join(f"{row:.3f}\n" for row in rows))
if options.says is not None:
    line = '{"kind":"iteration","phase":"steady","index":0,"seconds":%r,"cpu_seconds":%r,"units":3,"work":3}'
    print(line % (options.says, options.says))
