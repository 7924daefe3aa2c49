#!/usr/bin/python3
"""An operator sees what there is, counts what was done, and is obeyed; nobody else is disturbed."""

import contextlib
import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import nbdraw
import tap
from nbdraw import CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, FUA
from server import until
from usage import descriptors

KiB, MiB = 1 << 10, 1 << 20
LINE_MAX = 64 * KiB
COMMANDS = {"help", "version", "exports", "connections", "targets", "metrics", "reload", "resize",
            "retire", "disconnect", "stop"}


def error_of(client, *call):
    return client.call(*call).error


# ---- what there is -----------------------------------------------------------------------------


@ctl.served
def help_lists_every_command(server):
    with server("driver=null", size="1M") as s, s.operator() as o:
        commands = o.ask("help")["commands"]
        assert {c["name"] for c in commands} == COMMANDS
        assert all(c["help"] for c in commands)
        retire, = [c for c in commands if c["name"] == "retire"]
        assert retire["arguments"] == [{"name": "export", "type": "text", "required": True},
                                       {"name": "hard", "type": "bool", "required": False}]
        version = o.ask("version")
        assert version["pid"] == s.pid and 0 < version["uptime"] < ctl.PATIENCE_S
        assert version["version"] in subprocess.check_output([ctl.TOOL, "version"]).decode()


@ctl.served
def the_manual_has_every_command_and_its_arguments(server):
    types = {"text": "NAME", "number": "NUMBER", "bool": "true|false"}
    with server("driver=null", size="1M") as s, s.operator() as o:
        lines = []
        for c in o.ask("help")["commands"]:
            line = f"B<{c['name']}>"
            for a in c["arguments"]:
                pair = f"{a['name']}={types[a['type']]}"
                line += f" {pair}" if a["required"] else f" [{pair}]"
            lines.append(line)
        assert lines == re.findall(r"^=item (.*)", ctl.manual("platterd", "CONTROL SOCKET"), re.M)


@ctl.served
def the_manual_names_what_is_in_an_answer(server):
    words = set(re.findall(r"C<(\w+)>", ctl.manual("platterd", "CONTROL SOCKET")))
    with server("driver=null", size="1M") as s, s.operator() as o, nbdraw.connect(s.address) as c:
        c.read(0, 512)
        export, connection = o.export(histograms=True), o.connections()[0]
        names = set(export) | set(export["counters"]) | set(connection) | set(o.ask("version"))
        for kind, operation in export["operations"].items():
            names |= {kind} | set(operation) | set(operation["errors"]) | set(operation["latency"])
        assert names <= words, names - words


@ctl.served
def an_export_shows_its_settings_and_what_it_can(server):
    image = server.image(3 * MiB)
    with server(image, args=["--export", "name=ro,driver=memory,size=1M,read-only=on,"
                             "access=exclusive,description=for tests"]) as s, s.operator() as o:
        plain, ro = o.export(), o.export("ro")
        assert plain["geometry"]["size"] == 3 * MiB and ro["geometry"]["size"] == MiB
        assert plain["image"] == image and plain["error"] is None
        assert plain["open"] and not plain["failed"] and not plain["read_only"]
        assert (plain["access"], plain["tls"], plain["connections"]) == ("shared", "off", 0)
        assert {"write", "flush", "fua", "zero", "trim", "multi_conn"} <= set(plain["capabilities"])
        assert ro["read_only"] and ro["access"] == "exclusive"
        assert ro["description"] == "for tests"
        assert not {"write", "zero", "trim"} & set(ro["capabilities"])
        for e in (plain, ro):
            assert set(e["counters"].values()) == {0}, e["counters"]
            with nbdraw.connect(s.address, e["name"]):
                assert o.export(e["name"])["connections"] == 1
            until(lambda: o.export(e["name"])["connections"] == 0, "the client has left")


