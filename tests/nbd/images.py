#!/usr/bin/python3
"""Images and options that are wrong, in use, or change under the server: one clear
message each, and nothing changed."""

# no valgrind

import contextlib
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import mounts
import nbdraw
import tap
from nbdraw import CMD_READ, CMD_WRITE, FUA, error_of
from server import NBDKIT, PLUGIN, Nbdkit, served

KiB, MiB = 1 << 10, 1 << 20


def snapshot(directory):
    """Names, sizes, times and bytes of all that is in there."""
    found = {}
    for where, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(where, name)
            stat = os.lstat(path)
            with contextlib.suppress(OSError):
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as f:
                    found[path] = f.read()
            found[path, "stat"] = stat.st_size, stat.st_mtime_ns, stat.st_mode
    return found


def assert_refused(server, *words, names, **how):
    """Refused quickly, in one message that has these names in it, and nothing changed."""
    before = snapshot(server.dir)
    said = server.refusal(*words, **how)
    errors = [line for line in said.splitlines() if "error:" in line]
    assert len(errors) == 1, said
    for name in names:
        assert name in errors[0], "%r is not in: %s" % (name, said)
    assert snapshot(server.dir) == before, "something changed"
    return errors[0]


# ---- what is no disk

@served
def what_is_no_disk_is_refused_by_name(server):
    fifo, sock, link = server.path("a-fifo"), server.path("a-socket"), server.path("a-link")
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as s:
        if len(sock) < 100:
            s.bind(sock)
        else:
            sock = fifo
    os.symlink(fifo, link)
    for path in (fifo, sock, server.dir, link, "/dev/null", "/dev/zero", "/dev/tty",
                 server.path("missing"), server.path("missing/too")):
        for read_only in (False, True):
            assert_refused(server, "path=" + path, names=[path], read_only=read_only)
        assert_refused(server, path, names=[path])


@served
def a_refusal_says_what_the_thing_is(server):
    fifo = server.path("pipe")
    os.mkfifo(fifo)
    assert_refused(server, fifo, names=[fifo, "pipe"])
    assert_refused(server, server.dir, names=[server.dir, "directory"])
    assert_refused(server, server.path("nothing"), names=["No such file"])


@served
def a_symlink_to_an_image_is_served(server):
    image, link = server.image(MiB, fill=0xEE), server.path("link")
    os.symlink(image, link)
    with server(link) as s, nbdraw.connect(s.address) as c:
        c.write(0, b"by the link", FUA)
    with open(image, "rb") as f:
        assert f.read(12) == b"by the link\xee"
    assert os.path.islink(link)


def assert_served_to_readers(server, image, **how):
    """Nobody asked for that, so it is said."""
    for asked in (False, True):
        with server(image, read_only=asked, **how) as s, nbdraw.connect(s.address) as c:
            assert c.flags & nbdraw.READ_ONLY
            assert c.read(0, 512) == b"\xee" * 512
            assert ("it is served read-only" in s.said()) == (not asked), s.said()


@served
def an_image_without_permission_to_write_is_served_only_to_readers(server):
    image = server.image(MiB, fill=0xEE)
    # Root is one of those whom permissions stop, without this capability.
    wrap = () if os.geteuid() else ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    os.chmod(image, 0o000)
    assert_refused(server, image, names=[image, "Permission denied"], wrap=wrap)
    assert_refused(server, image, names=[image, "Permission denied"], wrap=wrap, read_only=True)
    os.chmod(image, 0o444)
    assert_served_to_readers(server, image, wrap=wrap)


@served
def an_image_on_a_read_only_mount_is_served_only_to_readers(server):
    where = server.path("mount")
    with mounts.tmpfs(where, 4 * MiB):
        image = server.image(MiB, "mount/disk.img", fill=0xEE)
        mounts.run("mount", "-o", "remount,ro", where)
        assert_served_to_readers(server, image)


# ---- options

@served
def a_wrong_value_is_named_with_its_option(server):
    image = server.image(MiB, fill=0xEE)
    for option, value in (("cache", "sometimes"), ("cache", ""), ("cache", "WRITEBACK"),
                          ("fua", "maybe"), ("lock", "perhaps"), ("driver", "floppy")):
        assert_refused(server, image, names=[option, value], **{option: value})
    for option, value in (("size", "many"), ("size", "-1"), ("size", "1Q"), ("size", "1 M"),
                          ("size", "99999999999999999999"), ("size", "")):
        assert_refused(server, names=[option, value], driver="memory", **{option: value})
    for option, value in (("at", "x"), ("at", "-3"), ("delay", "5fortnights"), ("kind", "all")):
        assert_refused(server, names=[option, value], driver="fault", over="memory", size="1M",
                       **{option: value})


