#!/usr/bin/python3
"""What platterd has given up by the time it serves, and that it serves all the same."""

# no valgrind

import contextlib
import ctypes
import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import mounts
import nbdraw
import pki
import tap
from nbdraw import FUA, NO_HOLE
from server import BUILD, COUNTS, PLATTERD, PRELOAD, SOURCE, Platterd, strace
from server import served as served_by, until

MiB = 1 << 20
served = functools.partial(served_by, on=[Platterd])
Platterd.finds_leaks = False


def need_root():
    if os.geteuid() != 0:
        tap.skip("only root can become another user")


def need_landlock():
    if PRELOAD or COUNTS:
        tap.skip("in this build there is no Landlock: see server/privsep.c")
    libc = ctypes.CDLL(None)
    if libc.syscall(444, None, 0, 1) < 1:   # landlock_create_ruleset: which version?
        tap.skip("this kernel has no Landlock")


def statuses(pid):
    """/proc/PID/task/*/status as dictionaries: one for each thread."""
    found = []
    for path in glob.glob("/proc/%d/task/*/status" % pid):
        with open(path) as f:
            found.append(dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line))
    return found


def use(address, name="", size=None):
    """Every command once, and what was written is there."""
    with nbdraw.connect(address, name) as c:
        assert size is None or c.size == size
        c.write(4096, b"a" * 65536, FUA)
        assert c.read(4096, 65536) == b"a" * 65536
        c.zero(0, 8192)
        c.zero(8192, 8192, NO_HOLE | FUA)
        assert c.read(0, 16384) == bytes(16384)
        c.trim(16384, 16384, FUA)
        if c.flags & nbdraw.SEND_CACHE:
            c.cache(0, 65536)
        assert c.block_status(0, c.size)
        c.write(1, b"b" * 511)
        c.flush()
        assert c.read(1, 511) == b"b" * 511


def size_by_tls(s, certificates):
    with nbdraw.Client(s.address) as c:
        c.starttls(certificates)
        c.go()
        return c.size


def reload(s):
    """By SIGHUP; returns what the server then says, up to its verdict."""
    before = len(s.said())
    os.kill(s.pid, signal.SIGHUP)
    until(lambda: "reload:" in s.said()[before:])
    return s.said()[before:]


def configuration(server, *exports, **settings):
    """Writes platter.conf, as editors do, in a folder of its own. exports: (name, path)."""
    path = server.path("etc/platter.conf")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as f:
        f.write("[server]\n")
        f.writelines("%s = %s\n" % item for item in settings.items())
        for name, image in exports:
            f.write("[export %s]\npath = %s\n" % (name, image))
    os.rename(path + ".new", path)
    return path


# ---- what is given up


@served
def another_user_has_no_way_back(server):
    need_root()
    with server(server.image(MiB), args=["--user", "nobody"]) as s:
        use(s.address)
        threads = statuses(s.pid)
        assert len(threads) >= 2
        for t in threads:
            assert "0" not in t["Uid"].split() + t["Gid"].split() + t["Groups"].split(), t
            for caps in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(t[caps], 16) == 0, (t["Name"], caps, t[caps])
            assert t["NoNewPrivs"] == "1" and t["Seccomp"] == "2", t


@served
def a_group_can_be_given_too(server):
    need_root()
    with server(server.image(MiB), args=["--user", "nobody", "--group", "54321"]) as s:
        for t in statuses(s.pid):
            assert set(t["Gid"].split()) == {"54321"}, t


@served
def a_root_that_stays_root_keeps_access_to_files_alone(server):
    need_root()
    with server(server.image(MiB)) as s:
        use(s.address)
        for t in statuses(s.pid):
            for caps in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(t[caps], 16) in (0, 1 << 1), (caps, t[caps])     # CAP_DAC_OVERRIDE
            assert t["NoNewPrivs"] == "1" and t["Seccomp"] == "2", t


