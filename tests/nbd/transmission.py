#!/usr/bin/python3
"""Commands and their answers: each gets what the protocol wants for it, over every kind of
connection that a server has: compact, structured and extended; in plain text and by TLS."""

import errno
import functools
import os
import random
import re
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import tap
import way
from nbdraw import (CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
                    CMD_WRITE_ZEROES, DF, ERR_SHUTDOWN, FAST_ZERO, FUA, HOLE, MAX_PAYLOAD, NO_HOLE,
                    OPT_ABORT, OPT_LIST, PAYLOAD_LEN, REP_ACK, REQ_ONE, ZERO, Reply,
                    error_of)
from server import PATIENCE, Platterd, served

KiB, MiB, GiB, TiB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
COMPACT, STRUCTURED, EXTENDED = "compact", "structured", "extended"
MEMORY = {"driver": "memory", "size": "1M"}


class KindsWay(way.Way):
    """By each kind of headers, too."""

    def __init__(self, server, tls):
        super().__init__(server, tls)
        extended = [EXTENDED] if server.front_end is Platterd else []
        self.kinds = [COMPACT, STRUCTURED, *extended]
        self.with_chunks = [STRUCTURED, *extended]

    def connect(self, s, kind):
        return super().connect(s, structured=kind != COMPACT, extended=kind == EXTENDED)

    def each(self, s, kinds=None):
        """A client of each kind, one after the other; works on afterwards, each of them."""
        for kind in kinds or self.kinds:
            with self.connect(s, kind) as c:
                print(kind)
                yield kind, c
                assert c.call(CMD_READ, 0, min(c.size, 512)).error == 0 and not c.waiting


every_way = functools.partial(way.every_way, way=KindsWay)


def content(path):
    with open(path, "rb") as f:
        return f.read()


def refused(c, command, offset, length, flags=0):
    """The error of a command, with the payload that it has to have."""
    payload = b"\xbb" * length if command == CMD_WRITE else b""
    return c.call(command, offset, length, flags, payload).error


def outside(size):
    return ((size, 1), (size - 1, 2), (size + 4096, 4096), (1 << 63, 4096),
            ((1 << 64) - 512, 1024), ((1 << 64) - 1, 1), ((1 << 64) - 1, 4096))


# ---- what is refused, and how

@every_way
def what_lies_outside_is_refused_without_wrapping(way):
    size = MiB + 7
    image = way.server.image(size, fill=0xEE)
    with way.serve(image) as s:
        for _, c in way.each(s):
            for offset, length in outside(size):
                for command in (CMD_READ, CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS):
                    error = refused(c, command, offset, length)
                    assert error == errno.EINVAL, (command, offset, length, error)
                for command in (CMD_WRITE, CMD_WRITE_ZEROES):
                    error = refused(c, command, offset, length)
                    assert error == errno.ENOSPC, (command, offset, length, error)
    assert content(image) == b"\xee" * size


@every_way
def only_flags_of_a_command_are_taken(way):
    image = way.server.image(MiB, fill=0xEE)
    with way.serve(image) as s:
        for kind, c in way.each(s):
            documented = {CMD_READ: DF if kind != COMPACT else 0, CMD_WRITE: 0, CMD_FLUSH: 0,
                          CMD_TRIM: 0, CMD_CACHE: 0, CMD_WRITE_ZEROES: NO_HOLE | FAST_ZERO,
                          CMD_BLOCK_STATUS: REQ_ONE}
            for command, flags in documented.items():
                for flag in (1 << bit for bit in range(16)):
                    if flag & (flags | FUA) or (kind == EXTENDED and flag == PAYLOAD_LEN):
                        continue
                    error = refused(c, command, 0, 0 if command == CMD_FLUSH else 512, flag)
                    assert error == errno.EINVAL, (kind, command, hex(flag), error)
    assert content(image) == b"\xee" * MiB


@every_way
def unknown_commands_are_refused_and_have_no_payload(way):
    with way.serve(**MEMORY) as s:
        for _, c in way.each(s):
            for command in (8, 63, 99, 255, 0x7fff, 0xffff):
                assert refused(c, command, 0, 512) == errno.EINVAL, command
                assert c.call(CMD_READ, 0, 512).error == 0


