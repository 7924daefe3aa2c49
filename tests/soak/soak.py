#!/usr/bin/python3
# takes minutes
"""A server for a long time: several clients by NBD and iSCSI do all that there is to do, come and
go, while an operator reloads, enlarges images and asks questions.

Every byte that is read is what was written last, and the server's counters are what clients have
done. When all have left, memory and descriptors return to what they were after a short while of the
same. And while they are there, those do not rise: the medians of the last third of what was seen are
those of the first.

Each client has an export of its own, so that it knows each byte of it. It may run beside other
tests: nothing here depends on how fast it goes.
"""

import collections
import contextlib
import os
import random
import statistics
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import iscsiraw
import nbdraw
import tap
import usage
from model import Model
from nbdraw import (CMD_BLOCK_STATUS, CMD_CACHE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
                    CMD_WRITE_ZEROES, FUA)
from server import PRELOAD, Nbdkit, served, until

KiB, MiB = 1 << 10, 1 << 20
SIZE, BLOCK = 2 * MiB, 512
SHORT_S, LONG_S = 12, 600
LONG_REST_S = 0.5       # between visits: that one is about time, and leaves the machine to others
TARGET = "iqn.2026-11.org.example:soak"
NBD_CLIENTS, SCSI_CLIENTS = 4, 2
GROWS, GROWN_MAX = 64 * KiB, MiB

usage.malloc_keeps_little()


# ---- NBD

KINDS = {CMD_READ: "read", CMD_WRITE: "write", CMD_FLUSH: "flush", CMD_TRIM: "trim",
         CMD_CACHE: "cache", CMD_WRITE_ZEROES: "zero", CMD_BLOCK_STATUS: "extents"}


class Counted(nbdraw.Client):
    """Knows what it has asked for, as the server names it."""

    done = None

    def send_head(self, command, offset=0, length=0, flags=0, effect=None):
        if command in KINDS:
            self.done[KINDS[command] + "_fua" * (command == CMD_WRITE and flags & FUA)] += 1
        return super().send_head(command, offset, length, flags, effect)


class Nbd:
    """One that comes, does some things to an export, and goes, again and again."""

    def __init__(self, addresses, name, seed):
        self.addresses, self.name = addresses, name
        self.done, self.random = collections.Counter(), random.Random(seed)
        self.model = Model(None, bytes(SIZE), seed)

    def visit(self):
        rng, model = self.random, self.model
        c = Counted(rng.choice(self.addresses))
        c.done = self.done
        with c:
            if rng.random() < 0.7:
                c.structured_reply()
                c.set_meta_context(self.name)
            c.go(self.name)
            assert c.size >= len(model.bytes) and c.size % GROWS == 0, c.size
            model.bytes.extend(bytes(c.size - len(model.bytes)))
            model.client = c
            model.run(rng.randrange(5, 40))
            model.crowd([c], 20, 4 * KiB)
            if c.context is not None:
                c.block_status(0, SIZE)
            if rng.random() < 0.5:
                c.flush()
            if rng.random() < 0.3:
                c.reset()                                   # instead of a word


# ---- iSCSI

