#!/usr/bin/python3
"""kill -9, by the hundred: in the middle of what four clients write, and of what changes the
server's own files. Each start after it has to work, at once, and to find all that was acknowledged.

What a killed server has written the kernel keeps. So some of the disks have a cache of their own in
the server, which is gone with it, as with the power.

no second try
"""

import contextlib
import os
import random
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import iscsiraw
import nbdraw
import tap
from journal import Journal
from server import Factory, Nbdkit, Platterd
from workload import GONE, Crowd, Nbd, Scsi

SIZE = 256 << 10
CLIENTS = 4
PLAIN, SLOW = 70, 200       # kills of each case

MODES = [
    {"cache": "auto", "fua": "native"},
    {"cache": "writeback"},
    {"cache": "none"},
    {"driver": "powercut", "over": "file", "powercut-fua": "native"},
    {"cache": "writeback", "fua": "commit"},
    {"cache": "directsync"},
    {"driver": "powercut", "over": "file", "powercut-fua": "commit"},
]


# ---- in the middle of writes

def nbd_clients(s):
    return [Nbd(nbdraw.connect(s.address)) for _ in range(CLIENTS)]


def scsi_clients(s):
    return [Scsi(iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target)) for _ in range(CLIENTS)]


def both_clients(s):
    return nbd_clients(s)[:2] + scsi_clients(s)[:2]


class Killing:
    """A server that is started on the same disk again and again."""

    def __init__(self, front_end, connect, **how):
        self.server, self.connect, self.how = Factory(front_end), connect, how
        self.image = self.server.image(SIZE, fill=0xEE)
        self.journal = Journal(bytes([0xEE]) * SIZE, trim=4096)
        self.slowest = self.unanswered = self.unpromised = 0

    def look(self, content):
        """What is there now is where the next one begins."""
        self.unanswered += sum(e.answered is None for e in self.journal.entries)
        self.unpromised += self.journal.check(content)
        self.journal = Journal(content, trim=4096)

    def round(self, r, options):
        """A start, a look at the disk, work, and the end."""
        began = time.monotonic()
        with self.server(path=self.image, **options, **self.how) as s:
            clients = self.connect(s)
            content = clients[0].read(SIZE)
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.look(content)
            left = r.randrange(1, 400)

            def interrupt():
                nonlocal left
                left -= 1
                if left == 0:
                    s.kill()
            crowd = Crowd(clients, self.journal, r, depth=r.randrange(1, 9), interrupt=interrupt)
            assert crowd.run(10000), "it outlived its end"
            for client in clients:
                client.raw.socket.close()


def kills(front_end, connect, times, **how):
    seed = tap.seed() % 10000000
    killing = Killing(front_end, connect, **how)
    try:
        for number in range(times):
            try:
                killing.round(random.Random(seed + number), MODES[(seed + number) % len(MODES)])
            except BaseException:
                print("kill %d: PLATTER_SEED=%d sends the same again" % (number, seed + number))
                raise
        with open(killing.image, "rb") as f:
            killing.look(f.read())
    finally:
        killing.server.close()
    print("%d kills with %d requests in flight; at %d places what nobody had promised was lost; "
          "after a start the first answers came within %.3f s" % (
              times, killing.unanswered, killing.unpromised, killing.slowest))
    assert killing.unanswered >= times, "hardly anything was interrupted"
    assert killing.unpromised, "no cache lost anything, so nothing was tried"


@tap.lengths(PLAIN, SLOW, limit=240)
def kill_loses_nothing_that_was_acknowledged(times):
    kills(Nbdkit, nbd_clients, times)


@tap.lengths(PLAIN, SLOW, limit=240)
def kill_loses_nothing_that_was_acknowledged_on_platterd(times):
    kills(Platterd, nbd_clients, times)


@tap.lengths(PLAIN, SLOW, limit=240)
def kill_loses_nothing_that_was_acknowledged_by_iscsi(times):
    kills(Platterd, scsi_clients, times, iscsi=True)


@tap.lengths(PLAIN, SLOW, limit=240)
def kill_loses_nothing_that_was_acknowledged_by_nbd_and_iscsi(times):
    kills(Platterd, both_clients, times, iscsi=True)


# ---- in the middle of what changes the server's own files

