"""faults - makes one call of a server fail, the N-th, and holds the server to its word.

    faults = Faults(server.path("faults"))      # before a server is started; see tests/fault/shim.c
    with server(image) as s:
        faults.arm(MEMORY, 17)
        ...                                     # of what is counted now, the 17th fails
        if faults.disarm():                     # it was reached; faults.told() says what it was
"""

import contextlib
import mmap
import os
import random
import re
import signal
import struct
import subprocess

import ctl
import server
import tap
import usage
from journal import Journal
from server import PRELOAD, until

MEMORY, CALL, RING = 1, 2, 4
KINDS = {"memory": MEMORY, "call": CALL, "ring": RING}
SHIM = os.path.join(server.BUILD, "tests/fault/.libs/shim.so")

# struct shared of tests/fault/shim.c
LAYOUT = {"kinds": "I", "choice": "I", "at": "Q", "count": "Q", "live": "q", "struck": "I",
          "error": "i", "name": "56s", "only": "80s", "spare": "80s", "where": "3840s"}
OFFSETS, SIZE = {}, 0
for _name, _form in LAYOUT.items():
    OFFSETS[_name], SIZE = SIZE, SIZE + struct.calcsize(_form)

# Others' mistakes, by who asked for memory. Inside of GnuTLS: GMP ends the process (its manual,
# "Custom Allocation"), libtasn1 uses what it has not got, GnuTLS loses pieces of a handshake that
# failed. Where they just fail, what the server makes of that is judged as ever.
THEIRS = ("libgnutls.so", "libgmp.so", "libhogweed.so", "libnettle.so", "libtasn1.so")
# glibc 2.36 uses what it has not got when it looks for a user or a group.
LIBC_SEARCHES = re.compile(r"libc\.so\S* \S+ (getpw|getgr|initgroups)")
THEIR_ENDS = {-signal.SIGABRT, -signal.SIGSEGV}


class Faults:
    """only: a part of the name of an object that has to have a part in what is counted."""

    # libseccomp turns in circles where it gets no memory for a branch of its filter; that is at the
    # start, before anybody is served.
    spare = "libseccomp.so"

    def __init__(self, path, only=""):
        with open(path, "w+b") as f:
            f.truncate(SIZE)
            self.map = mmap.mmap(f.fileno(), SIZE)
        self.put("only", only.encode())
        self.put("spare", self.spare.encode())
        os.environ["PLATTER_FAULTS"] = path
        if "ASAN_OPTIONS" in os.environ:
            os.environ["ASAN_OPTIONS"] += ":verify_asan_link_order=0"

    def put(self, name, value):
        struct.pack_into(LAYOUT[name], self.map, OFFSETS[name], value)

    def get(self, name):
        return struct.unpack_from(LAYOUT[name], self.map, OFFSETS[name])[0]

    def text(self, name):
        return self.get(name).partition(b"\0")[0].decode()

    def arm(self, kind, at, choice=0):
        """at 0: only counts. choice: which of the errnos that a call may have."""
        self.put("kinds", 0)
        for name, value in (("at", at), ("count", 0), ("struck", 0), ("choice", choice),
                            ("name", b""), ("where", b"")):
            self.put(name, value)
        self.put("kinds", kind)

    def disarm(self):
        """Whether the fault has come."""
        self.put("kinds", 0)
        return self.get("struck") != 0

    def is_theirs(self):
        """The caller is one of those libraries, or that part of libc."""
        where = self.text("where")
        caller = where.partition("\n")[0]
        return any(library in caller for library in THEIRS) or \
            LIBC_SEARCHES.search(where) is not None

    def told(self):
        """What failed, with which errno, and who called it."""
        return "number %d, %s: %s\n%s" % (
            self.get("at"), self.text("name"), os.strerror(self.get("error")),
            "".join("    %s\n" % place(line) for line in self.text("where").splitlines()))


def place(frame):
    """Of an object and an offset, function and line if they can be found."""
    path, offset, _ = frame.split()
    done = subprocess.run(["addr2line", "-fpse", path, offset], capture_output=True, text=True)
    return "%s: %s" % (os.path.basename(path), done.stdout.strip() or offset)


# ---- servers that have the shim ------------------------------------------------------------------


class Nbdkit(server.Nbdkit):
    preload = SHIM


class Platterd(server.Platterd):
    preload = SHIM


class Operated(ctl.Platterd):
    preload = SHIM


# ---- fault after fault ---------------------------------------------------------------------------

# What makes data durable: if it fails, somebody has to hear of it, and nothing is durable after it.
SYNCS = {"fdatasync", "FSYNC"}
# What may have been a part of that: a write that is durable by itself, a look at the file after.
MAY_FAIL_THE_EXPORT = SYNCS | {"WRITEV", "WRITE_FIXED", "pwritev2", "fstat"}

SHARE = 16      # of all calls, where not all fail


def numbers(total, share):
    """So many of 1 to total, from a random start on; None: all."""
    if share is None or total <= share:
        return range(1, total + 1)
    step = total / share
    begin = random.random() * step
    return [1 + int(begin + n * step) for n in range(share)]