@ctl.served
def an_export_that_cannot_be_opened_says_why(server):
    image, gone = server.image(MiB), server.path("gone.img")
    conf = server.path("platter.conf")
    with open(conf, "w") as f:
        f.write(f"[export]\npath={image}\n[export gone]\npath={gone}\n")
    with server(args=["-c", conf]) as s, s.operator() as o:
        assert o.export()["open"]
        e = o.export("gone")
        assert not e["open"] and gone in e["error"] and e["geometry"]["size"] == 0
        assert 'platter_export_open{export="gone"} 0\n' in s.page()


@ctl.served
def a_connection_shows_who_and_what(server):
    image = server.image(MiB)
    with server(image) as s, s.operator() as o:
        assert o.connections() == []
        with nbdraw.Client(s.address) as early, nbdraw.connect(s.address) as c:
            for _ in range(5):
                c.write(0, bytes(64 * KiB))
            c.read(0, 128 * KiB)
            until(lambda: len(o.connections()) == 2, "both are there")
            first, second = sorted(o.connections(), key=lambda c: c["id"])
            assert first["phase"] == "handshake" and first["export"] is None
            assert second["phase"] == "served" and second["export"] == ""
            assert second["id"] != first["id"]
            for x in (first, second):
                assert x["peer"].startswith("unix") and str(os.getpid()) in x["peer"], x
                assert not x["tls"] and x["psk"] is x["subject"] is x["fingerprint"] is None
                began = time.strptime(x["since"], "%Y-%m-%dT%H:%M:%SZ")
                assert abs(time.mktime(began) - time.mktime(time.gmtime())) < ctl.PATIENCE_S
            assert second["requests"] == 6 and first["requests"] == 0
            assert 5 * 64 * KiB < second["received"] < 5 * 64 * KiB + 4 * KiB
            assert second["sent"] < 128 * KiB + 4 * KiB
            early.close()
        until(lambda: o.connections() == [], "both have left")


# ---- counters ----------------------------------------------------------------------------------


def operations(o, name=""):
    """Of each kind that was asked for: count, bytes, errors."""
    return {kind: (x["count"], x["bytes"], {e: n for e, n in x["errors"].items() if n})
            for kind, x in o.export(name)["operations"].items() if x["count"]}


@ctl.served
def operations_are_counted_exactly(server):
    image = server.image(MiB)
    with server(image) as s, s.operator() as o, nbdraw.connect(s.address) as c:
        for i in range(3):
            c.write(i * 4 * KiB, b"a" * 4 * KiB)
        for i in range(4):
            c.write(0, b"b" * KiB, FUA)
        for i in range(5):
            c.read(i, 512)
        c.flush()
        c.flush()
        c.trim(0, 64 * KiB)
        c.zero(0, 32 * KiB)
        c.zero(0, 16 * KiB, FUA)
        c.cache(0, 8 * KiB)
        c.block_status(0, MiB)
        assert operations(o) == {
            "write": (3, 12 * KiB, {}),
            "write_fua": (4, 4 * KiB, {}),
            "read": (5, 5 * 512, {}),
            "flush": (2, 0, {}),
            "trim": (1, 64 * KiB, {}),
            "zero": (2, 48 * KiB, {}),
            "cache": (1, 8 * KiB, {}),
            "extents": (1, 0, {}),
        }
        core = o.export()["counters"]
        assert (core["reads"], core["writes"], core["zeroes"], core["trims"], core["flushes"],
                core["errors"]) == (5, 7, 2, 1, 2, 0)


