#!/usr/bin/python3
"""What clients cannot do to platterd: hold it up, fill its memory, use up its descriptors,
bring it down, or keep it from ending."""

# no valgrind

import contextlib
import functools
import os
import random
import re
import resource
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import pki
import tap
from nbdraw import (CMD_DISC, CMD_READ, CMD_WRITE, FUA, OPT_ABORT, OPT_GO, OPT_INFO, OPT_LIST,
                    OPT_STARTTLS, OPT_STRUCTURED_REPLY, REP_ACK, REP_ERROR)
from rude import is_open, many_files, never_reads, raw, request, stops_in_a_write, stuck_in_tls
from server import PATIENCE, PRELOAD, Platterd, until
from server import served as served_by
from usage import cpu_seconds, descriptors, resident

MiB = 1 << 20
ESHUTDOWN = 108
ERR_SHUTDOWN = REP_ERROR | 7
served = functools.partial(served_by, on=[Platterd])


# ---- helpers


def is_well(s, seconds=2):
    """An honest client is served at once."""
    began = time.monotonic()
    with nbdraw.connect(s.address) as c:
        assert len(c.read(0, 512)) == 512
    waited = time.monotonic() - began
    assert waited < seconds * PATIENCE, "an honest client waited for %.1f s" % waited


def returns_to(s, baseline):
    """The server has given up what it held for clients that have gone."""
    until(lambda: descriptors(s) <= baseline)


# ---- the handshake


@served
def an_option_as_long_as_the_world_costs_nothing(server):
    with server(server.image(MiB)) as s:
        is_well(s)
        before = resident(s)
        for option in (OPT_INFO, OPT_GO, OPT_LIST, 0x7777, OPT_STARTTLS):
            c = nbdraw.Client(s.address)
            c.send_option(option, b"", 0xFFFFFFFF)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 * MiB:
                    sent += c.socket.send(bytes(65536))
            assert sent < 64 * MiB, "the server reads it all"
            is_well(s)
        assert PRELOAD or resident(s) - before < 8 * MiB


@served
def lengths_within_an_option_are_not_believed(server):
    with server(server.image(MiB)) as s:
        c = nbdraw.Client(s.address)
        for option in (OPT_INFO, OPT_GO):
            for claimed, room in ((0xFFFFFFFF, 6), (0xFFFFFFFE, 100), (5000, 4), (0, 4), (4, 2000)):
                kind = c.option(option, struct.pack(">I", claimed) + bytes(room))[-1][0]
                # Nothing but a name of four zero bytes or none could be meant by the last.
                assert kind > REP_ERROR or (claimed, room) == (4, 2000), (option, claimed, room)
        assert c.go()[0] == MiB


@served
def who_does_not_negotiate_has_to_go(server):
    """Mute, a byte at a time, or stuck in TLS: the deadline is the same for all; who has
    chosen an export may stay as long as he likes."""
    certificates = pki.make(server.path("pki")) + "/server"
    with server(server.image(MiB), args=["--handshake-timeout", "1500ms", "--tls", "optional",
                                         "--tls-certificates", certificates]) as s:
        idle = nbdraw.connect(s.address)
        idle.read(0, 512)
        baseline = descriptors(s)
        began = time.monotonic()
        mute = [raw(s.address) for _ in range(150)]
        dribbling = [raw(s.address) for _ in range(50)]
        stuck = [stuck_in_tls(s.address) for _ in range(10)]
        assert descriptors(s) >= baseline + 210 or time.monotonic() - began > 1.5
        is_well(s)
        held = mute + dribbling + stuck
        words = struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", OPT_LIST, 0) * 50
        for n in range(len(words)):
            for c in dribbling:
                with contextlib.suppress(OSError):
                    c.send(words[n:n + 1])
            held = [c for c in held if is_open(c)]
            if not held:
                break
            assert time.monotonic() - began < 20 * PATIENCE, "%d are still there" % len(held)
            time.sleep(0.1)
        assert not held
        returns_to(s, baseline)
        is_well(s)
        assert idle.read(512, 512) == bytes(512)
        idle.close()


# ---- rubbish

GREETING = struct.pack(">I", 3)


def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data


SESSION = b"".join((
    GREETING, option(OPT_STRUCTURED_REPLY), option(OPT_LIST),
    option(OPT_GO, struct.pack(">IHH", 0, 1, 3)),
    request(CMD_READ, 1, 0, 4096), request(CMD_WRITE, 2, 0, 512, FUA), bytes(512),
    request(7, 3, 0, 65536), request(CMD_DISC, 4)))
