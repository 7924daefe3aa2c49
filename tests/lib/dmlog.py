"""dmlog - what Linux's dm-log-writes recorded: what a disk was told to keep, in order.

    output = guest.run(guest.recorded(guest.NULL_BLK, log),     # log: a file of this machine
                       "serve $recorded cache=none", "send write+fua:0:4096",
                       "record_mark here", "unserve", "record_end")
    replay = dmlog.Replay(64 << 20)
    for entry in dmlog.entries(log):
        if entry.mark == "here":
            assert replay.image[:4096] == ...
        replay.step(entry)

The recorder lies over the disk, and over a delay, so that whoever answers too early is seen to.
It records a write when that is durable: one with FUA when it is complete, others when a flush is
complete that began after they were. So the entries before a mark are what was on the medium when
the mark was made, whatever happened to the power then. `record_end` makes the record whole: until
all is written, it is not in order. Broken says that there is no whole record, which is no fault of
whoever was recorded.

Where the record is not the medium:
- A write without FUA is complete, a FUA write to the same sectors follows, then a flush. The former
  is recorded last, although it cannot undo the latter.
- A write is recorded with the first flush that comes to the recorder after it. On its way to the
  disk a later flush may overtake that one, and be complete while the write is not yet on record. So
  whoever is recorded must have one flush under way at a time, as an export has.

Source: Linux, Documentation/admin-guide/device-mapper/log-writes.rst.
"""

import mmap
import struct
from typing import NamedTuple

FLUSH, FUA, DISCARD, MARK, METADATA = 1, 2, 4, 8, 16

END = "the-end"         # record_end's mark
REMOVED = "dm-log-writes-end"       # the recorder's own, when it goes

_MAGIC = 0x6A736677736872
_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")


class Broken(Exception):
    """There is no record, or not all of it."""


class Entry(NamedTuple):
    number: int
    flags: int
    offset: int         # bytes
    length: int         # bytes: 0 for a flush without data, and for a mark
    data: memoryview    # length bytes; empty for a discard
    mark: str           # None: no mark


def entries(path):
    """Yields the entries up to record_end."""
    with open(path, "rb") as file:
        log = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    magic, version, count, unit = _SUPER.unpack_from(log)
    if (magic, version) != (_MAGIC, 1):
        raise Broken("no record of dm-log-writes")
    at = unit
    for number in range(count):
        sector, sectors, flags, inline = _ENTRY.unpack_from(log, at)
        mark = None
        if flags & MARK:
            mark = bytes(log[at + _ENTRY.size:at + _ENTRY.size + inline]).decode()
        if mark == END:
            break
        at += unit
        length = sectors * unit
        data = log[at:at + length * (not flags & DISCARD)]
        at += len(data)
        yield Entry(number, flags, sector * unit, length, data, mark)
    else:
        raise Broken(f"a record of {count} entries without an end")


class Replay:
    """image: the disk as it would be after a power cut behind the entries so far. It starts with
    zeroes, or as the bytearray or the map of a file that is given."""

    def __init__(self, image):
        self.image = bytearray(image) if isinstance(image, int) else image

    def step(self, entry):
        end = entry.offset + entry.length
        if entry.flags & DISCARD:
            self.image[entry.offset:end] = bytes(entry.length)      # as these disks do
        elif entry.length:
            self.image[entry.offset:end] = entry.data
