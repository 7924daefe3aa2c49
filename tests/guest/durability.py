#!/usr/bin/python3
# takes minutes
"""The judge of durability: each acknowledgement is held against what the disk had been told.

A server works on a disk that records what it is told to keep, and when (tests/lib/dmlog.py); a
witness uses it and puts each acknowledgement into the same record; tests/lib/judge.py reads it.
That the judge sees what is wrong is shown by servers that lie, and by one whose groups are broken.

no second try
"""

import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import judge
import tap
from server import BUILD, Platterd

PART = 4 << 20      # of the disk, for each witness
ONE, EIGHT = (1, 16), (8, 8)        # connections, and requests in flight on each
LIAR = os.path.join(BUILD, "tests", "guest", ".libs", "liar.so")
BROKEN = os.path.join(BUILD, "tests", "guest", "broken-platterd")


def verdicts(serves, crowds, promises, programs=(), modules=(), made="first=0", undone="",
             doing=""):
    """Lets witnesses work with each of these servers, in turn; returns what the judge says. made,
    undone: steps, of which the first set the sector where what is served begins on the disk."""
    seed = tap.seed()
    steps = []
    for serve in serves:
        for connections, depth in crowds:
            part = len(steps) * PART
            steps.append(f"{serve}; {guest.WITNESS} $address {connections} {depth} {promises} "
                         f"{part} {PART} {seed + len(steps)} {doing}; unserve >/dev/null")
    with tempfile.TemporaryDirectory() as folder:
        log, final = folder + "/log", folder + "/final"
        with open(final, "wb") as file:
            file.truncate(len(steps) * PART)
        disk = guest.recorded(guest.NULL_BLK._replace(disks=(final,)), log)
        said = guest.run(
            disk, made, "echo first $first", *steps, undone, "record_end; dmsetup remove slow",
            f"/usr/bin/dd if=/dev/nullb0 of=/dev/vda bs={PART} count={len(steps)} "
            "iflag=direct,skip_bytes skip=$((first * 512)) oflag=direct 2>/dev/null",
            programs=[guest.WITNESS, *programs], modules=modules, timeout=300)
        first = int(re.search(r"^first (\d+)$", said, re.M)[1])
        found = judge.judge(log, final, first * judge.SECTOR)
    assert len(found) == len(steps), found
    for verdict in found:
        print(f"{verdict.promises} promises, {len(verdict.lost)} lost", *verdict.lost[:5], sep="\n")
        assert verdict.promises >= promises
    return found


def assert_kept(promises, *options):
    serves = [f"serve $recorded {o}" for o in options]
    assert not any(v.lost for v in verdicts(serves, [ONE, EIGHT], promises))


def native_fua(promises):
    assert_kept(promises, "cache=none fua=native", "cache=directsync")


def shared_flushes(promises):
    assert_kept(promises, "cache=none fua=commit", "cache=writeback", "cache=auto")


@guest.served(on=guest.ALL_FRONT_ENDS, limit=400)
def native_fua_keeps_every_promise():
    native_fua(850)


@guest.served(on=guest.ALL_FRONT_ENDS, limit=400)
def shared_flushes_keep_every_promise():
    shared_flushes(850)


@guest.served(on=guest.ALL_FRONT_ENDS, slow=True)
def native_fua_keeps_thousands_of_promises():
    native_fua(1250)


@guest.served(on=guest.ALL_FRONT_ENDS, slow=True)
def shared_flushes_keep_thousands_of_promises():
    shared_flushes(1250)


# ---- files, in which a FUA write may pass by the page cache that all else uses

# A ring lets go of its files a little later.
UMOUNT = "until umount /mnt 2>/dev/null; do sleep 0.05; done"