IQN = "iqn.2026-11.org.example:"
DISKS, ALICE, BOB = IQN + "disks", IQN + "alice", IQN + "bob"
PORT = b"\x80alice"
LUNS_CHANGED = "6/3f0e"     # and the command was not carried out


def register(c, key):
    """PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY, with APTPL; not waited for."""
    return c.command("5f 06 00 00 00 00000018 00",
                     dout=struct.pack(">8xQ4xB3x", key, 1))


def keys(c):
    """PERSISTENT RESERVE IN, READ KEYS."""
    data = c.cdb("5e 00 00 00 00 00 00 0100 00", din=256).check().data
    return [struct.unpack(">Q", data[at:at + 8])[0] for at in range(8, len(data), 8)]


def serial(c, lun):
    """Unit serial number; "" where there is no such LUN."""
    c.lun = lun
    task = c.cdb("12 01 80 00 ff 00", din=255)
    c.lun = 0
    return bytes(task.data[4:]) if not task.condition else b""


class Site:
    """A target whose second LUN comes and goes with its configuration."""

    def __init__(self, server):
        self.server, self.conf = server, server.path("platter.conf")
        self.two = False
        self.keys = [[]]            # what may be registered: the newest of it is the last
        self.serials = {}           # by LUN, once seen
        self.slowest = 0
        for name in "one", "two":
            server.image(1 << 20, name)
        self.configure()

    def configure(self):
        self.two = not self.two
        with open(self.conf + ".new", "w") as f:
            f.write("[server]\nstate = %s\n" % self.server.path("state"))
            for name in "one", "two":
                f.write("[export %s]\npath = %s\n" % (name, self.server.path(name)))
            f.write("[target %s]\nlun.0 = one\n" % DISKS + "lun.1 = two\n" * self.two)
        os.rename(self.conf + ".new", self.conf)

    def look(self, c):
        found = keys(c)
        assert found in self.keys, "registered are %s, and not one of %s" % (found, self.keys)
        self.keys = [found]
        for lun in 0, 1:
            now = serial(c, lun)
            assert (now != b"") == (lun == 0 or self.two), (lun, now)
            if now:
                assert self.serials.setdefault(lun, now) == now, "LUN %d is another one now" % lun

    def round(self, r, number):
        """A start, a look, and a kill while all that changes state is under way."""
        began = time.monotonic()
        with self.server(args=["-c", self.conf], iscsi=True) as s:
            portal = "127.0.0.1", s.iscsi_port
            c = iscsiraw.connect(portal, DISKS, initiator=ALICE, isid=PORT)
            self.look(c)
            self.slowest = max(self.slowest, time.monotonic() - began)
            late = iscsiraw.Client(portal, BOB)
            late.send_login(iscsiraw.OPERATIONAL, iscsiraw.FULL, {
                "InitiatorName": BOB, "TargetName": DISKS, **iscsiraw.WISHES})
            steps = [lambda: register(c, number), lambda: (self.configure(), os.kill(s.pid, signal.SIGHUP))]
            r.shuffle(steps)
            tags = [step() for step in steps]
            old, self.keys = self.keys, [*self.keys, [number]]
            time.sleep(r.choice((0, 0.001, 0.003, 0.01, 0.03)) * r.random())
            s.kill()
            with contextlib.suppress(*GONE):
                told = c.finish(next(t for t in tags if isinstance(t, int))).condition
                assert told in ("", LUNS_CHANGED), told
                self.keys = old if told else [[number]]
            for client in c, late:
                client.socket.close()


def kills_while_state_changes(server, times):
    seed = tap.seed() % 10000000
    site, kept = Site(server), 0
    for number in range(1, times + 1):
        site.round(random.Random(seed + number), number)
        kept += len(site.keys) == 2
    print("%d kills, %d before the registration was answered; a start took %.3f s at most" % (
        times, kept, site.slowest))
    assert 0 < kept < times, "the kills all came at the same moment"


@ctl.served
def a_kill_while_reservations_configuration_and_sessions_change_tears_nothing(server):
    kills_while_state_changes(server, 40)


@ctl.served(slow=True)
def a_kill_while_state_changes_tears_nothing_at_length(server):
    kills_while_state_changes(server, 400)


tap.main()
