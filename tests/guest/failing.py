#!/usr/bin/python3
# takes minutes
"""A disk fails, hangs, fills up or goes away below the server: what clients are told is true."""

import collections
import contextlib
import glob
import mmap
import os
import random
import struct
import sys
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import inside
import iscsiraw
import nbdraw
import tap
from inside import Mapped
from journal import Journal
from server import Nbdkit, Platterd, until

KiB, MiB = 1 << 10, 1 << 20
SECTOR = 512


# ---- three front ends, and one way to ask -------------------------------------------------------

class Target(Platterd):
    """platterd, by iSCSI."""

    name = "iscsi"

    def __init__(self, run, *words, args=(), **how):
        super().__init__(run, *words, iscsi=True, args=[*args, "--state", run], **how)


class Refused(Exception):
    """The server answered with an error: str() is its name."""

    def __init__(self, error, sense=None):
        super().__init__(error)
        self.sense = sense


class Client:
    """What is the same for both. Any number of requests may be under way: ask(), then finish()."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.c.close()

    def read(self, offset, length, fua=False):
        return self.finish(self.ask_read(offset, length, fua))

    def write(self, offset, data, fua=False):
        self.finish(self.ask_write(offset, data, fua))

    def flush(self):
        self.finish(self.ask_flush())


class Nbd(Client):
    READ_ERROR = WRITE_ERROR = "EIO"
    NO_SPACE, READ_ONLY = "ENOSPC", "EPERM"

    def __init__(self, s, number=0, names=("",)):
        self.c = nbdraw.connect(s.address, names[number])
        self.replies = {}

    def ask_read(self, offset, length, fua=False):
        return self.c.send(nbdraw.CMD_READ, offset, length, fua and nbdraw.FUA)

    def ask_write(self, offset, data, fua=False):
        return self.c.send(nbdraw.CMD_WRITE, offset, len(data), fua and nbdraw.FUA, data)

    def ask_flush(self):
        return self.c.send(nbdraw.CMD_FLUSH)

    def finish(self, cookie):
        while cookie not in self.replies:
            reply = self.c.receive()
            self.replies[reply.cookie] = reply
        reply = self.replies.pop(cookie)
        if reply.error:
            raise Refused(nbdraw.errno.errorcode[reply.error])
        return bytes(reply.data)


class Iscsi(Client):
    READ_ERROR, WRITE_ERROR = "3/1100", "3/0c00"
    NO_SPACE, READ_ONLY = "7/2707", "7/2700"

    def __init__(self, s, number=0, names=()):
        self.c = iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target, lun=number)

    def ask_rw(self, opcode, offset, length, fua, **data):
        cdb = struct.pack(">BBQIBB", opcode, 8 if fua else 0, offset // SECTOR, length // SECTOR,
                          0, 0)
        return self.c.command(cdb, **data)

    def ask_read(self, offset, length, fua=False):
        return self.ask_rw(0x88, offset, length, fua, din=length)

    def ask_write(self, offset, data, fua=False):
        return self.ask_rw(0x8a, offset, len(data), fua, dout=data)

    def ask_flush(self):
        return self.c.command(bytes([0x35]) + bytes(9))

    def finish(self, itt):
        task = self.c.finish(itt)
        if task.condition:
            raise Refused(task.condition, task.sense)
        return bytes(task.data)


def connect(s, *where):
    return (Iscsi if isinstance(s, Target) else Nbd)(s, *where)


@contextlib.contextmanager
def told(error):
    """What is asked for inside has to end with that error; `sense` will be there for iSCSI."""
    about = types.SimpleNamespace(sense=None)
    try:
        yield about
    except Refused as e:
        assert str(e) == error, "told %s instead of %s" % (e, error)
        about.sense = e.sense
    else:
        raise AssertionError("it was done, instead of told %s" % error)


def error_of(call, *words):
    """What it is told; "" when it is done."""
    try:
        call(*words)
    except Refused as e:
        return str(e)
    return ""


def served(*, modules=(), programs=(), **how):
    return inside.served(on=[Nbdkit, Platterd, Target], modules=["dm-mod", *modules],
                         programs=["dmsetup", *programs], **how)


# ---- disks --------------------------------------------------------------------------------------

def disk(name="nullb0", size=16):
    """A disk, and over it a device that can be made to fail."""
    below = inside.null_blk(name, size)
    return below, Mapped("over-" + name, linear(below))


def sectors(path):
    return int(inside.sh("blockdev --getsz " + path))


def linear(path):
    return sectors(path), "linear %s 0" % path


def writes(path, kind):
    """A disk whose writes fail ("error_writes"), or are done in name only ("drop_writes")."""
    return sectors(path), "flakey %s 0 0 1 1 %s" % (path, kind)


def read_below(path, length):
    """What is on the disk itself."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, length)
    try:
        assert os.preadv(fd, [buffer], 0) == length
        return bytes(buffer)
    finally:
        os.close(fd)