def choices(kind, share):
    """Which errnos."""
    if kind == MEMORY:
        return [0]
    return [0, 1] if share is None else [random.randrange(2)]


class Run:
    """A server that gets fault after fault.

    serve(): starts one, as a context. work(s): what is done to it while a call fails; returns what
    was refused. check(s): that nothing it answered was false, when nothing fails any more.
    """

    def __init__(self, faults, kind, serve, work, check):
        self.faults, self.kind, self.serve = faults, kind, serve
        self.work, self.check = work, check
        self.s = self.context = None
        self.struck, self.missed, self.excused = {}, 0, 0

    def start(self):
        self.context = self.serve()
        self.s = self.context.__enter__()
        for _ in range(3):      # what is made once, is there then
            refused = self.once()
            assert not refused, refused
        self.rest()

    def stop(self):
        if self.s is not None:
            self.s = None
            self.context.__exit__(None, None, None)

    def once(self):
        """Without a fault."""
        refused = self.work(self.s)
        self.check(self.s)
        return refused

    def rest(self):
        """When clients are gone, all that was for them is. Remembers what is left."""
        self.live = self.faults.get("live")
        self.descriptors = usage.descriptors(self.s)

    def count(self):
        self.faults.arm(self.kind, 0)
        refused = self.work(self.s)
        self.faults.disarm()
        assert not refused, refused
        return self.faults.get("count")

    def hit(self, at, choice):
        """Judges what comes of it."""
        faults = self.faults
        faults.arm(self.kind, at, choice)
        try:
            refused = self.work(self.s)
        finally:
            struck = faults.disarm()
        if not struck:
            self.missed += 1
            return
        name = faults.text("name")
        self.struck[name] = self.struck.get(name, 0) + 1
        try:
            self.check(self.s)
        except Exception:
            if self.faults.is_theirs() and self.s.wait() in THEIR_ENDS:
                self.s.over = True
                self.excused += 1
                self.start()
                return
            raise
        later = self.once()
        failed = later and name in MAY_FAIL_THE_EXPORT
        assert failed or not later, "later, without a fault: %s" % later
        assert name not in SYNCS or refused and later, "the sync failed: %s, %s" % (refused, later)
        if failed:
            self.stop()
            self.start()
        else:
            self.rested(at, choice)

    def rested(self, at, choice):
        """Everything that the fault left over is given back."""
        until(lambda: usage.descriptors(self.s) <= self.descriptors, "all descriptors are closed", 10)
        if PRELOAD:         # the sanitizer finds leaks, at the end
            return
        if self.faults.is_theirs():
            self.excused += self.faults.get("live") > self.live
            self.live = max(self.live, self.faults.get("live"))
            return
        with contextlib.suppress(AssertionError):
            until(lambda: self.faults.get("live") <= self.live, seconds=1)
            return
        grown, self.live = self.faults.get("live") - self.live, self.faults.get("live")
        self.again += 1     # the first time it may be something that is kept
        assert self.again < 3, "memory is lost each time: %d pieces" % grown
        self.hit(at, choice)

    def all(self, share):
        """share: of how many calls, None: of all."""
        random.seed(tap.seed())
        self.start()
        total = self.count()
        assert total > 0
        for at in numbers(total, share):
            for choice in choices(self.kind, share):
                self.again = 0
                try:
                    self.hit(at, choice)
                except Exception as e:
                    raise AssertionError("%s%s" % (self.faults.told(), e)) from e
        self.stop()
        hits = sum(self.struck.values())
        print("%d calls, of which fail: %s; excused: %d" % (total, ", ".join(
            "%s %d" % item for item in sorted(self.struck.items())), self.excused))
        # Threads, and what comes together in one receive, differ from time to time.
        assert hits >= 2 * self.missed, "%d hits, %d misses" % (hits, self.missed)


class Talk:
    """What clients do, for a Run, with all that is answered in a journal. A subclass says how they
    talk(s), how one who comes later reads the disk with read_all(s), and which exceptions refuse a
    command, or end a connection."""

    refusals = ends = ()

    def __init__(self, image):
        self.image = image

    def __call__(self, s):
        with open(self.image, "rb") as f:
            self.journal = Journal(f.read())
        self.refused = []
        try:
            self.talk(s)
        except TimeoutError:
            raise                   # it hangs
        except (OSError, *self.ends) as e:
            self.refused.append(("connection", repr(e)))
        return self.refused

    def check(self, s):
        """What was answered is to be seen by who comes later, and is in the image."""
        self.agree(self.read_all(s))
        with open(self.image, "rb") as f:
            self.agree(f.read())

    def do(self, what, entry, call, *args, **how):
        """A command, and its result or None."""
        try:
            result = call(*args, **how)
        except self.refusals as e:
            self.refused.append((what, str(e)))
            return None
        if entry is not None:
            self.journal.answered(entry)
        return result

    def agree(self, data):
        """The whole disk, on which all is to be seen that was answered."""
        self.journal.answered(self.journal.settle())
        self.journal.check(data)
