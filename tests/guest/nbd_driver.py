#!/usr/bin/python3
"""Linux's own NBD driver, with a file system on it, as a client."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import tap
from tap import test

ATTACH = ("serve /dev/nullb0 cache=none",
          "nbd-client -unix /tmp/socket /dev/nbd0 >/dev/null 2>&1")
DETACH = ("nbd-client -d /dev/nbd0 >/dev/null", "unserve")


def run(*steps):
    return guest.run(guest.NULL_BLK, *ATTACH, *steps, *DETACH, modules=["nbd"],
                     programs=["nbd-client", "mkfs.ext4", "fsck.ext4"])


@test
def the_driver_sees_fua_a_write_cache_and_discard():
    run("holds fua $(cat /sys/block/nbd0/queue/fua) 1",
        "holds write_cache \"$(cat /sys/block/nbd0/queue/write_cache)\" 'write back'",
        "[ $(cat /sys/block/nbd0/queue/discard_max_bytes) -gt 0 ]")


@test
def a_file_system_lives_on_it():
    run("mkfs.ext4 -q /dev/nbd0",
        "mount /dev/nbd0 /mnt",
        f"head -c 5000000 {guest.PLUGIN} >/mnt/copy",
        "cp /mnt/copy /mnt/copy2",
        "sync",
        "rm /mnt/copy",
        "fstrim /mnt",
        "umount /mnt",
        "fsck.ext4 -f -n /dev/nbd0",
        "mount -o ro /dev/nbd0 /mnt",
        f"head -c 5000000 {guest.PLUGIN} | cmp - /mnt/copy2",
        "umount /mnt",
        "blkdiscard /dev/nbd0")


@test
def a_discard_arrives_at_the_disk():
    output = run("traced nullb0 blkdiscard -o 0 -l 1048576 /dev/nbd0")
    assert "discard" in guest.asked(output), output


@test
def a_journal_commit_arrives_at_the_disk_as_flush_and_fua_write():
    output = run("mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/nbd0",
                 "mount /dev/nbd0 /mnt",
                 "sync",
                 "traced nullb0 dd if=/dev/zero of=/mnt/file bs=4k count=1 conv=fsync",
                 "umount /mnt")
    events = guest.asked(output)
    assert events.count("write+fua") == events.count("flush") == 1, events
    assert events[-2:] == ["flush", "write+fua"], events


tap.main()
