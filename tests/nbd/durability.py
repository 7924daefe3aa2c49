#!/usr/bin/python3
"""What was acknowledged as durable is durable: by the order of the server's system calls,
and by failing its syncs. tests/crash kills it and cuts its power.

no second try
"""

import os
import re
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import nbdraw
import tap
from nbdraw import CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, FUA, error_of
from server import Nbdkit, served, strace

KiB, MiB = 1 << 10, 1 << 20
BLOCK = 4096


# ---- the order of system calls

class Call:
    """A system call in a trace: begin and end are line numbers, so that "ended before the
    other began" can be seen. strace lets a call start after its entry is written and go on
    after its end is written, so the order of lines is an order in time."""

    def __init__(self, thread, name, begin):
        self.thread, self.name, self.begin = thread, name, begin
        self.end = None             # None: the process ended first
        self.text = ""

    def ok(self):
        return self.end is not None and not re.search(r"\) += -1", self.text)

    def __repr__(self):
        return "%s%s" % (self.name, self.text)


def calls_of(path):
    calls, open_calls = [], {}
    with open(path) as f:
        for number, line in enumerate(f):
            thread, _, rest = line.rstrip().partition(" ")
            rest = rest.strip()
            if m := re.match(r"<\.\.\. (\w+) resumed>(.*)", rest):
                call = open_calls.pop(thread, None)
                if call is not None:
                    call.text += m[2]
                    call.end = number
            elif m := re.match(r"(\w+)(\(.*)", rest):
                call = Call(thread, m[1], number)
                call.text = m[2]
                calls.append(call)
                if rest.endswith("<unfinished ...>"):
                    open_calls[thread] = call
                else:
                    call.end = number
    return calls


TRACED = ("trace=pwrite64,pwritev,pwritev2,fallocate,fdatasync,fsync,sendto,"
          "io_uring_setup,io_uring_enter")
# What goes through a ring cannot be seen. Where none can be had, the same is a system call.
NO_RING = ("-e", "inject=io_uring_setup:error=ENOSYS")


class Trace:
    """A server under strace, and what it did between one reply and the next."""

    def __init__(self, server, image, *rules, ring=False, **options):
        self.file, self.image = server.path("trace"), image
        rules = ("-e", TRACED, *rules, *(() if ring else NO_RING))
        self.server = server(image, wrap=strace(self.file, *rules), **options)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *what):
        self.server.__exit__(*what)
        self.calls = calls_of(self.file)
        ours = "<%s>" % self.image
        # A reply to what is not a READ is 16 bytes in one piece.
        self.replies = [c for c in self.calls if c.name == "sendto" and ", 16, " in c.text]
        self.writes = [c for c in self.calls if ours in c.text and
                       c.name in ("pwrite64", "pwritev", "pwritev2", "fallocate")]
        self.syncs = [c for c in self.calls if ours in c.text and c.name in ("fdatasync", "fsync")]

    def requests(self, count):
        """For each of the last requests, sent one after the other: (writes, syncs, reply)."""
        replies = self.replies[-count - 1:]
        assert len(replies) == count + 1, "%d replies" % len(replies)
        for before, reply in zip(replies, replies[1:]):
            yield ([c for c in self.writes if before.begin < c.begin < reply.begin],
                   [c for c in self.syncs if before.begin < c.begin < reply.begin], reply)


def covered(write, reply, syncs):
    """A sync that began when the write had ended, and had ended when the reply began."""
    return any(s.ok() and s.begin > write.end and s.end < reply.begin for s in syncs)


def dsync(write):
    return write.name == "pwritev2" and "RWF_DSYNC" in write.text


def assert_stable(writes, reply, syncs):
    assert writes, "nothing was written before %s" % reply
    for write in writes:
        assert dsync(write) or covered(write, reply, syncs), (writes, syncs)


@served(on=[Nbdkit])
def fua_right_after_flush_syncs_again(server):
    """WRITE, ZEROES and TRIM: a flush before them makes nothing of theirs durable."""
    for fua in ("commit", "native", "auto"):
        with Trace(server, server.image(4 * MiB, fill=0xEE), cache="auto", fua=fua) as t, \
                nbdraw.connect(t.server.address) as c:
            c.flush()
            for command in (CMD_WRITE, CMD_WRITE_ZEROES, CMD_TRIM) * 2:
                c.flush()
                payload = b"x" * 65536 if command == CMD_WRITE else b""
                c.call(command, MiB, 65536, FUA, payload).check()
        for writes, syncs, reply in list(t.requests(12))[1::2]:
            assert_stable(writes, reply, syncs)
            assert fua != "commit" or not any(dsync(w) for w in writes), writes


