#!/usr/bin/python3
"""Exports as LUNs: who finds which, and how that changes while they are in use."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import iscsiraw
import nbdraw
import server as servers
import tap
from server import until

KiB, MiB = 1 << 10, 1 << 20
IQN = "iqn.2026-11.org.example:"
DISKS, TAPES = IQN + "disks", IQN + "tapes"
ALICE, BOB = IQN + "alice", IQN + "bob"
NOT_FOUND, FORBIDDEN = 0x0203, 0x0202
LUNS_CHANGED, CAPACITY_CHANGED, NO_SUCH_UNIT = "6/3f0e", "6/2a09", "5/2500"


# ---- configurations ----------------------------------------------------------------------------


def section(what, name, **keys):
    return "[%s %s]\n%s\n" % (what, name, "".join("%s = %s\n" % (k.replace("_", "-"), v)
                                                  for k, v in keys.items()))


def memory(*names):
    return "".join(section("export", name, driver="memory", size="1M") for name in names)


def target(name, luns, **keys):
    """luns: {number: what follows "lun.N = "}."""
    return section("target", name, **keys, **{"lun.%d" % n: lun for n, lun in luns.items()})


@contextlib.contextmanager
def configured(server, *sections, **how):
    """A server by that configuration, which s.configure(...) and s.reload() change."""
    conf = server.path("platter.conf")

    def configure(*texts):
        with open(conf + ".new", "w") as f:
            f.write("\n".join(texts))
        os.rename(conf + ".new", conf)

    configure(*sections)
    with server(args=["-c", conf], iscsi=True, **how) as s, s.operator() as o:
        def reload(*texts):
            configure(*texts)
            o.ask("reload")
        s.o, s.configure, s.reload = o, configure, reload
        s.portal = "127.0.0.1", s.iscsi_port
        yield s


def connect(s, name=DISKS, initiator=ALICE, **how):
    return iscsiraw.connect(("127.0.0.1", s.iscsi_port), name, initiator=initiator, **how)


# ---- an initiator ------------------------------------------------------------------------------


def luns(c):
    """REPORT LUNS; unit attentions stay."""
    data = c.cdb("a0 00 00 00 00 00 00000800 00 00", din=2048).check().data
    assert struct.unpack(">I", data[:4])[0] == len(data) - 8
    return [data[at + 1] for at in range(8, len(data), 8)]


def size(c, lun=0):
    """READ CAPACITY (16), in bytes."""
    data = c.cdb("9e 10" + " 00" * 8 + " 00000020 00 00", din=32, lun=lun).check().data
    last, block = struct.unpack(">QI", data[:12])
    return (last + 1) * block


def condition(c, lun=0):
    """What TEST UNIT READY is answered with."""
    return c.cdb(bytes(6), lun=lun).condition


def serial(c, lun=0):
    """The unit serial number page."""
    data = c.cdb("12 01 80 00ff 00", din=255, lun=lun).check().data
    return bytes(data[4:4 + data[3]]).decode().strip()


def write(c, block, data, lun=0, fua=True):
    c.cdb(struct.pack(">BBIBHB", 0x2a, 8 if fua else 0, block, 0, len(data) // 512, 0),
          dout=data, lun=lun).check()


def read(c, block, count=1, lun=0):
    return bytes(c.cdb(struct.pack(">BBIBHB", 0x28, 0, block, 0, count, 0), din=count * 512,
                       lun=lun).check().data)


def insist(what, *arguments):
    """Again while there are unit attentions."""
    while True:
        try:
            return what(*arguments)
        except iscsiraw.CommandFailed as e:
            if ": 6/" not in str(e):
                raise


# ---- the simple case ---------------------------------------------------------------------------


@ctl.served
def one_image_takes_one_option(server):
    with server(server.image(MiB, "My Disk.IMG"), iscsi=True) as s:
        assert s.target == "iqn.2026-11.org.platter:my-disk.img"
        assert s.iscsi_uri == "iscsi://127.0.0.1:%d/%s/0" % (s.iscsi_port, s.target)
        said = subprocess.check_output(["iscsi-ls", "-s", s.iscsi_uri.rsplit("/", 2)[0]], text=True)
        assert "Target:" + s.target in said and "Lun:0 " in said and "Lun:1 " not in said, said
        with connect(s, s.target) as c:
            assert size(c) == MiB


@ctl.served
def it_is_called_as_the_operator_says(server):
    with server(server.image(MiB), args=["--target", TAPES], iscsi={"serial": "A,B"}) as s:
        assert s.target == TAPES
        with connect(s, TAPES) as c:
            assert serial(c) == "A,B"


@ctl.served
def both_protocols_have_the_same_bytes(server):
    with server(server.image(MiB), iscsi=True) as s:
        with connect(s, s.target) as c, nbdraw.connect(s.address) as n:
            write(c, 8, b"scsi" * 128)
            assert n.read(4096, 512) == b"scsi" * 128
            n.write(4096, b"nbd!" * 128, nbdraw.FUA)
            assert read(c, 8) == b"nbd!" * 128


@ctl.served
def several_exports_are_luns_in_their_order(server):
    words = [w for name, size in (("a", "1M"), ("b", "2M"), ("c", "3M"))
             for w in ("--export", "name=%s,driver=memory,size=%s" % (name, size))]
    with server(args=words, iscsi=True) as s:
        assert s.target == "iqn.2026-11.org.platter:a"
        with connect(s, s.target) as c:
            assert luns(c) == [0, 1, 2]
            for lun in range(3):
                c.ready() if lun == 0 else condition(c, lun)
                assert size(c, lun) == (lun + 1) * MiB
        assert [line.rsplit("/", 1)[1] for line in s.said().splitlines()
                if line.startswith("iscsi://")] == ["0", "1", "2"]


@servers.served(on=[servers.Platterd])
def a_command_gets_a_uri_of_what_there_is(server):
    image = server.image(MiB)
    for words, scheme in ((["--iscsi", "127.0.0.1:0"], "iscsi://127.0.0.1:"),
                          (["--iscsi", "127.0.0.1:0", "--tcp", "127.0.0.1:0"], "nbd://127.0.0.1:"),
                          ([], "nbd+unix:")):
        said = subprocess.check_output([servers.PLATTERD, *words, "--run", 'echo "$uri"', image],
                                       stdin=subprocess.DEVNULL, text=True,
                                       timeout=ctl.PATIENCE_S)
        assert said.startswith(scheme), said


@servers.served(on=[servers.Platterd])
def what_is_asked_for_on_the_command_line_must_be_there(server):
    """As a LUN, too."""
    unsafe = server.refusal(server.image(MiB), cache="unsafe", iscsi=True)
    assert "LUN 0" in unsafe and "unsafe" in unsafe, unsafe
    small = server.refusal(server.image(512), iscsi={"block-size": 4096})
    assert "LUN 0" in small, small


# ---- targets of a configuration ----------------------------------------------------------------


@ctl.served
def a_lun_map_is_as_it_is_written(server):
    with configured(server, memory("a", "b,c", "d"), "[export]\ndriver = null\nsize = 4M\n",
                    target(DISKS, {3: "a,serial=S3", 0: "b,,c", 255: ","}),
                    target(TAPES, {0: "d"})) as s:
        with iscsiraw.connect(s.portal) as c:
            assert [name for name, _ in c.targets()] == [DISKS, TAPES]
        with connect(s) as c:
            assert luns(c) == [0, 3, 255]
            condition(c, 3), condition(c, 255)
            assert serial(c, 3) == "S3" and size(c, 255) == 4 * MiB
            assert c.cdb(bytes(6), lun=1).condition == NO_SUCH_UNIT


@ctl.served
def who_is_not_named_is_refused_and_sees_nothing(server):
    with configured(server, memory("a", "b"),
                    target(DISKS, {0: "a"}, initiators=ALICE + ";" + BOB),
                    target(TAPES, {0: "b"}, addresses="192.0.2.0/24")) as s:
        with iscsiraw.connect(s.portal, initiator=ALICE) as c:
            assert [name for name, _ in c.targets()] == [DISKS]
        with iscsiraw.connect(s.portal, initiator=IQN + "eve") as c:
            assert c.targets() == []
        assert iscsiraw.refusal(s.portal, DISKS, IQN + "eve") in (NOT_FOUND, FORBIDDEN)
        assert iscsiraw.refusal(s.portal, TAPES, ALICE) in (NOT_FOUND, FORBIDDEN)
        assert iscsiraw.refusal(s.portal, DISKS, BOB) == 0


@ctl.served
def a_lun_is_seen_by_those_it_is_for(server):
    with configured(server, memory("a", "b", "c"),
                    target(DISKS, {0: "a", 1: "b,initiators=" + ALICE,
                                   2: "c,initiators=%s;%s" % (ALICE, BOB)})) as s:
        with connect(s, initiator=ALICE) as alice, connect(s, initiator=BOB) as bob:
            assert luns(alice) == [0, 1, 2] and luns(bob) == [0, 2]
            assert condition(bob, 1) == NO_SUCH_UNIT


def secrets(server, text, mode=0o600):
    path = server.path("secrets")
    with open(path + ".new", "w") as f:
        f.write(text)
    os.chmod(path + ".new", mode)
    os.rename(path + ".new", path)
    return path


@ctl.served
def secrets_are_read_again_at_a_reload_and_bad_ones_change_nothing(server):
    chap = secrets(server, "in alice a-secret-of-alice\n")
    sections = memory("a"), target(DISKS, {0: "a"}, chap=chap)
    with configured(server, *sections) as s:
        assert iscsiraw.refusal(s.portal, DISKS, ALICE) != 0
        assert iscsiraw.refusal(s.portal, DISKS, ALICE, chap=("alice", "a-secret-of-alice")) == 0
        secrets(server, "in alice short\n")
        said = s.o.refusal("reload")
        assert "secrets" in said and "short" not in said, said
        assert iscsiraw.refusal(s.portal, DISKS, ALICE, chap=("alice", "a-secret-of-alice")) == 0
        secrets(server, "in alice another-secret-of-hers\n")
        s.reload(*sections)
        assert iscsiraw.refusal(s.portal, DISKS, ALICE, chap=("alice", "a-secret-of-alice")) != 0
        assert iscsiraw.refusal(s.portal, DISKS, ALICE,
                                chap=("alice", "another-secret-of-hers")) == 0


@ctl.served
def secrets_that_others_may_read_are_refused(server):
    chap = secrets(server, "in alice a-secret-of-alice\n", mode=0o644)
    with open(server.path("platter.conf"), "w") as f:
        f.write(memory("a") + target(DISKS, {0: "a"}, chap=chap))
    said = server.refusal(args=["-c", server.path("platter.conf")], iscsi=True)
    assert chap in said, said


@ctl.served
def whoever_has_a_secret_under_an_initiators_name_is_that_initiator_alone(server):
    chap = secrets(server, "in %s a-secret-of-alice\nin guest a-secret-of-guests\n" % ALICE)
    hers, guest = (ALICE, "a-secret-of-alice"), ("guest", "a-secret-of-guests")
    with configured(server, memory("a", "b"),
                    target(DISKS, {0: "a", 1: "b,initiators=" + ALICE}, chap=chap)) as s:
        with connect(s, initiator=ALICE, chap=hers) as c:
            assert luns(c) == [0, 1]
        with connect(s, initiator=BOB, chap=guest) as c:
            assert luns(c) == [0]
        for initiator, known in ((ALICE, guest), (BOB, hers)):
            assert iscsiraw.refusal(s.portal, DISKS, initiator, chap=known) == 0x0201
            with connect(s, None, initiator, chap=known) as c:
                assert c.targets() == []


@ctl.served
def whoever_knows_a_secret_of_any_target_sees_those_it_is_for(server):
    files = []
    for who in ("alice", "bob"):
        files.append(server.path(who))
        with open(files[-1], "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write("in %s a-secret-of-%s\nout %s proof-for-%s\n" % (who, who, who, who))
    with configured(server, memory("a", "b", "c"), target(DISKS, {0: "a"}, chap=files[0]),
                    target(TAPES, {0: "b"}, chap=files[1]),
                    target(IQN + "open", {0: "c"})) as s:
        for who, its in ("alice", DISKS), ("bob", TAPES):
            with connect(s, None, chap=(who, "a-secret-of-" + who),
                         mutual=(who, "proof-for-" + who)) as c:
                assert [name for name, _ in c.targets()] == [its, IQN + "open"]
                for name in DISKS, TAPES:
                    assert bool(c.targets(name)) == (name == its)
        assert iscsiraw.refusal(s.portal, None, chap=("alice", "a-secret-of-bob")) == 0x0201
        assert iscsiraw.refusal(s.portal, None) == 0x0201
        # What one target proves itself by opens no other.
        with open(files[1], "a") as f:
            f.write("in carol proof-for-alice\n")
        said = s.o.refusal("reload")
        assert DISKS in said and "directions" in said, said


@ctl.served
def a_reset_of_the_target_is_about_what_its_initiator_sees(server):
    with configured(server, memory("a", "b", "c"),
                    target(DISKS, {0: "a,initiators=" + ALICE, 1: "b",
                                   2: "c,initiators=" + BOB})) as s:
        with connect(s, initiator=ALICE) as alice, connect(s, initiator=BOB, lun=1) as bob:
            for c, lun in (alice, 0), (alice, 1), (bob, 1), (bob, 2):
                condition(c, lun)                           # of its beginning
            assert bob.manage(iscsiraw.WARM_RESET) == iscsiraw.FUNCTION_COMPLETE
            assert condition(alice, 0) == "" and condition(alice, 1) == "6/2900"
            assert condition(bob, 1) == condition(bob, 2) == "6/2900"
    with configured(server, memory("a", "b"),
                    target(DISKS, {0: "a,initiators=" + ALICE, 1: "b,initiators=" + BOB})) as s:
        with connect(s, initiator=ALICE) as alice, connect(s, initiator=BOB, lun=1) as bob:
            assert bob.manage(iscsiraw.COLD_RESET) == iscsiraw.FUNCTION_COMPLETE
            bob.expect_close()
            bob.full = False
            assert condition(alice, 0) == ""


# ---- changes -----------------------------------------------------------------------------------


@ctl.served
def luns_come_and_go_and_initiators_are_told(server):
    exports = memory("a", "b")
    with configured(server, exports, target(DISKS, {0: "a"})) as s, connect(s) as c:
        write(c, 0, b"1" * 512)
        s.reload(exports, target(DISKS, {0: "a", 5: "b"}))
        assert condition(c) == LUNS_CHANGED
        assert luns(c) == [0, 5]
        condition(c, 5)
        write(c, 0, b"2" * 512, lun=5)
        s.reload(exports, target(DISKS, {0: "a"}))
        assert condition(c, 5) == NO_SUCH_UNIT and luns(c) == [0]
        c.ready()
        assert read(c, 0) == b"1" * 512


@ctl.served
def a_bad_configuration_changes_nothing(server):
    exports = memory("a", "b")
    with configured(server, exports, target(DISKS, {0: "a"})) as s, connect(s) as c:
        for text, says in ((target(DISKS, {0: "a", 1: "nix"}), "nix"),
                           (target(DISKS, {0: "a", 1: "b,serail=X"}), "serial"),
                           (target(DISKS, {1: "b", 2: "b"}), "already"),
                           (target(DISKS, {1: "b"}, addresses="here"), "addresses"),
                           ("", "target")):
            if text:
                s.configure(exports, text)
                assert says in s.o.refusal("reload")
            assert luns(c) == [0] and condition(c) == ""


@ctl.served
def an_image_that_grows_is_seen_at_once(server):
    image = server.image(MiB)
    sections = section("export", "disk", path=image), target(DISKS, {0: "disk"})
    with configured(server, *sections) as s, connect(s) as c:
        os.truncate(image, 2 * MiB)
        assert condition(c) == "" and size(c) == MiB
        s.reload(*sections)
        assert condition(c) == CAPACITY_CHANGED
        assert condition(c) == "" and size(c) == 2 * MiB
        write(c, 2 * MiB // 512 - 1, b"e" * 512)

        os.truncate(image, 3 * MiB)
        s.o.ask("resize", export="disk")
        assert condition(c) == CAPACITY_CHANGED and size(c) == 3 * MiB
        with nbdraw.connect(s.address, "disk") as n:
            assert n.size == 3 * MiB
        s.o.ask("resize", export="disk")
        assert condition(c) == ""
        assert "nix" in s.o.refusal("resize", export="nix")


@ctl.served
def an_image_that_has_shrunk_is_no_reason_to_change_anything(server):
    image = server.image(2 * MiB)
    with configured(server, section("export", "disk", path=image),
                    target(DISKS, {0: "disk"})) as s, connect(s) as c:
        os.truncate(image, MiB)
        s.o.refusal("resize", export="disk")
        assert condition(c) == "" and size(c) == 2 * MiB
        assert read(c, 0) == bytes(512)


@ctl.served
def initiators_go_on_while_luns_come_and_go(server):
    exports = memory("a", "b", "c")
    changes = [target(DISKS, {0: "a"}) + target(TAPES, {0: "b"}),
               target(DISKS, {0: "a", 1: "c,serial=Q"}, initiators=ALICE),
               target(DISKS, {0: "a", 1: "b"})]
    stop, counts = threading.Event(), []

    def load():
        count = 0
        while count < 40 or not stop.is_set():
            with connect(s) as c:
                for _ in range(20):
                    insist(write, c, 0, b"x" * 512)
                    assert insist(read, c, 0) == b"x" * 512
                    c.cdb("28 00 00000000 00 0001 00", din=512, lun=1)  # it may be missing
                    count += 1
        counts.append(count)

    with configured(server, exports, changes[2]) as s:
        loads = [threading.Thread(target=load) for _ in range(3)]
        for t in loads:
            t.start()
        try:
            for _ in range(10):
                for change in changes:
                    s.reload(exports, change)
                    time.sleep(0.01)
        finally:
            stop.set()
            for t in loads:
                t.join()
        assert len(counts) == 3     # none has failed


@ctl.served
def a_target_that_goes_takes_its_sessions_with_it(server):
    exports = memory("a", "b")
    with configured(server, exports, target(DISKS, {0: "a"}), target(TAPES, {0: "b"})) as s:
        with connect(s) as gone, connect(s, TAPES) as stays:
            s.reload(exports, target(TAPES, {0: "b", 1: "a"}))
            assert iscsiraw.refusal(s.portal, DISKS, ALICE) == NOT_FOUND
            assert condition(stays) == LUNS_CHANGED and luns(stays) == [0, 1]
            with contextlib.suppress(iscsiraw.Closed, ConnectionError):
                while True:     # until it is told to log out, or cut
                    gone.receive()
                    if gone.events:
                        gone.logout()
                        break
            until(lambda: len(s.o.connections()) == 1, "the session has ended")


@ctl.served
def a_lun_of_a_retired_export_is_gone(server):
    sections = memory("a", "b"), target(DISKS, {0: "a", 1: "b"})
    with configured(server, *sections) as s, connect(s) as c:
        condition(c, 1)
        s.o.ask("retire", export="b")
        assert condition(c, 1) == ""            # whoever has it goes on
        s.o.ask("retire", export="b", hard=True)
        until(lambda: luns(c) == [0], "the LUN has left")
        lun, = [x for x in s.o.ask("targets")["targets"][0]["luns"] if x["lun"] == 1]
        assert not lun["up"] and "retired" in lun["error"]
        s.reload(*sections)
        assert luns(c) == [0, 1]


@ctl.served
def a_lun_of_a_failed_export_is_whole_again_after_a_reload(server):
    image = server.image(MiB)
    sections = (section("export", "a", driver="fault", over="file", path=image,
                        kind="flush", fault="error"), target(DISKS, {0: "a"}))
    with configured(server, *sections) as s, connect(s) as c:
        name = serial(c)
        assert c.cdb("35 00 00000000 00 0000 00").condition.startswith(("3/", "4/"))
        assert c.cdb("35 00 00000000 00 0000 00").condition.startswith(("3/", "4/"))
        assert s.o.export("a")["failed"]
        s.reload(*sections)
        assert not s.o.export("a")["failed"]
        assert luns(c) == [0]
        c.ready()
        assert serial(c) == name


# ---- a LUN is somebody who has the export ------------------------------------------------------


@ctl.served
def an_exclusive_export_is_the_luns(server):
    exclusive = section("export", "a", driver="memory", size="1M", access="exclusive")
    limited = section("export", "b", driver="memory", size="1M", max_connections=1)
    with configured(server, exclusive, limited, target(DISKS, {0: "a", 1: "b"})) as s:
        for name in "ab":
            with nbdraw.Client(s.address) as n:
                try:
                    n.go(name)
                except nbdraw.Refused:
                    continue
                raise AssertionError("served: " + name)
        # One LUN, any number of sessions.
        with connect(s) as c, connect(s, initiator=BOB) as d:
            write(c, 0, b"1" * 512)
            assert read(d, 0) == b"1" * 512


@ctl.served
def of_single_writers_the_lun_is_the_first(server):
    single = section("export", "a", driver="memory", size="1M", access="single-writer")
    with configured(server, single, target(DISKS, {0: "a"})) as s, connect(s) as c:
        write(c, 0, b"1" * 512)
        with nbdraw.connect(s.address, "a") as n:
            assert n.flags & nbdraw.READ_ONLY and n.read(0, 512) == b"1" * 512


# ---- what is kept ------------------------------------------------------------------------------


@ctl.served
def a_lun_is_the_same_disk_after_a_restart(server):
    image = server.image(MiB)
    found = []
    for _ in range(2):
        with server(image, iscsi=True) as s, connect(s, s.target) as c:
            found.append(serial(c))
    assert found[0] == found[1] and len(found[0]) >= 8, found
    assert os.listdir(image + ".state") == ["default.lu"]
    os.remove(image + ".state/default.lu")
    with server(image, iscsi=True) as s, connect(s, s.target) as c:
        assert serial(c) != found[0]


def register(c, key, aptl=True):
    """PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY."""
    c.cdb("5f 06 00 00 00 00000018 00", dout=bytes(8) + struct.pack(">Q", key) + bytes(4) +
          bytes([1 if aptl else 0]) + bytes(3)).check()


def keys(c):
    """PERSISTENT RESERVE IN, READ KEYS."""
    data = c.cdb("5e 00 00 00 00 00 00 0100 00", din=256).check().data
    return [struct.unpack(">Q", data[at:at + 8])[0] for at in range(8, len(data), 8)]


@ctl.served
def reservations_outlive_the_server_also_a_killed_one(server):
    """In the sandbox: the state is written by threads of the workers."""
    image, port = server.image(MiB), b"\x80aaaaa"
    with server(image, iscsi=True) as s, connect(s, s.target, isid=port) as c:
        register(c, 0x1234)
        assert keys(c) == [0x1234]
        s.kill()
    with server(image, iscsi=True) as s, connect(s, s.target, isid=port) as c:
        assert keys(c) == [0x1234]
        register(c, 0x5678)
    with server(image, iscsi=True) as s, connect(s, s.target, isid=port) as c:
        assert keys(c) == [0x5678]
        with open(image + ".state/default.lu") as f:
            assert json.load(f)["reservations"]


@ctl.served
def whoever_cannot_save_a_reservation_is_told(server):
    image = server.image(MiB)
    with server(image, iscsi=True) as s, connect(s, s.target) as c:
        os.mkdir(image + ".state/default.lu.new")       # root cannot write that either
        try:
            register(c, 0x1234)
        except iscsiraw.CommandFailed as e:
            failed = str(e)
        else:
            raise AssertionError("it was taken")
        assert "default.lu.new" in s.said(), failed
        os.rmdir(image + ".state/default.lu.new")
        register(c, 0x1234)
        assert keys(c) == [0x1234]


@ctl.served
def the_state_is_the_users_the_server_becomes(server):
    if os.geteuid() != 0:
        tap.skip("only root can become another user")
    os.chmod(server.run, 0o755)     # TMPDIR may be root's alone
    image, state = os.path.join(server.run, "disk.img"), os.path.join(server.run, "state")
    with open(image, "wb") as f:
        f.truncate(MiB)
    os.chmod(image, 0o666)
    for _ in range(2):
        with server(image, args=["--user", "nobody", "--state", state], iscsi=True) as s, \
                connect(s, s.target, isid=b"\x80aaaaa") as c:
            register(c, 0x1234)
            assert keys(c) == [0x1234]
    assert os.stat(state).st_uid == os.stat(state + "/default.lu").st_uid != 0


@ctl.served
def a_broken_state_is_refused_by_its_name(server):
    image = server.image(MiB)
    os.mkdir(image + ".state")
    with open(image + ".state/default.lu", "w") as f:
        f.write('{"uuid": "')
    said = server.refusal(image, iscsi=True)
    assert image + ".state/default.lu" in said, said


@ctl.served
def a_directory_of_state_is_one_servers(server):
    state, first, second = server.path("state"), server.image(MiB), server.image(MiB, "other.img")
    with server(first, args=["--state", state], iscsi=True) as s, connect(s, s.target) as c:
        said = server.refusal(second, args=["--state", state], iscsi=True)
        assert "state=" + state in said and "another server" in said, said
        found = serial(c)
    with server(first, args=["--state", state], iscsi=True) as s, connect(s, s.target) as c:
        assert serial(c) == found


# ---- the operator ------------------------------------------------------------------------------


@ctl.served
def the_operator_sees_targets_luns_and_sessions(server):
    with configured(server, memory("a", "b"), target(DISKS, {0: "a", 1: "b"}),
                    "[export gone]\npath = /nowhere/disk.img\n", target(TAPES, {0: "gone"})) as s:
        with connect(s) as c:
            disks, tapes = s.o.ask("targets")["targets"]
            assert (disks["name"], disks["sessions"], disks["chap"]) == (DISKS, 1, False)
            assert [(x["lun"], x["export"], x["up"], x["error"]) for x in disks["luns"]] == [
                (0, "a", True, None), (1, "b", True, None)]
            assert tapes["sessions"] == 0
            assert not tapes["luns"][0]["up"] and "/nowhere" in tapes["luns"][0]["error"]
            one, = s.o.connections()
            assert (one["target"], one["initiator"], one["export"]) == (DISKS, ALICE, None)
            assert one["phase"] == "served" and one["peer"].startswith("127.0.0.1:")
            write(c, 0, b"1" * 512)
            write(c, 0, b"1" * 512, fua=False)
            read(c, 0)
            page = s.page()
            for line in ('platter_target_sessions{target="%s"} 1' % DISKS,
                         'platter_target_luns{target="%s"} 2' % DISKS,
                         'platter_target_luns_missing{target="%s"} 1' % TAPES):
                assert line in page.splitlines(), page
            operations = s.o.export("a")["operations"]
            assert operations["write_fua"]["count"] == operations["write"]["count"] == 1
            assert operations["read"]["bytes"] == 512
            assert s.o.export("a")["connections"] == 1
        with iscsiraw.connect(s.portal, initiator=ALICE):
            until(lambda: [(x["target"], x["initiator"]) for x in s.o.connections()]
                  == [(None, ALICE)], "only the discovery session is left")


@ctl.served
def the_operator_can_disconnect_an_initiator(server):
    with configured(server, memory("a"), target(DISKS, {0: "a"})) as s, connect(s) as c:
        s.o.ask("disconnect", id=s.o.connections()[0]["id"])
        c.expect_close()
        with connect(s) as d:
            assert condition(d) == ""


@ctl.served
def told_to_stop_it_is_gone_although_an_initiator_stays(server):
    with server(server.image(MiB), iscsi=True) as s, connect(s, s.target) as c:
        write(c, 0, b"1" * 512)
        began = time.monotonic()
        s.stop()
        assert time.monotonic() - began < 5 * servers.PATIENCE


# ---- what does not go together -----------------------------------------------------------------


@servers.served(on=[servers.Platterd])
def nobody_gets_by_iscsi_what_is_for_tls_or_for_the_named(server):
    image = server.image(MiB)
    key = server.path("keys")
    with open(key, "w") as f:
        f.write("alice:" + "00" * 32 + "\n")
    os.chmod(key, 0o600)
    tls = ["--tls-psk", key, "--tls"]
    for words, says in ((tls + ["required"], "no TLS"),
                        (tls + ["optional", "--export", "name=a,driver=memory,size=1M,"
                                "tls=required"], "tls=required"),
                        (["--export", "name=a,driver=memory,size=1M,allow-uid=0"], "allow-"),
                        (["--export", "dir=" + server.dir], "directory")):
        said = server.refusal(*([image] if "dir=" not in words[-1] else []), args=words, iscsi=True)
        assert says in said, said


if __name__ == "__main__":
    tap.main()
