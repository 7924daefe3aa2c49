#!/usr/bin/python3
"""What `platter doctor PATH` sees of file systems, devices and images, what it concludes, and that
it leaves an image as it was."""

import contextlib
import fcntl
import json
import os
import re
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import examined as doctor
import mounts
import nbdraw
import tap
from examined import ADVICE, CANNOT, HEALTHY
from server import Platterd, served

MiB = 1 << 20

SAFE = "a write that is answered as durable is on the disk"
IN_MEMORY = "it is in memory"
NOT_WRITTEN = "some blocks were never written"
MAY_FILL = "there is less free space than the image may still need"
CLONED = "blocks are shared with another file (reflink, snapshot)"
COPIES = "the file system copies on each write"
IN_USE = "the image is in use by somebody else"
NO_ROOM = "there is no room for another 16 MiB"
ODD_SIZE = "the size is no multiple of 512 bytes"
SMALLER_BLOCKS = "SCSI shows smaller blocks than the disk has"
NO_DISK = "nothing is known of a disk below"
NO_FILE = "no file can be made in the directory"
NOT_WRITABLE = "it may not be written"
NO_BARRIERS = "the file system is mounted without barriers"


NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def examined(path, **how):
    """({group: {fact: value}}, [what was found]); the verdict is that of the exit status."""
    done = doctor.run("--json", path, **how)
    report = doctor.Report(done.stdout)
    assert doctor.VERDICTS[done.returncode] == report.all["verdict"]
    return report.facts, report.found


def file_system(files, kind, size=128 * MiB, options="defaults"):
    return mounts.file_system(kind, files.path(kind + ".img"), files.path("mnt"), size,
                              options=options)


def make_image(folder, size=8 * MiB, written=True):
    path = os.path.join(folder, "disk.img")
    with open(path, "wb") as f:
        f.truncate(size)
        if written:
            f.write(b"\xA5" * size)
        f.flush()
        os.fsync(f.fileno())
    return path


def tells_all(facts):
    """What a client will be told comes from the server's own code; here only that it is there."""
    assert facts["NBD"]["FLUSH"].startswith("yes") and facts["NBD"]["FUA"].startswith("yes")
    assert facts["SCSI"]["WCE"].startswith("yes") and facts["SCSI"]["DPOFUA"].startswith("yes")
    reasons = [*facts["NBD"].values(), *facts["SCSI"].values()]
    assert all(re.match(r"(yes|no|512 bytes): .", why) for why in reasons), reasons
    for group in "NBD", "SCSI":
        assert all(re.match(r"(yes|no|512 bytes): .", what) for what in facts[group].values()), facts
    for way in "native, one", "native, 16 at once", "flush, one", "flush, 16 at once":
        assert " a second, " in facts["cost"][way], facts["cost"]


# ---- file systems

@served(on=[Platterd])
def an_image_that_is_written_on_ext4_is_safe(files):
    with file_system(files, "ext4") as at:
        facts, found = examined(make_image(at))
    tells_all(facts)
    assert SAFE in found and NOT_WRITTEN not in found and IN_MEMORY not in found
    assert facts["file system"]["kind"].startswith("ext4, at " + files.path("mnt"))
    assert "a loop over " + files.path("ext4.img") in facts["disk"]["device"]
    assert int(facts["image"]["written"].split()[0]) == 8 * MiB


@served(on=[Platterd])
def xfs_tells_clones(files):
    with file_system(files, "xfs", 320 * MiB) as at:
        image = make_image(at)
        facts, found = examined(image)
        tells_all(facts)
        assert CLONED not in found
        mounts.run("cp", "--reflink=always", image, image + ".clone")
        mounts.run("sync")
        facts, found = examined(image)
    assert CLONED in found and int(facts["image"]["shared"].split()[0]) == 8 * MiB


@served(on=[Platterd])
def btrfs_copies_unless_it_is_told_not_to(files):
    with file_system(files, "btrfs", 256 * MiB) as at:
        facts, found = examined(make_image(at))
        tells_all(facts)
        assert COPIES in found and SAFE in found
        assert "a loop over" in facts["disk"]["device"]
        other = os.path.join(at, "other.img")
        open(other, "wb").close()
        mounts.run("chattr", "+C", other)
        with open(other, "r+b") as f:
            f.write(b"x" * MiB)
        assert COPIES not in examined(other)[1]
    with file_system(files, "btrfs", 256 * MiB, "nodatacow") as at:
        assert COPIES not in examined(make_image(at))[1]


@served(on=[Platterd])
def what_is_in_memory_is_unsafe(files):
    with mounts.tmpfs(files.path("mnt"), 64 * MiB) as at:
        facts, found = examined(make_image(at))
    assert found[0] == IN_MEMORY and SAFE not in found
    assert facts["file system"]["kind"].startswith("tmpfs")