@served(on=[Nbdkit])
def flush_syncs_and_a_plain_write_does_not(server):
    with Trace(server, server.image(4 * MiB, fill=0xEE), cache="writeback") as t, \
            nbdraw.connect(t.server.address) as c:
        c.flush()
        for n in range(10):
            c.write(n * 65536 + 1, b"x" * 65536)
        c.zero(MiB, 65536)
        c.trim(2 * MiB, 65536)
        c.flush()
    *plain, (_, syncs, reply) = t.requests(13)
    assert all(not s for _, s, _ in plain), plain
    assert any(s.ok() and s.end < reply.begin for s in syncs), "a flush without a sync"


@served(on=[Nbdkit])
def native_fua_is_one_dsync_write_and_no_flush(server):
    for mode in ("auto", "writeback", "none"):
        image = server.image(4 * MiB, fill=0xEE)
        with Trace(server, image, cache=mode, fua="native") as t, \
                nbdraw.connect(t.server.address) as c:
            c.flush()
            for n in range(5):
                c.write(n * BLOCK, b"x" * BLOCK, FUA)
            c.write(MiB, b"y" * BLOCK)
            c.zero(2 * MiB, 65536, FUA)
            c.trim(3 * MiB, 65536, FUA)
        requests = list(t.requests(8))
        for writes, syncs, _ in requests[:5]:
            assert len(writes) == 1 and dsync(writes[0]) and not syncs, (mode, writes, syncs)
        writes, syncs, _ = requests[5]
        assert not syncs and not any(dsync(w) for w in writes), (mode, writes, syncs)
        for writes, syncs, reply in requests[6:]:
            assert_stable(writes, reply, syncs)


@served(on=[Nbdkit])
def native_fua_goes_through_a_ring_and_alone(server):
    """What the ring does with it is seen in tests/guest."""
    for mode in ("auto", "none"):
        image = server.image(4 * MiB, fill=0xEE)
        with Trace(server, image, ring=True, cache=mode, fua="native") as t, \
                nbdraw.connect(t.server.address) as c:
            c.flush()
            for n in range(5):
                c.write(n * BLOCK, b"x" * BLOCK, FUA)
        for writes, syncs, reply in t.requests(5):
            rings = [r for r in t.calls if r.name == "io_uring_enter" and
                     reply.begin - 20 < r.begin < reply.begin]
            assert rings and not writes and not syncs, (mode, writes, syncs)


@served(on=[Nbdkit])
def writethrough_and_directsync_make_every_write_stable(server):
    for mode in ("writethrough", "directsync"):
        with Trace(server, server.image(4 * MiB, fill=0xEE), cache=mode) as t, \
                nbdraw.connect(t.server.address) as c:
            c.flush()
            c.write(0, b"x" * BLOCK)
            c.write(4095, b"x" * 513)
            c.zero(MiB, 65536)
            c.trim(2 * MiB, 65536)
            c.write(0, b"x" * BLOCK, FUA)
        for writes, syncs, reply in t.requests(5):
            assert_stable(writes, reply, syncs)


@served(on=[Nbdkit])
def what_is_past_the_last_block_of_an_image_is_stable_too(server):
    """Direct I/O cannot write it, so it takes another way."""
    for mode in ("none", "directsync"):
        with Trace(server, server.image(MiB + 100, fill=0xEE), cache=mode, fua="native") as t, \
                nbdraw.connect(t.server.address) as c:
            c.flush()
            c.write(MiB, b"x" * 100, FUA)
            c.write(MiB + 99, b"x", FUA)
            c.write(MiB - BLOCK, b"x" * (BLOCK + 100), FUA)
        for writes, syncs, reply in t.requests(3):
            assert_stable(writes, reply, syncs)


@served(on=[Nbdkit])
def a_sync_is_of_what_has_been_open_since_the_start(server):
    """Of a write that was lost the kernel may say nothing to whoever opens the file later."""
    with Trace(server, server.image(MiB, fill=0xEE), cache="writeback") as t, \
            nbdraw.connect(t.server.address) as a, nbdraw.connect(t.server.address) as b:
        a.flush()
        a.write(0, b"x" * BLOCK)
        a.flush()
        b.flush()
    assert len({s.text.partition("<")[0] for s in t.syncs}) == 1, t.syncs


