#!/usr/bin/python3
"""Haggling: every option gets the answer that the protocol wants, and the next one is found
where it begins; in plain text and by TLS."""

# no valgrind

import os
import re
import ssl
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import pki
import tap
from nbdraw import (BLOCK_STATUS_PAYLOAD, CMD_DISC, ERR_EXT_HEADER_REQD,
                    ERR_INVALID, ERR_POLICY, ERR_TLS_REQD, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP,
                    FUA, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_NAME, OPT_ABORT, OPT_EXPORT_NAME,
                    OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO, OPT_LIST, OPT_LIST_META_CONTEXT,
                    OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY, REP_ACK, REP_ERROR,
                    SEND_DF, Client, Refused, context_data, counted, error_of, info_data)
from server import PATIENCE, Platterd, served, strace, until
from usage import descriptors, resident
from way import every_way

MiB = 1 << 20
DISK = {"driver": "memory", "size": "1M"}
UNKNOWN_OPTIONS = (0, 4, 12, 255, 30583, 0xFFFFFFFE)


def export(name, **options):
    """Words for platterd's command line: one more export."""
    options = {"name": name, **DISK, **options}
    return ["--export", ",".join("%s=%s" % (k, v.replace(",", ",,")) for k, v in options.items())]


def works(client):
    """What was agreed on is what is spoken."""
    client.write(4096, b"w" * 512, FUA)
    assert client.read(4096 - 512, 1024) == bytes(512) + b"w" * 512
    if client.context is not None:
        assert sum(n for n, _ in client.block_status(0, client.size)) == client.size
    else:
        assert error_of(client.block_status, 0, 4096) == "EINVAL"
    if client.flags & BLOCK_STATUS_PAYLOAD:
        assert client.block_status(0, 4096, contexts=[client.context])
    client.zero(4096, 512)


def gets(client, name):
    try:
        client.go(name)
    except Refused as e:
        assert e.reply == ERR_POLICY
        return False
    return True


# ---- greeting and framing

@served
def the_greeting_offers_fixed_newstyle_and_no_zeroes(server):
    with server(**DISK) as s, Client(s.address) as c:
        assert c.server_flags == 3


@served(on=[Platterd])
def tcp_sends_at_once_from_the_greeting_on(server):
    """Where small replies wait for more, each step of haggling takes tens of milliseconds."""
    trace = server.path("trace")
    with server(**DISK, tcp=True, wrap=strace(trace, "-e", "trace=setsockopt")) as s:
        with Client(s.address) as c:
            with open(trace) as f:
                assert "TCP_NODELAY, [1]" in f.read()
            c.go()
            works(c)


@served
def a_client_flag_that_was_not_offered_ends_the_connection(server):
    with server(**DISK) as s:
        for bit in range(2, 32):
            client = Client(s.address, client_flags=3 | 1 << bit)
            client.expect_close()
            client.socket.close()
        with nbdraw.connect(s.address) as c:
            works(c)


@every_way
def a_bad_option_magic_ends_the_connection(way):
    with way.serve(**DISK) as s:
        for magic in (b"IHAVEOPt", b"NBDMAGIC", bytes(8), b"\xff" * 8, b"GET / HT"):
            c = way.greet(s)
            c.socket.sendall(magic + struct.pack(">II", OPT_LIST, 0))
            c.expect_close()
        with way.connect(s) as c:
            works(c)


@every_way
def a_bad_request_magic_ends_the_connection_without_a_reply(way):
    extended = (False, True) if way.server.front_end is Platterd else (False,)
    with way.serve(**DISK) as s:
        for ext in extended:
            good = struct.pack(">I", 0x21E41C71 if ext else 0x25609513)
            for magic in (b"\x25\x60\x95\x14", bytes(4), b"\xff" * 4, b"IHAV",
                          struct.pack(">I", 0x25609513 if ext else 0x21E41C71)):
                assert magic != good
                c = way.connect(s, extended=ext)
                c.socket.sendall(magic + bytes(28 if ext else 24))
                c.expect_close()
                c.socket.close()


