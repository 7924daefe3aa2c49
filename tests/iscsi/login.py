#!/usr/bin/python3
"""The login phase over the wire: who comes in, who does not and why, and how long he may take;
tests/unit/iscsi_login.c has the rest of what requests are answered."""

import contextlib
import itertools
import os
import random
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import iscsiraw
import server
import tap
from iscsiraw import (CHECK_CONDITION, FULL, IMMEDIATE, LOGIN, OPERATIONAL, SECURITY, Client,
                      Closed, Refused, connect, refusal)
from rude import is_open
from server import PATIENCE, until
from usage import descriptors, resident

MiB = 1 << 20
PREFIX = "iqn.2026-01.org.example:"
SECRETS = "in alice secret-of-alice\nin bob secret-of-bobby\nout disks secret-of-disks\n"
ALICE, DISKS = ("alice", "secret-of-alice"), ("disks", "secret-of-disks")


def alone(case):
    return server.served(case, on=[server.Platterd])


@contextlib.contextmanager
def serving(factory, targets=None, args=(), chap=SECRETS):
    """targets: name -> its keys; each has an export of its own in memory. Yields the server."""
    config, secrets = factory.path("platter.conf"), factory.path("secrets")
    with open(secrets, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
        f.write(chap)
    with open(config, "w") as f:
        for n, (name, keys) in enumerate((targets or {"disk": {}}).items()):
            f.write("[export e%d]\ndriver = memory\nsize = 1M\n" % n)
            f.write("[target %s%s]\nlun.0 = e%d\n" % (PREFIX, name, n))
            f.writelines("%s = %s\n" % (k, v or secrets) for k, v in keys.items())
    with factory(args=["-c", config, *args], iscsi=True) as s:
        s.portal = "127.0.0.1", s.iscsi_port
        yield s


def target(name="disk"):
    return PREFIX + name


def works(c):
    """What was agreed on is what is spoken."""
    data = random.randbytes(4096)
    c.cdb("2a 00 00000008 00 0008 00", dout=data).check()
    assert c.cdb("28 00 00000008 00 0008 00", din=4096).check().data == data


def is_well(s, name="disk", **how):
    with connect(s.portal, target(name), **how) as c:
        works(c)


# ---- ways in

@alone
def a_session_begins_by_every_way_through_the_stages(factory):
    with serving(factory) as s:
        for security in (True, False):
            is_well(s, security=security)
        for keys in ({}, {"AuthMethod": "None"}):           # nothing agreed on: defaults
            with Client(s.portal) as c:
                p = c.login_request(SECURITY, FULL, {"InitiatorName": c.initiator,
                                                     "TargetName": target(), **keys})
                assert (p.status, p.next_stage) == (0, FULL)
                c.full = True
                c.ready()
                works(c)


@alone
def digests_are_as_agreed_on(factory):
    with serving(factory) as s:
        for head, data in itertools.product(("None", "CRC32C", "CRC32C,None", "None,CRC32C"),
                                            repeat=2):
            keys = {"HeaderDigest": head, "DataDigest": data}
            with connect(s.portal, target(), keys=keys) as c:
                assert c.header_digest == head.startswith("CRC32C")
                assert c.data_digest == data.startswith("CRC32C")
                works(c)
                assert c.ping(b"abc") == b"abc"             # with padding


@alone
def keys_may_come_byte_by_byte_and_in_many_requests(factory):
    keys = iscsiraw.text_of({"InitiatorName": iscsiraw.INITIATOR, "TargetName": target(),
                             "MaxBurstLength": "65536"})
    with serving(factory) as s:
        with Client(s.portal) as c:
            for at in range(0, len(keys), 7):
                rest = at + 7 >= len(keys)
                p = c.login_request(OPERATIONAL, FULL if rest else None, keys[at:at + 7],
                                    goes_on=not rest)
                assert p.status == 0 and (rest or not p.data)
            assert ("MaxBurstLength", "65536") in p.keys and p.next_stage == FULL
            c.full = True
            c.ready()
        with Client(s.portal) as c:
            whole = c.bhs(LOGIN | IMMEDIATE, 0x87, itt=c.login_tag)
            whole[8:14] = c.isid
            struct.pack_into(">H", whole, 20, c.cid)
            whole[5:8] = len(keys).to_bytes(3, "big")
            for byte in bytes(whole) + iscsiraw.padded(keys):
                c.socket.sendall(bytes([byte]))
            assert c.login_response(OPERATIONAL).next_stage == FULL


@alone
def a_long_answer_comes_in_pieces(factory):
    with serving(factory) as s, Client(s.portal) as c:
        c.login_request(OPERATIONAL, None, {"InitiatorName": c.initiator, "TargetName": target()})
        p, said = c.login_step(OPERATIONAL, FULL, {"X-%04d" % n: 1 for n in range(800)})
        assert p.next_stage == FULL and len(said) == 800
        assert set(said.values()) == {"NotUnderstood"}


@alone
def each_target_is_found_wherever_it_lives(factory):
    names = ["disk%d" % n for n in range(8)]
    with serving(factory, {n: {} for n in names}, ["--loops", "4"]) as s:
        for name in names:
            is_well(s, name)
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(connect(s.portal, target(n))) for n in names]
            for c in sessions:
                works(c)
        with connect(s.portal) as c:
            assert [n for n, _ in c.targets()] == [target(n) for n in names]


