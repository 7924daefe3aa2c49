"""model - the bytes that a client is owed, kept beside the disk.

A Model sends random commands and remembers what each one promises: exactly its bytes,
to its first and its last, at any offset. What it finds wrong is an AssertionError that
names the command and the seed's step.
"""

import errno
import random

from nbdraw import (CMD_WRITE, CMD_WRITE_ZEROES, FAST_ZERO, FUA, NO_HOLE, SEND_FAST_ZERO,
                    SEND_FUA, connect)

# Where mistakes live: a byte beside the edges of sectors, pages and the core's buffers.
EDGES = (512, 4096, 65536, 256 * 1024)


class Model:
    def __init__(self, client, content, seed, fua=0.25):
        self.client = client
        self.bytes = bytearray(content)
        self.random = random.Random(seed)
        self.seed, self.steps, self.share = seed, 0, fua

    def place(self):
        """A range: mostly short, mostly near an edge, at times at the very end."""
        r, size = self.random, len(self.bytes)
        edge = r.choice(EDGES)
        offset = r.randrange(size // edge + 1) * edge + r.choice((0, 0, 0, 1, -1, 3, 511, -512))
        length = r.choice((1, 2, 511, 512, 513, 4096, 4097, 9999, 65536, edge, edge + 1))
        if r.random() < 0.15:
            offset = size - length
        offset = min(max(offset, 0), size - 1)
        return offset, min(length, size - offset)

    def fua(self):
        return FUA if self.client.flags & SEND_FUA and self.random.random() < self.share else 0

    def check(self, offset, length, what):
        got = self.client.read(offset, length)
        want = self.bytes[offset:offset + length]
        if got != want:
            at = next(i for i in range(length) if got[i] != want[i])
            raise AssertionError("seed %s step %d: %s: byte %d is %#x, not %#x" % (
                self.seed, self.steps, what, offset + at, got[at], want[at]))

    def around(self, offset, length, what):
        """The range and what lies within a page of it."""
        start = max(offset - 4096, 0)
        self.check(start, min(offset + length + 4096, len(self.bytes)) - start, what)

    def write(self, offset, length):
        data = self.random.randbytes(length)
        self.client.write(offset, data, self.fua())
        self.bytes[offset:offset + length] = data
        self.around(offset, length, "write %d+%d" % (offset, length))

    def zero(self, offset, length):
        flags = self.fua() | self.random.choice((0, 0, NO_HOLE))
        if self.client.flags & SEND_FAST_ZERO and self.random.random() < 0.3:
            flags |= FAST_ZERO
        reply = self.client.call(CMD_WRITE_ZEROES, offset, length, flags)
        if reply.error == errno.EOPNOTSUPP and flags & FAST_ZERO:
            pass                    # and nothing may have changed
        else:
            reply.check()
            self.bytes[offset:offset + length] = bytes(length)
        self.around(offset, length, "zero %d+%d flags %d" % (offset, length, flags))

    def trim(self, offset, length):
        """Each byte may be kept or become zero, and then stays so."""
        self.client.trim(offset, length, self.fua())
        after = self.client.read(offset, length)
        before = self.bytes[offset:offset + length]
        kept = all(a == b or a == 0 for a, b in zip(after, before))
        assert kept, "seed %s step %d: trim %d+%d" % (self.seed, self.steps, offset, length)
        self.bytes[offset:offset + length] = after
        self.around(offset, length, "trim %d+%d" % (offset, length))

    def run(self, steps):
        verbs = [self.write] * 6 + [self.zero] * 2 + [self.trim]
        for _ in range(steps):
            self.steps += 1
            self.random.choice(verbs)(*self.place())
            if self.random.random() < 0.1:
                self.check(*self.place(), "read")
        self.check(0, len(self.bytes), "the whole disk")

    def crowd(self, clients, pieces, length):
        """Many neighbours at once: pieces side by side, in flight on all clients, none of
        which may lose a byte of the next one."""
        start = self.random.randrange((len(self.bytes) - pieces * length) // length) * length
        order = list(range(pieces))
        self.random.shuffle(order)
        flying = {c: 0 for c in clients}
        for n, piece in enumerate(order):
            client = clients[n % len(clients)]
            if flying[client] == 16:
                client.receive().check()
                flying[client] -= 1
            offset = start + piece * length
            kind = self.random.random()
            if kind < 0.8:
                data = self.random.randbytes(length)
                client.send(CMD_WRITE, offset, length, self.fua(), data)
            else:
                data = bytes(length)
                client.send(CMD_WRITE_ZEROES, offset, length, self.fua())
            flying[client] += 1
            self.bytes[offset:offset + length] = data
        for client, count in flying.items():
            for _ in range(count):
                client.receive().check()
        self.check(0, len(self.bytes), "%d neighbours of %d bytes" % (pieces, length))

    def compare(self, path):
        """The image itself, when the server has let go of it."""
        with open(path, "rb") as f:
            content = f.read()
        assert len(content) == len(self.bytes), "the size of the image changed"
        assert content == self.bytes, "the image differs from what was written"


def exercise(server, image, seed, steps=150, pieces=200, **options):
    """The promise of every place and mode: any byte range, and no other byte."""
    with open(image, "rb") as f:
        content = f.read()
    with server(image, **options) as s, connect(s.address) as a, connect(s.address) as b:
        assert a.size == len(content)
        model = Model(a, content, seed)
        model.run(steps)
        for length in (1, 37, 500, 512, 513, 4095):
            model.crowd([a, b], pieces, length)
    model.compare(image)