def kept_in_a_file(promises, *options, make="-b 4096", mount="commit=300", then="true"):
    """All its blocks are written, and lie in one row, where writes leave them. The journal would
    flush, too, beside the server, which the record does not bear, and comes later."""
    size = len(options) * PART
    made = "\n".join((
        f"mkfs.ext4 -q {make} $recorded",
        f"mount -t ext4 -o noatime,{mount} $recorded /mnt",
        f"dd if=/dev/zero of=/mnt/disk.img bs=64k count={size >> 16} conv=fsync 2>/dev/null",
        "set -- $(filefrag -b512 -v /mnt/disk.img | grep '^ *0:')",
        "first=${4%..}",
        f"holds length $6 {size >> 9}:",
        then))
    found = verdicts([f"serve /mnt/disk.img {o}" for o in options], [EIGHT], promises,
                     ["filefrag", "mkfs.ext4"], ["ext4"], made, UMOUNT, "writes")
    assert not any(v.lost for v in found)


@guest.served(on=guest.ALL_FRONT_ENDS, limit=400)
def files_keep_every_promise():
    kept_in_a_file(850, "cache=auto fua=native", "cache=none fua=native")


@guest.served(limit=400)
def files_of_ext4_without_a_journal_do():
    """Whose fdatasync(2) does not flush, in this kernel; where each write is to be durable by
    itself it is refused."""
    refused = ("if (serve /mnt/disk.img cache=directsync); then exit 1; fi; "
               "grep -q 'ext4 without a journal' /tmp/said")
    kept_in_a_file(850, "cache=auto", "cache=none fua=native",
                   make="-b 4096 -O ^has_journal", mount="barrier", then=refused)


@guest.served(on=[Platterd], slow=True)
def files_keep_thousands_of_promises():
    kept_in_a_file(2500, "cache=auto fua=native", "cache=writeback fua=native",
                   "cache=none fua=native", "cache=auto fua=commit")


# ---- those that break theirs

# What each owes and does not give.
LIES = {"early": "FUA: ", "no-fua": "FUA: ", "no-flush": "flush: ", "every-20th": "",
        "flush-first": "FUA: "}


@tap.test(limit=400)
def each_kind_of_liar_is_caught_and_an_honest_server_is_not():
    words = ["none", *LIES]
    serves = [f"serve_by {LIAR} file=$recorded lie={word}" for word in words]
    honest, *liars = verdicts(serves, [EIGHT], 250, [LIAR])
    assert not honest.lost
    for (word, owed), verdict in zip(LIES.items(), liars):
        assert any(lost.startswith(owed) for lost in verdict.lost), word


@guest.served(on=[Platterd], limit=400)
def a_group_that_takes_in_who_comes_too_late_is_caught():
    """As the same options without that fault are not, above."""
    found, = verdicts([f"platterd={BROKEN}; serve $recorded cache=none fua=commit"], [EIGHT], 250,
                      [BROKEN])
    assert any(lost.startswith("FUA: ") for lost in found.lost)


def read_beside_writes(image, options, *steps, programs=(), modules=()):
    """While a FUA write is under way, its neighbour in the same page is read."""
    places = [page * 4096 for page in range(16)]
    guest.run(guest.NULL_BLK._replace(setup="nullb 400; slow /dev/nullb0",
                                      modules=(*guest.NULL_BLK.modules, "dm-delay", *modules)),
              *steps, f"serve {image} {options}",
              "send " + " ".join(f"write+fua:{at + 512}:512" for at in places),
              "echo 3 >/proc/sys/vm/drop_caches",
              "send " + " ".join(f"write+fua:{at}:512,read:{at + 512}:512" for at in places),
              "send " + " ".join(f"read:{at}:512" for at in places),
              programs=["dmsetup", *programs])


@guest.served
def a_read_beside_a_fua_write_leaves_nothing_old_behind():
    for options in "cache=auto", "cache=writeback", "cache=writeback fua=native", "cache=none":
        read_beside_writes("/dev/mapper/slow", options)


@guest.served
def the_same_in_a_file():
    for kind in "ext4", "xfs":
        read_beside_writes(
            "/mnt/disk.img", "cache=auto fua=native",
            f"mkfs.{kind} -q /dev/mapper/slow; mount -t {kind} /dev/mapper/slow /mnt",
            "dd if=/dev/zero of=/mnt/disk.img bs=64k count=1 conv=fsync 2>/dev/null",
            programs=["mkfs." + kind], modules=[kind])


tap.main()
