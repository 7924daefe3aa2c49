#!/usr/bin/python3
"""Many exports: each for as many as it says, and none in the way of another."""

import os
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))

import nbdraw
import server
from server import until
from tap import main

MiB = 1 << 20
KiB = 1 << 10
MEMORY = "driver=memory,size=1M"
UNKNOWN = nbdraw.REP_ERROR | 6
WRITING = (nbdraw.SEND_FLUSH | nbdraw.SEND_FUA | nbdraw.SEND_TRIM | nbdraw.SEND_WRITE_ZEROES |
           nbdraw.SEND_FAST_ZERO)


def alone(case):
    return server.served(case, on=[server.Platterd])


def exports(*texts):
    """Words of the command line; a text is what follows "name="."""
    return [word for text in texts for word in ("--export", "name=" + text)]


def configure(path, *sections):
    with open(path + ".new", "w") as f:
        f.write("\n".join(sections))
    os.rename(path + ".new", path)


def export(name, **keys):
    return "[export %s]\n%s\n" % (name, "".join("%s = %s\n" % (k.replace("_", "-"), v)
                                               for k, v in keys.items()))


def memory(name, **keys):
    return export(name, driver="memory", size="1M", **keys)


def refusal(address, name):
    """What GO says when it refuses; the connection goes on."""
    with nbdraw.Client(address) as c:
        try:
            c.go(name)
        except nbdraw.Refused as e:
            c.list()
            return str(e)
        return ""


def connect_if(address, name, wanted=lambda c: True):
    """A connection, if it may be had and is as wanted; or None."""
    try:
        c = nbdraw.connect(address, name)
    except nbdraw.Refused:
        return None
    if wanted(c):
        return c
    c.close()
    return None


def writable(c):
    return not c.flags & nbdraw.READ_ONLY


# ---- access modes ------------------------------------------------------------------------------

@alone
def an_exclusive_export_is_for_one_at_a_time(server):
    with server(args=exports("disk,access=exclusive," + MEMORY, "other," + MEMORY)) as s:
        with nbdraw.connect(s.address, "disk") as c:
            assert writable(c) and not c.flags & nbdraw.CAN_MULTI_CONN
            assert "one client at a time" in refusal(s.address, "disk")
            assert refusal(s.address, "other") == ""
            c.write(0, b"x" * 512)
        until(lambda: connect_if(s.address, "disk")).close()


@alone
def an_exclusive_export_can_still_be_asked_about(server):
    with server(args=exports("disk,access=exclusive," + MEMORY)) as s:
        with nbdraw.connect(s.address, "disk"), nbdraw.Client(s.address) as other:
            assert other.list() == ["disk"]
            assert other.info("disk")[0] == MiB


@alone
def of_an_export_for_a_single_writer_the_others_are_readers(server):
    with server(args=exports("disk,access=single-writer," + MEMORY)) as s:
        with nbdraw.connect(s.address, "disk") as writer:
            assert writable(writer) and not writer.flags & nbdraw.CAN_MULTI_CONN
            assert writer.flags & WRITING == WRITING
            with nbdraw.Client(s.address) as reader:
                _, promised, _ = reader.info("disk")
                assert reader.go("disk")[1] == promised
                assert not writable(reader)
                assert promised & (WRITING | nbdraw.CAN_MULTI_CONN) == 0
                writer.write(0, b"w" * 512)
                assert reader.read(0, 512) == b"w" * 512
                # What is not advertised is refused, by whichever way it is asked for.
                for call, *arguments in ((reader.write, 0, b"r" * 512), (reader.zero, 0, 512),
                                         (reader.trim, 0, 512),
                                         (reader.write, 0, b"r" * 512, nbdraw.FUA)):
                    assert nbdraw.error_of(call, *arguments) in ("EPERM", "EINVAL"), call
                assert writer.read(0, 512) == b"w" * 512
        with until(lambda: connect_if(s.address, "disk", writable)) as next_writer:
            next_writer.write(0, b"n" * 512)


