#!/usr/bin/python3
"""The clients that people use, over each of their ways in, and nbdkit's own filters."""

# no valgrind

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import pki
import tap
from model import Model
from nbdraw import FUA, NO_HOLE
from server import FrontEnd, Nbdkit, Platterd, served

KiB, MiB = 1 << 10, 1 << 20
ODD = 8 * MiB + 777


def run(*command, status=0, **how):
    """What a command prints. It has to end with that status."""
    if shutil.which(command[0]) is None:
        tap.skip(command[0] + " is not installed")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **how)
    assert done.returncode == status, "%s: %d: %s" % (
        " ".join(command), done.returncode, done.stdout[-2000:])
    return done.stdout


def content(path):
    with open(path, "rb") as f:
        return f.read()


def patterned(path, size, seed=1):
    """Random runs of data and holes, so that copying has something to get wrong."""
    r, at = random.Random(seed), 0
    with open(path, "wb") as f:
        f.truncate(size)
        while at < size:
            length = min(r.randrange(1, 300 * KiB), size - at)
            if r.random() < 0.6:
                f.seek(at)
                f.write(r.randbytes(length))
            at += length
    return path


# ---- libnbd's family

@served
def nbdinfo_shows_what_is_promised(server):
    with server(server.image(ODD)) as s:
        export = json.loads(run("nbdinfo", "--json", s.uri))["exports"][0]
        assert export["export-size"] == ODD
        assert not export["is_read_only"]
        for flag in ("flush", "fua", "multi_conn", "trim", "zero", "fast_zero", "cache"):
            assert export["can_" + flag], flag
        assert "base:allocation" in export["contexts"]
        run("nbdinfo", "--can", "fua", s.uri)
        assert run("nbdinfo", "--size", s.uri).strip() == str(ODD)
    with server(server.image(ODD), read_only=True) as s:
        run("nbdinfo", "--is", "readonly", s.uri)
        run("nbdinfo", "--can", "trim", s.uri, status=2)


@served
def nbdcopy_both_ways_is_the_same_image(server):
    source, back = patterned(server.path("source"), ODD), server.path("back")
    for mode in ("writeback", "none"):
        with server(server.image(ODD), cache=mode) as s:
            run("nbdcopy", "--flush", "--connections=4", "--requests=32", source, s.uri)
            run("nbdcopy", "--connections=4", s.uri, back)
            assert content(back) == content(source), mode
            run("cmp", "-", source, stdin=subprocess.Popen(
                ["nbdcopy", s.uri, "-"], stdout=subprocess.PIPE).stdout)
        assert content(server.path("disk.img")) == content(source), mode
        # From one server to another.
        with server(server.image(ODD, "other.img"), cache=mode) as t, \
                server(server.path("disk.img"), cache=mode) as s:
            run("nbdcopy", "--flush", s.uri, t.uri)
        assert content(server.path("other.img")) == content(source), mode


@served
def nbdsh_writes_with_fua_and_reads_back(server):
    script = """
assert h.can_fua() and h.can_flush() and h.can_multi_conn() and h.can_fast_zero()
h.pwrite(b'a' * 4096, 0, nbd.CMD_FLAG_FUA)
h.pwrite(b'b' * 1001, 5000, nbd.CMD_FLAG_FUA)
h.flush()
h.zero(65536, 8192, nbd.CMD_FLAG_FUA)
h.zero(65536, 8192, nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
h.trim(65536, 131072, nbd.CMD_FLAG_FUA)
h.cache(65536, 0)
assert h.pread(4096, 0) == b'a' * 4096
assert h.pread(1003, 4999) == b'\\0' + b'b' * 1001 + b'\\0'
"""
    with server(server.image(ODD)) as s:
        run("nbdsh", "-u", s.uri, "-c", script)


