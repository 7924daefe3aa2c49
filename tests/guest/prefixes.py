#!/usr/bin/python3
# takes minutes
"""A disk is recorded below the server, and then looked at as it was at every moment: after each
thing that it was told to keep, as if the power had been cut just then.

no second try
"""

import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import dmlog
import guest
import judge
import tap
from guest import served
from server import BUILD

MiB = 1 << 20
SECTOR = 512
REOPEN = os.path.join(BUILD, "tests", "guest", "reopen")


# ---- acknowledged data

class Court(judge.Judge):
    """It has the disk, too, as the record leaves it, without what the recorder puts behind a FUA
    write that came later (see dmlog). By sector it knows which number is owed, at least."""

    def __init__(self, entries, image):
        super().__init__(entries)
        self.replay, self.floors, self.undone = dmlog.Replay(image), {}, []

    def entry(self, entry):
        before = self.replay.image[entry.offset:entry.offset + entry.length]
        super().entry(entry)
        self.replay.step(entry)
        for sector in self.undone:
            at, inside = sector * SECTOR, sector * SECTOR - entry.offset
            self.replay.image[at:at + SECTOR] = before[inside:inside + SECTOR]
        self.undone.clear()

    def written(self, number, sector, content, fua):
        least, was_fua = sector.least, sector.fua
        super().written(number, sector, content, fua)
        version = self.version(number, sector, content)
        if version is not None and version < least and was_fua and not fua:
            self.undone.append(number)

    def owed(self, why, area, sectors, number):
        super().owed(why, area, sectors, number)
        if area.kinds[number] != "t":       # which may leave what was there
            for sector in range(area.first, area.first + sectors):
                self.floors[sector] = max(self.floors.get(sector, 0), number)

    def look(self, first, data):
        """Sectors as they are read after the power was cut just now."""
        for number, at in enumerate(range(0, len(data), SECTOR), first):
            if number in self.sectors:
                content = data[at:at + SECTOR]
                version = self.version(number, self.sectors[number], content)
                assert version is not None and version >= self.floors.get(number, 0), \
                    "sector %d has %s, and version %d is owed" % (
                        number, content[:16].hex(), self.floors.get(number, 0))


