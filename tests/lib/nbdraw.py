"""nbdraw - an NBD client that sends exactly what a test asks for.

Nothing is checked on the way out, so a test can ask for what no library would send.
On the way in every byte is held to the protocol (NBD proto.md): a reply that breaks
a MUST is an AssertionError here and needs no line in the test.

    c = nbdraw.connect(address)             # negotiated, ready for commands
    c.write(0, b"a" * 512, FUA)             # nbdraw.Error when the server says no
    reply = c.call(CMD_READ, 0, 512)        # or look at the reply itself
    cookies = [c.send(CMD_WRITE, ...), ...] # many in flight
"""

import errno
import os
import socket
import struct

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO = 1, 2, 3, 5, 6, 7
OPT_STRUCTURED_REPLY, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT = 8, 9, 10

REP_ACK, REP_SERVER, REP_INFO, REP_META_CONTEXT = 1, 2, 3, 4
REP_ERROR = 1 << 31

INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = 0, 1, 2, 3

# Transmission flags
HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, ROTATIONAL, SEND_TRIM = 1, 2, 4, 8, 16, 32
SEND_WRITE_ZEROES, SEND_DF, CAN_MULTI_CONN, SEND_CACHE, SEND_FAST_ZERO = 64, 128, 256, 1024, 2048

CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES = range(7)
CMD_BLOCK_STATUS = 7

# Command flags
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO = 1, 2, 4, 8, 16

# Flags of an extent in "base:allocation"
HOLE, ZERO = 1, 2

CHUNK_NONE, CHUNK_DATA, CHUNK_HOLE, CHUNK_STATUS = 0, 1, 2, 5
CHUNK_ERROR = 1 << 15
CHUNK_DONE = 1


class Closed(Exception):
    """The server closed the connection."""


class Error(OSError):
    """The server answered a command with an error."""


class Refused(Exception):
    """The server answered an option with an error."""

    def __init__(self, reply, text):
        super().__init__("option refused: 0x%x %s" % (reply, text))
        self.reply = reply


class Reply:
    """What came back for one command."""

    def __init__(self, command, offset, length):
        self.command, self.offset, self.length = command, offset, length
        self.error = 0              # an NBD error, which has Linux's numbers
        self.text = ""              # what the server said about it
        self.data = bytearray(length if command == CMD_READ else 0)
        self.pieces = []            # (offset, length) of data and holes, as they came
        self.extents = []           # (length, flags)
        self.cookie = None

    def check(self):
        if self.error:
            raise Error(self.error, self.text or os.strerror(self.error))
        return self