@served
def an_unknown_option_is_named(server):
    image = server.image(MiB, fill=0xEE)
    assert_refused(server, image, names=["colour"], colour="red")
    assert_refused(server, image, names=["Cache"], Cache="none")
    assert_refused(server, names=["path"], path=image, driver="memory", size="1M")
    assert_refused(server, names=["colour"], path=image, driver="fault", over="file", colour="red")


@served
def an_option_given_twice_is_refused(server):
    image = server.image(MiB, fill=0xEE)
    for words, name in (([image, "cache=none", "cache=none"], "cache"),
                        ([image, "cache=none", "cache=writeback"], "cache"),
                        (["path=" + image, "path=" + image], "path"),
                        ([image, "path=" + image], "path"),
                        ([image, "driver=file", "driver=file"], "driver")):
        assert_refused(server, *words, names=[name])


@served
def what_contradicts_or_lacks_something_is_refused(server):
    image = server.image(MiB, fill=0xEE)
    assert_refused(server, image, names=[image], dir=server.dir)
    assert_refused(server, names=["path"])
    assert_refused(server, names=["path"], path="")
    assert_refused(server, names=["size"], driver="memory")
    assert_refused(server, names=["over"], driver="fault", path=image)
    assert_refused(server, names=["over"], over="memory", path=image)
    assert_refused(server, names=["floppy"], driver="fault", over="floppy", path=image)
    assert_refused(server, names=["dir"], dir=server.path("missing"))
    assert_refused(server, names=["dir"], dir=image)


def nbdkit_says(*words):
    return subprocess.run([*NBDKIT, PLUGIN, *words], stdout=subprocess.PIPE, text=True,
                          check=True).stdout


@served(on=[Nbdkit])
def help_shows_every_option(_):
    said = nbdkit_says("--help")
    for option in ("path", "dir", "driver", "over", "cache", "fua", "lock", "size", "seed", "kind"):
        assert option + "=" in said, "%s is missing: %s" % (option, said)
    for word in ("auto", "writeback", "directsync", "writethrough", "unsafe", "native", "commit",
                 "memory", "null", "fault", "powercut"):
        assert word in said, "%s is missing: %s" % (word, said)


@served(on=[Nbdkit])
def dump_plugin_shows_name_and_promises(_):
    said = dict(line.split("=", 1) for line in nbdkit_says("--dump-plugin").splitlines())
    assert said["name"] == "platter"
    assert said["thread_model"] == "parallel"
    assert said["magic_config_key"] == "path"
    for callback in ("list_exports", "can_fua", "can_multi_conn", "can_cache", "can_extents",
                     "can_fast_zero", "block_size", "trim", "zero", "flush", "cache", "extents"):
        assert said["has_" + callback] == "1", callback


# ---- images in use

