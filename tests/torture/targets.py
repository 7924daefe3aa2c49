#!/usr/bin/python3
"""What `platter torture` refuses to destroy, how far it writes, and that no server, however it
behaves, makes it crash, hang, or believe that something was kept."""

import os
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import mounts
import tap
from liar import Cached, Gone
from nbdraw import SEND_FLUSH, SEND_FUA
from server import PATIENCE, FrontEnd, Platterd, served
from torture import CANNOT, KEPT, LOST, torture

KiB, MiB = 1 << 10, 1 << 20


def refused(target, *words):
    return torture("--seconds", "1", *words, target, status=CANNOT)


# ---- what may be of value

@served(on=[FrontEnd])
def what_is_not_empty_is_not_destroyed(files):
    image = files.image(8 * MiB)
    for command, what in ((["mkfs.ext4", "-q", image], "a file system (ext2, ext3 or ext4)"),
                          (["mkfs.xfs", "-q", "-f", image], "a file system (XFS)"),
                          (["mkswap", image], "swap space"),
                          (["sfdisk", "-q", image], "a partition table, or a boot sector")):
        files.image(MiB * (400 if "xfs" in command[0] else 8))
        subprocess.run(command, input=b"label: dos\n2048 2048\n", check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(image, "rb") as f:
            before = f.read(MiB)
        assert "has %s, which would be destroyed: --destroy" % what in refused(image)
        with open(image, "rb") as f:
            assert f.read(MiB) == before
    torture("--seconds", "1", "--destroy", image)
    for _ in range(2):
        assert "has what an earlier run has written" in refused(image)
        with open(image, "rb+") as f:
            f.write(bytes(100 * KiB))   # as that run may have done last


@served(on=[FrontEnd])
def one_byte_anywhere_in_the_range_is_of_value(files):
    for at in (0, 1, 5 * MiB + 77, 8 * MiB - 1):
        image = files.image(8 * MiB)
        with open(image, "rb+") as f:
            f.seek(at)
            f.write(b"\x01")
        assert "would be destroyed" in refused(image)


@served(on=[FrontEnd])
def only_the_range_is_written(files):
    image = files.image(8 * MiB, fill=0xEE)
    said = torture("--seconds", "1", "--destroy", "--offset", "1M", "--size", "2M", image)
    assert "2097152 bytes from 1048576 on" in said
    with open(image, "rb") as f:
        data = f.read()
    assert data[:MiB] == b"\xee" * MiB and data[3 * MiB:] == b"\xee" * (5 * MiB)
    assert not data[MiB:3 * MiB].count(b"\xee" * 64)


@served(on=[FrontEnd])
def a_range_that_is_not_there_is_refused(files):
    image = files.image(MiB)
    assert "no room" in refused(image, "--offset", "1M")
    assert "no multiple of" in refused(image, "--offset", "100")
    assert "no room" in refused(files.image(0, "empty"))


@served(on=[Platterd])
def what_is_read_only_is_refused(server):
    with server(server.image(8 * MiB), read_only=True, iscsi=True) as s:
        assert "read-only" in refused(s.uri)
        assert "read-only" in refused(s.iscsi_uri)


@served(on=[Platterd])
def an_image_that_is_served_is_refused(server):
    image = server.image(8 * MiB)
    with server(image):
        assert "is in use" in refused(image)


@served(on=[FrontEnd])
def a_device_that_is_in_use_is_refused(files):
    with mounts.loop(files.image(8 * MiB), 512) as device:
        mounts.run("mkfs.ext4", "-q", device)
        with mounts.mounted(files.path("mount"), device):
            assert "is in use" in refused(device, "--destroy")


# ---- the command line

@tap.test
def mistakes_on_the_command_line_are_named():
    for words, what in (([], "name one TARGET"),
                        (["a", "b"], "name one TARGET"),
                        (["--check", "a"], "--journal is missing"),
                        (["--expect-cut", "a"], "--journal is missing"),
                        (["--check", "--journal", "tcp://h:1", "a"], "has to be a file"),
                        (["--check", "--expect-cut", "--journal", "j", "a"], "exclude each other"),
                        (["--depth", "0", "a"], "--depth"),
                        (["--connections", "x", "a"], "connections"),
                        (["--size", "1Q", "a"], "size"),
                        (["ftp://host/x"], "no URI of NBD or iSCSI"),
                        (["--nonsense"], "nonsense")):
        assert what in torture(*words, status=CANNOT), words
    said = torture("--help")
    assert "--expect-cut" in said and len(said.splitlines()) <= 24


# ---- servers that misbehave

def against(kind, *words, status=CANNOT):
    with kind() as s:
        return torture("--seconds", "1", "--size", "512k", "--timeout", str(2 * PATIENCE), *words,
                       s.uri, status=status)


@tap.test
def who_forgets_at_once_is_not_believed():
    class Forgetful(Cached):
        def write(self, c, offset, data):
            pass
    assert "nothing of this run is there" in against(Forgetful)
    assert "NOT KEPT" in against(Forgetful, "--same-target", status=LOST)


@tap.test
def who_mixes_up_places_is_caught():
    class Mixer(Cached):
        def write(self, c, offset, data):
            super().write(c, (offset ^ 64 * KiB) % self.size, data)
    assert "misplaced" in against(Mixer, status=LOST)


@tap.test
def who_reads_garbage_is_caught():
    class Garbage(Cached):
        flushes = 0

        def flush(self, c):
            super().flush(c)
            self.flushes += 1

        def contents(self, c, offset, length):
            data = super().contents(c, offset, length)
            return os.urandom(length) if self.flushes else data
    assert "garbled" in against(Garbage, "--same-target", status=LOST)


@tap.test
def what_cannot_be_read_is_told():
    class Unreadable(Cached):
        flushes = 0

        def flush(self, c):
            super().flush(c)
            self.flushes += 1

        def check(self, c, flags, command, offset, length):
            if command == 0 and self.flushes and offset <= 100 * KiB < offset + length:
                return 5
            return super().check(c, flags, command, offset, length)
    said = against(Unreadable, status=LOST)
    assert "unreadable at 102400, 512 bytes" in said and "unreadable: 512 bytes" in said


@tap.test
def who_stops_answering_is_noticed():
    class Mute(Cached):
        count = 0

        def answer(self, c, command, cookie, error):
            self.count += 1
            if self.count < 100:
                super().answer(c, command, cookie, error)
    assert "the target has gone: no answer for" in against(Mute)


@tap.test
def who_answers_nonsense_is_noticed():
    class Nonsense(Cached):
        count = 0

        def simple(self, c, cookie, error, data=b""):
            self.count += 1
            cookie = cookie ^ 0x5555 if self.count > 100 else cookie
            super().simple(c, cookie, error, data)
        chunk = None

        def option(self, c, option, data):
            if option == 8:     # structured replies
                self.reply(c, option, 0x80000001)
                return False
            return super().option(c, option, data)
    assert "the target has gone" in against(Nonsense)


@tap.test
def who_hangs_up_is_noticed():
    class Quitter(Cached):
        count = 0

        def answer(self, c, command, cookie, error):
            self.count += 1
            if self.count > 100:
                raise Gone
            super().answer(c, command, cookie, error)
    assert "the target has gone" in against(Quitter)


@tap.test
def who_says_nothing_at_all_is_not_waited_for():
    for scheme, rest in (("nbd", ""), ("iscsi", "/iqn.2026-11.org.example:x/0")):
        with socket.create_server(("127.0.0.1", 0)) as mute:
            uri = "%s://127.0.0.1:%d%s" % (scheme, mute.getsockname()[1], rest)
            torture("--timeout", "1", uri, status=CANNOT)


@tap.test
def who_tells_each_connection_another_size_is_refused():
    class Shrinking(Cached):
        def tell_export(self, c, option):
            super().tell_export(c, option)
            self.size -= 64 * KiB
    assert "different sizes" in against(Shrinking)


@tap.test
def an_iscsi_target_that_sends_garbage_is_survived():
    def serve(listener, answer):
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            with c:
                c.recv(65536)
                c.sendall(answer)
    for n, answer in enumerate((b"\xff" * 48, bytes(48), os.urandom(4096), b"HTTP/1.0 400 \r\n\r\n",
                                bytes([0x23, 0x87, 0, 0, 0, 0xff, 0xff, 0xff]) + bytes(100))):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
            torture("--timeout", "1", "iscsi://127.0.0.1:%d/iqn.2026-11.org.example:x/0"
                    % listener.getsockname()[1], status=CANNOT)
            listener.shutdown(socket.SHUT_RDWR)


# ---- what the server does not offer is not asked for

@tap.test
def a_server_without_fua_or_shared_flush_is_tried_with_what_it_has():
    class Without(Cached):
        flags = Cached.flags & ~SEND_FUA & ~(1 << 8)
    said = against(Without, status=KEPT)
    assert "no FUA" in said and "one connection" in said

    class Nothing(Cached):
        flags = Cached.flags & ~SEND_FUA & ~SEND_FLUSH
    assert "It promised nothing" in against(Nothing)


if __name__ == "__main__":
    tap.main()
