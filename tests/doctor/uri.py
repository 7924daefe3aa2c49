#!/usr/bin/python3
"""What `platter doctor URI` sees of servers of all kinds, what it concludes, and that it says where
it cannot know."""

import os
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import pki
import tap
from examined import ADVICE, CANNOT, HEALTHY, PLATTER, UNSAFE, VERDICTS, Report
from examined import run as examine
from liar import Liar
from nbdraw import CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_TRIM
from peers import NbdkitMemory, QemuNbd, Tgt
from server import Platterd, served

MiB = 1 << 20

DURABLE = "clients can make writes durable: FLUSH and FUA are offered"
AT_ONCE = "there is no write cache: what is answered is durable"
NOTHING = "neither FLUSH nor FUA is offered: no write is ever durable"
FUA_ALONE = "FUA is offered, and FLUSH is not"
NO_FUA = "FUA is not offered: each durable write costs a FLUSH"
ONE_CONNECTION = "multi-conn is not offered: use one connection"
READ_ONLY_DISK = "it is read-only: there is nothing to lose by a loss of power"
NO_TRIM = "TRIM is not offered"
NO_SIZES = "no block sizes are told"
BIG_BLOCK = "the smallest block is above 512 bytes"
NO_TLS = "there is no TLS on the way to another machine"
TLS_OPTIONAL = "TLS is offered, and nobody insists on it"
ISCSI_PLAIN = "iSCSI goes to another machine in plain text"
COSTS = "a FLUSH after a write takes its time"
FAILS = "a READ, WRITE or FLUSH fails"
IS_FREE = "a FLUSH after a write takes hardly any time"


def doctor(*words, status):
    """What it says. It has to end with that status, if that is not None."""
    done = examine(*words)
    assert status in (None, done.returncode), "%s: status %d instead of %d" % (
        words, done.returncode, status)
    return done.stdout


def examined(uri, *words, status):
    """({fact: value}, [finding]), the findings in their order."""
    report = Report(doctor("--json", *words, uri, status=status))
    assert report.all["target"] == uri and report.all["verdict"] == VERDICTS[status]
    return {f["name"]: f["value"] for f in report.all["facts"]}, report.found


def yes(facts):
    """The names of what is told to be so."""
    return {name for name, value in facts.items() if value.partition(":")[0] == "yes"}


def elsewhere(uri):
    """The same server by an address that is not known to be here, though Linux takes it so."""
    return uri.replace("127.0.0.1", "0.0.0.0")


# ---- NBD

@served(on=[Platterd])
def platterd_is_healthy_whatever_its_cache(server):
    for cache in ("writeback", "none", "writethrough", "directsync"):
        with server(server.image(8 * MiB), cache=cache) as s:
            facts, findings = examined(s.uri, status=HEALTHY)
        assert findings == [DURABLE]
        assert {"FLUSH", "FUA", "multi-conn", "TRIM", "structured replies",
                "extended headers", "block sizes told"} <= yes(facts), facts
        assert facts["size"] == "8388608 bytes" and "TLS" not in yes(facts)


@served(on=[Platterd])
def platterd_with_an_unsafe_cache_is_unsafe(server):
    with server(server.image(8 * MiB), cache="unsafe") as s:
        facts, findings = examined(s.uri, status=UNSAFE)
    assert findings[0] == NOTHING and not yes(facts) & {"FLUSH", "FUA"}


@served(on=[Platterd])
def what_is_read_only_has_nothing_to_lose(server):
    with server(server.image(8 * MiB), read_only=True, iscsi=True) as s:
        facts, findings = examined(s.uri, "--check-flush", status=HEALTHY)
        assert findings == [READ_ONLY_DISK] and "read-only" in yes(facts)
        assert facts["not checked"] == "it is read-only"
        facts, findings = examined(s.iscsi_uri, "--check-flush", status=HEALTHY)
        assert findings == [READ_ONLY_DISK] and "write-protected" in yes(facts)


