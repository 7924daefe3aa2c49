#!/usr/bin/python3
"""What `platter doctor` tells of devices with FUA and without, and of what lies over them."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import tap
from examined import PLATTER, Report


def examined(disk, device, *setup, **how):
    said = guest.run(disk, *setup, f"{PLATTER} doctor --json {device} || [ $? -le 2 ]",
                     programs=[PLATTER, *how.pop("programs", [])], **how)
    report = Report(said[said.index("{"):])
    return report.facts, report.found


def tells(disk, safe=True):
    facts, found = examined(disk, "/dev/" + disk.name)
    assert facts["disk"]["write cache"] == disk.write_cache, facts
    assert facts["disk"]["FUA"] == str(disk.fua), facts
    assert facts["NBD"]["FUA"].startswith("yes") and facts["SCSI"]["DPOFUA"].startswith("yes")
    assert ("a write that is answered as durable is on the disk" in found) == safe
    assert ("it is in memory" in found) == (not safe)


@tap.test
def a_device_with_fua_is_told_as_such():
    tells(guest.NULL_BLK, safe=False)


@tap.test
def a_device_of_scsi_is_told_as_what_it_is():
    tells(guest.SCSI_DEBUG, safe=False)


@tap.test
def a_device_without_fua_is_told_as_such():
    tells(guest.VIRTIO)


@tap.test
def a_device_without_a_cache_is_told_as_such():
    tells(guest.VIRTIO_WRITE_THROUGH)


@tap.test
def a_partition_is_told_with_its_disk():
    facts, _ = examined(guest.VIRTIO, "/dev/vda1", "echo ,,L | sfdisk -q /dev/vda",
                        programs=["sfdisk"])
    assert facts["disk"]["partition"] == "vda1, number 1", facts
    assert facts["disk"]["device"] == "vda" and facts["disk"]["write cache"] == "write back"


@tap.test
def the_device_mapper_is_looked_through():
    facts, _ = examined(guest.VIRTIO, "/dev/mapper/above",
                        'dmsetup create above --table "0 65536 linear /dev/vda 2048"',
                        programs=["dmsetup"], modules=["dm_mod"])
    assert "the device mapper's above" in facts["disk"]["device"], facts
    assert facts["disk"]["below it"].startswith("vda"), facts


tap.main()