@served(on=[Nbdkit])
def a_sync_covers_what_other_connections_wrote(server):
    """MULTI_CONN: written on one connection, flushed on another."""
    with Trace(server, server.image(MiB, fill=0xEE), cache="writeback") as t, \
            nbdraw.connect(t.server.address) as a, nbdraw.connect(t.server.address) as b:
        b.flush()
        a.write(0, b"x" * BLOCK)
        b.flush()
        assert b.read(0, BLOCK) == b"x" * BLOCK
    (writes, _, _), (_, syncs, reply) = t.requests(2)
    assert_stable(writes, reply, syncs)


def write_many(client, offsets, depth, flags):
    """FUA writes to all offsets, so many in flight. Returns the errors there were."""
    errors, flying, offsets = [], 0, list(offsets)
    while offsets or flying:
        while offsets and flying < depth:
            client.send(CMD_WRITE, offsets.pop(0), BLOCK, flags, os.urandom(BLOCK))
            flying += 1
        errors.append(client.receive().error)
        flying -= 1
    return errors


def write_by_many(address, connections, each):
    """So many connections, with 16 FUA writes in flight on each, in a part of its own."""
    clients = [nbdraw.connect(address) for _ in range(connections)]
    threads = [threading.Thread(target=write_many, args=(
        c, range(n * each * BLOCK, (n + 1) * each * BLOCK, BLOCK), 16, FUA))
        for n, c in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for c in clients:
        c.close()


def share(server, connections):
    """So many connections with 16 FUA writes in flight on each; a sync takes 3 ms."""
    each = 96
    image = server.image(connections * each * BLOCK, fill=0xEE)
    slow = ("-e", "inject=fdatasync,fsync:delay_enter=3000")
    with Trace(server, image, *slow, cache="writeback", fua="commit") as t:
        write_by_many(t.server.address, connections, each)
    total = connections * each
    assert len(t.writes) == total, "%d writes were traced" % len(t.writes)
    assert len(t.syncs) <= total // 2, "%d syncs for %d writes" % (len(t.syncs), total)
    # One of nbdkit's threads takes a request, carries it out and answers it.
    for write in t.writes:
        reply = next(r for r in t.replies if r.thread == write.thread and r.begin > write.end)
        assert covered(write, reply, t.syncs), (write, reply)


@served(on=[Nbdkit])
def sixteen_writers_share_flushes_that_began_after_they_wrote(server):
    share(server, 1)


@served(on=[Nbdkit])
def writers_on_four_connections_share_flushes(server):
    share(server, 4)


@ctl.served
def writers_on_every_worker_share_flushes(server):
    """What strace cannot see in platterd's rings, its counters tell; a sync takes 3 ms here."""
    each = 96
    image = server.image(4 * each * BLOCK, fill=0xEE)
    with server(image, driver="fault", over="file", cache="writeback", fua="commit", kind="flush",
                fault="delay", delay="3ms", repeat="forever", args=["--loops", "2"]) as s, \
            s.operator() as o:
        write_by_many(s.address, 4, each)
        counters = o.export()["counters"]
        assert counters["committed"] == 4 * each, counters
        assert 0 < counters["groups"] <= 2 * each, counters


# ---- syncs that fail

def assert_failed(s, *clients):
    """Nothing is promised any more, on any connection; reads go on."""
    with nbdraw.connect(s.address) as late:
        for c in (*clients, late):
            assert error_of(c.flush) == "EIO"
            assert error_of(c.write, 0, b"y" * BLOCK, FUA) == "EIO"
            assert error_of(c.zero, 0, BLOCK, FUA) == "EIO"
            assert error_of(c.trim, 0, BLOCK, FUA) == "EIO"
            assert error_of(c.flush) == "EIO"
            assert c.read(64 * KiB, BLOCK) == b"\xee" * BLOCK
    assert s.alive()


@served(on=[Nbdkit])
def a_failed_sync_of_the_kernel_stays_failed(server):
    """The kernel tells of a lost page once, and would call the next sync a success."""
    image = server.image(MiB, fill=0xEE)
    once = ("-e", "inject=fdatasync,fsync:error=EIO:when=1")
    for fua in ("commit", "native"):
        # strace counts calls for each thread, so each connection has but one.
        with Trace(server, image, *once, cache="writeback", fua=fua, threads=1) as t, \
                nbdraw.connect(t.server.address) as a, nbdraw.connect(t.server.address) as b:
            a.write(0, b"x" * BLOCK)
            assert error_of(a.flush) == "EIO"
            assert_failed(t.server, a, b)
        assert [c.text for c in t.syncs if "INJECTED" in c.text], "no sync was made to fail"
        # Reopening is the way out.
        with server(image, cache="writeback") as s, nbdraw.connect(s.address) as c:
            c.write(0, b"z" * BLOCK, FUA)
            c.flush()


@served
def a_failed_sync_reaches_every_writer_that_waits(server):
    """Sixteen wait for the sync that fails and for the one after it; and one failure is
    enough for all connections, for as long as the server runs."""
    image = server.image(MiB, fill=0xEE)
    with server(path=image, driver="fault", over="file", cache="writeback", fua="commit",
                kind="flush", at=1, fault="error", errno="EIO", delay="50ms") as s, \
            nbdraw.connect(s.address) as a, nbdraw.connect(s.address) as b:
        errors = write_many(a, range(0, 16 * BLOCK, BLOCK), 16, FUA)
        assert errors == [5] * 16, errors
        assert_failed(s, a, b)


@served
def where_every_write_is_stable_each_is_told_of_a_failed_sync(server):
    image = server.image(MiB, fill=0xEE)
    for mode, fua, kind in (("writethrough", "commit", "flush"), ("directsync", "native", "write")):
        with server(path=image, driver="fault", over="file", cache=mode, fua=fua, kind=kind,
                    at=2, errno="EIO") as s, nbdraw.connect(s.address) as c:
            c.write(0, b"1" * BLOCK)
            for _ in range(2):
                assert error_of(c.write, 0, b"2" * BLOCK) == "EIO", mode
            assert "a sync has failed" in s.said(), s.said()
            assert_failed(s, c)


@served
def a_failed_sync_of_zeroes_and_trim_is_reported_to_them(server):
    image = server.image(MiB, fill=0xEE)
    for verb in ("zero", "trim"):
        with server(path=image, driver="fault", over="file", cache="writeback", kind="flush",
                    at=1, errno="EIO") as s, nbdraw.connect(s.address) as c:
            assert error_of(getattr(c, verb), 0, BLOCK, FUA) == "EIO", verb
            assert_failed(s, c)


@served
def any_error_of_the_disk_reaches_the_client_and_harms_nobody(server):
    """Also those that a client cannot be told by their own name, and the one that nbdkit
    would take for an answer of its own kind."""
    for errno in ("EOPNOTSUPP", "ENODEV", "ETIMEDOUT", "EPERM", "ENOMEM", "ENOSPC", "EAGAIN"):
        with server(driver="fault", over="memory", size="1M", errno=errno, kind="any",
                    repeat="forever") as s, nbdraw.connect(s.address) as c:
            told = errno if errno in ("EPERM", "ENOMEM", "ENOSPC") else "EIO"
            for flags in (0, FUA):
                assert error_of(c.write, 1, b"x" * BLOCK, flags) in (told, "EIO"), errno
                assert error_of(c.zero, 1, 3 * BLOCK, flags) in (told, "EIO"), errno
            assert error_of(c.read, 0, BLOCK) == told, errno
            assert s.alive(), s.said()


@served
def a_failed_native_write_fails_the_export(server):
    """Whether its data or the device's flush went wrong cannot be told."""
    image = server.image(MiB, fill=0xEE)
    for mode in ("auto", "writeback", "none"):
        with server(image, driver="fault", over="file", cache=mode, fua="native", kind="write",
                    at=2, errno="EIO") as s, nbdraw.connect(s.address) as c:
            c.write(0, b"1" * BLOCK, FUA)
            assert error_of(c.write, BLOCK, b"2" * BLOCK, FUA) == "EIO"
            assert_failed(s, c)


@served
def a_later_failure_takes_back_no_earlier_promise(server):
    image = server.image(MiB, fill=0xEE)
    with server(path=image, driver="fault", over="file", cache="writeback", fua="commit",
                kind="flush", at=3, errno="EIO") as s, nbdraw.connect(s.address) as c:
        c.write(0, b"1" * BLOCK, FUA)
        c.flush()
        assert error_of(c.write, BLOCK, b"3" * BLOCK, FUA) == "EIO"
        assert error_of(c.flush) == "EIO"
        assert c.read(0, BLOCK) == b"1" * BLOCK


# ---- the server is killed: more in tests/crash

@served
def an_answered_write_is_in_the_file_even_when_the_server_dies(server):
    """No cache of its own stands between the client and the file."""
    for mode in ("writeback", "none", "unsafe"):
        image = server.image(MiB, fill=0xEE)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            c.write(5, b"answered")
            c.zero(70000, 1000)
            s.kill()
        with open(image, "rb") as f:
            got = f.read()
        assert got[4:14] == b"\xeeanswered\xee", mode
        assert got[69999:71001] == b"\xee" + bytes(1000) + b"\xee", mode


if __name__ == "__main__":
    tap.main()
