#!/usr/bin/python3
"""What the commands do to the bytes, and what they refuse."""

# no valgrind

import errno
import os
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import tap
from model import Model, exercise
from nbdraw import (CMD_BLOCK_STATUS, CMD_CACHE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
                    CMD_WRITE_ZEROES, FAST_ZERO, FUA, HOLE, NO_HOLE, REQ_ONE, SEND_CACHE,
                    SEND_FLUSH, SEND_FUA, ZERO, error_of)
from server import Nbdkit, served, strace

KiB, MiB, GiB, TiB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
MODES = ("auto", "writeback", "none", "directsync", "writethrough", "unsafe")
ODD = MiB + 777                     # ends inside a sector


def content(path):
    with open(path, "rb") as f:
        return f.read()


# ---- any byte range, in every mode

def any_byte_range(mode):
    def case(server):
        image = server.image(ODD, fill=0xEE)
        # Where each write is synced, a disk decides how long this takes.
        exercise(server, image, tap.seed(), steps=60 if mode in MODES[2:4] else 200, cache=mode)
    case.__doc__ = "Random commands of any offset and length, and neighbours written at once."
    return case


for mode in MODES:
    served(any_byte_range(mode), name="any_byte_range_in_cache_" + mode)


@served
def any_byte_range_with_native_fua_beside_the_page_cache(server):
    """FUA writes that pass by the cache and plain writes that use it, in the same pages."""
    for image, seed in ((server.image(ODD, fill=0xEE), tap.seed()),
                        (server.image(ODD, "sparse.img"), tap.seed())):
        exercise(server, image, seed, steps=300, cache="auto", fua="native")


@served
def short_transfers_are_continued(server):
    """Each read and write moves one block at most, of all that was asked for."""
    for mode in ("writeback", "none"):
        image = server.image(128 * KiB + 777, fill=0xEE)
        exercise(server, image, tap.seed(), steps=40, pieces=30, cache=mode, driver="fault",
                 over="file", fault="short", repeat="forever")


@served
def zero_and_trim_keep_the_neighbours(server):
    """The edges of a sector, a page and the image, one byte to either side."""
    ranges = [(0, 4096), (512, 512), (4096, 1000), (1000, 70000), (4095, 2), (1, 4094),
              (511, 4097), (ODD - 100, 100), (ODD - 4096, 4096), (ODD - 1, 1), (ODD - 777, 777)]
    for mode in ("writeback", "none"):
        image = server.image(ODD, fill=0xEE)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            for offset, length in ranges:
                for flags in (0, NO_HOLE, FUA, FUA | NO_HOLE):
                    c.write(0, b"\xee" * ODD)
                    c.zero(offset, length, flags)
                    want = b"\xee" * offset + bytes(length)
                    assert c.read(0, ODD) == want.ljust(ODD, b"\xee"), (mode, offset, length, flags)
                c.write(0, b"\xee" * ODD)
                c.trim(offset, length)
                got = c.read(0, ODD)
                assert got[:offset].count(0xEE) == offset, (mode, offset, length)
                assert got[offset + length:].count(0xEE) == ODD - offset - length, (mode, offset)
                assert set(got[offset:offset + length]) <= {0, 0xEE}, (mode, offset, length)


@served
def the_size_of_an_odd_image_never_changes(server):
    for mode in ("writeback", "none", "directsync"):
        image = server.image(ODD, fill=0xEE)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            assert c.size == ODD
            for change in (lambda: c.write(ODD - 1, b"Z"), lambda: c.write(ODD - 513, b"y" * 513),
                           lambda: c.zero(ODD - 100, 100), lambda: c.zero(ODD - 4096, 4096, FUA),
                           lambda: c.trim(ODD - 5000, 5000), lambda: c.trim(ODD - 1, 1, FUA),
                           lambda: c.write(ODD - 777, b"x" * 777, FUA), c.flush):
                change()
                assert os.stat(image).st_size == ODD, mode
            assert c.read(ODD - 778, 778)[1:] == b"x" * 777
        assert content(image)[-777:] == b"x" * 777, mode