@served
def a_user_who_starts_it_needs_no_privileges(server):
    need_root()
    image = server.image(MiB, server.run + "/disk.img")
    for path in (server.run, image):
        os.chown(path, 54321, 54321)
    as_user = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--"]
    with server(image, wrap=as_user) as s:
        use(s.address)
        for t in statuses(s.pid):
            assert int(t["CapEff"], 16) == 0 and t["Seccomp"] == "2", t
    assert not os.path.exists(s.socket) and not os.path.exists(s.pid_file)


@served
def without_sandbox_there_is_no_filter(server):
    with server(server.image(MiB), args=["--sandbox", "off"]) as s:
        for t in statuses(s.pid):
            assert t["Seccomp"] == "0" and t["NoNewPrivs"] == "1", t


@served
def the_command_of_run_is_whose_the_server_was(server):
    need_root()
    command = "id -u; cat /etc/shadow >/dev/null"
    done = subprocess.run([PLATTERD, "--user", "nobody", "--run", command, server.image(MiB)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done


@served
def a_reach_that_is_not_there_is_a_warning(server):
    gone = server.path("gone")
    with server(server.image(MiB), args=["--reach", server.dir + ":" + gone]) as s:
        assert s.said().count("warning: reach=") == 1, s.said()
        assert "reach=" + gone + ": " in s.said(), s.said()


@served
def who_does_not_exist_is_refused(server):
    need_root()
    image = server.image(MiB)
    for args in (["--user", "no-such-user"], ["--group", "no-such-group"]):
        said = server.refusal(image, args=args)
        assert args[1] in said, said


@served
def its_files_vanish_with_it(server):
    control = os.path.join(server.run, "control.sock")
    with server(server.image(MiB), args=["--control", control]) as s:
        assert all(map(os.path.exists, (s.socket, s.pid_file, control)))
    assert not any(map(os.path.exists, (s.socket, s.pid_file, control)))


# ---- what stays


@served
def an_image_of_root_is_served_by_nobody(server):
    """It was opened before, and each thread shares what was opened."""
    need_root()
    for cache in ("auto", "writeback", "none"):
        image = server.image(MiB)
        os.chmod(image, 0o600)
        with server(image, cache=cache, args=["--user", "nobody", "--loops", "3"]) as s:
            for _ in range(4):
                use(s.address, size=MiB)
            read_only = server.image(MiB, "ro.img")
            os.chmod(read_only, 0o400)


@served
def a_block_device_is_served_by_nobody(server):
    """Its size, its sectors, discards and zeroes: all that takes calls of its own."""
    need_root()
    backing = server.image(16 * MiB, "backing.img", fill=0x55)
    with mounts.loop(backing, 4096) as device:
        for cache in ("auto", "none"):
            with server(device, cache=cache, args=["--user", "nobody"]) as s:
                with nbdraw.connect(s.address) as c:
                    assert c.size == 16 * MiB
                    blocks = os.stat(backing).st_blocks
                    c.trim(8 * MiB, 8 * MiB)
                    assert cache == "none" or os.stat(backing).st_blocks < blocks
                use(s.address)


@served
def a_reload_opens_what_is_within_reach_and_nothing_else(server):
    need_landlock()
    inside, outside = server.path("inside"), server.path("outside")
    for where in (inside, outside):
        os.mkdir(where)
        server.image(2 * MiB, os.path.join(where, "new.img"))
    first = ("first", server.image(MiB))
    config = configuration(server, first, reach=inside)
    with server(args=["-c", config]) as s:
        use(s.address, "first", MiB)
        configuration(server, first, ("in", inside + "/new.img"), ("out", outside + "/new.img"),
                      reach=inside)
        said = reload(s)
        use(s.address, "in", 2 * MiB)
        use(s.address, "first", MiB)
        # Whose fault it is, and what to do about it.
        assert outside + "/new.img" in said and "reach" in said, said
        with contextlib.suppress(nbdraw.Refused):
            nbdraw.connect(s.address, "out")
            raise AssertionError("an image out of reach is served")
        # A new export in place of an old one, and the old one again.
        configuration(server, ("in", inside + "/new.img"), reach=inside)
        reload(s)
        configuration(server, first, reach=inside)
        reload(s)
        use(s.address, "first", MiB)


@served
def a_reload_by_nobody_opens_what_nobody_may(server):
    need_root()
    server.dir = server.run     # which nobody can be let into, whatever TMPDIR is
    os.chmod(server.dir, 0o755)
    mine, theirs = server.image(MiB, "mine.img"), server.image(MiB, "theirs.img")
    os.chmod(mine, 0o600)
    os.chown(theirs, 65534, 65534)
    first = ("first", server.image(MiB))
    settings = {"reach": server.dir, "user": "nobody"}
    config = configuration(server, first, **settings)
    with server(args=["-c", config]) as s:
        configuration(server, first, ("mine", mine), ("theirs", theirs), **settings)
        said = reload(s)
        assert mine in said, said
        use(s.address, "theirs")
        use(s.address, "first")
        with contextlib.suppress(nbdraw.Refused):
            nbdraw.connect(s.address, "mine")
            raise AssertionError("nobody opened an image of root")


@served
def nothing_that_a_server_does_is_refused(server):
    """Under strace, no call ends as the sandbox's refusals do."""
    need_root()
    trace = server.path("trace")
    first, second = ("first", server.image(MiB)), ("second", server.image(MiB, "second.img"))
    settings = {"reach": server.dir, "control": server.path("c.sock"), "metrics": "127.0.0.1:0"}
    config = configuration(server, first, **settings)
    with server(args=["-c", config], wrap=strace(trace, "-e", "status=failed")) as s:
        use(s.address, "first")
        configuration(server, first, second, **settings)
        reload(s)
        use(s.address, "second")
        use(s.address, "first")
    with open(trace) as f:
        refused = [line for line in f if re.search(r"= -1 E(PERM|ACCES|NOSYS)\b", line)
                   # These are asked for to know what there is.
                   and not re.search(r" (clone3|seccomp|capset|prctl)\(", line)]
    assert not refused, "".join(refused)


@served
def keys_that_are_replaced_are_read_in_the_sandbox(server):
    if shutil.which("certtool") is None:
        tap.skip("certtool is not installed")
    keys, config = server.path("keys"), server.path("etc/platter.conf")
    pki.make(server.path("pki"))
    shutil.copytree(server.path("pki/server"), keys)
    settings = {"tls": "required", "tls-certificates": keys}
    first = ("", server.image(MiB))
    configuration(server, first, **settings)
    with server(args=["-c", config]) as s:
        assert size_by_tls(s, server.path("pki/client")) == MiB
        for name in os.listdir(server.path("pki/other")):
            os.rename(os.path.join(server.path("pki/other"), name), os.path.join(keys, name))
        reload(s)
        assert size_by_tls(s, keys) == MiB


# ---- the unit for systemd


def unit(server):
    """The unit that was built, with a program that is there."""
    if shutil.which("systemd-analyze") is None:
        tap.skip("systemd-analyze is not installed")
    with open(os.path.join(BUILD, "server", "systemd", "platterd.service")) as f:
        text = re.sub(r"^(ExecStart=)\S+", r"\1" + os.path.join(BUILD, "platterd"), f.read(),
                      flags=re.M)
    path = server.path("platterd.service")
    with open(path, "w") as f:
        f.write(text)
    return path


@served
def the_unit_exposes_little(server):
    ran = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager",
                          unit(server)], capture_output=True, text=True)
    found = re.search(r"Overall exposure level for platterd\.service: ([0-9.]+)", ran.stdout)
    assert found, ran
    assert float(found[1]) <= 2.0, ran.stdout


@served
def the_units_are_what_systemd_understands(server):
    units = [unit(server), os.path.join(SOURCE, "server", "systemd", "platterd.socket")]
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
                         capture_output=True, text=True)
    complaints = [x for x in ran.stderr.splitlines() if "platterd" in x]
    assert ran.returncode == 0 and not complaints, ran.stderr


tap.main()