@contextlib.contextmanager
def qemu_has_open(image, *options):
    """qemu-io with the image open, as a virtual machine would have it."""
    if shutil.which("qemu-io") is None:
        tap.skip("qemu-io is not installed")
    with subprocess.Popen(["qemu-io", "-f", "raw", *options, image], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as qemu:
        qemu.stdin.write("length\n")
        qemu.stdin.flush()
        said = qemu.stdout.readline()
        assert "MiB" in said, said
        try:
            yield
        finally:
            qemu.stdin.write("quit\n")
            qemu.stdin.close()
            qemu.stdout.read()


def qemu_io(image, *options):
    done = subprocess.run(["qemu-io", "-f", "raw", *options, image], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


@served
def a_second_writer_is_refused_and_told_which_image(server):
    image, link = server.image(MiB, fill=0xEE), server.path("link")
    os.link(image, link)
    with server(image) as s, nbdraw.connect(s.address) as c:
        c.write(0, b"mine")
        for mode in ("writeback", "none", "unsafe"):
            assert_refused(server, image, names=[image], cache=mode)
        said = assert_refused(server, link, names=[link])
        assert "use" in said or "lock" in said, said
        with server(image, lock="off") as t, nbdraw.connect(t.address) as d:
            assert d.read(0, 4) == b"mine"
        assert c.read(0, 4) == b"mine"
    with server(image):
        pass


@served
def readers_share_an_image(server):
    image = server.image(MiB, fill=0xEE)
    with server(image, read_only=True) as s, server(image, read_only=True) as t, \
            nbdraw.connect(s.address) as c, nbdraw.connect(t.address) as d:
        assert c.read(0, 9) == d.read(0, 9) == b"\xee" * 9


@served
def qemu_and_we_keep_out_of_each_others_images(server):
    image = server.image(MiB, fill=0xEE)
    with server(image):
        status, said = qemu_io(image, "-c", "write 0 512")
        assert status != 0 and "lock" in said, said
        status, said = qemu_io(image, "-U", "-r", "-c", "read -P 0xee 0 512")
        assert status == 0, said
    with qemu_has_open(image):
        assert_refused(server, image, names=[image])
        with server(image, lock="off"):
            pass
    with qemu_has_open(image, "-r"), server(image, read_only=True):
        pass
    with server(image, read_only=True):
        status, said = qemu_io(image, "-r", "-c", "read -P 0xee 0 512")
        assert status == 0, said
    with server(image):
        pass
    assert qemu_io(image, "-c", "write -P 1 0 512")[0] == 0


@served
def a_lock_dies_with_its_server(server):
    image = server.image(MiB, fill=0xEE)
    for _ in range(3):
        with server(image) as s, nbdraw.connect(s.address) as c:
            c.write(0, b"x" * 512, FUA)
            s.kill()
    with server(image) as s, nbdraw.connect(s.address) as c:
        assert c.read(0, 512) == b"x" * 512


@served
def a_locked_image_stays_locked_with_no_client(server):
    image = server.image(MiB, fill=0xEE)
    with server(image) as s:
        nbdraw.connect(s.address).close()
        assert_refused(server, image, names=[image])


# ---- images that change under the server

@served
def an_image_that_shrinks_gives_errors_and_the_server_lives(server):
    for mode in ("writeback", "none"):
        image = server.image(MiB, fill=0xEE)
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            os.truncate(image, 300001)
            for offset, length in ((512 * KiB, 4096), (MiB - 1, 1), (300000, 100), (0, MiB)):
                error = c.call(CMD_READ, offset, length).error
                assert error == 5, "%s: read %d+%d: error %d" % (mode, offset, length, error)
            assert c.read(0, 300001) == b"\xee" * 300001
            assert error_of(c.block_status, 0, MiB) in ("", "EIO")
            with nbdraw.connect(s.address) as d:
                assert d.read(0, 4096) == b"\xee" * 4096
            os.truncate(image, MiB)
            assert c.read(0, MiB) == b"\xee" * 300001 + bytes(MiB - 300001)
            c.write(MiB - 9, b"recovered", FUA)
            assert c.read(MiB - 9, 9) == b"recovered"
            # What was cut off cannot be made durable.
            os.truncate(image, MiB - 4096)
            assert error_of(c.flush) == "EIO"
            assert s.alive()


@served
def a_full_file_system_is_enospc_and_passes(server):
    for mode in ("writeback", "none"):
        where = server.path("full")
        with mounts.tmpfs(where, 4 * MiB):
            image = server.image(16 * MiB, "full/disk.img")
            with server(image, cache=mode) as s, nbdraw.connect(s.address) as c, \
                    nbdraw.connect(s.address) as d:
                for flags in (0, FUA):
                    error = c.call(CMD_WRITE, 0, 8 * MiB, flags, b"x" * 8 * MiB).error
                    assert error == 28, "%s: %d" % (mode, error)
                assert c.read(12 * MiB, 512) == bytes(512)
                assert d.read(0, 512) in (b"x" * 512, bytes(512))
                c.trim(0, 8 * MiB)
                c.write(0, b"y" * 65536, FUA)
                assert d.read(0, 65536) == b"y" * 65536
                # Another kind of full: what was free is used up by a neighbour, and comes back.
                with open(server.path("full/neighbour"), "wb") as f, contextlib.suppress(OSError):
                    f.write(bytes(4 * MiB))
                assert error_of(c.write, 4 * MiB, b"z" * MiB) == "ENOSPC"
                os.unlink(server.path("full/neighbour"))
                c.write(4 * MiB, b"z" * MiB, FUA)
                assert c.read(4 * MiB, MiB) == b"z" * MiB


@served
def a_file_size_limit_is_an_error_and_no_death(server):
    """The kernel's way to say it, SIGXFSZ, ends a process that does not expect it."""
    for mode in ("writeback", "none"):
        image = server.image(4 * MiB)
        with server(image, cache=mode, wrap=("prlimit", "--fsize=%d" % MiB)) as s, \
                nbdraw.connect(s.address) as c:
            for offset, length in ((MiB - 4096, 8192), (2 * MiB, 4096)):
                error = error_of(c.write, offset, b"x" * length)
                assert error in ("ENOSPC", "EFBIG", "EIO"), error
            assert s.alive()
            c.write(0, b"y" * 4096, FUA)
            assert c.read(0, 4096) == b"y" * 4096
            assert c.read(3 * MiB, 512) == bytes(512)


# ---- a directory of images

def shelf(server):
    """A directory with one image, one more, and much that is none."""
    os.makedirs(server.path("shelf/sub"))
    server.image(MiB, "outside.img", fill=0x11)
    server.image(MiB, "shelf/ok.img", fill=0xAA)
    server.image(2 * MiB + 5, "shelf/second image.raw", fill=0xBB)
    server.image(MiB, "shelf/sub/inner.img", fill=0xCC)
    server.image(MiB, "shelf/.hidden", fill=0xDD)
    os.symlink(server.path("outside.img"), server.path("shelf/link"))
    os.symlink("../outside.img", server.path("shelf/relative-link"))
    os.symlink("ok.img", server.path("shelf/alias"))
    os.symlink("sub", server.path("shelf/sub-link"))
    os.symlink("/", server.path("shelf/root-link"))
    os.mkfifo(server.path("shelf/fifo"))
    return server.path("shelf")


def refused(s, name):
    with nbdraw.Client(s.address) as c:
        try:
            c.go(name)
        except (nbdraw.Refused, nbdraw.Closed):
            return True
    return False


@served
def a_name_never_leaves_the_directory(server):
    directory = shelf(server)
    before = snapshot(server.dir)
    with server(dir=directory) as s:
        for name in ("..", ".", "/", "/etc/passwd", server.path("outside.img"), "../outside.img",
                     "sub", "sub/", "sub/inner.img", "sub/../ok.img", "./ok.img", "a/../ok.img",
                     "../shelf/ok.img", "//ok.img", "ok.img/", "ok.img/.", "link", "relative-link",
                     "alias", "sub-link/inner.img", "root-link/etc/passwd", ".hidden", "fifo",
                     "missing", "",
                     "ok.img\0", "ok.img\0x", "OK.IMG", "x" * 300, "x" * 4000, "x/" * 1000,
                     server.path("shelf/ok.img")):
            assert refused(s, name), "served %r" % name
        with nbdraw.connect(s.address, "ok.img") as c:
            assert c.read(0, MiB) == b"\xaa" * MiB
        assert s.alive()
    assert snapshot(server.dir) == before


@served
def a_file_swapped_for_a_link_is_refused(server):
    directory = shelf(server)
    with server(dir=directory) as s:
        with nbdraw.Client(s.address) as c:
            assert "ok.img" in c.list()
            os.unlink(server.path("shelf/ok.img"))
            os.symlink(server.path("outside.img"), server.path("shelf/ok.img"))
            try:
                c.go("ok.img")
                raise AssertionError("followed the link")
            except (nbdraw.Refused, nbdraw.Closed):
                pass
        with nbdraw.connect(s.address, "second image.raw") as c:
            assert c.read(0, 5) == b"\xbb" * 5


@served
def the_list_is_of_regular_files(server):
    directory = shelf(server)
    with server(dir=directory) as s:
        with nbdraw.Client(s.address) as c:
            assert sorted(c.list()) == ["ok.img", "second image.raw"]
        server.image(MiB, "shelf/later.img")
        with nbdraw.Client(s.address) as c:
            assert "later.img" in c.list()


@served
def each_name_is_its_own_disk_and_its_clients_share_it(server):
    directory = shelf(server)
    with server(dir=directory) as s, nbdraw.connect(s.address, "ok.img") as a, \
            nbdraw.connect(s.address, "ok.img") as b, \
            nbdraw.connect(s.address, "second image.raw") as c:
        assert a.size == b.size == MiB and c.size == 2 * MiB + 5
        a.write(100, b"shared", FUA)
        c.write(100, b"other", FUA)
        assert b.read(99, 8) == b"\xaashared\xaa"
        assert c.read(99, 7) == b"\xbbother\xbb"
        assert a.flags & nbdraw.CAN_MULTI_CONN
        # The lock is the server's, for as long as somebody uses the image.
        assert_refused(server, server.path("shelf/ok.img"), names=["ok.img"])
        b.close()
        assert_refused(server, server.path("shelf/ok.img"), names=["ok.img"])


@served
def a_name_can_be_used_again_when_all_have_left(server):
    directory = shelf(server)
    with server(dir=directory) as s:
        for n in range(20):
            with nbdraw.connect(s.address, "ok.img") as c:
                c.write(n, b"x")
                assert c.read(0, n + 2) == b"x" * (n + 1) + b"\xaa"


@served
def a_read_only_directory_is_for_readers(server):
    directory = shelf(server)
    with server(dir=directory, read_only=True) as s, nbdraw.connect(s.address, "ok.img") as c:
        assert c.flags & nbdraw.READ_ONLY
        assert error_of(c.write, 0, b"x") == "EPERM"
        assert c.read(0, 5) == b"\xaa" * 5


if __name__ == "__main__":
    tap.main()