class Scsi:
    def __init__(self, portal, lun, seed):
        self.portal, self.lun = portal, lun
        self.done, self.random = collections.Counter(), random.Random(seed)
        self.bytes = bytearray(SIZE)

    def visit(self):
        with iscsiraw.connect(self.portal, TARGET, lun=self.lun) as self.client:
            for _ in range(self.random.randrange(20, 120)):
                blocks = self.random.choice((1, 1, 7, 8, 64, 300))
                self.act(self.random.randrange(SIZE // BLOCK - blocks), blocks)
            self.check(0, SIZE // BLOCK)
            if self.random.random() < 0.3:
                self.client.full = False                    # so it leaves without a word

    def command(self, opcode, lba, blocks, dout=b"", byte1=0, **how):
        """One of 16 bytes."""
        return self.client.cdb(struct.pack(">BBQIBB", opcode, byte1, lba, blocks, 0, 0), dout=dout,
                               **how)

    def read(self, lba, blocks):
        self.done["read"] += 1
        return bytes(self.command(0x88, lba, blocks, din=blocks * BLOCK).check().data)

    def check(self, lba, blocks):
        want = self.bytes[lba * BLOCK:(lba + blocks) * BLOCK]
        assert self.read(lba, blocks) == want, "LUN %d: blocks %d+%d" % (self.lun, lba, blocks)

    def became(self, lba, data):
        self.bytes[lba * BLOCK:lba * BLOCK + len(data)] = data

    def act(self, lba, blocks):
        verbs = [self.write] * 4 + [self.compare_and_write] * 2 + [
            self.write_same, self.unmap, self.synchronize]
        self.random.choice(verbs)(lba, blocks)
        self.check(lba, blocks)

    def write(self, lba, blocks):
        fua, data = self.random.random() < 0.3, self.random.randbytes(blocks * BLOCK)
        self.done["write" + "_fua" * fua] += 1
        self.command(0x8A, lba, blocks, data, 8 * fua).check()
        self.became(lba, data)

    def compare_and_write(self, lba, _):
        there, new = self.bytes[lba * BLOCK:(lba + 1) * BLOCK], self.random.randbytes(BLOCK)
        right = self.random.random() < 0.7
        guess = bytes(there) if right else self.random.randbytes(BLOCK)
        self.done["write"] += 1
        r = self.client.cdb(struct.pack(">BBQ3xBBB", 0x89, 0, lba, 1, 0, 0), dout=guess + new)
        assert r.condition == ("" if right else "e/1d00"), r.condition
        if right:
            self.became(lba, new)

    def write_same(self, lba, blocks):
        one = self.random.randbytes(BLOCK)
        self.done["write"] += 1
        self.command(0x93, lba, blocks, one).check()
        self.became(lba, one * blocks)

    def unmap(self, lba, blocks):
        self.done["zero"] += 1                              # as which it is carried out
        self.client.cdb(struct.pack(">BBIBHB", 0x42, 0, 0, 0, 24, 0),
                        dout=struct.pack(">HH4xQI4x", 22, 16, lba, blocks)).check()
        before = self.bytes[lba * BLOCK:(lba + blocks) * BLOCK]
        after = self.read(lba, blocks)
        assert all(a == b or a == 0 for a, b in zip(after, before)), "unmap spoilt a byte"
        self.became(lba, after)

    def synchronize(self, *_):
        self.done["flush"] += 1
        self.command(0x91, 0, 0).check()


# ---- all at once

def together(s, seconds, rest, *acts):
    """Each on a thread, again and again. Returns what the server held all the while."""
    end, failed, seen = time.monotonic() + seconds, [], []

    def over():
        return failed or time.monotonic() > end

    def repeat(act):
        try:
            while not over():
                act()
                time.sleep(rest)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=repeat, args=(act,), daemon=True) for act in acts]
    for t in threads:
        t.start()
    while not over():
        seen.append(usage.usage(s))
        time.sleep(0.1)
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
    return seen


def soak(s, seconds, *acts):
    rest = LONG_REST_S if seconds > SHORT_S else 0
    together(s, seconds / 6, rest, *acts)
    before = usage.settled(s)
    seen = together(s, seconds, rest, *acts)
    # In a short time clients may be together for the first time, and need what none has needed
    # so far of the memory for requests.
    is_flat(seen, usage.ALLOWANCE * (2 if seconds > SHORT_S else 8))
    usage.returns(s, before)
    print("when all had left: first %s, then %s" % (list(before), list(usage.usage(s))))


def is_flat(seen, allowance):
    """The medians of thirds, as single ones differ. How much address space there is for data says
    little before all have left: each thread's stack counts as a whole."""
    third = len(seen) // 3
    first, last = ([int(statistics.median(column)) for column in zip(*part)][:2]
                   for part in (seen[:third], seen[-third:]))
    print("descriptors, memory: first %s, then %s" % (first, last))
    assert last[0] <= first[0] + 8, "descriptors pile up"
    assert PRELOAD or last[1] <= first[1] + allowance, "memory piles up"


def tell(clients, seconds):
    done = sum((c.done for c in clients), collections.Counter())
    print("%d operations in %d s: %s" % (sum(done.values()), seconds, dict(done)))
    assert min(sum(c.done.values()) for c in clients) > 0


class Operator:
    """Reloads, enlarges images, asks. Each export is enlarged at times; its client sees the
    beginning of what it had and zeroes behind it."""

    def __init__(self, s, images, seed):
        self.s, self.images, self.random = s, images, random.Random(seed)
        self.o = s.operator()

    def act(self):
        o, rng = self.o, self.random
        kind = rng.randrange(6)
        if kind == 0:
            o.ask("reload")
        elif kind == 1:
            name, path = rng.choice(self.images)
            os.truncate(path, min(os.path.getsize(path) + GROWS, SIZE + GROWN_MAX))
            o.ask("resize", export=name)
        elif kind == 2:
            assert "platter_" in self.s.page()
        else:
            assert o.ask(rng.choice(("exports", "connections", "targets", "help")))
        if rng.random() < 0.1:
            o.close()
            self.o = self.s.operator()
        time.sleep(0.2)


def counted(s, clients):
    """The server's counters are what the clients did; once the last of them is counted."""
    with s.operator() as o:
        for name, client in clients:
            def told():
                return {kind: op["count"] for kind, op in o.export(name)["operations"].items()
                        if op["count"]}

            with contextlib.suppress(AssertionError):
                until(lambda: told() == dict(client.done), seconds=5)
            assert told() == dict(client.done), (name, told(), dict(client.done))
            assert not any(sum(op["errors"].values())
                           for op in o.export(name)["operations"].values()), name


def with_platterd(server, seconds):
    seed = tap.seed()
    nbd, scsi = (["%s%d" % (kind, n) for n in range(count)]
                 for kind, count in (("nbd", NBD_CLIENTS), ("scsi", SCSI_CLIENTS)))
    sections = []
    for n, name in enumerate(nbd + scsi):
        how = ("cache = none", "cache = writeback")[n % 2]
        sections.append("[export %s]\npath = %s\n%s\n" % (name, server.image(SIZE, name), how))
    sections.append("[target %s]\n%s" % (TARGET, "".join(
        "lun.%d = %s\n" % item for item in enumerate(scsi))))
    conf = server.path("platter.conf")
    with open(conf, "w") as f:
        f.writelines(sections)
    other = os.path.join(server.run, "other.sock")
    with server(args=["-c", conf, "--loops", "2", "--unix", other], tcp=True, iscsi=True) as s:
        clients = [(name, Nbd([s.address, other], name, seed + n)) for n, name in enumerate(nbd)]
        clients += [(name, Scsi(("127.0.0.1", s.iscsi_port), n, seed - n - 1))
                    for n, name in enumerate(scsi)]
        operator = Operator(s, [(name, server.path(name)) for name in nbd], seed)
        soak(s, seconds, operator.act, *[c.visit for _, c in clients])
        operator.o.close()
        tell([c for _, c in clients], seconds)
        counted(s, clients)
    for name, c in clients:
        size = len(c.model.bytes if name in nbd else c.bytes)
        with open(server.path(name), "rb") as f:
            assert f.read(size) == (c.model.bytes if name in nbd else c.bytes), name


def with_nbdkit(server, seconds):
    seed = tap.seed()
    images = [server.image(SIZE, "disk%d" % n) for n in range(3)]
    with contextlib.ExitStack() as stack:
        # The plugin has one export, so there are as many servers; the first is looked at.
        servers = [stack.enter_context(server(image, cache=cache, threads=4)) for image, cache in
                   zip(images, ("writeback", "none", "writeback"))]
        clients = [Nbd([s.address], "", seed + n) for n, s in enumerate(servers)]
        soak(servers[0], seconds, *[c.visit for c in clients])
        tell(clients, seconds)
    for image, c in zip(images, clients):
        with open(image, "rb") as f:
            assert f.read() == c.model.bytes


# ---- cases

@ctl.served(limit=120)
def all_clients_get_their_bytes_and_nothing_piles_up(server):
    with_platterd(server, SHORT_S)


@ctl.served(slow=True, limit=LONG_S + 120)
def all_clients_get_their_bytes_and_nothing_piles_up_in_ten_minutes(server):
    with_platterd(server, LONG_S)


@served(on=[Nbdkit], limit=120)
def clients_of_the_plugin_get_their_bytes_and_nothing_piles_up(server):
    with_nbdkit(server, SHORT_S / 3)


@served(on=[Nbdkit], slow=True)
def clients_of_the_plugin_get_their_bytes_and_nothing_piles_up_in_two_minutes(server):
    with_nbdkit(server, LONG_S / 5)


tap.main()
