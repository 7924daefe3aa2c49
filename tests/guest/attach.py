#!/usr/bin/python3
# takes minutes
"""The life of a disk that is attached to Linux, by NBD and by iSCSI: used, grown, detached, and its
server killed under it."""

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import inside
import nbdlink
import nbdraw
import tap
from guest import CHECKS
from inside import sh
from server import Nbdkit, Platterd, until

MiB = 1 << 20
IQN = "iqn.2026-11.org.example:"
IMAGE = "/srv/disk.img"
FIO = ("fio --name=verified --directory=/mnt --size=%dM --bs=4k --rw=randwrite --ioengine=libaio "
       "--iodepth=8 --fsync=16 --verify=crc32c --verify_fatal=1 --thread --output-format=terse")
PROGRAMS = ["fio", "nbd-client", "iscsid", "iscsiadm", "mkfs.ext4", "fsck.ext4", "resize2fs",
            "mkfs.xfs", "xfs_repair", "xfs_growfs"]
MODULES = ["nbd", "iscsi_tcp", "sd_mod", "xfs"]


class Target(Platterd):
    """platterd, for iSCSI."""

    name = "iscsi"

    def __init__(self, run, *words, **options):
        super().__init__(run, *words, **options, args=[
            "--iscsi", "127.0.0.1:3260", "--target", IQN + "disk", "--state", "/tmp"])


class NbdDisk:
    """A disk by nbd-client; `path` while it is attached."""

    def __init__(self, connections=1):
        self.connections = connections
        self.keeper = None

    def attach(self, s):
        # What a dead connection owed is sent again when so many seconds are over.
        sh("nbd-client -unix %s /dev/nbd0 -C %d -timeout 5" % (s.address, self.connections))
        nbdlink.be_patient(0, 120)
        self.path = "/dev/nbd0"

    def detach(self):
        sh("nbd-client -d /dev/nbd0")

    def go_on(self, s):
        """From here on by that server, whenever the driver takes a connection for dead."""
        self.address = s.address
        if not self.keeper:
            self.keeper = threading.Thread(target=self.keep, daemon=True)
            self.keeper.start()

    def keep(self):
        while True:
            with contextlib.suppress(OSError, nbdraw.Closed):
                # If none is, the driver does not take this one.
                c = nbdraw.connect(self.address, structured=False)
                with contextlib.closing(c.socket):
                    nbdlink.go_on(0, [c.socket])
            time.sleep(0.5)

    def grow(self, s, restart):
        """NBD has no way to tell: the disk is attached again."""
        self.detach()
        s = restart(s)
        self.attach(s)
        return s


class IscsiDisk:
    """A disk by iscsid."""

    def attach(self, s):
        if not glob.glob("/etc/iscsi/*"):
            sh("mkdir -p /etc/iscsi/nodes /run/lock/iscsi /var/lib/iscsi; "
               "echo root:x:0:0::/:/bin/sh >/etc/passwd; >/etc/iscsi/iscsid.conf; "
               "echo InitiatorName=%salice >/etc/iscsi/initiatorname.iscsi; iscsid" % IQN)
        sh("iscsiadm -m discovery -t sendtargets -p 127.0.0.1; "
           "iscsiadm -m node -T %sdisk -p 127.0.0.1 --login" % IQN)
        until(lambda: glob.glob("/dev/sd?"))
        self.path, = glob.glob("/dev/sd?")

    def detach(self):
        sh("iscsiadm -m node -T %sdisk -p 127.0.0.1 --logout" % IQN)

    def go_on(self, s):
        """iscsid sees to it."""

    def grow(self, s, _restart):
        inside.put("/sys/block/%s/device/rescan" % os.path.basename(self.path), 1)
        return s


def disk(server):
    return IscsiDisk() if server.front_end is Target else NbdDisk()


def served(**how):
    return inside.served(on=[Nbdkit, Platterd, Target], programs=PROGRAMS, modules=MODULES, **how)


def make_image(size):
    """On a file system of its own: that of the guest has little room."""
    sh("mkdir -p /srv; mount -t tmpfs -o size=350M none /srv; truncate -s %d %s" % (size, IMAGE))
    inside.devices.callback(inside.insist, sh, "umount /srv")


def size_of(path):
    return int(sh("blockdev --getsize64 " + path))


def checked(kind, path):
    sh("umount /mnt; %s %s 2>&1" % (CHECKS[kind], path))


# ---- a life in peace ----------------------------------------------------------------------------