class Client:
    """A connection, after the greeting and before any option."""

    def __init__(self, address, client_flags=3, timeout=30):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(timeout)
        self.socket.connect(address)
        self.size = self.flags = self.block_size = self.description = None
        self.context = None         # id of base:allocation
        self.cookie = 0
        self.waiting = {}           # cookie -> Reply
        self.structured = False
        assert self.take(16) == b"NBDMAGICIHAVEOPT"
        self.server_flags, = self.unpack(">H")
        self.socket.sendall(struct.pack(">I", client_flags))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the session as the protocol wants it."""
        try:
            if self.size is not None:
                self.send(CMD_DISC)
        except OSError:
            pass
        self.socket.close()

    def reset(self):
        """Ends the connection without a word, whatever is in flight."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def take(self, length):
        buffer = bytearray(length)
        view, have = memoryview(buffer), 0
        while have < length:
            try:
                n = self.socket.recv_into(view[have:])
            except ConnectionError as e:
                raise Closed(str(e)) from e
            if n == 0:
                raise Closed("closed after %d of %d bytes" % (have, length))
            have += n
        return buffer

    def unpack(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))

    # ---- options

    def send_option(self, option, data=b"", length=None):
        length = len(data) if length is None else length
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", option, length) + data)

    def option(self, option, data=b"", length=None):
        """All replies to one option as [(type, data)]; the last is the ACK or the error."""
        self.send_option(option, data, length)
        replies = []
        while not replies or (replies[-1][0] != REP_ACK and replies[-1][0] < REP_ERROR):
            magic, echoed, kind, length = self.unpack(">QIII")
            assert magic == 0x3E889045565A9 and echoed == option
            replies.append((kind, bytes(self.take(length))))
        return replies

    def must(self, option, data=b""):
        """option(), where an error is an exception."""
        replies = self.option(option, data)
        kind, text = replies.pop()
        if kind != REP_ACK:
            raise Refused(kind, text.decode(errors="replace"))
        return replies

    def structured_reply(self):
        self.must(OPT_STRUCTURED_REPLY)
        self.structured = True

    def set_meta_context(self, name="", contexts=("base:allocation",)):
        data = counted(name) + struct.pack(">I", len(contexts))
        replies = self.must(OPT_SET_META_CONTEXT, data + b"".join(map(counted, contexts)))
        for _, body in replies:
            if body[4:] == b"base:allocation":
                self.context, = struct.unpack(">I", body[:4])

    def info(self, name="", option=OPT_INFO):
        wanted = (INFO_BLOCK_SIZE, INFO_DESCRIPTION)
        data = counted(name) + struct.pack(">%dH" % (1 + len(wanted)), len(wanted), *wanted)
        for _, body in self.must(option, data):
            kind, = struct.unpack(">H", body[:2])
            if kind == INFO_EXPORT:
                self.size, self.flags = struct.unpack(">QH", body[2:])
            elif kind == INFO_BLOCK_SIZE:
                self.block_size = struct.unpack(">III", body[2:])
            elif kind == INFO_DESCRIPTION:
                self.description = body[2:].decode()
        return self.size, self.flags, self.block_size

    def go(self, name=""):
        return self.info(name, OPT_GO)

    def list(self):
        names = []
        for _, body in self.must(OPT_LIST):
            length, = struct.unpack(">I", body[:4])
            names.append(body[4:4 + length].decode())
        return names

    # ---- commands

    def send(self, command, offset=0, length=0, flags=0, payload=b""):
        self.cookie += 1
        self.waiting[self.cookie] = Reply(command, offset, length)
        head = struct.pack(">IHHQQI", 0x25609513, flags, command, self.cookie, offset, length)
        if len(payload) < 65536:
            self.socket.sendall(head + payload)
        else:
            self.socket.sendall(head)
            self.socket.sendall(payload)
        return self.cookie

    def receive(self):
        """The next whole reply, in the order in which the server answers."""
        while True:
            magic, = self.unpack(">I")
            if magic == 0x67446698:
                error, cookie = self.unpack(">IQ")
                reply = self.waiting[cookie]
                assert not (self.structured and reply.command == CMD_READ)
                reply.error = error
                if error == 0 and reply.command == CMD_READ:
                    reply.data = self.take(reply.length)
                    reply.pieces = [(reply.offset, reply.length)]
                done = True
            else:
                assert magic == 0x668E33EF and self.structured, hex(magic)
                flags, kind, cookie, length = self.unpack(">HHQI")
                reply = self.waiting[cookie]
                self.chunk(reply, kind, self.take(length))
                done = flags & CHUNK_DONE
            if done:
                del self.waiting[cookie]
                reply.cookie = cookie
                if reply.command == CMD_READ and reply.error == 0:
                    assert_covered(reply)
                return reply

    def chunk(self, reply, kind, body):
        if kind & CHUNK_ERROR:
            reply.error, length = struct.unpack(">IH", body[:6])
            assert reply.error != 0 and 6 + length <= len(body)
            reply.text = body[6:6 + length].decode(errors="replace")
        elif kind == CHUNK_DATA:
            offset, = struct.unpack(">Q", body[:8])
            assert reply.command == CMD_READ and len(body) > 8
            at = offset - reply.offset
            assert 0 <= at and at + len(body) - 8 <= reply.length
            reply.data[at:at + len(body) - 8] = body[8:]
            reply.pieces.append((offset, len(body) - 8))
        elif kind == CHUNK_HOLE:
            offset, length = struct.unpack(">QI", body)
            assert reply.command == CMD_READ and length > 0
            reply.pieces.append((offset, length))
        elif kind == CHUNK_STATUS:
            context, = struct.unpack(">I", body[:4])
            assert reply.command == CMD_BLOCK_STATUS and context == self.context
            assert not reply.extents and len(body) > 4
            reply.extents = list(struct.iter_unpack(">II", body[4:]))
            assert all(length > 0 for length, _ in reply.extents)
            assert sum(length for length, _ in reply.extents[:-1]) < reply.length
        else:
            assert kind == CHUNK_NONE and len(body) == 0, kind

    def call(self, command, offset=0, length=0, flags=0, payload=b""):
        """One command and its reply, while nothing else is in flight."""
        cookie = self.send(command, offset, length, flags, payload)
        reply = self.receive()
        assert reply.cookie == cookie
        return reply

    def read(self, offset, length, flags=0):
        return bytes(self.call(CMD_READ, offset, length, flags).check().data)

    def write(self, offset, data, flags=0):
        self.call(CMD_WRITE, offset, len(data), flags, data).check()

    def zero(self, offset, length, flags=0):
        self.call(CMD_WRITE_ZEROES, offset, length, flags).check()

    def trim(self, offset, length, flags=0):
        self.call(CMD_TRIM, offset, length, flags).check()

    def cache(self, offset, length, flags=0):
        self.call(CMD_CACHE, offset, length, flags).check()

    def flush(self, flags=0):
        self.call(CMD_FLUSH, 0, 0, flags).check()

    def block_status(self, offset, length, flags=0):
        return self.call(CMD_BLOCK_STATUS, offset, length, flags).check().extents


def counted(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(data)) + data


def assert_covered(reply):
    """The pieces of a read touch each byte of it once."""
    at = reply.offset
    for offset, length in sorted(reply.pieces):
        assert offset == at, "a read came back with a gap or an overlap"
        at += length
    assert at == reply.offset + reply.length


def connect(address, name="", structured=True):
    """A connection with structured replies and block status, ready for commands."""
    client = Client(address)
    if structured:
        client.structured_reply()
        client.set_meta_context(name)
    client.go(name)
    return client


def error_of(call, *args):
    """The name of the error that a command ends with: "EPERM", or "" when it works."""
    try:
        call(*args)
    except Error as e:
        return errno.errorcode[e.errno]
    return ""