@ctl.served
def errors_are_counted_by_class(server):
    image = server.image(MiB)
    failing = "name=bad,driver=fault,over=memory,size=1M,kind=write,repeat=forever"
    cannot = "name=cannot,driver=fault,over=memory,size=1M,errno=EOPNOTSUPP,repeat=forever"
    with server(image, args=["--export", failing, "--export", cannot, "--export",
                             "name=ro,driver=memory,size=1M,read-only=on"]) as s, \
            s.operator() as o:
        with nbdraw.connect(s.address) as c:
            assert error_of(c, CMD_READ, MiB - 1, 2) == errno.EINVAL
            assert error_of(c, CMD_WRITE, MiB, 512, 0, bytes(512)) == errno.ENOSPC
            assert error_of(c, CMD_WRITE, MiB, 512, FUA, bytes(512)) == errno.ENOSPC
            assert error_of(c, CMD_READ, 0, 512) == 0
            assert operations(o) == {"read": (2, 512, {"EINVAL": 1}),
                                     "write": (1, 0, {"ENOSPC": 1}),
                                     "write_fua": (1, 0, {"ENOSPC": 1})}
        with nbdraw.connect(s.address, "bad") as c:
            for _ in range(3):
                assert error_of(c, CMD_WRITE, 0, 512, 0, bytes(512)) == errno.EIO
            assert operations(o, "bad") == {"write": (3, 0, {"EIO": 3})}
            assert o.export("bad")["counters"]["errors"] == 3
        with nbdraw.connect(s.address, "cannot") as c:
            # What clients have no word for: they are told EIO, but where they asked for speed.
            assert error_of(c, CMD_WRITE, 0, 512, 0, bytes(512)) == errno.EIO
            assert error_of(c, CMD_WRITE, 0, 512, FUA, bytes(512)) == errno.EIO
            assert error_of(c, CMD_READ, 0, 512) == errno.EIO
            assert operations(o, "cannot") == {kind: (1, 0, {"EIO": 1})
                                               for kind in ("read", "write", "write_fua")}
        with nbdraw.connect(s.address, "ro") as c:
            assert error_of(c, CMD_WRITE, 0, 512, 0, bytes(512)) == errno.EPERM
            assert error_of(c, CMD_TRIM, 0, 512) == errno.EPERM
            assert error_of(c, CMD_WRITE_ZEROES, 0, 512) == errno.EPERM
            assert operations(o, "ro") == {kind: (1, 0, {"EPERM": 1})
                                           for kind in ("write", "trim", "zero")}


@ctl.served
def fua_and_the_flushes_it_shares_are_counted(server):
    image = server.image(MiB)
    with server(image, cache="writeback", fua="commit") as s, s.operator() as o, \
            nbdraw.connect(s.address) as c:
        for _ in range(64):
            c.send(CMD_WRITE, 0, 4 * KiB, FUA, bytes(4 * KiB))
        for _ in range(64):
            assert c.receive().error == 0
        c.flush()
        core = o.export()["counters"]
        assert core["fua_native"] == 0 and core["committed"] == 65
        assert 2 <= core["groups"] <= 65
        assert operations(o)["write_fua"] == (64, 256 * KiB, {})
    with server("driver=memory", size="1M") as s, s.operator() as o, \
            nbdraw.connect(s.address) as c:
        c.write(0, bytes(512), FUA)
        core = o.export()["counters"]
        assert core["fua_native"] + core["committed"] == 1


@ctl.served
def latencies_add_up(server):
    with server("driver=memory", size="1M") as s, s.operator() as o, \
            nbdraw.connect(s.address) as c:
        for i in range(200):
            c.read(0, 4 * KiB)
        read = o.export(histograms=True)["operations"]["read"]
        ends = [end for end, _ in read["histogram"]]
        latency = read["latency"]
        assert sum(n for _, n in read["histogram"]) == read["count"] == 200
        assert all(n > 0 for _, n in read["histogram"]) and ends == sorted(ends)
        assert latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p999"] == ends[-1]
        assert 0 < latency["mean"] <= ends[-1]
        unused = o.export(histograms=True)["operations"]["trim"]
        assert unused["histogram"] == [] and set(unused["latency"].values()) == {0}
        assert "histogram" not in o.export()["operations"]["read"]


@ctl.served
def counters_go_on_when_clients_come_and_go(server):
    with server("driver=memory", size="1M") as s, s.operator() as o:
        for i in range(1, 6):
            with nbdraw.connect(s.address) as c:
                c.read(0, 512)
            assert operations(o) == {"read": (i, i * 512, {})}


# ---- orders ------------------------------------------------------------------------------------


TWO = ["--export", "name=a,driver=memory,size=1M", "--export", "name=b,driver=memory,size=1M"]


