#!/usr/bin/python3
"""Sectors of one page belong to different clients, which write them with FUA and without, zero and
trim them, and read what others write besides, all at once. Where FUA writes pass by the page cache
that all else uses (cache=auto), each sector must stay what its owner wrote last: for who reads it,
in the page cache, and on the medium."""

# no valgrind

import contextlib
import mmap
import os
import random
import signal
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import iscsiraw
import mounts
import nbdraw
import tap
from nbdraw import CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES
from server import Platterd, served

KiB, MiB = 1 << 10, 1 << 20
SECTOR = 512
SIZE = 4 * MiB
START, SECTORS = 2 * MiB - 16 * KiB, 64     # around an edge between the largest folios
CLIENTS, DEPTH = 6, 8
WRITE, FUA, ZERO, TRIM, READ = range(5)
FILL = b"\xee" * SECTOR


class Nbd:
    def __init__(self, s):
        self.raw = nbdraw.connect(s.address)

    def send(self, kind, at, data):
        command, flags = {WRITE: (CMD_WRITE, 0), FUA: (CMD_WRITE, nbdraw.FUA), TRIM: (CMD_TRIM, 0),
                          ZERO: (CMD_WRITE_ZEROES, 0), READ: (CMD_READ, 0)}[kind]
        return self.raw.send(command, at, SECTOR, flags, data)

    def receive(self):
        reply = self.raw.receive()
        reply.check()
        return reply.cookie, reply.data


