#!/usr/bin/python3
# takes minutes
"""Power cuts, by the thousand: clients ask for everything at once of a disk whose cache loses
power, through every front end, and what is then on the medium is held against what they were told.

A server has many such disks, so that one costs a few milliseconds. A failure names its seed: with
PLATTER_SEED=N the first workload sends the same requests in the same order, and the power fails at
the same operation and keeps the same of what was not flushed; only threads are free to differ.

no second try
"""

import contextlib
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import iscsiraw
import nbdraw
import tap
from journal import Journal
from server import Factory, Nbdkit, Platterd
from workload import DONE, Crowd, Nbd, Scsi

SIZE = 64 << 10
FILL = 0xEE
BATCH = 50          # disks of a server
# The medium never loses power here, so its syncs need not cost what they do.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
TARGET = "iqn.2026-11.org.example:disks"
PLAIN, SLOW = 750, 5000     # workloads of each case


class Batch:
    """A server and its disks. Workload N is the same whichever comes first in its batch."""

    def __init__(self, server, first):
        self.server, self.seed = server, first
        self.fua = ("native", "commit")[first // BATCH % 2]
        self.folder = server.path("disks")
        os.makedirs(self.folder, exist_ok=True)
        for number in range(BATCH):
            with open(self.path(number), "wb") as f:
                f.write(bytes([FILL]) * SIZE)

    def path(self, number):
        return os.path.join(self.folder, "disk%d" % number)

    def options(self, number):
        seed = self.seed + number
        return {"driver": "powercut", "over": "file", "powercut-fua": self.fua, "seed": seed,
                "cut": random.Random(seed).randrange(2, 80)}

    def clients(self, number, r):
        """Some connections to a disk."""
        return [Nbd(nbdraw.connect(self.s.address, "disk%d" % number))
                for _ in range(r.randrange(1, 4))]

    def leave(self, clients):
        for client in clients:
            if isinstance(client, Nbd):
                client.raw.close()

    @contextlib.contextmanager
    def serving(self):
        with self.start() as self.s:
            yield


class PluginBatch(Batch):
    """Its disks lose power at the same operation, each of its own workload."""

    def start(self):
        return self.server(dir=self.folder, **self.options(0))


class NbdBatch(Batch):
    iscsi = False

    def start(self):
        conf = self.server.path("platter.conf")
        with open(conf, "w") as f:
            for number in range(BATCH):
                f.write("[export disk%d]\npath = %s\n" % (number, self.path(number)))
                f.writelines("%s = %s\n" % o for o in self.options(number).items())
            if self.iscsi:
                f.write("[target %s]\n" % TARGET)
                f.writelines("lun.%d = disk%d\n" % (n, n) for n in range(BATCH))
        return self.server(args=["-c", conf, "--loops", "2"], iscsi=self.iscsi)


class ScsiBatch(NbdBatch):
    iscsi = True

    @contextlib.contextmanager
    def serving(self):
        with super().serving(), contextlib.ExitStack() as stack:
            portal = "127.0.0.1", self.s.iscsi_port
            self.sessions = [stack.enter_context(iscsiraw.connect(portal, TARGET, ready=False))
                             for _ in range(3)]
            yield

    def clients(self, number, r):
        for session in self.sessions:
            session.lun = number
            session.ready()
        return [Scsi(session) for session in self.sessions[:r.randrange(1, 4)]]


class BothBatch(ScsiBatch):
    def clients(self, number, r):
        return NbdBatch.clients(self, number, r) + ScsiBatch.clients(self, number, r)


def until_the_power_fails(batch, number):
    """Returns how much was lost that nobody was promised."""
    r = random.Random(batch.seed + number)
    journal = Journal(bytes([FILL]) * SIZE, trim=4096)
    clients = batch.clients(number, r)
    crowd = Crowd(clients, journal, r, depth=r.randrange(1, 9))
    assert crowd.run(2000), "the power never failed"
    for client in clients:
        assert client.settle(journal) != DONE, "durable without power"
    batch.leave(clients)
    with open(batch.path(number), "rb") as f:
        return journal.check(f.read())


def workloads(kind, front_end, total):
    seed, lost = tap.seed() % 10000000, 0
    end = seed + total
    while seed < end:
        first = seed // BATCH * BATCH
        server = Factory(front_end, MEMORY)
        try:
            batch = kind(server, first)
            with batch.serving():
                while seed < min(end, first + BATCH):
                    try:
                        lost += until_the_power_fails(batch, seed - first)
                    except BaseException:
                        print("PLATTER_SEED=%d sends the same again" % seed)
                        raise
                    seed += 1
        finally:
            server.close()
    print("%d workloads; %d places lost what nobody had promised" % (total, lost))
    assert lost, "no power cut lost anything, so nothing was tried"


@tap.lengths(PLAIN, SLOW, limit=240)
def nothing_acknowledged_is_lost_in_a_power_cut(total):
    workloads(PluginBatch, Nbdkit, total)


@tap.lengths(PLAIN, SLOW, limit=240)
def nothing_acknowledged_is_lost_in_a_power_cut_on_platterd(total):
    workloads(NbdBatch, Platterd, total)


@tap.lengths(PLAIN, SLOW, limit=240)
def nothing_acknowledged_is_lost_in_a_power_cut_by_iscsi(total):
    workloads(ScsiBatch, Platterd, total)


@tap.lengths(PLAIN, SLOW, limit=240)
def nothing_acknowledged_is_lost_in_a_power_cut_by_nbd_and_iscsi(total):
    workloads(BothBatch, Platterd, total)


tap.main()
