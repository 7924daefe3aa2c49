"""workload - clients of one disk that ask for everything at once, until it ends.

    journal, r = Journal(content, trim=4096), random.Random(seed)
    clients = [Nbd(nbdraw.connect(address)), Scsi(iscsiraw.connect(...))]
    crowd = Crowd(clients, journal, r, depth=4)
    crowd.run()                     # until a request fails, or there is nobody who answers

What is sent, and in which order, follows from r alone, whatever the answers are and whenever
they come. Before each step `interrupt` is called, which may kill the server.
"""

import struct

import iscsiraw
import nbdraw
from journal import SECTOR, SETTLE, TRIM, WRITE, ZERO

# What ends a connection under a client.
GONE = (nbdraw.Closed, iscsiraw.Closed, ConnectionError)

DONE, FAILED, REFUSED = range(3)    # REFUSED: and nothing was changed

LENGTH_MAX = 24 * SECTOR


def mixed(r, choices):
    """One of {what: weight}."""
    return r.choices(list(choices), choices.values())[0]


class Client:
    """A connection and what is in flight on it."""

    def __init__(self, raw):
        self.raw = raw
        self.flying = {}            # tag -> Entry

    def ask(self, journal, r, place, newest):
        """Asks for something at place() = (offset, length). newest: by sector, what was asked for
        last, where that is all of it."""
        self.kind = mixed(r, self.KINDS)
        entry = self.make(journal, r, *place(self.UNITS), newest)
        self.flying[self.send(entry)] = entry

    def settle(self, journal):
        """Makes all stable, while nothing is in flight; returns what became of that."""
        self.kind, entry = self.SETTLE, journal.settle()
        self.flying[self.send(entry)] = entry
        return self.answer(journal)[1]

    def answer(self, journal):
        """Takes an answer; returns the entry and what became of it."""
        tag, outcome = self.receive()
        entry = self.flying.pop(tag)
        if outcome == DONE:
            journal.answered(entry)
        elif outcome == REFUSED:
            journal.refused(entry)
        return entry, outcome


class Nbd(Client):
    UNITS = (1, SECTOR, SECTOR, 4096)   # what ranges are whole multiples of
    SETTLE = SETTLE
    KINDS = {WRITE: 9, ZERO: 2, TRIM: 1, SETTLE: 3}
    COMMANDS = {WRITE: nbdraw.CMD_WRITE, ZERO: nbdraw.CMD_WRITE_ZEROES, TRIM: nbdraw.CMD_TRIM,
                SETTLE: nbdraw.CMD_FLUSH}

    def make(self, journal, r, offset, length, newest):
        fua, self.flags = r.random() < 0.35, r.choice((0, nbdraw.NO_HOLE))
        if self.kind == SETTLE:
            return journal.settle()
        return journal.ask(self.kind, offset, length, fua)

    def send(self, entry):
        place = (0, 0) if entry.kind == SETTLE else (entry.offset, entry.length)
        flags = (nbdraw.FUA if entry.fua else 0) | (self.flags if entry.kind == ZERO else 0)
        return self.raw.send(self.COMMANDS[entry.kind], *place, flags, entry.data or b"")

    def receive(self):
        reply = self.raw.receive()
        return reply.cookie, FAILED if reply.error else DONE

    def read(self, length):
        return self.raw.read(0, length)


# CDBs by what they need: LBA, blocks and the bits of byte 1
FUA = 0x08
SCSI_COMMANDS = {
    "WRITE(10)": lambda lba, n, bits: struct.pack(">BBIBHB", 0x2a, bits, lba, 0, n, 0),
    "WRITE(16)": lambda lba, n, bits: struct.pack(">BBQIBB", 0x8a, bits, lba, n, 0, 0),
    "WRITE AND VERIFY": lambda lba, n, _: struct.pack(">BBIBHB", 0x2e, 0, lba, 0, n, 0),
    "COMPARE AND WRITE": lambda lba, _, bits: struct.pack(">BBQ3xBBB", 0x89, bits, lba, 1, 0, 0),
    "WRITE SAME": lambda lba, n, _: struct.pack(">BBQIBB", 0x93, 0, lba, n, 0, 0),
    "WRITE SAME with UNMAP": lambda lba, n, _: struct.pack(">BBQIBB", 0x93, 8, lba, n, 0, 0),
    "UNMAP": lambda *_: struct.pack(">BBIBHB", 0x42, 0, 0, 0, 24, 0),
    "SYNCHRONIZE CACHE": lambda lba, n, _: struct.pack(">BBIBHB", 0x35, 0, lba, 0, n, 0),
    "READ with FUA": lambda lba, n, _: struct.pack(">BBQIBB", 0x88, FUA, lba, n, 0, 0),
}
ZEROING = ("WRITE SAME", "WRITE SAME with UNMAP", "UNMAP")


