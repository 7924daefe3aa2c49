"""nbdraw - an NBD client that sends exactly what a test asks for.

Nothing is checked on the way out, so a test can ask for what no library would send.
On the way in every byte is held to the protocol (NBD proto.md): a reply that breaks
a MUST is an AssertionError here and needs no line in the test.

    c = nbdraw.connect(address)             # negotiated, ready for commands
    c.write(0, b"a" * 512, FUA)             # nbdraw.Error when the server says no
    reply = c.call(CMD_READ, 0, 512)        # or look at the reply itself
    cookies = [c.send(CMD_WRITE, ...), ...] # many in flight

With extended headers the same calls mean the same: a payload brings its PAYLOAD_LEN along.
"""

import errno
import os
import socket
import ssl
import struct

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO = 1, 2, 3, 5, 6, 7
OPT_STRUCTURED_REPLY, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT = 8, 9, 10
OPT_EXTENDED_HEADERS = 11

REP_ACK, REP_SERVER, REP_INFO, REP_META_CONTEXT = 1, 2, 3, 4
REP_ERROR = 1 << 31
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_PLATFORM, ERR_TLS_REQD, ERR_UNKNOWN, ERR_SHUTDOWN, \
    ERR_BLOCK_SIZE_REQD, ERR_TOO_BIG, ERR_EXT_HEADER_REQD = range(REP_ERROR + 1, REP_ERROR + 11)

INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = 0, 1, 2, 3

# Transmission flags
HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, ROTATIONAL, SEND_TRIM = 1, 2, 4, 8, 16, 32
SEND_WRITE_ZEROES, SEND_DF, CAN_MULTI_CONN, SEND_CACHE, SEND_FAST_ZERO = 64, 128, 256, 1024, 2048
BLOCK_STATUS_PAYLOAD = 4096

CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES = range(7)
CMD_BLOCK_STATUS = 7

# Command flags
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = 1, 2, 4, 8, 16, 32

# Flags of an extent in "base:allocation"
HOLE, ZERO = 1, 2

CHUNK_NONE, CHUNK_DATA, CHUNK_HOLE, CHUNK_STATUS, CHUNK_STATUS_EXT = 0, 1, 2, 5, 6
CHUNK_ERROR, CHUNK_ERROR_OFFSET = 1 << 15 | 1, 1 << 15 | 2
CHUNK_DONE = 1

STRING_MAX = 4096
MAX_PAYLOAD = 32 << 20          # what every server should take
ERRORS = {errno.EPERM, errno.EIO, errno.ENOMEM, errno.EINVAL, errno.ENOSPC, errno.EOVERFLOW,
          errno.ENOTSUP, errno.ESHUTDOWN}


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

    def __init__(self, command, offset, length, flags):
        self.command, self.offset, self.length, self.flags = command, offset, length, flags
        self.error = 0              # an NBD error, which has Linux's numbers
        self.text = ""              # what the server said about it
        self.data = bytearray(length if command == CMD_READ else 0)
        self.pieces = []            # (offset, length) of data and holes, as they came
        self.extents = []           # (length, flags)
        self.cookie = None

    def finished(self):
        """The last chunk is there: all of them together are an answer."""
        if self.error:
            return
        if self.command == CMD_READ:
            assert_covered(self)
            assert len(self.pieces) == 1 or self.length == 0 or not self.flags & DF
        elif self.command == CMD_BLOCK_STATUS:
            assert self.extents
            assert sum(length for length, _ in self.extents[:-1]) < self.length
            if self.flags & REQ_ONE:
                assert len(self.extents) == 1 and self.extents[0][0] <= self.length

    def check(self):
        if self.error:
            raise Error(self.error, self.text or os.strerror(self.error))
        return self


