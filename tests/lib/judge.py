"""judge - did every acknowledgement keep its word? Judged by what the disk was told to keep.

    for verdict in judge.judge(log, final):
        assert verdict.lost == [] and verdict.promises >= 1000

log: the record (see dmlog) of the disk under a server that tests/guest/witness.c worked with;
final: the disk's content after that. There may be several witnesses one after another, each with
a part of the disk of its own; the verdicts are in their order.

A promise is an acknowledgement with FUA, or that of a flush. At the mark that the witness made
for it, everything it owes has to be on record:

- FUA: what was written or zeroed, in each of its sectors.
- flush: each write and zero that had been acknowledged before it was sent, on any connection.
- a trim may leave the old content. But once zeroes were read after it was durable, the medium had
  to have them by then: a power cut must not bring the old content back.

Besides, no entry of the record may bring older content back, but for the recorder's own reason
(see dmlog), or hold what nobody wrote there. And at the end, when all has been flushed, each sector
of the disk holds the last that was acknowledged for it.
"""

import struct

import dmlog

SECTOR = 512
STAMP = 0x57495453
_STAMP = struct.Struct(">IIII")
_ZEROES = bytes(SECTOR)


class Verdict:
    def __init__(self):
        self.promises = 0
        self.lost = []      # sentences


class Area:
    """Sectors that are written together, by one request at a time."""

    def __init__(self, first, verdict):
        self.first = first
        self.verdict = verdict  # on its witness
        self.kinds = {0: "z"}   # w, z or t by number, as the marks tell: of all that will ever be
        self.acked = 0

    def zeroes(self):
        """The newest that zeroes can mean, which carry no number."""
        return next(n for n in range(self.acked + 1, -1, -1) if self.kinds.get(n) in ("z", "t"))

    def first_zeroes(self, least, newest):
        """The oldest, from that number on."""
        return next(n for n in range(least, newest + 1) if self.kinds.get(n) in ("z", "t"))


class Sector:
    """What the medium holds: its number, and whether that came with FUA. Of zeroes the number is
    from `least` to `newest`: those of an old one may be written once more with their page, when a
    newer one is under way already."""

    def __init__(self, area):
        self.area = area
        self.least, self.newest, self.fua = 0, 0, False


class Judge:
    def __init__(self, entries):
        self.verdicts = [Verdict()]     # of which the last is on nobody
        self.sectors = {}
        self.areas = {}
        self.marks = 0          # of this witness
        self.pending = []       # (mark, area, sectors, number) that no promise has covered yet
        self.trimmed = {}       # by area: for each sector whether it was durable
        for mark in (e.mark for e in entries if e.mark):
            self.learn(*mark.split(":"))
        self.current = iter(self.verdicts)
        self.verdict = next(self.current)

    def learn(self, kind, first=None, sectors=None, number=None, *_):
        if kind == "whole":
            self.verdicts.append(Verdict())
        elif kind in "wWzZtT":
            first = int(first)
            if first not in self.areas:
                area = self.areas[first] = Area(first, self.verdicts[-1])
                for sector in range(first, first + int(sectors)):
                    self.sectors[sector] = Sector(area)
            self.areas[first].kinds[int(number)] = kind.lower()

    # -- what is written

    def entry(self, entry):
        first, data = entry.offset // SECTOR, entry.data
        for i in range(entry.length // SECTOR):
            sector = self.sectors.get(first + i)
            if sector:
                content = bytes(data[i * SECTOR:(i + 1) * SECTOR]) or _ZEROES
                self.written(first + i, sector, content, bool(entry.flags & dmlog.FUA))

    def written(self, number, sector, content, fua):
        version = self.version(number, sector, content)
        lost = sector.area.verdict.lost.append
        if version is None:
            lost(f"sector {number}: what nobody wrote there: {content[:16].hex()}")
        elif version >= sector.least:
            sector.fua = fua or (sector.fua and version == sector.newest)
            sector.least = (sector.area.first_zeroes(sector.least, version)
                            if content == _ZEROES else version)
            sector.newest = version
        elif fua or not sector.fua:
            lost(f"sector {number}: {version} came back over {sector.newest}")

    def version(self, number, sector, content):
        """None: it is of no write to there, or of a mixture."""
        if content == _ZEROES:
            return sector.area.zeroes()
        stamp, place, version, inverse = _STAMP.unpack_from(content)
        if (stamp == STAMP and place == number and version ^ inverse == 0xFFFFFFFF
                and content == content[:_STAMP.size] * (SECTOR // _STAMP.size)
                and sector.area.kinds.get(version) == "w" and version <= sector.area.acked + 1):
            return version
        return None

    # -- what is promised

    def mark(self, kind, *words):
        if kind == "whole":
            self.marks, self.pending = 0, []
            self.verdict = next(self.current)
            return
        if kind == "f":
            self.flushed(int(words[0]))
        elif kind == "r":
            self.was_read(self.areas[int(words[0])], words[3])
        else:
            self.acknowledged(kind, *map(int, words))
        self.marks += 1

    def acknowledged(self, kind, first, sectors, number):
        area = self.areas[first]
        area.acked = number
        if kind.isupper():
            self.verdict.promises += 1
            self.owed("FUA", area, sectors, number)
        else:
            self.pending.append((self.marks, area, sectors, number))

    def flushed(self, before):
        self.verdict.promises += 1
        while self.pending and self.pending[0][0] < before:
            self.owed("flush", *self.pending.pop(0)[1:])

    def owed(self, why, area, sectors, number):
        there = [self.sectors[s].newest >= number for s in range(area.first, area.first + sectors)]
        if area.kinds[number] == "t":
            self.trimmed[area.first] = there
        elif not all(there):
            area.verdict.lost.append(f"{why}: {area.kinds[number]} {number} of sector "
                                     f"{area.first}: {sum(there)} of {sectors} on record")

    def was_read(self, area, zeroes):
        for i, there in enumerate(self.trimmed.pop(area.first)):
            newest = self.sectors[area.first + i].newest
            if zeroes[i] == "1" and not there and area.kinds[newest] == "w":
                area.verdict.lost.append(f"t {area.acked} of sector {area.first + i}: "
                                         f"read as zeroes, on record is {newest}")

    # -- the end

    def compare(self, disk):
        for number, sector in self.sectors.items():
            content = disk[number * SECTOR:(number + 1) * SECTOR]
            if content not in self.may_hold(number, sector.area):
                sector.area.verdict.lost.append(
                    f"sector {number}, at the end: not {sector.area.acked} "
                    f"but {content[:16].hex()}")

    @staticmethod
    def may_hold(number, area):
        last = area.acked
        while area.kinds[last] == "t":
            yield _ZEROES
            last -= 1
        if area.kinds[last] == "w":
            yield _STAMP.pack(STAMP, number, last, last ^ 0xFFFFFFFF) * (SECTOR // _STAMP.size)
        else:
            yield _ZEROES


def judge(log, final, start=0):
    """start: where on the disk the witnesses' part of it begins, that of a file say; bytes."""
    court = Judge(dmlog.entries(log))
    for entry in dmlog.entries(log):
        if entry.mark:
            court.mark(*entry.mark.split(":"))
        else:
            court.entry(entry._replace(offset=entry.offset - start))
    if court.marks:
        raise dmlog.Broken("a witness did not come to its end")
    with open(final, "rb") as file:
        court.compare(file.read())
    return court.verdicts[:-1]