class Scsi:
    COMMANDS = {WRITE: (0x8a, 0), FUA: (0x8a, 8), ZERO: (0x93, 0), TRIM: (0x93, 8), READ: (0x88, 0)}

    def __init__(self, s):
        self.raw = iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target)
        self.flying = []

    def send(self, kind, at, data):
        code, bits = self.COMMANDS[kind]
        self.flying.append(self.raw.command(
            struct.pack(">BBQIBB", code, bits, at // SECTOR, 1, 0, 0),
            din=SECTOR if kind == READ else 0,
            dout=bytes(SECTOR) if kind in (ZERO, TRIM) else data))
        return self.flying[-1]

    def receive(self):
        while True:
            for tag in self.flying:
                if self.raw.tasks[tag].status is not None:
                    self.flying.remove(tag)
                    return tag, bytes(self.raw.finish(tag).check().data)
            self.raw.receive()


class Owner:
    """A client, and the sectors that it alone changes: every CLIENTS-th."""

    def __init__(self, client, number, r):
        self.client, self.r = client, r
        self.content = {n: {FILL} for n in range(number, SECTORS, CLIENTS)}   # one of these
        self.flying = {}

    def ask(self):
        """One request for one of its sectors with none in flight, or a read of any."""
        r = self.r
        free = set(self.content) - {sector for _, sector, _ in self.flying.values()}
        kind = r.choices((WRITE, FUA, ZERO, TRIM, READ), (6, 6, 1, 1, 6))[0]
        sector = r.choice(sorted(free))
        data = r.randbytes(SECTOR) if kind in (WRITE, FUA) else b""
        if kind == READ and r.random() < 0.3:
            sector = r.randrange(SECTORS)       # anybody's: whatever it is, it comes to be cached
        tag = self.client.send(kind, START + sector * SECTOR, data)
        self.flying[tag] = kind, sector, data

    def take(self):
        tag, data = self.client.receive()
        kind, sector, written = self.flying.pop(tag)
        if kind in (WRITE, FUA):
            self.content[sector] = {written}
        elif kind == ZERO:
            self.content[sector] = {bytes(SECTOR)}
        elif kind == TRIM:                      # may leave it
            self.content[sector] = self.content[sector] | {bytes(SECTOR)}
        elif sector in self.content and not any(s == sector for _, s, _ in self.flying.values()):
            self.check(sector, data, "read beside others")

    def check(self, sector, data, where):
        assert bytes(data) in self.content[sector], "%s: sector %d has %s, not %s" % (
            where, sector, bytes(data[:8]).hex(), " or ".join(c[:8].hex() for c in
                                                             self.content[sector]))
        self.content[sector] = {bytes(data)}    # and so it stays


def check_all(owners, data, where):
    for owner in owners:
        for sector in owner.content:
            owner.check(sector, data[sector * SECTOR:(sector + 1) * SECTOR], where)


def on_medium(path):
    """That part of the image, past the page cache. None: there is no such way."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    with mmap.mmap(-1, SECTORS * SECTOR) as page:
        try:
            assert os.preadv(fd, [page], START) == len(page)
        finally:
            os.close(fd)
        return bytes(page)


def in_cache(path):
    with open(path, "rb") as f:
        f.seek(START)
        return f.read(SECTORS * SECTOR)


def forget(path):
    """Has the page cache drop what it has of it."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def rounds(s, owners, steps):
    r = owners[0].r
    for _ in range(steps):
        owner = r.choice(owners)
        if len(owner.flying) < DEPTH and r.random() < 0.7:
            owner.ask()
        elif owner.flying:
            owner.take()
    for owner in owners:
        while owner.flying:
            owner.take()


def mix(server, image, kinds, steps=4000, shown=None, **options):
    r = random.Random(tap.seed())
    how = {"iscsi": True} if Scsi in kinds else {}
    with server(image, **options, **how) as s:
        owners = [Owner(kinds[n % len(kinds)](s), n, r) for n in range(CLIENTS)]
        with nbdraw.connect(s.address) as c:
            if shown:
                assert shown in c.description, c.description
            for _ in range(2):
                rounds(s, owners, steps // 2)
                check_all(owners, c.read(START, SECTORS * SECTOR), "read by the server")
                c.flush()
                medium = on_medium(image)
                check_all(owners, medium or in_cache(image), "on the medium, after a flush")
            for owner in owners:
                owner.client.raw.close()
    check_all(owners, in_cache(image), "in the page cache, after the end")
    forget(image)
    check_all(owners, in_cache(image), "without the page cache")


def everybody(server, image, **how):
    """By NBD, and where a server has both, by iSCSI at once."""
    mix(server, image, [Nbd, Scsi] if server.front_end is Platterd else [Nbd], **how)


@served(limit=60)
def neighbours_in_a_page_stay_what_their_owners_wrote(server):
    everybody(server, server.image(SIZE, fill=0xEE), cache="auto", fua="native")


@served(on=[Platterd], limit=60)
def neighbours_in_a_page_stay_so_on_four_workers(server):
    def wide(*words, **how):
        return server(*words, args=["--loops", "4"], **how)
    mix(wide, server.image(SIZE, fill=0xEE), [Nbd, Scsi], cache="auto", fua="native")


@served(limit=60)
def neighbours_in_a_page_stay_so_where_every_write_is_stable(server):
    everybody(server, server.image(SIZE, fill=0xEE), steps=3000, cache="writethrough", fua="native")


# The file system, what is said of it, and how to make it.
PLACES = [("ext4", "cache=auto (", 64 * MiB), ("xfs", "cache=auto (", 300 * MiB),
          ("btrfs", "cache=writeback instead of auto", 120 * MiB)]


@contextlib.contextmanager
def place(server, kind, size):
    """A file system over a disk without a volatile cache: there the kernel itself lets a FUA write
    succeed whose stale copy it cannot drop."""
    with mounts.loop(server.image(size, "fs"), SECTOR) as device:
        with open("/sys/block/%s/queue/write_cache" % os.path.basename(device), "w") as f:
            f.write("write through")
        mounts.run("mkfs." + kind, "-q", device)
        with mounts.mounted(server.path("place"), device) as where:
            yield where


@served(limit=120)
def neighbours_in_a_page_stay_so_on_other_file_systems(server):
    for kind, shown, size in PLACES:
        with place(server, kind, size) as where:
            image = server.image(SIZE, os.path.join(where, "disk.img"), fill=0xEE)
            forget(image)
            everybody(server, image, steps=3000, shown=shown, cache="auto")
    with mounts.tmpfs(server.path("place"), 16 * MiB) as where:
        image = server.image(SIZE, os.path.join(where, "disk.img"), fill=0xEE)
        everybody(server, image, steps=3000, shown="cache=writeback instead of auto", cache="auto")


@served(limit=60)
def neighbours_in_a_page_stay_so_on_a_device(server):
    path = server.image(SIZE, "backing", fill=0xEE)
    with mounts.loop(path, SECTOR) as device:
        everybody(server, device, steps=3000, shown="cache=writeback instead of auto", cache="auto")


@contextlib.contextmanager
def dirtying(path, at):
    """Somebody whom no lock keeps out changes that byte of the file all the time."""
    child = os.fork()
    if child == 0:
        with open(path, "r+b") as f, mmap.mmap(f.fileno(), 4096) as page:
            while os.getppid() != 1:
                for n in range(10000):
                    page[at] = n & 0xFF
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@served(limit=60)
def a_fua_write_that_the_page_cache_would_undo_is_no_success(server):
    """The kernel tells of it whoever syncs."""
    for kind, _, size in PLACES[:2]:
        with place(server, kind, size) as where:
            image = server.image(MiB, os.path.join(where, "disk.img"), fill=0xEE)
            forget(image)
            with server(image, cache="auto") as s, nbdraw.connect(s.address) as c:
                assert "cache=auto (the device has no volatile cache)" in c.description
                with dirtying(image, 2048):
                    for n in range(20000):
                        data = struct.pack("<I", n) * (SECTOR // 4)
                        error = nbdraw.error_of(c.write, 0, data, nbdraw.FUA)
                        if error:
                            break
                        assert c.read(0, SECTOR) == data, "write %d is not there" % n
                print("%s: after %d writes" % (kind, n))
                assert error == "EIO", error
                assert nbdraw.error_of(c.flush) == "EIO"
                assert nbdraw.error_of(c.write, MiB // 2, data, nbdraw.FUA) == "EIO"
                c.write(MiB // 2, data)


tap.main()