@every_way
def fua_that_is_not_offered_is_refused_and_nothing_done(way):
    image = way.server.image(MiB, fill=0xEE)
    with way.serve(image, cache="unsafe") as s:
        for _, c in way.each(s):
            for command in (CMD_READ, CMD_WRITE, CMD_WRITE_ZEROES, CMD_TRIM):
                assert refused(c, command, 0, 4096, FUA) == errno.EINVAL, command
    assert content(image) == b"\xee" * MiB


@every_way
def fua_that_is_offered_is_taken_everywhere(way):
    with way.serve(way.server.image(MiB, fill=0xEE)) as s:
        for kind, c in way.each(s):
            assert c.read(0, 4096, FUA) == b"\xee" * 4096
            c.flush(FUA)
            c.cache(0, 4096, FUA)
            if kind != COMPACT:
                assert c.block_status(0, 4096, FUA)
            c.write(8192, b"w" * 512, FUA)
            c.zero(12288, 512, FUA)
            c.zero(12288, 512, FUA | NO_HOLE)
            c.trim(16384, 512, FUA)
            assert c.read(8191, 514) == b"\xee" + b"w" * 512 + b"\xee"


@every_way
def a_read_only_disk_takes_no_write_but_its_payload(way):
    image = way.server.image(MiB, fill=0xEE)
    with way.serve(image, read_only=True) as s:
        for _, c in way.each(s):
            for command in (CMD_WRITE, CMD_WRITE_ZEROES, CMD_TRIM):
                for length in (1, 4096, 300000):
                    assert refused(c, command, 0, length) == errno.EPERM, command
    assert content(image) == b"\xee" * MiB


