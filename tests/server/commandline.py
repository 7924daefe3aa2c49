#!/usr/bin/python3
"""What the command line of platterd promises."""

# no valgrind

import concurrent.futures
import errno
import functools
import os
import random
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

import nbd

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))

import nbdraw
import server
import tap
from tap import main

PLATTERD = server.PLATTERD
until = functools.partial(server.until, seconds=10)


def alone(case):
    return server.served(case, on=[server.Platterd])


def platterd(*words, **how):
    """Runs it to its end: what it said, and its status."""
    done = subprocess.run([PLATTERD, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=30, **how)
    return done.stdout, done.returncode


def refused(*words, **how):
    said, status = platterd(*words, **how)
    assert status == 1, (words, status, said)
    lines = said.splitlines()
    assert lines and all(line.startswith("platterd: ") for line in lines), said
    return said


def address_of(uri):
    """For nbdraw."""
    tcp = re.match(r"nbds?://(?:\[(.*?)\]|([^:/]*)):(\d+)", uri)
    if tcp:
        return tcp[1] or tcp[2], int(tcp[3])
    return re.search(r"socket=(.*)", uri)[1]


def size_at(uri, name=""):
    with nbdraw.connect(address_of(uri), name) as c:
        return c.size


def uris(s):
    return re.findall(r"^nbds?\S+$", s.said(), re.M)


def listens(port, host="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        return s.connect_ex((host, port)) == 0


# ---- help and mistakes ------------------------------------------------------------------------


@alone
def help_fits_a_screen(_):
    said, status = platterd("--help")
    lines = said.splitlines()
    assert status == 0
    assert 24 <= len(lines) <= 40, len(lines)
    assert not [line for line in lines if len(line) >= 80], said
    assert platterd("-h") == (said, 0)


@alone
def help_tells_the_keys_of_exports_and_listeners(_):
    said, status = platterd("--help=export")
    assert status == 0 and "allow-subject=" in said and "cache=auto|writeback|" in said, said
    said, status = platterd("--help=listener")
    assert status == 0 and "mode=OCTAL" in said, said
    assert "--help=exprot" in refused("--help=exprot")


@alone
def version_is_one_line(_):
    said, status = platterd("--version")
    assert status == 0 and re.fullmatch(r"platterd \d+\.\d+\n", said), said


@alone
def an_unknown_option_is_named_and_the_nearest_suggested(_):
    for word, meant in (("--lops", "--loops"), ("--tls-cert", "--tls-certificates"),
                        ("--exprot=x", "--export"),
                        ("--readonly", "--read-only"), ("--unx", "--unix")):
        said = refused(word, "disk.img")
        assert word.partition("=")[0] + ":" in said and "is %s meant?" % meant in said, said
    for word in ("--something-else", "-x", "-"[:1] + "v"):
        said = refused(word)
        assert word in said and "--help" in said, said


@alone
def a_wrong_value_is_named_with_its_option(_):
    for words, says in (
            (["--loops", "many"], "loops=many: expected loops=NUMBER"),
            (["--loops=65"], "loops=65"),
            (["--tls", "sometimes"], "tls=sometimes: expected tls=off|optional|required"),
            (["--tls", "required"], "tls-certificates"),
            (["--foreground=yes"], "--foreground=yes: it takes no value"),
            (["--loops", "1", "--loops", "2"], "--loops: option loops is given twice"),
            (["--cache", "fast"], "cache=fast: expected cache="),
            (["--fua", "fast"], "fua=fast: expected fua="),
            (["--tcp", "http"], "--tcp"),
            (["--tcp", "::1:10809"], "--tcp"),
            (["--vsock", "a:b"], "--vsock"),
            (["--unix", "x" * 200], "--unix"),
            (["--export", "nonsense"], "--export: 'nonsense': expected KEY=VALUE"),
            (["--export", "name=a,path=b,colour=red"], "colour=red"),
            (["other.img"], "other.img and disk.img: one image"),
            (["--inetd", "--tcp", "0"], "--inetd"),
            (["--inetd", "--run", "true"], "--inetd"),
            (["--run", "true", "--run", "false"], "--run is given twice"),
            (["-c", "/nonexistent.conf"], "/nonexistent.conf"),
    ):
        said = refused(*words, "disk.img")
        assert says in said and len(said.splitlines()) == 1, said
    assert "--loops: its value is missing" in refused("disk.img", "--loops")


@alone
def nothing_to_serve_is_explained(_):
    said = refused()
    assert "platterd disk.img" in said and "--export" in said and "--help" in said, said
    assert "--cache" in refused("--cache", "none", "--export", "name=a,path=b")


@alone
def who_it_is_to_become_is_looked_for_before_anything_is_opened(s):
    image, conf = s.image(1 << 20), s.path("platter.conf")
    with open(conf, "w") as f:
        f.write("[server]\nloops = 1\ngroup = nobodys\n[export]\npath = %s\n" % image)
    for words, says in ((["--user", "no-such-user", image], "--user: user=no-such-user: "),
                        (["-c", conf], conf + ":3: group=nobodys: ")):
        for check in (["--check-config"], ["--unix", s.path("sock")]):
            said = refused(*check, *words)
            assert says in said and len(said.splitlines()) == 1, said
    assert not os.path.exists(s.path("sock"))


@alone
def check_config_opens_nothing(s):
    gone, sock, conf = s.path("gone.img"), s.path("sock"), s.path("platter.conf")
    words = ["--check-config", "--unix", sock, "--pidfile", s.path("pid")]
    assert platterd(*words, gone) == ("", 0)
    assert platterd("--check-config", "--", "--disk.img") == ("", 0), "it is no option"
    with open(conf, "w") as f:
        f.write("[export]\npath = %s\n" % gone)
    assert platterd(*words, "-c", conf) == ("", 0)
    with open(conf, "a") as f:
        f.write("colour = red\n")
    assert conf + ":3: colour=red" in refused(*words, "-c", conf)
    assert os.listdir(s.dir) == ["platter.conf"]


# ---- what is served ---------------------------------------------------------------------------


@alone
def an_image_is_the_default_export(s):
    with s(s.image(1 << 20)) as p:
        assert size_at(p.uri) == 1 << 20
        with nbdraw.Client(p.address) as c:
            assert c.list() == [""]
        with nbdraw.Client(p.address) as c:
            assert c.export_name() is None and c.size == 1 << 20
        with nbdraw.Client(p.address) as c:
            assert c.refusal(nbdraw.OPT_GO, nbdraw.info_data("disk.img")) == nbdraw.ERR_UNKNOWN


@alone
def without_a_default_export_a_client_learns_so(s):
    image = s.image(1 << 20)
    with s(args=["--export", "name=one,path=" + image]) as p:
        with nbdraw.Client(p.address) as c:
            (error, text), = c.option(nbdraw.OPT_GO, nbdraw.info_data(""))
            assert error == nbdraw.ERR_UNKNOWN and b"no default export" in text, (error, text)
            c.go("one")
            assert c.size == 1 << 20


@alone
def cache_fua_and_read_only_are_for_the_image(s):
    image = s.image(1 << 20, fill=1)
    with s(args=["--cache", "directsync", "--fua=commit", "--read-only", image]) as p:
        with nbdraw.connect(p.address) as c:
            assert c.flags & nbdraw.READ_ONLY
            assert "cache=directsync" in c.description and "read-only" in c.description
    with s(args=["--cache=none", image]) as p, nbdraw.connect(p.address) as c:
        assert "cache=none" in c.description and not c.flags & nbdraw.READ_ONLY


@alone
def an_export_is_described_by_pairs(s):
    comma = s.image(2 << 20, name="a,b=c.img")
    with s(args=["--export", "name=two words,path=" + comma.replace(",", ",,"),
                 "--export=driver=memory,size=3M,description=in RAM,,not on disk",
                 "--export", "name=hidden,driver=null,size=4M,listed=off,read-only=on"]) as p:
        with nbdraw.Client(p.address) as c:
            assert sorted(c.list()) == ["", "two words"]
        with nbdraw.connect(p.address) as c:
            assert c.description == "in RAM,not on disk"
        assert size_at(p.uri) == 3 << 20
        assert size_at(p.uri, "two words") == 2 << 20
        assert size_at(p.uri, "hidden") == 4 << 20


@alone
def an_image_that_cannot_be_opened_is_refused_at_the_start(s):
    gone, sock = s.path("gone.img"), s.path("sock")
    said = refused("--foreground", "--unix", sock, gone)
    assert gone in said and "No such file" in said, said
    said = refused("--foreground", "--unix", sock, "--export", "name=a,path=" + s.image(4096),
                   "--export", "name=b,path=" + gone)
    assert gone in said and "1 of 2 exports" in said, said
    assert not os.path.exists(sock)


# ---- where it listens -------------------------------------------------------------------------


@alone
def every_address_is_printed_as_a_uri_that_works(s):
    with s(args=["--tcp", "127.0.0.1:0", "--tcp=127.0.0.1:0", "--unix", s.path("a b"),
                 "--export", "name=a/b c,driver=null,size=1M",
                 "--export", "driver=null,size=2M"]) as p:
        found = until(lambda: len(uris(p)) >= 8 and uris(p))
        ports = {address_of(u)[1] for u in found if u.startswith("nbd://")}
        assert len(found) == 8 and len(ports) == 2 and 0 not in ports, found
        for uri in found:
            size = subprocess.run(["nbdinfo", "--size", uri], stdout=subprocess.PIPE, text=True)
            assert size.stdout == ("1048576\n" if "a/b" in uri else "2097152\n"), (uri, size)
    assert not os.path.exists(s.path("a b"))


@alone
def a_uri_says_where_tls_is_required(s):
    keys = s.path("keys")
    with open(keys, "w") as f:
        f.write("alice:%s\n" % ("5a" * 32))
    os.chmod(keys, 0o600)
    exports = ["--export=name=a,driver=null,size=1M", "--export=name=b,driver=null,size=1M,tls="]
    for tls, b, wanted in (("optional", "required", {"nbd+unix:///a", "nbds+unix:///b"}),
                           ("required", "required", {"nbds+unix:///a", "nbds+unix:///b"}),
                           ("off", "optional", {"nbd+unix:///a", "nbd+unix:///b"})):
        with s(args=["--tls", tls, "--tls-psk", keys, exports[0], exports[1] + b]) as p:
            assert {uri.partition("?")[0] for uri in uris(p)} == wanted, uris(p)


@alone
def by_itself_it_listens_on_localhost(s):
    script = """
    ip link set lo up
    "$0" --pidfile pid "$1"
    nbdinfo --size nbd://localhost && nbdinfo --size nbd://127.0.0.1:10809
    grep -h ':2A39 ' /proc/net/tcp /proc/net/tcp6 | awk '$4 == "0A" { print $2 }'
    kill $(cat pid)
    """
    said = in_a_network(s, script, s.image(1 << 20))
    assert said.splitlines().count("1048576") == 2, said
    assert said.count("nbd://localhost:10809") == 1, "one address, one line: " + said
    assert "0100007F:2A39" in said and "00000000:2A39" not in said, said


def needs_namespaces():
    if subprocess.run(["unshare", "-rn", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        tap.skip("this machine lets nobody make a user and network namespace")


def in_a_network(s, script, *words):
    """One of its own, where all ports are free."""
    needs_namespaces()
    done = subprocess.run(["unshare", "-rn", "bash", "-ec", script, PLATTERD, *words], cwd=s.dir,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@alone
def without_ipv6_it_serves_by_ipv4(s):
    said = in_a_network(s, """
    ip link set lo up
    sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1
    "$0" --tcp localhost:10809 --tcp '*:10810' --pidfile pid "$1"
    nbdinfo --size nbd://127.0.0.1:10809
    nbdinfo --size nbd://127.0.0.1:10810
    kill $(cat pid)
    """, s.image(1 << 20))
    assert said.splitlines().count("1048576") == 2, said


@alone
def a_port_in_use_is_one_line_and_a_failure(s):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("--foreground", "--tcp", "127.0.0.1:%d" % port, s.image(4096))
    assert str(port) in said and "in use" in said and len(said.splitlines()) == 1, said


@alone
def a_stale_socket_is_replaced_and_nothing_else(s):
    stale, other = s.path("stale"), s.path("other")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(stale)
        left.listen()
        assert stale in refused("--foreground", "--unix", stale, s.image(4096))
    with s(s.image(1 << 20), args=["--unix", stale]):
        assert size_at("nbd+unix:///?socket=" + stale) == 1 << 20
    with open(other, "w") as f:
        f.write("precious")
    assert other in refused("--foreground", "--unix", other, s.image(4096))
    with open(other) as f:
        assert f.read() == "precious"


@alone
def a_unix_socket_is_its_owners(s):
    with s(s.image(4096)) as p:
        assert stat.S_IMODE(os.stat(p.socket).st_mode) == 0o600


# ---- foreground, background, one connection, a command ----------------------------------------


def background(s, *words):
    done = platterd("--pidfile", s.path("pid"), *words)
    assert done[1] == 0, done
    with open(s.path("pid")) as f:
        return int(f.read()), done[0]


def is_gone(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@alone
def in_the_background_it_serves_when_the_command_returns(s):
    pid, said = background(s, "--tcp", "127.0.0.1:0", "--tcp", "127.0.0.1:0", s.image(1 << 20))
    try:
        found = re.findall(r"^nbd\S+$", said, re.M)
        assert len(found) == 2 and all(size_at(uri) == 1 << 20 for uri in found), said
        assert os.getsid(pid) == pid, "it has a terminal"
        assert {os.readlink("/proc/%d/fd/%d" % (pid, fd)) for fd in range(3)} == {"/dev/null"}
    finally:
        os.kill(pid, signal.SIGTERM)
    until(lambda: is_gone(pid))
    assert not os.path.exists(s.path("pid"))


@alone
def in_the_background_a_failure_is_told_to_the_terminal(s):
    gone = s.path("gone.img")
    assert gone in refused("--unix", s.path("sock"), "--pidfile", s.path("pid"), gone)
    assert os.listdir(s.dir) == []


@alone
def started_without_any_stream_it_serves(s):
    subprocess.run(["bash", "-c", 'exec "$0" "$@" <&- >&- 2>&-', PLATTERD, "--unix", s.path("sock"),
                    "--pidfile", s.path("pid"), s.image(1 << 20)], check=True)
    with open(s.path("pid")) as f:
        pid = int(f.read())
    try:
        assert size_at("nbd+unix:///?socket=" + s.path("sock")) == 1 << 20
    finally:
        os.kill(pid, signal.SIGTERM)
    until(lambda: is_gone(pid))


@alone
def with_foreground_it_stays_until_it_is_told(s):
    with s(s.image(1 << 20)) as p:
        assert p.alive() and p.process.pid == p.pid
        os.kill(p.pid, signal.SIGINT)
        assert p.wait() == 0
        assert not os.path.exists(p.socket) and not os.path.exists(p.pid_file)
        p.over = True


@alone
def with_inetd_the_standard_streams_are_the_one_connection(s):
    h = nbd.NBD()
    h.connect_command([PLATTERD, "--inetd", s.image(1 << 20)])
    assert h.get_size() == 1 << 20
    h.pwrite(b"a" * 4096, 0, nbd.CMD_FLAG_FUA)
    assert h.pread(4096, 0) == b"a" * 4096
    h.shutdown()


@alone
def with_inetd_pipes_do_as_well_and_its_end_is_the_clients(s):
    p = subprocess.Popen([PLATTERD, "--inetd", s.image(1 << 20)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert p.stdout.read(18)[:16] == b"NBDMAGICIHAVEOPT"
    option = struct.pack(">QII", 0x49484156454f5054, nbdraw.OPT_LIST, 0)
    p.stdin.write(struct.pack(">I", 3) + option)
    reply = b""
    while len(reply) < 20 + 4 + 20:      # an entry without a name, and ACK
        reply += p.stdout.read(4096)
    assert struct.unpack(">II", reply[8:16]) == (nbdraw.OPT_LIST, nbdraw.REP_SERVER), reply
    assert struct.unpack(">II", reply[-12:-4]) == (nbdraw.OPT_LIST, nbdraw.REP_ACK), reply
    p.stdin.close()
    assert p.wait(20) == 0, p.stderr.read()


@alone
def a_command_gets_the_uri_and_its_status_is_the_servers(s):
    image = s.image(1 << 20)
    said, status = platterd("--run", 'echo "$uri"; echo "$unixsocket"; nbdinfo --size "$uri"; '
                            'exit 7', image)
    uri, path, size = said.split("\n")[-4:-1]
    assert status == 7 and size == "1048576" and uri == "nbd+unix:///?socket=" + path, said
    assert not os.path.exists(os.path.dirname(path)), "its folder is still there"
    said, status = platterd("--run", "kill -KILL $$", image)
    assert status == 128 + signal.SIGKILL, said
    said, status = platterd("--tcp", "127.0.0.1:0", "--run", 'nbdinfo --size "$uri"; echo "$uri"',
                            "--export", "name=a b,path=" + image)
    assert status == 0 and "1048576\nnbd://127.0.0.1:" in said and said.endswith("/a%20b\n"), said


@alone
def a_command_is_not_run_when_nothing_is_served(s):
    said, status = platterd("--run", "echo it runs", s.path("gone.img"))
    assert status == 1 and "it runs" not in said, said
    assert not [name for name in os.listdir(os.environ.get("TMPDIR", "/tmp"))
                if name.startswith("platterd-")], "a folder is left"


@alone
def a_command_ends_with_the_server(s):
    p = subprocess.Popen([PLATTERD, "--run", "echo $$ $unixsocket; exec sleep 1000",
                          s.image(1 << 20)], stdout=subprocess.PIPE, text=True)
    pid, path = p.stdout.readline().split()
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 0
    until(lambda: is_gone(int(pid)))
    until(lambda: not os.path.exists(os.path.dirname(path)))


@alone
def a_server_that_is_killed_takes_its_command_along(s):
    p = subprocess.Popen([PLATTERD, "--run", "echo $$ $unixsocket; exec sleep 1000",
                          s.image(1 << 20)], stdout=subprocess.PIPE, text=True)
    pid, path = p.stdout.readline().split()
    p.kill()
    p.wait()
    until(lambda: is_gone(int(pid)))
    until(lambda: not os.path.exists(os.path.dirname(path)))


@alone
def the_pid_file_is_there_while_it_serves(s):
    with s(s.image(1 << 20)) as p:
        assert size_at(p.uri) == 1 << 20    # s() has waited for that file
        with open(p.pid_file) as f:
            assert f.read() == "%d\n" % p.pid
    assert not os.path.exists(p.pid_file)


@alone
def nothing_but_a_pid_file_becomes_one(s):
    """An image or a device that is named by mistake is neither emptied nor removed, and nothing
    that somebody has put there holds up the start."""
    pipe = s.path("pipe")
    os.mkfifo(pipe)
    os.symlink(s.path("nothing"), s.path("link"))
    for path in (s.image(1 << 20, "other.img", fill=7), s.path("link"), pipe):
        before = os.lstat(path)
        assert path in refused("--foreground", "--unix", s.path("sock"), "--pidfile", path,
                               s.image(1 << 20))
        after = os.lstat(path)
        assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert not os.path.lexists(s.path("nothing"))


@alone
def a_pid_file_is_one_servers(s):
    """Another start takes nothing from a server that runs; what a crash has left is replaced."""
    with s(s.image(1 << 20)) as p:
        said = refused("--foreground", "--unix", s.path("sock"), "--pidfile", p.pid_file,
                       s.image(1 << 20, "other.img"))
        assert "runs" in said, said
        with open(p.pid_file) as f:
            assert f.read() == "%d\n" % p.pid
        p.kill()
        with open(p.pid_file) as f:
            assert f.read() == "%d\n" % p.pid
        assert platterd("--pidfile", p.pid_file, "--unix", s.path("sock"), s.image(1 << 20))[1] == 0
        with open(p.pid_file) as f:
            os.kill(int(f.read()), signal.SIGTERM)
        until(lambda: not os.path.exists(p.pid_file))


@alone
def a_service_manager_is_told_what_happens(s):
    """And standard error is the journal: lines have their priority."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, \
            open(s.path("journal"), "w+") as journal:
        manager.bind(s.path("notify"))
        manager.settimeout(20)
        at = os.fstat(journal.fileno())
        env = dict(os.environ, NOTIFY_SOCKET=s.path("notify"),
                   JOURNAL_STREAM="%d:%d" % (at.st_dev, at.st_ino))
        p = subprocess.Popen([PLATTERD, "--unix", s.path("sock"), s.image(1 << 20)], env=env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=journal)
        assert b"READY=1" in manager.recv(4096)
        assert size_at("nbd+unix:///?socket=" + s.path("sock")) == 1 << 20
        p.send_signal(signal.SIGHUP)
        assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", manager.recv(4096))
        assert manager.recv(4096) == b"READY=1"
        p.send_signal(signal.SIGTERM)
        assert b"STOPPING=1" in manager.recv(4096)
        assert p.wait(20) == 0, "it had gone to the background"
        journal.seek(0)
        lines = journal.read().splitlines()
        assert lines and all(re.match(r"<[3-7]>(?!platterd)", line) for line in lines), lines
        assert "<6>reload: 1 exports" in lines, lines


@alone
def a_root_without_other_groups_to_give_up_can_serve(s):
    """That of a user namespace."""
    needs_namespaces()
    done = subprocess.run(["unshare", "-rn", PLATTERD, "--run", 'nbdinfo --size "$uri"',
                           s.image(1 << 20)], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "1048576\n" and done.returncode == 0


# ---- signals and the end ----------------------------------------------------------------------


def busy_client(address, start, stop):
    """Reads and writes there until told to stop, and not only once. Anything that goes wrong is
    raised."""
    done = 0
    with nbdraw.connect(address) as c:
        while done < 10 or not stop.is_set():
            data = struct.pack("I", done) * 1024
            offset = start + done % 64 * 4096
            c.write(offset, data, nbdraw.FUA if done % 5 == 0 else 0)
            assert c.read(offset, 4096) == data
            done += 1


@alone
def signals_under_load_lose_nothing(s):
    random.seed(tap.seed())
    stop = threading.Event()
    with s(s.image(1 << 20)) as p, concurrent.futures.ThreadPoolExecutor() as pool:
        loads = [pool.submit(busy_client, p.address, start, stop) for start in (0, 512 << 10)]
        try:
            for _ in range(300):
                os.kill(p.pid, random.choice((signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
                                              signal.SIGCHLD, signal.SIGPIPE, signal.SIGALRM,
                                              signal.SIGCONT, signal.SIGWINCH)))
                time.sleep(random.random() / 500)
        finally:
            stop.set()
        for load in loads:
            load.result()
        assert p.said().count("reload: 1 exports") > 10
        assert size_at(p.uri) == 1 << 20


@alone
def the_end_waits_for_what_is_in_flight_and_refuses_the_rest(s):
    """And a client that says nothing is told to go."""
    with s("size=1M", driver="fault", over="memory", kind="write", fault="delay", delay="500ms",
           repeat="forever") as p:
        with nbdraw.connect(p.address) as c, nbdraw.connect(p.address) as idle:
            slow = c.send(nbdraw.CMD_WRITE, 0, 4096, payload=b"a" * 4096)
            time.sleep(0.1)
            os.kill(p.pid, signal.SIGTERM)
            time.sleep(0.1)
            late = c.send(nbdraw.CMD_READ, 0, 512)
            replies = {}
            while len(replies) < 2:
                r = c.receive()
                replies[r.cookie] = r
            assert replies[slow].error == 0
            assert replies[late].error == errno.ESHUTDOWN
            idle.expect_close()
        assert p.wait() == 0
        p.over = True


def stall_in_payload(p):
    """A client in the middle of a write, which never comes to its end."""
    c = nbdraw.connect(p.address)
    c.send(nbdraw.CMD_WRITE, 0, 1 << 20, payload=b"a" * 1000)
    return c


@alone
def nobody_keeps_it_from_ending(s):
    with s(s.image(64 << 20, fill=1)) as p:
        clients = [nbdraw.Client(p.address), stall_in_payload(p)]
        reader = nbdraw.connect(p.address)      # who never reads its replies
        for _ in range(20):
            reader.send(nbdraw.CMD_READ, 0, 16 << 20)
        time.sleep(0.2)
        began = time.monotonic()
        os.kill(p.pid, signal.SIGTERM)
        assert p.wait() == 0, p.said()
        assert time.monotonic() - began < 5 * server.PATIENCE
        p.over = True
        assert len(clients) == 2


@alone
def told_twice_it_ends_at_once(s):
    with s(s.image(64 << 20)) as p:
        c = stall_in_payload(p)
        began = time.monotonic()
        os.kill(p.pid, signal.SIGTERM)
        time.sleep(0.1)
        os.kill(p.pid, signal.SIGTERM)
        assert p.wait() == 0, p.said()
        assert time.monotonic() - began < 2.5 * server.PATIENCE
        p.over = True
        c.expect_close()


main()
