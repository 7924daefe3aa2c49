"""liar - a small NBD server in Python that is right, and that can be told to lie.

    with Liar() as s: ...               # s.uri: a disk in memory, served as the protocol wants
    class Forgetful(Liar):              # a lie is a method that does it wrong
        def write(self, c, offset, data): pass

It is for the tests of programs that have to notice such a server.
"""

import contextlib
import os
import random
import socket
import struct
import tempfile
import threading

from nbdraw import (CAN_MULTI_CONN, CHUNK_DATA, CHUNK_DONE, CHUNK_ERROR, CHUNK_NONE, CHUNK_STATUS,
                    CMD_BLOCK_STATUS, CMD_DISC, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
                    CMD_WRITE_ZEROES, DF, ERR_INVALID, ERR_UNKNOWN, ERR_UNSUP, FUA, HAS_FLAGS,
                    INFO_BLOCK_SIZE, INFO_EXPORT, NO_HOLE, OPT_ABORT, OPT_EXPORT_NAME, OPT_GO,
                    OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT,
                    OPT_STRUCTURED_REPLY, REP_ACK, REP_INFO, REP_META_CONTEXT, REP_SERVER, REQ_ONE,
                    SEND_DF, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES)

EPERM, EINVAL, ENOSPC = 1, 22, 28
MAX_PAYLOAD = 32 << 20
ALLOCATION = 7      # the id of base:allocation


class Gone(Exception):
    """The client, or this server's patience."""