@served(on=[Platterd])
def what_is_in_memory_is_unsafe_however_much_lies_over_it(files):
    """A loop on ext4, on a loop, on a file system in memory; and the devices by themselves."""
    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(mounts.tmpfs(files.path("mnt"), 200 * MiB))
        lower = os.path.join(memory, "lower.img")
        with open(lower, "wb") as f:
            f.truncate(96 * MiB)
        mounts.run("mkfs.ext4", "-q", lower)
        device = stack.enter_context(mounts.loop(lower, 512))
        middle = stack.enter_context(mounts.mounted(files.path("middle"), device))
        image = make_image(middle)
        upper = stack.enter_context(mounts.loop(image, 512))
        for what in device, image, upper:
            facts, found = examined(what)
            assert found[0] == IN_MEMORY and SAFE not in found, (what, found)


@served(on=[Platterd])
def a_mount_without_barriers_is_unsafe(files):
    with file_system(files, "ext4", options="barrier=0") as at:
        _, found = examined(make_image(at))
    assert found[0] == NO_BARRIERS and SAFE not in found


# ---- devices

@served(on=[Platterd])
def a_device_is_examined_and_never_written(files):
    image = make_image(files.path("."))
    with open(image, "rb") as f:
        before = f.read()
    with mounts.loop(image, 512) as device:
        facts, found = examined(device)
    with open(image, "rb") as f:
        assert f.read() == before
    assert SAFE in found and "not measured" in facts["cost"]
    assert facts["image"]["size"] == "%d bytes" % (8 * MiB)
    assert facts["disk"]["logical block"] == "512"
    assert facts["NBD"]["TRIM"] == "yes: the device discards blocks"


@served(on=[Platterd])
def sectors_of_4096_bytes_are_told(files):
    with mounts.loop(make_image(files.path(".")), 4096) as device:
        facts, found = examined(device)
    assert facts["disk"]["logical block"] == "4096"
    assert facts["export"]["blocks"].startswith("4096 bytes")
    assert facts["SCSI"]["logical block"].startswith("512 bytes: ") and SMALLER_BLOCKS in found


# ---- images

@served(on=[Platterd])
def blocks_never_written_are_told(files):
    image = make_image(files.path("."), written=False)
    facts, found = examined(image)
    assert NOT_WRITTEN in found and facts["image"]["written"] == "0 bytes"
    assert "FUA: shared flush" in facts["export"]["as"]
    assert "waits for a flush" in facts["NBD"]["FUA"] == facts["SCSI"]["DPOFUA"]


@served(on=[Platterd])
def an_image_that_may_fill_its_disk_is_told(files):
    with file_system(files, "ext4") as at:
        _, found = examined(make_image(at, size=1 << 32, written=False))
    assert MAY_FILL in found


@served(on=[Platterd])
def an_image_in_use_is_told_and_its_server_not_disturbed(server):
    image = make_image(server.path("."))
    with server(image) as s:
        facts, found = examined(image)
        assert IN_USE in found and "somebody writes it" in facts["export"]["lock"]
        nbdraw.connect(s.address).write(0, b"x" * 512)
    facts, found = examined(image)
    assert IN_USE not in found and facts["export"]["lock"] == "free"


@served(on=[Platterd])
def locks_of_others_that_hinder_no_server_are_none(files):
    image = make_image(files.path("."))
    with open(image, "rb") as f:
        fcntl.flock(f, fcntl.LOCK_SH)
        assert IN_USE not in examined(image)[1]


@served(on=[Platterd])
def a_lock_on_btrfs_is_seen(server):
    with file_system(server, "btrfs", 256 * MiB) as at:
        image = make_image(at)
        with server(image):
            assert IN_USE in examined(image)[1]


@served(on=[Platterd])
def a_link_is_followed_to_where_the_image_lies(files):
    with mounts.tmpfs(files.path("mnt"), 64 * MiB) as at:
        link = os.path.join(at, "link")
        os.symlink(make_image(files.path(".")), link)
        before = os.stat(at).st_mtime_ns
        facts, found = examined(link)
        assert not facts["file system"]["kind"].startswith("tmpfs") and IN_MEMORY not in found
        assert os.stat(at).st_mtime_ns == before    # nothing was made beside the link


@served(on=[Platterd])
def a_full_disk_is_told_as_such(files):
    with file_system(files, "ext4", 16 * MiB) as at:
        _, found = examined(make_image(at, size=4 * MiB))
        assert NO_ROOM in found and NO_FILE not in found, found


@served(on=[Platterd])
def an_odd_size_is_told(files):
    _, found = examined(make_image(files.path("."), size=MiB + 1))
    assert ODD_SIZE in found


@served(on=[Platterd])
def nothing_of_the_image_is_changed(files):
    image = make_image(files.path("."))
    before = os.stat(image), sorted(os.listdir(os.path.dirname(image)))
    with open(image, "rb") as f:
        data = f.read()
    doctor.run(image)
    after = os.stat(image), sorted(os.listdir(os.path.dirname(image)))
    with open(image, "rb") as f:
        assert f.read() == data
    assert (before[0].st_mtime_ns, before[0].st_ctime_ns, before[0].st_blocks, before[1]) == \
        (after[0].st_mtime_ns, after[0].st_ctime_ns, after[0].st_blocks, after[1])


