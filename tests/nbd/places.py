#!/usr/bin/python3
"""The same promises wherever the image lies: file systems and block devices."""

# no valgrind

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import mounts
import nbdraw
import tap
from model import Model, exercise
from nbdraw import FUA, NO_HOLE, READ_ONLY, error_of
from server import served

MiB = 1 << 20
ODD = 2 * MiB + 777
MODES = ("auto", "writeback", "none")


def on_files(server, where):
    """An image of an odd size, in both modes."""
    for mode in MODES:
        image = server.image(ODD, os.path.join(where, "disk.img"), fill=0xEE)
        exercise(server, image, tap.seed(), steps=60, cache=mode)
        assert os.stat(image).st_size == ODD


def on_device(server, sector):
    """The device itself: the client need not know of its sectors."""
    size = 16 * MiB
    path = server.image(size, "backing", fill=0xEE)
    with mounts.loop(path, sector) as device:
        for mode in MODES:
            with server(device, cache=mode) as s, nbdraw.connect(s.address) as c:
                assert c.size == size
                least, preferred, _ = c.block_size
                assert least == 1 and preferred >= sector, c.block_size
                c.write(0, b"\xee" * 4 * MiB)
                c.write(512, b"a" * 512, FUA)
                assert c.read(0, 1536) == b"\xee" * 512 + b"a" * 512 + b"\xee" * 512
                assert c.read(513, 5) == b"a" * 5
                for offset, length in ((0, 4096), (512, 512), (4096, 1000), (1000, 70000),
                                       (MiB - 1, MiB + 2)):
                    for flags in (0, FUA, NO_HOLE):
                        c.write(0, b"\xee" * 4 * MiB)
                        c.zero(offset, length, flags)
                        want = b"\xee" * offset + bytes(length)
                        assert c.read(0, 4 * MiB) == want.ljust(4 * MiB, b"\xee"), (offset, length)
                c.write(size - 2, b"\xee\xee")
                c.write(size - 1, b"Z", FUA)
                c.trim(512, 512, FUA)
                c.trim(2 * MiB, MiB)
                assert c.read(size - 2, 2) == b"\xeeZ"
                assert sum(n for n, _ in c.block_status(0, size)) == size
            exercise(server, device, tap.seed(), steps=60, cache=mode)
            with open(path, "rb") as f:
                assert len(f.read()) == size


@served
def an_odd_image_on_tmpfs(server):
    with mounts.tmpfs(server.path("place"), 16 * MiB) as where:
        on_files(server, where)


@served
def an_odd_image_on_ext4(server):
    with mounts.file_system("ext4", server.path("fs"), server.path("place"), 64 * MiB) as where:
        on_files(server, where)


@served
def an_odd_image_on_xfs(server):
    with mounts.file_system("xfs", server.path("fs"), server.path("place"), 300 * MiB) as where:
        on_files(server, where)


@served
def an_odd_image_on_a_file_system_with_4096_byte_sectors(server):
    with mounts.file_system("ext4", server.path("fs"), server.path("place"), 64 * MiB,
                            sector=4096) as where:
        on_files(server, where)


@served
def a_device_with_512_byte_sectors(server):
    on_device(server, 512)


@served
def native_fua_beside_cached_writes_to_a_device(server):
    path = server.image(MiB, "backing", fill=0xEE)
    with mounts.loop(path, 512) as device:
        with server(device, cache="writeback", fua="native") as s, \
                nbdraw.connect(s.address) as a, nbdraw.connect(s.address) as b:
            model = Model(a, b"\xee" * MiB, tap.seed(), fua=0.3)
            for _ in range(150):
                model.crowd([a, b], 120, 512)


@served
def a_device_that_shrinks_fails_the_next_flush(server):
    """What was written behind its new end is gone."""
    for mode in MODES:
        path = server.image(2 * MiB, "shrinking", fill=0xEE)
        with mounts.loop(path, 512) as device, server(device, cache=mode) as s, \
                nbdraw.connect(s.address) as c:
            c.write(MiB, b"x" * 4096)
            os.truncate(path, MiB // 2)
            mounts.run("losetup", "--set-capacity", device)
            assert error_of(c.flush) == "EIO", mode
            assert error_of(c.write, 0, b"x" * 4096, FUA) == "EIO", mode
            assert c.read(0, 4096) == b"\xee" * 4096
            assert s.alive(), s.said()


@served
def a_device_that_may_not_be_written_is_served_read_only(server):
    """The kernel opens it for writing all the same."""
    with mounts.loop(server.image(MiB, "backing", fill=0xEE), 512, "--read-only") as device:
        for mode in MODES:
            with server(device, cache=mode) as s, nbdraw.connect(s.address) as c:
                assert c.flags & READ_ONLY and "read-only" in s.said(), s.said()
                assert error_of(c.write, 0, b"x" * 4096, FUA) == "EPERM", mode
                assert c.read(0, 4096) == b"\xee" * 4096, mode


@served
def a_device_with_4096_byte_sectors(server):
    on_device(server, 4096)


if __name__ == "__main__":
    tap.main()