def requests(length):
    """Bytes that are requests, if somebody takes them for some."""
    one = struct.pack(">IHHQQI", 0x25609513, 0, CMD_WRITE_ZEROES, 666, 0, 4096)
    return (one * (length // len(one) + 1))[:length]


@every_way
def the_payload_of_what_is_refused_is_not_the_next_request(way):
    """However it comes, beside others, and however large."""
    image = way.server.image(MiB, fill=0xEE)
    with way.serve(image) as s:
        for _, c in way.each(s):
            for length in (1, 27, 28, 511, 65535, 65536, 65537, MiB + 1):
                for offset, flags in ((MiB, 0), ((1 << 64) - 1, 0), (0, 1 << 13)):
                    write = c.send(CMD_WRITE, offset, length, flags, requests(length))
                    read = c.send(CMD_READ, 4096, 4096)
                    replies = {r.cookie: r for r in (c.receive(), c.receive())}
                    assert replies[write].error in (errno.ENOSPC, errno.EINVAL)
                    assert replies[read].data == b"\xee" * 4096
    assert content(image) == b"\xee" * MiB


@every_way
def a_request_may_come_byte_by_byte(way):
    with way.serve(**MEMORY) as s:
        for kind, c in way.each(s):
            magic, form = (0x21E41C71, ">IHHQQQ") if kind == EXTENDED else (0x25609513, ">IHHQQI")
            flags = PAYLOAD_LEN if kind == EXTENDED else 0
            for command, payload in ((CMD_WRITE, b"slow" * 8), (CMD_READ, b"")):
                c.cookie += 1
                c.waiting[c.cookie] = Reply(command, 100, 32, 0)
                head = struct.pack(form, magic, flags if payload else 0, command, c.cookie, 100, 32)
                for byte in head + payload:
                    c.socket.sendall(bytes([byte]))
                reply = c.receive().check()
            assert reply.data == b"slow" * 8


@every_way
def a_wrong_magic_ends_the_connection_without_a_word(way):
    with way.serve(**MEMORY) as s:
        for kind in way.kinds:
            c = way.connect(s, kind)
            good = 0x21E41C71 if kind == EXTENDED else 0x25609513
            for magic in (good ^ 1, 0x25609513 if kind == EXTENDED else 0x21E41C71, 0):
                c.socket.sendall(struct.pack(">IHHQQQ", magic, 0, CMD_READ, 1, 0, 512 << 32))
                c.expect_close()
                c = way.connect(s, kind)
            c.close()


# ---- sizes

@every_way
def payloads_of_32_mib_are_no_attack(way):
    with way.serve(way.server.image(MiB, fill=0xEE)) as s:
        for _, c in way.each(s):
            assert refused(c, CMD_WRITE, 0, MAX_PAYLOAD) == errno.ENOSPC
            assert refused(c, CMD_READ, 0, MAX_PAYLOAD) == errno.EINVAL
            assert c.read(0, MiB) == b"\xee" * MiB


@every_way(on=[Platterd])
def what_is_longer_is_taken_up_to_a_bound(way):
    """Twice as much with compact headers; with extended ones the connection ends at once."""
    with way.serve(way.server.image(80 * MiB)) as s:
        for kind in way.kinds:
            with way.connect(s, kind) as c:
                assert c.block_size[2] == MAX_PAYLOAD
                assert refused(c, CMD_READ, 0, MAX_PAYLOAD + 1) == errno.EINVAL
                assert refused(c, CMD_READ, 0, 2 * MAX_PAYLOAD + 1) == errno.EINVAL
                beyond = MAX_PAYLOAD + 1
                if kind != EXTENDED:
                    assert refused(c, CMD_WRITE, 0, MAX_PAYLOAD + 1) == errno.EINVAL
                    assert c.read(0, 4096) == bytes(4096)
                    beyond = 2 * MAX_PAYLOAD + 1
                c.send_head(CMD_WRITE, 0, beyond, PAYLOAD_LEN if kind == EXTENDED else 0)
                c.expect_close()
                c.size = None       # nothing more is to be said


@every_way
def requests_of_no_length_are_answered_and_do_nothing(way):
    image = way.server.image(MiB, fill=0xEE)
    with way.serve(image) as s:
        for kind, c in way.each(s):
            for offset in (0, 5, MiB, 1 << 63, (1 << 64) - 1):
                for command in (CMD_READ, CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES, CMD_CACHE,
                                CMD_BLOCK_STATUS):
                    error = refused(c, command, offset, 0)
                    assert error in (0, errno.EINVAL, errno.ENOSPC), (command, offset, error)
            c.flush()
    assert content(image) == b"\xee" * MiB


# ---- replies

@every_way(on=[Platterd])
def errors_have_words(way):
    with way.serve(**MEMORY) as s:
        for _, c in way.each(s, way.with_chunks):
            for command, offset, length, flags in ((CMD_READ, MiB, 1, 0), (CMD_READ, 0, 1, 1 << 15),
                                                   (99, 0, 1, 0), (CMD_WRITE_ZEROES, MiB, 1, 0),
                                                   (CMD_FLUSH, 0, 1, 0)):
                reply = c.call(command, offset, length, flags)
                assert reply.error and re.search(r"\w{3}", reply.text), (command, reply.text)


@every_way(on=[Platterd], tls=False)
def more_answers_than_one_send_takes_come_whole(way):
    """A thousand at once: none has data, each has words."""
    with way.serve(**MEMORY, args=("--depth", "1024")) as s:
        for _, c in way.each(s, way.with_chunks):
            requests, socket = bytearray(), c.socket
            c.socket = types.SimpleNamespace(sendall=requests.extend)
            for _ in range(1000):
                c.send(CMD_READ, MiB, 512)
            c.socket = socket
            socket.sendall(requests)
            for _ in range(1000):
                reply = c.receive()
                assert reply.error == errno.EINVAL and "nvalid" in reply.text, reply.text


@every_way
def without_an_agreement_replies_are_simple(way):
    """nbdraw takes nothing else there; and what needs an agreement is refused."""
    with way.serve(way.server.image(MiB, fill=0xEE)) as s, way.connect(s, COMPACT) as c:
        assert c.read(1, 70000) == b"\xee" * 70000
        assert refused(c, CMD_READ, 0, 4096, DF) == errno.EINVAL
        assert refused(c, CMD_READ, 0, 4096, PAYLOAD_LEN) == errno.EINVAL
        assert refused(c, CMD_BLOCK_STATUS, 0, 4096) == errno.EINVAL
        assert c.read(0, 512) == b"\xee" * 512


def patchy(way, size=MiB + 1000):
    """An image with two islands of data and a tail."""
    image = way.server.image(size)
    with open(image, "r+b") as f:
        for offset, length in ((64 * KiB, 64 * KiB), (512 * KiB, 4096), (size - 10, 10)):
            f.seek(offset)
            f.write(random.randbytes(length))
    return image


@every_way
def a_read_is_whole_in_one_piece_or_many(way):
    image = patchy(way)
    data = content(image)
    with way.serve(image) as s:
        for kind, c in way.each(s):
            for offset, length in ((0, len(data)), (65535, 65538), (66000, 100), (1, 1),
                                   (len(data) - 1, 1), (len(data) - 5000, 5000), (7, 600000)):
                assert c.read(offset, length) == data[offset:offset + length], (offset, length)
                if kind != COMPACT:
                    # With DF in one piece; nbdraw holds that.
                    assert c.read(offset, length, DF) == data[offset:offset + length]


@every_way(on=[Platterd])
def holes_are_not_sent(way):
    with way.serve(patchy(way, 16 * MiB)) as s:
        for _, c in way.each(s, way.with_chunks):
            sizes, take = [], c.take
            c.take = lambda length, sizes=sizes, take=take: sizes.append(length) or take(length)
            c.read(0, 16 * MiB)
            assert sum(sizes) < 4 * MiB, sum(sizes)
            sizes.clear()
            c.read(0, 16 * MiB, DF)
            assert sum(sizes) > 16 * MiB
            c.take = take


@every_way
def cookies_are_the_clients_own(way):
    with way.serve(**MEMORY) as s:
        for _, c in way.each(s):
            for cookie in ((1 << 64) - 1, 1 << 63, 1, 1, 0x8000000080000000, 0):
                c.cookie = (cookie - 1) % (1 << 64) if cookie else -1
                assert c.call(CMD_READ, 0, 512).cookie == cookie
            # Not wise of a client, but its own affair.
            for _ in range(2):
                c.cookie = 76
                assert c.send(CMD_READ, 0, 512) == 77
            twin = Reply(CMD_READ, 0, 512, 0)
            assert c.receive().data == bytes(512)
            c.waiting[77] = twin
            assert c.receive().data == bytes(512)


def pipelined(c, sends):
    """All replies to what is sent by calling these, as fast as the server takes them."""
    if isinstance(c.socket, ssl.SSLSocket):
        # Two threads must not use it at once: so many that they fit the socket's buffers.
        for at in range(0, len(sends), 100):
            for send in sends[at:at + 100]:
                send()
            yield from (c.receive().check() for _ in sends[at:at + 100])
        return
    sender = threading.Thread(target=lambda: [send() for send in sends])
    sender.start()
    yield from (c.receive().check() for _ in sends)
    sender.join()


@every_way
def a_pipeline_of_any_depth_is_answered(way):
    """More than the server has slots for."""
    few = {"args": ("--depth", "3")} if way.server.front_end is Platterd else {"threads": 3}
    for how in ({}, few):
        with way.serve(**MEMORY, **how) as s:
            for _, c in way.each(s):
                writes = [functools.partial(c.send, CMD_WRITE, n * 1024, 512, 0,
                                            struct.pack(">H", n) * 256) for n in range(700)]
                assert len(list(pipelined(c, writes))) == 700
                for reply in pipelined(c, [functools.partial(c.send, CMD_READ, n * 1024, 512)
                                           for n in range(700)]):
                    assert reply.data == struct.pack(">H", reply.offset // 1024) * 256


# ---- FLUSH, CACHE, several connections

@every_way
def a_flush_has_no_range(way):
    with way.serve(way.server.image(MiB)) as s:
        for _, c in way.each(s):
            for offset, length in ((0, 512), (512, 0), (0, MiB), (1 << 63, 0)):
                assert refused(c, CMD_FLUSH, offset, length) == errno.EINVAL
            c.flush()


@every_way
def connections_of_any_kind_see_what_others_wrote(way):
    with way.serve(way.server.image(MiB)) as s:
        clients = [way.connect(s, kind) for kind in way.kinds * 2]
        for n, writer in enumerate(clients):
            writer.write(n * 4096, bytes([n + 1]) * 4096, FUA)
            for reader in clients:
                assert reader.read(n * 4096, 4096) == bytes([n + 1]) * 4096
            writer.write(MiB - 4096, bytes([n + 1]) * 4096)
            writer.flush()
            for reader in clients:
                assert reader.read(MiB - 4096, 4096) == bytes([n + 1]) * 4096
        for c in clients:
            c.close()


@every_way
def zeroes_reach_as_far_as_they_are_asked_to(way):
    """More than 64 MiB, 2 GiB, and 4 GiB where the header has room for it."""
    size = 5 * GiB
    with way.serve(way.server.image(size)) as s:
        for kind, c in way.each(s):
            for length in (65 * MiB, 2 * GiB + 65536, (4 * GiB + 65536) if kind == EXTENDED
                           else 4 * GiB - 65536):
                first, last, middle = 8191, 8192 + length, 8192 + length // 2
                for offset in (first, 8192, middle, last - 1, last):
                    c.write(offset, b"m")
                c.zero(8192, length)
                assert c.read(first, 2) == b"m\0" and c.read(last - 1, 2) == b"\0m"
                assert c.read(middle, 1) == b"\0"
                c.zero(first, 1)
                c.zero(last, 1)


# ---- BLOCK_STATUS

def whole_status(c):
    """All extents as [(offset, length, flags)], asked for until the end."""
    found, at = [], 0
    while at < c.size:
        for length, flags in c.block_status(at, min(c.size - at, (1 << 32) - 4096)):
            found.append((at, length, flags))
            at += length
    assert at == c.size
    return found


@every_way
def extents_lie_end_to_end_and_tell_the_truth(way):
    image = patchy(way)
    data = content(image)
    with way.serve(image) as s:
        for _, c in way.each(s, way.with_chunks):
            for offset, length, flags in whole_status(c):
                assert not flags & ~(HOLE | ZERO)
                assert not flags & ZERO or not any(data[offset:offset + length])
            for offset, length in ((0, c.size), (65536, 4096), (66000, 100), (c.size - 1, 1),
                                   (4096, 1 << 19), (c.size - 600, 600)):
                extents = c.block_status(offset, length)
                assert offset + sum(n for n, _ in extents) <= c.size
                (n, _), = c.block_status(offset, length, REQ_ONE)
                assert 0 < n <= length


@every_way
def the_same_question_has_the_same_answer_until_somebody_writes(way):
    with way.serve(patchy(way)) as s, way.connect(s, STRUCTURED) as other:
        for _, c in way.each(s, way.with_chunks):
            first = whole_status(c)
            assert all(whole_status(client) == first for client in (c, other, c, other))
            at = 300 * KiB
            other.write(at, b"d" * 65536)
            assert all(not flags & (HOLE | ZERO) for _, flags in c.block_status(at, 65536, REQ_ONE))
            other.zero(at, 65536)
            assert c.read(at, 65536) == bytes(65536)
            assert whole_status(c) == whole_status(other)


@every_way(on=[Platterd])
def long_headers_have_long_effects(way):
    """Lengths above 32 bits, in one command each; and what is too long is not cut."""
    with way.serve(way.server.image(6 * GiB)) as s, way.connect(s, EXTENDED) as c:
        length = 5 * GiB + 4096
        c.write(5 * GiB, b"x" * 4096)
        c.write(length, b"y")
        assert sum(n for n, _ in c.block_status(0, 5 * GiB)) > 4 * GiB
        c.cache(0, length)
        c.zero(0, length)
        assert c.read(5 * GiB, 4097) == bytes(4096) + b"y"
        c.trim(0, length)
        assert c.read(length, 1) == b"y"
        for command in (CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS, CMD_WRITE_ZEROES):
            for length in ((1 << 32) * 2, (1 << 40) + 512, 1 << 63, (1 << 64) - 1):
                error = c.call(command, 512, length).error
                assert error == (errno.ENOSPC if command == CMD_WRITE_ZEROES else errno.EINVAL)
        assert c.call(CMD_READ, 0, (1 << 32) + 512).error in (errno.EINVAL, errno.EOVERFLOW)


@every_way(on=[Platterd])
def payloads_are_where_the_flag_says(way):
    with way.serve(way.server.image(MiB, fill=0xEE)) as s, way.connect(s, EXTENDED) as c:
        # None where one belongs:
        c.send_head(CMD_WRITE, 0, 4096)
        assert c.receive().error == errno.EINVAL
        # One where none belongs is taken all the same:
        for command in (CMD_READ, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, 77):
            for length in (1, 32, 100000):
                assert c.call(command, 0, length, 0, requests(length)).error == errno.EINVAL
        assert c.read(0, MiB) == b"\xee" * MiB
        # Which contexts, in a payload of BLOCK_STATUS:
        assert c.block_status(0, 4096, contexts=[c.context])
        for contexts in ([c.context + 1], [c.context, c.context], [c.context, c.context + 1]):
            assert error_of(c.block_status, 0, 4096, 0, contexts) == "EINVAL", contexts
        for length in (1, 7, 9, 11, 13, 8 + 4 * 1000):
            assert c.call(CMD_BLOCK_STATUS, 0, length, 0, bytes(length)).error == errno.EINVAL
        c.send_head(CMD_FLUSH, 0, 1 << 40, PAYLOAD_LEN)
        c.expect_close()
        c.size = None


# ---- disks that fail, and large ones

@every_way
def a_bad_block_is_an_error_and_its_neighbours_are_data(way):
    image = way.server.image(2 * MiB, fill=0xEE)
    with way.serve(image, driver="fault", over="file", kind="read", offset=MiB, length=4096,
                   repeat="forever", errno="EIO") as s:
        for _, c in way.each(s):
            assert error_of(c.read, 0, 2 * MiB) == "EIO"
            assert error_of(c.read, MiB + 1, 1) == "EIO"
            assert c.read(0, MiB) == b"\xee" * MiB
            assert c.read(MiB + 4096, MiB - 4096) == b"\xee" * (MiB - 4096)


@every_way
def what_an_image_no_longer_has_is_not_made_up(way):
    """Somebody cuts the image: an error or zeroes, never what some buffer held before."""
    for cache in ("writeback", "none"):
        image = way.server.image(MiB, fill=0xAA)
        with way.serve(image, cache=cache) as s:
            for kind in way.kinds:
                with way.connect(s, kind) as c:
                    os.truncate(image, 0)
                    with open(image, "r+b") as f:
                        f.write(b"\xaa" * MiB)
                    for _ in range(8):
                        assert c.read(0, MiB) == b"\xaa" * MiB
                    os.truncate(image, 1000)
                    reply = c.call(CMD_READ, 0, 65536)
                    assert reply.error in (0, errno.EIO), reply.error
                    assert b"\xaa" not in reply.data[1000:], (kind, cache)


@every_way
def a_whole_large_disk_is_trimmed_and_zeroed_while_others_are_served(way):
    step = 4 * GiB - 65536
    with way.serve(way.server.image(TiB)) as s, way.connect(s, COMPACT) as other:
        for kind, c in way.each(s):
            for command in (CMD_TRIM, CMD_WRITE_ZEROES):
                length = TiB if kind == EXTENDED else step
                offsets = range(0, TiB, length)
                for offset in offsets:
                    c.send(command, offset, min(length, TiB - offset))
                for n in range(50):
                    assert other.read(n * GiB, 4096) == bytes(4096)
                for _ in offsets:
                    c.receive().check()


# ---- the end of a connection

@every_way(on=[Platterd])
def what_was_asked_before_disc_is_answered(way):
    """A full queue, of a disk that takes its time. (nbdkit 1.32 answers some with ESHUTDOWN.)"""
    with way.serve(way.server.image(MiB, fill=0xEE), driver="fault", over="file", fault="delay",
                   delay="30ms", repeat="forever") as s:
        for kind in way.kinds:
            c = way.connect(s, kind)
            # So little that no socket's buffer is in the way.
            for n in range(32):
                c.send(CMD_READ, n * 512, 512)
                c.send(CMD_WRITE, n * 512, 512, 0, b"\xee" * 512)
            disc = c.send(CMD_DISC)
            del c.waiting[disc]         # there is no reply to it
            for _ in range(64):
                reply = c.receive().check()
                assert reply.command == CMD_WRITE or reply.data == b"\xee" * 512
            if way.folder:
                c.expect_end()          # by close_notify
            else:
                c.expect_close()
            c.socket.close()


@every_way(on=[Platterd], tls=False)
def who_only_ceases_to_ask_gets_the_answers(way):
    """Of nbdkit not always: a thread that sees the end shuts down what another is about to ask."""
    with way.serve(way.server.image(MiB, fill=0xEE), driver="fault", over="file", fault="delay",
                   delay="30ms", repeat="forever") as s:
        for kind in way.kinds:
            c = way.connect(s, kind)
            for n in range(64):
                c.send(CMD_READ, n * 512, 512)
            c.socket.shutdown(socket.SHUT_WR)
            for n in range(64):
                assert c.receive().check().data == b"\xee" * 512
            c.expect_close()


def connect_when_free(way, s, kind):
    while True:
        try:
            return way.connect(s, kind)
        except nbdraw.Refused:
            time.sleep(0.01)


@every_way(on=[Platterd])
def after_a_connection_is_gone_none_of_its_writes_comes(way):
    """The next one on an exclusive export finds the disk at rest."""
    image = way.server.image(MiB)
    with way.serve(image, driver="fault", over="file", kind="write", fault="delay", delay="100ms",
                   repeat="forever", access="exclusive", args=("--depth", "16")) as s:
        for kind in way.kinds:
            c = connect_when_free(way, s, kind)
            for n in range(64):
                c.send(CMD_WRITE, n * 4096, 4096, 0, os.urandom(4096))
            c.reset()
            with connect_when_free(way, s, kind) as c:
                first = c.read(0, MiB)
                time.sleep(0.3)
                assert c.read(0, MiB) == first


@every_way(on=[Platterd])
def a_server_that_ends_says_so(way):
    """What is in flight is finished, what comes later is ESHUTDOWN, and ABORT is acknowledged."""
    for kind in way.kinds:
        with way.serve(way.server.image(MiB), driver="fault", over="file", kind="write",
                       fault="delay", delay="300ms", repeat="forever") as s:
            c, haggling = way.connect(s, kind), way.greet(s)
            write = c.send(CMD_WRITE, 0, 4096, 0, b"w" * 4096)
            c.call(CMD_READ, 4096, 512)     # so the write has begun
            os.kill(s.pid, signal.SIGTERM)
            refusals, written = 0, None
            while refusals == 0 or written is None:
                if refusals == 0:
                    c.send(CMD_READ, 4096, 512)
                reply = c.receive()
                assert reply.error in (0, errno.ESHUTDOWN), reply.error
                if reply.cookie == write:
                    written = reply
                refusals += reply.error == errno.ESHUTDOWN and reply.cookie != write
            assert written.error == 0
            assert haggling.option(OPT_LIST)[-1][0] == ERR_SHUTDOWN
            assert haggling.option(OPT_ABORT)[-1][0] == REP_ACK
            haggling.socket.close()
            c.socket.close()
        assert content(way.server.path("disk.img"))[:4096] == b"w" * 4096


@every_way(on=[Platterd])
def what_is_in_flight_is_finished_however_long_it_takes(way):
    """Longer than a peer that asks for nothing is given when the server ends."""
    with way.serve(way.server.image(MiB), driver="fault", over="file", kind="write",
                   fault="delay", delay="1200ms", repeat="forever") as s:
        c = way.connect(s, way.kinds[0])
        c.send(CMD_WRITE, 0, 4096, FUA, b"w" * 4096)
        c.call(CMD_READ, 4096, 512).check()     # so the write has begun
        os.kill(s.pid, signal.SIGTERM)
        c.receive().check()
        c.socket.close()
    assert content(way.server.path("disk.img"))[:4096] == b"w" * 4096


# ---- what the log says of it

def until_said(s, pattern, count):
    """The lines of the log that match, when there are that many."""
    for _ in range(200 * PATIENCE):
        lines = [line for line in s.said().splitlines() if re.search(pattern, line)]
        if len(lines) >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError("not %d lines with %s in: %s" % (count, pattern, s.said()))


@every_way(on=[Platterd], tls=False)
def a_client_that_leaves_is_logged_as_just_that(way):
    """At any point; with who it was, and without words of some errno."""
    with way.serve(**MEMORY) as s:
        for part in (b"", b"\0\0\0\3IHAVE", b"\0\0\0\3IHAVEOPT\0\0\0\6\0\0\0\x10\0"):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(s.address)
                raw.sendall(part)
        way.connect(s, STRUCTURED).reset()
        c = way.connect(s, STRUCTURED)
        c.send_head(CMD_WRITE, 0, 4096)
        c.reset()
        # Who never chose an export is no news.
        lines = until_said(s, "closed", 2)
        assert len(lines) == 2, lines
        for line in lines:
            assert re.search(r"unix pid %d\b.*: the peer has left" % os.getpid(), line), line
            assert not re.search("ioctl|Success|Invalid|Bad file", line), line


@every_way(on=[Platterd], tls=False)
def an_error_of_the_disk_is_logged_with_its_place_and_not_for_ever(way):
    with way.serve(way.server.image(MiB), driver="fault", over="file", kind="read", offset=4096,
                   length=4096, repeat="forever") as s:
        with way.connect(s, STRUCTURED) as c:
            for _ in range(200):
                assert error_of(c.read, 4096, 512) == "EIO"
            lines = until_said(s, r"Input/output error", 1)
            assert re.search(r"unix pid %d\b.*export .*read \[4096, 4608\)" % os.getpid(), lines[0])
            assert len(lines) < 50, len(lines)
            # A client's own mistakes are none.
            assert error_of(c.write, MiB, b"x" * 512) == "ENOSPC"
            assert error_of(c.read, MiB, 512) == "EINVAL"
            assert "write [" not in s.said() and "[1048576" not in s.said(), s.said()
            # What was left out is counted.
            time.sleep(1.1)
            assert error_of(c.read, 4096, 512) == "EIO"
            left_out = sum(map(int, re.findall(r"(\d+) more errors", s.said())))
            assert left_out + s.said().count("Input/output error") == 201, s.said()


@served(on=[Platterd])
def a_client_is_told_why_nothing_can_be_made_durable_any_more(server):
    with server(path=server.image(MiB), driver="fault", over="file", kind="flush", at=1) as s:
        for kind in (STRUCTURED, EXTENDED):
            with nbdraw.connect(s.address, extended=kind == EXTENDED) as c:
                if kind == STRUCTURED:
                    assert c.call(CMD_FLUSH).error == errno.EIO
                reply = c.call(CMD_WRITE, 0, 512, FUA, bytes(512))
                assert reply.error == errno.EIO and "sync has failed" in reply.text, reply.text


@served(on=[Platterd])
def a_file_that_may_not_grow_further_has_no_room(server):
    """Told as such, and no fault of the disk: the limit's signal is not the server's end."""
    image = server.image(4 * MiB)
    for cache in ("writeback", "none"):
        with server(image, cache=cache, wrap=("prlimit", "--fsize=%d" % (2 * MiB))) as s:
            with nbdraw.connect(s.address) as c:
                for flags in (0, FUA):
                    assert error_of(c.write, 3 * MiB, b"x" * 4096, flags) == "ENOSPC"
                c.write(MiB, b"x" * 4096, FUA)
                c.flush()
                assert c.read(MiB, 4096) == b"x" * 4096


tap.main()