@ctl.served
def disconnect_cuts_one_and_no_other(server):
    with server(args=TWO) as s, s.operator() as o:
        with nbdraw.connect(s.address, "a") as a, nbdraw.connect(s.address, "a") as b:
            a.read(0, 512)
            b.read(0, 512)
            first = min(c["id"] for c in o.connections())
            assert o.ask("disconnect", id=first) == {"done": "disconnect"}
            a.expect_close()
            until(lambda: len(o.connections()) == 1, "it has left")
            b.read(0, 512)
            assert str(first) in o.refusal("disconnect", id=first)
            assert "-1" in o.refusal("disconnect", id=-1)


@ctl.served
def retire_hides_an_export_and_its_clients_go_on(server):
    with server(args=TWO) as s, s.operator() as o:
        with nbdraw.connect(s.address, "a") as c:
            assert o.ask("retire", export="a") == {"done": "retire"}
            c.write(0, b"x" * 512, FUA)
            assert c.read(0, 512) == b"x" * 512
            with nbdraw.Client(s.address) as other:
                assert other.list() == ["b"]
                try:
                    other.go("a")
                    raise AssertionError("it is still there")
                except nbdraw.Refused:
                    pass
            retired, = [e for e in o.exports() if e["name"] == "a"]
            assert retired["retired"] and retired["connections"] == 1
            assert retired["operations"]["write_fua"]["count"] == 1
            assert "a" in o.refusal("retire", export="a")
        until(lambda: [e["name"] for e in o.exports()] == ["b"], "it is gone with its client")


@ctl.served
def what_was_retired_is_not_had_from_a_directory_instead(server):
    """Whose image of that name is another one, for others; until a reload gives it all back."""
    server.image(1 << 20, "disk.img")
    server.image(1 << 20, "other.img")
    with server(args=["--export", "name=,dir=" + server.dir, "--export",
                      "name=disk.img,driver=memory,size=2M"]) as s, s.operator() as o:
        nbdraw.connect(s.address, "disk.img").close()
        assert o.ask("retire", export="disk.img") == {"done": "retire"}
        with nbdraw.Client(s.address) as c:
            assert c.list() == ["other.img"]
            assert c.refusal(nbdraw.OPT_GO, nbdraw.info_data("disk.img")) == nbdraw.ERR_UNKNOWN
            o.ask("reload")
            assert sorted(c.list()) == ["disk.img", "other.img"]
            assert c.go("disk.img")[0] == 2 << 20


@ctl.served
def retire_hard_cuts_its_clients_and_no_others(server):
    with server(args=TWO) as s, s.operator() as o:
        with nbdraw.connect(s.address, "a") as a, nbdraw.connect(s.address, "b") as b:
            assert o.ask("retire", export="a", hard=True) == {"done": "retire"}
            a.expect_close()
            b.read(0, 512)
            until(lambda: [e["name"] for e in o.exports()] == ["b"], "it is gone")


@ctl.served
def reload_changes_all_or_nothing(server):
    image, conf = server.image(MiB), server.path("platter.conf")

    def write(text):
        with open(conf, "w") as f:
            f.write(text)

    write(f"[export a]\npath={image}\n")
    with server(args=["-c", conf]) as s, s.operator() as o, nbdraw.connect(s.address, "a") as c:
        write(f"[export a]\npath={image}\n[export b]\ndriver=memory\nsize=1M\n")
        assert o.ask("reload") == {"done": "reload"}
        assert sorted(e["name"] for e in o.exports()) == ["a", "b"]
        write(f"[export c]\npath={image}\nno-such-key=1\n")
        said = o.refusal("reload")
        assert "no-such-key" in said and conf in said, said
        assert sorted(e["name"] for e in o.exports()) == ["a", "b"]
        c.write(0, bytes(512), FUA)


