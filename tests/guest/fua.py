#!/usr/bin/python3
# takes minutes
"""What a FUA write asks of the disk, counted in the kernel, for each kind of disk and each front
end. Those that are not for iSCSI ask for what a SCSI command cannot: FUA of zeroes, parts of blocks."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import tap
from guest import ALL_FRONT_ENDS, Iscsi, served
from server import Nbdkit, Platterd

# Apart from each other, so that nothing can be merged.
WRITES = [f"write+fua:{i * 65536}:4096" for i in range(16)]


def each(steps, *requests):
    """The events of steps that each ask the disk for these requests before their reply."""
    return [event for step in steps for event in [*requests, "reply " + step]]


def ask(disk, options, *steps):
    """Serves the disk with these options; returns the events of these steps."""
    return guest.asked(guest.run(disk, f"serve /dev/{disk.name} {options}",
                                 f"ask {disk.name} {' '.join(steps)}", "unserve"))


def assert_each(disk, options, steps, *requests):
    events = ask(disk, options, *steps)
    assert events == each(steps, *requests), "\n".join(events)


def assert_durable(events):
    """Before each reply to a FUA request, all that it changed was written with FUA or flushed."""
    at_risk = False
    for event in events:
        if event in ("write", "zero", "discard"):
            at_risk = True
        elif event == "flush":
            at_risk = False
        elif event.startswith("reply ") and "+fua" in event:
            assert not at_risk, "\n".join(events)


@served(on=ALL_FRONT_ENDS)
def native_fua_is_one_write_request_with_fua_and_no_flush():
    assert_each(guest.NULL_BLK, "cache=none", WRITES, "write+fua")


@served(on=ALL_FRONT_ENDS)
def native_fua_is_the_same_when_many_wait():
    events = ask(guest.NULL_BLK, "cache=none", *[",".join(WRITES)] * 4)
    assert events.count("write+fua") == 4 * len(WRITES), "\n".join(events)
    assert set(events) == {"write+fua", *("reply " + w for w in WRITES)}, "\n".join(events)


@served(on=ALL_FRONT_ENDS)
def native_fua_on_a_scsi_disk_is_the_same():
    assert_each(guest.SCSI_DEBUG, "cache=none", WRITES, "write+fua")


@served(on=ALL_FRONT_ENDS)
def small_and_large_native_fua_writes_are_one_request_each():
    steps = ["write+fua:0:512", "write+fua:1536:512", "write+fua:65536:65536"]
    assert_each(guest.NULL_BLK, "cache=none", steps, "write+fua")


@served
def a_plain_write_is_neither_fua_nor_flushed():
    assert_each(guest.NULL_BLK, "cache=none", ["write:0:4096", "write:65536:4096"], "write")


@served(on=ALL_FRONT_ENDS)
def directsync_makes_every_write_a_fua_write():
    steps = ["write:0:4096", "write:65536:4096"]
    assert_each(guest.NULL_BLK, "cache=directsync", steps, "write+fua")


@served(on=ALL_FRONT_ENDS)
def a_fua_write_right_after_a_flush_still_has_its_fua():
    steps = ["write:0:4096", "flush", "write+fua:65536:4096", "flush", "write+fua:0:4096"]
    assert ask(guest.NULL_BLK, "cache=none", *steps) == [
        "write", "reply write:0:4096", "flush", "reply flush",
        "write+fua", "reply write+fua:65536:4096", "flush", "reply flush",
        "write+fua", "reply write+fua:0:4096"]


@served(on=ALL_FRONT_ENDS)
def a_fua_write_sent_together_with_a_flush_still_has_its_fua():
    events = ask(guest.NULL_BLK, "cache=none", *["flush,write+fua:0:4096"] * 8)
    assert events.count("flush") == events.count("write+fua") == 8, "\n".join(events)
    before = 0
    for event in events:
        before += {"write+fua": 1, "reply write+fua:0:4096": -1}.get(event, 0)
        assert before >= 0, "\n".join(events)


@served
def zeroes_and_trim_with_fua_end_in_a_flush():
    steps = ["write:0:262144", "zero+fua:0:65536", "trim+fua:131072:65536", "flush",
             "zero+fua:65536:4096", "flush", "trim+fua:196608:65536"]
    events = ask(guest.NULL_BLK, "cache=none", *steps)
    for step in steps:
        at = events.index("reply " + step)
        if "+fua" in step:
            assert events[at - 1] == "flush" and not events[at - 2].startswith("reply"), events
    assert "discard" in events, events
    assert_durable(events)


@served
def an_unaligned_fua_write_is_durable_too():
    steps = ["write+fua:100:100", "write+fua:5000:9000", "write+fua:70000:300000",
             "read:100:100", "read:5000:9000", "read:70000:300000"]
    events = ask(guest.NULL_BLK, "cache=none", *steps)
    assert "write+fua" in events, events
    assert_durable(events)


@served(on=ALL_FRONT_ENDS)
def without_fua_a_write_is_followed_by_a_flush_before_the_reply():
    assert_each(guest.VIRTIO, "cache=none", WRITES, "write", "flush")


@served(on=[Platterd, Iscsi])
def many_that_wait_share_flushes():
    """For nbdkit, whose threads come when they come, tests/nbd/durability.py sees it."""
    together = ",".join(f"write+fua:{i * 65536}:4096" for i in range(64))
    events = ask(guest.VIRTIO, "cache=writeback fua=commit", *[together] * 4)
    assert events.count("write") == 4 * 64, events.count("write")
    assert 4 <= events.count("flush") <= 2 * 64, events.count("flush")


@served
def where_every_write_is_stable_no_flush_is_sent():
    assert_each(guest.VIRTIO_WRITE_THROUGH, "cache=none", WRITES, "write")


@served
def through_the_page_cache_of_a_device_a_write_costs_one_flush():
    for options in "cache=writeback", "cache=writeback fua=native":
        assert_each(guest.NULL_BLK, options, WRITES, "write", "flush")


@served
def the_count_sees_flushes_where_fua_is_emulated():
    """Without this, the counts above could be blind."""
    assert_each(guest.NULL_BLK, "cache=none fua=commit", WRITES, "write", "flush")


@served(on=[Nbdkit])
def the_count_sees_flushes_of_another_server():
    output = guest.run(guest.NULL_BLK, f"serve_by {guest.FILE_PLUGIN} /dev/nullb0",
                       f"ask nullb0 {' '.join(WRITES)}")
    assert guest.asked(output) == each(WRITES, "write", "flush"), output


@served(on=[Nbdkit])
def auto_chooses_by_the_disk_and_says_why():
    disks = guest.NULL_BLK._replace(disks=["64M", "64M,write-cache=off"])
    choices = [
        ("/dev/nullb0 cache=none", "native", "takes FUA"),
        ("/dev/vda cache=none", "native", "merges the flushes"),
        ("/dev/vdb cache=none", "native", "no volatile cache"),
        ("/dev/vdb1 cache=none", "native", "no volatile cache"),
        ("/dev/nullb0 cache=auto", "shared flush", "page cache"),
        ("/dev/nullb0 cache=none fua=commit", "shared flush", "option"),
        ("/mnt/written cache=none", "native", "takes FUA"),
        ("/mnt/allocated cache=none", "shared flush", "never written"),
        ("/mnt/hole cache=none", "shared flush", "never written"),
        ("/mnt/hole cache=auto", "shared flush", "never written"),
        ("/mnt/written cache=auto", "native", "takes FUA"),
        ("/mnt/written cache=writeback", "shared flush", "cache=writeback,"),
    ]
    output = guest.run(
        disks, "printf 'n\\np\\n1\\n\\n\\nw\\n' | fdisk /dev/vdb >/dev/null",
        *[f"echo '{words}:' $(describe {words})" for words, *_ in choices[:6]],
        "mkfs.ext4 -q /dev/nullb0; mount /dev/nullb0 /mnt",
        "dd if=/dev/zero of=/mnt/written bs=1M count=1 conv=fsync 2>/dev/null",
        "fallocate -l 1M /mnt/allocated; truncate -s 1M /mnt/hole",
        *[f"echo '{words}:' $(describe {words})" for words, *_ in choices[6:]],
        programs=["mkfs.ext4"])
    said = [line for line in output.splitlines() if ":" in line]
    assert len(said) == len(choices), output
    for line, (words, way, why) in zip(said, choices):
        assert line.startswith(words + ":") and f"FUA: {way}" in line and why in line, line


tap.main()