@served
def libnbd_finds_no_fault_with_any_reply(server):
    """Many commands of all kinds in flight over libnbd, which checks what it receives."""
    script = """
import os, random
h.set_strict_mode(0)
r = random.Random(3)
size = h.get_size()
model = bytearray(size)
for burst in range(20):
    flying = []
    for n in range(32):
        offset = n * 250007 + r.randrange(1000)
        data = r.randbytes(r.randrange(1, 60000))
        kind = r.randrange(4)
        flag = nbd.CMD_FLAG_FUA if r.random() < .2 else 0
        if kind == 0:
            flying.append(h.aio_zero(len(data), offset, flags=flag))
            data = bytes(len(data))
        else:
            buffer = nbd.Buffer.from_bytearray(bytearray(data))
            flying.append(h.aio_pwrite(buffer, offset, flags=flag))
        model[offset:offset + len(data)] = data
    while h.aio_in_flight() > 0:
        h.poll(-1)
    for c in flying:
        assert h.aio_command_completed(c)
    at = r.randrange(size - 100000)
    assert h.pread(100000, at) == model[at:at + 100000], burst
assert h.pread(size, 0) == model
"""
    with server(server.image(ODD)) as s:
        run("nbdsh", "-u", s.uri, "-c", script)


@served
def nbdcopy_hears_of_a_bad_block_and_of_no_other(server):
    """A copy that lacks a block must not pass for one that is whole."""
    image, back = patterned(server.path("source"), 2 * MiB), server.path("back")
    with server(image, driver="fault", over="file", kind="read", offset=MiB, length=4096,
                repeat="forever") as s:
        # One at a time: two replies to a client that has gone are more than nbdkit 1.32 survives.
        assert "Input/output error" in run("nbdcopy", "--synchronous", s.uri, back, status=1)
        with nbdraw.connect(s.address) as c:
            whole = content(image)
            for offset in range(0, 2 * MiB, 64 * KiB):
                error = nbdraw.error_of(c.read, offset, 64 * KiB)
                assert error == ("EIO" if offset == MiB else ""), offset
            assert c.read(0, MiB) == whole[:MiB]
            assert c.read(MiB + 4096, MiB - 4096) == whole[MiB + 4096:]


# ---- QEMU's

def nbd_node(s):
    return "json:" + json.dumps({"driver": "raw", "file": {
        "driver": "nbd", "server": {"type": "unix", "path": s.address}}})


@served
def qemu_img_converts_compares_and_maps(server):
    # QEMU counts in sectors, so here the size is a multiple.
    source = patterned(server.path("source"), 8 * MiB)
    for mode in ("writeback", "none"):
        with server(server.image(8 * MiB), cache=mode) as s:
            run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", "-W", source, s.uri)
            run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, s.uri)
            back = server.path("back.qcow2")
            run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", s.uri, back)
            run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", source, back)
            info = json.loads(run("qemu-img", "info", "--output=json", "-f", "raw", s.uri))
            assert info["virtual-size"] == 8 * MiB
            served_map = json.loads(run("qemu-img", "map", "--output=json", nbd_node(s)))
            assert sum(e["length"] for e in served_map) == 8 * MiB
            file_map = json.loads(run("qemu-img", "map", "--output=json", "-U", "-f", "raw",
                                      server.path("disk.img")))
            assert [(e["start"], e["length"], e["zero"]) for e in served_map] == \
                   [(e["start"], e["length"], e["zero"]) for e in file_map]
            with nbdraw.connect(s.address) as c:
                c.write(4 * MiB, b"not the same")
            run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, s.uri, status=1)


