#!/usr/bin/python3
"""Where platterd can be reached: every form of an address, what stands in the way, and the
sockets that a service manager hands over."""

import contextlib
import functools
import os
import re
import shutil
import socket
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import tap
from server import PATIENCE, PLATTERD, Platterd
from server import served as served_by

MiB = 1 << 20
served = functools.partial(served_by, on=[Platterd])


def uris(s):
    return re.findall(r"^nbd\S+$", s.said(), re.M)


def size_at(address, name=""):
    with nbdraw.connect(address, name) as c:
        return c.size


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


@contextlib.contextmanager
def occupied(host="127.0.0.1"):
    """A port that somebody else listens on."""
    with socket.create_server((host, 0)) as s:
        yield s.getsockname()[1]


def free_port():
    with occupied() as port:
        return port


# ---- addresses


@served
def port_0_is_the_kernels_choice_and_is_printed(server):
    with server(server.image(MiB), args=["--tcp", "127.0.0.1:0"]) as s:
        tcp, = [u for u in uris(s) if u.startswith("nbd://")]
        port = int(re.fullmatch(r"nbd://127\.0\.0\.1:(\d+)", tcp)[1])
        assert port != 0
        assert size_at(("127.0.0.1", port)) == MiB


@served
def every_address_given_is_served(server):
    port = free_port()
    second = os.path.join(server.run, "second.sock")
    with server(server.image(MiB), args=["--unix", second, "--tcp", "127.0.0.1:%d" % port,
                                         "--tcp", "127.0.0.1:0"]) as s:
        assert len(uris(s)) == 4
        for uri in uris(s):
            asked = subprocess.run(["nbdinfo", "--size", uri], capture_output=True, text=True)
            assert asked.stdout == "%d\n" % MiB, (uri, asked)


@served
def a_port_alone_is_localhost_and_no_more(server):
    with server(server.image(MiB), args=["--tcp", "0"]) as s:
        port = int([u for u in uris(s) if u.startswith("nbd://localhost:")][0].split(":")[2])
        for *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            assert size_at(address[:2]) == MiB
        # Any other address of this machine is closed.
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
            raise AssertionError("served at 127.0.0.2")


@served
def a_star_is_every_address(server):
    with server(server.image(MiB), args=["--tcp", "*:0"]) as s:
        port = int([u for u in uris(s) if u.startswith("nbd://")][0].split(":")[2])
        assert size_at(("127.0.0.2", port)) == MiB
        if has_ipv6():
            assert size_at(("::1", port)) == MiB


@served
def an_ipv6_address_stands_in_brackets(server):
    if not has_ipv6():
        tap.skip("this machine has no IPv6")
    with server(server.image(MiB), args=["--tcp", "[::1]:0"]) as s:
        uri, = [u for u in uris(s) if u.startswith("nbd://[::1]:")]
        asked = subprocess.run(["nbdinfo", "--size", uri], capture_output=True, text=True)
        assert asked.stdout == "%d\n" % MiB, asked
        port = int(uri.rpartition(":")[2])
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
            raise AssertionError("IPv4 is served, too")


@served
def what_is_no_address_is_refused_and_named(server):
    image = server.image(MiB)
    for option, value in (("--tcp", "localhost"), ("--tcp", "70000"), ("--tcp", "::1:10809"),
                          ("--tcp", "no.such.host.invalid:1"), ("--vsock", "x:1"),
                          ("--unix", "/" + "x" * 108), ("--unix", "/no/such/directory/s")):
        said = server.refusal(image, args=[option, value])
        assert value in said and option in said, said


# ---- what stands in the way