@served
def trim_gives_space_back(server):
    image = server.image(4 * MiB, fill=0xEE)
    os.sync()
    before = os.stat(image).st_blocks
    with server(image) as s, nbdraw.connect(s.address) as c:
        c.trim(MiB, 2 * MiB)
        c.flush()
        after = os.stat(image).st_blocks
        assert before - after >= 2 * MiB // 512 * 9 // 10, "%d blocks, then %d" % (before, after)
        assert c.read(MiB, 2 * MiB) == bytes(2 * MiB)


@served
def no_hole_allocates(server):
    """What was zeroed with NO_HOLE cannot run out of space later."""
    for mode in ("writeback", "none"):
        image = server.image(4 * MiB)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            c.zero(MiB, MiB, NO_HOLE)
            c.flush()
            assert os.stat(image).st_blocks * 512 >= MiB, mode
            assert c.read(MiB, MiB) == bytes(MiB)


# ---- flags where they have little to say

@served
def fua_on_what_does_not_write_is_ignored(server):
    image = server.image(ODD, fill=0xEE)
    for mode in ("writeback", "none"):
        for read_only in (False, True):
            with server(image, cache=mode, read_only=read_only) as s, \
                    nbdraw.connect(s.address) as c:
                if not read_only:
                    c.write(0, b"q" * 512)
                # A flag that was not offered is an error by right.
                assert read_only or c.flags & SEND_FUA
                fua = FUA if c.flags & SEND_FUA else 0
                before, stat = content(image), os.stat(image)
                assert c.read(0, 512, fua) == b"q" * 512
                assert c.read(ODD - 9, 9, fua) == b"\xee" * 9
                assert c.block_status(0, 512, fua)
                if c.flags & SEND_FLUSH:
                    c.flush(fua)
                if c.flags & SEND_CACHE:
                    c.cache(0, 512, fua)
                assert content(image) == before
                assert os.stat(image).st_mtime_ns == stat.st_mtime_ns, "a read wrote"


@served
def fua_is_carried_out_on_all_that_writes(server):
    image = server.image(ODD, fill=0xEE)
    for mode in MODES[:-1]:
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            c.write(0, b"w" * 100000, FUA)
            c.zero(4096, 8192, FUA)
            c.zero(20000, 5000, FUA | NO_HOLE)
            c.zero(32768, 4096, FUA | NO_HOLE | FAST_ZERO)
            c.trim(65536, 4096, FUA)
            c.trim(ODD - 10, 10, FUA)
            want = bytearray(b"w" * 100000)
            for start, length in ((4096, 8192), (20000, 5000), (32768, 4096)):
                want[start:start + length] = bytes(length)
            got = c.read(0, 100000)
            assert got[:65536] == want[:65536] and got[69632:] == want[69632:], mode


@served
def cache_changes_nothing(server):
    image = server.image(ODD, fill=0xEE)
    for mode in MODES:
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            if c.flags & SEND_CACHE:
                c.cache(0, ODD)
                c.cache(3, 70001)
                assert error_of(c.cache, ODD, 1) == "EINVAL"
            assert c.read(0, ODD) == b"\xee" * ODD
        assert content(image) == b"\xee" * ODD


# ---- refusals

@served
def beyond_the_end_is_refused_and_changes_nothing(server):
    for size in (MiB, ODD):
        image = server.image(size, fill=0xEE)
        with server(image, cache="none") as s, nbdraw.connect(s.address) as c:
            for offset, length in ((size, 1), (size - 1, 2), (size + 4096, 4096), (0, size + 1),
                                   (1 << 63, 512), ((1 << 64) - 512, 512), ((1 << 64) - 1, 1)):
                where = "%d+%d of %d" % (offset, length, size)
                for command in (CMD_READ, CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS):
                    error = c.call(command, offset, length).error
                    assert error == errno.EINVAL, "command %d at %s: %d" % (command, where, error)
                for flags in (0, FUA):
                    error = c.call(CMD_WRITE, offset, length, flags, b"x" * length).error
                    assert error == errno.ENOSPC, "write at %s: %d" % (where, error)
                    error = c.call(CMD_WRITE_ZEROES, offset, length, flags).error
                    assert error == errno.ENOSPC, "zeroes at %s: %d" % (where, error)
            assert c.read(0, size) == b"\xee" * size
        assert content(image) == b"\xee" * size