class Scsi(Client):
    UNITS = (SECTOR, SECTOR, 4096)
    SETTLE = "SYNCHRONIZE CACHE"
    KINDS = {"WRITE(10)": 4, "WRITE(16)": 3, "WRITE AND VERIFY": 1, "COMPARE AND WRITE": 2,
             "WRITE SAME": 1, "WRITE SAME with UNMAP": 1, "UNMAP": 1, "SYNCHRONIZE CACHE": 2,
             "READ with FUA": 1}

    def make(self, journal, r, offset, length, newest):
        fua, whole = r.random() < 0.35, r.random() < 0.5
        if self.kind == "COMPARE AND WRITE":
            length, self.compared = SECTOR, newest.get(offset // SECTOR)
            if self.compared is None:
                self.kind = "WRITE(16)"
        if self.kind == "SYNCHRONIZE CACHE":
            return journal.settle() if whole else journal.settle(offset, length)
        if self.kind == "READ with FUA":
            return journal.settle(offset, length)
        if self.kind in ZEROING:
            return journal.ask(ZERO, offset, length)
        return journal.write(offset, length, fua or self.kind == "WRITE AND VERIFY")

    def send(self, entry):
        lba, blocks = entry.offset // SECTOR, entry.length // SECTOR
        out = entry.data or b""
        if self.kind == "COMPARE AND WRITE":
            out = self.compared + out
        elif self.kind.startswith("WRITE SAME"):
            out = bytes(SECTOR)
        elif self.kind == "UNMAP":
            out = struct.pack(">HH4xQI4x", 22, 16, lba, blocks)
        return self.raw.command(SCSI_COMMANDS[self.kind](lba, blocks, FUA if entry.fua else 0),
                                din=entry.length if self.kind == "READ with FUA" else 0, dout=out)

    def receive(self):
        while True:
            for tag in self.flying:
                if self.raw.tasks[tag].status is not None:
                    task = self.raw.finish(tag)
                    miscompared = task.condition == "e/1d00"
                    return tag, REFUSED if miscompared else FAILED if task.condition else DONE
            self.raw.receive()

    def read(self, length):
        return bytes(self.raw.cdb(struct.pack(">BBQIBB", 0x88, 0, 0, length // SECTOR, 0, 0),
                                  din=length).check().data)


class Crowd:
    def __init__(self, clients, journal, r, depth=4, interrupt=lambda: None):
        self.clients, self.journal, self.r, self.depth = clients, journal, r, depth
        self.interrupt = interrupt
        self.newest = {n: journal.content[n * SECTOR:(n + 1) * SECTOR]
                       for n in range(len(journal.content) // SECTOR)}
        self.failed = False

    def place(self, units):
        """Many meet in few places: edges in the middle of each other and of blocks."""
        r, size = self.r, len(self.journal.content)
        unit = r.choice(units)
        length = r.randrange(1, r.choice((2 * SECTOR, LENGTH_MAX)))
        length = -(-length // unit) * unit
        offset = r.randrange(r.choice((size, 16 << 10))) // unit * unit
        return offset, min(length, size - offset)

    def remember(self, entry):
        if entry.kind == SETTLE:
            return
        for sector in range(entry.offset // SECTOR, -(-entry.end // SECTOR)):
            start, end = sector * SECTOR, (sector + 1) * SECTOR
            whole = entry.firm and entry.offset <= start and end <= entry.end
            self.newest[sector] = entry.bytes(start, end) if whole else None

    def step(self):
        client = self.r.choice(self.clients)
        if len(client.flying) < self.depth and (not client.flying or self.r.random() < 0.6):
            client.ask(self.journal, self.r, self.place, self.newest)
            self.remember(self.journal.entries[-1])
        else:
            self.take(client)

    def take(self, client):
        _, outcome = client.answer(self.journal)
        self.failed |= outcome == FAILED

    def run(self, steps):
        """Returns whether a request failed, or the server is gone. Then all are answered that
        will be."""
        try:
            for _ in range(steps):
                if self.failed:
                    break
                self.interrupt()
                self.step()
        except GONE:
            self.failed = True
        for client in self.clients:
            try:
                while client.flying:
                    self.take(client)
            except GONE:
                self.failed = True
        return self.failed