class Client:
    """A connection, after the greeting and before any option.

    address: the path of a unix socket, or (host, port).
    """

    def __init__(self, address, client_flags=3, timeout=30):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.size = self.flags = self.block_size = self.description = None
        self.context = None         # id of base:allocation
        self.cookie = 0
        self.waiting = {}           # cookie -> Reply
        self.structured = self.extended = False
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
            except (ConnectionError, ssl.SSLError) as e:
                raise Closed(str(e)) from e
            if n == 0:
                raise Closed("closed after %d of %d bytes" % (have, length))
            have += n
        return buffer

    def expect_end(self):
        """The server says nothing more and ends the connection in order, that of TLS as well."""
        assert self.socket.recv(1) == b""

    def expect_close(self):
        """The server says nothing more and ends the connection, which may be abrupt."""
        try:
            self.expect_end()
        except (ConnectionError, ssl.SSLError):
            pass

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
            replies.append(self.option_reply(option))
        return replies

    def option_reply(self, option):
        magic, echoed, kind, length = self.unpack(">QIII")
        assert magic == 0x3E889045565A9 and echoed == option
        data = bytes(self.take(length))
        assert kind != REP_ACK or not data
        assert kind < REP_ERROR or len(data) <= STRING_MAX
        return kind, data

    def refusal(self, option, data=b"", length=None):
        """The error that an option ends with, and that alone is its answer; or None."""
        (kind, _), = self.option(option, data, length)
        return kind if kind > REP_ERROR else None

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

    def extended_headers(self):
        self.must(OPT_EXTENDED_HEADERS)
        self.structured = self.extended = True

    def starttls(self, tls):
        """tls: a folder of certificates, or an ssl.SSLContext."""
        if not isinstance(tls, ssl.SSLContext):
            tls = tls_context(tls)
        self.must(OPT_STARTTLS)
        self.socket = tls.wrap_socket(self.socket, server_hostname="localhost",
                                      suppress_ragged_eofs=False)
        self.structured = self.extended = False
        self.context = None

    def meta_context(self, option, name="", contexts=("base:allocation",)):
        """What is listed or selected, as {name: id}."""
        found = {}
        for kind, body in self.must(option, context_data(name, contexts)):
            context = body[4:].decode()
            assert kind == REP_META_CONTEXT and context not in found
            found[context], = struct.unpack(">I", body[:4])
        return found

    def set_meta_context(self, name="", contexts=("base:allocation",)):
        found = self.meta_context(OPT_SET_META_CONTEXT, name, contexts)
        self.context = found.get("base:allocation")
        return found

    def info(self, name="", option=OPT_INFO, wanted=(INFO_BLOCK_SIZE, INFO_DESCRIPTION)):
        exports = 0
        self.block_size = self.description = self.name = None
        for kind, body in self.must(option, info_data(name, wanted)):
            assert kind == REP_INFO
            kind, = struct.unpack(">H", body[:2])
            if kind == INFO_EXPORT:
                self.size, self.flags = struct.unpack(">QH", body[2:])
                exports += 1
            elif kind == INFO_BLOCK_SIZE:
                self.block_size = struct.unpack(">III", body[2:])
            elif kind == INFO_DESCRIPTION:
                self.description = body[2:].decode()
            elif kind == INFO_NAME:
                self.name = body[2:].decode()
        assert exports == 1
        self.check_export()
        return self.size, self.flags, self.block_size

    def go(self, name="", wanted=(INFO_BLOCK_SIZE, INFO_DESCRIPTION)):
        return self.info(name, OPT_GO, wanted)

    def export_name(self, name="", zeroes=0):
        """zeroes: how many were agreed on."""
        self.send_option(OPT_EXPORT_NAME, name.encode())
        self.size, self.flags = self.unpack(">QH")
        self.check_export()
        assert self.take(zeroes) == bytes(zeroes)

    def check_export(self):
        """What a server says of an export must not contradict itself."""
        flags = self.flags
        assert flags & HAS_FLAGS and self.size < 1 << 63
        assert flags & SEND_FLUSH or not flags & SEND_FUA
        assert flags & SEND_WRITE_ZEROES or not flags & SEND_FAST_ZERO
        assert self.structured or not flags & SEND_DF
        assert self.extended or not flags & BLOCK_STATUS_PAYLOAD
        assert not flags & READ_ONLY or not flags & (SEND_TRIM | SEND_WRITE_ZEROES)
        if self.block_size is not None:
            least, preferred, most = self.block_size
            assert least & (least - 1) == 0 and 1 <= least <= 65536
            assert preferred & (preferred - 1) == 0 and preferred >= max(least, 512)
            assert most >= preferred and self.size % least == 0

    def list(self):
        names = []
        for kind, body in self.must(OPT_LIST):
            length, = struct.unpack(">I", body[:4])
            assert kind == REP_SERVER and length <= STRING_MAX and 4 + length <= len(body)
            names.append(body[4:4 + length].decode())
        return names

    # ---- commands

    def send_head(self, command, offset=0, length=0, flags=0, effect=None):
        """A request without its payload, if it has one. effect: how much it is about, where
        its length is that of a payload which tells."""
        self.cookie += 1
        effect = length if effect is None else effect
        self.waiting[self.cookie] = Reply(command, offset, effect, flags)
        if self.extended:
            head = struct.pack(">IHHQQQ", 0x21E41C71, flags, command, self.cookie, offset, length)
        else:
            head = struct.pack(">IHHQQI", 0x25609513, flags, command, self.cookie, offset, length)
        self.socket.sendall(head)
        return self.cookie

    def send(self, command, offset=0, length=0, flags=0, payload=b"", effect=None):
        if self.extended and (payload or command == CMD_WRITE):
            flags |= PAYLOAD_LEN
        cookie = self.send_head(command, offset, length, flags, effect)
        self.socket.sendall(payload)
        return cookie

    def receive(self):
        """The next whole reply, in the order in which the server answers."""
        while True:
            magic, = self.unpack(">I")
            if magic == 0x67446698:
                error, cookie = self.unpack(">IQ")
                reply = self.waiting[cookie]
                assert not self.extended
                assert not (self.structured and reply.command == CMD_READ)
                assert error == 0 or error in ERRORS, error
                reply.error = error
                if error == 0 and reply.command == CMD_READ:
                    reply.data = self.take(reply.length)
                    reply.pieces = [(reply.offset, reply.length)]
                done = True
            else:
                reply, cookie, done = self.receive_chunk(magic)
            if done:
                del self.waiting[cookie]
                reply.cookie = cookie
                reply.finished()
                return reply

    def receive_chunk(self, magic):
        assert self.structured
        assert magic == (0x6E8A278C if self.extended else 0x668E33EF), hex(magic)
        if self.extended:
            flags, kind, cookie, offset, length = self.unpack(">HHQQQ")
            assert offset == self.waiting[cookie].offset
        else:
            flags, kind, cookie, length = self.unpack(">HHQI")
        reply = self.waiting[cookie]
        assert flags & ~CHUNK_DONE == 0 and (flags or kind != CHUNK_NONE)
        assert length <= MAX_PAYLOAD + 8
        self.chunk(reply, kind, self.take(length))
        return reply, cookie, flags & CHUNK_DONE

    def chunk(self, reply, kind, body):
        if kind in (CHUNK_ERROR, CHUNK_ERROR_OFFSET):
            reply.error, length = struct.unpack(">IH", body[:6])
            rest = body[6 + length:]
            assert reply.error in ERRORS, reply.error
            assert length <= STRING_MAX and len(body) == 6 + length + len(rest)
            reply.text = body[6:6 + length].decode(errors="replace")
            if kind == CHUNK_ERROR_OFFSET:
                offset, = struct.unpack(">Q", rest)
                assert reply.offset <= offset < reply.offset + reply.length
            else:
                assert not rest
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
        elif kind == (CHUNK_STATUS_EXT if self.extended else CHUNK_STATUS):
            assert reply.command == CMD_BLOCK_STATUS
            self.status(reply, body)
        else:
            assert kind == CHUNK_NONE and not body, kind

    def status(self, reply, body):
        if self.extended:
            context, count = struct.unpack(">II", body[:8])
            extents = list(struct.iter_unpack(">QQ", body[8:]))
            assert count == len(extents)
        else:
            context, = struct.unpack(">I", body[:4])
            extents = list(struct.iter_unpack(">II", body[4:]))
        assert context == self.context and not reply.extents
        assert 1 <= len(extents) <= 1 << 20
        assert all(length > 0 and flags >> 32 == 0 for length, flags in extents)
        reply.extents = extents

    def call(self, command, offset=0, length=0, flags=0, payload=b"", effect=None):
        """One command and its reply, while nothing else is in flight."""
        cookie = self.send(command, offset, length, flags, payload, effect)
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

    def block_status(self, offset, length, flags=0, contexts=None):
        """contexts: only these, by their ids."""
        if contexts is None:
            return self.call(CMD_BLOCK_STATUS, offset, length, flags).check().extents
        payload = struct.pack(">Q%dI" % len(contexts), length, *contexts)
        return self.call(CMD_BLOCK_STATUS, offset, len(payload), flags, payload,
                         length).check().extents


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


def info_data(name="", wanted=()):
    return counted(name) + struct.pack(">%dH" % (1 + len(wanted)), len(wanted), *wanted)


def context_data(name="", contexts=()):
    return counted(name) + struct.pack(">I", len(contexts)) + b"".join(map(counted, contexts))


def tls_context(folder):
    """A client that trusts ca-cert.pem of the folder, and has client-cert.pem if that is there."""
    context = ssl.create_default_context(cafile=os.path.join(folder, "ca-cert.pem"))
    certificate = os.path.join(folder, "client-cert.pem")
    if os.path.exists(certificate):
        context.load_cert_chain(certificate, os.path.join(folder, "client-key.pem"))
    return context


def connect(address, name="", structured=True, extended=False, tls=None):
    """A connection with structured replies and block status, ready for commands.

    extended: with extended headers. tls: as for starttls().
    """
    client = Client(address)
    if tls is not None:
        client.starttls(tls)
    if extended:
        client.extended_headers()
    elif structured:
        client.structured_reply()
    if client.structured:
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
