#!/usr/bin/python3
"""What SCSI was told to be durable is durable, and costs what it should: by counting flushes, by
failing them, and by killing a server that holds back what nobody flushed; with NBD clients of the
same disk. tests/crash does that by the thousand.

no second try
"""

import contextlib
import multiprocessing
import os
import random
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import iscsiraw
import nbdraw
import tap
from iscsiraw import CHECK_CONDITION, GOOD

KiB, MiB = 1 << 10, 1 << 20
BLOCK = 4096
SECTOR = 512
FUA = 0x08
MISCOMPARE = "e/1d00"
ALICE, BOB = "iqn.2026-11.org.example:alice", "iqn.2026-11.org.example:bob"
WRITE_ERROR, UNRECOVERED_READ = "3/0c00", "3/1100"


# ---- an initiator -------------------------------------------------------------------------------

def cdb10(opcode, lba, blocks, byte1=0):
    return struct.pack(">BBIBHB", opcode, byte1, lba, 0, blocks, 0)


def cdb12(opcode, lba, blocks, byte1=0):
    return struct.pack(">BBIIBB", opcode, byte1, lba, blocks, 0, 0)


def cdb16(opcode, lba, blocks, byte1=0):
    return struct.pack(">BBQIBB", opcode, byte1, lba, blocks, 0, 0)


def atomic16(lba, blocks, byte1=0):
    return struct.pack(">BBQHHBB", 0x9c, byte1, lba, 0, blocks, 0, 0)


def compare_and_write(lba, byte1=0):
    """Of one block."""
    return struct.pack(">BBQ3xBBB", 0x89, byte1, lba, 1, 0, 0)


def unmap(lba, blocks):
    """CDB and parameter list."""
    return (struct.pack(">BBIBHB", 0x42, 0, 0, 0, 24, 0),
            struct.pack(">HH4xQI4x", 22, 16, lba, blocks))


def write_cache(on):
    """MODE SELECT(6) of the caching page: CDB and parameter list."""
    return bytes.fromhex("151000001800"), bytes(4) + b"\x08\x12" + bytes([4 if on else 0]) + bytes(17)


def connect(s, **how):
    return iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target, **how)


