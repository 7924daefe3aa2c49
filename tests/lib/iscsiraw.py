"""iscsiraw - an iSCSI initiator that sends exactly what a test asks for.

Nothing is checked on the way out, so a test can ask for what no library would send. On the way
in every PDU is held to RFC 7143 (numbers, flags, order, lengths, digests): what breaks a MUST is
an AssertionError here and needs no line in the test.

    with iscsiraw.connect(address, target) as c:        # logged in, unit attentions taken
        c.cdb("2a 00 00000000 00 0001 00", dout=b"a" * 512).check()
        r = c.cdb("28 00 00000000 00 0001 00", din=512) # or look at the answer itself
        itts = [c.command(...), c.command(...)]         # many under way
        r = c.finish(itts[1])

    c = iscsiraw.Client(address)                        # nothing said yet
    c.login_request(0, 1, {"InitiatorName": ...})       # one step
    c.login(target, chap=("me", "my secret"))           # or all of them; Refused has the status
"""

import contextlib
import hashlib
import itertools
import os
import random
import socket
import struct

NOP_OUT, SCSI_COMMAND, TASK_MANAGEMENT, LOGIN, TEXT, DATA_OUT, LOGOUT, SNACK = \
    0, 1, 2, 3, 4, 5, 6, 0x10
NOP_IN, SCSI_RESPONSE, TASK_MANAGEMENT_RESPONSE, LOGIN_RESPONSE, TEXT_RESPONSE, DATA_IN, \
    LOGOUT_RESPONSE = range(0x20, 0x27)
R2T, ASYNC, REJECT = 0x31, 0x32, 0x3F

IMMEDIATE, FINAL = 0x40, 0x80           # in bytes 0 and 1
NO_TAG = 0xFFFFFFFF
UNTAGGED, SIMPLE, ORDERED, HEAD_OF_QUEUE, ACA = range(5)

SECURITY, OPERATIONAL, FULL = 0, 1, 3   # stages

# Task management functions and what comes back
ABORT_TASK, ABORT_TASK_SET, CLEAR_ACA, CLEAR_TASK_SET, LUN_RESET, WARM_RESET, COLD_RESET, \
    TASK_REASSIGN, QUERY_TASK, QUERY_TASK_SET, NEXUS_RESET, QUERY_ASYNC = range(1, 13)
FUNCTION_COMPLETE, NO_TASK, NO_LUN, TASK_ALLEGIANT, NO_REASSIGN, NOT_SUPPORTED = range(6)
FUNCTION_SUCCEEDED, FUNCTION_REJECTED = 7, 255

GOOD, CHECK_CONDITION, CONDITION_MET, BUSY, RESERVATION_CONFLICT, TASK_SET_FULL, TASK_ABORTED = \
    0, 2, 4, 8, 0x18, 0x28, 0x40
UNIT_ATTENTION = 6

INITIATOR = "iqn.2026-01.org.example:raw"
ALGORITHMS = {"5": "md5", "6": "sha1", "7": "sha256", "8": "sha3_256"}

# What holds before anything is agreed on, as text; and what login() asks for.
DEFAULTS = {
    "HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "Yes", "ImmediateData": "Yes",
    "MaxBurstLength": "262144", "FirstBurstLength": "65536", "MaxOutstandingR2T": "1",
    "DefaultTime2Wait": "2", "DefaultTime2Retain": "20", "MaxConnections": "1",
    "ErrorRecoveryLevel": "0", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
}
WISHES = {
    "HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "No", "ImmediateData": "Yes",
    "MaxBurstLength": "262144", "FirstBurstLength": "65536", "MaxOutstandingR2T": "1",
    "DefaultTime2Wait": "2", "DefaultTime2Retain": "0", "MaxConnections": "1",
    "ErrorRecoveryLevel": "0", "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes",
    "MaxRecvDataSegmentLength": "262144",
}