@alone
def many_log_in_at_once(factory):
    """From any worker to any other, and out again."""
    names, errors = ["disk%d" % n for n in range(4)], []

    def host(n):
        try:
            for _ in range(5):
                with connect(s.portal, target(random.choice(names)), initiator=PREFIX + "h%d" % n):
                    pass
        except BaseException as e:
            errors.append(e)

    with serving(factory, {n: {} for n in names}, ["--loops", "4"]) as s:
        hosts = [threading.Thread(target=host, args=(n,)) for n in range(20)]
        for h in hosts:
            h.start()
        for h in hosts:
            h.join()
        assert not errors, errors
        for name in names:
            is_well(s, name)


# ---- no way in

@alone
def every_refusal_has_its_status(factory):
    me = {"InitiatorName": iscsiraw.INITIATOR}
    disk = {**me, "TargetName": target()}
    cases = [
        (0x0200, OPERATIONAL, FULL, {**disk, "InitiatorName": "me"}, {}),
        (0x0200, OPERATIONAL, OPERATIONAL, disk, {}),
        (0x0200, OPERATIONAL, FULL, iscsiraw.text_of(disk) + b"nonsense\0", {}),
        (0x0200, OPERATIONAL, FULL, [*disk.items(), ("InitialR2T", "No"), ("InitialR2T", "No")],
         {}),
        (0x0200, SECURITY, OPERATIONAL, {**disk, "InitialR2T": "No"}, {}),
        (0x0200, OPERATIONAL, FULL, disk, {"opcode": LOGIN}),
        (0x0201, SECURITY, OPERATIONAL, {**disk, "AuthMethod": "CHAP"}, {}),
        (0x0201, SECURITY, OPERATIONAL, {**me, "TargetName": target("locked"),
                                         "AuthMethod": "None"}, {}),
        (0x0201, OPERATIONAL, FULL, {**me, "TargetName": target("locked")}, {}),
        (0x0202, OPERATIONAL, FULL, {**me, "TargetName": target("private")}, {}),
        (0x0203, OPERATIONAL, FULL, {**me, "TargetName": target("none")}, {}),
        (0x0205, OPERATIONAL, FULL, disk, {"version_min": 1, "version_max": 1}),
        (0x0207, OPERATIONAL, FULL, {"TargetName": target()}, {}),
        (0x0207, OPERATIONAL, FULL, me, {}),
        (0x0207, OPERATIONAL, FULL, {}, {}),
        (0x0209, OPERATIONAL, FULL, {**disk, "SessionType": "Other"}, {}),
        (0x020A, OPERATIONAL, FULL, disk, {"tsih": 0x7777}),
    ]
    with serving(factory, {"disk": {}, "locked": {"chap": None},
                           "private": {"initiators": PREFIX + "other"}}) as s:
        for status, stage, next_stage, keys, fields in cases:
            with Client(s.portal) as c:
                p = c.login_request(stage, next_stage, keys, **fields)
                assert p.status == status, "%04x instead of %04x: %s" % (p.status, status, keys)
                c.expect_close()
        with connect(s.portal, target()) as c:              # a second connection in its session
            with Client(s.portal, isid=c.isid) as other:
                p = other.login_request(OPERATIONAL, FULL, disk, tsih=c.tsih, cid=2)
                assert p.status == 0x0206
                other.expect_close()
            works(c)
        is_well(s)