@served
def qemu_io_writes_with_fua_and_verifies(server):
    for mode in ("writeback", "none", "directsync", "writethrough"):
        with server(server.image(8 * MiB), cache=mode) as s:
            said = run("qemu-io", "-f", "raw", s.uri,
                       "-c", "write -f -P 0x11 0 64k", "-c", "write -f -P 0x22 4608 512",
                       "-c", "aio_write -f -P 0x33 1M 256k", "-c", "aio_write -P 0x44 2M 256k",
                       "-c", "aio_flush", "-c", "flush",
                       "-c", "write -z -f 8k 8k", "-c", "write -z -u 1M 64k",
                       "-c", "discard 3M 64k",
                       "-c", "read -P 0x11 0 4608", "-c", "read -P 0x22 4608 512",
                       "-c", "read -P 0 8k 8k", "-c", "read -P 0x11 16k 48k",
                       "-c", "read -P 0 1M 64k", "-c", "read -P 0x33 1088k 192k",
                       "-c", "read -P 0x44 2M 256k")
            assert "failed" not in said and "error" not in said.lower(), said


# ---- servers that are our clients

class Proxy(FrontEnd):
    """Serves again what another server serves."""

    def __init__(self, run, *command):
        super().__init__(run)
        if shutil.which(command[0]) is None:
            tap.skip(command[0] + " is not installed")
        self.start([word.format(socket=self.socket, pid=self.pid_file) for word in command])


def exercise_through(server, *command):
    """Bytes and flags arrive, by two hands, where they belong."""
    image = server.image(2 * MiB, fill=0xEE)
    for mode in ("writeback", "none"):
        before = content(image)
        with server(image, cache=mode) as s:
            command_here = [word.replace("SOCKET", s.address) for word in command]
            with Proxy(server.run, *command_here) as p, nbdraw.connect(p.address) as c:
                assert c.size == 2 * MiB and c.flags & nbdraw.SEND_FUA, "%#x" % c.flags
                model = Model(c, before, tap.seed(), fua=0.5)
                model.run(80)
                model.crowd([c], 100, 4096)
                c.flush()
        model.compare(image)


@served
def qemu_storage_daemon_is_a_client(server):
    exercise_through(
        server, "qemu-storage-daemon", "--pidfile", "{pid}",
        "--blockdev", "driver=nbd,node-name=n,server.type=unix,server.path=SOCKET",
        "--nbd-server", "addr.type=unix,addr.path={socket}",
        "--export", "type=nbd,id=e,node-name=n,name=,writable=on")


@served
def qemu_nbd_is_a_client(server):
    exercise_through(server, "qemu-nbd", "--persistent", "-f", "raw", "--pid-file={pid}",
                     "--discard=unmap", "-k", "{socket}", "nbd+unix:///?socket=SOCKET")


@served
def nbdkit_is_a_client(server):
    """By its nbd plugin, and over several connections."""
    exercise_through(server, "nbdkit", "-f", "-U", "{socket}", "-P", "{pid}", "nbd",
                     "socket=SOCKET")


# ---- fio

def fio_verifies(server, **how):
    if "uri" not in run("fio", "--enghelp=nbd", cwd=server.dir):
        tap.skip("this fio has no nbd engine")
    for mode, sizes in (("writeback", "512-256k"), ("none", "4k-64k")):
        with server(server.image(64 * MiB), cache=mode, **how) as s:
            said = run("fio", "--name=verify", "--ioengine=nbd", "--uri=" + s.uri, "--rw=randrw",
                       "--bsrange=" + sizes, "--iodepth=32", "--size=32M", "--fsync=64",
                       "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=256",
                       "--randseed=7", "--output-format=json", cwd=server.dir)
            job = json.loads(said[said.index("{"):])["jobs"][0]
            assert job["error"] == 0 and job["write"]["total_ios"] > 0, said
            assert job["read"]["total_ios"] > job["write"]["total_ios"], "nothing was verified"


@served
def fio_verifies_random_writes(server):
    fio_verifies(server)


@served(on=[Platterd])
def fio_verifies_random_writes_over_tcp(server):
    fio_verifies(server, tcp=True)


# ---- guestfish

