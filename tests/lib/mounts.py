"""mounts - file systems and loop devices that vanish with the test.

The test process gets a mount namespace of its own, and loop devices detach when their
last user is gone, so even a killed test leaves nothing behind.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess

import tap

CLONE_NEWNS = 0x20000
_private = False


def private():
    """From here on, what this process mounts is seen by it and its children alone."""
    global _private
    if _private:
        return
    if os.geteuid() != 0:
        tap.skip("mounting needs root")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        tap.skip("unshare: " + os.strerror(ctypes.get_errno()))
    run("mount", "--make-rprivate", "/")
    _private = True


def run(*command):
    if shutil.which(command[0]) is None:
        tap.skip(command[0] + " is not installed")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, "%s: %s" % (" ".join(command), done.stdout)
    return done.stdout.strip()


@contextlib.contextmanager
def mounted(where, *how):
    """mount HOW WHERE, until the block ends."""
    private()
    os.makedirs(where, exist_ok=True)
    run("mount", *how, where)
    try:
        yield where
    finally:
        run("umount", where)


def tmpfs(where, size):
    return mounted(where, "-t", "tmpfs", "-o", "size=%d" % size, "tmpfs")


@contextlib.contextmanager
def loop(path, sector, *options):
    """A loop device over a file, with sectors of that many bytes; options: of losetup."""
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        tap.skip("loop devices need root and /dev/loop-control")
    device = run("losetup", "-f", "--show", "--sector-size", str(sector), *options, path)
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    run("losetup", "-d", device)    # which happens when the last user closes it
    try:
        yield device
    finally:
        os.close(fd)


@contextlib.contextmanager
def file_system(kind, path, where, size, sector=512, options="defaults"):
    """A new file system of that kind in the file `path`, mounted at `where`; options: of mount."""
    with open(path, "wb") as f:
        f.truncate(size)
    with loop(path, sector) as device:
        run("mkfs." + kind, "-q", device)
        with mounted(where, "-o", options, device):
            yield where
