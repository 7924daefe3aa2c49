#!/usr/bin/python3
"""What a FUA write to a file asks of the disk below the file system."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import tap
from guest import served

WRITES = [f"write+fua:{i * 65536}:4096" for i in range(8)]
MAKE = {
    "ext4": "mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/nullb0",
    "xfs": "mkfs.xfs -q /dev/nullb0",
}
WRITTEN = "dd if=/dev/zero of=/mnt/disk.img bs=1M count=4 conv=fsync"
NEVER_WRITTEN = "fallocate -l 4M /mnt/disk.img"


def ask(kind, image, options, *steps):
    return guest.asked(guest.run(
        guest.NULL_BLK._replace(setup="nullb 512"),
        MAKE[kind], f"mount -t {kind} /dev/nullb0 /mnt", image, "sync",
        f"serve /mnt/disk.img {options}",
        # XFS notes the first change of a file in its log; that is not what is counted.
        "send write:2097152:4096 flush",
        f"ask nullb0 {' '.join(steps)}", "unserve",
        programs=["mkfs." + kind], modules=[kind]))


def assert_native(kind, cache="none"):
    events = ask(kind, WRITTEN, f"cache={cache}", *WRITES)
    assert events == [e for w in WRITES for e in ("write+fua", "reply " + w)], "\n".join(events)


def assert_flushed(kind):
    """Data, then what makes the file system remember that it is data."""
    events = ask(kind, NEVER_WRITTEN, "cache=none", *WRITES)
    for number, write in enumerate(WRITES):
        reply = events.index("reply " + write)
        before, events = events[:reply], events[reply + 1:]
        assert "flush" in before and before.index("flush") > 0, f"{number}: {before}"


@served
def a_fua_write_over_written_blocks_is_native_on_ext4():
    assert_native("ext4")


@served
def a_fua_write_over_written_blocks_is_native_on_xfs():
    assert_native("xfs")


@served
def a_fua_write_over_written_blocks_passes_by_the_page_cache_on_ext4():
    assert_native("ext4", "auto")


@served
def a_fua_write_over_written_blocks_passes_by_the_page_cache_on_xfs():
    assert_native("xfs", "auto")


@served
def a_fua_write_to_blocks_never_written_is_flushed_on_ext4():
    assert_flushed("ext4")


@served
def a_fua_write_to_blocks_never_written_is_flushed_on_xfs():
    assert_flushed("xfs")


@served
def a_server_that_was_killed_is_followed_at_once():
    """Its lock dies with it, although its ring may hold the image for a moment longer."""
    serve = "serve /tmp/disk.img cache=writeback"
    kill = "kill -9 $(cat /tmp/pid); wait 2>/dev/null || true"
    guest.run(guest.NULL_BLK, "truncate -s 1M /tmp/disk.img",
              *[serve, "send write+fua:0:65536,write:65536:65536 flush", kill] * 5,
              serve, "send read:0:65536", "unserve")


tap.main()
