"""Start one program and say how long it took, and its memory and processor time: ``launch.py FD PROGRAM …``.

A process of its own, because a child's peak counts the memory of the process it was forked from. This one is
small: it imports nothing but what it needs, and is run without site packages.
"""

import os
import sys
import time

report, program, *arguments = sys.argv[1:]
start = time.perf_counter()
child = os.posix_spawn(program, [program, *arguments], os.environ)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - start
processor = usage.ru_utime + usage.ru_stime
code = os.waitstatus_to_exitcode(status)
os.write(int(report), f"{code} {seconds} {usage.ru_maxrss} {processor}\n".encode())