# Each client is an initiator port of its own, unless it says otherwise: an ISID of the random kind.
_ports, _host = itertools.count(1), os.urandom(3)


class Closed(Exception):
    """The target closed the connection."""


class Refused(Exception):
    """The target refused the login."""

    def __init__(self, status):
        super().__init__("login refused: %04x" % status)
        self.status = status


class Rejected(Exception):
    """The target rejected a PDU: reason, and the header that it complains about."""

    def __init__(self, reason, bhs):
        super().__init__("rejected: reason %02x, %s" % (reason, bhs.hex()))
        self.reason, self.bhs = reason, bhs


class CommandFailed(Exception):
    """A command ended with a status other than GOOD."""


# ---- CRC32C

def _crc_table():
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        yield n


_CRC = tuple(_crc_table())


def crc32c(data):
    """As it stands on the wire."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


# ---- keys and numbers

def before(a, b):
    """Of serial numbers, RFC 1982."""
    return a != b and (b - a) % (1 << 32) < 1 << 31


def text_of(keys):
    """Of a dict or pairs; bytes are as they are."""
    if isinstance(keys, bytes):
        return keys
    pairs = keys.items() if isinstance(keys, dict) else keys
    return b"".join(("%s=%s" % pair).encode() + b"\0" for pair in pairs)


def keys_of(text):
    """Pairs. What a target says ends with a NUL and has no pair without a '='."""
    assert text == b"" or text[-1] == 0, text
    return [tuple(pair.decode().split("=", 1)) for pair in text.split(b"\0") if pair]


def lun_field(lun):
    return struct.pack(">H6x", lun if lun < 256 else 0x4000 | lun) \
        if isinstance(lun, int) else bytes(lun)


def padded(data):
    return data + bytes(-len(data) % 4)


class Pdu:
    def __init__(self, bhs, ahs=b"", data=b""):
        self.bhs, self.ahs, self.data = bhs, ahs, data
        self.opcode, self.flags = bhs[0] & 0x3F, bhs[1]

    def word(self, at):
        return struct.unpack_from(">I", self.bhs, at)[0]

    itt = property(lambda s: s.word(16))
    ttt = property(lambda s: s.word(20))
    stat_sn = property(lambda s: s.word(24))
    exp_cmd_sn = property(lambda s: s.word(28))
    max_cmd_sn = property(lambda s: s.word(32))


class Sense:
    """Fixed or descriptor format."""

    def __init__(self, data):
        self.data = data
        self.format = data[0] & 0x7F
        assert self.format in (0x70, 0x71, 0x72, 0x73), data.hex()
        self.deferred = self.format in (0x71, 0x73)
        if self.format >= 0x72:
            self.key, self.asc = data[1] & 15, data[2] << 8 | data[3]
        else:
            self.key, self.asc = data[2] & 15, data[12] << 8 | data[13]

    def descriptor(self, kind):
        """Of descriptor format, or None."""
        at = 8
        while at < 8 + self.data[7]:
            if self.data[at] == kind:
                return self.data[at:at + 2 + self.data[at + 1]]
            at += 2 + self.data[at + 1]
        return None

    @property
    def information(self):
        """INFORMATION, or None where it is not valid."""
        if self.format >= 0x72:
            found = self.descriptor(0)
            return struct.unpack(">Q", found[4:12])[0] if found and found[2] & 0x80 else None
        return struct.unpack(">I", self.data[3:7])[0] if self.data[0] & 0x80 else None

    @property
    def specific(self):
        """The three sense key specific bytes, or None."""
        found = (self.descriptor(2) or bytes(7))[4:7] if self.format >= 0x72 else self.data[15:18]
        return found if found[:1] and found[0] & 0x80 else None

    def __str__(self):
        return "%x/%04x" % (self.key, self.asc)


class Task:
    """A command, and in the end what came back for it."""

    def __init__(self, itt, cdb, expected_in, out):
        self.itt, self.cdb, self.expected_in, self.out = itt, cdb, expected_in, out
        self.data = bytearray()
        self.pieces = []            # (offset, length, flags) of Data-In
        self.burst = 0              # bytes of Data-In since the last F
        self.data_sn = self.r2t_sn = 0
        self.r2ts = {}              # target transfer tag -> (offset, length), not answered yet
        self.asked = None           # offset up to which R2Ts have asked
        self.status = self.sense = None
        self.residual = 0           # negative: that many bytes fewer were moved (U); positive: O
        self.in_data = False        # the status came with data

    def finished(self, status, flags, count):
        self.status = status
        assert flags & 6 != 6 and (flags & 6 or count == 0)
        self.residual = count if flags & 4 else -count
        assert len(self.data) <= self.expected_in

    @property
    def condition(self):
        """"5/2400", or the status in hex where there is no sense; "" when all went well."""
        return str(self.sense) if self.sense else "%02x" % self.status if self.status else ""

    def check(self):
        if self.status != GOOD:
            raise CommandFailed("%s: %s" % (self.cdb.hex(), self.condition))
        return self


class Client:
    """A connection, and its session.

    address: (host, port). isid: six bytes; without it, each client has its own.
    """

    def __init__(self, address, initiator=INITIATOR, isid=None, lun=0, timeout=30):
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.isid = isid or struct.pack(">B3sH", 0x80, _host, next(_ports))
        self.initiator, self.lun = initiator, lun
        self.cid, self.tsih = 1, 0
        self.login_tag = self.tag = random.getrandbits(16)  # the last initiator task tag
        self.cmd_sn = random.getrandbits(32)    # of the next command
        self.exp_stat_sn = None                 # None: the target has not said its first yet
        self.exp_cmd_sn = self.max_cmd_sn = self.cmd_sn
        self.agreed = dict(DEFAULTS)
        self.max_receive = self.max_send = 8192
        self.header_digest = self.data_digest = False
        self.full = False                       # the full feature phase has begun
        self.tasks = {}
        self.events = []                        # async messages: (event, their PDU)
        self.pings = 0                          # NOP-Ins that asked for an answer
        self.answer_pings = self.answer_r2ts = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the session as the protocol wants it, if that still goes."""
        if self.full:
            with contextlib.suppress(OSError, Closed, Rejected):
                self.socket.settimeout(5)
                self.logout()
        self.socket.close()

    def reset(self):
        """As a host that is gone: the target gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # ---- PDUs

    def next_tag(self):
        self.tag = (self.tag + 1) % NO_TAG
        return self.tag

    def bhs(self, opcode, flags=FINAL, lun=None, itt=NO_TAG, at20=0, cmd_sn=None, fields=()):
        """A header: fields are (offset, number of four bytes), after the others."""
        b = bytearray(48)
        b[0], b[1] = opcode, flags
        b[8:16] = lun_field(self.lun if lun is None else lun)
        struct.pack_into(">IIII", b, 16, itt, at20, self.cmd_sn if cmd_sn is None else cmd_sn,
                         self.exp_stat_sn or 0)
        for offset, number in fields:
            struct.pack_into(">I", b, offset, number)
        return b

    def send_pdu(self, bhs, data=b"", ahs=b"", break_header=False, break_data=False):
        """With the lengths and digests that belong to it, or with wrong digests."""
        bhs = bytearray(bhs)
        bhs[4] = len(ahs) // 4
        bhs[5:8] = len(data).to_bytes(3, "big")
        out = bytes(bhs) + ahs
        if self.header_digest:
            out += bytes(b ^ break_header for b in crc32c(out))
        if data:
            body = padded(data)
            out += body
            if self.data_digest:
                out += bytes(b ^ break_data for b in crc32c(body))
        self.send_bytes(out)

    def send_bytes(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as e:
            raise Closed from e

    def take(self, length):
        data = bytearray()
        while len(data) < length:
            try:
                piece = self.socket.recv(length - len(data))
            except ConnectionResetError as e:
                raise Closed from e
            if not piece:
                raise Closed("after %d of %d bytes" % (len(data), length))
            data += piece
        return bytes(data)

    def take_pdu(self):
        """The next PDU as it comes, digests looked at and nothing else."""
        bhs = self.take(48)
        ahs = self.take(bhs[4] * 4)
        if self.header_digest:
            assert self.take(4) == crc32c(bhs + ahs), "header digest"
        length = int.from_bytes(bhs[5:8], "big")
        body = self.take(length + -length % 4)
        if length and self.data_digest:
            assert self.take(4) == crc32c(body), "data digest"
        assert length <= self.max_receive, length
        assert body[length:] == bytes(len(body) - length)
        return Pdu(bhs, ahs, body[:length])

    def expect_close(self):
        """The target hangs up without another word."""
        try:
            more = self.take(1)
        except Closed:
            return
        raise AssertionError("instead of closing, it sends %s..." % more.hex())

    # ---- login

    def login_request(self, stage, next_stage=None, keys=(), goes_on=False, **fields):
        """One step; returns the PDU that answers, with .keys and .status. next_stage None: stay.

        fields: version_max, version_min, isid, tsih, cid, opcode, flags, itt, cmd_sn.
        """
        self.send_login(stage, next_stage, keys, goes_on, **fields)
        return self.login_response(stage, fields)

    def send_login(self, stage, next_stage=None, keys=(), goes_on=False, **fields):
        flags = stage << 2 | (0x40 if goes_on else 0)
        if next_stage is not None:
            flags |= 0x80 | next_stage
        b = self.bhs(fields.get("opcode", LOGIN | IMMEDIATE), fields.get("flags", flags),
                     itt=fields.get("itt", self.login_tag), cmd_sn=fields.get("cmd_sn"))
        b[2], b[3] = fields.get("version_max", 0), fields.get("version_min", 0)
        b[8:14] = fields.get("isid", self.isid)
        struct.pack_into(">H", b, 14, fields.get("tsih", self.tsih))
        struct.pack_into(">H", b, 20, fields.get("cid", self.cid))
        self.send_pdu(b, text_of(keys))

    def login_response(self, stage, fields=()):
        p = self.take_pdu()
        fields = dict(fields)
        assert p.bhs[0] == LOGIN_RESPONSE and p.bhs[2:5] == bytes(3), p.bhs.hex()
        assert p.bhs[8:14] == fields.get("isid", self.isid)
        assert p.itt == fields.get("itt", self.login_tag)
        assert p.bhs[20:24] == bytes(4) and p.bhs[38:] == bytes(10)
        p.status = struct.unpack_from(">H", p.bhs, 36)[0]
        p.tsih = struct.unpack_from(">H", p.bhs, 14)[0]
        p.transits = p.flags & 0x80 != 0
        p.next_stage = p.flags & 3 if p.transits else None
        assert p.flags & 0x30 == 0 and (p.transits or p.flags & 3 == 0)
        assert p.flags & 0xC0 != 0xC0
        p.keys = keys_of(p.data) if not p.flags & 0x40 else None     # else it goes on
        self.count_status(p)
        if p.status:
            assert not p.transits and not p.data
            return p
        assert p.flags >> 2 & 3 == stage
        self.count_commands(p)
        if p.next_stage == FULL:
            assert p.tsih != 0
            self.tsih = p.tsih
        else:
            assert p.tsih == fields.get("tsih", self.tsih)
        return p

    def login_step(self, stage, next_stage, keys):
        """One step whose answer may go on; returns the last PDU, and all its keys as a dict."""
        p = self.login_request(stage, next_stage, keys)
        text = p.data
        while p.flags & 0x40:
            p = self.login_request(stage, next_stage)
            text += p.data
        if p.status:
            raise Refused(p.status)
        pairs = keys_of(text)
        assert len({k for k, _ in pairs}) == len(pairs), pairs
        return p, dict(pairs)

    def login(self, target=None, keys=None, chap=None, mutual=None, algorithms="5", method=None,
              security=True):
        """The whole login. target None: a discovery session. keys: wishes other than WISHES, None:
        not said. chap: name and secret; mutual: name and secret of the target. method: what to say
        for AuthMethod. security False: straight to the operational stage."""
        names = {"InitiatorName": self.initiator}
        names |= {"TargetName": target} if target else {"SessionType": "Discovery"}
        if security:
            names["AuthMethod"] = method or ("CHAP" if chap else "None")
            p, said = self.login_step(SECURITY, OPERATIONAL, names)
            names = {}
            self.first_keys = said
            if said.get("AuthMethod") == "CHAP":
                p = self.chap(chap, mutual, algorithms)
            assert p.next_stage == OPERATIONAL
        wishes = {k: v for k, v in {**WISHES, **(keys or {})}.items() if v is not None}
        p, said = self.login_step(OPERATIONAL, FULL, {**names, **wishes})
        assert p.next_stage == FULL
        if not security:
            self.first_keys = said
        if target:
            assert self.first_keys["TargetPortalGroupTag"] == "1"
        self.agree(wishes, said, target is not None)
        return said

    def agree(self, wishes, said, normal):
        """What was agreed on is what could be, and holds from now on."""
        for key, wish in wishes.items():
            answer = said.get(key)
            if key == "MaxRecvDataSegmentLength":
                assert answer is None or answer.isdigit()   # theirs
                self.max_receive = int(wish)
                continue
            assert answer is not None, "no answer to " + key
            if key in self.agreed and answer not in ("Reject", "Irrelevant", "NotUnderstood"):
                self.agreed[key] = answer
            if normal and key in DEFAULTS:
                assert answer != "Irrelevant", key
        self.max_send = int(said.get("MaxRecvDataSegmentLength", 8192))
        self.header_digest = self.agreed["HeaderDigest"] == "CRC32C"
        self.data_digest = self.agreed["DataDigest"] == "CRC32C"
        self.full = True

    def chap(self, chap, mutual=None, algorithms="5"):
        """Who we are, and who the target is; after AuthMethod=CHAP."""
        _, said = self.login_step(SECURITY, None, {"CHAP_A": algorithms})
        assert said["CHAP_A"] in algorithms.split(",")
        challenge = bytes.fromhex(said["CHAP_C"][2:])
        keys = {"CHAP_N": chap[0],
                "CHAP_R": self.chap_response(said["CHAP_A"], said["CHAP_I"], chap[1], challenge)}
        if mutual:
            ours = os.urandom(16)
            keys |= {"CHAP_I": "17", "CHAP_C": "0x" + ours.hex()}
        p, answer = self.login_step(SECURITY, OPERATIONAL, keys)
        if mutual:
            assert answer["CHAP_N"] == mutual[0]
            assert answer["CHAP_R"].lower() == \
                self.chap_response(said["CHAP_A"], "17", mutual[1], ours)
        return p

    @staticmethod
    def chap_response(algorithm, identifier, secret, challenge):
        data = bytes([int(identifier, 0)]) + secret.encode() + challenge
        return "0x" + hashlib.new(ALGORITHMS[algorithm], data).hexdigest()

    # ---- what each PDU of the target says about numbers

    def count_status(self, p):
        """It has a StatSN of its own, the next one."""
        if self.exp_stat_sn is None:
            self.exp_stat_sn = p.stat_sn
        assert p.stat_sn == self.exp_stat_sn, (p.stat_sn, self.exp_stat_sn)
        self.exp_stat_sn = (self.exp_stat_sn + 1) % (1 << 32)

    def count_commands(self, p):
        assert not before(p.exp_cmd_sn, self.exp_cmd_sn), "ExpCmdSN went back"
        assert not before(self.cmd_sn, p.exp_cmd_sn), "ExpCmdSN of what was not sent"
        assert not before(p.max_cmd_sn, (p.exp_cmd_sn - 1) % (1 << 32))
        assert not before(p.max_cmd_sn, self.max_cmd_sn), "MaxCmdSN went back"
        self.exp_cmd_sn, self.max_cmd_sn = p.exp_cmd_sn, p.max_cmd_sn

    @property
    def window(self):
        """How many commands the target would take now."""
        return (self.max_cmd_sn - self.cmd_sn + 1) % (1 << 32)

    # ---- commands

    def command(self, cdb, din=0, dout=b"", attribute=SIMPLE, lun=None, immediate=False,
                expected=None, first=None, unsolicited=None, cmd_sn=None, itt=None, flags=None,
                ahs=b""):
        """Sends a command and what may go with it unasked; returns its tag.

        immediate: beside the order of commands. expected: as Expected Data Transfer Length, other
        than the length of dout or din. first, unsolicited: bytes of immediate data and of Data-Out
        without R2T, other than may be. flags: byte 1.
        """
        cdb = bytes.fromhex(cdb) if isinstance(cdb, str) else bytes(cdb)
        itt = self.next_tag() if itt is None else itt
        burst = min(len(dout), int(self.agreed["FirstBurstLength"]))
        if first is None:
            first = min(burst, self.max_send) if self.agreed["ImmediateData"] == "Yes" else 0
        if unsolicited is None:
            unsolicited = burst - first if self.agreed["InitialR2T"] == "No" else 0
        if flags is None:
            flags = (0 if unsolicited else FINAL) | (0x40 if din else 0) | \
                (0x20 if dout else 0) | attribute
        if expected is None:
            expected = len(dout) or din
        b = self.bhs(SCSI_COMMAND | (IMMEDIATE if immediate else 0), flags, lun, itt, expected,
                     cmd_sn)
        b[32:48] = cdb[:16].ljust(16, b"\0")
        if len(cdb) > 16:
            ahs = struct.pack(">HBB", len(cdb) - 15, 1, 0) + padded(cdb[16:]) + ahs
        task = self.tasks[itt] = Task(itt, cdb, max(din, expected if flags & 0x40 else 0), dout)
        task.lun = bytes(b[8:16])
        task.asked = first + unsolicited
        self.send_pdu(b, dout[:first], ahs)
        if not immediate and cmd_sn is None:
            self.cmd_sn = (self.cmd_sn + 1) % (1 << 32)
        if unsolicited:
            self.data_out(itt, first, dout[first:first + unsolicited])
        return itt

    def data_out(self, itt, offset, data, ttt=NO_TAG, data_sn=0, final=True, lun=None):
        """One sequence, in as many PDUs as it takes."""
        task = self.tasks.get(itt)
        lun = lun if lun is not None or task is None else task.lun
        pieces = range(0, len(data), self.max_send) or [0]
        for n, at in enumerate(pieces):
            last = final and n == len(pieces) - 1
            b = self.bhs(DATA_OUT, FINAL if last else 0, lun, itt, ttt, cmd_sn=0,
                         fields=((36, data_sn + n), (40, offset + at)))
            self.send_pdu(b, data[at:at + self.max_send])

    def answer_r2t(self, task, ttt):
        offset, length = task.r2ts.pop(ttt)
        self.data_out(task.itt, offset, task.out[offset:offset + length].ljust(length, b"\0"), ttt)

    def finish(self, itt):
        """What came back for a command, once it has."""
        task = self.tasks[itt]
        while task.status is None:
            self.receive()
        del self.tasks[itt]
        return task

    def cdb(self, cdb, din=0, dout=b"", **how):
        """A command, and what came back for it."""
        return self.finish(self.command(cdb, din, dout, **how))

    def ready(self):
        """Takes the unit attentions that there are."""
        for _ in range(20):
            r = self.cdb(bytes(6))
            if r.status != CHECK_CONDITION or r.sense.key != UNIT_ATTENTION:
                break
        return r.check()

    # ---- what comes

    def receive(self):
        """The next PDU, held to what it has to be. Those of commands are taken by their tasks."""
        p = self.take_pdu()
        assert p.ahs == b""
        assert p.bhs[0] & 0xC0 == 0, p.bhs.hex()
        kind = self.KINDS.get(p.opcode)
        assert kind is not None, "a PDU of opcode %02x" % p.opcode
        self.count_commands(p)
        kind(self, p)
        return p

    def receive_kind(self, opcode, itt):
        """The answer to a request of that tag, whatever comes before it."""
        while True:
            p = self.receive()
            if p.opcode == opcode and p.itt == itt:
                return p

    def got_data(self, p):
        task = self.tasks[p.itt]
        offset, ended = p.word(40), p.flags & 1
        assert task.status is None, "data for a command that has ended"
        assert p.word(36) == task.data_sn, "DataSN"
        assert p.flags & 0x78 == 0 and p.ttt == NO_TAG
        assert offset == len(task.data), "data out of order"
        assert not ended or p.flags & FINAL
        task.data += p.data
        task.data_sn += 1
        task.pieces.append((offset, len(p.data), p.flags))
        task.burst += len(p.data)
        assert task.burst <= int(self.agreed["MaxBurstLength"])
        if p.flags & FINAL:
            task.burst = 0
        if ended:
            self.count_status(p)
            assert p.bhs[3] in (GOOD, CONDITION_MET)
            task.in_data = True
            task.finished(p.bhs[3], p.flags, p.word(44))
        else:
            assert p.flags & 6 == 0 and p.bhs[3] == 0 and p.word(44) == 0 and p.stat_sn == 0

    def got_response(self, p):
        self.count_status(p)
        task = self.tasks[p.itt]
        assert task.status is None, "a second status"
        assert p.flags & 0xF9 == FINAL, "flags %02x" % p.flags
        assert p.bhs[2] == 0, "response %02x" % p.bhs[2]
        assert task.burst == 0, "the last Data-In lacks its F"
        assert p.word(36) == (task.data_sn + task.r2t_sn if task.data_sn else 0), "ExpDataSN"
        if p.data:
            length = struct.unpack(">H", p.data[:2])[0]
            assert len(p.data) == 2 + length
            task.sense = Sense(p.data[2:])
        assert (task.sense is not None) == (p.bhs[3] == CHECK_CONDITION)
        task.finished(p.bhs[3], p.flags, p.word(44))

    def got_r2t(self, p):
        task = self.tasks[p.itt]
        offset, length = p.word(40), p.word(44)
        assert p.flags == FINAL and not p.data and p.ttt != NO_TAG
        assert p.bhs[8:16] == task.lun and p.ttt not in task.r2ts
        assert p.word(36) == task.r2t_sn, "R2TSN"
        assert p.stat_sn == self.exp_stat_sn
        assert offset == task.asked, "asked for out of order"
        assert 0 < length <= int(self.agreed["MaxBurstLength"])
        task.asked += length
        task.r2t_sn += 1
        task.r2ts[p.ttt] = offset, length
        assert len(task.r2ts) <= int(self.agreed["MaxOutstandingR2T"])
        if self.answer_r2ts:
            self.answer_r2t(task, p.ttt)

    def got_nop(self, p):
        assert p.flags == FINAL
        if p.itt != NO_TAG:
            assert p.ttt == NO_TAG
            self.count_status(p)
            return
        assert p.stat_sn == self.exp_stat_sn
        if p.ttt == NO_TAG:
            return
        self.pings += 1
        if self.answer_pings:
            b = self.bhs(NOP_OUT | IMMEDIATE, lun=p.bhs[8:16], at20=p.ttt)
            self.send_pdu(b, p.data)

    def got_event(self, p):
        self.count_status(p)
        assert p.flags == FINAL and p.itt == NO_TAG
        self.events.append((p.bhs[36], p))

    def got_answer(self, p):
        self.count_status(p)
        if p.opcode != TEXT_RESPONSE:
            assert p.flags == FINAL and not p.data

    def got_reject(self, p):
        self.count_status(p)
        assert p.flags == FINAL and p.itt == NO_TAG and len(p.data) >= 48
        raise Rejected(p.bhs[2], p.data[:48])

    KINDS = {DATA_IN: got_data, SCSI_RESPONSE: got_response, R2T: got_r2t, NOP_IN: got_nop,
             ASYNC: got_event, TASK_MANAGEMENT_RESPONSE: got_answer, TEXT_RESPONSE: got_answer,
             LOGOUT_RESPONSE: got_answer, REJECT: got_reject}

    # ---- everything that is no command

    def request(self, opcode, answer, immediate=True, data=b"", **how):
        """Sends a request with a tag of its own, and returns the PDU that answers it."""
        itt = self.next_tag()
        self.send_pdu(self.bhs(opcode | (IMMEDIATE if immediate else 0), itt=itt, **how), data)
        if not immediate:
            self.cmd_sn = (self.cmd_sn + 1) % (1 << 32)
        return self.receive_kind(answer, itt)

    def ping(self, data=b"", immediate=True):
        """Returns what comes back."""
        return self.request(NOP_OUT, NOP_IN, immediate, data, at20=NO_TAG).data

    def manage(self, function, lun=None, task=NO_TAG, ref_cmd_sn=0, immediate=True):
        """A task management function; task: a tag. Returns the response."""
        return self.request(TASK_MANAGEMENT, TASK_MANAGEMENT_RESPONSE, immediate, lun=lun,
                            flags=FINAL | function, at20=task,
                            fields=((32, ref_cmd_sn),)).bhs[2]

    def logout(self, reason=0, cid=None, immediate=True):
        """Returns the response; after it the target closes."""
        p = self.request(LOGOUT, LOGOUT_RESPONSE, immediate, lun=0, flags=FINAL | reason,
                         at20=(self.cid if cid is None else cid) << 16)
        self.full = self.full and p.bhs[2] != 0
        return p.bhs[2]

    def text(self, keys, immediate=True, piece=None):
        """Text, which may go on in both directions; returns pairs. piece: bytes in one request."""
        text, answer, ttt, itt = text_of(keys), b"", NO_TAG, self.next_tag()
        piece = piece or self.max_send
        while True:
            now, text = text[:piece], text[piece:]
            b = self.bhs(TEXT | (IMMEDIATE if immediate else 0),
                         FINAL if not text else 0x40, lun=0, itt=itt, at20=ttt)
            self.send_pdu(b, now)
            if not immediate:
                self.cmd_sn = (self.cmd_sn + 1) % (1 << 32)
            p = self.receive_kind(TEXT_RESPONSE, itt)
            answer += p.data
            ttt = p.ttt
            if p.flags == FINAL:
                assert ttt == NO_TAG and not text
                return keys_of(answer)
            assert p.flags & 0x80 == 0 and ttt != NO_TAG
            assert p.flags & 0x40 or not p.data or text

    def targets(self, which="All"):
        """Names and their addresses, by SendTargets."""
        found = []
        for key, value in self.text({"SendTargets": which}):
            if key == "TargetName":
                found.append((value, []))
            else:
                assert key == "TargetAddress", (key, value)
                found[-1][1].append(value)
        return found


def connect(address, target=None, ready=True, initiator=INITIATOR, isid=None, lun=0, **login):
    """A session: what login() has done, and unless it is one of discovery, ready for commands."""
    client = Client(address, initiator, isid, lun)
    try:
        client.login(target, **login)
        if target is not None and ready:
            client.ready()
    except BaseException:
        client.socket.close()
        raise
    return client


def refusal(address, target=None, initiator=INITIATOR, **login):
    """The status of a login, 0 if there is a session."""
    try:
        connect(address, target, False, initiator, **login).close()
    except Refused as e:
        return e.status
    return 0