@served
def unknown_commands_and_flags_are_refused_and_the_session_lives(server):
    image = server.image(MiB, fill=0xEE)
    with server(image) as s, nbdraw.connect(s.address) as c:
        assert c.call(8 + 55).error == errno.EINVAL
        for command in (CMD_READ, CMD_FLUSH, CMD_TRIM, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS):
            length = 0 if command == CMD_FLUSH else 512
            assert c.call(command, 0, length, 1 << 14).error == errno.EINVAL, command
        assert c.call(CMD_WRITE, 0, 512, 1 << 14, b"x" * 512).error == errno.EINVAL
        assert c.read(0, MiB) == b"\xee" * MiB


@served
def read_only_refuses_writers_with_eperm(server):
    image = server.image(MiB, fill=0xEE)
    for mode in ("writeback", "none", "unsafe"):
        with server(image, cache=mode, read_only=True) as s, nbdraw.connect(s.address) as c:
            assert error_of(c.write, 0, b"x" * 512) == "EPERM"
            assert error_of(c.zero, 0, 512) == "EPERM"
            assert error_of(c.trim, 0, 512) == "EPERM"
            assert c.read(0, MiB) == b"\xee" * MiB
        assert content(image) == b"\xee" * MiB


@served
def read_only_opens_the_image_so(server):
    image = server.image(MiB, fill=0xEE)
    for mode in ("writeback", "none"):
        with server(image, cache=mode, read_only=True) as s, nbdraw.connect(s.address):
            found = 0
            for fd in os.listdir("/proc/%d/fd" % s.pid):
                if os.readlink("/proc/%d/fd/%s" % (s.pid, fd)) == image:
                    flags = content("/proc/%d/fdinfo/%s" % (s.pid, fd)).split()[3]
                    assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, flags
                    found += 1
            assert found, "the image is not open"


@served
def payload_of_a_refused_write_is_not_the_next_command(server):
    image = server.image(MiB, fill=0xEE)
    with server(image, read_only=True) as s, nbdraw.connect(s.address) as c:
        payload = struct.pack(">IHHQQI", 0x25609513, 0, CMD_READ, 99, 0, 512) * 1000
        for offset in (0, MiB):
            write = c.send(CMD_WRITE, offset, len(payload), 0, payload)
            read = c.send(CMD_READ, 0, 512)
            replies = {r.cookie: r for r in (c.receive(), c.receive())}
            assert replies[write].error and not replies[read].error


@served
def an_error_reaches_the_request_that_had_it_and_no_other(server):
    image = server.image(MiB, fill=0xEE)
    for name in ("EIO", "ENOSPC", "ENOMEM", "EINVAL", "EPERM"):
        for kind, verb, argument in (("write", "write", b"x" * 4096), ("read", "read", 4096),
                                     ("trim", "trim", 4096), ("extents", "block_status", 4096)):
            with server(image, driver="fault", over="file", kind=kind, at=2, errno=name) as s, \
                    nbdraw.connect(s.address) as c:
                errors = [error_of(getattr(c, verb), n * 4096, argument) for n in range(3)]
                assert errors == ["", name, ""], (kind, errors)


# ---- fast zero

@served(on=[Nbdkit])
def fast_zero_is_refused_where_it_would_write(server):
    """On a file system without any kind of fallocate, ENOTSUP at once and nothing changed;
    without the flag the zeroes are written. What was refused once is not tried again."""
    trace = server.path("trace")
    wrap = strace(trace, "-e", "trace=fallocate", "-e", "inject=fallocate:error=EOPNOTSUPP")
    for mode in ("writeback", "none"):
        image = server.image(ODD, fill=0xEE)
        with server(image, cache=mode, wrap=wrap) as s, nbdraw.connect(s.address) as c:
            assert error_of(c.zero, 4096, 65536, FAST_ZERO) == "ENOTSUP", mode
            assert error_of(c.zero, 4096, 65536, FAST_ZERO | FUA) == "ENOTSUP", mode
            assert c.read(0, ODD) == b"\xee" * ODD, mode
            c.zero(4095, 65538)
            assert c.read(4094, 65540) == b"\xee" + bytes(65538) + b"\xee", mode
            for n in range(10):
                c.trim(200000 + n * 4096, 4096)     # may do nothing, and must not fail
                c.zero(300000 + n * 5000, 5000, NO_HOLE * (n % 2))
        tried = content(trace).count(b"INJECTED")
        assert 0 < tried <= 4, "fallocate was tried %d times" % tried