@alone
def what_is_no_login_is_refused_in_the_middle_and_cut_at_the_beginning(factory):
    with serving(factory) as s:
        for opcode in [n for n in range(0x40) if n != LOGIN]:
            with Client(s.portal) as c:
                c.send_pdu(c.bhs(opcode, itt=5))
                c.expect_close()
            with Client(s.portal) as c:
                c.login_request(SECURITY, None, {"InitiatorName": c.initiator,
                                                 "TargetName": target()})
                c.send_pdu(c.bhs(opcode | IMMEDIATE, itt=c.login_tag), b"abc")
                assert c.login_response(SECURITY).status == 0x020B
                c.expect_close()
        is_well(s)


@alone
def a_login_for_ever_is_ended(factory):
    with serving(factory) as s:
        with Client(s.portal) as c:                         # of empty requests
            status = 0
            for _ in range(1000):
                status = c.login_request(OPERATIONAL, None, {} if c.exp_stat_sn else {
                    "InitiatorName": c.initiator, "TargetName": target()}).status
                if status:
                    break
            assert status == 0x0200
            c.expect_close()
        with Client(s.portal) as c:                         # of one that goes on
            for _ in range(1000):
                if (p := c.login_request(OPERATIONAL, None, b"k" * 8192, goes_on=True)).status:
                    break
            assert p.status == 0x0200
            c.expect_close()


@alone
def half_logins_take_little_memory(factory):
    """Each with as many keys as may be, which are not whole yet."""
    with serving(factory, args=["--max-connections", "300"]) as s:
        is_well(s)
        before, clients = resident(s), []
        for _ in range(100):
            clients.append(c := Client(s.portal))
            for _ in range(8):
                assert c.login_request(OPERATIONAL, None, b"k" * 8192, goes_on=True).status == 0
        assert resident(s) - before < 100 * 320 * 1024 + 8 * MiB
        is_well(s)
        for c in clients:
            c.socket.close()


# ---- time

@alone
def who_does_not_log_in_has_to_go(factory):
    """Mute, a byte at a time, or stuck on the way; who is in may stay as long as he likes."""
    with serving(factory, {"disk": {}, "locked": {"chap": None}},
                 ["--handshake-timeout", "1500ms"]) as s:
        with connect(s.portal, target()) as idle, connect(s.portal, chap=ALICE) as looking:
            works(idle)
            baseline, began = descriptors(s), time.monotonic()
            held = [Client(s.portal) for _ in range(100)]
            dribbling, stuck = held[:20], held[20:60]
            for c in stuck:
                p = c.login_request(SECURITY, OPERATIONAL,
                                    {"InitiatorName": c.initiator, "TargetName": target("locked"),
                                     "AuthMethod": "CHAP"})
                assert p.status == 0
            for n in range(10000):
                for c in dribbling:
                    with contextlib.suppress(OSError):
                        c.socket.send(b"\x43"[:1] if n == 0 else b"\0")
                held = [c for c in held if is_open(c.socket)]
                if not held:
                    break
                assert time.monotonic() - began < 20 * PATIENCE, "%d are there" % len(held)
                time.sleep(0.1)
            until(lambda: descriptors(s) <= baseline)
            works(idle)
            assert looking.targets()
        is_well(s)


# ---- rubbish