class Connection:
    """One client, and what was agreed on with it."""

    def __init__(self, sock):
        self.socket = sock
        self.structured = self.context = False

    def take(self, length):
        data = bytearray(length)
        view, have = memoryview(data), 0
        while have < length:
            n = self.socket.recv_into(view[have:])
            if n == 0:
                raise Gone
            have += n
        return bytes(data)

    def unpack(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def send(self, data):
        self.socket.sendall(data)


class Fields:
    """An option's data, taken apart. ValueError: there is less of it than it says, or more."""

    def __init__(self, data):
        self.data = data

    def take(self, length):
        if length > len(self.data):
            raise ValueError
        taken, self.data = self.data[:length], self.data[length:]
        return taken

    def number(self):
        return int.from_bytes(self.take(4), "big")

    def text(self):
        return self.take(self.number())

    def end(self):
        if self.data:
            raise ValueError


class Liar:
    size = 1 << 20
    flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN

    # What a command may carry, beside FUA.
    may_have = {CMD_READ: 0, CMD_WRITE: 0, CMD_FLUSH: 0, CMD_TRIM: 0, CMD_WRITE_ZEROES: NO_HOLE,
                CMD_BLOCK_STATUS: REQ_ONE}

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="platter-", dir="/tmp")
        path = os.path.join(self.folder.name, "socket")
        self.uri = "nbd+unix:///?socket=" + path
        self.disk = bytearray(b"\xee" * self.size)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.folder.cleanup()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(Connection(sock),), daemon=True).start()

    def serve(self, c):
        try:
            self.haggle(c)
            while True:
                self.request(c)
        except (Gone, OSError):
            pass
        c.socket.close()

    # ---- options

    def haggle(self, c):
        c.send(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
        c.client_flags, = c.unpack(">I")
        if c.client_flags & ~3:
            raise Gone
        while not self.option(c, *self.take_option(c)):
            pass

    def take_option(self, c):
        magic, option, length = c.unpack(">8sII")
        if magic != b"IHAVEOPT" or length > 4 << 20:
            raise Gone
        return option, c.take(length)

    def reply(self, c, option, kind, data=b""):
        c.send(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)

    def option(self, c, option, data):
        """Whether it leads to transmission."""
        if option == OPT_EXPORT_NAME:
            if data != b"":
                raise Gone
            c.send(struct.pack(">QH", self.size, self.flags) + bytes(self.padding(c)))
            return True
        if option == OPT_ABORT:
            self.reply(c, option, REP_ACK)
            raise Gone
        if option == OPT_LIST:
            return self.list(c, data)
        if option in (OPT_INFO, OPT_GO):
            return self.info(c, option, data)
        if option == OPT_STRUCTURED_REPLY:
            c.structured |= not data
            self.reply(c, option, ERR_INVALID if data else REP_ACK)
        elif option in (OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT):
            self.contexts(c, option, data)
        else:
            self.reply(c, option, ERR_UNSUP)
        return False

    def padding(self, c):
        return 0 if c.client_flags & 2 else 124

    def list(self, c, data):
        if data:
            self.reply(c, OPT_LIST, ERR_INVALID)
        else:
            self.reply(c, OPT_LIST, REP_SERVER, bytes(4))
            self.reply(c, OPT_LIST, REP_ACK)
        return False

    def info(self, c, option, data):
        try:
            fields = Fields(data)
            name = fields.text()
            fields.take(2 * int.from_bytes(fields.take(2), "big"))
            fields.end()
        except ValueError:
            name = None
        if name is None or len(name) > 4096:
            self.reply(c, option, ERR_INVALID)
        elif name:
            self.reply(c, option, ERR_UNKNOWN)
        else:
            self.tell_export(c, option)
            self.reply(c, option, REP_INFO,
                       struct.pack(">HIII", INFO_BLOCK_SIZE, 1, 4096, MAX_PAYLOAD))
            self.reply(c, option, REP_ACK)
        return option == OPT_GO and name == b""

    def tell_export(self, c, option):
        flags = self.flags | (SEND_DF if c.structured else 0)
        self.reply(c, option, REP_INFO, struct.pack(">HQH", INFO_EXPORT, self.size, flags))

    def contexts(self, c, option, data):
        listing = option == OPT_LIST_META_CONTEXT
        try:
            fields = Fields(data)
            name = fields.text()
            queries = [fields.text() for _ in range(fields.number())]
            fields.end()
        except ValueError:
            name = None
        if name is None or not c.structured:
            self.reply(c, option, ERR_INVALID)
            return
        if name:
            self.reply(c, option, ERR_UNKNOWN)
            return
        found = b"base:allocation" in queries or listing and (not queries or b"base:" in queries)
        if not listing:
            c.context = found
        if found:
            self.reply(c, option, REP_META_CONTEXT,
                       struct.pack(">I", 0 if listing else ALLOCATION) + b"base:allocation")
        self.reply(c, option, REP_ACK)

    # ---- commands

    def request(self, c):
        magic, flags, command, cookie, offset, length = c.unpack(">IHHQQI")
        if magic != 0x25609513:
            raise Gone
        if command == CMD_DISC:
            self.disc(c, cookie)
            raise Gone
        error = self.check(c, flags, command, offset, length)
        data = self.payload(c, length, error) if command == CMD_WRITE else b""
        if error:
            self.answer(c, command, cookie, error)
        elif command == CMD_READ:
            self.read(c, cookie, offset, length, flags)
        elif command == CMD_BLOCK_STATUS:
            self.status(c, cookie, offset, length, flags)
        else:
            if command == CMD_WRITE:
                self.write(c, offset, data)
            elif command == CMD_WRITE_ZEROES:
                self.zero(c, offset, length)
            elif command == CMD_FLUSH:
                self.flush(c)
            if flags & FUA and length:
                self.force(c, offset, length)
            self.answer(c, command, cookie, 0)

    def disc(self, c, cookie):
        pass

    def check(self, c, flags, command, offset, length):
        """The error that a request has coming, or 0."""
        if command not in self.may_have:
            return EINVAL
        allowed = self.may_have[command] | (FUA if self.flags & SEND_FUA else 0)
        if flags & ~(allowed | (DF if command == CMD_READ and c.structured else 0)):
            return EINVAL
        if command == CMD_FLUSH:
            return EINVAL if offset or length else 0
        if command == CMD_BLOCK_STATUS and not c.context:
            return EINVAL
        if self.is_outside(offset, length):
            return ENOSPC if command in (CMD_WRITE, CMD_WRITE_ZEROES) else EINVAL
        return EINVAL if command in (CMD_READ, CMD_WRITE) and length > MAX_PAYLOAD else 0

    def is_outside(self, offset, length):
        return offset + length > self.size

    def payload(self, c, length, error):
        return c.take(length)

    def answer(self, c, command, cookie, error):
        if error and c.structured:
            text = b"no"
            self.chunk(c, cookie, CHUNK_ERROR | CHUNK_DONE << 16,
                       struct.pack(">IH", error, len(text)) + text)
        else:
            self.simple(c, cookie, error)

    def simple(self, c, cookie, error, data=b""):
        c.send(struct.pack(">IIQ", 0x67446698, error, cookie) + data)

    def chunk(self, c, cookie, flags_and_kind, data):
        c.send(struct.pack(">IIQI", 0x668E33EF, flags_and_kind, cookie, len(data)) + data)

    def contents(self, c, offset, length):
        return bytes(self.disk[offset:offset + length])

    def read(self, c, cookie, offset, length, flags):
        data = self.contents(c, offset, length)
        if not c.structured:
            self.simple(c, cookie, 0, data)
            return
        half = length if flags & DF else (length + 1) // 2
        for at, part in ((offset, data[:half]), (offset + half, data[half:])):
            if part:
                self.content(c, cookie, at, part)
        self.done(c, cookie)

    def content(self, c, cookie, offset, data):
        self.chunk(c, cookie, CHUNK_DATA, struct.pack(">Q", offset) + data)

    def done(self, c, cookie):
        self.chunk(c, cookie, CHUNK_NONE | CHUNK_DONE << 16, b"")

    def status(self, c, cookie, offset, length, flags):
        self.extents(c, cookie, [(length, self.state(c, offset, length))] if length else [(1, 0)])

    def state(self, c, offset, length):
        return 0 if any(self.contents(c, offset, length)) else 2

    def extents(self, c, cookie, extents):
        self.chunk(c, cookie, CHUNK_STATUS | CHUNK_DONE << 16, struct.pack(">I", ALLOCATION)
                   + b"".join(struct.pack(">II", *x) for x in extents))

    def write(self, c, offset, data):
        self.disk[offset:offset + len(data)] = data

    def zero(self, c, offset, length):
        self.disk[offset:offset + length] = bytes(length)

    def flush(self, c):
        pass

    def force(self, c, offset, length):
        """FUA: after what was changed there."""


class Cached(Liar):
    """Has a write cache, and can lose power: then all connections end, and the disk has what was
    made stable before; beside that, each 4 KiB of the cache by chance."""

    BLOCK = 4096

    def __init__(self, size=1 << 20, seed=0):
        self.size = size
        self.lock = threading.RLock()       # of all that follows
        self.random = random.Random(seed)
        self.connections = set()
        super().__init__()
        self.disk = bytearray(size)
        self.stable = bytearray(size)

    def serve(self, c):
        with self.lock:
            self.connections.add(c)
        super().serve(c)
        with self.lock:
            self.connections.discard(c)

    def make_stable(self, offset, length):
        self.stable[offset:offset + length] = self.disk[offset:offset + length]

    def alive(self, c):
        if c not in self.connections:
            raise Gone

    def write(self, c, offset, data):
        with self.lock:
            self.alive(c)
            super().write(c, offset, data)

    def zero(self, c, offset, length):
        with self.lock:
            self.alive(c)
            super().zero(c, offset, length)

    def flush(self, c):
        with self.lock:
            self.alive(c)
            self.make_stable(0, self.size)

    def force(self, c, offset, length):
        with self.lock:
            self.alive(c)
            self.make_stable(offset, length)

    def cut(self):
        """The power fails, and comes back."""
        with self.lock:
            for c in self.connections:
                with contextlib.suppress(OSError):
                    c.socket.shutdown(socket.SHUT_RDWR)
            self.connections.clear()
            for at in range(0, self.size, self.BLOCK):
                if self.random.random() < 0.25:
                    self.make_stable(at, self.BLOCK)
            self.disk[:] = self.stable