@served
def fast_zero_is_fast_where_the_file_system_helps(server):
    image = server.image(64 * MiB, fill=0xEE)
    for mode in ("writeback", "none"):
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            c.zero(0, 32 * MiB, FAST_ZERO)
            assert c.read(MiB, MiB) == bytes(MiB)
            c.write(0, b"\xee" * 4096)


# ---- extents

def status_of_all(client):
    """The whole disk by base:allocation, asked for from end to end."""
    extents, at = [], 0
    while at < client.size:
        for length, flags in client.block_status(at, min(client.size - at, GiB)):
            if extents and extents[-1][2] == flags:
                extents[-1][1] += length
            else:
                extents.append([at, length, flags])
            at += length
    assert at == client.size, "block status went beyond the end"
    return extents


def data_of(path):
    """(offset, length) of what the file system calls data."""
    found, at = [], 0
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        while at < size:
            try:
                start = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError as e:
                assert e.errno == errno.ENXIO
                break
            at = os.lseek(f.fileno(), start, os.SEEK_HOLE)
            found.append((start, at - start))
    return found


@served
def extents_are_those_of_the_file(server):
    for mode in ("writeback", "none"):
        image = server.image(16 * MiB + 777)
        with open(image, "r+b") as f:
            for at in (0, 3 * MiB, 3 * MiB + 65536, 9 * MiB, 16 * MiB + 700):
                f.seek(at)
                f.write(b"d" * 70)
            f.flush()
            os.fsync(f.fileno())
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            extents = status_of_all(c)
            data = [(o, n) for o, n, flags in extents if flags == 0]
            assert data == data_of(image), (mode, extents)
            assert all(flags in (0, HOLE | ZERO) for _, _, flags in extents), (mode, extents)
            one = c.block_status(MiB, 8 * MiB, REQ_ONE)
            assert len(one) == 1 and one[0][0] <= 8 * MiB, one
            # From the middle of a hole into the middle of data, byte by byte.
            first = c.block_status(3 * MiB - 5, 100, REQ_ONE)
            assert first == [(5, HOLE | ZERO)], first
            assert c.block_status(3 * MiB + 1, 7, REQ_ONE) == [(7, 0)]


@served
def a_fragmented_image_is_mapped_to_its_end(server):
    """Some thousand extents, more than fit one answer."""
    image = server.image(32 * MiB)
    with open(image, "r+b", buffering=0) as f:
        for at in range(0, 32 * MiB, 8 * KiB):
            f.seek(at)
            f.write(b"d" * 4096)
        os.fsync(f.fileno())
    want = data_of(image)
    assert len(want) == 4096
    with server(image) as s, nbdraw.connect(s.address) as c:
        assert [(o, n) for o, n, flags in status_of_all(c) if flags == 0] == want


@served
def nothing_written_is_ever_called_a_hole(server):
    """Asked for at once after each write, with nothing flushed."""
    for mode in ("writeback", "none"):
        size = 8 * MiB + 100
        image = server.image(size)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c, \
                nbdraw.connect(s.address) as other:
            model = Model(c, bytes(size), tap.seed())
            for n in range(150):
                offset, length = model.place()
                if n % 10 == 9:
                    c.trim(offset, length)
                    continue
                c.write(offset, b"\x01" * length)
                for client in (c, other):
                    end, at = offset + length, offset
                    while at < end:
                        for span, flags in client.block_status(at, end - at):
                            assert flags == 0, "%s: a hole at %d" % (mode, at)
                            at += span


@served
def a_hole_map_and_its_data_agree_while_others_write(server):
    """A copy made by the hole map has all that was written before it began."""
    size = 8 * MiB
    image = server.image(size)
    with server(image) as s, nbdraw.connect(s.address) as writer, \
            nbdraw.connect(s.address) as reader:
        written, stop = {}, threading.Event()

        def write():
            n = 0
            while not stop.is_set() and n < 2048:
                offset = n * 1237 % 2048 * 4096
                writer.write(offset, b"\x01" * 4096)
                written[offset] = True
                n += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(20):
                before = list(written)
                holes = [(o, o + n) for o, n, flags in status_of_all(reader) if flags & ZERO]
                for offset in before:
                    assert not any(a <= offset < b for a, b in holes), "%d is in a hole" % offset
        finally:
            stop.set()
            thread.join()


# ---- sizes