@every_way
def an_unknown_option_is_refused_and_its_data_skipped(way):
    with way.serve(**DISK) as s:
        for option in UNKNOWN_OPTIONS:
            with way.greet(s) as c:
                for length in (0, 3, 100, 777, 4096):
                    assert c.refusal(option, b"\xff" * length) == ERR_UNSUP
                c.go()
                works(c)


@every_way(on=[Platterd])
def an_option_of_up_to_one_mebibyte_is_skipped(way):
    """Those that are known refuse so much as well, each in its own way."""
    expected = {OPT_LIST: ERR_INVALID, OPT_INFO: ERR_TOO_BIG, OPT_GO: ERR_TOO_BIG,
                OPT_STRUCTURED_REPLY: ERR_INVALID, OPT_LIST_META_CONTEXT: ERR_TOO_BIG,
                OPT_SET_META_CONTEXT: ERR_TOO_BIG, OPT_EXTENDED_HEADERS: ERR_INVALID,
                OPT_STARTTLS: ERR_INVALID, 4: ERR_UNSUP, 30583: ERR_UNSUP}
    with way.serve(**DISK) as s, way.greet(s) as c:
        for option, error in expected.items():
            for length in (65521, MiB - 1, MiB):
                assert c.refusal(option, b"\xff" * length) == error, (option, length)
        c.go()
        works(c)


@every_way
def an_option_of_four_gibibytes_ends_the_connection_at_once(way):
    with way.serve(**DISK) as s:
        for option in (OPT_INFO, OPT_LIST, OPT_ABORT, 30583):
            memory = resident(s)
            c = way.greet(s)
            c.send_option(option, length=0xFFFFFFFF)
            sent = 0
            try:
                while sent < 64 * MiB:
                    c.socket.sendall(bytes(MiB))
                    sent += MiB
            except (ConnectionError, ssl.SSLError):
                pass
            assert sent < 64 * MiB
            assert resident(s) - memory < 8 * MiB
            with way.connect(s) as other:
                works(other)