@alone
def a_shared_export_is_for_everybody(server):
    with server(args=exports("disk," + MEMORY)) as s:
        with nbdraw.connect(s.address, "disk") as a, nbdraw.connect(s.address, "disk") as b:
            assert writable(a) and writable(b) and b.flags & nbdraw.CAN_MULTI_CONN
            a.write(0, b"a" * 512)
            assert b.read(0, 512) == b"a" * 512


# ---- a writer that is gone ---------------------------------------------------------------------

BLOCK = 64 * KiB
IN_FLIGHT = 16
SLOW = "driver=fault,over=memory,size=4M,kind=write,repeat=forever,fault=delay,delay=200ms"


def cut_writer(s, name):
    """Writes in flight, a payload half sent, and no goodbye."""
    c = nbdraw.connect(s.address, name)
    assert writable(c)
    for i in range(IN_FLIGHT):
        c.send(nbdraw.CMD_WRITE, i * BLOCK, BLOCK, 0, b"o" * BLOCK)
    c.send_head(nbdraw.CMD_WRITE, IN_FLIGHT * BLOCK, BLOCK)
    c.socket.sendall(b"h" * (BLOCK // 2))
    c.reset()


def look(c):
    """The fill byte of each block, which must be one."""
    data = c.read(0, (IN_FLIGHT + 1) * BLOCK)
    fills = [set(data[at:at + BLOCK]) for at in range(0, len(data), BLOCK)]
    assert all(len(fill) == 1 for fill in fills), "a write was done in part"
    return [fill.pop() for fill in fills]


def assert_stale_writes_are_over(server, access, **how):
    with server(args=exports("disk,access=%s,%s" % (access, SLOW)), **how) as s:
        cut_writer(s, "disk")
        early = connect_if(s.address, "disk", writable)
        assert early is None, "the next writer is let in while writes are in flight"
        with until(lambda: connect_if(s.address, "disk", writable)) as c:
            seen = look(c)
            assert seen[IN_FLIGHT] == 0, "a part of a payload was written"
            assert set(seen) <= {0, ord("o")}
            # What is written now is not overwritten by what was asked for then.
            for i in range(0, IN_FLIGHT, 2):
                c.send(nbdraw.CMD_WRITE, i * BLOCK, BLOCK, 0, b"n" * BLOCK)
            for _ in range(0, IN_FLIGHT, 2):
                c.receive().check()
            time.sleep(0.4)
            assert look(c) == [ord("n") if i % 2 == 0 and i < IN_FLIGHT else was
                               for i, was in enumerate(seen)]


@alone
def the_writes_of_who_is_cut_end_before_an_exclusive_export_is_somebody_elses(server):
    assert_stale_writes_are_over(server, "exclusive")


@alone
def the_writes_of_who_is_cut_end_before_there_is_another_single_writer(server):
    assert_stale_writes_are_over(server, "single-writer", tcp=True)


@alone
def a_reader_beside_a_cut_writer_stays_a_reader(server):
    with server(args=exports("one,access=single-writer," + SLOW)) as s:
        cut_writer(s, "one")
        with nbdraw.connect(s.address, "one") as c:
            assert not writable(c)
            until(lambda: connect_if(s.address, "one", writable)).close()
            assert nbdraw.error_of(c.write, 0, b"x" * 512) == "EPERM"


# ---- limits ------------------------------------------------------------------------------------

@alone
def an_export_has_as_many_connections_as_it_allows(server):
    with server(args=exports("disk,max-connections=2," + MEMORY, "other," + MEMORY)) as s:
        with nbdraw.connect(s.address, "disk") as a, nbdraw.connect(s.address, "disk"):
            assert "max-connections=2" in refusal(s.address, "disk")
            assert refusal(s.address, "other") == ""
            assert a.read(0, 512) == bytes(512)
        until(lambda: connect_if(s.address, "disk")).close()


def is_turned_away(address, source=None):
    """Closed before a word."""
    with socket.create_connection(address, 10, source) as c:
        try:
            return c.recv(1) == b""
        except ConnectionError:
            return True


@alone
def the_server_has_as_many_connections_as_it_allows(server):
    with server(args=["--max-connections", "2", *exports("disk," + MEMORY)], tcp=True) as s:
        with nbdraw.connect(s.address, "disk") as a, nbdraw.Client(s.address):
            assert is_turned_away(s.address)
            assert "max-connections=2" in s.said()
            assert a.read(0, 512) == bytes(512)
        until(lambda: not is_turned_away(s.address))
        with nbdraw.connect(s.address, "disk") as a:
            assert a.read(0, 512) == bytes(512)


@alone
def one_host_does_not_take_all_connections(server):
    with server(args=["--max-connections-per-host", "2", *exports("disk," + MEMORY)],
                tcp=True) as s:
        with nbdraw.connect(s.address, "disk"), nbdraw.connect(s.address, "disk"):
            assert is_turned_away(s.address)
            assert "127.0.0.1" in s.said() and "max-connections-per-host=2" in s.said()
            assert not is_turned_away(s.address, ("127.0.0.2", 0))


# ---- exports that cannot be opened -------------------------------------------------------------

@alone
def an_export_that_cannot_be_opened_says_why_and_the_others_are_served(server):
    image, conf = server.path("late.img"), os.path.join(server.run, "platter.conf")
    configure(conf, "[server]\nreach = %s\n" % server.dir, export("late", path=image),
              memory("ok"))
    with server(args=["-c", conf]) as s:
        assert image in s.said(), s.said()
        with nbdraw.Client(s.address) as c:
            for option in (nbdraw.OPT_INFO, nbdraw.OPT_GO):
                try:
                    c.info("late", option)
                    raise AssertionError("served")
                except nbdraw.Refused as e:
                    assert e.reply == UNKNOWN
                    assert "late.img" not in str(e) and "No such file" in str(e), e
            assert c.list() == ["late", "ok"]
            server.image(MiB, "late.img")
            c.go("late")
            c.write(0, b"1" * 512)
        assert refusal(s.address, "ok") == ""


@alone
def one_file_is_one_export(server):
    conf, image = server.path("platter.conf"), server.image(MiB)
    os.link(image, server.path("hard.img"))
    os.symlink(image, server.path("soft.img"))
    files = ("disk", "hard", "soft")
    configure(conf, *(export(name, path=server.path(name + ".img")) for name in files))
    with server(args=["-c", conf]) as s:
        assert refusal(s.address, "disk") == ""
        for name in ("hard", "soft"):
            said = refusal(s.address, name)
            assert "busy" in said and '"disk"' not in said, said
            assert name + ".img: it is in use" in s.said() and 'export "disk" of' in s.said()
    said = server.refusal(args=exports(*("%s,path=%s" % (name, server.path(name + ".img"))
                                         for name in files)))
    assert "hard.img: it is in use" in said, said
    configure(conf, *(export(name, path=server.path(name + ".img"), read_only="on")
                      for name in files))
    with server(args=["-c", conf]) as s:
        assert all(refusal(s.address, name) == "" for name in files)


@alone
def read_only_is_each_exports_own(server):
    image = server.image(MiB, fill=7)
    with server(args=exports("ro,read-only=on,path=" + image, "rw," + MEMORY)) as s:
        with nbdraw.connect(s.address, "ro") as ro, nbdraw.connect(s.address, "rw") as rw:
            assert not writable(ro) and ro.flags & WRITING == 0
            assert nbdraw.error_of(ro.write, 0, b"x" * 512) == "EPERM"
            assert ro.read(0, 512) == b"\7" * 512
            rw.write(0, b"x" * 512)


# ---- reloading ---------------------------------------------------------------------------------

def names(s):
    with nbdraw.Client(s.address) as c:
        return c.list()


def reload(s, expected):
    os.kill(s.pid, signal.SIGHUP)
    until(lambda: names(s) == expected)


@alone
def a_reload_changes_what_has_changed_and_disturbs_nobody(server):
    conf = server.path("platter.conf")
    configure(conf, memory("keep"), memory("change"), memory("drop"))
    with server(args=["-c", conf]) as s:
        with nbdraw.connect(s.address, "keep") as keep, \
                nbdraw.connect(s.address, "change") as change, \
                nbdraw.connect(s.address, "drop") as drop:
            for c in (keep, change, drop):
                c.write(0, b"1" * 512)
            configure(conf, memory("keep"), memory("new"),
                      export("change", driver="memory", size="2M"))
            reload(s, ["keep", "new", "change"])
            for c in (keep, change, drop):
                assert c.read(0, 512) == b"1" * 512
                c.write(512, b"2" * 512)
            assert '"drop"' in refusal(s.address, "drop")
            with nbdraw.connect(s.address, "keep") as c:
                assert c.read(0, 1024) == b"1" * 512 + b"2" * 512
            with nbdraw.connect(s.address, "change") as c:
                assert c.size == 2 * MiB and c.read(0, 512) == bytes(512)


@alone
def a_bad_configuration_changes_nothing(server):
    conf = server.path("platter.conf")
    configure(conf, memory("a"), memory("b"))
    with server(args=["-c", conf]) as s, nbdraw.connect(s.address, "b") as c:
        c.write(0, b"1" * 512)
        for bad in (export("a", driver="memory", size="1X"), memory("a", acess="shared"),
                    memory("c") + memory("c")):
            said = len(s.said())
            configure(conf, memory("new"), bad)
            os.kill(s.pid, signal.SIGHUP)
            until(lambda said=said: "platter.conf" in s.said()[said:])
            assert names(s) == ["a", "b"]
        with nbdraw.connect(s.address, "b") as other:
            assert other.read(0, 512) == b"1" * 512


@alone
def an_access_rule_that_comes_holds_for_those_who_come(server):
    conf = server.path("platter.conf")
    configure(conf, memory("disk"))
    with server(args=["-c", conf]) as s, nbdraw.connect(s.address, "disk") as c:
        c.write(0, b"1" * 512)
        configure(conf, memory("disk", allow_uid="nobody"), memory("mark"))
        reload(s, ["mark"])
        assert "not for this client" in refusal(s.address, "disk")
        assert c.read(0, 512) == b"1" * 512
        configure(conf, memory("disk", access="exclusive"))
        reload(s, ["disk"])
        assert "one client at a time" in refusal(s.address, "disk")


@alone
def an_export_that_failed_is_repaired_by_a_reload(server):
    """Its disk is the same file, opened again."""
    conf, image = server.path("platter.conf"), server.image(MiB)
    configure(conf, export("disk", driver="fault", over="file", path=image, kind="flush",
                           cache="writeback", fua="commit"))
    with server(args=["-c", conf]) as s:
        with nbdraw.connect(s.address, "disk") as c:
            c.write(0, b"1" * 512)
            assert nbdraw.error_of(c.flush) == "EIO"
            assert nbdraw.error_of(c.flush) == "EIO"
        with nbdraw.connect(s.address, "disk") as c:
            assert nbdraw.error_of(c.flush) == "EIO"
        os.kill(s.pid, signal.SIGHUP)
        until(lambda: "reload: 1 exports" in s.said())
        # By the reload, or by the first who asks when the last client has left the old one. The
        # fault is told to come once in each life.
        with until(lambda: connect_if(s.address, "disk")) as c:
            assert s.said().count("export %s: %d bytes" % (image, MiB)) == 2, s.said()
            assert c.read(0, 512) == b"1" * 512
            assert nbdraw.error_of(c.flush) == "EIO"


main()