@ctl.served
def a_reload_brings_back_what_was_retired(server):
    conf = server.path("platter.conf")
    with open(conf, "w") as f:
        f.write("[export a]\ndriver=memory\nsize=1M\n")
    with server(args=["-c", conf]) as s, s.operator() as o:
        o.ask("retire", export="a")
        assert o.exports() == []
        o.ask("reload")
        assert o.export("a")["open"]


@ctl.served
def stop_is_answered_and_then_done(server):
    with server(args=TWO) as s, s.operator() as o, nbdraw.connect(s.address, "a") as c:
        c.read(0, 512)
        assert o.ask("stop") == {"done": "stop"}
        assert s.wait() == 0
        s.over = True
        for path in (s.control, s.metrics):
            assert not os.path.exists(path)


# ---- what is wrong with a request ----------------------------------------------------------------

WRONG = [
    (b"", "no JSON"),
    (b"\0\0\0", "no JSON"),
    (b"stop", "no JSON"),
    (b"{", "no JSON"),
    (b'{"command": "version"', "no JSON"),
    (b'{"command": "version"} {}', "no JSON"),
    (b'{"command": "version", "command": "stop"}', "no JSON"),
    (b'{"command": "\xff\xfe"}', "no JSON"),
    (b'{"command": "a\\u0000b"}', "no JSON"),
    (b"[" * 60000, "no JSON"),
    (b'{"a":' * 10000, "no JSON"),
    (b"[]", "expected"),
    (b"7", "no JSON"),
    (b"{}", "expected"),
    (b'{"command": 7}', "expected"),
    (b'{"command": ["stop"]}', "expected"),
    (b'{"command": "STOP"}', '"STOP"'),
    (b'{"command": "%s"}' % (b"x" * 60000), "there is no command"),
    ('{"command": "%s"}'.encode() % ("ü" * 30000).encode(), "there is no command"),
    (b'{"command": "stop", "now": true}', '"now"'),
    (b'{"command": "exports", "histograms": 1}', "true or false"),
    (b'{"command": "retire"}', '"export" is missing'),
    (b'{"command": "retire", "export": 7}', "to be text"),
    (b'{"command": "retire", "export": "a", "hard": "yes"}', "true or false"),
    (b'{"command": "retire", "export": "nowhere"}', "nowhere"),
    (b'{"command": "disconnect", "id": "1"}', "whole number"),
    (b'{"command": "disconnect", "id": 1.5}', "whole number"),
    (b'{"command": "disconnect", "id": 99999999999999999999}', "no JSON"),
]


@ctl.served
def a_wrong_request_is_refused_and_the_connection_goes_on(server):
    with server(args=TWO) as s, s.operator() as o:
        for line, says in WRONG:
            answer = o.raw(line)
            assert list(answer) == ["error"] and says in answer["error"], (line[:80], answer)
        assert len(o.exports()) == 2


@ctl.served
def a_line_that_is_too_long_is_refused_whole(server):
    inner = b'\\n{"command": "stop"}'
    with server(args=TWO) as s, s.operator() as o:
        fits = b'{"command": "version"}'.ljust(LINE_MAX - 1)
        assert "version" in o.raw(fits)
        for length in (LINE_MAX, LINE_MAX + 1, 2 * LINE_MAX, 5 * MiB):
            answer = o.raw((b'{"command": "' + inner).ljust(length, b"x"))
            assert str(LINE_MAX) in answer["error"], answer
            assert "version" in o.ask("version")


@ctl.served
def requests_may_come_in_pieces_and_together(server):
    with server(args=TWO) as s, s.operator() as o:
        for byte in b' {"command":\t"version"}\r\n':
            o.socket.sendall(bytes([byte]))
        assert "version" in o.receive()
        many = [b'{"command": "version"}', b"nonsense", b'{"command": "help"}'] * 200
        o.socket.sendall(b"\n".join(many) + b"\n")
        for line in many:
            expected = {b"v": "version", b"n": "error", b"h": "commands"}
            key = b"n" if line == b"nonsense" else line[13:14]
            assert expected[key] in o.receive()
        # The end of input is not the end of what was asked.
        o.socket.sendall(b'{"command": "version"}\n{"command"')
        o.socket.shutdown(socket.SHUT_WR)
        assert "version" in o.receive()
        assert o.lines.read() == b""


