#!/usr/bin/python3
"""One call of the server fails while it serves by iSCSI, each in its turn: memory, system calls, the
ring. Whoever is answered is told the truth, and the next initiator does not notice."""

import functools
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import faults
import iscsiraw
import server as servers
import tap
from faults import KINDS, SHARE, Faults, Platterd

KiB, SECTOR = 1 << 10, 512
SIZE = 512 * KiB
FUA = 8
KEY = 0x1234
REGISTER, RESERVE, RELEASE, CLEAR, REGISTER_ANYWAY = 0, 1, 2, 3, 6


def cdb16(opcode, offset, length, byte1=0):
    return struct.pack(">BBQIBB", opcode, byte1, offset // SECTOR, length // SECTOR, 0, 0)


def persistent_out(action, key, new_key):
    """CDB and parameter list; what is registered is kept (APTPL)."""
    kept = action in (REGISTER, REGISTER_ANYWAY)
    return (struct.pack(">BBBHIB", 0x5f, action, 1, 0, 24, 0),
            struct.pack(">QQ4xB3x", key, new_key, kept))


class Talk(faults.Talk):
    """All that an initiator may ask for, once."""

    refusals = iscsiraw.CommandFailed
    ends = (iscsiraw.Closed, iscsiraw.Refused, iscsiraw.Rejected)

    def connect(self, s, **how):
        return iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target, **how)

    def cdb(self, c, what, cdb, entry=None, **how):
        return self.do(what, entry, lambda: c.cdb(cdb, **how).check())

    def write(self, c, offset, length, fua=0, opcode=0x8a):
        entry = self.journal.write(offset, length, bool(fua))
        self.cdb(c, "write", cdb16(opcode, offset, length, fua), entry, dout=entry.data)
        return entry

    def read(self, c):
        r = self.cdb(c, "read", cdb16(0x88, 0, SIZE), din=SIZE)
        if r is not None:
            self.agree(bytes(r.data))

    def read_all(self, s):
        with self.connect(s) as c:
            return bytes(c.cdb(cdb16(0x88, 0, SIZE), din=SIZE).check().data)

    def discover(self, s):
        with iscsiraw.connect(("127.0.0.1", s.iscsi_port)) as c:
            assert [name for name, _ in c.targets()] == [s.target]

    def ask(self, c):
        for cdb, length in ((bytes.fromhex("120000002400"), 36),            # INQUIRY
                            (bytes.fromhex("120183010000"), 256),           # its identifiers
                            (bytes.fromhex("9e10" + "00" * 10 + "00200000"), 32),
                            (bytes.fromhex("a00000000000000002000000"), 512),
                            (bytes.fromhex("1a003f00ff00"), 255)):
            self.cdb(c, "ask", cdb, din=length)
        c.ping(b"there?")
        c.manage(iscsiraw.QUERY_TASK_SET)

    def change(self, c, d):
        first = self.write(c, 0, 4 * KiB)
        before = self.write(c, 4 * KiB, SECTOR, FUA)
        self.write(d, 256 * KiB, 128 * KiB, FUA)            # some of it by R2T
        self.write(d, 16 * KiB, 8 * KiB, opcode=0x8e)       # WRITE AND VERIFY
        if before.answered:
            entry = self.journal.write(4 * KiB, SECTOR)
            self.cdb(c, "compare and write", struct.pack(">BBQ3xBBB", 0x89, 0, 8, 1, 0, 0), entry,
                     dout=before.data + entry.data)
        entry = self.journal.ask("zero", 32 * KiB, 8 * KiB)
        self.cdb(c, "write same", cdb16(0x93, 32 * KiB, 8 * KiB), entry, dout=bytes(SECTOR))
        entry = self.journal.ask("trim", 40 * KiB, 8 * KiB)
        self.cdb(c, "unmap", struct.pack(">BBIBHB", 0x42, 0, 0, 0, 24, 0), entry,
                 dout=struct.pack(">HH4xQI4x", 22, 16, 80, 16))
        self.cdb(c, "lba status", bytes.fromhex("9e12" + "00" * 8 + "000000400000"), din=64)
        self.read(d)
        r = self.cdb(c, "read", cdb16(0x88, 0, SECTOR, FUA), din=SECTOR)
        assert r is None or r.data == first.data[:SECTOR] or not first.answered
        self.cdb(c, "flush", struct.pack(">BBIBHB", 0x35, 0, 0, 0, 0, 0))

    def together(self, c, d):
        """Writes that wait for one another."""
        flying = []
        for n in range(4):
            for client, offset in ((c, 64 * KiB), (d, 128 * KiB)):
                entry = self.journal.write(offset + n * 8 * KiB, 4 * KiB, True)
                tag = client.command(cdb16(0x8a, entry.offset, 4 * KiB, FUA), dout=entry.data)
                flying.append((client, tag, entry))
        for client, tag, entry in flying:
            self.do("together", entry, lambda: client.finish(tag).check())

    def persist(self, c):
        """A registration that outlives the server, a reservation."""
        for action, key, new_key in ((REGISTER_ANYWAY, 0, KEY), (CLEAR, KEY, 0),
                                     (REGISTER_ANYWAY, 0, KEY), (RESERVE, KEY, 0)):
            cdb, parameters = persistent_out(action, key, new_key)
            done = self.cdb(c, "reserve", cdb, dout=parameters)
            keys = self.cdb(c, "keys", struct.pack(">BB5xHB", 0x5e, 0, 64, 0), din=64)
            if done and keys and action == REGISTER_ANYWAY:
                assert struct.pack(">Q", KEY) in keys.data
            if done and action == REGISTER_ANYWAY:
                with open(self.image + ".state/default.lu") as f:
                    saved = json.load(f).get("reservations", "none")
                assert "%016x" % KEY in saved, "answered and not kept: " + saved
        cdb, parameters = persistent_out(CLEAR, KEY, 0)
        self.cdb(c, "reserve", cdb, dout=parameters)

    def talk(self, s):
        self.discover(s)
        with self.connect(s, keys={"HeaderDigest": "CRC32C", "DataDigest": "CRC32C"}) as c, \
                self.connect(s) as d:
            self.ask(c)
            self.persist(c)
            self.cdb(d, "ready", bytes(6))      # what it is told of that
            d.ready()
            c.ready()
            self.change(c, d)
            self.together(c, d)


# What it serves with, and the kinds of calls for which that matters.
WAYS = {
    "": ({"fua": "commit"}, KINDS),
    "_past_the_cache": ({"cache": "none", "fua": "native"}, ["ring"]),
}


def serve(server, kind, options, share):
    image = server.image(SIZE, fill=0xEE)
    talk = Talk(image)
    faults.Run(Faults(server.path("faults")), KINDS[kind],
               lambda: server(image, iscsi=True, **options), talk, talk.check).all(share)


for way, (options, kinds) in WAYS.items():
    for kind in kinds:
        for share, end in (SHARE, ""), (None, "_wherever_it_is"):
            servers.served(functools.partial(serve, kind=kind, options=options, share=share),
                           name="%s%s_that_fails_once_harms_nobody%s" % (kind, way, end),
                           on=[Platterd], slow=bool(end))

tap.main()