def rubbish(n):
    """A first PDU that is none, or one with something wrong in it."""
    opcode = random.choice((1, 0x40, 4, 0x3F, 3, 0x43, 0x43, random.getrandbits(8)))
    bhs = bytearray(random.choice((bytes(48), b"\xff" * 48, random.randbytes(48))))
    bhs[0] = opcode
    if n % 3 == 0:                                          # a length that fits what follows
        bhs[4] = random.choice((0, 0, 1, 255))
        body = random.choice((b"", b"A=1\0", b"\0" * 100, random.randbytes(random.randrange(3000)),
                              b"InitiatorName=%s\0" % os.urandom(100)))
        bhs[5:8] = len(body).to_bytes(3, "big")
        return bytes(bhs) + bytes(4 * bhs[4]) + iscsiraw.padded(body)
    if n % 3 == 1:
        bhs[4:8] = random.choice((b"\xff" * 4, b"\0\xff\xff\xff", b"\xff\0\0\0", b"\0\0\0\1"))
    return bytes(bhs)[:random.choice((48, 48, 48, 47, 24, 1))]


@alone
def rubbish_at_the_beginning_harms_nobody(factory):
    random.seed(tap.seed())
    with serving(factory, args=["--max-connections", "400"]) as s:
        with connect(s.portal, target()) as c:
            works(c)
            baseline = descriptors(s)
            for n in range(2000):
                with socket.create_connection(s.portal, 10) as raw:
                    with contextlib.suppress(OSError):
                        raw.sendall(rubbish(n))
                        if n % 4 == 0:                      # it goes with a reset
                            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                           struct.pack("ii", 1, 0))
                        elif n % 4 == 1:
                            raw.shutdown(socket.SHUT_WR)
                            while raw.recv(4096):
                                pass
                if n % 500 == 0:
                    is_well(s)
            works(c)
            until(lambda: descriptors(s) <= baseline)
        is_well(s)


@alone
def rubbish_after_a_right_beginning_harms_nobody(factory):
    random.seed(tap.seed())
    with serving(factory, args=["--max-connections", "400"]) as s:
        for n in range(300):
            with Client(s.portal) as c:
                c.login_request(SECURITY, None, {"InitiatorName": c.initiator,
                                                 "TargetName": target()})
                with contextlib.suppress(OSError, Closed):
                    c.socket.sendall(rubbish(n))
                    c.socket.shutdown(socket.SHUT_WR)
                    while c.socket.recv(4096):
                        pass
        is_well(s)


# ---- who may have what

@alone
def one_rule_decides_on_discovery_and_login(factory):
    """Both names and addresses have to fit where both are given; whoever may not have a target
    does not see it either."""
    me = iscsiraw.INITIATOR
    names = {"ok": "%sother;%s" % (PREFIX, me), "bad": PREFIX + "other", "unset": None}
    places = {"ok": "10.9.8.0/24;127.0.0.0/8", "bad": "10.9.8.0/24;::1/128", "unset": None}
    targets, wanted = {}, {}
    for (n, initiators), (p, addresses) in itertools.product(names.items(), places.items()):
        name = "%s-%s" % (n, p)
        targets[name] = {k: v for k, v in (("initiators", initiators), ("addresses", addresses))
                         if v}
        wanted[name] = n != "bad" and p != "bad"
    with serving(factory, targets) as s:
        with connect(s.portal) as c:
            seen = [n for n, _ in c.targets()]
            assert seen == [target(n) for n in targets if wanted[n]]
            for name in targets:
                assert bool(c.targets(target(name))) == wanted[name], name
        for name in targets:
            assert refusal(s.portal, target(name)) == (0 if wanted[name] else 0x0202), name
            with contextlib.suppress(Refused), connect(s.portal, target(name)) as c:
                assert wanted[name]
                assert [n for n, _ in c.targets()] == [target(name)]
        # Somebody of whom no rule knows sees what has none for names.
        with connect(s.portal, initiator=PREFIX + "stranger") as c:
            assert [n for n, _ in c.targets()] == [target("unset-ok"), target("unset-unset")]


@alone
def names_do_not_differ_by_case(factory):
    with serving(factory, {"disk": {"initiators": iscsiraw.INITIATOR}}) as s:
        is_well(s, initiator=iscsiraw.INITIATOR.upper())
        assert refusal(s.portal, target().upper()) == 0


@alone
def addresses_of_targets_can_be_connected_to(factory):
    with serving(factory) as s, connect(s.portal) as c:
        (name, addresses), = c.targets()
        assert name == target() and addresses == ["127.0.0.1:%d,1" % s.iscsi_port]