# ---- clients in the way --------------------------------------------------------------------------


@ctl.served
def clients_that_never_read_are_in_nobodys_way(server):
    with server(args=TWO) as s, nbdraw.connect(s.address, "a") as c:
        c.read(0, 512)
        before = descriptors(s)
        crowd = []
        for _ in range(100):
            o = s.operator()
            o.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while True:
                    o.socket.send(b'{"command": "metrics"}\n' * 100)
            crowd.append(o)
        with s.operator() as o:
            assert "version" in o.ask("version")
            c.read(0, 512)
            until(lambda: descriptors(s) <= before + 32, "only so many stay")
            assert "version" in o.ask("version")
        for o in crowd:
            o.close()
        until(lambda: descriptors(s) == before, "all of them are forgotten")


@ctl.served
def silent_clients_do_not_keep_an_operator_out(server):
    with server(args=TWO) as s:
        crowd = [s.operator() for _ in range(100)]
        with s.operator() as o:
            o.ask("version")
            for _ in range(10):     # it stays, for it is not silent
                crowd.append(s.operator())
                o.ask("version")
        for o in crowd:
            o.close()


@ctl.served(slow=True)
def a_client_that_does_not_read_is_dropped(server):
    with server(args=TWO) as s, s.operator() as first, s.operator() as second:
        for other in (first, second):
            other.ask("version")
        before = descriptors(s)
        o = s.operator()
        o.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                o.socket.send(b'{"command": "metrics"}\n')
        until(lambda: descriptors(s) == before, "it is dropped")
        # Those that owe nothing stay.
        for other in (first, second):
            other.ask("version")
        o.close()


@ctl.served
def clients_that_vanish_leave_nothing(server):
    with server(args=TWO) as s:
        before = descriptors(s)
        for i in range(200):
            o = s.operator()
            o.socket.sendall((b'{"command": "metrics"}\n' * 20)[:i])
            o.close()
        until(lambda: descriptors(s) == before, "all of them are forgotten")


@ctl.served
def hundreds_of_connections_are_one_answer(server):
    with server(args=TWO) as s, s.operator() as o:
        clients = [nbdraw.connect(s.address, "ab"[i % 2]) for i in range(400)]
        found = o.connections()
        assert len(found) == 400 and len({c["id"] for c in found}) == 400
        assert [o.export(name)["connections"] for name in "ab"] == [200, 200]
        for c in clients:
            c.close()
        until(lambda: o.connections() == [], "all have left")


# ---- the socket ----------------------------------------------------------------------------------


@ctl.served
def the_socket_is_the_owners_alone(server):
    with server(args=TWO) as s:
        mode = os.stat(s.control).st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        said = server.refusal("driver=null", size="1M", control=s.control)
        assert s.control in said, said
        with s.operator() as o:
            o.ask("version")
    assert not os.path.exists(s.control)


@ctl.served
def a_stale_socket_is_replaced_and_no_other_file(server):
    stale, file = server.path("stale"), server.path("file")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(stale)
    with server("driver=null", size="1M", control=stale) as s, s.operator() as o:
        o.ask("version")
    with open(file, "w") as f:
        f.write("precious")
    assert file in server.refusal("driver=null", size="1M", control=file)
    with open(file) as f:
        assert f.read() == "precious"


@ctl.served
def a_start_that_fails_leaves_no_socket(server):
    control, metrics = server.path("control"), server.path("metrics")
    said = server.refusal(server.path("gone.img"), control=control, metrics=metrics)
    assert "gone.img" in said and "Assertion" not in said, said
    assert not os.path.exists(control) and not os.path.exists(metrics)


# ---- platter control -----------------------------------------------------------------------------