@served
def ipv6_that_is_off_is_done_without(server):
    """As on a host that was booted with ipv6.disable=1, the other addresses are served."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        tap.skip("only root can make a network of its own")
    image = server.image(MiB)
    inside = ("ip link set lo up || exit 99\n"
              "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 || exit 99\n"
              "echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6 || exit 99\n"
              'exec "$@" --run \'nbdinfo --size "$uri"\'')
    for address in ("localhost:10809", "*:10809"):
        ran = subprocess.run(["unshare", "-n", "sh", "-c", inside, "sh", PLATTERD,
                              "--tcp", address, image], capture_output=True, text=True)
        if ran.returncode == 99:
            tap.skip("this network cannot be set up: " + ran.stderr)
        assert ran.returncode == 0 and "%d\n" % MiB in ran.stdout, ran
        if address.startswith("*"):
            continue
        ran = subprocess.run(["unshare", "-n", "sh", "-c", inside, "sh", PLATTERD,
                              "--tcp", "[::1]:10809", image], capture_output=True, text=True)
        assert ran.returncode == 1 and "[::1]:10809" in ran.stderr, ran


@served
def a_port_in_use_is_refused_by_one_line(server):
    with occupied() as port:
        said = server.refusal(server.image(MiB), args=["--tcp", "127.0.0.1:%d" % port])
        lines = [x for x in said.splitlines() if "127.0.0.1:%d" % port in x]
        assert len(lines) == 1 and "in use" in lines[0], said


@served
def a_port_can_be_had_again_at_once(server):
    port = free_port()
    image = server.image(MiB)
    for _ in range(3):
        with server(image, args=["--tcp", "127.0.0.1:%d" % port]):
            c = nbdraw.connect(("127.0.0.1", port))
            assert c.read(0, 512) == bytes(512)
        c.close()


@served
def the_socket_of_a_crashed_server_is_replaced(server):
    image = server.image(MiB)
    path = os.path.join(server.run, "fixed.sock")
    with server(image, args=["--unix", path]) as s:
        s.kill()
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    with server(image, args=["--unix", path]):
        assert size_at(path) == MiB
    assert not os.path.exists(path)


@served
def a_server_that_was_killed_can_be_started_again_at_once(server):
    port = free_port()
    path = os.path.join(server.run, "fixed.sock")
    image = server.image(MiB)
    for _ in range(4):
        with server(image, args=["--unix", path, "--tcp", "127.0.0.1:%d" % port]) as s:
            clients = [nbdraw.connect(a) for a in (path, ("127.0.0.1", port))]
            for c in clients:
                assert c.read(0, 512) == bytes(512)
            s.kill()
        for c in clients:
            c.socket.close()


@served
def the_socket_of_a_server_that_runs_is_left_alone(server):
    image = server.image(MiB)
    with server(image) as s:
        other = server.image(2 * MiB, "other.img")
        said = server.refusal(other, args=["--unix", s.socket])
        assert s.socket in said and "listens" in said, said
        assert size_at(s.socket) == MiB


@served
def a_file_that_is_no_socket_is_left_alone(server):
    path = os.path.join(server.run, "precious")
    with open(path, "w") as f:
        f.write("precious")
    said = server.refusal(server.image(MiB), args=["--unix", path])
    assert path in said, said
    with open(path) as f:
        assert f.read() == "precious"


@served
def a_socket_is_for_its_owner_unless_the_configuration_says_more(server):
    image = server.image(MiB)
    config = server.path("platter.conf")
    path = os.path.join(server.run, "shared.sock")
    with open(config, "w") as f:
        f.write("[listener shared]\nunix = %s\nmode = 0666\n[export]\npath = %s\n" % (path, image))
    with server(args=["-c", config]) as s:
        assert stat.S_IMODE(os.stat(s.socket).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
        assert size_at(path) == MiB


# ---- sockets of a service manager

# As sd_listen_fds(3) tells it: descriptors from 3 on, and whose they are.
MANAGER = """
import fcntl, os, sys
fds = [int(n) for n in sys.argv[1].split(",")]
high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]     # out of the way
for at, fd in enumerate(high):
    os.dup2(fd, 3 + at, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = str(len(fds))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Activated:
    """platterd as a service manager starts it, with these sockets."""

    def __init__(self, run, program, sockets, *args):
        self.log = open(os.path.join(run, "activated.log"), "w+")
        numbers = ",".join(str(x.fileno()) for x in sockets)
        self.process = subprocess.Popen(
            [sys.executable, "-c", MANAGER, numbers, program, *args],
            pass_fds=[x.fileno() for x in sockets], stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        try:
            status = self.process.wait(20 * PATIENCE)
        finally:
            self.process.kill()
            self.log.close()
        assert kind is not None or status == 0, status


@served
def three_sockets_of_a_service_manager_are_all_served(server):
    image = server.image(MiB)
    paths = [os.path.join(server.run, "%d.sock" % n) for n in range(2)]
    with contextlib.ExitStack() as stack:
        sockets = []
        for path in paths:
            sockets.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            sockets[-1].bind(path)
            sockets[-1].listen()
        sockets.append(stack.enter_context(socket.create_server(("127.0.0.1", 0))))
        address = sockets[2].getsockname()
        # A client that comes first waits for the server, as it is meant to be.
        early = socket.create_connection(address)
        with Activated(server.run, PLATTERD, sockets, image) as s:
            early.settimeout(20)
            assert early.recv(16, socket.MSG_WAITALL) == b"NBDMAGICIHAVEOPT"
            for where in (*paths, address):
                assert size_at(where) == MiB
            assert ":10809" not in s.said(), "it listens where nobody asked it to"
        # They are the manager's: the next server gets them.
        assert all(map(os.path.exists, paths))
        with Activated(server.run, PLATTERD, sockets, image):
            for where in (*paths, address):
                assert size_at(where) == MiB


@served
def what_is_no_listening_socket_is_not_taken_over(server):
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(os.path.join(server.run, "mute.sock"))
        s = Activated(server.run, PLATTERD, [mute], server.image(MiB))
        assert s.process.wait(20 * PATIENCE) == 1
        assert "descriptor 3" in s.said(), s.said()


tap.main()
