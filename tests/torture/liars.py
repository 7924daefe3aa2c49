#!/usr/bin/python3
"""`platter torture` over loss of power: a server that keeps its word is found to, and each way to
lie about it is found out."""

import functools
import os
import random
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tap
from liar import Cached, Gone
from server import Nbdkit, Platterd, served
from torture import KEPT, LOST, Writing, check, torture

MiB = 1 << 20


# ---- servers in Python, which forget what they did not make stable ------------------------------

class RepliesEarly(Cached):
    """What was asked to be stable will be, a little later."""

    def later(self, function):
        threading.Timer(0.1, function).start()

    def flush(self, c):
        self.later(lambda: self.try_to(super(RepliesEarly, self).flush, c))

    def force(self, c, offset, length):
        self.later(lambda: self.try_to(super(RepliesEarly, self).force, c, offset, length))

    def try_to(self, function, *args):
        try:
            function(*args)
        except Gone:
            pass


class IgnoresFua(Cached):
    def force(self, c, offset, length):
        pass


class IgnoresFlush(Cached):
    def flush(self, c):
        pass


class IgnoresEvery20th(Cached):
    count = 0

    def is_kept(self):
        with self.lock:
            self.count += 1
            return self.count % 20

    def flush(self, c):
        if self.is_kept():
            super().flush(c)

    def force(self, c, offset, length):
        if self.is_kept():
            super().force(c, offset, length)


class FlushesBeforeTheWrite(Cached):
    """For FUA: everything but what was just written."""

    def force(self, c, offset, length):
        with self.lock:
            self.alive(c)
            new = self.stable[offset:offset + length]
            self.make_stable(0, self.size)
            self.stable[offset:offset + length] = new


def after_a_cut(server):
    """How the check of a server ends, which was cut in the middle, and what it says."""
    journal = os.path.join(server.folder.name, "journal")
    with Writing(server.uri, journal, "--size", "512k") as w:
        w.write_on(server.random.uniform(0.2, 0.7))
        server.cut()
    return check(journal, server.uri, "--same-target", status=None)


def assert_kept(cut, count):
    """cut: what becomes of a seed. A cut at a quiet moment proves nothing, so there are more than
    count until one has really lost a cache."""
    seed, lost, n = tap.seed() % 1000000, 0, 0
    while n < count or not lost:
        assert n < 10 * count, "no cut lost anything, so nothing was tried"
        status, said = cut(seed + n)
        assert status == KEPT and "all that was acknowledged as durable is there" in said, (
            "seed %d" % (seed + n))
        lost += "So a cache\n  was really lost" in said
        n += 1


@tap.test
def a_server_that_keeps_its_word_passes():
    def cut(seed):
        with Cached(seed=seed) as s:
            return after_a_cut(s)
    assert_kept(cut, 4)


def caught(kind):
    """At some moments a cut proves nothing, so there are several."""
    seed = tap.seed()
    for n in range(8):
        with kind(seed=seed + n) as s:
            status, said = after_a_cut(s)
        if status == LOST:
            assert "NOT KEPT" in said and ("lost " in said or "reordered " in said)
            return said
        assert status == KEPT
    raise AssertionError("not caught")


@tap.test
def one_that_replies_early_is_caught():
    caught(RepliesEarly)


@tap.test
def one_that_ignores_fua_is_caught():
    assert "durable by FUA" in caught(IgnoresFua)


@tap.test
def one_that_ignores_flush_is_caught():
    assert "durable by FLUSH" in caught(IgnoresFlush)


@tap.test
def one_that_ignores_every_20th_is_caught():
    caught(IgnoresEvery20th)


@tap.test
def one_that_flushes_before_the_write_is_caught():
    caught(FlushesBeforeTheWrite)


# ---- our own, over a write cache that loses power ------------------------------------------------

def over_powercut(server, seed, **options):
    """How the check ends after a cut at an operation that the seed chooses."""
    r = random.Random(seed)
    image, journal = server.image(MiB), server.path("journal-%d" % seed)
    options = {"driver": "powercut", "over": "file", **options}
    with server(path=image, seed=seed, cut=r.randrange(1500, 4000),
                **{"powercut-fua": ("native", "commit")[seed % 2]}, **options) as s:
        said = torture("--expect-cut", "--journal", journal, "--size", "1M", s.uri)
        assert "the target has gone: " in said      # the power fails by itself
        s.kill()
    return check(journal, image, "--same-target", status=None)


@served
def many_power_cuts_of_ours_lose_nothing(server):
    assert_kept(functools.partial(over_powercut, server), 6)


@served(slow=True)
def hundreds_of_power_cuts_of_ours_lose_nothing(server):
    assert_kept(functools.partial(over_powercut, server), 60)


class IscsiTarget(Platterd):
    name = "iscsi"

    def __init__(self, run, *words, **how):
        super().__init__(run, *words, iscsi=True, **how)
        self.uri = self.iscsi_uri


@served(on=[IscsiTarget])
def many_power_cuts_of_our_iscsi_target_lose_nothing(server):
    assert_kept(functools.partial(over_powercut, server), 6)


@served(on=[Nbdkit, Platterd, IscsiTarget])
def a_disk_below_ours_that_lies_about_flush_is_caught(server):
    seed = tap.seed() % 1000000
    for n in range(8):
        # The cache takes no FUA writes, so they need a flush, too.
        status, said = over_powercut(server, 2 * (seed + n) + 1, driver="fault",
                                     over="powercut,file", kind="flush", fault="lie",
                                     repeat="forever")
        if status == LOST:
            return
    raise AssertionError("not caught")


if __name__ == "__main__":
    tap.main()