@ctl.served
def the_tool_gives_every_order(server):
    with server(args=TWO) as s:
        status, text = s.tool("control", "version")
        assert status == 0 and json.loads(text)["pid"] == s.pid
        status, text = s.tool("control", "exports", "histograms=true")
        assert status == 0
        assert [e["name"] for e in json.loads(text)["exports"]] == ["a", "b"]
        with nbdraw.connect(s.address, "a") as c:
            status, text = s.tool("control", "retire", "export=a", "hard=true")
            assert status == 0 and json.loads(text) == {"done": "retire"}
            c.expect_close()
        status, text = s.tool("control", "disconnect", "id=77")
        assert status == 1 and "77" in json.loads(text)["error"]
        status, text = s.tool("control", "disconnect", "id=x")
        assert status == 1 and "whole number" in json.loads(text)["error"]
        status, text = s.tool("control", "retire", "b")
        assert status == 2 and "NAME=VALUE" in text
        status, text = s.tool("control", "nonsense")
        assert status == 1 and "nonsense" in json.loads(text)["error"]
        status, text = s.tool("control", "--help")
        assert status == 0 and all(re.search(rf"^  {c}\b", text, re.M) for c in COMMANDS)
        status, text = s.tool("control", "stop")
        assert status == 0 and s.wait() == 0
        s.over = True
        status, text = s.tool("control", "version")
        assert status == 1 and s.control in text


@tap.test
def an_unknown_subcommand_gets_a_suggestion():
    for word, near in (("stat", "stats"), ("prob", "probe"), ("contorl", "control")):
        done = subprocess.run([ctl.TOOL, word], capture_output=True, text=True)
        assert done.returncode == 2 and f"'{near}'" in done.stderr, done.stderr
    done = subprocess.run([ctl.TOOL, "x" * 1000], capture_output=True, text=True)
    assert done.returncode == 2 and "platter help" in done.stderr
    for words in (["help"], ["--help"]):
        text = subprocess.check_output([ctl.TOOL, *words]).decode()
        assert all(name in text for name in ("control", "probe", "stats", "version"))


# ---- platter stats -------------------------------------------------------------------------------


@ctl.served
def stats_once_shows_totals(server):
    with server(args=TWO) as s, nbdraw.connect(s.address, "a") as c:
        for _ in range(7):
            c.write(0, bytes(256 * KiB), FUA)
        c.call(CMD_READ, MiB, 1)
        status, text = s.tool("stats", "--once")
        assert status == 0
        assert "2 exports, 1 connection\n" in text
        assert re.search(r"^a: 1M, 1 connection$", text, re.M), text
        assert re.search(r"^  write_fua +7 +1\.8 +\S+s +\S+s +0$", text, re.M), text
        assert re.search(r"^  read +1 +0\.0 +\S+ +\S+ +1$", text, re.M), text
        assert re.search(r"^b: 1M, 0 connections$", text, re.M), text
        assert "\033" not in text
        status, text = s.tool("stats", "--once", "--json")
        assert [e["name"] for e in json.loads(text)["exports"]] == ["a", "b"]


@ctl.served
def stats_into_a_pipe_is_plain_lines(server):
    with server(args=TWO) as s, nbdraw.connect(s.address, "a") as c:
        p = subprocess.Popen([ctl.TOOL, "stats", "--control", s.control, "--interval", "100ms"],
                             stdout=subprocess.PIPE, text=True)
        lines = []
        while sum("OPS/S" in line for line in lines) < 2:
            c.read(0, 4 * KiB)
            lines.append(p.stdout.readline())
        p.send_signal(signal.SIGINT)
        rest = p.stdout.read()
        assert p.wait() == 0
        text = "".join(lines) + rest
        assert "\033" not in text
        assert text.count(" OPS ") == 1, "the totals come first, and once"
        # What happened in an interval, not since the start.
        assert re.search(r"^  read +[1-9]\d* ", text, re.M), text


