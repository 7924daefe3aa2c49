"""torture - `platter torture`, run by a test.

    assert "all that was" in torture(uri)               # writes, reads back
    with Writing(uri, journal) as w:                    # writes until the target has gone
        ...                                             # now the power may be cut
        cut()
    torture("--check", "--journal", journal, uri, status=LOST)
"""

import os
import subprocess
import time

from server import BUILD, PATIENCE

PLATTER = os.path.join(BUILD, "platter")
KEPT, LOST, CANNOT = 0, 1, 2


def torture(*words, status=KEPT):
    """What it says. It has to end with that status; with None that is returned, too."""
    done = subprocess.run([PLATTER, "torture", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=50 * PATIENCE)
    print(done.stdout)
    if status is None:
        return done.returncode, done.stdout
    assert done.returncode == status, "%s: status %d instead of %d" % (
        words, done.returncode, status)
    return done.stdout


def check(journal, target, *words, status=KEPT):
    return torture("--check", "--journal", journal, *words, target, status=status)


def rest_of(process):
    """What it says until it ends. communicate() with a time would lose what came along with a line
    that was read before."""
    said = process.stdout.read()
    process.wait(timeout=40 * PATIENCE)
    return said


class Writing:
    """`platter torture --expect-cut`, from when the power may be cut. It has to notice the end."""

    def __init__(self, target, journal, *words):
        self.process = subprocess.Popen(
            [PLATTER, "torture", "--expect-cut", "--timeout", str(10 * PATIENCE),
             "--journal", journal, *words, target],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if line.startswith("CUT THE POWER NOW"):
                return
        raise AssertionError("ended with %d: %s" % (self.process.wait(), self.said))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.process.kill()
        self.said += rest_of(self.process)
        print(self.said)
        if kind is None:
            assert self.process.returncode == KEPT, self.process.returncode
            assert "the target has gone: " in self.said

    def write_on(self, seconds):
        """Not longer than it lives."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.01)
