#!/usr/bin/python3
"""The iSCSI clients that people use: QEMU's driver, and libiscsi's tools."""

# no valgrind

import json
import os
import random
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import server
import tap
from server import PATIENCE, Platterd

KiB, MiB = 1 << 10, 1 << 20
SIZE = 16 * MiB
TARGET = "iqn.2026-11.org.example:disk"
USER, SECRET = "somebody", "a-long-secret"


def run(*command, status=0):
    """What a command prints. It has to end with that status."""
    if shutil.which(command[0]) is None:
        tap.skip(command[0] + " is not installed")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace",
                          timeout=40 * PATIENCE)
    if command[0].startswith("qemu") and "Unknown protocol 'iscsi'" in done.stdout:
        tap.skip("QEMU's iSCSI driver is not installed")
    assert done.returncode == status, "%s: %d: %s" % (
        " ".join(command), done.returncode, done.stdout[-2000:])
    return done.stdout


def qemu_io(*commands, status=0):
    """Commands to qemu-io; the last word is the disk."""
    *commands, disk = commands
    return run("qemu-io", "-f", "raw", *[w for c in commands for w in ("-c", c)], disk,
               status=status)


def by_every_way(case):
    """Registers a case, which gets a function that makes a server, and by CHAP a second one."""
    def plain(factory):
        case(factory, lambda image, **how: factory(image, iscsi=True, args=["--target", TARGET],
                                                   **how))

    def with_chap(factory):
        def serve(image, **how):
            secrets, conf = factory.path("secrets"), factory.path("conf")
            with open(secrets, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write("in %s %s\n" % (USER, SECRET))
            keys = "".join("%s = %s\n" % (k.replace("_", "-"), "on" if v is True else v)
                           for k, v in how.items())
            with open(conf, "w") as f:
                f.write("[export disk]\npath = %s\n%s[target %s]\nchap = %s\nlun.0 = disk\n" % (
                    image, keys, TARGET, secrets))
            s = factory(args=["-c", conf], iscsi=True)
            s.unproven = s.iscsi_uri
            s.iscsi_uri = s.iscsi_uri.replace("://", "://%s%%%s@" % (USER, SECRET))
            return s
        case(factory, serve)

    server.served(plain, name=case.__name__, on=[Platterd])
    server.served(with_chap, name=case.__name__ + "_by_chap", on=[Platterd])
    return case


def patterned(path):
    """Random runs of data and holes, so that copying has something to get wrong."""
    r, at = random.Random(1), 0
    with open(path, "wb") as f:
        f.truncate(SIZE)
        while at < SIZE:
            length = min(r.randrange(1, 300 * KiB), SIZE - at)
            if r.random() < 0.6:
                f.seek(at)
                f.write(r.randbytes(length))
            at += length
    return path


def content(path):
    with open(path, "rb") as f:
        return f.read()


# ---- QEMU ------------------------------------------------------------------------------------------

@by_every_way
def qemu_img_copies_from_and_to(factory, serve):
    source, copy = patterned(factory.path("source.img")), factory.path("copy.qcow2")
    with serve(source) as s:
        told = json.loads(run("qemu-img", "info", "--output=json", "-f", "raw", s.iscsi_uri))
        assert told["virtual-size"] == SIZE, told
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", s.iscsi_uri, copy)
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", s.iscsi_uri, copy)
    target = factory.image(SIZE, "target.img", fill=0x77)
    with serve(target) as s:
        run("qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", copy, s.iscsi_uri)
    assert content(target) == content(source)


@by_every_way
def qemu_io_reads_what_it_wrote(factory, serve):
    image = factory.image(SIZE, fill=0xEE)
    with serve(image) as s:
        said = qemu_io("write -f -P 0x5a 0 1M", "write -P 0xa5 1M 64k", "flush",
                       "write -z 2M 1M", "write -z -u 3M 1M", "discard 4M 4M",
                       "read -P 0x5a 0 1M", "read -P 0xa5 1M 64k", "read -P 0 2M 1M",
                       "read -P 0 3M 1M", "read -P 0xee 8M 1M", "aio_write -P 0x11 12M 2M",
                       "aio_write -f -P 0x22 14M 2M", "aio_flush", "read -P 0x11 12M 2M",
                       "read -P 0x22 14M 2M", s.iscsi_uri)
        assert "failed" not in said.lower(), said
    got = content(image)
    assert got[:MiB] == b"\x5a" * MiB and got[MiB:MiB + 64 * KiB] == b"\xa5" * 64 * KiB
    assert got[2 * MiB:4 * MiB] == bytes(2 * MiB)
    # What QEMU discards reads as zeroes, since that is what it is told (LBPRZ).
    assert got[4 * MiB:8 * MiB] == bytes(4 * MiB)
    assert got[12 * MiB:14 * MiB] == b"\x11" * 2 * MiB and got[14 * MiB:] == b"\x22" * 2 * MiB


@server.served(on=[Platterd])
def qemu_sees_which_blocks_are_there(factory):
    """By GET LBA STATUS."""
    image = factory.image(SIZE)
    with open(image, "r+b") as f:
        f.seek(4 * MiB)
        f.write(b"x" * MiB)
    with factory(image, iscsi=True) as s:
        extents = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", s.iscsi_uri))
    data = [(e["start"], e["length"]) for e in extents if e["data"]]
    assert data == [(4 * MiB, MiB)], extents


@server.served(on=[Platterd])
def qemu_takes_a_read_only_disk_as_such(factory):
    with factory(factory.image(SIZE, fill=0xEE), iscsi=True, read_only=True) as s:
        said = qemu_io("write 0 4k", s.iscsi_uri, status=1)
        assert "LUN is write protected" in said, said
        run("qemu-io", "-r", "-f", "raw", "-c", "read -P 0xee 0 1M", s.iscsi_uri)


# ---- libiscsi ----------------------------------------------------------------------------------------

@by_every_way
def the_tools_of_libiscsi_get_on_with_it(factory, serve):
    with serve(factory.image(SIZE)) as s:
        portal = s.iscsi_uri.rsplit("/", 2)[0]
        said = run("iscsi-ls", "--show-luns", portal)
        assert "Target:" + TARGET in said and re.search(r"Lun:0 +Type:DIRECT_ACCESS", said), said
        said = run("iscsi-inq", s.iscsi_uri)
        assert "PLATTER" in said and "DIRECT_ACCESS" in said, said
        for page, word in (("0x00", "0x80"), ("0x83", "NAA"), ("0xb0", "unmap"), ("0xb2", "lbpu")):
            said = run("iscsi-inq", "--evpd=1", "--pagecode=%d" % int(page, 16), s.iscsi_uri)
            assert word.lower() in said.lower(), said
        said = run("iscsi-readcapacity16", s.iscsi_uri)
        assert re.search(r"(?i)total size: *%d\b" % SIZE, said), said


@server.served(on=[Platterd])
def a_disk_can_be_write_protected_by_software(factory):
    """By the control mode page, and not for longer than the server runs."""
    image = factory.image(SIZE)
    with factory(image, iscsi=True) as s:
        assert "SWP:0" in run("iscsi-swp", s.iscsi_uri)
        run("iscsi-swp", "--swp=on", s.iscsi_uri)
        assert "SWP:1" in run("iscsi-swp", s.iscsi_uri)
        said = qemu_io("write 0 4k", s.iscsi_uri, status=1)
        assert "LUN is write protected" in said, said
        run("iscsi-swp", "--swp=off", s.iscsi_uri)
        qemu_io("write 0 4k", s.iscsi_uri)
        run("iscsi-swp", "--swp=on", s.iscsi_uri)
    with factory(image, iscsi=True) as s:
        qemu_io("write 0 4k", s.iscsi_uri)


@by_every_way
def a_load_of_libiscsi_finds_no_errors(factory, serve):
    with serve(factory.image(SIZE)) as s:
        said = run("iscsi-perf", "-m", "16", "-b", "8", "-t", "1", "-r", s.iscsi_uri)
        assert re.search(r"iops average [1-9]", said) and "error" not in said.lower(), said


# ---- who may not ---------------------------------------------------------------------------------------

@by_every_way
def without_the_secret_nobody_gets_in(factory, serve):
    with serve(factory.image(SIZE)) as s:
        uri = getattr(s, "unproven", None)
        if uri is None:     # then there is none to know
            run("iscsi-inq", s.iscsi_uri)
            return
        for wrong in (uri, uri.replace("://", "://%s%%another-secret@" % USER),
                      uri.replace("://", "://nobody%%%s@" % SECRET)):
            said = run("iscsi-inq", wrong, status=10)
            assert "Authentication" in said or "auth" in said.lower(), said
            run("qemu-img", "info", "-f", "raw", wrong, status=1)


tap.main()