def write(c, offset, data, fua=False):
    c.cdb(cdb16(0x8a, offset // SECTOR, len(data) // SECTOR, FUA if fua else 0), dout=data).check()


def read(c, offset, length, fua=False):
    return bytes(c.cdb(cdb16(0x88, offset // SECTOR, length // SECTOR, FUA if fua else 0),
                       din=length).check().data)


def synchronize(c, lba=0, blocks=0, immed=False):
    return c.cdb(cdb10(0x35, lba, blocks, 2 if immed else 0))


@contextlib.contextmanager
def serving(server, *words, **options):
    """A server with an initiator s.a, an NBD client s.n and its counters."""
    with server(*words, iscsi=True, **options) as s, connect(s) as a, \
            nbdraw.connect(s.address) as n, s.operator() as o:
        s.a, s.n = a, n
        s.counters = lambda: o.export()["counters"]
        yield s


# ---- what it costs ---------------------------------------------------------------------------------

AA = b"\xaa"
# Each with FUA, or as good as that; on 1 MiB where it can be.
DURABLE_WRITES = {
    "WRITE(10)": (cdb10(0x2a, 8, 2048, FUA), AA * MiB),
    "WRITE(12)": (cdb12(0xaa, 8, 2048, FUA), AA * MiB),
    "WRITE(16)": (cdb16(0x8a, 8, 2048, FUA), AA * MiB),
    "WRITE(16) of one block, not aligned": (cdb16(0x8a, 13, 1, FUA), AA * SECTOR),
    "WRITE ATOMIC(16)": (atomic16(8, 1, FUA), AA * SECTOR),
    "ORWRITE(16)": (cdb16(0x8b, 8, 128, FUA), AA * 64 * KiB),
    "COMPARE AND WRITE": (compare_and_write(8, FUA), AA * 2 * SECTOR),
    # These read it back in pieces of that size.
    "WRITE AND VERIFY(10)": (cdb10(0x2e, 8, 512), AA * 256 * KiB),
    "WRITE AND VERIFY(16) with BYTCHK": (cdb16(0x8e, 8, 512, 2), AA * 256 * KiB),
}


@ctl.served
def one_flush_covers_a_command_however_it_was_split(server):
    """By bursts on its way here, and by a disk that does 4 KiB at a time."""
    for options in (dict(), dict(driver="fault", over="file", kind="write", fault="short",
                                 short="4K", repeat="forever")):
        image = server.image(8 * MiB, fill=0xAA)
        with serving(server, path=image, cache="writeback", fua="commit", **options) as s:
            for keys in ({}, {"MaxBurstLength": "16384", "FirstBurstLength": "4096",
                              "ImmediateData": "No"}):
                with connect(s, keys=keys) as c:
                    for name, (cdb, data) in DURABLE_WRITES.items():
                        before = s.counters()
                        c.cdb(cdb, dout=data).check()
                        after = s.counters()
                        for what in ("groups", "committed"):
                            assert after[what] == before[what] + 1, (name, options, keys, what)


@ctl.served
def plain_writes_and_reads_flush_nothing(server):
    with serving(server, server.image(8 * MiB, fill=0xAA), cache="writeback", fua="commit") as s:
        before = s.counters()
        write(s.a, 0, b"x" * MiB)
        read(s.a, 0, MiB)
        s.a.cdb(compare_and_write(0), dout=b"x" * SECTOR + b"y" * SECTOR).check()
        s.a.cdb(unmap(8, 8)[0], dout=unmap(8, 8)[1]).check()
        assert s.counters()["groups"] == before["groups"]


@ctl.served
def with_native_fua_nothing_is_flushed(server):
    """But for what verifies, which has to be stable before it can be read."""
    with serving(server, path=server.image(8 * MiB, fill=0xAA), driver="powercut", over="file") as s:
        for name, (cdb, data) in DURABLE_WRITES.items():
            if "VERIFY" in name:
                continue
            before = s.counters()
            s.a.cdb(cdb, dout=data).check()
            after = s.counters()
            assert after["groups"] == before["groups"], name
            assert after["fua_native"] == before["fua_native"] + 1, (name, before, after)


@ctl.served
def writers_in_many_sessions_share_flushes(server):
    """A flush takes 3 ms; four sessions with 16 FUA writes in flight each."""
    each = 96
    image = server.image(4 * each * BLOCK, fill=0xEE)

    def writer(s, number):
        with connect(s) as c:
            flying = []
            for n in range(each):
                if len(flying) == 16:
                    c.finish(flying.pop(0)).check()
                flying.append(c.command(cdb10(0x2a, (number * each + n) * 8, 8, FUA),
                                        dout=b"w" * BLOCK))
            for itt in flying:
                c.finish(itt).check()

    with serving(server, image, driver="fault", over="file", cache="writeback", fua="commit",
                 kind="flush", fault="delay", delay="3ms", repeat="forever") as s:
        threads = [threading.Thread(target=writer, args=(s, n)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        counters = s.counters()
        assert counters["committed"] == 4 * each, counters
        assert 0 < counters["groups"] <= 2 * each, counters


# ---- what is stable, shown by killing a server that holds unflushed writes back -------------------

def write_and(*steps):
    def run(s):
        write(s.a, 0, AA * MiB)
        for cdb, how in steps:
            s.a.cdb(cdb, **how).check()
    return run


def a_write_without_cache(s):
    cdb, page = write_cache(False)
    s.a.cdb(cdb, dout=page).check()
    write(s.a, 0, AA * MiB)


def an_immediate_and_a_patient_synchronization(s):
    write(s.a, 0, AA * MiB)
    synchronize(s.a, immed=True).check()
    synchronize(s.a, blocks=1).check()


def another_session(s):
    write(s.a, 0, AA * MiB)
    with connect(s) as b:
        synchronize(b).check()


STABLE = {      # afterwards the first MiB is on the medium
    "READ(10) with FUA": write_and((cdb10(0x28, 0, 2048, FUA), {"din": MiB})),
    "READ(16) with FUA and DPO": write_and((cdb16(0x88, 0, 2048, FUA | 0x10), {"din": MiB})),
    "VERIFY(10)": write_and((cdb10(0x2f, 0, 2048), {})),
    "VERIFY(16) with BYTCHK": write_and((cdb16(0x8f, 0, 2048, 2), {"dout": AA * MiB})),
    "WRITE AND VERIFY(12)": lambda s: s.a.cdb(cdb12(0xae, 0, 2048), dout=AA * MiB).check(),
    "SYNCHRONIZE CACHE(10)": write_and((cdb10(0x35, 0, 0), {})),
    "SYNCHRONIZE CACHE(16) of its range": write_and((cdb16(0x91, 0, 2048), {})),
    "SYNCHRONIZE CACHE with IMMED, and without": an_immediate_and_a_patient_synchronization,
    "SYNCHRONIZE CACHE in another session": another_session,
    "FLUSH by NBD": lambda s: (write(s.a, 0, AA * MiB), s.n.flush()),
    "SYNCHRONIZE CACHE of what NBD wrote":
        lambda s: (s.n.write(0, AA * MiB), synchronize(s.a).check()),
    "MODE SELECT with WCE=0": write_and((write_cache(False)[0], {"dout": write_cache(False)[1]})),
    "WRITE with WCE=0": a_write_without_cache,
    "START STOP UNIT": write_and((bytes.fromhex("1b0000000000"), {})),
}
UNSTABLE = {    # it need not be, and with this driver it is not
    "WRITE": write_and(),
    "READ": write_and((cdb10(0x28, 0, 2048), {"din": MiB})),
    "FUA of another block": lambda s: (write(s.a, 0, AA * MiB), write(s.a, MiB, AA * BLOCK, True)),
}


def after_a_kill(server, fua, action):
    """The first MiB of the image."""
    image = server.image(4 * MiB, fill=0xEE)
    with serving(server, path=image, driver="powercut", over="file",
                 **{"powercut-fua": fua}) as s:
        action(s)
        s.kill()
    with open(image, "rb") as f:
        return f.read(MiB)


@ctl.served
def what_was_promised_is_stable_and_nothing_else(server):
    for fua in ("native", "commit"):
        for name, action in STABLE.items():
            assert after_a_kill(server, fua, action) == AA * MiB, (fua, name)
    for name, action in UNSTABLE.items():
        assert after_a_kill(server, "native", action) == b"\xee" * MiB, name


@ctl.served
def without_write_cache_unmapped_and_repeated_blocks_are_stable(server):
    def run(s):
        other = connect(s)
        cdb, page = write_cache(False)
        s.a.cdb(cdb, dout=page).check()
        assert other.cdb(bytes(6)).condition == "6/2a01"
        cdb, descriptors = unmap(0, 1024)
        s.a.cdb(cdb, dout=descriptors).check()
        other.cdb(cdb16(0x93, 1024, 512), dout=b"\x55" * SECTOR).check()      # WRITE SAME
        other.cdb(cdb16(0x93, 1536, 512, 8), dout=bytes(SECTOR)).check()    # and UNMAP
        # Turned on again, they are not.
        cdb, page = write_cache(True)
        other.cdb(cdb, dout=page).check()
        assert s.a.cdb(bytes(6)).condition == "6/2a01"
        write(s.a, 0, AA * BLOCK)

    for fua in ("native", "commit"):
        got = after_a_kill(server, fua, run)
        assert got == bytes(512 * KiB) + b"\x55" * 256 * KiB + bytes(256 * KiB), fua


@ctl.served
def a_turned_off_write_cache_is_seen_by_all_and_ends_with_the_server(server):
    image = server.image(4 * MiB)
    with serving(server, image) as s:
        def cached(c):
            page = c.cdb(bytes.fromhex("1a080800ff00"), din=255).check().data[4:]
            return bool(page[2] & 4)
        with connect(s) as b:
            assert cached(s.a) and cached(b)
            cdb, page = write_cache(False)
            s.a.cdb(cdb, dout=page).check()
            assert b.cdb(bytes(6)).condition == "6/2a01" and not cached(b)
        with connect(s) as late:
            assert not cached(late)
    with serving(server, image) as s:
        assert cached(s.a)


# ---- syncs that fail -------------------------------------------------------------------------------

PROMISES = (    # and what is said where they cannot be given
    (cdb10(0x2a, 0, 8, FUA), AA * BLOCK, WRITE_ERROR),
    (cdb10(0x35, 0, 0), b"", WRITE_ERROR),
    (cdb16(0x91, 0, 8), b"", WRITE_ERROR),
    (compare_and_write(0, FUA), b"\xee" * 2 * SECTOR, WRITE_ERROR),
    (cdb10(0x2e, 0, 8), b"\xee" * BLOCK, UNRECOVERED_READ),    # WRITE AND VERIFY reads it back
)


def assert_failed(s, *clients):
    """Nothing is promised any more, in any session; reads go on."""
    with connect(s) as late:
        for c in (*clients, late):
            for cdb, data, told in PROMISES:
                assert c.cdb(cdb, dout=data).condition == told, cdb.hex()
            assert read(c, 64 * KiB, BLOCK) == b"\xee" * BLOCK
    for _ in range(2):
        assert nbdraw.error_of(s.n.flush) == "EIO"
    assert nbdraw.error_of(s.n.write, 0, AA * BLOCK, nbdraw.FUA) == "EIO"
    assert s.alive()


def failing(server, **how):
    return serving(server, path=server.image(MiB, fill=0xEE), driver="fault", over="file",
                   cache="writeback", errno="EIO", **{"kind": "flush", "at": 1, **how})


@ctl.served
def a_failed_sync_is_told_and_stays_failed(server):
    for cdb, data, told in PROMISES:
        with failing(server, fua="commit") as s, connect(s) as b:
            assert s.a.cdb(cdb, dout=data).condition == told, cdb.hex()
            assert_failed(s, s.a, b)


@ctl.served
def a_failed_sync_reaches_every_writer_that_waits(server):
    with failing(server, fua="commit", delay="50ms") as s, connect(s) as b:
        itts = [(c, c.command(cdb10(0x2a, n * 8, 8, FUA), dout=AA * BLOCK))
                for n in range(16) for c in (s.a, b)]
        told = [c.finish(itt).condition for c, itt in itts]
        assert set(told) == {WRITE_ERROR}, told
        assert_failed(s, s.a, b)


@ctl.served
def a_failed_native_write_fails_the_disk(server):
    with failing(server, fua="native", kind="write", at=2) as s:
        write(s.a, 0, b"\xee" * BLOCK, True)
        assert s.a.cdb(cdb10(0x2a, 0, 8, FUA), dout=AA * BLOCK).condition == WRITE_ERROR
        assert_failed(s, s.a)


@ctl.served
def a_failed_sync_that_nobody_waited_for_is_told_later(server):
    """To the session that asked for it, as a deferred error, once."""
    with failing(server) as s, connect(s) as b:
        synchronize(s.a, immed=True).check()
        end = time.monotonic() + ctl.PATIENCE_S
        while (r := s.a.cdb(bytes(6))).status == GOOD:
            assert time.monotonic() < end, "never told"
        assert r.status == CHECK_CONDITION and r.sense.deferred, r.condition
        assert r.condition == WRITE_ERROR
        s.a.cdb(bytes(6)).check()
        b.cdb(bytes(6)).check()
        assert_failed(s, s.a, b)


# ---- beside NBD clients -----------------------------------------------------------------------------

@ctl.served
def scsi_and_nbd_read_at_once_what_the_other_wrote(server):
    """On other workers, too; NBD also by pieces of blocks."""
    r, size = random.Random(tap.seed()), MiB
    for options in ({"cache": "auto", "fua": "native"}, {"cache": "writeback"}, {"cache": "none"},
                    {"cache": "writethrough"}):
        image, model = server.image(size, fill=0xEE), bytearray(b"\xee" * size)
        with serving(server, image, args=["--loops", "2"], **options) as s, \
                nbdraw.connect(s.address) as other, connect(s) as b:
            for step in range(200):
                if r.random() < 0.5:
                    at, length = r.randrange(size // SECTOR - 32), r.randrange(1, 32)
                    at, length, kind = at * SECTOR, length * SECTOR, r.choice("wuz")
                    data = r.randbytes(length) if kind == "w" else bytes(length)
                    c = r.choice((s.a, b))
                    if kind == "w":
                        write(c, at, data, r.random() < 0.3)
                    elif kind == "u":
                        cdb, descriptors = unmap(at // SECTOR, length // SECTOR)
                        c.cdb(cdb, dout=descriptors).check()
                    else:
                        c.cdb(cdb16(0x93, at // SECTOR, length // SECTOR),
                              dout=bytes(SECTOR)).check()
                else:
                    at, length = r.randrange(size - 20000), r.randrange(1, 20000)
                    data, n = r.randbytes(length), r.choice((s.n, other))
                    n.write(at, data, nbdraw.FUA if r.random() < 0.3 else 0)
                model[at:at + length] = data
                first, last = at // SECTOR * SECTOR, -(-(at + length) // SECTOR) * SECTOR
                want = bytes(model[first:last])
                assert read(r.choice((s.a, b)), first, last - first, r.random() < 0.2) == want, step
                assert r.choice((s.n, other)).read(first, last - first) == want, step
        with open(image, "rb") as f:
            assert f.read() == bytes(model), options


def as_processes(*calls):
    """Runs them at once; each is to return in order. They are copies of this one, so that each
    initiator needs a name of its own."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=call, args=args) for call, *args in calls]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    assert [p.exitcode for p in processes] == [0] * len(calls), [p.exitcode for p in processes]


def swap(c, change):
    """Reads block 0 and replaces it by change(block), again until nobody came between."""
    while True:
        old = read(c, 0, SECTOR)
        r = c.cdb(compare_and_write(0), dout=old + change(old))
        if r.condition != MISCOMPARE:
            return r.check()


def increment(s, name, times):
    """The counter in the first half of the block."""
    with connect(s, initiator=name) as c:
        for _ in range(times):
            swap(c, lambda old: struct.pack(">Q", struct.unpack(">Q", old[:8])[0] + 1) + old[8:])


def count_beside(s, times):
    """By NBD, a counter in the second half of the same block: what it has written stays."""
    counter = 0
    with nbdraw.connect(s.address) as n:
        for number in range(1, times + 1):
            n.write(256, struct.pack(">Q", number) * 32)
            block = n.read(0, SECTOR)
            assert block[256:] == struct.pack(">Q", number) * 32, (number, block[256:272])
            now = struct.unpack(">Q", block[:8])[0]
            assert now >= counter, (now, counter)
            counter = now


def count(server, times, options):
    """times increments, by two initiators, while an NBD client writes to the same block."""
    image = server.image(MiB)
    with server(image, iscsi=True, args=["--loops", "2"], **options) as s:
        as_processes((increment, s, ALICE, times // 2), (increment, s, BOB, times // 2),
                     (count_beside, s, times // 4))
        with connect(s) as c:
            block = read(c, 0, SECTOR)
    assert struct.unpack(">Q", block[:8])[0] == times // 2 * 2, block[:8]
    assert block[256:] == struct.pack(">Q", times // 4) * 32


@ctl.served
def compare_and_write_loses_no_increment(server):
    for options in ({"cache": "writeback"}, {"cache": "none"}):
        count(server, 1000, options)


@ctl.served(slow=True)
def compare_and_write_loses_none_of_100000_increments(server):
    count(server, 100000, {"cache": "writeback"})


def touch(s, name, times):
    """Marks what is there as seen: all but the mark stays."""
    with connect(s, initiator=name) as c:
        for n in range(times):
            swap(c, lambda old, n=n: old[:4] + struct.pack(">I", n) + old[8:])


def overwrite(s, times):
    """By NBD, all of the block: until the next time it is there, whatever marks it bears."""
    with nbdraw.connect(s.address) as n:
        for number in range(1, times + 1):
            filling = struct.pack(">I", number) * (SECTOR // 4)
            n.write(0, filling)
            block = n.read(0, SECTOR)
            assert block[:4] + block[8:] == filling[:4] + filling[8:], (number, block[:16])


@ctl.served
def a_plain_write_that_races_with_compare_and_write_is_there(server):
    for options in ({"cache": "writeback"}, {"cache": "none"}):
        with server(server.image(MiB), iscsi=True, args=["--loops", "2"], **options) as s:
            as_processes((touch, s, ALICE, 500), (touch, s, BOB, 500), (overwrite, s, 500))


tap.main()