def guestfish(uri, *commands, read_only=False):
    """One appliance; commands are lists of words."""
    # It has a spelling of its own for a path.
    command = ["guestfish", "--ro" if read_only else "--rw", "--format=raw",
               "-a", uri.replace("nbd+unix:", "nbd:"), "run"]
    for c in commands:
        command += [":", *c.split(" ")]
    env = dict(os.environ, LIBGUESTFS_BACKEND="direct", LIBGUESTFS_BACKEND_SETTINGS="force_tcg",
               LIBGUESTFS_CACHEDIR="/var/tmp")
    return run(*command, env=env)


@served(limit=300)
def guestfish_makes_a_file_system_that_fsck_likes(server):
    """A partition, ext4, files; and what is in the image passes fsck here, too."""
    image = server.image(96 * MiB)
    payload = patterned(server.path("payload"), 5 * MiB + 3)
    with server(image) as s:
        said = guestfish(
            s.uri, "part-disk /dev/sda mbr", "mkfs ext4 /dev/sda1", "mount /dev/sda1 /",
            "mkdir /d", "write /d/hello hello-there", "upload %s /d/payload" % payload, "sync",
            "umount-all", "e2fsck /dev/sda1 correct:true",
            "mount /dev/sda1 /", "cat /d/hello", "checksum sha256 /d/payload", "fstrim /",
            "umount-all")
    want = run("sha256sum", payload).split()[0]
    assert "hello-there" in said and want in said, said
    # part-disk starts the partition where it thinks best; the table says where.
    start, = struct.unpack("<I", content(image)[446 + 8:446 + 12])
    run("e2fsck", "-f", "-n", "%s?offset=%d" % (image, start * 512))


@served(slow=True)
def guestfish_finds_its_files_in_another_session(server):
    """Written in cache=none, and then a second server that only reads."""
    image = server.image(512 * MiB)
    payload = patterned(server.path("payload"), 40 * MiB, seed=2)
    with server(image, cache="none") as s:
        guestfish(s.uri, "part-disk /dev/sda gpt", "mkfs ext4 /dev/sda1", "mount /dev/sda1 /",
                  "upload %s /one" % payload, "upload %s /two" % payload, "rm /one", "fstrim /",
                  "upload %s /three" % payload, "umount-all")
    with server(image, read_only=True) as s:
        said = guestfish(s.uri, "mount-ro /dev/sda1 /", "checksum sha256 /two",
                         "checksum sha256 /three", "umount-all", read_only=True)
    assert said.split() == [run("sha256sum", payload).split()[0]] * 2, said


# ---- each way in: TCP, and TLS on both kinds of socket

def ways(server, image, **options):
    """platterd on each, one after the other: it, the URI for libnbd, and the words for QEMU."""
    if shutil.which("certtool") is None:
        tap.skip("certtool is not installed")
    top = pki.make(server.path("pki"))
    client = top + "/client"
    creds = ["--object", "tls-creds-x509,id=tls,endpoint=client,dir=" + client]
    for tcp in (False, True):
        for tls in (None, top + "/server"):
            with server(image, tcp=tcp, tls=tls, **options) as s:
                uri, words = s.uri, []
                where = ("driver=nbd,server.type=inet,server.host=127.0.0.1,server.port=%d"
                         % s.address[1] if tcp else "driver=nbd,server.type=unix,server.path="
                         + s.address)
                if tls is not None:
                    uri += ("?" if tcp else "&") + "tls-certificates=" + client
                    # A path has no name that a certificate could have.
                    uri = uri.replace("nbds+unix:///", "nbds+unix://localhost/")
                    where += ",tls-creds=tls" + ("" if tcp else ",tls-hostname=localhost")
                    words = creds
                print(uri)
                yield s, uri, words, where


@served(on=[Platterd])
def libnbd_comes_by_each_way(server):
    source, back = patterned(server.path("source"), ODD), server.path("back")
    for s, uri, _, _ in ways(server, server.image(ODD)):
        said = json.loads(run("nbdinfo", "--json", uri))
        assert said["exports"][0]["export-size"] == ODD
        assert said["TLS"] == uri.startswith("nbds"), said
        run("nbdinfo", "--list", uri)
        run("nbdcopy", "--flush", "--connections=4", "--requests=32", source, uri)
        run("nbdcopy", "--connections=4", uri, back)
        assert content(back) == content(server.path("disk.img")) == content(source)


