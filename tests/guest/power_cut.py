#!/usr/bin/python3
"""A disk with a volatile write cache loses its power under the server."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import tap
from guest import served

# null_blk drops what nothing made durable, where the disk was never written before: so
# each step has a block of its own, and the server has no time to say good-bye.
WRITE = ("send write+fua:1048576:4096 write:2097152:4096 flush write+fua:3145728:65536 "
         "write:4194304:4096")
KEPT = "send read:1048576:4096 read:2097152:4096 read:3145728:65536"
LOST = "if send read:4194304:4096; then echo 'nothing was lost: no power was cut'; exit 1; fi"
CUT = "kill -9 $(cat /tmp/pid)"
# The ring of a process that was killed lets go of its files a little later.
UNMOUNT = "until umount /mnt 2>/dev/null; do sleep 0.02; done"


def cut_power_under_disk(options):
    serve = f"serve /dev/nullb0 {options}"
    guest.run(guest.NULL_BLK, serve, WRITE, CUT, "nullb_off", "nullb_on", serve, KEPT, LOST)


def cut_power_under_file(options, kind):
    serve = f"serve /mnt/disk.img {options}"
    guest.run(guest.NULL_BLK._replace(setup="nullb 512"),
              f"mkfs.{kind} -q /dev/nullb0", f"mount -t {kind} /dev/nullb0 /mnt",
              "fallocate -l 8M /mnt/disk.img", "sync", serve, WRITE, CUT,
              # What the file system would still write is lost as well.
              "xfs_io -x -c shutdown /mnt", "nullb_off", UNMOUNT, "nullb_on",
              f"mount -t {kind} /dev/nullb0 /mnt", serve, KEPT, LOST,
              programs=[f"mkfs.{kind}", "xfs_io"], modules=[kind])


@served
def what_was_answered_with_fua_or_flushed_is_on_the_disk():
    cut_power_under_disk("cache=none")


@served
def the_same_through_the_page_cache():
    cut_power_under_disk("cache=writeback")


@served
def the_same_past_the_page_cache_of_a_file():
    cut_power_under_file("cache=auto fua=native", "ext4")


@served
def the_same_past_the_page_cache_of_a_file_on_xfs():
    cut_power_under_file("cache=auto fua=native", "xfs")


@served
def the_same_in_a_new_file_on_ext4():
    cut_power_under_file("cache=none", "ext4")


@served
def the_same_in_a_new_file_on_ext4_with_native_fua():
    cut_power_under_file("cache=none fua=native", "ext4")


@served
def the_same_in_a_new_file_on_xfs_with_native_fua():
    cut_power_under_file("cache=none fua=native", "xfs")


@served
def the_same_in_a_new_file_on_xfs_through_the_page_cache():
    cut_power_under_file("cache=writeback", "xfs")


tap.main()