@served(on=[Platterd])
def tls_is_seen_and_its_lack_told_where_there_is_a_network(server):
    folder = pki.make(server.path("pki"))
    query = "?tls-certificates=%s/client&tls-hostname=localhost" % folder
    image = server.image(8 * MiB)
    with server(image, tcp=True) as s:
        facts, findings = examined(elsewhere(s.uri), status=ADVICE)
        assert findings[0] == NO_TLS and "TLS" not in yes(facts)
        assert examined(s.uri, status=HEALTHY)[1] == [DURABLE]
    with server(image, tcp=True, tls=folder + "/server") as s:
        facts, findings = examined(elsewhere(s.uri) + query, status=HEALTHY)
        assert findings == [DURABLE] and {"TLS", "TLS only"} <= yes(facts)
        assert "speaks by TLS" in doctor(s.uri.replace("nbds", "nbd"), status=CANNOT)
    with server(image, tcp=True,
                args=("--tls", "optional", "--tls-certificates", folder + "/server")) as s:
        facts, findings = examined(elsewhere(s.uri.replace("nbds", "nbd")), status=ADVICE)
        assert findings[0] == TLS_OPTIONAL and "TLS only" not in yes(facts)


@served(on=[NbdkitMemory])
def what_nbdkit_leaves_out_is_missed(server):
    # This nbdkit tells block sizes only where a plugin has some.
    for filters, options, expected in (
            ((), {}, [NO_SIZES, DURABLE]),
            (["fua"], {"fuamode": "discard"}, [NO_SIZES, DURABLE]),     # a lie is not seen
            (["fua"], {}, [NO_FUA, NO_SIZES]),
            (["multi-conn"], {"multi-conn-mode": "disable"},
             [ONE_CONNECTION, NO_SIZES, DURABLE]),
            (["blocksize-policy"], {"blocksize-minimum": "4096", "blocksize-preferred": "4096"},
             [BIG_BLOCK, DURABLE])):
        with server("8M", filters=filters, **options) as s:
            assert examined(s.uri, status=ADVICE)[1] == expected, (filters, options)


@served(on=[QemuNbd])
def qemu_is_examined(server):
    with server(server.image(8 * MiB)) as s:
        facts, findings = examined(s.uri, status=HEALTHY)
    assert findings == [DURABLE] and {"FLUSH", "FUA", "multi-conn"} <= yes(facts)


@tap.test
def what_a_missing_flag_means_is_told():
    rest = HAS_FLAGS | CAN_MULTI_CONN | SEND_TRIM
    for flags, status, expected in (
            (rest, UNSAFE, [NOTHING]),
            (rest | SEND_FUA, UNSAFE, [FUA_ALONE]),
            (rest | SEND_FLUSH, ADVICE, [NO_FUA]),
            (rest | SEND_FLUSH | SEND_FUA, HEALTHY, [DURABLE]),
            ((rest | SEND_FLUSH | SEND_FUA) & ~CAN_MULTI_CONN, ADVICE, [ONE_CONNECTION, DURABLE]),
            ((rest | SEND_FLUSH | SEND_FUA) & ~SEND_TRIM, ADVICE, [NO_TRIM, DURABLE]),
            (HAS_FLAGS | READ_ONLY, HEALTHY, [READ_ONLY_DISK])):
        class Server(Liar):
            pass
        Server.flags = flags
        with Server() as s:
            assert examined(s.uri, status=status)[1] == expected, hex(flags)


# ---- whether a FLUSH takes time

class Slow(Liar):
    """Its FLUSH has something to do after a write, which takes longer than anything else."""

    dirty, pause = False, 0.02

    def write(self, c, offset, data):
        assert self.disk[offset:offset + len(data)] == data     # only what is there
        self.dirty = True

    def flush(self, c):
        time.sleep(self.pause * self.dirty)
        self.dirty = False


class Lazy(Liar):
    """Its FLUSH does nothing, and a READ takes longer."""

    def contents(self, c, offset, length):
        time.sleep(0.005)
        return super().contents(c, offset, length)


@tap.test
def a_flush_that_works_is_told_from_one_that_does_nothing():
    with Slow() as s:
        facts, findings = examined(s.uri, "--check-flush", status=HEALTHY)
        assert COSTS in findings and "4096 bytes" in facts["rounds"]
    with Lazy() as s:
        assert examined(s.uri, "--check-flush", status=ADVICE)[1] == [IS_FREE, DURABLE]


@tap.test(slow=True)
def few_rounds_are_not_judged():
    class Slower(Slow):
        pause = 1
    with Slower() as s:
        facts, findings = examined(s.uri, "--check-flush", status=HEALTHY)
        assert findings == [DURABLE] and facts["not judged"] == "the rounds are too few"