@every_way
def options_sent_together_are_answered_in_order(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        sent = [(30583, b"abc"), (OPT_STRUCTURED_REPLY, b""), (OPT_LIST, b"junk"),
                (255, b""), (OPT_INFO, b"short"), (4, bytes(100))]
        c.socket.sendall(b"".join(b"IHAVEOPT" + struct.pack(">II", option, len(data)) + data
                                  for option, data in sent))
        got = [c.option_reply(option)[0] for option, _ in sent]
        assert got == [ERR_UNSUP, REP_ACK, ERR_INVALID, ERR_UNSUP, ERR_INVALID, ERR_UNSUP], got
        c.structured = True
        c.go()
        works(c)


@every_way
def an_option_may_come_byte_by_byte(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        for option, data, last in ((OPT_STRUCTURED_REPLY, b"", REP_ACK),
                                   (255, b"data", ERR_UNSUP),
                                   (OPT_INFO, info_data("", [INFO_BLOCK_SIZE]), REP_ACK)):
            whole = b"IHAVEOPT" + struct.pack(">II", option, len(data)) + data
            for at in range(len(whole)):
                c.socket.sendall(whole[at:at + 1])
                time.sleep(0.001)
            while True:
                kind, _ = c.option_reply(option)
                if kind == REP_ACK or kind > REP_ERROR:
                    break
            assert kind == last
        c.structured = True
        c.go()
        works(c)


@every_way(on=[Platterd])
def haggling_has_a_deadline_that_nothing_extends(way):
    """Neither silence, nor bytes that drip, nor options that lead nowhere, nor half a TLS
    handshake; but whoever is served stays."""
    with way.serve(**DISK, args=["--handshake-timeout", "1s"]) as s, way.connect(s) as stays:
        began = time.monotonic()
        ended = {}

        def drip(name, client, data):
            try:
                while time.monotonic() - began < 30 * PATIENCE:
                    client.socket.sendall(data)
                    client.socket.settimeout(0.05)
                    try:
                        while client.socket.recv(4096):
                            pass
                        break
                    except TimeoutError:
                        pass
            except (OSError, ssl.SSLError):
                pass
            ended[name] = time.monotonic() - began

        mute = Client(s.address)
        clients = {"mute": (mute, b""), "drips": (way.greet(s), b"I"),
                   "chats": (way.greet(s), b"IHAVEOPT" + struct.pack(">II", 255, 0))}
        clients["drips"][0].send_option(255, length=1000)
        if way.folder:
            half = Client(s.address)
            half.must(OPT_STARTTLS)
            half.socket.sendall(b"\x16\x03\x01\x02\x00\x01")
            clients["half"] = half, b""
        threads = [threading.Thread(target=drip, args=(name, *c)) for name, c in clients.items()]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for name, after in ended.items():
            assert 0.5 < after < 10 * PATIENCE, (name, after)
        works(stays)


@served(on=[Platterd])
def without_fixed_newstyle_only_export_name_is_honoured(server):
    """Such a client could not read a reply."""
    with server(**DISK) as s:
        for option in (OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO, OPT_STRUCTURED_REPLY,
                       OPT_EXTENDED_HEADERS, 255):
            c = Client(s.address, client_flags=0)
            c.send_option(option)
            c.expect_close()
            c.socket.close()
        with Client(s.address, client_flags=0) as c:
            c.export_name("", 124)
            works(c)


# ---- ABORT, LIST, EXPORT_NAME

@every_way
def abort_is_acknowledged_and_ends_the_connection_in_order(way):
    with way.serve(**DISK) as s:
        for before in (None, OPT_LIST, OPT_STRUCTURED_REPLY):
            c = way.greet(s)
            if before is not None:
                c.must(before)
            assert c.option(OPT_ABORT) == [(REP_ACK, b"")]
            c.expect_end()


@every_way(on=[Platterd])
def abort_ignores_data(way):
    with way.serve(**DISK) as s:
        for length in (1, 100, 70000, MiB):
            c = way.greet(s)
            assert c.option(OPT_ABORT, bytes(length)) == [(REP_ACK, b"")]
            c.expect_end()


@every_way(on=[Platterd])
def who_leaves_while_haggling_is_no_error_in_the_log(way):
    with way.serve(**DISK) as s:
        baseline = descriptors(s)
        way.greet(s).must(OPT_ABORT)
        for data in (b"", b"IHAVE", b"IHAVEOPT" + struct.pack(">II", OPT_LIST, 100) + b"some"):
            c = way.greet(s)
            c.socket.sendall(data)
            c.socket.close()
        Client(s.address).socket.close()
        until(lambda: descriptors(s) == baseline, seconds=10)
        assert not re.search("(error|warning): ", s.said()), s.said()


@every_way
def list_tells_of_the_export_and_takes_no_data(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        assert c.refusal(OPT_LIST, b"junk") == ERR_INVALID
        assert c.list() == [""]
        c.go()
        works(c)


@every_way(on=[Platterd])
def list_tells_all_that_are_to_be_listed_with_their_descriptions(way):
    args = [*export("b", description="the second"), *export("a"), *export("hidden", listed="off")]
    with way.serve(args=args) as s, way.greet(s) as c:
        assert counted("b") + b"the second" in [body for _, body in c.must(OPT_LIST)]
        for _ in range(40):
            assert sorted(c.list()) == ["a", "b"]
        c.go("hidden")
        works(c)


@every_way(on=[Platterd])
def list_may_be_forbidden(way):
    with way.serve(**DISK, args=["--list", "off"]) as s, way.greet(s) as c:
        assert c.refusal(OPT_LIST) == ERR_POLICY
        assert c.refusal(OPT_LIST, b"junk") == ERR_INVALID
        c.go()
        works(c)


@every_way
def export_name_is_answered_with_as_many_zeroes_as_agreed(way):
    """And what follows it is the first reply."""
    with way.serve(**DISK) as s:
        for flags in (1, 3) if way.folder else (0, 1, 2, 3):
            with way.greet(s, client_flags=flags) as c:
                c.export_name("", 0 if flags & 2 else 124)
                assert c.size == MiB
                works(c)


@every_way
def export_name_follows_structured_replies(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.structured_reply()
        c.set_meta_context()
        c.export_name("")
        works(c)


@every_way(on=[Platterd])
def export_name_that_is_too_long_ends_the_connection_without_a_word(way):
    with way.serve(**DISK) as s:
        for length in (4097, 65520, 65535, MiB, 0xFFFFFFFF):
            c = way.greet(s)
            c.send_option(OPT_EXPORT_NAME, bytes(16), length)
            c.expect_close()


@every_way(on=[Platterd])
def export_name_that_is_not_there_ends_the_connection_without_a_word(way):
    with way.serve(args=export("disk")) as s:
        for name in (b"", b"dis", b"disk2", b"Disk", b"disk\0", b"n" * 4096, b"../disk"):
            c = way.greet(s)
            c.send_option(OPT_EXPORT_NAME, name)
            c.expect_end()
        with way.greet(s) as c:
            c.export_name("disk")
            works(c)


# ---- INFO and GO

@every_way
def info_and_go_tell_the_same(way):
    with way.serve(**DISK) as s:
        for structured in (False, True):
            for wanted in ((), (INFO_BLOCK_SIZE,), (INFO_DESCRIPTION, INFO_NAME, INFO_BLOCK_SIZE)):
                with way.greet(s) as c:
                    if structured:
                        c.structured_reply()
                        c.set_meta_context()
                    told = c.info("", OPT_INFO, wanted), c.description, c.name
                    assert told == (c.go("", wanted), c.description, c.name)
                    assert (c.block_size is not None) >= (INFO_BLOCK_SIZE in wanted)
                    works(c)


@every_way
def what_is_asked_for_twice_or_unknown_is_no_fault(way):
    """nbdraw holds the server to one INFO_EXPORT, asked for or not."""
    with way.serve(**DISK) as s, way.greet(s) as c:
        for wanted in ((), (0,), (0, 0, 0), (3, 3, 2, 2, 1, 1), (65535, 0, 4)):
            c.info("", OPT_INFO, wanted)
        c.info("", OPT_INFO, (4, 9, 32, 33, 34, 35, 77, 257, 259, 65535))
        assert (c.name, c.description, c.block_size) == (None, None, None)
        c.go("", (77, 3, 3, 0, 0))
        works(c)


@every_way(on=[Platterd])
def as_many_requests_as_fit_may_be_made(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.info("", OPT_INFO, [77] * 32000)
        assert c.refusal(OPT_GO, info_data("", [77] * 65535)) == ERR_TOO_BIG
        c.go()
        works(c)


@every_way
def lengths_that_do_not_fit_are_refused_and_the_next_option_works(way):
    shapes = [(0xFFFFFFFF, 6), (0xFFFFFFFE, 100), (0xFFFFFFFA, 2), (5000, 4), (0, 1), (0, 4),
              (4, 2000), (1, 2), (4, 3), (0, 0)]
    with way.serve(**DISK) as s:
        for option in (OPT_INFO, OPT_GO):
            with way.greet(s) as c:
                for name, rest in shapes:
                    data = struct.pack(">I", name) + b"\1" * rest
                    assert c.refusal(option, data) == ERR_INVALID, (name, rest)
                for length in range(6):
                    assert c.refusal(option, bytes(length)) == ERR_INVALID, length
                assert c.refusal(option, info_data("") + b"x") == ERR_INVALID
                c.go()
                works(c)


@every_way(on=[Platterd])
def a_name_of_4096_bytes_is_a_name_and_one_more_is_none(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        for option in (OPT_INFO, OPT_GO):
            for length in (255, 256, 257, 1023, 1024, 1025, 3000, 4095, 4096):
                assert c.refusal(option, info_data("q" * length)) == ERR_UNKNOWN, length
            for length in (4097, 5000, 60000):
                assert c.refusal(option, info_data("q" * length)) == ERR_INVALID, length
            assert c.refusal(option, info_data("q" * 65535)) == ERR_TOO_BIG
            assert c.refusal(option, info_data("disk\0")) == ERR_INVALID
        c.go()
        works(c)


@every_way(on=[Platterd])
def any_name_is_a_name(way):
    names = ["n" * length for length in (1, 23, 24, 255, 256, 4096)]
    names += ["dir/with spaces", "Ünïcode ☃", "-x", "--help", 'quo"ted', "it's", "a,b=c", "%2e%2e",
              "..", "/", "line\\n"]
    args = [w for i, name in enumerate(names) for w in export(name, size=str(4096 + 512 * i))]
    with way.serve(args=args) as s:
        with way.greet(s) as c:
            assert sorted(c.list()) == sorted(names)
            assert c.refusal(OPT_INFO, info_data("")) == ERR_UNKNOWN
            for i, name in enumerate(names):
                assert c.info(name, OPT_INFO, [INFO_NAME])[0] == 4096 + 512 * i
                assert c.name == name
                for other in (name + "x", name[:-1] or "y", name.upper() + "?"):
                    if other not in names:
                        reply = c.refusal(OPT_INFO, info_data(other))
                        assert reply == (ERR_INVALID if len(other) > 4096 else ERR_UNKNOWN), other
        for name in names:
            with way.greet(s) as c:
                c.go(name)


@every_way(on=[Platterd])
def an_export_that_cannot_be_opened_is_refused_with_the_reason(way):
    """The connection goes on, and the log tells more."""
    path, config = way.server.path("gone.img"), way.server.path("platter.conf")
    with open(config, "w") as f:
        f.write("[export ok]\ndriver=memory\nsize=1M\n[export gone]\npath=%s\n" % path)
    with way.serve(args=["-c", config]) as s, way.greet(s) as c:
        for option in (OPT_INFO, OPT_GO):
            (kind, text), = c.option(option, info_data("gone"))
            assert kind in (ERR_UNKNOWN, ERR_POLICY) and b"No such file" in text, (kind, text)
        assert "ok" in c.list()
        c.go("ok")
        works(c)
        assert path in s.said()


@every_way(on=[Platterd])
def info_does_not_use_an_export(way):
    with way.serve(args=export("disk", access="exclusive")) as s:
        with way.greet(s) as looks:
            looks.info("disk")
            before = descriptors(s)
            for _ in range(200):
                looks.info("disk")
            assert descriptors(s) <= before
            with way.connect(s, "disk") as uses:
                works(uses)
                looks.info("disk")
                assert looks.refusal(OPT_GO, info_data("disk")) == ERR_POLICY
            until(lambda: gets(looks, "disk"), seconds=10)
            works(looks)


@every_way
def flags_belong_to_what_was_agreed_on(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.info()
        assert not c.flags & SEND_DF
        c.structured_reply()
        c.info()
        assert c.flags & SEND_DF and not c.flags & BLOCK_STATUS_PAYLOAD


# ---- structured replies and metadata contexts

@every_way
def options_without_data_refuse_data(way):
    options = [OPT_LIST, OPT_STRUCTURED_REPLY]
    if way.server.front_end is Platterd:
        options += [OPT_EXTENDED_HEADERS, OPT_STARTTLS]
    with way.serve(**DISK) as s, way.greet(s) as c:
        for option in options:
            for length in (1, 5, 4096):
                assert c.refusal(option, b"x" * length) == ERR_INVALID, option
        c.go()
        assert not c.flags & SEND_DF
        works(c)


@every_way
def contexts_need_structured_replies(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        assert c.refusal(OPT_SET_META_CONTEXT, context_data("", ["base:allocation"])) \
            == ERR_INVALID
        c.go()
        works(c)


@every_way(on=[Platterd])
def contexts_are_listed_by_wildcard_and_selected_by_name(way):
    cases = [((), True, False), (("base:",), True, False), (("base:allocation",), True, True),
             (("base:allocation", "base:allocation"), True, True),
             (("base:allocations",), False, False), (("base:none",), False, False),
             (("qemu:dirty-bitmap:b", "x-y:z"), False, False),
             (("x-y:z", "base:allocation"), True, True)]
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.structured_reply()
        for queries, lists, selects in cases:
            listed = c.meta_context(OPT_LIST_META_CONTEXT, "", queries)
            assert list(listed) == ["base:allocation"] * lists, (queries, listed)
            selected = c.set_meta_context("", queries)
            assert list(selected) == ["base:allocation"] * selects, (queries, selected)
        c.go()
        works(c)


@every_way(on=[Platterd])
def contexts_with_lengths_that_do_not_fit_are_refused(way):
    shapes = [b"", bytes(4), bytes(7), bytes(4) + b"\xff" * 4,
              bytes(4) + b"\0\0\0\1" + b"\xff" * 4, bytes(4) + b"\0\0\0\1\0\0\0\5base",
              bytes(4) + b"\0\0\0\2\0\0\0\5base:", b"\xff" * 4 + bytes(4), b"\0\0\0\5" + bytes(4),
              context_data("", ["base:"]) + b"x"]
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.structured_reply()
        for option in (OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT):
            for data in shapes:
                assert c.refusal(option, data) == ERR_INVALID, data
        c.set_meta_context()
        c.go()
        works(c)


@every_way(on=[Platterd])
def contexts_of_an_unknown_export_are_refused(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.structured_reply()
        for option in (OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT):
            assert c.refusal(option, context_data("absent", ["base:allocation"])) == ERR_UNKNOWN
            assert c.refusal(option, context_data("q" * 4097)) == ERR_INVALID
        c.go()
        works(c)


@every_way
def the_last_selection_of_contexts_counts(way):
    with way.serve(**DISK) as s:
        for queries in (("other:x",), ()):
            with way.greet(s) as c:
                c.structured_reply()
                c.set_meta_context()
                c.set_meta_context("", queries)
                c.go()
                assert error_of(c.block_status, 0, 4096) == "EINVAL"
                works(c)


@every_way(on=[Platterd])
def a_selection_that_fails_leaves_none(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.structured_reply()
        c.set_meta_context()
        assert c.refusal(OPT_SET_META_CONTEXT, b"short") == ERR_INVALID
        c.context = None
        c.go()
        works(c)


@every_way(on=[Platterd])
def contexts_are_those_of_one_export(way):
    with way.serve(args=export("a") + export("b")) as s:
        for extended in (False, True):
            for selected, failing, used, last in (("a", None, "b", False), ("a", "c", "a", True)):
                with way.greet(s) as c:
                    c.extended_headers() if extended else c.structured_reply()
                    c.set_meta_context(selected)
                    if failing:
                        assert c.refusal(OPT_GO, info_data(failing)) == ERR_UNKNOWN
                    c.go(used)
                    assert bool(c.flags & BLOCK_STATUS_PAYLOAD) == (last and extended)
                    if not last:
                        c.context = None
                    works(c)


# ---- extended headers

@every_way(on=[Platterd])
def extended_headers_are_agreed_on_once_and_stay(way):
    with way.serve(**DISK) as s:
        for structured_first in (False, True):
            with way.greet(s) as c:
                if structured_first:
                    c.structured_reply()
                c.extended_headers()
                assert c.refusal(OPT_EXTENDED_HEADERS) == ERR_INVALID
                assert c.refusal(OPT_STRUCTURED_REPLY) == ERR_EXT_HEADER_REQD
                assert c.refusal(OPT_STRUCTURED_REPLY, b"x") == ERR_INVALID
                c.set_meta_context()
                c.go()
                works(c)


@every_way(on=[Platterd])
def export_name_after_extended_headers_ends_the_connection(way):
    with way.serve(**DISK) as s, way.greet(s) as c:
        c.extended_headers()
        c.send_option(OPT_EXPORT_NAME)
        c.expect_end()


# ---- TLS

def tls(server):
    folder = pki.make(server.path("pki"))
    return folder + "/server", folder + "/client"


def optional(certificates):
    return ["--tls", "optional", "--tls-certificates", certificates]


@served
def a_server_without_tls_refuses_it_and_never_asks_for_it(server):
    with server(**DISK) as s, Client(s.address) as c:
        assert c.refusal(OPT_STARTTLS) in (ERR_UNSUP, ERR_POLICY)
        assert c.refusal(255) == ERR_UNSUP
        c.list()
        c.go()
        works(c)


@served(on=[Platterd])
def where_tls_is_required_nothing_else_is_answered_before_it(server):
    certificates, client = tls(server)
    with server(**DISK, tls=certificates) as s:
        with Client(s.address) as c:
            for option in (*range(OPT_LIST, 20), *UNKNOWN_OPTIONS):
                if option == OPT_STARTTLS:
                    continue
                for data in (b"", info_data(""), info_data("absent"), bytes(5000)):
                    assert c.refusal(option, data) == ERR_TLS_REQD, (option, data)
            c.starttls(client)
            for option in (*range(OPT_LIST, 20), *UNKNOWN_OPTIONS):
                if option not in (OPT_GO, OPT_EXTENDED_HEADERS):
                    assert ERR_TLS_REQD not in [kind for kind, _ in c.option(option)], option
            c.structured = True
            c.go()
            works(c)
        for option, answer in ((OPT_EXPORT_NAME, b""), (OPT_ABORT, (REP_ACK, b""))):
            c = Client(s.address)
            c.send_option(option)
            assert not answer or c.option_reply(option) == answer
            c.expect_end()


@served(on=[Platterd])
def starttls_takes_no_data_and_comes_once(server):
    certificates, client = tls(server)
    for args in ({"tls": certificates}, {"args": optional(certificates)}):
        with server(**DISK, **args) as s, Client(s.address) as c:
            for length in (1, 100, MiB):
                assert c.refusal(OPT_STARTTLS, bytes(length)) == ERR_INVALID
            c.starttls(client)
            assert c.refusal(OPT_STARTTLS) == ERR_INVALID
            assert c.refusal(OPT_STARTTLS, b"x") == ERR_INVALID
            c.go()
            works(c)


@served(on=[Platterd])
def what_was_agreed_on_before_tls_is_forgotten(server):
    """Whoever is in between cannot make a client get what it did not ask for."""
    certificates, client = tls(server)
    with server(**DISK, args=optional(certificates)) as s:
        for extended in (False, True):
            with Client(s.address) as c:
                c.extended_headers() if extended else c.structured_reply()
                c.set_meta_context()
                c.info()
                c.starttls(client)
                c.go()
                assert not c.flags & (SEND_DF | BLOCK_STATUS_PAYLOAD)
                works(c)
            with Client(s.address) as c:
                c.extended_headers()
                c.set_meta_context()
                c.starttls(client)
                assert c.refusal(OPT_SET_META_CONTEXT, context_data("", ["base:allocation"])) \
                    == ERR_INVALID
            with Client(s.address) as c:
                c.extended_headers()
                c.set_meta_context()
                c.starttls(client)
                c.structured_reply()    # which extended headers would forbid
                c.go()
                works(c)                # without a context


@served(on=[Platterd])
def what_was_sent_in_plain_text_behind_starttls_is_never_used(server):
    certificates, client = tls(server)
    both = b"IHAVEOPT" + struct.pack(">II", OPT_STARTTLS, 0) + \
        b"IHAVEOPT" + struct.pack(">II", OPT_STRUCTURED_REPLY, 0)
    with server(**DISK, tls=certificates) as s:
        c = Client(s.address)
        c.socket.sendall(both)
        assert c.option_reply(OPT_STARTTLS) == (REP_ACK, b"")
        assert b"\x00\x03\xe8\x89" not in rest_of(c)
        # Nor once TLS is there, for which whoever put it between may well leave the two alone.
        c = Client(s.address)
        c.socket.sendall(both)
        assert c.option_reply(OPT_STARTTLS) == (REP_ACK, b"")
        try:
            nbdraw.tls_context(client).wrap_socket(c.socket, server_hostname="localhost")
        except OSError:     # ssl.SSLError is one
            pass
        else:
            raise AssertionError("there is TLS after plain text")


def rest_of(client):
    """What comes until the server closes."""
    data = b""
    try:
        while piece := client.socket.recv(4096):
            data += piece
    except ConnectionError:
        pass
    return data


@served(on=[Platterd])
def a_failed_tls_handshake_ends_the_connection(server):
    """There is no way back to plain text."""
    certificates, _ = tls(server)
    with server(**DISK, args=optional(certificates)) as s:
        for data in (b"IHAVEOPT" + struct.pack(">II", OPT_LIST, 0) * 3, bytes(100),
                     b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" * 5, b"\xff" * 4096):
            c = Client(s.address)
            c.must(OPT_STARTTLS)
            c.socket.sendall(data)
            assert b"\x00\x03\xe8\x89" not in rest_of(c)
            c.socket.close()
        with nbdraw.connect(s.address) as c:
            works(c)


@served(on=[Platterd])
def tls_is_of_version_1_2_at_least_and_1_3_at_best(server):
    certificates, client = tls(server)
    with server(**DISK, tls=certificates) as s:
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (None, "TLSv1.3")):
            context = nbdraw.tls_context(client)
            context.maximum_version = version or context.maximum_version
            with nbdraw.connect(s.address, tls=context) as c:
                assert c.socket.version() == name
                works(c)
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            context = nbdraw.tls_context(client)
            context.set_ciphers("ALL:@SECLEVEL=0")      # or this library would not even ask
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = version
            c = Client(s.address)
            try:
                c.starttls(context)
            except (ssl.SSLError, ConnectionError):
                pass
            else:
                raise AssertionError("spoken: " + c.socket.version())


@served(on=[Platterd])
def the_end_of_a_connection_is_said_by_tls(server):
    """So that nobody in between can cut it short."""
    certificates, client = tls(server)
    with server(**DISK, tls=certificates) as s:
        for extended in (False, True):
            c = nbdraw.connect(s.address, extended=extended, tls=client)
            c.write(0, b"x" * 4096)
            c.send_head(CMD_DISC)
            c.expect_end()
        for option in (OPT_ABORT, OPT_EXPORT_NAME):
            c = Client(s.address)
            c.starttls(client)
            c.send_option(option, b"absent" if option == OPT_EXPORT_NAME else b"")
            if option == OPT_ABORT:
                c.option_reply(option)
            c.expect_end()


@served(on=[Platterd])
def an_export_may_need_tls_where_others_do_not(server):
    certificates, client = tls(server)
    args = optional(certificates) + export("open") + export("closed", tls="required")
    with server(args=args) as s:
        with Client(s.address) as c:
            assert c.list() == ["open"]
            for option in (OPT_INFO, OPT_GO):
                assert c.refusal(option, info_data("closed")) == ERR_TLS_REQD
            c.structured_reply()
            for option in (OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT):
                # The protocol lets only INFO and GO say so.
                assert c.refusal(option, context_data("closed")) in (ERR_POLICY, ERR_UNKNOWN)
            c.info("open")
            c.starttls(client)
            assert sorted(c.list()) == ["closed", "open"]
            c.go("closed")
            works(c)
        c = Client(s.address)
        c.send_option(OPT_EXPORT_NAME, b"closed")
        c.expect_end()
        with nbdraw.connect(s.address, "open") as c:
            works(c)


tap.main()