@served
def a_terabyte_of_holes_is_served_to_its_last_byte(server):
    for mode in ("writeback", "none"):
        image = server.image(TiB)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            assert c.size == TiB
            c.write(TiB - 512, b"E" * 512)
            c.write((1 << 32) + 5, b"abc", FUA)
            c.write((1 << 31) - 2, b"wxyz")
            assert c.read(TiB - 513, 513) == b"\0" + b"E" * 512
            assert c.read((1 << 32) + 4, 5) == b"\0abc\0"
            assert c.read((1 << 31) - 3, 6) == b"\0wxyz\0"
            assert c.read(5, 3) == b"\0\0\0", "an offset was cut to 32 bits"
            # More than 2^31 at once.
            c.zero(GiB, 3 * GiB + 4096)
            assert c.read((1 << 31) - 3, 6) == bytes(6)
            assert c.read((1 << 32) + 4, 5) == bytes(5) or c.read((1 << 32) + 4, 5) == b"\0abc\0"
            c.trim(TiB - 3 * GiB, 3 * GiB)
            assert c.block_status(8 * GiB, (1 << 32) - 512), mode
            assert error_of(c.read, TiB - 1, 2) == "EINVAL"


@served
def an_empty_image_is_a_disk_of_no_bytes(server):
    for mode in ("writeback", "none"):
        image = server.image(0)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            assert c.size == 0
            assert error_of(c.read, 0, 1) == "EINVAL"
            assert error_of(c.write, 0, b"x") == "ENOSPC"
            c.flush()
        assert os.stat(image).st_size == 0


@served
def the_longest_request_is_served(server):
    """32 MiB, which every client may send without asking."""
    size = 32 * MiB
    image = server.image(size + 999)
    for mode in ("writeback", "none"):
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            data = os.urandom(size)
            c.write(7, data, FUA)
            assert c.read(7, size) == data, mode
            assert c.read(0, 7) == bytes(7)


# ---- connections that go

@served
def a_vanished_client_leaves_no_part_of_its_write(server):
    image = server.image(4 * MiB, fill=0xEE)
    with server(image) as s:
        for sent in (0, 1, 512, MiB - 1):
            c = nbdraw.connect(s.address)
            c.send(CMD_WRITE, 0, MiB, FUA, b"x" * sent)
            c.reset()
        with nbdraw.connect(s.address) as c:
            assert c.read(0, 4 * MiB) == b"\xee" * 4 * MiB


@served
def connections_cut_with_requests_in_flight_harm_nobody(server):
    """Each block is old or new, and never another request's."""
    blocks, size = 32, 65536
    image = server.image(blocks * size, fill=0)

    def cut(s, round):
        c = nbdraw.connect(s.address)
        for n in range(blocks):
            c.send(CMD_WRITE, n * size, size, FUA if n % 2 else 0,
                   struct.pack("<HH", n, round) * (size // 4))
        # The answers of these do not fit the socket, so some never get out.
        for n in range(blocks):
            c.send(CMD_READ, n * size, size)
        c.reset()

    def whole(s):
        with nbdraw.connect(s.address) as c:
            for n in range(blocks):
                seen = set(struct.iter_unpack("<HH", c.read(n * size, size)))
                assert all(block in (n, 0) for block, _ in seen), (n, seen)

    for mode in ("writeback", "none"):
        for round in range(1, 9):
            with server(image, cache=mode) as s, s.clients_cut():
                cut(s, round)
                whole(s)
            with server(image, cache=mode, read_only=True) as s:
                whole(s)


@served
def all_read_what_was_written_at_once(server):
    """Four clients, many requests in flight, one file: each byte where it belongs."""
    size, piece = 16 * MiB, 65536
    image = server.image(size)
    data = os.urandom(size)
    with server(image) as s:
        def write(part):
            with nbdraw.connect(s.address) as c:
                offsets = list(range(part * piece, size, 4 * piece))
                for k in range(0, len(offsets), 16):
                    for o in offsets[k:k + 16]:
                        c.send(CMD_WRITE, o, piece, 0, data[o:o + piece])
                    for _ in offsets[k:k + 16]:
                        c.receive().check()

        threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        with nbdraw.connect(s.address) as c:
            assert c.read(0, size) == data
    assert content(image) == data


if __name__ == "__main__":
    tap.main()