def lives(server, kind, size, grow):
    make_image(size)
    d = disk(server)
    with contextlib.ExitStack() as stack:
        def restart(old):
            old.stop()
            return stack.enter_context(server(IMAGE))
        s = stack.enter_context(server(IMAGE))
        d.attach(s)
        assert size_of(d.path) == size
        sh("mkfs.%s -q %s; mount %s /mnt" % (kind, d.path, d.path))
        sh(FIO % 4)
        free = sh("df -k /mnt | awk 'NR == 2 { print $4 }'")
        sh("cp /mnt/verified* /tmp/kept; rm /mnt/verified*; sync; fstrim /mnt; "
           "cp /tmp/kept /mnt/kept")
        checked(kind, d.path)
        os.truncate(IMAGE, size + grow)
        if server.front_end is not Nbdkit:
            os.kill(s.pid, signal.SIGHUP)
            until(lambda: "it has grown" in s.said())
        s = d.grow(s, restart)
        assert size_of(d.path) == size + grow
        sh("mount %s /mnt" % d.path)
        sh("resize2fs %s" % d.path if kind == "ext4" else "xfs_growfs /mnt")
        assert int(sh("df -k /mnt | awk 'NR == 2 { print $4 }'")) > int(free) + grow // 2048
        sh("cmp /tmp/kept /mnt/kept")
        checked(kind, d.path)
        sh("blkdiscard %s; sync" % d.path)
        assert not any(read_all(d.path, MiB))
        d.detach()


def read_all(path, length):
    with open(path, "rb") as f:
        return f.read(length)


@served()
def ext4_is_made_used_trimmed_and_grown_on_it(server):
    lives(server, "ext4", 32 * MiB, 16 * MiB)


@served(slow=True)
def xfs_is_made_used_trimmed_and_grown_on_it(server):
    lives(server, "xfs", 320 * MiB, 64 * MiB)


# ---- its server is killed -----------------------------------------------------------------------

# Says the number of each line of the file that is known to be there, whatever happens.
APPEND = """
i=0
while [ ! -e /tmp/enough ]; do
	i=$((i + 1))
	echo $i >>/mnt/log
	sync -d /mnt/log || exit 1
	echo $i
done
"""


def killed_under(server, d, file_system, size, kills, fio_size, **options):
    make_image(size)
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(server(path=IMAGE, **options))
        d.attach(s)
        d.go_on(s)
        sh("mkfs.%s -q %s; mount %s /mnt; rm -f /tmp/enough" % (file_system, d.path, d.path))
        with open("/tmp/appended", "w+") as out:
            writer = subprocess.Popen(["sh", "-c", APPEND], stdout=out)
            fio = subprocess.Popen((FIO % fio_size).split(), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)

            def appended():
                return len(read_all("/tmp/appended", MiB).splitlines())
            for n in range(kills):
                more = appended() + 5
                until(lambda: appended() >= more)
                s.kill()
                s = stack.enter_context(server(path=IMAGE, **options))
                d.go_on(s)
            more = appended() + 5
            until(lambda: appended() >= more)
            open("/tmp/enough", "w").close()
            assert writer.wait() == 0
            said = fio.communicate()[0]
            assert fio.returncode == 0, said
        checked(file_system, d.path)
        sh("mount -o ro %s /mnt" % d.path)
        told = read_all("/tmp/appended", MiB)
        assert read_all("/mnt/log", MiB) == told, "synced: %r" % told
        sh("umount /mnt")
        d.detach()
        said = sh("dmesg | grep -i 'I/O error\\|EXT4-fs error\\|XFS.*error' || true")
        assert not said, said


@served()
def a_killed_server_that_comes_back_is_gone_on_with(server):
    killed_under(server, disk(server), "ext4", 64 * MiB, 1, 2)


@served(slow=True)
def a_server_that_is_killed_again_and_again_loses_nothing(server):
    killed_under(server, disk(server), "xfs", 320 * MiB, 6, 4)


@inside.served(on=[Nbdkit, Platterd], programs=PROGRAMS, modules=MODULES, slow=True)
def four_connections_that_are_lost_are_gone_on_with(server):
    killed_under(server, NbdDisk(4), "ext4", 64 * MiB, 4, 8)


@inside.served(on=[Platterd], programs=PROGRAMS, modules=MODULES, slow=True)
def a_server_that_forgets_what_was_synced_is_found_out(server):
    """By the same comparison, or it would be blind: its flushes do nothing, and it dies with all
    that it was to flush."""
    try:
        killed_under(server, NbdDisk(), "ext4", 64 * MiB, 1, 2, driver="fault",
                     over="powercut,file", kind="flush", fault="lie", repeat="forever",
                     **{"powercut-fua": "commit"})
    except AssertionError as e:
        assert re.search("fsck.ext4|synced|verify", str(e)), e
        inside.devices.pop_all()        # the guest goes as it is
        return
    raise AssertionError("it was not found out")


tap.main()