STRANGERS = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"SSH-2.0-x\r\n", b"\xff" * 1000, bytes(1000),
    bytes.fromhex("16030100c8010000c40303") + bytes(189), b"\n", b"IHAVEOPT" * 100,
    GREETING + b"IHAVEOPT" + b"\xff" * 100)


def tell(address, words, ending):
    """Says so and leaves: in order, by half a close, or without a word."""
    with contextlib.suppress(ConnectionError):
        with raw(address) as c:
            c.sendall(words)
            if ending == 1:
                c.shutdown(socket.SHUT_WR)
                while c.recv(65536):
                    pass
            elif ending == 2 and c.family != socket.AF_UNIX:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def rubbish(server, count):
    rng = random.Random(tap.seed())
    with server(server.image(MiB), tcp=True) as s:
        is_well(s)
        is_well(s)
        baseline = descriptors(s)
        for n in range(count):
            if n % 4 == 0:
                words = SESSION[:n // 4 % len(SESSION)]
            elif n % 4 == 1:
                words = bytearray(SESSION)
                for _ in range(rng.choice((1, 1, 1, 5))):
                    words[rng.randrange(len(words))] ^= 1 << rng.randrange(8)
            elif n % 4 == 2:
                words = SESSION[:-28] + rng.randbytes(rng.randrange(200))
            else:
                words = rng.choice(STRANGERS)
            tell(s.address, words, rng.randrange(3))
            if n % 500 == 499:
                is_well(s)
                assert s.alive()
        # What is not understood is waited for until the deadline at most.
        returns_to(s, baseline)
        is_well(s)


@served
def no_bytes_at_any_point_do_more_than_end_their_connection(server):
    rubbish(server, 2500)


@served(slow=True)
def no_bytes_at_any_point_do_more_than_end_their_connection_at_length(server):
    rubbish(server, 20000)


# ---- coming and going


def come_and_go(server, count):
    with server(server.image(MiB)) as s:
        for n in range(count):
            if n == count // 5:     # what is kept for reuse is there by now
                before, memory = descriptors(s), resident(s)
            c = nbdraw.connect(s.address)
            c.send_head(CMD_DISC)
            c.expect_end()
            c.socket.close()
        returns_to(s, before)
        assert PRELOAD or resident(s) - memory < 2 * MiB, (memory, resident(s))


@served
def clients_that_have_left_cost_nothing(server):
    come_and_go(server, 1500)


@served(slow=True)
def clients_that_have_left_cost_nothing_at_length(server):
    come_and_go(server, 10000)


@served
def more_than_a_thousand_clients_are_served_at_once(server):
    many_files(4096)
    with server(server.image(MiB)) as s:
        is_well(s)
        baseline = descriptors(s)
        clients = [nbdraw.connect(s.address) for _ in range(1100)]
        for n, c in enumerate(clients):
            c.send(CMD_WRITE if n % 2 else CMD_READ, n * 512, 512, 0, b"w" * 512 if n % 2 else b"")
        for c in clients:
            c.receive().check()
        is_well(s)
        for c in clients:
            c.close()
        returns_to(s, baseline)


# ---- the log

@served
def clients_cannot_fill_the_log(server):
    """Whatever they are refused for, and however often they come; but lines come again, and tell
    how many there are not."""
    def complain(s, n):
        with nbdraw.Client(s.address) as c:
            if n % 2:
                assert c.refusal(nbdraw.OPT_GO, nbdraw.info_data("none"))
            else:
                c.must(nbdraw.OPT_STARTTLS)
                c.socket.sendall(b"no handshake at all")
                assert not c.socket.recv(100)[100:]

    key = pki.psk_file(server.path("keys.psk"), "alice")
    with server(server.image(MiB), args=["--tls", "optional", "--tls-psk", key]) as s:
        began = time.monotonic()
        for n in range(1000):
            complain(s, n)
        time.sleep(1)       # then there is room for a line again, which tells of all the others
        complain(s, 1)
        until(lambda: s.said().rstrip().endswith("were left out"))
        lines = re.findall(r"warning: unix .*", s.said())
        assert 100 < len(lines) < 210 + 2 * (time.monotonic() - began), len(lines)
        assert any('no export "none"' in line for line in lines)
        assert any("TLS handshake" in line for line in lines)
        left_out = sum(map(int, re.findall(r"(\d+) such lines", s.said())))
        assert len(lines) + left_out == 1001, (len(lines), left_out)


# ---- limits


def is_refused(address):
    """Whether the server hangs up on a new client."""
    with raw(address) as c:
        try:
            return c.recv(16) == b""
        except ConnectionError:
            return True


@served
def no_more_clients_than_allowed_are_let_in(server):
    with server(server.image(MiB), args=["--max-connections", "5"]) as s:
        clients = [nbdraw.connect(s.address) for _ in range(5)]
        assert is_refused(s.address) and is_refused(s.address)
        assert "5" in s.said()
        for c in clients:
            assert c.read(0, 512) == bytes(512)
        clients.pop().close()
        until(lambda: not is_refused(s.address))
        for c in clients:
            c.close()


@served
def one_host_cannot_take_all_connections(server):
    with server(server.image(MiB), tcp=True,
                args=["--max-connections-per-host", "3", "--unix",
                      os.path.join(server.run, "too.sock")]) as s:
        clients = [nbdraw.connect(s.address) for _ in range(3)]
        assert is_refused(s.address)
        # Another address of this machine is another host, and unix sockets are of none.
        with socket.create_connection(s.address, 30, source_address=("127.0.0.9", 0)) as other:
            assert other.recv(16, socket.MSG_WAITALL) == b"NBDMAGICIHAVEOPT"
        for _ in range(4):
            clients.append(nbdraw.connect(os.path.join(server.run, "too.sock")))
        for c in clients:
            c.close()


@served
def lack_of_descriptors_is_waited_out(server):
    with server(server.image(MiB)) as s:
        is_well(s)
        few = descriptors(s) + 10
        _, hard = resource.prlimit(s.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(s.pid, resource.RLIMIT_NOFILE, (few, hard))
        held = [raw(s.address) for _ in range(40)]
        time.sleep(0.5)
        used = cpu_seconds(s)
        time.sleep(1)
        assert cpu_seconds(s) - used < 0.5, "it spins"
        assert s.said().count("Too many open files") == 1, s.said()
        # Those who were in are served, and the rest is when there is room again.
        for c in held[:-1]:
            c.close()
        held[-1].settimeout(20 * PATIENCE)
        assert held[-1].recv(16, socket.MSG_WAITALL) == b"NBDMAGICIHAVEOPT"
        is_well(s, 5)
        held[-1].close()


# ---- clients that do not read


@served
def who_does_not_read_costs_a_fixed_amount_and_slows_nobody(server):
    size = 32 * MiB
    with server(server.image(64 * MiB, fill=0x5A), args=["--loops", "2"]) as s:
        is_well(s)
        before = resident(s)
        stuck = [never_reads(s, 300, size) for _ in range(50)]
        for _ in range(10):
            is_well(s)
        # Twice 128M for requests, as --memory says, and a little for each connection.
        assert PRELOAD or resident(s) - before < 320 * MiB, resident(s) - before
        time.sleep(1)
        is_well(s)
        for c in stuck:
            c.socket.close()
        # Memory that nobody uses is given back, or at least is no more than that.
        for _ in range(3):
            is_well(s)


@served
def one_connection_never_holds_more_than_its_share(server):
    """By few large requests or by many small ones: those of eight that take no answer leave room
    for others at once, and not only when they are cut."""
    with server(server.image(8 * MiB, fill=0x5A),
                args=["--loops", "1", "--memory", "64M"]) as s:
        for size, count in ((MiB, 100), (32 << 10, 128)):
            stuck = [never_reads(s, count, size) for _ in range(8)]
            began = time.monotonic()
            for large in (512, MiB, 4 * MiB):
                with nbdraw.connect(s.address) as c:
                    assert c.read(0, large) == b"\x5a" * large
            assert time.monotonic() - began < PATIENCE, time.monotonic() - began
            for c in stuck:
                c.socket.close()


@served
def memory_goes_back_when_the_last_client_has_left(server):
    with server(server.image(64 * MiB, fill=0x5A), args=["--loops", "1"]) as s:
        is_well(s)
        before = resident(s)
        c = nbdraw.connect(s.address)
        for _ in range(3):
            assert len(c.read(0, 32 * MiB)) == 32 * MiB
        c.close()
        until(lambda: resident(s) - before < 4 * MiB)


@served
def who_pauses_and_reads_on_gets_every_answer(server):
    with server(server.image(MiB, fill=0x5A)) as s:
        c = nbdraw.connect(s.address)
        writer = threading.Thread(target=lambda: [
            c.send(CMD_READ, 0, 65536) for _ in range(1000)])
        writer.start()
        time.sleep(1)
        is_well(s)
        for _ in range(1000):
            until(lambda: c.waiting)
            assert c.receive().check().data == b"\x5a" * 65536
        writer.join()
        c.close()


@served
def who_reads_nothing_for_long_is_left_alone_while_nobody_wants_his_memory(server):
    with server(server.image(MiB, fill=0x5A), args=["--loops", "1", "--memory", "64M"]) as s, \
            nbdraw.connect(s.address) as c:
        for _ in range(6):
            c.send(CMD_READ, 0, MiB)
        time.sleep(4)
        for _ in range(6):
            assert c.receive().check().data == b"\x5a" * MiB


@served
def a_slow_disk_is_not_held_against_its_clients(server):
    """They hold memory that others wait for, and nothing moves; but that is not their doing."""
    with server(driver="fault", over="memory", size="64M", kind="write", fault="delay",
                delay="3s", repeat="forever", args=["--loops", "1", "--memory", "64M"]) as s:
        clients = [nbdraw.connect(s.address) for _ in range(2)]
        for c in clients:
            c.send(CMD_WRITE, 0, 32 * MiB, 0, bytes(32 * MiB))
        clients.append(nbdraw.connect(s.address))
        clients[-1].send(CMD_READ, 0, 32 * MiB)
        for c in clients:
            c.receive().check()
            c.close()


def others_get_memory(s):
    for _ in range(5):
        is_well(s)
    c = nbdraw.connect(s.address)
    c.socket.settimeout(40 * PATIENCE)
    c.write(0, bytes(8 * MiB))
    c.close()


@served
def who_stops_within_a_write_holds_up_nobody(server):
    with server(server.image(64 * MiB), args=["--loops", "1", "--memory", "64M"]) as s:
        stuck = [stops_in_a_write(s, 32 * MiB) for _ in range(20)]
        others_get_memory(s)
        for c in stuck:
            c.socket.close()


@served
def who_goes_on_with_a_write_byte_by_byte_holds_up_nobody(server):
    with server(server.image(64 * MiB), args=["--loops", "1", "--memory", "64M"]) as s:
        stuck = [stops_in_a_write(s, 32 * MiB) for _ in range(6)]
        over = threading.Event()

        def dribble():
            while not over.wait(0.1):
                for c in stuck:
                    with contextlib.suppress(OSError):
                        c.socket.send(b"!")

        dribbler = threading.Thread(target=dribble)
        dribbler.start()
        try:
            others_get_memory(s)
        finally:
            over.set()
            dribbler.join()
        for c in stuck:
            c.socket.close()


# ---- whose bytes are whose


def sends_on_though_it_takes_no_answer(address, offset, length):
    """One whose connection the server ends in the midst of writes."""
    writes = b"".join(request(CMD_WRITE, n, offset, length) + b"?" * length for n in range(200))
    with contextlib.suppress(OSError, nbdraw.Closed):
        c = nbdraw.Client(address)
        try:
            c.go()
            c.socket.shutdown(socket.SHUT_RD)
            c.socket.sendall(request(CMD_READ, 1000, offset, length) + writes)
        finally:
            c.socket.close()


def repeat_until(end, repeat, *args):
    while time.monotonic() < end:
        repeat(*args)


@served
def what_one_sends_is_never_taken_for_what_another_does(server):
    """Also when its connection ends, and what was to receive its bytes is used again."""
    size, each = 4096, 12
    image = server.image(4 * MiB)
    with server(image, cache="none", args=["--loops", "1"]) as s:
        end = time.monotonic() + 3
        hostile = [threading.Thread(target=repeat_until, args=(
            end, sends_on_though_it_takes_no_answer, s.address, 2 * MiB, size))
                   for _ in range(3)]
        for t in hostile:
            t.start()
        with nbdraw.connect(s.address) as c:
            while time.monotonic() < end:
                c.waiting = {n: nbdraw.Reply(CMD_WRITE, n * size, size, 0) for n in range(each)}
                c.socket.sendall(b"".join(request(CMD_WRITE, n, n * size, size) + b"!" * size
                                          for n in range(each)))
                for _ in range(each):
                    c.receive().check()
                assert c.read(0, each * size) == b"!" * each * size
        for t in hostile:
            t.join()


# ---- peers that are gone


@served(slow=True)
def a_peer_that_vanished_is_noticed(server):
    """Its machine has lost its power: no word comes, and nobody answers."""
    if os.geteuid() != 0:
        tap.skip("only root can take a connection away without a word")
    with server(server.image(MiB), tcp=True, args=["--max-connections", "1"]) as s:
        c = nbdraw.connect(s.address)
        try:
            c.socket.setsockopt(socket.IPPROTO_TCP, 19, 1)     # TCP_REPAIR
        except OSError as e:
            tap.skip("the kernel has no TCP_REPAIR: %s" % e)
        c.socket.close()
        assert is_refused(s.address)
        until(lambda: not is_refused(s.address), seconds=180)


# ---- the end


def in_every_state(s, server, certificates):
    """Clients that are somewhere, by name."""
    clients = {"mute": raw(s.address)}
    clients["haggling"] = nbdraw.Client(s.address)
    clients["haggling"].option(OPT_LIST)
    clients["in an option"] = nbdraw.Client(s.address)
    clients["in an option"].send_option(OPT_INFO, b"ab", 100)
    clients["in TLS"] = stuck_in_tls(s.address)
    clients["idle"] = nbdraw.connect(s.address)
    clients["idle by TLS"] = nbdraw.Client(s.address)
    clients["idle by TLS"].starttls(certificates)
    clients["idle by TLS"].go()
    clients["in a request"] = nbdraw.connect(s.address)
    clients["in a request"].socket.sendall(request(CMD_READ, 1, 0, 512)[:20])
    clients["in a payload"] = nbdraw.connect(s.address)
    clients["in a payload"].send_head(CMD_WRITE, 0, MiB)
    clients["in a payload"].socket.sendall(bytes(4096))
    clients["not reading"] = never_reads(s, 300, MiB)
    clients["waiting"] = nbdraw.connect(s.address, "slow")
    clients["waiting"].cookie = clients["waiting"].send(CMD_WRITE, 0, 512, FUA, b"w" * 512)
    return clients


@served
def it_ends_in_time_whatever_clients_do(server):
    certificates = pki.make(server.path("pki"))
    slow = server.image(MiB, "slow.img")
    with server(server.image(MiB, fill=0x5A),
                args=["--tls", "optional", "--tls-certificates", certificates + "/server",
                      "--export", "name=slow,driver=fault,over=file,path=%s,fault=delay,"
                      "delay=1s,repeat=forever" % slow]) as s:
        clients = in_every_state(s, server, certificates + "/client")
        time.sleep(0.2)
        began = time.monotonic()
        os.kill(s.pid, signal.SIGTERM)
        time.sleep(0.1)

        # No new one, what was asked is done, and what is asked now is too late.
        with contextlib.suppress(OSError):
            assert is_refused(s.address)
        for name in ("idle", "idle by TLS"):
            reply = clients[name].call(CMD_READ, 0, 512)
            assert reply.error == ESHUTDOWN, (name, reply.error)
        kind = clients["haggling"].option(OPT_LIST)[-1][0]
        assert kind == ERR_SHUTDOWN, hex(kind)
        assert clients["haggling"].option(OPT_ABORT)[-1][0] == REP_ACK
        clients["waiting"].receive().check()
        with open(slow, "rb") as f:
            assert f.read(512) == b"w" * 512

        status = s.wait()
        took = time.monotonic() - began
        assert status == 0, (status, s.said())
        assert took < 5 * PATIENCE, took
        s.over = True


@served
def it_ends_at_once_when_nobody_is_there(server):
    with server(server.image(MiB)) as s:
        is_well(s)
        began = time.monotonic()
        s.terminate()
        assert s.wait() == 0
        assert time.monotonic() - began < 2 * PATIENCE


@served
def told_twice_it_ends_at_once(server):
    with server(server.image(MiB)) as s:
        c = never_reads(s, 300, MiB)
        began = time.monotonic()
        s.terminate()
        time.sleep(0.1)
        s.terminate()
        assert s.wait() == 0
        assert time.monotonic() - began < 2 * PATIENCE
        c.socket.close()


@served
def signals_of_all_kinds_disturb_nobody(server):
    """While a client is busy: reloads, and signals that mean nothing."""
    image = server.image(MiB)
    config = server.path("platter.conf")
    with open(config, "w") as f:
        f.write("[export]\npath = %s\n" % image)
    with server(args=["-c", config]) as s, nbdraw.connect(s.address) as c:
        rng = random.Random(tap.seed())
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            os.kill(s.pid, rng.choice((signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE,
                                       signal.SIGWINCH, signal.SIGCONT)))
            at = rng.randrange(256) * 4096
            word = rng.randbytes(16) * 256
            c.write(at, word, FUA)
            assert c.read(at, 4096) == word
        is_well(s)


tap.main()
