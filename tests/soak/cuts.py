#!/usr/bin/python3
"""Clients that vanish in the middle of what they send: no part of such a write is on the disk,
others are served right all the while, and descriptors and memory return to where they were.

The image has two halves. Writes that are cut go to the first, so no byte of that may ever change.
The second is a neighbour's, with a session of its own: it has a write under way at each cut, and
reads all of it back.
"""

import contextlib
import functools
import os
import random
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import iscsiraw
import nbdraw
import pki
import tap
import usage
from nbdraw import CMD_READ, CMD_WRITE, FUA
from server import PATIENCE, Nbdkit, Platterd, served

KiB, MiB = 1 << 10, 1 << 20
HALF, BLOCK, UNTOUCHED = 2 * MiB, 4 * KiB, 0xEE
LENGTHS = (512, 4 * KiB, 60 * KiB, 300 * KiB, MiB)
TOGETHER = 8            # cuts by one process that is killed

usage.malloc_keeps_little()


@contextlib.contextmanager
def waiting_is_halfway(client):
    """Together those that never read may hold all the memory there is for such: then the next one
    waits with what it sends, longer than it has to."""
    client.socket.settimeout(2 * PATIENCE)
    with contextlib.suppress(TimeoutError):
        yield


# ---- NBD

class Nbd:
    """One that writes, by unix socket, TCP or TLS."""

    def __init__(self, s, rng, tls=None):
        self.rng = rng
        self.client = nbdraw.connect(s.address, structured=False, tls=tls)
        self.socket = self.client.socket

    def write(self, offset, data):
        self.cookie = self.client.send(CMD_WRITE, offset, len(data), FUA, data)

    def written(self):
        self.client.receive().check()

    def read(self, offset, length):
        return self.client.read(offset, length)

    def close(self):
        self.client.close()

    def stop_halfway(self, tls, reads):
        """Somewhere in a write, or in its header. reads: also with answers that are to come."""
        rng, c = self.rng, self.client
        length = rng.choice(LENGTHS)
        if reads and rng.random() < 0.25:
            for _ in range(rng.randrange(1, 5)):
                c.send(CMD_READ, 0, rng.choice(LENGTHS))
        if rng.random() < 0.1:
            head = struct.pack(">IHHQQI", 0x25609513, 0, CMD_WRITE, 1, 0, 512)
            self.socket.sendall(head[:rng.randrange(1, len(head))])
            return
        c.send_head(CMD_WRITE, rng.randrange(HALF - length), length, rng.choice((0, FUA)))
        sent = rng.choice((0, 1, 511, length // 2, length - 1, rng.randrange(length)))
        self.socket.sendall(b"!" * sent)
        if tls and rng.random() < 0.25:                     # and in a record of TLS
            os.write(self.socket.fileno(), b"\x17\x03\x03\x01\x00" + bytes(100))


class OverNbd:
    def __init__(self, server, tcp=False, tls=False):
        self.folder = pki.make(server.path("pki")) if tls else None
        self.how = {"tcp": True} if tcp else {}
        if tls:
            self.how["tls"] = self.folder + "/server"
            self.context = nbdraw.tls_context(self.folder + "/client")
        # nbdkit 1.32 itself may abort when it has answers for a client that is gone.
        self.reads = server.front_end is not Nbdkit

    def connect(self, s, rng):
        return Nbd(s, rng, self.folder and self.context)

    def halfway(self, s, rng):
        """A client in the midst of something; what it sends no more is missing."""
        client = self.connect(s, rng)
        with waiting_is_halfway(client):
            client.stop_halfway(self.folder, self.reads)
        return client.socket


# ---- iSCSI

class Iscsi:
    def __init__(self, s, rng, isid=None):
        self.rng = rng
        self.client = iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target, isid=isid)
        self.socket = self.client.socket

    @staticmethod
    def cdb(opcode, offset, length):
        return struct.pack(">BBIBHB", opcode, 8, offset // 512, 0, length // 512, 0)

    def write(self, offset, data):
        self.itt = self.client.command(self.cdb(0x2A, offset, len(data)), dout=data)

    def written(self):
        self.client.finish(self.itt).check()

    def read(self, offset, length):
        return bytes(self.client.cdb(self.cdb(0x28, offset, length), length).check().data)

    def close(self):
        self.client.close()

    def send_part(self, bhs, data, sent=None):
        """Of a PDU, up to somewhere in its data or header."""
        bhs = bytearray(bhs)
        bhs[5:8] = len(data).to_bytes(3, "big")
        pdu = bytes(bhs) + data
        self.client.send_bytes(pdu[:self.rng.randrange(1, len(pdu)) if sent is None else sent])

    def stop_halfway(self):
        """Somewhere in a command, its immediate or unsolicited data, or data asked for by R2T."""
        rng, c = self.rng, self.client
        length = rng.choice(LENGTHS)
        offset = rng.randrange((HALF - length) // 512 + 1) * 512
        data, cdb = b"!" * length, self.cdb(0x2A, offset, length)
        for _ in range(rng.choice((0, 0, 0, 1, 4))):        # answers to come
            c.command(self.cdb(0x28, 0, HALF // 2), HALF // 2)
        kind = rng.choice(("immediate", "unsolicited", "asked"))
        c.answer_r2ts = False
        if kind == "immediate":
            first = min(length, 64 * KiB)
            bhs = c.bhs(iscsiraw.SCSI_COMMAND, 0xA1, itt=c.next_tag(), at20=length)
            bhs[32:42] = cdb
            self.send_part(bhs, data[:first])
        elif kind == "unsolicited" and length > 512:
            # Its last PDU may well be there: then the write lacks what is beyond the burst, or
            # the second half.
            burst = min(length, 64 * KiB) // 2
            itt = c.command(cdb, dout=data, first=512, unsolicited=burst - 512)
            bhs = c.bhs(iscsiraw.DATA_OUT, 0, itt=itt, cmd_sn=0, fields=((36, 1), (40, burst)))
            self.send_part(bhs, data[:4 * KiB])
        else:
            itt = c.command(cdb, dout=data, first=0, unsolicited=0)
            while not c.tasks[itt].r2ts:
                c.receive()
            (ttt, (at, asked)), = c.tasks[itt].r2ts.items()
            whole = rng.choice((0, asked // 2))
            if whole:
                c.data_out(itt, at, data[at:at + whole], ttt, final=False)
            bhs = c.bhs(iscsiraw.DATA_OUT, iscsiraw.FINAL, itt=itt, at20=ttt, cmd_sn=0,
                        fields=((36, 1 if whole else 0), (40, at + whole)))
            self.send_part(bhs, data[at + whole:at + asked])


class OverIscsi:
    def __init__(self, server):
        self.how = {"iscsi": True}

    def connect(self, s, rng):
        return Iscsi(s, rng)

    def halfway(self, s, rng):
        if rng.random() < 0.25:
            return self.in_login(s, rng)
        client = self.connect(s, rng)
        with waiting_is_halfway(client):
            client.stop_halfway()
        return client.socket

    @staticmethod
    def in_login(s, rng):
        c = iscsiraw.Client(("127.0.0.1", s.iscsi_port))
        keys = {"InitiatorName": c.initiator, "TargetName": s.target, "AuthMethod": "None"}
        if rng.random() < 0.5:
            c.login_request(iscsiraw.SECURITY, iscsiraw.OPERATIONAL, keys)
            keys = iscsiraw.WISHES
        text = iscsiraw.text_of(keys)
        bhs = c.bhs(iscsiraw.LOGIN | iscsiraw.IMMEDIATE, 0x87, itt=c.login_tag)
        bhs[5:8] = len(text).to_bytes(3, "big")
        bhs[8:14] = c.isid
        c.send_bytes((bytes(bhs) + text)[:rng.randrange(48 + len(text))])
        return c.socket


# ---- endings

def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def end_in_order(s):
    s.close()


def end_by_half(s):
    """It sends no more, but listens."""
    half = socket.socket(fileno=os.dup(s.fileno()))         # of TLS, what is below it
    s.close()
    half.settimeout(30 * PATIENCE)
    with half, contextlib.suppress(ConnectionError):
        half.shutdown(socket.SHUT_WR)
        while half.recv(65536):
            pass


def be_killed(way, s, rng):
    """A process with some clients of that kind."""
    seed = rng.getrandbits(32)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        clients = []
        with contextlib.suppress(BaseException):
            own = random.Random(seed)
            clients += [way.halfway(s, own) for _ in range(TOGETHER)]
            os.write(tell, b"!")
            signal.pause()
        os._exit(1)
    os.close(tell)
    try:
        assert os.read(told, 1) == b"!", "the clients could not connect"
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# ---- what is whole

def compare_and_write_is_whole(server, count):
    """The next session is of the same port, so it begins when all of this one has ended."""
    rng, there, done = random.Random(tap.seed()), bytes(8 * 512), 0
    isid = b"\x80soak\0"
    with server(driver="fault", over="memory", size="1M", fault="delay", delay="1ms",
                repeat="forever", iscsi=True) as s:
        for _ in range(count):
            port = Iscsi(s, rng, isid)
            new, c, sent = rng.randbytes(512) * 8, port.client, rng.random() < 0.7
            if sent:
                c.command(struct.pack(">BBQ3xBBB", 0x89, 0, 0, 8, 0, 0), dout=there + new)
            else:
                bhs = c.bhs(iscsiraw.SCSI_COMMAND, 0xA1, itt=c.next_tag(), at20=2 * len(new))
                bhs[32:48] = struct.pack(">BBQ3xBBB", 0x89, 0, 0, 8, 0, 0)
                port.send_part(bhs, there + new)
            time.sleep(rng.choice((0, 0.001, 0.002, 0.004)))
            rng.choice((reset, end_in_order))(port.socket)
            port = Iscsi(s, rng, isid)
            seen = port.read(0, len(new))
            port.close()
            assert seen in ((there, new) if sent else (there,)), "sent: %s" % sent
            done += seen == new
            there = seen
    print("%d of %d were done" % (done, count))


# ---- the neighbour

class Neighbour:
    """Its writes are under way while others vanish, and are what it reads."""

    def __init__(self, way, s, rng):
        self.way, self.server, self.rng = way, s, rng
        self.bytes = bytearray([UNTOUCHED]) * HALF

    def come(self):
        self.client = self.way.connect(self.server, self.rng)

    def leave(self):
        for at in range(0, HALF, MiB):
            assert self.client.read(HALF + at, MiB) == self.bytes[at:at + MiB]
        self.client.close()

    def __enter__(self):
        self.at, self.data = self.rng.randrange(HALF // BLOCK) * BLOCK, self.rng.randbytes(BLOCK)
        self.client.write(HALF + self.at, self.data)

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        self.client.written()
        self.bytes[self.at:self.at + BLOCK] = self.data
        assert self.client.read(HALF + self.at, BLOCK) == self.data


# ---- cases

def cut(way, s, neighbour, rng, count):
    """Returns how many clients have vanished."""
    done = 0
    neighbour.come()
    while done < count:
        with neighbour:
            if done == 0 or rng.random() < 0.01:
                be_killed(way, s, rng)
                done += TOGETHER
            else:
                rng.choice((reset, end_in_order, end_by_half))(way.halfway(s, rng))
                done += 1
    neighbour.leave()
    return done


def vanish(over, count, server):
    """Of `count` clients the first quarter is the warm-up."""
    way, rng = over(server), random.Random(tap.seed())
    image = server.image(2 * HALF, fill=UNTOUCHED)
    with server(image, **way.how) as s:
        neighbour = Neighbour(way, s, rng)
        done = cut(way, s, neighbour, rng, count // 4)
        before = usage.settled(s)
        done += cut(way, s, neighbour, rng, count - done)
        usage.returns(s, before)
        print("%d cuts; before and after:" % done, before, usage.usage(s))
    with open(image, "rb") as f:
        assert f.read(HALF) == bytes([UNTOUCHED]) * HALF, "a part of a cut write is on the disk"
        assert f.read() == neighbour.bytes


on_platterd = functools.partial(served, on=[Platterd])
WAYS = {
    "": (served, OverNbd),
    "_by_tcp": (on_platterd, functools.partial(OverNbd, tcp=True)),
    "_by_tls": (on_platterd, functools.partial(OverNbd, tcp=True, tls=True)),
    "_by_iscsi": (on_platterd, OverIscsi),
}
EACH, OF_TEN_THOUSAND = 400, 2000       # in five ways

for by, (register, over) in WAYS.items():
    for who, count in ("clients", EACH), ("ten_thousand_clients", OF_TEN_THOUSAND):
        register(functools.partial(vanish, over, count), slow=count > EACH,
                 name=who + "_that_vanish_leave_nothing_behind" + by)


@on_platterd
def a_compare_and_write_that_is_cut_is_done_whole_or_not_at_all(server):
    compare_and_write_is_whole(server, 150)


tap.main()