# ---- who may not, and what is not there

@served(on=[Platterd])
def who_may_not_write_is_told_so(files):
    if os.geteuid() != 0:
        tap.skip("only root can become somebody else")
    folder = files.path("closed")
    os.mkdir(folder)
    image = make_image(folder)
    os.chmod(image, 0o444)
    os.chmod(folder, 0o555)
    for above in iter_up(folder):
        os.chmod(above, os.stat(above).st_mode | stat.S_IXOTH)
    facts, found = examined(image, before=NOBODY)
    assert NOT_WRITABLE in found and SAFE not in found
    assert facts["NBD"]["read-only"] == facts["SCSI"]["WP"] == "yes: the image may not be written"
    assert "Permission denied" in facts["cost"]["not measured"]
    os.chmod(folder, 0o000)
    done = doctor.run(image, before=NOBODY)
    assert done.returncode == CANNOT and image in done.stdout
    assert "Permission denied" in done.stdout


@served(on=[Platterd])
def what_cannot_be_examined_is_told_as_json_too(files):
    none = files.path("none")
    done = subprocess.run([doctor.PLATTER, "doctor", "--json", none], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    assert done.returncode == CANNOT
    assert json.loads(done.stdout) == {"target": none,
                                       "error": none + ": No such file or directory"}


@served(on=[Platterd])
def a_path_may_look_like_anything(files):
    folder = files.path("a:")
    os.mkdir(folder)
    image = make_image(folder)
    odd = os.path.join(folder, "b\033[31m\nc://d")
    os.makedirs(odd)
    os.rename(image, odd + "/disk.img")
    done = doctor.run(odd + "/disk.img")
    assert done.returncode in (0, 1) and "\033" not in done.stdout
    assert done.stdout.splitlines()[0].startswith(folder + "/b?[31m?c://d/disk.img: "), done.stdout
    done = doctor.run(odd + "/none")
    assert done.returncode == CANNOT and "\033" not in done.stdout


@served(on=[Platterd])
def an_image_that_was_deleted_and_is_open_can_be_examined(files):
    image = make_image(files.path("."))
    with open(image, "rb") as f:
        os.unlink(image)
        facts, _ = examined("/proc/%d/fd/%d" % (os.getpid(), f.fileno()))
    assert facts["image"]["size"] == "%d bytes" % (8 * MiB)
    assert "no directory" in facts["cost"]["not measured"]


@served(on=[Platterd])
def only_what_the_image_has_counts_as_written(files):
    """Not what lies behind its end; what has not come to the disk yet does."""
    image = files.image(8 * MiB)
    subprocess.run(["fallocate", "-l", "8M", image], check=True)
    with open(image, "rb+") as f:
        f.write(b"x" * (8 * MiB))
        f.flush()
        facts, found = examined(image)
    assert facts["image"]["written"] == "%d bytes" % (8 * MiB) and NOT_WRITTEN not in found
    hole = files.image(8 * MiB, "hole")
    with open(hole, "rb+") as f:
        f.seek(4 * MiB)
        f.write(b"x" * (4 * MiB))
        os.fsync(f.fileno())
    subprocess.run(["fallocate", "-n", "-o", "8M", "-l", "8M", hole], check=True)
    facts, found = examined(hole)
    assert facts["image"]["written"] == "%d bytes" % (4 * MiB) and NOT_WRITTEN in found


def iter_up(folder):
    """The folders above it that are ours to change."""
    while (folder := os.path.dirname(folder)) not in ("/", "/tmp", "/var", "/var/tmp"):
        yield folder


@served(on=[Platterd])
def a_directory_is_examined_for_images_to_come(files):
    facts, found = examined(files.path("."))
    assert "native, one" in facts["cost"] and "image" not in facts and "NBD" not in facts
    assert SAFE in found or IN_MEMORY in found


@served(on=[Platterd])
def what_lies_on_no_disk_is_not_called_safe(files):
    for folder in "/proc", "/sys":
        facts, found = examined(folder)
        assert SAFE not in found and NO_DISK in found and NO_FILE in found, found


@served(on=[Platterd])
def what_cannot_be_examined_is_refused_with_its_name(files):
    for path, why in ((files.path("none.img"), "No such file"), ("/dev/null", "no file, block"),
                      (make_image(files.path("."), size=0), None)):
        done = doctor.run(path)
        status, said = done.returncode, done.stdout
        assert status == CANNOT if why else status in (HEALTHY, ADVICE), said
        assert why is None or path in said and why in said
    assert doctor.run().returncode == doctor.run("--no-such", "x").returncode == CANNOT


if __name__ == "__main__":
    tap.main()
