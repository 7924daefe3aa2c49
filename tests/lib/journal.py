"""journal - what a disk owes its clients, by what they asked for and were told when.

    journal = Journal(bytes(1 << 16))           # what is on the disk
    entry = journal.write(512, 4096, fua=True)  # just before it is sent; entry.data is to be sent
    journal.answered(entry)                     # just after the answer
    flush = journal.settle()                    # FLUSH; with a range: what makes that range stable
    ...
    journal.check(image)                        # after a crash: what is on the disk then

Any number of requests may be in flight, on any ranges. One was there before another if it was
answered before the other was asked for; of others nobody knows. So each byte may be what any
request wrote or what was there at first, but nothing that was answered before something durable
was asked for, which a power cut must not bring back. A request without an answer may have been
carried out or not. What a disk writes whole comes from one request: no byte is of another
origin, and no sector is half of one.
"""

import struct
from itertools import count

SECTOR = 512
WRITE, ZERO, TRIM, SETTLE = "write", "zero", "trim", "settle"


def contents(number, offset, length):
    """What no other request writes, and nowhere else."""
    first, last = offset // SECTOR, (offset + length - 1) // SECTOR
    whole = b"".join(struct.pack("<II", sector, number) * (SECTOR // 8)
                     for sector in range(first, last + 1))
    return whole[offset % SECTOR:][:length]


class Entry:
    """A request. asked, answered: moments; answered is None until then. firm: its contents are
    what is read afterwards (a trim may be left out)."""

    def __init__(self, kind, offset, length, fua, number):
        self.kind, self.offset, self.end, self.fua = kind, offset, offset + length, fua
        self.number, self.asked, self.answered = number, None, None
        self.firm = kind != TRIM
        self.data = contents(number, offset, length) if kind == WRITE else None

    length = property(lambda self: self.end - self.offset)

    def bytes(self, start, end):
        """What it leaves at a range inside its own."""
        return self.data[start - self.offset:end - self.offset] if self.data else bytes(end - start)

    def __str__(self):
        return "%s%s [%d, %d) number %d, asked for at %s, %s" % (
            self.kind, " FUA" if self.fua else "", self.offset, self.end, self.number, self.asked,
            "answered at %d" % self.answered if self.answered else "not answered")


class Journal:
    """trim: trims of so many bytes, aligned, are known to leave zeroes; 0: they never are."""

    def __init__(self, content, trim=0):
        self.content, self.trim_unit = bytes(content), trim
        self.entries = []
        self.clock, self.numbers = count(1), count(1)

    # ---- what is asked and answered

    def ask(self, kind, offset, length, fua=False):
        entry = Entry(kind, offset, length, fua, next(self.numbers))
        if kind == TRIM and self.trim_unit:
            entry.firm = offset % self.trim_unit == entry.end % self.trim_unit == 0
        entry.asked = next(self.clock)
        self.entries.append(entry)
        return entry

    def write(self, offset, length, fua=False):
        return self.ask(WRITE, offset, length, fua)

    def settle(self, offset=0, length=None):
        """What was answered before, in this range, is durable once this is answered."""
        return self.ask(SETTLE, offset, len(self.content) - offset if length is None else length)

    def answered(self, entry):
        entry.answered = next(self.clock)

    def refused(self, entry):
        """It is certain that nothing was done."""
        self.entries.remove(entry)

    # ---- what is owed

    @staticmethod
    def allowed(covering):
        """Of requests that cover a range, those whose contents may be there after a crash; None
        stands for what was there at first."""
        settled = max((e.asked for e in covering if e.kind == SETTLE and e.answered), default=0)
        since = 0       # the last moment at which something was asked for that has to be there
        changes = [e for e in covering if e.kind != SETTLE]
        for e in changes:
            if e.answered and e.firm and (e.fua or e.answered < settled):
                since = max(since, e.asked)
        return [e for e in changes if e.answered is None or e.answered > since] + [None] * (not since)

    def ranges(self):
        """Every range that is one to all requests, within a sector, and the requests that cover
        it."""
        size, begins, ends = len(self.content), {}, {}
        edges = {*range(0, size + 1, SECTOR)}
        for e in self.entries:
            begins.setdefault(e.offset, []).append(e)
            ends.setdefault(e.end, []).append(e)
        edges = sorted(edges | set(begins) | set(ends))
        covering = {}
        for start, end in zip(edges, edges[1:]):
            for e in ends.get(start, ()):
                covering.pop(e.number, None)
            for e in begins.get(start, ()):
                if e.end > start:
                    covering[e.number] = e
            yield start, end, covering.values()

    def check(self, image):
        """Returns how many ranges lost what was written to them last, and was not promised."""
        assert len(image) == len(self.content), "%d bytes" % len(image)
        lost = 0
        for start, end, covering in self.ranges():
            got = image[start:end]
            if not covering:
                assert got == self.content[start:end], "never written, at %d: %r" % (start, got[:8])
                continue
            newest = None
            for e in covering:
                if e.kind != SETTLE and e.answered and (not newest or e.answered > newest.answered):
                    newest = e
            if newest and got == newest.bytes(start, end):
                continue        # also what is allowed, as nothing durable came after it
            allowed = self.allowed(covering)
            choices = [e.bytes(start, end) if e else self.content[start:end] for e in allowed]
            assert got in choices, self.complaint(start, end, got, covering, allowed)
            lost += newest is not None
        return lost

    def complaint(self, start, end, got, covering, allowed):
        return "bytes %d to %d begin with %s, which is not allowed any more; of\n  %s\nmay be there:\n  %s" % (
            start, end, got[:16].hex(), "\n  ".join(map(str, covering)),
            "\n  ".join("number %d" % e.number if e else "what was there at first" for e in allowed))
