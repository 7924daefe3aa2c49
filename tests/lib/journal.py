"""journal - what a disk owes for each block, by what its clients were told.

    journal = Journal(64, b"\\xee" * BLOCK)
    data = journal.next(7)          # contents that no other write has
    journal.wrote(7, data)          # before it is sent
    journal.durable(7, data)        # answered, and with FUA
    ...
    journal.check(image, 512)       # after a crash
"""

import struct

BLOCK = 4096


class Journal:
    """owed: the newest contents that were acknowledged as durable; later: what was written
    after that and may be there, too. A block on the disk is one of these; where the power
    was cut, each of its sectors is."""

    def __init__(self, blocks, content):
        self.owed = [content] * blocks
        self.later = [[] for _ in range(blocks)]
        self.number = 0

    @classmethod
    def of_image(cls, path, blocks):
        """What is there is owed."""
        journal = cls(blocks, None)
        with open(path, "rb") as f:
            journal.owed = [f.read(BLOCK) for _ in range(blocks)]
        return journal

    def merge(self, others):
        """One of several writers that share the blocks round robin: block b is that of b % n."""
        for block in range(len(self.owed)):
            other = others[block % len(others)]
            self.owed[block], self.later[block] = other.owed[block], other.later[block]
        return self

    def next(self, block):
        """Contents that no other write has."""
        self.number += 1
        return struct.pack("<II", block, self.number) * (BLOCK // 8)

    def wrote(self, block, data):
        self.later[block].append(data)

    def durable(self, block, data):
        newest = max(n for n, d in enumerate(self.later[block]) if d == data)
        self.owed[block], self.later[block] = data, self.later[block][newest + 1:]

    def flushed(self):
        for block, later in enumerate(self.later):
            if later:
                self.durable(block, later[-1])

    def check(self, path, unit):
        """Returns how many blocks lost what was written last, and was not promised."""
        lost = 0
        with open(path, "rb") as f:
            for block, owed in enumerate(self.owed):
                got = f.read(BLOCK)
                for at in range(0, BLOCK, unit):
                    allowed = {c[at:at + unit] for c in (owed, *self.later[block])}
                    assert got[at:at + unit] in allowed, "block %d at %d: %r, promised %r" % (
                        block, at, got[at:at + 8], owed[at:at + 8])
                lost += got != (self.later[block] or [owed])[-1]
        return lost
