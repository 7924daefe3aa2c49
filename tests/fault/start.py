#!/usr/bin/python3
# takes minutes
"""One call of the server fails while it starts, or while it stops, each in its turn: memory, system
calls, the ring. It serves nevertheless, or says why it does not; and nothing is left of it."""

import functools
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import faults
import nbdraw
import pki
import server as servers
import tap
from faults import KINDS, Faults, Nbdkit, Operated, choices, numbers
from server import PRELOAD

KiB = 1 << 10

CONFIGURATION = """
[server]
tls-certificates = %(pki)s/server
tls = optional
user = nobody
state = %(state)s

[listener lan]
tcp = 127.0.0.1:0

[listener san]
iscsi = 127.0.0.1:0

[export a]
path = %(a)s

[export b]
path = %(b)s
cache = none
access = shared

[target iqn.2026-11.org.example:disks]
lun.0 = a
lun.1 = b
"""


class Everything:
    """A platterd that has all there is."""

    front_end, export, counted = Operated, "a", ""

    def __init__(self, factory):
        self.factory = factory
        # Where nobody, who serves it, can go.
        self.dir = os.path.join(factory.run, "files")
        os.mkdir(self.dir)
        for folder in factory.run, self.dir:
            os.chmod(folder, 0o777)
        for name in "ab":
            with open(self.path(name), "wb") as f:
                f.write(b"\1" * 64 * KiB)
            os.chmod(self.path(name), 0o666)
        self.conf = self.path("conf")
        with open(self.conf, "w") as f:
            f.write(CONFIGURATION % {"pki": pki.make(self.path("pki")), "a": self.path("a"),
                                     "b": self.path("b"), "state": self.path("state")})

    def path(self, name):
        return os.path.join(self.dir, name)

    def serve(self):
        return self.factory(args=["-c", self.conf])

    def left(self):
        """Of sockets and the like."""
        return [n for n in os.listdir(self.factory.run) if n != "files" and n[-4:] != ".log"]


class Plugin:
    """The plugin; nbdkit's own mistakes are nbdkit's."""

    front_end, export, counted = Nbdkit, "", "plugin.so"

    def __init__(self, factory):
        self.factory = factory
        self.image = factory.image(64 * KiB, fill=1)

    def serve(self):
        return self.factory(self.image, cache="none", fua="native")

    def left(self):
        """nbdkit leaves its socket when its plugin does not start."""
        return []


def use(s, export):
    with nbdraw.connect(s.address, export) as c:
        if c.flags & nbdraw.READ_ONLY:      # it could not be opened for writing
            c.read(0, 8192)
            return
        c.write(0, b"x" * 4096, nbdraw.FUA)
        assert c.read(0, 8192) == b"x" * 4096 + b"\1" * 4096
        c.flush()


def complaint(e):
    """What it said when it did not start."""
    assert e.status is None or e.status > 0, "status %s: %s" % (e.status, e)
    lines = [line for line in str(e).splitlines() if "error: " in line]
    assert lines and all(line.partition("error: ")[2] for line in lines), str(e)
    # Who believed that would have his disk be another one.
    assert "does not say who a LUN is" not in str(e), str(e)
    return lines[-1].partition("error: ")[2]


def leaves_nothing(thing, fl):
    """But for what could not be looked at, and so might be another's; and the file for the process's
    number, which may have been there before."""
    left = thing.left()
    for name in left:
        os.unlink(os.path.join(thing.factory.run, name))
    left = [name for name in left if not name.endswith(".pid")]
    assert not left or fl.text("name") in ("lstat", "unlink"), "it leaves %s" % left


def starts(thing, fl, kind, at, choice):
    """Returns why it does not start, or None if it serves."""
    why = None
    fl.arm(kind, at, choice)
    try:
        with thing.serve() as s:
            fl.disarm()
            use(s, thing.export)
    except servers.StartFailed as e:
        fl.disarm()
        theirs = fl.is_theirs() and e.status in faults.THEIR_ENDS
        why = "not its fault" if theirs else complaint(e)
    leaves_nothing(thing, fl)
    return why


def stops(thing, fl, kind, at, choice):
    """Whatever its clients do."""
    with thing.serve() as s, nbdraw.connect(s.address, thing.export):
        use(s, thing.export)
        fl.arm(kind, at, choice)
        try:
            s.stop()
        finally:
            fl.disarm()
    leaves_nothing(thing, fl)


def case(factory, thing, kind, what, share):
    fl = Faults(factory.path("faults"), thing.counted)
    thing = thing(factory)
    random.seed(tap.seed())
    why = what(thing, fl, kind, 0, 0)
    assert why is None, why
    total = fl.get("count")
    assert total > 0
    said = {}
    for at in numbers(total, share):
        choice = random.choice(choices(kind, share))
        try:
            why = what(thing, fl, kind, at, choice)
        except Exception as e:
            raise AssertionError("%s%s" % (fl.told(), e)) from e
        name = fl.text("name")
        said[name, why] = said.get((name, why), 0) + 1
    print(total, "calls", *("%d x %s: %s" % (n, name, why or "serves")
                            for (name, why), n in said.items()), sep="\n")


# What is started, the kinds of calls that it makes when it starts, and when it stops.
THINGS = {
    "platterd": (Everything, KINDS, ["call", "ring"]),
    "the_plugin": (Plugin, ["memory", "call"], []),
}
PROMISES = {starts: "%s_whose_%s_fails_once_serves_or_says_why_not%s",
            stops: "%s_whose_%s_fails_once_stops_in_order%s"}

for name, (thing, *kinds) in THINGS.items():
    for (what, promise), of in zip(PROMISES.items(), kinds):
        for kind in of:
            # A sanitizer would tell of what GnuTLS does without memory.
            if PRELOAD and thing is Everything and kind == "memory":
                continue
            for share, end in (12, ""), (None, "_wherever_it_is"):
                servers.served(functools.partial(case, thing=thing, kind=KINDS[kind], what=what,
                                                 share=share),
                               name=promise % (name, kind, end), on=[thing.front_end],
                               slow=bool(end))

tap.main()