CACHED = {"cache": "writeback", "fua": "commit"}
DIRECT = {"cache": "none"}
A, B, C, D = (bytes([b]) * 4 * KiB for b in b"ABCD")


# ---- blocks that cannot be read or written ------------------------------------------------------

BAD = 4 * MiB + 3 * SECTOR      # of one sector


@served()
def a_block_that_cannot_be_read_spoils_no_other(server):
    pattern = b"".join(struct.pack(">Q", n) * (SECTOR // 8) for n in range(16 * MiB // SECTOR))
    below = inside.null_blk(size=16)
    with open(below, "wb") as f:
        f.write(pattern)
    bad = BAD // SECTOR
    mapped = Mapped("bad", (bad, "linear %s 0" % below), (1, "error"),
                    (len(pattern) // SECTOR - bad - 1, "linear %s %d" % (below, bad + 1)))
    for options in DIRECT, CACHED:
        with server(mapped.path, **options) as s, connect(s) as c:
            for offset, length in ((BAD, SECTOR), (4 * MiB, 64 * KiB), (2 * MiB, 4 * MiB),
                                   (0, 8 * MiB)):
                with told(c.READ_ERROR) as error:
                    c.read(offset, length)
                if isinstance(c, Iscsi):
                    # The page cache has its whole page, or nothing of it.
                    first = bad if options == DIRECT else max(bad & ~7, offset // SECTOR)
                    assert error.sense.information == first, error.sense.data.hex()
            for start, end in (0, 4 * MiB), (4 * MiB + 4 * KiB, 12 * MiB):
                assert c.read(start, end - start) == pattern[start:end], (options, start)
            # It is no sync that failed.
            c.write(0, pattern[:4 * KiB], True)
            c.flush()


@served()
def a_block_that_cannot_be_written_is_told_to_who_writes_it(server):
    """At once, and the disk remains what it was; or by the flush that finds it out."""
    below = inside.null_blk(size=16)
    mapped = Mapped("bad", (8192, "linear %s 0" % below), (8, "error"),
                    (16384, "linear %s 8200" % below))
    with server(mapped.path, **DIRECT) as s, connect(s) as c:
        for offset, length in (4 * MiB, 4 * KiB), (3 * MiB, 2 * MiB):
            with told(c.WRITE_ERROR):
                c.write(offset, bytes(length))
        c.write(4 * MiB - 4 * KiB, A, True)
        c.flush()
        assert c.read(4 * MiB - 4 * KiB, 4 * KiB) == A
    with server(mapped.path, **CACHED) as s, connect(s) as c, connect(s) as other:
        c.write(0, B, True)
        # All of the page is new: nothing of it need be read.
        c.write(4 * MiB, C)
        with told(other.WRITE_ERROR):
            other.flush()
        assert_failed(s, c, other)
    assert read_below(below, 4 * KiB) == B


# ---- syncs that fail ----------------------------------------------------------------------------

def assert_failed(s, *clients):
    """Nothing is promised any more, in any connection; reads go on."""
    with connect(s) as late:
        for c in (*clients, late):
            for _ in range(2):
                with told(c.WRITE_ERROR):
                    c.flush()
                with told(c.WRITE_ERROR):
                    c.write(64 * KiB, D, True)
            assert c.read(0, 4 * KiB) != D


@served(modules=["dm-flakey"])
def a_failed_sync_stays_failed_whatever_becomes_of_the_disk(server):
    """The kernel tells of it once, and the next sync would succeed."""
    for options in DIRECT, CACHED:
        with contextlib.ExitStack() as stack:
            below, mapped = disk()
            s = stack.enter_context(server(mapped.path, **options))
            a, b = (stack.enter_context(connect(s)) for _ in range(2))
            a.write(0, A, True)
            b.write(4 * KiB, B)
            b.flush()
            mapped.load(writes(below, "error_writes"))
            if options == DIRECT:
                # Who was told of it owes nobody a sync.
                with told(a.WRITE_ERROR):
                    a.write(8 * KiB, C)
                mapped.load(linear(below))
                b.flush()
                a.write(12 * KiB, A, True)
                mapped.load(writes(below, "error_writes"))
                with told(a.WRITE_ERROR):
                    a.write(8 * KiB, C, True)
            else:
                a.write(8 * KiB, C)
                with told(b.WRITE_ERROR):
                    b.flush()
            assert_failed(s, a, b)
            mapped.load(linear(below))
            assert_failed(s, a, b)
            assert b.read(0, 8 * KiB) == A + B
        with server(mapped.path, **options) as s, connect(s) as c:
            c.write(8 * KiB, D, True)
            c.flush()
        assert read_below(below, 12 * KiB) == A + B + D
        inside.devices.close()


@served(modules=["dm-flakey"], programs=["mkfs.ext4"])
def a_file_system_that_turns_read_only_takes_nothing_and_keeps_what_it_has(server):
    """As ext4 does when it cannot write its journal."""
    for options in DIRECT, CACHED:
        below, mapped = disk()
        inside.sh("mkfs.ext4 -q " + mapped.path)
        inside.mount("-o errors=remount-ro", mapped.path)
        inside.sh("truncate -s 8M /mnt/disk.img")
        with server("/mnt/disk.img", **options) as s, connect(s) as a, connect(s) as b:
            for n in range(8):
                (a, b)[n % 2].write(n * 64 * KiB, A, True)
            mapped.load(writes(below, "error_writes"))
            with told(a.WRITE_ERROR):
                a.write(4 * MiB, C, True)
            if options == DIRECT:
                # With the next commit of its journal. The page cache takes writes even then.
                until(lambda: error_of(b.write, 5 * MiB, C) == b.READ_ONLY)
            assert_failed(s, a, b)
        mapped.load(linear(below))
        inside.unmount()
        inside.mount(mapped.path)
        with open("/mnt/disk.img", "rb") as f:
            for n in range(8):
                f.seek(n * 64 * KiB)
                assert f.read(4 * KiB) == A, n
        inside.devices.close()


# ---- nothing false is acknowledged --------------------------------------------------------------

SPAN = MiB


class Asker:
    """A connection with some requests in flight, and the journal that knows what they mean."""

    def __init__(self, s, journal, rng):
        self.c, self.journal, self.rng = connect(s), journal, rng
        self.flying = []
        self.told = collections.Counter()

    def ask(self):
        if self.rng.random() < 0.1:
            entry = self.journal.settle()
            tag = self.c.ask_flush()
        else:
            length = self.rng.choice((1, 3, 8, 8, 8, 24)) * SECTOR
            entry = self.journal.write(self.rng.randrange((SPAN - length) // SECTOR) * SECTOR,
                                       length, self.rng.random() < 0.4)
            tag = self.c.ask_write(entry.offset, entry.data, entry.fua)
        self.flying.append((tag, entry))

    def finish(self):
        tag, entry = self.flying.pop(0)
        try:
            self.c.finish(tag)
            self.journal.answered(entry)
            self.told[""] += 1
        except Refused as e:
            self.told[str(e)] += 1


def ask_a_disk_that_changes(server, options, changes, rng, each=60):
    """Two connections ask while the disk becomes one thing after the other; returns what they were
    told, after the server has ended and the journal was held against the disk."""
    below, mapped = disk()
    journal = Journal(bytes(SPAN))
    with server(mapped.path, **options) as s:
        askers = [Asker(s, journal, rng) for _ in range(2)]
        for change in changes:
            mapped.load(change(below))
            for _ in range(rng.randrange(each // 2, each)):
                asker = rng.choice(askers)
                asker.ask()
                if len(asker.flying) > 4:
                    asker.finish()
        for asker in askers:
            while asker.flying:
                asker.finish()
            asker.c.c.close()
    mapped.load(linear(below))
    journal.check(read_below(below, SPAN))
    inside.devices.close()
    return sum((asker.told for asker in askers), collections.Counter())


def failing_writes(below):
    return writes(below, "error_writes")


def a_dead_disk(below):
    return sectors(below), "error"


def up_and_down(below):
    """A second each."""
    return sectors(below), "flakey %s 0 1 1 1 error_writes" % below


def what_is_acknowledged_is_there(server, rounds):
    rng = random.Random(tap.seed())
    for number in range(rounds):
        bad = rng.choice((failing_writes, a_dead_disk))
        told_of = ask_a_disk_that_changes(server, (CACHED, DIRECT)[number % 2],
                                          (linear, bad, linear, bad), rng)
        assert told_of[""] > 10 and len(told_of) > 1, told_of


@served(modules=["dm-flakey"])
def nothing_false_is_acknowledged_by_a_disk_that_fails_and_recovers(server):
    what_is_acknowledged_is_there(server, 2)


@served(modules=["dm-flakey"], slow=True)
def nothing_false_is_acknowledged_by_a_disk_that_fails_and_recovers_often(server):
    what_is_acknowledged_is_there(server, 16)
    rng = random.Random(tap.seed())
    for number in range(4):
        ask_a_disk_that_changes(server, (CACHED, DIRECT)[number % 2], (up_and_down,), rng, 600)


@served(modules=["dm-flakey"])
def a_disk_that_drops_writes_is_found_out(server):
    """By the same comparison, or it would be blind. No server can know such a disk."""
    for options in CACHED, DIRECT:
        try:
            ask_a_disk_that_changes(server, options, [lambda b: writes(b, "drop_writes")],
                                    random.Random(tap.seed()))
        except AssertionError as e:
            assert "which is not allowed any more" in str(e), e
            inside.devices.close()
            continue
        raise AssertionError("it was not found out")


# ---- a disk that hangs --------------------------------------------------------------------------

def serving_two(server, first, second, **options):
    """Two exports, and what to connect with."""
    if server.front_end is Nbdkit:
        return server(dir="/dev", **options), tuple(map(os.path.basename, (first, second)))
    more = "".join(",%s=%s" % item for item in options.items())
    exports = ["name=a,path=" + first + more, "name=b,path=" + second + more]
    return server(args=["--export", exports[0], "--export", exports[1]]), ("a", "b")


def hanging_requests(c):
    return [*(c.ask_write(n * 8 * KiB, A, n % 2 == 0) for n in range(4)), c.ask_read(MiB, MiB),
            c.ask_flush()]


@served()
def a_disk_that_hangs_keeps_no_other_waiting_and_answers_all_in_the_end(server):
    below, hanging = disk()
    fine = inside.null_blk("nullb1", 16)
    for options in DIRECT, CACHED:
        s, names = serving_two(server, hanging.path, fine, **options)
        with s, connect(s, 0, names) as a, connect(s, 1, names) as b:
            hanging.suspend()
            asked = hanging_requests(a)
            with connect(s, 1, names) as late:
                for n in range(20):
                    for c in b, late:
                        c.write(n * 4 * KiB, B, True)
                        assert c.read(n * 4 * KiB, 4 * KiB) == B
                        c.flush()
            hanging.resume()
            for tag in asked:
                a.finish(tag)
            assert a.read(0, 4 * KiB) == A
        assert read_below(below, 4 * KiB) == A and read_below(fine, 4 * KiB) == B


def refuses(s):
    try:
        connect(s)
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    return False


@inside.served(on=[Platterd, Target], modules=["dm-mod"], programs=["dmsetup"])
def told_to_stop_it_lets_go_of_its_clients_although_its_disk_hangs(server):
    """Its process can only end when the kernel has its disk back, with a status that tells."""
    below, hanging = disk()
    with server(hanging.path, **(CACHED if server.front_end is Platterd else DIRECT)) as s:
        c = connect(s)
        hanging.suspend()
        hanging_requests(c)
        s.terminate()
        while c.c.socket.recv(MiB):
            pass
        assert refuses(s)
        until(lambda: "ending without them" in s.said())
        hanging.resume()
        assert s.wait() == 1, s.said()
        s.over = True


# ---- no room ------------------------------------------------------------------------------------

def fill(c, size):
    """Writes with FUA until there is no room; returns how many pieces were taken."""
    piece = 256 * KiB
    for n in range(size // piece):
        error = error_of(c.write, n * piece, bytes([n + 1]) * piece, True)
        if error:
            assert error == c.NO_SPACE, error
            return n
    raise AssertionError("there was room for all of it")


def assert_room_was_all_that_lacked(c, taken, make_room):
    """What was taken is there, the rest is refused, and taken as soon as there is room."""
    piece = 256 * KiB
    assert taken > 4
    for _ in range(2):
        with told(c.NO_SPACE):
            c.write(taken * piece, bytes(b"x") * piece)
    c.flush()
    c.write(0, bytes([1]) * piece, True)
    make_room()
    c.write(taken * piece, bytes([taken + 1]) * piece, True)
    c.flush()
    for n in range(taken + 1):
        assert c.read(n * piece, piece) == bytes([n + 1]) * piece, n


def fill_file_system(server, options):
    """The one at /mnt, whose room an image with holes needs."""
    inside.sh("head -c 1000000 /dev/zero >/mnt/ballast; truncate -s 32M /mnt/disk.img; sync")
    with server("/mnt/disk.img", **options) as s, connect(s) as c:
        taken = fill(c, 32 * MiB)
        assert_room_was_all_that_lacked(c, taken, lambda: inside.sh("rm /mnt/ballast; sync"))
    with open("/mnt/disk.img", "rb") as f:
        for n in range(taken + 1):
            assert f.read(256 * KiB) == bytes([n + 1]) * 256 * KiB, n


@served(programs=["mkfs.ext4"])
def a_full_ext4_is_told_as_no_space_until_there_is_some(server):
    for options in DIRECT, CACHED:
        below = inside.null_blk(size=6)
        inside.sh("mkfs.ext4 -q -m 0 " + below)
        inside.mount(below)
        fill_file_system(server, options)
        inside.devices.close()


@served()
def a_full_tmpfs_is_told_as_no_space_until_there_is_some(server):
    """Where there is nothing but the page cache."""
    inside.mount("-t tmpfs -o size=4M none")
    fill_file_system(server, CACHED)


@served(modules=["dm-thin-pool"])
def a_full_thin_pool_is_told_as_no_space_until_it_is_larger(server):
    for options in DIRECT, CACHED:
        meta, data = inside.null_blk("nullb0", 4), inside.null_blk("nullb1", 8)

        def pool(mib):
            return mib * 2048, "thin-pool %s %s 128 0 1 error_if_no_space" % (meta, data)
        over = Mapped("pool", pool(4))
        over.message("create_thin 0")
        thin = Mapped("thin", (65536, "thin %s 0" % over.path))
        with server(thin.path, **options) as s, connect(s) as c, connect(s) as other:
            if options == DIRECT:
                taken = fill(c, 32 * MiB)
                assert_room_was_all_that_lacked(c, taken, lambda: over.load(pool(8)))
            else:
                # The page cache took what the disk did not; the kernel does not say why.
                for n in range(6):
                    c.write(n * MiB, bytes([n]) * MiB)
                with told(c.WRITE_ERROR):
                    c.flush()
                over.load(pool(8))
                assert_failed(s, c, other)
        inside.devices.close()


# ---- a disk that is gone, or only a part of it --------------------------------------------------

def assert_gone(s, a, b):
    """Its going is an error of the disk, whatever the kernel calls it."""
    for _ in range(2):
        for c in a, b:
            with told(c.READ_ERROR):
                c.read(8 * MiB, 64 * KiB)
            for fua in False, True:
                with told(c.WRITE_ERROR):
                    c.write(8 * MiB, C, fua)
            with told(c.WRITE_ERROR):
                c.flush()


@served(modules=["sd_mod", "scsi_debug:dev_size_mb=16 delay=0"], slow=True)
def a_scsi_disk_that_is_pulled_out_is_an_error_and_no_lack_of_space(server):
    for options in DIRECT, CACHED:
        inside.sh("echo '- - -' >$(echo /sys/class/scsi_host/host*/scan)")
        until(lambda: glob.glob("/dev/sd?"))
        path, = glob.glob("/dev/sd?")
        with server(path, **options) as s, connect(s) as a, connect(s) as b:
            a.write(0, A, True)
            a.write(MiB, B)
            inside.put("/sys/block/%s/device/delete" % os.path.basename(path), 1)
            assert_gone(s, a, b)


@served()
def a_disk_that_loses_its_power_is_an_error_and_no_lack_of_space(server):
    for options in DIRECT, CACHED:
        with server(inside.null_blk(), **options) as s, connect(s) as a, connect(s) as b:
            a.write(0, A, True)
            a.write(MiB, B)
            inside.null_blk_power("nullb0", 0)
            assert_gone(s, a, b)
        inside.devices.close()


@served()
def of_a_disk_that_shrinks_what_is_left_is_read_and_nothing_promised(server):
    for options in DIRECT, CACHED:
        below, mapped = disk()
        with server(mapped.path, **options) as s, connect(s) as a, connect(s) as b:
            a.write(0, A, True)
            mapped.load((8192, "linear %s 0" % below))
            assert_gone(s, a, b)
            assert a.read(0, 4 * KiB) == A
        assert read_below(below, 4 * KiB) == A
        inside.devices.close()


tap.main()