# ---- authentication

@alone
def chap_goes_both_ways_by_every_algorithm(factory):
    with serving(factory, {"locked": {"chap": None}}) as s:
        for algorithms in ("5", "6", "7", "8", "8,7,6,5", "1,99,7"):
            for mutual in (None, DISKS):
                is_well(s, "locked", chap=ALICE, mutual=mutual, algorithms=algorithms)
        is_well(s, "locked", chap=("bob", "secret-of-bobby"), method="KRB5,CHAP,None")


@alone
def chap_refuses_who_does_not_know_the_secret(factory):
    wrong = [("alice", "secret-of-bobby"), ("mallory", "secret-of-alice"), ("alice", ""),
             ("ALICE", "secret-of-alice"), DISKS]
    with serving(factory, {"locked": {"chap": None}}) as s:
        for chap in wrong:
            for where in (target("locked"), None):
                assert refusal(s.portal, where, chap=chap) == 0x0201, chap
        assert refusal(s.portal, target("locked"), chap=ALICE, algorithms="9,10") == 0x0201
        assert "secret-of" not in s.said()
        is_well(s, "locked", chap=ALICE)


@alone
def a_reflected_challenge_is_not_answered(factory):
    with serving(factory, {"locked": {"chap": None}}) as s, Client(s.portal) as c:
        c.login_step(SECURITY, OPERATIONAL, {"InitiatorName": c.initiator, "AuthMethod": "CHAP",
                                             "TargetName": target("locked")})
        _, said = c.login_step(SECURITY, None, {"CHAP_A": "5"})
        right = c.chap_response("5", said["CHAP_I"], ALICE[1], bytes.fromhex(said["CHAP_C"][2:]))
        p = c.login_request(SECURITY, OPERATIONAL, {
            "CHAP_N": ALICE[0], "CHAP_R": right, "CHAP_I": said["CHAP_I"],
            "CHAP_C": said["CHAP_C"]})
        assert p.status == 0x0201 and not p.data
        c.expect_close()


@alone
def names_of_locked_targets_are_shown_to_who_knows_a_secret(factory):
    with serving(factory, {"open": {}, "locked": {"chap": None}}) as s:
        assert refusal(s.portal) == 0x0201
        assert refusal(s.portal, security=False) == 0x0201
        with connect(s.portal, chap=ALICE, mutual=DISKS) as c:
            assert [n for n, _ in c.targets()] == [target("open"), target("locked")]
        assert refusal(s.portal, target("open")) == 0


# ---- sessions

@alone
def a_port_that_logs_in_anew_takes_the_place_of_its_session(factory):
    with serving(factory) as s:
        with connect(s.portal, target()) as old:
            works(old)
            with connect(s.portal, target(), isid=old.isid) as new:
                with contextlib.suppress(Closed):
                    while True:
                        old.receive()
                assert new.tsih != 0
                works(new)
            old.full = False
        # Another ISID, or another name with the same, is another port.
        with connect(s.portal, target()) as a, \
                connect(s.portal, target()) as b, \
                connect(s.portal, target(), isid=a.isid, initiator=PREFIX + "other") as c:
            assert len({a.tsih, b.tsih, c.tsih}) == 3
            for client in (a, b, c):
                works(client)


@alone
def a_new_session_has_a_unit_attention_and_one_of_discovery_no_commands(factory):
    with serving(factory) as s:
        with connect(s.portal, target(), ready=False) as c:
            r = c.cdb(bytes(6))
            assert r.status == CHECK_CONDITION and r.condition.startswith("6/29")
            c.cdb(bytes(6)).check()
        with Client(s.portal) as c:
            p = c.login_request(OPERATIONAL, FULL, {"InitiatorName": c.initiator,
                                                    "SessionType": "Discovery"}, tsih=0x7777)
            assert p.status == 0x020A                       # nor can it be gone on with
        with connect(s.portal) as c:
            try:
                c.cdb(bytes(6))
            except (iscsiraw.Rejected, Closed):
                c.full = False
            else:
                raise AssertionError("a discovery session serves commands")
        is_well(s)


tap.main()
