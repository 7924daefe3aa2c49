#!/usr/bin/python3
"""Linux's own iSCSI initiator and disk driver, with file systems on it, as a client."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import tap
from server import Platterd

IQN = "iqn.2026-11.org.example:"
# Each session is a SCSI host of its own, and its LUN 0 the next disk.
FUNCTIONS = f"""
also="--iscsi 127.0.0.1:3260 --iscsi 127.0.0.2:3260 --target {IQN}disk --state /tmp/state"

# login INITIATOR PORTAL DISK : a session, as whose LUN 0 the disk shows up. Alice has one
# already; the initiator makes no second one to the same portal.
login() {{
	quietly iscsistart -i {IQN}$1 -t {IQN}disk -g 1 -a 127.0.0.$2 -p 3260
	shift
	until [ -b /dev/$2 ]; do sleep 0.02; done
}}

# quietly COMMAND... : what it says is for failures.
quietly() {{
	"$@" >/tmp/quiet 2>&1 || {{ echo "$* ended with $?"; cat /tmp/quiet; exit 1; }}
}}

# refused COMMAND... : has to fail.
refused() {{
	if "$@" >/tmp/quiet 2>&1; then echo "$* succeeded"; cat /tmp/quiet; exit 1; fi
}}

# as_told MESSAGE : waits until the kernel says so.
as_told() {{
	until dmesg | grep -q "$1"; do sleep 0.05; done
}}
"""
SERVE = "serve /dev/nullb0 cache=none"
# The shell would take busybox's.
DD = "/usr/bin/dd if=/dev/zero bs=4k oflag=direct"


def run(*steps, serve=SERVE, login="login alice 1 sda", disk=guest.NULL_BLK, programs=(),
        modules=()):
    return guest.run(disk, FUNCTIONS, serve, login, *steps, "cat /tmp/said",
                     modules=["iscsi_tcp", "sd_mod", "sg", *modules],
                     programs=["iscsistart", *programs])


def served(case):
    return guest.served(case, on=[Platterd])


@served
def its_daemon_finds_the_disk_and_survives_a_restart_of_the_server():
    """Discovery, login by CHAP both ways, the logout that the server asks for at its end, and
    the next login, with a file system mounted all the while."""
    target = f"[target {IQN}disk]\nchap = /tmp/secrets\nlun.0 = ,\n"
    secrets = "in me my-long-secret\nout disk another-secret\n"
    auth = {"authmethod": "CHAP", "username": "me", "password": "my-long-secret",
            "username_in": "disk", "password_in": "another-secret"}
    lines = "".join(f"{kind}.auth.{k} = {v}\n" for k, v in auth.items()
                    for kind in ("node.session", "discovery.sendtargets"))
    run("mkdir -p /etc/iscsi /run/lock/iscsi /var/lib/iscsi /etc/iscsi/nodes",
        "echo root:x:0:0::/:/bin/sh >/etc/passwd",
        f"echo 'InitiatorName={IQN}alice' >/etc/iscsi/initiatorname.iscsi",
        f"printf '{lines}' >/etc/iscsi/iscsid.conf", "quietly iscsid",
        "quietly iscsiadm -m discovery -t sendtargets -p 127.0.0.1",
        "grep -q '127.0.0.1:3260,1 .*:disk' /tmp/quiet",
        f"quietly iscsiadm -m node -T {IQN}disk -p 127.0.0.1 --login",
        "until [ -b /dev/sda ]; do sleep 0.02; done",
        "quietly iscsiadm -m session --rescan",
        "mkfs.ext4 -q /dev/sda; mount /dev/sda /mnt; echo hello >/mnt/file",
        "unserve", SERVE,
        "echo hello >/mnt/file2; sync; umount /mnt; fsck.ext4 -f -n /dev/sda",
        "mount -o ro /dev/sda /mnt; holds files \"$(cat /mnt/file*)\" 'hello\nhello'; umount /mnt",
        serve=f"umask 077; printf '{target}' >/tmp/conf; printf '{secrets}' >/tmp/secrets; "
        f"also='-c /tmp/conf --iscsi 127.0.0.1:3260 --state /tmp/state'; {SERVE}",
        login="", programs=["iscsid", "iscsiadm", "mkfs.ext4", "fsck.ext4"])


@served
def the_driver_sees_a_write_cache_with_dpo_and_fua_and_discard():
    output = run("holds fua $(cat /sys/block/sda/queue/fua) 1",
                 "holds write_cache \"$(cat /sys/block/sda/queue/write_cache)\" 'write back'",
                 "holds provisioning $(cat /sys/class/scsi_disk/*/provisioning_mode) unmap",
                 "[ $(cat /sys/block/sda/queue/discard_max_bytes) -gt 0 ]",
                 "holds size $(cat /sys/block/sda/size) 131072",
                 "holds rotational $(cat /sys/block/sda/queue/rotational) 0",
                 "dmesg | grep 'sd 0:0:0:0'")
    assert "Write cache: enabled, read cache: enabled, supports DPO and FUA" in output, output
    # As the driver would complain.
    assert not re.search(r"(?i)sense key|fail|invalid|unsupported|assuming", output), output


def synchronous_writes(disk):
    """What the disk is asked for. By XFS, since Linux has a FUA write to a device, but not one to
    a file of that, followed by a SYNCHRONIZE CACHE of its own."""
    write = f"{DD},dsync of=/mnt/file count=16 conv=notrunc 2>/dev/null"
    output = run("mkfs.xfs -q -K /dev/sda; mount /dev/sda /mnt",
                 write, "sync", write, f"traced {disk.name} {write.replace(' 2>/dev/null', '')}",
                 "umount /mnt", serve=f"serve /dev/{disk.name} cache=none", disk=disk,
                 programs=["/usr/bin/dd", "mkfs.xfs"], modules=["xfs"])
    return guest.asked(output)


@served
def a_write_with_fua_is_one_write_request_with_fua_and_no_flush():
    events = synchronous_writes(guest.NULL_BLK._replace(setup="nullb 400"))
    assert events == ["write+fua"] * 16, events


@served
def without_fua_a_write_costs_one_flush():
    events = synchronous_writes(guest.VIRTIO._replace(disks=("400M",)))
    assert events == ["write", "flush"] * 16, events


@served
def ext4_lives_on_it():
    run(*guest.use_a_file_system("/dev/sda"), programs=guest.programs_for("ext4"))


@served
def xfs_lives_on_it():
    run(*guest.use_a_file_system("/dev/sda", "xfs"), programs=guest.programs_for("xfs"),
        modules=["xfs"], serve="truncate -s 400M /tmp/disk.img; serve /tmp/disk.img")


def changes(output):
    """Without what a driver reads that is still looking at its new disk."""
    return {event for event in guest.asked(output) if event != "read"}


@served
def a_discard_arrives_at_the_disk():
    """As a request to write zeroes, which may unmap: what is unmapped reads as zeroes."""
    output = run("holds model $(cat /sys/block/sdb/device/model) DISK",
                 "traced sda blkdiscard -o 0 -l 1048576 /dev/sdb", disk=guest.SCSI_DEBUG,
                 login="login alice 1 sdb", serve="serve /dev/sda cache=none")
    assert changes(output) == {"zero"}, output


@served
def a_discard_is_one_where_zeroes_would_have_to_be_written():
    """That disk can discard, and cannot zero by itself."""
    output = run("traced nullb0 blkdiscard -o 0 -l 1048576 /dev/sda")
    assert changes(output) == {"discard"}, output


SG_COMMANDS = """
sg_turs
sg_inq
sg_inq --export
sg_vpd --all
sg_readcap
sg_readcap --long
sg_modes --all
sg_modes --six --all
sg_opcodes
sg_opcodes --opcode=0x2a
sg_opcodes --tmf
sg_luns
sg_requests
sg_logs --all
sg_rtpg
sg_senddiag --test
sg_sync
sg_sync --immed
sg_verify --count=8
sg_get_lba_status --lba=0
sg_unmap --lba=0 --num=8
sg_write_same --unmap --lba=8 --num=8
sg_write_same --16 --lba=16 --num=8 --in=/dev/zero --xferlen=512
sg_compare_and_write --in=/tmp/two --lba=8 --num=1 --xferlen=1024
sg_write_verify --16 --lba=8 --num=1 --ilen=512 --in=/tmp/two
sg_start --stop
sg_start --start
sg_persist --in --report-capabilities
sg_persist --out --register --param-sark=abc123
sg_persist --out --reserve --param-rk=abc123 --prout-type=5
sg_persist --in --read-keys
sg_persist --in --read-reservation
sg_persist --in --read-full-status
sg_persist --out --release --param-rk=abc123 --prout-type=5
sg_persist --out --clear --param-rk=abc123
sg_reset --device
""".strip().splitlines()


@served
def sg3_utils_get_on_with_it():
    output = run("head -c 1024 /dev/zero >/tmp/two",
                 *[f"quietly {command} /dev/sda" for command in SG_COMMANDS],
                 "refused sg_turs /dev/sda",         # its unit attention
                 "sg_modes --page=0x08 /dev/sda", "sg_opcodes /dev/sda",
                 programs=sorted({command.split()[0] for command in SG_COMMANDS}))
    for name in ("Caching", "Write(10)", "Compare and write", "Write same(16)", "Unmap",
                 "Persistent reserve out", "Synchronize cache(16)"):
        assert name.lower() in output.lower(), (name, output)


@served
def a_new_size_is_seen():
    output = run(
        "holds size $(cat /sys/block/sda/size) 65536",
        "mkfs.ext4 -q /dev/sda; mount /dev/sda /mnt; echo hello >/mnt/file",
        "truncate -s 48M /tmp/disk.img; kill -HUP $(cat /tmp/pid)",
        "until grep -q 50331648 /tmp/said; do sleep 0.05; done",
        "ls -l /mnt >/dev/null; sync; as_told 'Capacity data has changed'",
        "echo 1 >/sys/block/sda/device/rescan",
        "holds size $(cat /sys/block/sda/size) 98304",
        "quietly resize2fs /dev/sda; umount /mnt; fsck.ext4 -f -n /dev/sda",
        serve="truncate -s 32M /tmp/disk.img; serve /tmp/disk.img",
        programs=["mkfs.ext4", "fsck.ext4", "resize2fs"])
    assert "50331648" in output, output


@served
def a_persistent_reservation_keeps_another_initiator_out():
    prout = "quietly sg_persist --out"
    run("login bob 2 sdb",
        f"{prout} --register --param-sark=a /dev/sda", f"{prout} --register --param-sark=b /dev/sdb",
        f"{prout} --reserve --param-rk=a --prout-type=1 /dev/sda",     # write exclusive
        f"{DD} of=/dev/sda count=1 2>/dev/null", f"refused {DD} of=/dev/sdb count=1",
        "quietly /usr/bin/dd if=/dev/sdb of=/dev/null bs=4k count=1",
        "refused sg_persist --out --reserve --param-rk=b --prout-type=3 /dev/sdb",
        f"{prout} --preempt --param-rk=b --param-sark=a --prout-type=1 /dev/sdb",
        f"{DD} of=/dev/sdb count=1 2>/dev/null", f"refused {DD} of=/dev/sda count=1",
        f"{prout} --clear --param-rk=b /dev/sdb",
        f"{DD} of=/dev/sda count=1 2>/dev/null",
        programs=["sg_persist", "/usr/bin/dd"])


@served
def two_sessions_are_two_paths_to_one_disk():
    """With one identity, and a device mapper that uses both, and either."""
    table = "0 131072 multipath 0 0 1 1 round-robin 0 2 1 8:0 1 8:16 1"
    run("login bob 2 sdb",
        "holds wwid \"$(cat /sys/block/sdb/device/wwid)\" \"$(cat /sys/block/sda/device/wwid)\"",
        "cmp /sys/block/sda/device/vpd_pg83 /sys/block/sdb/device/vpd_pg83",
        f"dmsetup --noudevsync create both --table '{table}'",
        "[ -b /dev/mapper/both ] || mknod /dev/mapper/both b $(dmsetup info -c --noheadings "
        "-o major,minor both | tr : ' ')",
        "holds fua $(cat /sys/block/dm-0/queue/fua) 1",
        "mkfs.ext4 -q /dev/mapper/both; mount /dev/mapper/both /mnt",
        f"head -c 5000000 {guest.PLATTERD} >/mnt/copy; sync",
        "dmsetup message both 0 fail_path 8:0",
        "cp /mnt/copy /mnt/copy2; sync",
        "dmsetup message both 0 reinstate_path 8:0; dmsetup message both 0 fail_path 8:16",
        "cp /mnt/copy /mnt/copy3; sync; echo 3 >/proc/sys/vm/drop_caches",
        "cmp /mnt/copy /mnt/copy2; cmp /mnt/copy /mnt/copy3",
        "umount /mnt; fsck.ext4 -f -n /dev/mapper/both",
        "dmsetup --noudevsync remove both",
        programs=["dmsetup", "mkfs.ext4", "fsck.ext4", guest.PLATTERD],
        modules=["dm-multipath", "dm-round-robin"])


tap.main()