class Reopened:
    """The image, opened by the core for each read."""

    def __init__(self, path):
        self.process = subprocess.Popen([REOPEN, path], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def read(self, offset, length):
        self.process.stdin.write(b"%d %d\n" % (offset, length))
        self.process.stdin.flush()
        data = self.process.stdout.read(length)
        assert len(data) == length, "the image cannot be opened"
        return data

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


def look_everywhere(log, image, size):
    """After each thing that the disk was told to keep, the image is opened and what it changed is
    read, after some of them everything is. Returns how many there were."""
    with open(image, "wb+") as f:
        f.truncate(64 * MiB)
        court = Court(dmlog.entries(log), mmap.mmap(f.fileno(), 0))
    reopened, opened = Reopened(image), 0
    for entry in dmlog.entries(log):
        if entry.mark:
            court.mark(*entry.mark.split(":"))
            continue
        court.entry(entry)
        opened += 1
        court.look(entry.offset // SECTOR, reopened.read(entry.offset, entry.length or SECTOR))
        if opened % 100 == 0:
            court.look(0, reopened.read(0, size))
    court.look(0, reopened.read(0, size))
    reopened.close()
    lost = [sentence for verdict in court.verdicts for sentence in verdict.lost]
    assert not lost, "\n".join(lost[:20])
    assert court.marks == 0, "a witness did not come to its end"
    print("opened behind %d entries, %d promises" % (
        opened, sum(verdict.promises for verdict in court.verdicts)))
    return opened


@served(on=guest.ALL_FRONT_ENDS, limit=300)
def acknowledged_data_is_right_wherever_the_disk_loses_power():
    """At 5,000 places, for all front ends together."""
    seed, part, steps = tap.seed(), 4 * MiB, []
    for n, options in enumerate(("cache=none fua=native", "cache=writeback fua=commit")):
        steps += [f"serve $recorded {options}",
                  f"{guest.WITNESS} $address 4 16 640 {n * part} {part} {seed}", "unserve"]
    with tempfile.TemporaryDirectory() as top:
        log = os.path.join(top, "log")
        guest.run(guest.recorded(guest.NULL_BLK, log), *steps, "record_end",
                  programs=[guest.WITNESS], timeout=200)
        assert look_everywhere(log, os.path.join(top, "image"), 2 * part) >= 1700


# ---- a file system

SIZE = 16 * MiB
DISK = guest.NULL_BLK._replace(setup="nullb 16")
LATER = 24      # files go when so many more have come


def part(number):
    """Where a file's content is in what the guest gets: first sector, and how many."""
    return number * 13, 1 + number * 47 % 90


def use(device, data, files):
    """Steps: a file system is made, and files on it, which are marked when fsync has returned; some
    get their name afterwards, some are never synced, and old ones go."""
    yield f"mkfs.ext4 -q -b 1024 -E lazy_itable_init=0,lazy_journal_init=0 {device}"
    yield f"mount {device} /mnt"
    yield "/usr/bin/sync /mnt; record_mark made"
    for number in range(files):
        first, count = part(number)
        put = f"dd if={data} skip={first} count={count} bs=512 2>/dev/null of=/mnt/"
        if number % 4 == 0:
            yield f"{put}loose{number}"
        elif number % 4 == 1:
            yield f"{put}new conv=fsync; mv /mnt/new /mnt/file{number}; /usr/bin/sync /mnt"
            yield f"record_mark file:{number}"
        else:
            yield f"{put}file{number} conv=fsync; record_mark file:{number}"
        if number % 8 == 7 and number > LATER:
            yield f"record_mark gone:{number - LATER}"
            yield "rm -f" + "".join(f" /mnt/file{n} /mnt/loose{n}"
                                    for n in range(number - LATER - 8, number - LATER))
    yield "umount /mnt"


def points(entries, r, wanted):
    """Numbers of entries after which the disk is looked at, from where there is a file system: all
    that make something durable, the moments when fsync has returned, and some others."""
    made = next(e.number for e in entries if e.mark == "made")
    later = [e for e in entries if e.number > made]
    chosen = {e.number for e in later
              if e.flags & (dmlog.FLUSH | dmlog.FUA) or (e.mark or "").startswith("file:")}
    others = [e.number for e in later if e.number not in chosen and e.mark is None]
    return chosen | set(r.sample(others, min(len(others), max(20, wanted - len(chosen)))))


def run(*command, right=(0,)):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=dict(os.environ, PATH=os.environ["PATH"] + ":/sbin"))
    assert done.returncode in right, "%s: status %d: %s" % (
        " ".join(command), done.returncode, done.stdout)


def look(image, files, data, top):
    """The file system repairs itself by its journal, has no fault then, and has these files."""
    path, out = os.path.join(top, "image"), os.path.join(top, "out")
    with open(path, "wb") as f:
        f.write(image)
    run("e2fsck", "-p", path, right=(0, 1))     # 1: it did what there was to do
    run("e2fsck", "-f", "-n", path)
    os.mkdir(out)
    run("debugfs", "-R", "rdump / " + out, path)
    for number in files:
        first, count = part(number)
        with open(os.path.join(out, "file%d" % number), "rb") as f:
            assert f.read() == data[first * SECTOR:(first + count) * SECTOR], \
                "file%d is not what was synced" % number
    shutil.rmtree(out)


def cut_a_file_system(files, wanted):
    r = random.Random(tap.seed())
    data = r.randbytes((sum(part(files)) + 90) * SECTOR)
    with tempfile.TemporaryDirectory() as top:
        log, content = os.path.join(top, "log"), os.path.join(top, "data")
        with open(content, "wb") as f:
            f.write(data)
        guest.run(guest.recorded(DISK, log), "serve $recorded cache=none",
                  "nbd-client -unix /tmp/socket /dev/nbd0 >/dev/null 2>&1",
                  *use("/dev/nbd0", content, files),
                  "nbd-client -d /dev/nbd0 >/dev/null", "unserve", "record_end",
                  modules=["nbd"], programs=["nbd-client", "mkfs.ext4", content], timeout=200)
        entries = list(dmlog.entries(log))
        chosen, synced, seen = points(entries, r, wanted), set(), 0
        replay = dmlog.Replay(SIZE)
        for entry in entries:
            replay.step(entry)
            kind, _, number = (entry.mark or "").partition(":")
            if kind == "file":
                synced.add(int(number))
            elif kind == "gone":
                synced = {n for n in synced if n >= int(number)}
            if entry.number in chosen:
                try:
                    look(replay.image, synced, data, top)
                except BaseException:
                    print("behind entry %d of %d" % (entry.number, len(entries)))
                    raise
                seen += 1
    print("%d entries, looked at behind %d of them" % (len(entries), seen))
    assert seen >= wanted


@served(limit=200)
def a_file_system_is_whole_wherever_its_disk_loses_power():
    """At 300 places, for both front ends together."""
    cut_a_file_system(44, 150)


@served(slow=True)
def a_file_system_is_whole_wherever_its_disk_loses_power_at_length():
    cut_a_file_system(110, 400)


tap.main()