@served(on=[Platterd])
def qemu_comes_by_each_way(server):
    source = patterned(server.path("source"), 8 * MiB)
    for s, uri, creds, where in ways(server, server.image(8 * MiB), cache="none"):
        image = "--image-opts"
        raw = "driver=raw,file." + where.replace(",", ",file.")
        run("qemu-img", "convert", *creds, "-n", "--target-image-opts", "-f", "raw", "-W",
            source, raw)
        run("qemu-img", "compare", *creds, image, "driver=raw,file.filename=" + source, raw)
        said = run("qemu-io", *creds, image, raw, "-c", "write -f -P 0x11 0 64k",
                   "-c", "read -P 0x11 0 64k", "-c", "flush")
        assert "failed" not in said, said


@served(on=[Platterd])
def nbd_client_lists_the_exports(server):
    image = server.image(MiB)
    more = ["--export", "name=second disk,path=" + server.image(MiB, "second.img")]
    with server(image, tcp=True, args=more) as s:
        said = run("nbd-client", "-l", "127.0.0.1", "-p", str(s.address[1]))
        assert "second disk" in said, said


@served(on=[Platterd])
def who_asks_for_no_name_hears_which_there_are(server):
    """There is no default export; and the client is told so, and can list the others."""
    with server(args=["--export", "name=a,path=" + server.image(MiB)]) as s:
        try:
            nbdraw.connect(s.address, structured=False)
            raise AssertionError("served without a name")
        except nbdraw.Refused as e:
            assert "no default export" in str(e), e
        assert "--list" in run("nbdinfo", s.uri, status=1)
        assert 'export="a"' in run("nbdinfo", "--list", s.uri)
        assert "size: 1" in run("nbdinfo", s.uri.replace("///", "///a"))
        run("qemu-img", "info", "nbd:unix:%s:exportname=a" % s.address)
        run("qemu-img", "info", "nbd:unix:" + s.address, status=1)


@served(on=[Platterd], limit=180)
def guestfish_reads_a_named_export_over_tcp(server):
    """Its probe connects and leaves; the export cannot be written and need not be."""
    image = server.image(8 * MiB)
    run("mkfs.ext4", "-q", image)
    with server(tcp=True, args=["--export", "name=a,read-only=on,path=" + image]) as s:
        said = guestfish("nbd://127.0.0.1:%d/a" % s.address[1], "list-filesystems",
                         read_only=True)
        assert "/dev/sda: ext4" in said, said
        assert "error" not in s.said(), s.said()


# ---- nbdkit's filters, with the plugin below

@served(on=[Nbdkit])
def the_cow_filter_keeps_writes_from_the_image(server):
    image = server.image(ODD, fill=0xEE)
    with server(image, filters=["cow"]) as s, nbdraw.connect(s.address) as c:
        c.write(100, b"over" * 30000, FUA)
        c.write(MiB + 1, bytes(70000))
        c.flush()
        assert c.read(99, 6) == b"\xeeovero"
        assert c.read(MiB, 70002) == b"\xee" + bytes(70000) + b"\xee"
        assert c.read(ODD - 9, 9) == b"\xee" * 9
        assert content(image) == b"\xee" * ODD


@served(on=[Nbdkit])
def the_partition_filter_serves_one_partition(server):
    image = server.image(4 * MiB, fill=0xEE)
    entry = struct.pack("<8BII", 0, 0, 0, 0, 0x83, 0, 0, 0, 2048, 4096)
    with open(image, "r+b") as f:
        f.write(bytes(446) + entry + bytes(48) + b"\x55\xaa")
    with server(image, filters=["partition"], partition=1) as s, nbdraw.connect(s.address) as c:
        assert c.size == 2 * MiB
        c.write(0, b"first", FUA)
        c.write(2 * MiB - 4, b"last")
        assert nbdraw.error_of(c.write, 2 * MiB - 4, b"beyond") == "ENOSPC"
    after = content(image)
    assert after[MiB - 1:MiB + 6] == b"\xeefirst\xee"
    assert after[3 * MiB - 4:3 * MiB + 1] == b"last\xee"


