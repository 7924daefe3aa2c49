#!/usr/bin/python3
# takes minutes
"""`platter probe`: our servers are as they should be, others miss what is known of them, and a
server that lies is caught."""

# no valgrind

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import pki
import tap
from liar import ALLOCATION, CHUNK_DONE, Gone, Liar
from nbdraw import CHUNK_HOLE, CHUNK_STATUS, OPT_LIST, REP_ACK, REP_INFO
from peers import NbdkitMemory, QemuNbd
from server import BUILD, PATIENCE, Nbdkit, Platterd, served

MiB, GiB = 1 << 20, 1 << 30
PLATTER = os.path.join(BUILD, "platter")
EXPECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe-expect")


def run(*words):
    return subprocess.run([PLATTER, "probe", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def probe(uri, *words):
    """What it found, and by name."""
    done = run("--json", *words, uri)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["status"] == done.returncode, done
    return found, {a["name"]: a for a in found["assertions"]}


def told(found):
    """The lines of a person about what was missed."""
    return "\n".join("%s: %s: %s" % (a["name"], m["connection"], m["text"])
                     for a in found["assertions"] for m in a["misses"])


def must_be_clean(uri, *words, sometimes=()):
    """sometimes: those of the expected misses that are none now and then."""
    found, rows = probe(uri, "--write", "--strict", *words)
    assert found["status"] == 0, told(found)
    over = [name for name, row in rows.items() if row["passes_now"] and name not in sometimes]
    assert not over, "expected misses that are none: %s" % over
    return found, rows


def with_query(uri, query):
    return uri + ("" if uri.count("/") > 2 else "/") + ("&" if "?" in uri else "?") + query


# ---- our servers

@served(on=[Platterd])
def platterd_keeps_every_promise(server):
    """All kinds of connections without TLS, and sizes beyond 32 bits."""
    with server(server.image(5 * GiB)) as s:
        found, rows = must_be_clean(s.uri)
        assert found["connections"] == ["plain compact", "plain structured", "plain extended"]
        for name in ("zeroes-2g", "long-zeroes", "status-filter", "multi-conn", "fua-writes"):
            assert rows[name]["result"] == "ok", rows[name]


@served(on=[Platterd])
def platterd_keeps_every_promise_by_tls(server):
    folder = pki.make(server.path("pki"))
    with server(server.image(64 * MiB), tcp=True, tls=folder + "/server") as s:
        found, rows = must_be_clean(with_query(s.uri, "tls-certificates=%s/client" % folder))
        assert found["connections"] == ["TLS compact", "TLS structured", "TLS extended"]
        for name in ("tls-required", "tls-garbage", "tls-old", "tls-1.2", "tls-1.3",
                     "starttls-resets", "tls-goodbye"):
            assert rows[name]["result"] == "ok", rows[name]


@served(on=[Platterd])
def platterd_keeps_every_promise_by_shared_keys(server):
    keys = pki.psk_file(server.path("keys"), "alice")
    with server(server.image(8 * MiB), tls=keys) as s:
        uri = s.uri.replace("nbds+unix://", "nbds+unix://alice@")
        must_be_clean(with_query(uri, "tls-psk-file=" + keys))


@served(on=[Platterd])
def platterd_keeps_every_promise_read_only(server):
    with server(server.image(8 * MiB, fill=0xEE), read_only=True) as s:
        _, rows = must_be_clean(s.uri)
        assert rows["read-only"]["result"] == "ok"
        assert rows["write-and-read"]["reason"].startswith("the export is read-only")


@served(on=[Platterd])
def platterd_keeps_every_promise_of_each_cache_mode(server):
    for mode in ("none", "unsafe", "directsync"):
        with server(server.image(8 * MiB, fill=0xEE), cache=mode) as s:
            _, rows = must_be_clean(s.uri)
            assert rows["fua-not-offered"]["result"] == ("ok" if mode == "unsafe" else "n/a")


@served(on=[Platterd])
def a_client_that_says_nothing_is_sent_away(server):
    with server(server.image(MiB), args=("--handshake-timeout", "1s")) as s:
        must_be_clean(s.uri, "--slow", "--only", "handshake-deadline")


@served(on=[Nbdkit])
def the_plugin_misses_what_nbdkit_misses(server):
    with server(server.image(GiB)) as s:
        must_be_clean(s.uri, "--expect", EXPECT + "/plugin.txt", sometimes=["disc"])


# ---- others

@served(on=[NbdkitMemory])
def nbdkit_misses_what_is_known(server):
    with server("256M") as s:
        must_be_clean(s.uri, "--expect", EXPECT + "/nbdkit-memory.txt",
                      sometimes=["disc", "half-closed"])


@served(on=[QemuNbd])
def qemu_nbd_misses_what_is_known(server):
    with server(server.image(GiB)) as s:
        must_be_clean(s.uri, "--expect", EXPECT + "/qemu-nbd.txt",
                      sometimes=["disc", "half-closed"])


# ---- a server that lies

def caught(*names, write=False):
    """Registers a case for a liar: each of these assertions must find it out."""
    def register(kind):
        def case():
            words = ["--timeout", str(2 * PATIENCE), "--strict"] + ["--write"] * write
            with kind() as s:
                for name in names:
                    found, rows = probe(s.uri, *words, "--only", name)
                    assert rows[name]["misses"], "%s is not caught by %s" % (kind.__name__, name)
                    assert found["status"] == 1
                    print(told(found))
        words_of_name = "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__)
        case.__name__ = "a_server%s_is_caught" % words_of_name
        tap.test(case)
        return kind
    return register


@tap.test
def a_server_in_python_is_clean_while_it_does_not_lie():
    with Liar() as s:
        before = bytes(s.disk)
        found, rows = must_be_clean(s.uri)
        assert found["summary"]["ok"] > 60, found["summary"]
        assert bytes(s.disk) == before, "what was written over was not put back"


@caught("greeting")
class ThatGreetsWithUnknownFlags(Liar):
    def haggle(self, c):
        c.send(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 7))
        c.client_flags, = c.unpack(">I")
        while not self.option(c, *self.take_option(c)):
            pass


@caught("client-flags")
class ThatTakesAnyClientFlags(Liar):
    def haggle(self, c):
        c.send(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
        c.client_flags, = c.unpack(">I")
        while not self.option(c, *self.take_option(c)):
            pass


@caught("option-reply")
class ThatEchoesHalfOfAnOption(Liar):
    def reply(self, c, option, kind, data=b""):
        super().reply(c, option & 0xff, kind, data)


@caught("option-unknown", "option-pipelined")
class ThatLeavesDataOfUnknownOptions(Liar):
    def take_option(self, c):
        magic, option, length = c.unpack(">8sII")
        if magic != b"IHAVEOPT":
            raise Gone
        return option, b"" if option > 10 else c.take(length)


@caught("export-name")
class ThatAlwaysPads(Liar):
    def padding(self, c):
        return 124


@caught("export-name")
class ThatPadsAByteTooFew(Liar):
    def padding(self, c):
        return 0 if c.client_flags & 2 else 123


@caught("list-data")
class ThatListsInSpiteOfData(Liar):
    def list(self, c, data):
        return super().list(c, b"")


@caught("list")
class ThatListsOnce(Liar):
    def list(self, c, data):
        if getattr(c, "listed", False):
            self.reply(c, OPT_LIST, REP_ACK)
            return False
        c.listed = True
        return super().list(c, data)


@caught("info-name-length")
class ThatTrustsInnerLengths(Liar):
    def info(self, c, option, data):
        length = int.from_bytes(data[:4], "big")
        return super().info(c, option, data if length < 4096 and len(data) > 12 else
                            struct.pack(">IH", 0, 0))


@caught("info-export")
class ThatTellsOfTheExportTwice(Liar):
    def tell_export(self, c, option):
        super().tell_export(c, option)
        if not c.structured:
            self.reply(c, option, REP_INFO, struct.pack(">H", 2) + b"a disk")
            if option == 6:
                super().tell_export(c, option)


@caught("info-then-go")
class ThatTellsAnotherSizeByGo(Liar):
    def tell_export(self, c, option):
        self.size = 1 * MiB if option == 7 else 2 * MiB
        super().tell_export(c, option)


@caught("transmission-flags")
class ThatOffersDfWithoutStructuredReplies(Liar):
    flags = Liar.flags | 128


@caught("context-unknown")
class ThatSelectsByWildcard(Liar):
    def contexts(self, c, option, data):
        super().contexts(c, option, data.replace(b"\0\0\0\x05base:", b"\0\0\0\x0fbase:allocation"))


@caught("request-magic")
class ThatIgnoresTheMagic(Liar):
    def request(self, c):
        _, _, command, cookie, _, _ = c.unpack(">IHHQQI")
        self.answer(c, command, cookie, 22)


@caught("read-chunks", "cookies")
class ThatRepliesWithAnotherMagic(Liar):
    def simple(self, c, cookie, error, data=b""):
        c.send(struct.pack(">IIQ", 0x67446699, error, cookie) + data)


@caught("cookies", "in-flight")
class ThatCutsCookies(Liar):
    def simple(self, c, cookie, error, data=b""):
        super().simple(c, cookie & 0x3f, error, data)


@caught("read-error")
class ThatRefusesReadsBySimpleReplies(Liar):
    def answer(self, c, command, cookie, error):
        self.simple(c, cookie, error)


@caught("read-chunks")
class ThatNeverSaysDone(Liar):
    def done(self, c, cookie):
        pass


@caught("in-flight")
class ThatSaysDoneTwice(Liar):
    def done(self, c, cookie):
        super().done(c, cookie)
        super().done(c, cookie)


@caught("read-chunks")
class ThatSendsContentTwice(Liar):
    def content(self, c, cookie, offset, data):
        super().content(c, cookie, offset, data)
        super().content(c, cookie, offset, data)


@caught("read-chunks")
class ThatSendsHalf(Liar):
    def content(self, c, cookie, offset, data):
        super().content(c, cookie, offset, data[:(len(data) + 1) // 2])


@caught("read-chunks")
class ThatSendsWhatWasNotAskedFor(Liar):
    def content(self, c, cookie, offset, data):
        super().content(c, cookie, offset + 4096, data)


@caught("read-chunks")
class ThatSendsHolesOfNothing(Liar):
    def content(self, c, cookie, offset, data):
        self.chunk(c, cookie, CHUNK_HOLE, struct.pack(">QI", offset, 0))
        super().content(c, cookie, offset, data)


@caught("read-df")
class ThatFragmentsInSpiteOfDf(Liar):
    def read(self, c, cookie, offset, length, flags):
        super().read(c, cookie, offset, length, 0)


@caught("read-agrees", "write-and-read", write=True)
class ThatReadsWrongBytes(Liar):
    def contents(self, c, offset, length):
        return super().contents(c, offset, length)[:-1] + bytes([length >> 8 & 0xff])


@caught("fua-anywhere")
class ThatRefusesFuaWhereNothingIsWritten(Liar):
    def check(self, c, flags, command, offset, length):
        return 22 if flags & 1 and command in (0, 3) else super().check(c, flags, command, offset,
                                                                       length)


@caught("flag-unknown", "flag-misplaced", "df-not-offered")
class ThatIgnoresFlags(Liar):
    def check(self, c, flags, command, offset, length):
        return super().check(c, 0, command, offset, length)


@caught("command-unknown")
class ThatTakesUnknownCommands(Liar):
    may_have = {**Liar.may_have, 63: 0}


@caught("command-unknown")
class ThatLeavesAtAnUnknownCommand(Liar):
    def check(self, c, flags, command, offset, length):
        if command not in self.may_have:
            raise Gone
        return super().check(c, flags, command, offset, length)


@caught("beyond-end", "beyond-end-writes", write=True)
class ThatWrapsAround(Liar):
    def is_outside(self, offset, length):
        return (offset + length) % (1 << 64) > self.size

    def contents(self, c, offset, length):
        return bytes(length)


@caught("write-drained", "write-32m", write=True)
class ThatLeavesThePayloadOfWhatFails(Liar):
    def payload(self, c, length, error):
        return b"" if error else super().payload(c, length, error)


@caught("write-and-read", "fua-writes", write=True)
class ThatForgets(Liar):
    def write(self, c, offset, data):
        pass


@caught("zeroes", write=True)
class ThatDoesNotZero(Liar):
    def zero(self, c, offset, length):
        pass


@caught("zeroes", write=True)
class ThatZeroesBeside(Liar):
    def zero(self, c, offset, length):
        super().zero(c, offset, length + 1)


@caught("multi-conn", write=True)
class ThatCachesForEachConnection(Liar):
    def own(self, c):
        if not hasattr(c, "disk"):
            c.disk = bytearray(self.disk)
        return c.disk

    def contents(self, c, offset, length):
        return bytes(self.own(c)[offset:offset + length])

    def write(self, c, offset, data):
        self.own(c)[offset:offset + len(data)] = data
        super().write(c, offset, data)


@caught("flush")
class ThatHangsInFlush(Liar):
    def flush(self, c):
        threading.Event().wait()


@caught("flush-arguments")
class ThatFlushesRanges(Liar):
    def check(self, c, flags, command, offset, length):
        return 0 if command == 3 else super().check(c, flags, command, offset, length)


@caught("disc")
class ThatAnswersDisc(Liar):
    def disc(self, c, cookie):
        self.simple(c, cookie, 0)


@caught("disc")
class ThatStaysAfterDisc(Liar):
    def disc(self, c, cookie):
        threading.Event().wait()


@caught("status")
class ThatCallsDataZeroes(Liar):
    def state(self, c, offset, length):
        return 2


@caught("status")
class ThatHasExtentsOfNothing(Liar):
    def extents(self, c, cookie, extents):
        super().extents(c, cookie, [(0, 0), *extents])


@caught("status")
class ThatTellsOfAnotherContext(Liar):
    def extents(self, c, cookie, extents):
        self.chunk(c, cookie, CHUNK_STATUS | CHUNK_DONE << 16,
                   struct.pack(">III", ALLOCATION + 1, *extents[0]))


@caught("status-one")
class ThatTellsMoreThanOne(Liar):
    def extents(self, c, cookie, extents):
        length, flags = extents[0]
        super().extents(c, cookie, [(length // 2, flags), (length - length // 2, flags)]
                        if length > 1 else extents)


@caught("status-no-context")
class ThatHasAStatusWithoutAContext(Liar):
    def check(self, c, flags, command, offset, length):
        error = super().check(c, flags, command, offset, length)
        return 0 if command == 7 and c.structured else error


# ---- the prober itself

@tap.test
def a_handshake_that_cannot_be_done_is_a_miss():
    class Odd(Liar):
        def reply(self, c, option, kind, data=b""):
            super().reply(c, option + 1, kind, data)

    with Odd() as s:
        done = run(s.uri)
        assert done.returncode == 1 and "the reply to LIST is marked" in done.stderr, done


@tap.test
def what_cannot_be_saved_is_not_written_over():
    class Unreadable(Liar):
        def contents(self, c, offset, length):
            raise Gone

        def write(self, c, offset, data):
            raise AssertionError

    with Unreadable() as s:
        found, rows = probe(s.uri, "--write", "--only", "[wz]*")
        assert found["status"] == 1 and rows["write-and-read"]["result"] == "n/a"
        assert bytes(s.disk) == b"\xee" * s.size


@tap.test
def without_write_nothing_is_written():
    class Watched(Liar):
        wrote = False

        def request(self, c):
            head = c.socket.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL)
            self.wrote |= head[6:8] in (b"\0\1", b"\0\4", b"\0\6")
            super().request(c)

    with Watched() as s:
        found, rows = probe(s.uri)
        assert not s.wrote and found["status"] == 0
        assert rows["zeroes"]["reason"] == "without --write"
        done = run(s.uri)
        assert done.returncode == 0 and "without --write" in done.stdout.splitlines()[-1]


@tap.test
def what_is_expected_does_not_count_and_a_pass_is_told():
    with ThatForgets() as s, open(os.path.join(s.folder.name, "expect"), "w") as expect:
        expect.write("# lists\nwrite-and-read\t# forgets\n\nflush\n")
        expect.flush()
        words = ("--write", "--only", "[fw][lr][ui][st][he]*", "--expect", expect.name)
        found, rows = probe(s.uri, *words)
        assert rows["write-and-read"]["result"] == "expected", rows
        assert rows["flush"]["result"] == "ok" and rows["flush"]["passes_now"]
        assert "it was expected to miss this" in run(*words, s.uri).stdout
        expect.write("no-such-name\n")
        expect.flush()
        done = run(*words, s.uri)
        assert done.returncode == 2 and "no-such-name" in done.stderr


@tap.test
def a_should_counts_only_when_strict():
    with ThatIgnoresFlags() as s:
        for words, status in ((), 0), (("--strict",), 1):
            found, rows = probe(s.uri, "--only", "flag-unknown", *words)
            assert rows["flag-unknown"]["result"] == "warn" and found["status"] == status


@tap.test
def what_cannot_be_tried_is_status_2():
    for words, what in (
            (("nbd+unix:///?socket=/nonexistent",), "/nonexistent"),
            (("http://localhost/",), "http://"),
            (("nbd+unix:///",), "socket=PATH"),
            (("nbd+unix:///?socket=",), "socket=PATH"),
            (("nbd://localhost/?colour=red",), "colour=red"),
            (("nbd://localhost/%zz",), "%"),
            (("nbd://localhost:65537",), "'65537' is no port"),
            (("nbd://localhost:0",), "'0' is no port"),
            (("nbd://localhost:nbd",), "'nbd' is no port"),
            (("--timeout", "0", "nbd://localhost"), "--timeout"),
            (("--only", "no-such-*", "nbd://localhost"), "'no-such-*' fits no assertion"),
            (("--no-such-option", "nbd://localhost"), "no-such-option"),
            ((), "name one URI"), (("nbd://localhost", "nbd://localhost"), "name one URI")):
        done = run(*words)
        assert done.returncode == 2 and what in done.stderr, (words, done)


@tap.test
def a_server_that_never_speaks_is_given_up():
    with socket.socket(socket.AF_UNIX) as mute, Liar() as s:
        path = os.path.join(s.folder.name, "mute")
        mute.bind(path)
        mute.listen(10)
        done = run("--timeout", "1", "nbd+unix:///?socket=" + path)
        assert done.returncode == 1 and "the greeting" in done.stderr, done


@tap.test
def an_interrupted_run_puts_back_what_it_wrote_over():
    class Slow(Liar):
        def zero(self, c, offset, length):
            super().zero(c, offset, length)
            os.kill(process.pid, signal.SIGTERM)

    with Slow() as s:
        before = bytes(s.disk)
        process = subprocess.Popen([PLATTER, "probe", "--write", s.uri],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert process.wait() == 2
        assert bytes(s.disk) == before


@tap.test
def the_help_fits_a_screen_and_the_list_has_every_row():
    lines = run("--help").stdout.splitlines()
    assert 0 < len(lines) <= 24 and max(map(len, lines)) <= 80, lines
    rows = run("--list").stdout.splitlines()
    names = [row.split()[2] for row in rows]
    assert len(names) > 100 and len(set(names)) == len(names)
    assert max(map(len, rows)) <= 110, max(rows, key=len)


@tap.test
def names_and_escapes_of_a_uri_are_understood():
    class Named(Liar):
        def info(self, c, option, data):
            self.asked = data[4:4 + int.from_bytes(data[:4], "big")]
            return super().info(c, option, data)

    with Named() as s:
        path = s.uri.partition("=")[2]
        for uri, name in ((s.uri.replace("///", "///a%20b%2Fc"), b"a b/c"),
                          (s.uri.replace("///", "////x"), b"/x"),
                          ("nbd+unix:///?socket=" + path.replace("/", "%2f"), b"")):
            run("--only", "greeting", uri)
            assert s.asked == name, (uri, s.asked)


tap.main()
