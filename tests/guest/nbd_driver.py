#!/usr/bin/python3
"""Linux's own NBD driver, with a file system on it, as a client."""

import glob
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import pki
import tap
from guest import served
from server import Platterd

# How a device is attached: over the unix socket that `serve` makes, or over TCP.
SOCKET = "nbd-client -unix /tmp/socket /dev/nbd0 >/dev/null 2>&1"
TCP = "nbd-client -C 4 127.0.0.1 10809 /dev/nbd0 >/dev/null 2>&1"
LISTEN = "also='--tcp 127.0.0.1:10809'"
SERVE = "serve /dev/nullb0 cache=none"
DETACH = "nbd-client -d /dev/nbd0 >/dev/null"
USE_A_FILE_SYSTEM = guest.use_a_file_system("/dev/nbd0")


def run(*steps, serve=SERVE, attach=SOCKET, disk=guest.NULL_BLK, programs=(), modules=()):
    return guest.run(disk, serve, attach, *steps, DETACH, "unserve", modules=["nbd", *modules],
                     programs=["nbd-client", *guest.programs_for("ext4"), *programs])


@served
def the_driver_sees_fua_a_write_cache_and_discard():
    run("holds fua $(cat /sys/block/nbd0/queue/fua) 1",
        "holds write_cache \"$(cat /sys/block/nbd0/queue/write_cache)\" 'write back'",
        "[ $(cat /sys/block/nbd0/queue/discard_max_bytes) -gt 0 ]")


@served
def a_file_system_lives_on_it():
    run(*USE_A_FILE_SYSTEM)


@served(on=[Platterd])
def a_file_system_lives_on_four_connections_over_tcp():
    run("holds connections $(grep -c ' 0100007F:2A39 .* 01 ' /proc/net/tcp) 4",
        *USE_A_FILE_SYSTEM, serve=f"{LISTEN}; {SERVE}", attach=TCP)


@served(on=[Platterd])
def a_file_system_lives_on_it_over_tls():
    """nbd-client encrypts in a process of its own, between the driver and us."""
    if shutil.which("certtool") is None:
        tap.skip("certtool is not installed")
    with tempfile.TemporaryDirectory() as top:
        pki.make(top)
        tls = f"--tls required --tls-verify-peer on --tls-certificates {top}/server"
        keys = (f"-enable-tls -cacertfile {top}/client/ca-cert.pem -certfile {top}/client/client-cert.pem"
                f" -keyfile {top}/client/client-key.pem -tlshostname localhost")
        run("if nbd-client 127.0.0.1 10809 /dev/nbd1 >/dev/null 2>&1; then exit 1; fi",
            *USE_A_FILE_SYSTEM,
            serve=f"also='--tcp 127.0.0.1:10809 {tls}'; {SERVE}",
            attach=f"nbd-client {keys} 127.0.0.1 10809 /dev/nbd0",
            programs=glob.glob(top + "/server/*") + glob.glob(top + "/client/*"))


@served(on=[Platterd])
def a_client_comes_by_vsock():
    """libnbd, within one machine, whose own address is 1, at a port that the server chose."""
    output = guest.run(guest.NULL_BLK, f"also='--vsock 0'; {SERVE}",
                       "port=$(sed -n 's|^nbd+vsock://.*:||p' /tmp/said)",
                       f"head -c 5000000 {guest.PLATTERD} >/tmp/data; truncate -s 64M /tmp/data",
                       "nbdcopy --flush /tmp/data nbd+vsock://1:$port",
                       "nbdcopy nbd+vsock://1:$port - | cmp - /tmp/data", "unserve",
                       programs=["nbdcopy"], modules=["vsock_loopback"])
    assert "nbd+vsock://" in output, output


@served
def a_discard_arrives_at_the_disk():
    output = run("traced nullb0 blkdiscard -o 0 -l 1048576 /dev/nbd0")
    assert "discard" in guest.asked(output), output


@served
def a_journal_commit_arrives_at_the_disk_as_flush_and_fua_write():
    output = run("mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/nbd0",
                 "mount /dev/nbd0 /mnt",
                 "sync",
                 "traced nullb0 dd if=/dev/zero of=/mnt/file bs=4k count=1 conv=fsync",
                 "umount /mnt")
    events = guest.asked(output)
    assert events.count("write+fua") == events.count("flush") == 1, events
    assert events[-2:] == ["flush", "write+fua"], events


@served
def partitions_are_found_whatever_the_sectors_of_the_disk():
    """A table counts in the blocks that the kernel takes the device to have."""
    for sector in (512, 4096):
        run("holds block \"$(cat /sys/block/nbd0/queue/logical_block_size)\" 512",
            "printf 'n\\np\\n1\\n2048\\n+310M\\nw\\n' | fdisk /dev/nbd0 >/dev/null 2>&1",
            "until [ -b /dev/nbd0p1 ]; do sleep 0.02; done",
            "holds start $(cat /sys/block/nbd0/nbd0p1/start) 2048",
            "mkfs.xfs -q /dev/nbd0p1", "mount /dev/nbd0p1 /mnt", "echo hello >/mnt/file",
            "umount /mnt", DETACH, SOCKET,
            "until [ -b /dev/nbd0p1 ]; do sleep 0.02; done",
            "mount /dev/nbd0p1 /mnt", "holds file \"$(cat /mnt/file)\" hello", "umount /mnt",
            # Who asks for another size gets it.
            DETACH, SOCKET.replace("-unix", "-b 4096 -unix"),
            "holds block \"$(cat /sys/block/nbd0/queue/logical_block_size)\" 4096",
            "mkfs.ext4 -q /dev/nbd0", "mount /dev/nbd0 /mnt", "umount /mnt",
            disk=guest.NULL_BLK._replace(setup=f"nullb 400 {sector}"),
            programs=["mkfs.xfs"], modules=["xfs", "nbd:max_part=4"])


tap.main()