@served(on=[Nbdkit])
def the_cache_filter_hands_writes_down_at_flush(server):
    image = server.image(ODD, fill=0xEE)
    with server(image, filters=["cache"]) as s, nbdraw.connect(s.address) as c:
        c.write(5000, b"late" * 10000)
        c.write(MiB, b"at once", FUA)
        assert content(image)[MiB:MiB + 7] == b"at once"
        c.flush()
        assert content(image)[4999:5004] == b"\xeelate"
        c.write(0, b"through the cache")
        c.flush()
        assert c.read(0, 18) == b"through the cache\xee"
    assert content(image)[:18] == b"through the cache\xee"


@served(on=[Nbdkit])
def the_stats_filter_counts_what_passes(server):
    stats = server.path("stats")
    with server(server.image(ODD), filters=["stats"], statsfile=stats) as s, \
            nbdraw.connect(s.address) as c:
        for n in range(7):
            c.write(n * 4096, b"x" * 4096, FUA)
        for n in range(3):
            c.read(n * 4096, 4096)
        c.flush()
    counted = content(stats).decode()
    assert re.search(r"write: 7 ops", counted), counted
    assert re.search(r"read: 3 ops", counted), counted
    assert re.search(r"flush: 1 ops", counted), counted


@served(on=[Nbdkit])
def offset_and_blocksize_filters_pass_fua_on_everything(server):
    for mode in ("writeback", "none"):
        image = server.image(ODD, fill=0xEE)
        with server(image, filters=["offset", "blocksize"], offset=512, range=4 * MiB,
                    minblock=4096, maxdata=65536, maxlen=65536, cache=mode) as s, \
                nbdraw.connect(s.address) as c:
            c.write(1, b"w" * 200000, FUA)
            c.zero(300001, 100000, FUA)
            c.zero(500001, 100000, FUA | NO_HOLE)
            c.trim(MiB, MiB, FUA)
            c.flush(FUA)
            assert c.read(0, 200002) == b"\xee" + b"w" * 200000 + b"\xee"
            assert c.read(300000, 100002) == b"\xee" + bytes(100000) + b"\xee"
            assert c.read(500000, 100002) == b"\xee" + bytes(100000) + b"\xee"
        after = content(image)
        assert after[511:515] == b"\xee\xeeww", mode
        assert len(after) == ODD and after[4 * MiB + 512:].count(0xEE) == ODD - 4 * MiB - 512, mode


@served(on=[Nbdkit])
def the_fua_filter_in_each_mode_ends_in_the_same_bytes(server):
    # "none" is this filter's default, and nbdkit 1.32 does not know the word.
    for fuamode in (None, "emulate", "native", "force", "pass"):
        image = server.image(ODD, fill=0xEE)
        options = {"fuamode": fuamode} if fuamode else {}
        with server(image, filters=["fua"], **options) as s, nbdraw.connect(s.address) as c:
            fua = FUA if c.flags & nbdraw.SEND_FUA else 0
            assert fua or fuamode is None, fuamode
            c.write(3, b"w" * 100000, fua)
            c.zero(200000, 50000, fua)
            c.zero(300000, 50000, fua | NO_HOLE)
            c.trim(400000, 50000, fua)
            c.flush()
            assert c.read(2, 100002) == b"\xee" + b"w" * 100000 + b"\xee", fuamode
            assert c.read(199999, 50002) == b"\xee" + bytes(50000) + b"\xee", fuamode
            assert c.read(299999, 50002) == b"\xee" + bytes(50000) + b"\xee", fuamode


if __name__ == "__main__":
    tap.main()
