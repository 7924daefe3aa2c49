"""usage - what a server's process costs, as /proc tells it.

    before = usage.settled(s)           # descriptors and memory, when it has calmed down
    ...
    usage.returns(s, before)            # to that, or fails and says by how much it does not
"""

import os
import time
from collections import namedtuple

from server import PATIENCE, PRELOAD

Usage = namedtuple("Usage", "descriptors resident data")    # the latter two in bytes

# What the allocator and the kernel may keep, or lay out anew, without anything being lost.
ALLOWANCE = 2 << 20


def malloc_keeps_little():
    """Of servers that are started from now on: what it keeps otherwise depends on which threads ran
    together, and on what lies at the end of its memory."""
    os.environ.update(MALLOC_ARENA_MAX="1", MALLOC_MMAP_THRESHOLD_="65536",
                      MALLOC_TRIM_THRESHOLD_="65536")


def descriptors(s):
    return len(os.listdir("/proc/%d/fd" % s.pid))


def usage(s):
    with open("/proc/%d/status" % s.pid) as f:
        lines = dict(line.split(":", 1) for line in f)
    resident, data = (int(lines[k].split()[0]) << 10 for k in ("VmRSS", "VmData"))
    return Usage(descriptors(s), resident, data)


def resident(s):
    """Bytes of memory."""
    return usage(s).resident


def cpu_seconds(s):
    with open("/proc/%d/stat" % s.pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settled(s):
    """After the server has given back what it gives back by and by."""
    time.sleep(1)
    return usage(s)


def excess(s, before):
    """What it holds beyond that, as a sentence; "" when it is nothing. A sanitizer keeps memory
    that was freed, and finds leaks by itself."""
    now = usage(s)
    more = [n - b for n, b in zip(now, before)]
    if more[0] > 0 or not PRELOAD and max(more[1:]) > ALLOWANCE:
        return "%d descriptors, %d bytes of memory, %d of data more than before" % tuple(more)
    return ""


def returns(s, before):
    """The server gives up what it held for clients that have gone."""
    end = time.monotonic() + 20 * PATIENCE
    while text := excess(s, before):
        assert time.monotonic() < end, "it still holds " + text
        time.sleep(0.05)
