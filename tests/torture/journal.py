#!/usr/bin/python3
"""The journal of `platter torture`: kept on another machine, cut, spoilt, taken for another's. It
may come to prove less, and never accuses anybody for that."""

import os
import random
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tap
from liar import Cached
from torture import CANNOT, KEPT, LOST, PLATTER, Writing, check, rest_of, torture

RECORD = 64


def in_a_folder(of):
    """Registers a case, which gets a server that has power to lose, and its folder."""
    def register(case):
        def run():
            with of(seed=tap.seed()) as s:
                case(s, s.folder.name)
        run.__name__ = case.__name__
        return tap.test(run)
    return register


class IgnoresFua(Cached):
    def force(self, c, offset, length):
        pass


class Collector:
    """`platter torture --collect`"""

    def __init__(self, journal):
        self.process = subprocess.Popen(
            [PLATTER, "torture", "--collect", "127.0.0.1:0", "--journal", journal],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.process.stdout.readline()
        self.address = "127.0.0.1:" + re.search(r"on port (\d+)", line)[1]

    def end(self, status=KEPT):
        said = rest_of(self.process)
        assert self.process.returncode == status, said
        return said


def cut_with_journal(s, journal, *words):
    with Writing(s.uri, journal, "--size", "512k", *words) as w:
        w.write_on(0.5)
        s.cut()
    return w.said


# ---- elsewhere

def caught_from_elsewhere(s, folder):
    journal = folder + "/journal"
    collector = Collector(journal)
    said = cut_with_journal(s, "tcp://" + collector.address)
    assert "--check --journal FILE-OF-COLLECT" in said
    assert "the run has ended" in collector.end()
    return check(journal, s.uri, "--same-target", status=None)


@in_a_folder(Cached)
def a_journal_elsewhere_holds_what_one_here_does(s, folder):
    assert caught_from_elsewhere(s, folder)[0] == KEPT


@in_a_folder(IgnoresFua)
def a_liar_is_caught_by_a_journal_elsewhere(s, folder):
    for n in range(8):
        os.makedirs("%s/%d" % (folder, n))
        s.disk[:] = s.stable[:] = bytes(s.size)
        if caught_from_elsewhere(s, "%s/%d" % (folder, n))[0] == LOST:
            return
    raise AssertionError("not caught")


@in_a_folder(Cached)
def the_writer_may_die_and_its_journal_is_evidence(s, folder):
    journal = folder + "/journal"
    collector = Collector(journal)
    w = Writing(s.uri, "tcp://" + collector.address, "--size", "512k")
    w.write_on(0.3)
    w.process.kill()
    w.process.wait()
    assert "the sender has gone away" in collector.end()
    s.cut()
    said = check(journal, s.uri)
    assert "The journal has no end" in said


@in_a_folder(Cached)
def without_its_journal_the_writer_stops(s, folder):
    collector = Collector(folder + "/journal")
    w = Writing(s.uri, "tcp://" + collector.address, "--size", "512k")
    w.write_on(0.2)
    collector.process.kill()
    said = rest_of(w.process)
    assert w.process.returncode == CANNOT and "the journal: " in said, said
    collector.end(status=-signal.SIGKILL)


@in_a_folder(Cached)
def who_sends_no_journal_is_refused(s, folder):
    for garbage in (b"GET / HTTP/1.1\r\nHost: journal\r\n" + b"\r\n" * 50, bytes(RECORD), b""):
        path = folder + "/journal"
        collector = Collector(path)
        host, port = collector.address.split(":")
        with socket.create_connection((host, int(port))) as c:
            c.sendall(garbage)
            c.shutdown(socket.SHUT_WR)
            said = collector.end(status=CANNOT)
        assert "no journal" in said or "nothing came" in said, said
        os.unlink(path)


# ---- not as it was

@in_a_folder(Cached)
def a_journal_that_lost_its_end_accuses_nobody(s, folder):
    """Anywhere, also in the middle of a record; or has a hole."""
    journal, part = folder + "/journal", folder + "/part"
    cut_with_journal(s, journal)
    check(journal, s.uri)
    with open(journal, "rb") as f:
        whole = f.read()
    r, outcomes = s.random, set()
    for n in range(60):
        at = r.randrange(RECORD, len(whole))
        spoilt = bytearray(whole)
        if n % 3 == 0:
            spoilt[at:at + 4096] = bytes(len(spoilt[at:at + 4096]))
        elif n % 3 == 1:
            spoilt[at] ^= 1 << r.randrange(8)
        else:
            del spoilt[at:]
        with open(part, "wb") as f:
            f.write(spoilt)
        status, said = check(part, s.uri, status=None)
        assert status in (KEPT, CANNOT), "at %d of %d: %s" % (at, len(whole), said)
        outcomes.add(status)
    assert KEPT in outcomes


@in_a_folder(Cached)
def what_is_no_journal_is_refused(s, folder):
    path = folder + "/journal"
    for text in (b"", b"#!/bin/sh\n" * 100, bytes(4096), random.Random(1).randbytes(RECORD)):
        with open(path, "wb") as f:
            f.write(text)
        assert "no journal" in check(path, s.uri, status=CANNOT)
    assert "No such file" in check(folder + "/none", s.uri, status=CANNOT)


@in_a_folder(Cached)
def a_journal_is_of_one_run(s, folder):
    journal = folder + "/journal"
    cut_with_journal(s, journal)
    with open(journal, "rb") as f:
        before = f.read()
    said = torture("--destroy", "--journal", journal, s.uri, status=CANNOT)
    assert "is there already" in said
    said = torture("--collect", "127.0.0.1:0", "--journal", journal, status=CANNOT)
    assert "is there already" in said
    with open(journal, "rb") as f:
        assert f.read() == before


# ---- of another target

@in_a_folder(Cached)
def another_target_than_the_one_written_is_refused(s, folder):
    journal = folder + "/journal"
    cut_with_journal(s, journal)
    with Cached() as other:
        said = check(journal, other.uri, status=CANNOT)
        assert "nothing of this run is there" in said and "NOT KEPT" not in said
        assert "NOT KEPT" in check(journal, other.uri, "--same-target", status=LOST)
    with Cached(size=256 << 10) as small:
        assert "another target" in check(journal, small.uri, status=CANNOT)


@in_a_folder(Cached)
def a_target_that_is_not_there_proves_nothing(s, folder):
    journal = folder + "/journal"
    cut_with_journal(s, journal)
    for target in (folder + "/none", "nbd+unix:///?socket=%s/none" % folder,
                   "iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0"):
        said = check(journal, target, status=CANNOT)
        assert "NOT KEPT" not in said and "is there" not in said


if __name__ == "__main__":
    tap.main()