@served(on=[Platterd])
def nothing_is_written_unless_a_flush_is_checked(server):
    with server(server.image(8 * MiB, fill=0xEE), iscsi=True) as s:
        with open(server.path("disk.img"), "rb") as f:
            for uri in (s.uri, s.iscsi_uri):
                before = os.fstat(f.fileno()).st_mtime_ns
                examined(uri, status=HEALTHY)
                assert os.fstat(f.fileno()).st_mtime_ns == before
                doctor("--check-flush", uri, status=None)
                assert os.fstat(f.fileno()).st_mtime_ns > before
            assert f.read() == b"\xee" * (8 * MiB)


@tap.test
def without_a_flush_there_is_nothing_to_check():
    class Server(Liar):
        flags = HAS_FLAGS | SEND_TRIM
    with Server() as s:
        facts, findings = examined(s.uri, "--check-flush", status=UNSAFE)
        assert facts["not checked"] == "there is no FLUSH" and IS_FREE not in findings


@tap.test
def a_flush_that_fails_is_unsafe():
    class Server(Liar):
        def check(self, c, flags, command, offset, length):
            return 5 if command == 3 else super().check(c, flags, command, offset, length)
    with Server() as s:
        facts, findings = examined(s.uri, "--check-flush", status=UNSAFE)
        assert facts["failed"] == "FLUSH: Input/output error" and findings == [FAILS, DURABLE]


# ---- iSCSI

@served(on=[Platterd])
def platterds_units_are_healthy(server):
    for cache, expected in (("writeback", DURABLE), ("none", DURABLE), ("directsync", AT_ONCE)):
        with server(server.image(8 * MiB), cache=cache, iscsi=True) as s:
            facts, findings = examined(s.iscsi_uri, status=HEALTHY)
            assert findings == [expected]
            assert {"DPOFUA", "LBPU"} <= yes(facts) and facts["block"] == "512 bytes"
            assert ("no write cache" in yes(facts)) == (expected == AT_ONCE)
            if cache == "directsync":
                facts, _ = examined(s.iscsi_uri, "--check-flush", status=HEALTHY)
                assert facts["not checked"] == "there is no write cache"
            assert examined(elsewhere(s.iscsi_uri), status=ADVICE)[1][0] == ISCSI_PLAIN


@served(on=[Platterd])
def a_unit_without_fua_is_told(server):
    with server(server.image(8 * MiB), iscsi={"dpofua": "off"}) as s:
        facts, findings = examined(s.iscsi_uri, status=ADVICE)
        assert findings == [NO_FUA] and "DPOFUA" not in yes(facts)


@served(on=[Tgt])
def tgt_is_examined(server):
    with server(server.image(8 * MiB)) as s:
        facts, findings = examined(s.iscsi_uri, status=ADVICE)
        assert NO_TRIM in findings and facts["size"] == "8388608 bytes"


# ---- what cannot be examined

@tap.test
def what_does_not_answer_cannot_be_examined():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for uri in ("nbd://127.0.0.1:%d/", "iscsi://127.0.0.1:%d/iqn.2026-11.org.example:x/0"):
            assert "platter doctor: " in doctor("--timeout", "1", uri % port, status=CANNOT)
    for uri in ("nbd://127.0.0.1:%d/", "iscsi://127.0.0.1:%d/iqn.2026-11.org.example:x/0"):
        assert "onnect" in doctor(uri % port, status=CANNOT)


@tap.test
def mistakes_on_the_command_line_are_named():
    for words, what in (([], "name one PATH or URI"),
                        (["nbd://a", "nbd://b"], "name one PATH or URI"),
                        (["--timeout", "0", "nbd://a"], "--timeout"),
                        (["ftp://host/x"], "begins with none of nbd://"),
                        (["iscsi://host"], "iscsi"),
                        (["--nonsense"], "nonsense")):
        done = subprocess.run([PLATTER, "doctor", *words], capture_output=True, text=True)
        assert done.returncode == CANNOT and what in done.stderr, (words, done)
    said = doctor("--help", status=0)
    assert "--check-flush" in said and len(said.splitlines()) <= 24


tap.main()