@ctl.served
def stats_says_when_the_server_is_gone(server):
    with server(args=TWO) as s:
        p = subprocess.Popen([ctl.TOOL, "stats", "--control", s.control, "--interval", "100ms"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        p.stdout.readline()
    _, said = p.communicate(timeout=ctl.PATIENCE_S)
    assert p.returncode == 1 and "the server has closed the connection" in said, said
    status, said = s.tool("stats")
    assert status == 1 and s.control in said
    for words in (["--interval", "0"], ["--interval", "x"], ["--interval", "nan"], ["--no"], ["x"]):
        assert s.tool("stats", *words)[0] == 2, words


@tap.test
def stats_makes_sense_of_numbers_that_make_none():
    export = {"name": "a", "open": True, "connections": -1, "geometry": {"size": -1}}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as s:
        s.bind(folder + "/control")
        s.listen(1)
        for uptime in (-1, 1e300, "x"):
            p = subprocess.Popen([ctl.TOOL, "stats", "--once", "--control", folder + "/control"],
                                 stdout=subprocess.PIPE, text=True)
            with s.accept()[0] as c:
                c.recv(LINE_MAX)
                c.sendall(json.dumps({"uptime": uptime, "exports": [export]}).encode() + b"\n")
                text = p.communicate(timeout=ctl.PATIENCE_S)[0]
            assert p.returncode == 0 and "up 0:00:00, 1 export" in text, text


class Terminal:
    """platter stats on a terminal of its own."""

    def __init__(self, s, rows, columns):
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            [ctl.TOOL, "stats", "--control", s.control, "--interval", "100ms"], stdin=slave,
            stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = b""

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        """What has come, b"" at the end."""
        if not select.select([self.master], [], [], ctl.PATIENCE_S)[0]:
            raise AssertionError("it is silent")
        try:
            data = os.read(self.master, 65536)
        except OSError:
            data = b""
        self.seen += data
        return data

    def frames(self, count):
        """The next whole frames as lists of lines, as they are shown."""
        start = len(self.seen)
        while self.seen.count(b"\033[H", start) <= count:
            assert self.read()
        frames = self.seen[start:].split(b"\033[H")[1:count + 1]
        return [f.replace(b"\033[J", b"").replace(b"\r", b"").replace(b"\033[K", b"")
                .decode().split("\n") for f in frames]

    def interrupt(self):
        os.write(self.master, b"\003")
        while self.read():
            pass
        return self.process.wait()


@ctl.served
def stats_draws_on_a_terminal_and_leaves_it_clean(server):
    with server(args=TWO) as s, nbdraw.connect(s.address, "a") as c:
        c.read(0, 512)
        t = Terminal(s, 24, 80)
        _, frame = t.frames(2)
        assert frame[0].startswith("platterd: up 0:00:")
        assert "OPS/S" in frame[1] and frame[2] == "a: 1M, 1 connection"
        assert t.seen.startswith(b"\033[?25l")
        assert t.interrupt() == 0
        assert t.seen.endswith(b"\033[?25h\r\n")


@ctl.served
def stats_fits_the_window_whatever_its_size(server):
    with server(args=TWO) as s, nbdraw.connect(s.address, "a") as c:
        c.read(0, 512)
        t = Terminal(s, 24, 80)
        t.frames(1)
        for rows, columns in ((3, 20), (1, 1), (2, 200), (50, 10)):
            t.resize(rows, columns)
            t.frames(1)
            for frame in t.frames(2):
                assert len(frame) <= rows + 1 and (len(frame) <= rows or frame[-1] == "")
                assert all(len(line) <= columns for line in frame), (columns, frame)
        t.resize(24, 80)
        t.frames(1)
        assert any("OPS/S" in line for line in t.frames(2)[1])
        assert t.interrupt() == 0


@ctl.served
def no_name_reaches_the_terminal_as_a_command(server):
    name = "a\033[2Jb\ac"
    with server(args=["--export", f"name={name},driver=memory,size=1M"]) as s, s.operator() as o:
        assert o.export(name)["open"]
        t = Terminal(s, 24, 80)
        frame = t.frames(1)[0]
        assert frame[2].startswith("a?[2Jb?c: 1M"), frame
        assert t.interrupt() == 0
        assert "\033" not in s.tool("stats", "--once")[1]


tap.main()
