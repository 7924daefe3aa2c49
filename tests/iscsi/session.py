#!/usr/bin/python3
"""The full feature phase: data both ways under every agreement, numbers, digests, rejects, task
management, pings, logout, and what happens to those who break the rules or are gone."""

import collections
import contextlib
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
from iscsiraw import (ABORT_TASK, ABORT_TASK_SET, ASYNC, BUSY, CLEAR_TASK_SET, COLD_RESET, DATA_OUT,
                      FINAL, FUNCTION_COMPLETE, GOOD, IMMEDIATE, LOGIN, LUN_RESET, NO_LUN,
                      NO_REASSIGN, NO_TAG, NO_TASK, NOP_IN, NOP_OUT, NOT_SUPPORTED, QUERY_TASK,
                      SCSI_COMMAND, SNACK, TASK_MANAGEMENT, TASK_REASSIGN, TEXT,
                      TEXT_RESPONSE, WARM_RESET, Client, Closed, Refused, Rejected, connect)
from server import PATIENCE, PRELOAD, delay
from usage import resident

KiB, MiB = 1 << 10, 1 << 20
READ, WRITE = 0x40, 0x20        # in byte 1 of a command
TUR = bytes(6)
# Why a PDU is rejected
DATA_DIGEST, NO_SNACK, PROTOCOL, NO_SUCH, TOO_MANY, INVALID = 2, 3, 4, 5, 6, 9


@contextlib.contextmanager
def serving(factory, size="8M", args=(), config=None, **export):
    """One LUN in memory. Yields the server; s.connect() makes sessions."""
    args = list(args)
    if config is None:
        config = "[export disk]\n" + "".join("%s = %s\n" % kv for kv in (
            {"driver": "memory", "size": size} | export).items() if kv[1])
        config += "[target iqn.2026-11.org.example:disk]\nlun.0 = disk\n"
    with open(factory.path("platter.conf"), "w") as f:
        f.write(config)
    with factory(args=["-c", f.name, *args], iscsi=True) as s:
        s.portal = "127.0.0.1", s.iscsi_port
        s.target = "iqn.2026-11.org.example:disk"
        s.connect = lambda keys=None, **how: connect(s.portal, s.target, keys=keys, **how)
        yield s


def on_platterd(case=None, **how):
    if case is None:
        return lambda case: on_platterd(case, **how)
    return server.served(case, on=[server.Platterd], **how)


def read(lba, blocks):
    return struct.pack(">BBIBHB", 0x28, 0, lba, 0, blocks, 0)


def write(lba, blocks):
    return struct.pack(">BBIBHB", 0x2A, 0, lba, 0, blocks, 0)


def content(c, lba, blocks):
    return bytes(c.cdb(read(lba, blocks), 512 * blocks).check().data)


def is_well(c):
    """Writes and reads still work, so nothing of what came before is left in the stream."""
    data = random.randbytes(20 * KiB)
    c.cdb(write(64, 40), dout=data).check()
    assert content(c, 64, 40) == data
    assert c.ping(b"well?") == b"well?"


def rejection(c):
    """Reason and header of the Reject that comes next."""
    try:
        p = c.receive()
    except Rejected as e:
        return e.reason, bytes(e.bhs)
    raise AssertionError("no reject but %02x" % p.opcode)


def is_silent(c, seconds=0.3):
    c.socket.settimeout(seconds)
    try:
        data = c.socket.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        c.socket.settimeout(30)
    assert data, "it has closed"
    return False


# ---- data-in

@on_platterd
def data_in_has_its_offsets_and_the_last_pdu_the_status(factory):
    with serving(factory) as s:
        data = random.randbytes(64 * KiB)
        with s.connect() as c:
            c.cdb(write(0, 128), dout=data).check()
        for receive, burst in ((4096, 262144), (512, 4096), (5000, 8192), (262144, 65536),
                               (1 << 20, 512)):
            with s.connect({"MaxRecvDataSegmentLength": receive, "MaxBurstLength": burst}) as c:
                task = c.cdb(read(0, 128), 64 * KiB).check()
                assert task.data == data and task.in_data and task.residual == 0
                assert [flags & 1 for _, _, flags in task.pieces] == \
                    [0] * (len(task.pieces) - 1) + [1]
                assert max(n for _, n, _ in task.pieces) <= min(receive, burst)
        with s.connect({"MaxRecvDataSegmentLength": 4096}) as c:
            offset, _, flags = c.cdb(read(0, 128), 64 * KiB).check().pieces[-1]
            assert (offset, flags) == (61440, FINAL | 1)


@on_platterd
def data_of_any_length_is_padded_and_counted(factory):
    with serving(factory) as s, s.connect({"DataDigest": "CRC32C", "HeaderDigest": "CRC32C"}) as c:
        whole = c.cdb("12 00 00 00 ff 00", 255).check()
        assert whole.residual == len(whole.data) - 255
        for n in (1, 2, 3, 5, 7, 36):
            task = c.cdb(bytes([0x12, 0, 0, 0, n, 0]), 255).check()
            assert task.data == whole.data[:n] and task.residual == n - 255
        # Fewer bytes than the CDB would move, and more.
        task = c.cdb(read(0, 2), 512)
        assert len(task.data) == 512 and task.residual == 512
        task = c.cdb(read(0, 2), 2048)
        assert len(task.data) == 1024 and task.residual == -1024


@on_platterd
def a_read_larger_than_any_send_comes_whole(factory):
    with serving(factory, "16M") as s, s.connect({"MaxRecvDataSegmentLength": 512}) as c:
        data = random.randbytes(4 * MiB)
        c.cdb(write(0, 8192), dout=data).check()
        itts = [c.command(read(0, 8192), 4 * MiB), c.command(read(1, 1), 512)]
        assert c.finish(itts[0]).check().data == data
        assert c.finish(itts[1]).check().data == data[512:1024]


# ---- data-out

@on_platterd(limit=120)
def writes_arrive_whole_under_every_agreement(factory):
    """Immediate, unsolicited and solicited data in all mixes."""
    seed = random.Random(tap.seed())
    with serving(factory) as s:
        for initial_r2t in ("Yes", "No"):
            for immediate in ("Yes", "No"):
                for first_burst in (512, 8192, 65536):
                    keys = {"InitialR2T": initial_r2t, "ImmediateData": immediate,
                            "FirstBurstLength": first_burst,
                            "MaxBurstLength": seed.choice((first_burst, 65536, 262144)),
                            "MaxOutstandingR2T": seed.choice((1, 8)),
                            "HeaderDigest": seed.choice(("None", "CRC32C"))}
                    print(keys)
                    with s.connect(keys) as c:
                        assert c.agreed["InitialR2T"] == initial_r2t
                        assert c.agreed["ImmediateData"] == immediate
                        c.max_send = min(c.max_send, seed.choice((512, 8192, 65536, 262144)))
                        for size in (512, 8192, 17 * KiB, 64 * KiB, 1 * MiB):
                            data = seed.randbytes(size)
                            lba = seed.randrange(8 * MiB // 512 - size // 512)
                            task = c.cdb(write(lba, size // 512), dout=data).check()
                            assert task.residual == 0
                            assert content(c, lba, size // 512) == data


@on_platterd
def immediate_data_may_be_less_than_was_agreed_on(factory):
    with serving(factory) as s, s.connect() as c:
        for first in (0, 4, 512, 8192, 17 * KiB):
            for unsolicited in (0, 512, 20 * KiB, 48 * KiB - first):
                data = random.randbytes(48 * KiB)
                if first + unsolicited > len(data):
                    continue
                c.cdb(write(8, 96), dout=data, first=first, unsolicited=unsolicited).check()
                assert content(c, 8, 96) == data


@on_platterd
def more_data_than_the_command_wants_is_thrown_away(factory):
    with serving(factory) as s, s.connect() as c:
        before = content(c, 0, 512)
        task = c.cdb(write(0, 1), dout=b"a" * 150 * KiB).check()
        assert task.residual == 150 * KiB - 512 or task.residual == -(150 * KiB - 512)
        assert content(c, 0, 512) == b"a" * 512 + before[512:]
        # Fewer than it wants: what is not there is not written.
        task = c.cdb(write(0, 4), dout=b"b" * 512)
        assert content(c, 1, 511) == before[512:]
        # Such a command takes none at all.
        task = c.cdb(TUR, dout=b"c" * 70 * KiB).check()
        assert task.residual == -70 * KiB
        is_well(c)


@on_platterd
def more_data_than_one_command_wants_is_no_part_of_another(factory):
    """Their memory may lie side by side, and the disk be slow to take it."""
    with serving(factory, driver="fault", over="memory", kind="write", length=512, fault="delay",
                 delay="500ms") as s, s.connect({"InitialR2T": "No"}) as c:
        is_well(c)
        more = c.command(write(0, 1), dout=b"a" * 32 * KiB, first=512, unsolicited=0,
                         flags=WRITE | 1)
        others = [c.command(write(8 * n, 8), dout=b"b" * 4096, first=2048, unsolicited=0,
                            flags=WRITE | 1) for n in range(1, 8)]
        for n in range(7):
            c.data_out(more, 512 + n * 4096, b"a" * 4096, data_sn=n, final=n == 6)
        for other in others:
            c.data_out(other, 2048, b"b" * 2048)
        for itt in [more, *others]:
            c.finish(itt).check()
        assert content(c, 0, 1) == b"a" * 512 and content(c, 8, 56) == b"b" * 28 * KiB


@on_platterd
def many_writes_at_once_go_their_ways(factory):
    with serving(factory, "64M") as s, s.connect({"MaxOutstandingR2T": 4}) as c:
        data = [random.randbytes(256 * KiB) for _ in range(64)]
        itts = [c.command(write(512 * i, 512), dout=d) for i, d in enumerate(data)]
        for itt in itts:
            c.finish(itt).check()
        for i, d in enumerate(data):
            assert content(c, 512 * i, 512) == d


@on_platterd
def status_does_not_come_before_the_last_unsolicited_data(factory):
    """A command that fails early is still sent its data: the initiator has begun to."""
    with serving(factory) as s, s.connect() as c:
        itt = c.command(write(0xFFFFFFF0, 64), dout=b"x" * 32 * KiB, first=512, unsolicited=0,
                        flags=WRITE | 1)
        assert is_silent(c)
        c.data_out(itt, 512, b"x" * 1024, final=False)
        assert is_silent(c)
        c.data_out(itt, 1536, b"x" * 1024, data_sn=1)
        assert c.finish(itt).condition == "5/2100"
        is_well(c)
        # Unless it is aborted: then there is none, whatever comes.
        for function in (ABORT_TASK, ABORT_TASK_SET, LUN_RESET):
            itt = c.command(write(0xFFFFFFF0, 64), dout=b"x" * 32 * KiB, first=512,
                            unsolicited=0, flags=WRITE | 1)
            assert c.manage(function, task=itt) == FUNCTION_COMPLETE
            c.data_out(itt, 512, b"x" * 1024)
            assert is_silent(c, 0.1)
            c.ready()
        is_well(c)


@on_platterd
def data_in_the_wrong_order_or_amount_is_no_write(factory):
    """Each ends the command alone, after its last data; nothing of it is written."""
    with serving(factory) as s, s.connect({"MaxBurstLength": 16 * KiB,
                                           "FirstBurstLength": 8 * KiB}) as c:
        size = 64 * KiB
        for what in ("DataSN", "offset back", "offset ahead", "too much", "too little",
                     "unsolicited offset", "unsolicited number", "too much unsolicited"):
            print(what)
            c.cdb(write(0, 128), dout=b"." * size).check()
            c.answer_r2ts = False
            out = b"!" * size
            if what.startswith("unsolicited") or what == "too much unsolicited":
                itt = c.command(write(0, 128), dout=out, first=512, unsolicited=0, flags=WRITE | 1)
                if what == "too much unsolicited":
                    c.data_out(itt, 512, out[:8 * KiB])
                elif what == "unsolicited offset":
                    c.data_out(itt, 1024, out[:512])
                else:
                    c.data_out(itt, 512, out[:512], data_sn=1)
            else:
                itt = c.command(write(0, 128), dout=out, first=8 * KiB, unsolicited=0)
                while not c.tasks[itt].r2ts:
                    c.receive()
                (ttt, (offset, length)), = c.tasks[itt].r2ts.items()
                assert length == 16 * KiB
                if what == "DataSN":
                    c.data_out(itt, offset, out[:8 * KiB], ttt, final=False)
                    c.data_out(itt, offset + 8 * KiB, out[:8 * KiB], ttt, data_sn=27)
                elif what == "offset back":
                    c.data_out(itt, 0, out[:length], ttt)
                elif what == "offset ahead":
                    c.data_out(itt, offset + 512, out[:length], ttt)
                elif what == "too much":
                    c.data_out(itt, offset, out[:length + 512], ttt)
                else:
                    c.data_out(itt, offset, out[:length - 512], ttt)
            assert c.finish(itt).condition.startswith("b/"), what
            c.answer_r2ts = True
            assert content(c, 0, 128) == b"." * size
        is_well(c)


@on_platterd
def data_that_comes_before_it_is_asked_for_is_no_write(factory):
    """Its tag has been guessed; the command ends all the same."""
    with serving(factory) as s, s.connect({"ImmediateData": "No"}) as c:
        c.answer_r2ts = False
        itt = c.command(write(0, 8), dout=b"." * 4096, first=0, unsolicited=0)
        while not c.tasks[itt].r2ts:
            c.receive()
        ttt, = c.tasks[itt].r2ts
        c.answer_r2t(c.tasks[itt], ttt)
        c.finish(itt).check()
        sent, c.send_bytes = [], lambda data: sent.append(data)
        itt = c.command(write(0, 8), dout=b"!" * 4096, first=0, unsolicited=0)
        c.data_out(itt, 0, b"!" * 4096, ttt + (1 << 16))
        del c.send_bytes
        c.send_bytes(b"".join(sent))
        assert c.finish(itt).condition.startswith("b/")
        c.answer_r2ts = True
        assert content(c, 0, 8) == b"." * 4096
        is_well(c)


@on_platterd
def data_that_may_not_come_unasked_is_refused(factory):
    with serving(factory) as s:
        with s.connect({"ImmediateData": "No"}) as c:
            c.command(write(0, 1), dout=b"x" * 512, first=512, unsolicited=0)
            assert rejection(c)[0] == INVALID
            is_well(c)
        with s.connect({"InitialR2T": "Yes"}) as c:
            c.command(write(0, 2), dout=b"x" * 1024, first=512, unsolicited=0, flags=WRITE | 1)
            assert rejection(c)[0] == INVALID
            c.answer_r2ts = False
            itt = c.command(write(0, 2), dout=b"x" * 1024, first=512)
            c.data_out(itt, 512, b"x" * 512)
            assert c.finish(itt).condition.startswith("b/")
            c.answer_r2ts = True
            assert content(c, 0, 2) == bytes(1024)
            is_well(c)
        with s.connect({"FirstBurstLength": 512}) as c:
            c.command(write(0, 4), dout=b"x" * 2048, first=1024, unsolicited=0)
            assert rejection(c)[0] == INVALID
            is_well(c)


@on_platterd
def data_for_nobody_is_thrown_away(factory):
    with serving(factory) as s, s.connect() as c:
        c.data_out(0x1234, 0, b"x" * 4096)          # of a command that is over
        assert is_silent(c)
        c.data_out(0x1234, 0, b"x" * 4096, ttt=0x70000)
        assert is_silent(c)
        c.data_out(0x1234, 0, b"x" * 4096, ttt=0x7fff)   # there never was such a one
        assert rejection(c)[0] == INVALID
        is_well(c)


@on_platterd
def data_for_one_that_has_ended_is_no_part_of_the_next(factory):
    """Which has its place, but not its tag."""
    with serving(factory) as s, s.connect({"ImmediateData": "No"}) as c:
        c.answer_r2ts = False

        def begin(data):
            itt = c.command(write(0, 8), dout=data, first=0, unsolicited=0)
            while not c.tasks[itt].r2ts:
                c.receive()
            return itt, *c.tasks[itt].r2ts
        itt, old = begin(b"." * 4096)
        c.answer_r2t(c.tasks[itt], old)
        c.finish(itt).check()
        itt, ttt = begin(b"!" * 4096)
        assert ttt != old
        c.data_out(itt, 0, b"?" * 4096, old)
        assert is_silent(c)
        c.answer_r2t(c.tasks[itt], ttt)
        c.finish(itt).check()
        c.answer_r2ts = True
        assert content(c, 0, 8) == b"!" * 4096


# ---- numbers

@on_platterd
def commands_outside_the_window_are_ignored(factory):
    with serving(factory, args=["--depth", "8"]) as s, s.connect() as c:
        assert c.window == 8
        for ahead in (8, 100, 1 << 31, -1, -8):
            itt = c.command(write(0, 1), dout=b"x" * 512,
                            cmd_sn=(c.cmd_sn + ahead) % (1 << 32))
            assert is_silent(c, 0.1)
            del c.tasks[itt]
        assert content(c, 0, 1) == bytes(512)
        is_well(c)


@on_platterd
def a_gap_is_waited_for(factory):
    """Commands start in the order of their numbers, whatever they bring along."""
    with serving(factory) as s:
        for size in (512, 60 * KiB, 200 * KiB):
            with s.connect() as c:
                first, gap = random.randbytes(size), b"." * size
                c.cmd_sn += 3
                late = [c.command(write(0, size // 512), dout=first,
                                  cmd_sn=(c.cmd_sn - 1) % (1 << 32)),
                        c.command(TUR, cmd_sn=(c.cmd_sn - 2) % (1 << 32))]
                ping = c.next_tag()
                c.send_pdu(c.bhs(NOP_OUT, itt=ping, at20=NO_TAG, cmd_sn=c.cmd_sn), b"last")
                c.cmd_sn += 1
                assert is_silent(c, 0.1)
                now = c.command(write(0, size // 512), dout=gap,
                                cmd_sn=(c.cmd_sn - 4) % (1 << 32))
                assert c.receive_kind(NOP_IN, ping).data == b"last"
                for itt in (now, *late):
                    c.finish(itt).check()
                assert content(c, 0, size // 512) == first
                is_well(c)


@on_platterd
def immediate_commands_have_no_number(factory):
    with serving(factory, args=["--depth", "4"]) as s, s.connect() as c:
        before = c.exp_cmd_sn
        for _ in range(10):
            c.cdb(TUR, immediate=True).check()
            assert c.ping(b"abc") == b"abc"
            assert c.manage(ABORT_TASK, task=0x77) == NO_TASK
        assert c.exp_cmd_sn == before and c.window == 4
        c.cdb(TUR).check()
        assert c.ping(immediate=False) == b""
        assert c.exp_cmd_sn == (before + 2) % (1 << 32)


@on_platterd
def a_tag_may_be_used_again_when_its_answer_is_there(factory):
    """Although that answer is a part of a send which is not over."""
    with serving(factory, "16M") as s, s.connect() as c:
        c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * KiB)
        sent, c.send_bytes = [], lambda data: sent.append(data)
        tag, large = c.command(TUR), c.command(read(0, 16384), 8 * MiB)
        del c.send_bytes
        c.send_bytes(b"".join(sent))
        c.finish(tag).check()
        c.command(write(0, 8), dout=b"!" * 4096, first=0, unsolicited=4096, itt=tag)
        c.finish(large).check()
        c.finish(tag).check()
        assert content(c, 0, 8) == b"!" * 4096


@on_platterd
def the_window_is_as_wide_as_there_is_room(factory):
    """It closes with each command under way, and opens with each answer."""
    with serving(factory, args=["--depth", "4"]) as s, s.connect() as c:
        c.answer_r2ts = False
        itts = [c.command(write(8 * i, 8), dout=b"%d" % i * 4096, first=0, unsolicited=0)
                for i in range(4)]
        while not all(c.tasks[itt].r2ts for itt in itts):
            c.receive()
        assert c.window == 0
        for i, itt in enumerate(itts):
            ttt, = c.tasks[itt].r2ts
            c.answer_r2t(c.tasks[itt], ttt)
            c.finish(itt).check()
        c.ping()
        assert c.window == 4


@on_platterd
def too_many_immediate_requests_are_rejected(factory):
    """Beyond what there are places for; every one is answered, one way or the other."""
    with serving(factory) as s, s.connect() as c:
        c.answer_r2ts = False
        itts = [c.command(write(0, 8), dout=b"x" * 4096, first=0, unsolicited=0, immediate=True)
                for _ in range(40)]
        rejected = []
        while sum(bool(c.tasks[i].r2ts) for i in itts) + len(rejected) < 40:
            try:
                c.receive()
            except Rejected as e:
                assert e.reason == TOO_MANY
                rejected.append(struct.unpack_from(">I", e.bhs, 16)[0])
        assert rejected == itts[len(itts) - len(rejected):]
        for itt in itts[:len(itts) - len(rejected)]:
            ttt, = c.tasks[itt].r2ts
            c.answer_r2t(c.tasks[itt], ttt)
            c.finish(itt).check()
        is_well(c)


# ---- digests

@on_platterd
def digests_hold_in_both_directions(factory):
    with serving(factory) as s:
        for header in ("None", "CRC32C"):
            for data in ("None", "CRC32C"):
                with s.connect({"HeaderDigest": header, "DataDigest": data,
                                "FirstBurstLength": 8192}) as c:
                    assert (c.header_digest, c.data_digest) == \
                        (header == "CRC32C", data == "CRC32C")
                    out = random.randbytes(40 * KiB)
                    c.max_send = 8 * KiB
                    c.cdb(write(0, 80), dout=out).check()
                    assert content(c, 0, 80) == out
                    assert c.cdb("28 00 ffffffff 00 0001 00", 512).condition == "5/2100"
                    for n in (1, 2, 3, 4, 5):
                        assert c.ping(b"12345"[:n]) == b"12345"[:n]


@on_platterd
def a_broken_header_digest_closes_the_connection(factory):
    with serving(factory) as s:
        for opcode in (SCSI_COMMAND, NOP_OUT, DATA_OUT):
            with s.connect({"HeaderDigest": "CRC32C"}) as c:
                c.send_pdu(c.bhs(opcode, itt=77), break_header=True)
                c.expect_close()
                c.full = False


@on_platterd
def a_broken_data_digest_is_rejected_and_writes_nothing(factory):
    """Of immediate, unsolicited and solicited data. At ErrorRecoveryLevel 0 the session is over."""
    with serving(factory) as s:
        for what in ("immediate", "unsolicited", "solicited", "ping"):
            with s.connect({"DataDigest": "CRC32C"}) as c:
                c.answer_r2ts = False
                out = b"!" * 8 * KiB
                if what == "immediate":
                    b = c.bhs(SCSI_COMMAND, FINAL | WRITE | 1, 0, 99, 8 * KiB)
                    b[32:42] = write(0, 16)
                    c.send_pdu(b, out, break_data=True)
                    c.cmd_sn += 1
                elif what == "ping":
                    c.send_pdu(c.bhs(NOP_OUT | IMMEDIATE, itt=99, at20=NO_TAG), out,
                               break_data=True)
                else:
                    itt = c.command(write(0, 16), dout=out, first=0, unsolicited=0,
                                    flags=WRITE | 1 | (FINAL if what == "solicited" else 0))
                    ttt = NO_TAG
                    if what == "solicited":
                        while not c.tasks[itt].r2ts:
                            c.receive()
                        ttt, = c.tasks[itt].r2ts
                    c.data_out(itt, 0, out[:4096], ttt, final=False)
                    b = c.bhs(DATA_OUT, FINAL, 0, itt, ttt, 0, fields=((36, 1), (40, 4096)))
                    c.send_pdu(b, out[4096:], break_data=True)
                assert rejection(c)[0] == DATA_DIGEST, what
                c.expect_close()
                c.full = False
            with s.connect() as c:
                assert content(c, 0, 16) == bytes(8 * KiB), what


# ---- what is wrong in form

@on_platterd
def what_makes_no_sense_is_rejected_with_its_header(factory):
    with serving(factory) as s, s.connect() as c:
        for opcode, flags, itt, reason in (
                (SNACK, FINAL, 5, NO_SNACK), (LOGIN | IMMEDIATE, 0x87, 5, PROTOCOL),
                (0x1C, FINAL, 5, NO_SUCH), (0x3F, FINAL, 5, NO_SUCH), (0x25, FINAL, 5, NO_SUCH),
                (SCSI_COMMAND | IMMEDIATE, FINAL, NO_TAG, INVALID),
                (SCSI_COMMAND | IMMEDIATE, FINAL | 7, 5, INVALID),
                (SCSI_COMMAND | IMMEDIATE, READ, 5, INVALID)):
            b = c.bhs(opcode, flags, itt=itt)
            c.send_pdu(b)
            got, header = rejection(c)
            assert (got, header) == (reason, bytes(b)), (opcode, got)
        for opcode in (TASK_MANAGEMENT, 6):
            c.send_pdu(c.bhs(opcode | IMMEDIATE, FINAL | 1, itt=5), b"data")
            assert rejection(c)[0] == INVALID
        # One that has a number loses its turn.
        c.send_pdu(c.bhs(SCSI_COMMAND, FINAL | 7, itt=5))
        c.cmd_sn += 1
        assert rejection(c)[0] == INVALID
        assert c.exp_cmd_sn == c.cmd_sn
        is_well(c)


@on_platterd
def a_tag_that_a_command_still_has_is_rejected_and_neither_harms_the_other(factory):
    """With data, without, and while the first one waits for the rest of its own."""
    with serving(factory, driver="fault", over="memory", kind="write", fault="delay",
                 delay=delay(300), repeat="forever") as s, s.connect() as c:
        first = c.command(write(0, 8), dout=b"1" * 4096)
        task = c.tasks[first]
        for cdb, data in (write(8, 8), b"2" * 4096), (TUR, b""), (write(0, 8), b"3" * 4096):
            c.command(cdb, dout=data, itt=first, unsolicited=0)
            assert rejection(c)[0] == PROTOCOL
            assert c.exp_cmd_sn == c.cmd_sn     # its number is used up
        c.tasks[first] = task
        c.finish(first).check()
        c.command(write(16, 8), dout=b"4" * 4096, itt=first)     # it is free now
        c.finish(first).check()
        assert content(c, 0, 24) == b"1" * 4096 + bytes(4096) + b"4" * 4096
        c.answer_r2ts = False
        slow = c.command(write(24, 64), dout=b"5" * 32768, first=0, unsolicited=0)
        while not c.tasks[slow].r2ts:
            c.receive()
        task = c.tasks[slow]
        c.command(TUR, itt=slow)
        assert rejection(c)[0] == PROTOCOL
        c.tasks[slow] = task
        c.answer_r2ts = True
        for ttt in list(task.r2ts):
            c.answer_r2t(task, ttt)
        c.finish(slow).check()
        assert content(c, 24, 64) == b"5" * 32768


@on_platterd
def many_rejects_at_once_all_come(factory):
    with serving(factory) as s, s.connect() as c:
        headers = [bytes(c.bhs(SNACK, itt=i)) for i in range(100)]
        c.send_bytes(b"".join(headers))
        for b in headers:
            assert rejection(c) == (NO_SNACK, b)
        is_well(c)


@on_platterd
def additional_headers_are_read(factory):
    with serving(factory) as s, s.connect({"HeaderDigest": "CRC32C"}) as c:
        assert c.cdb(b"\x7f" + bytes(31)).condition == "5/2000"
        for ahs in (b"\0\0\1\0", b"\xff\xff\1\0" + bytes(8), b"\0\5\3\0" + bytes(4),
                    b"\0\x40\1\0" + bytes(64), b"\0\5\2\0" + bytes(1016)):
            c.command(TUR, ahs=ahs)
            assert rejection(c)[0] == INVALID
        is_well(c)


@on_platterd
def a_data_segment_longer_than_agreed_closes_the_connection(factory):
    with serving(factory) as s:
        for opcode in (SCSI_COMMAND, DATA_OUT, NOP_OUT, TEXT, 0x3E):
            with s.connect() as c:
                b = bytearray(c.bhs(opcode, itt=5))
                b[5:8] = (c.max_send + 1).to_bytes(3, "big")
                c.send_bytes(b)
                c.expect_close()
                c.full = False
        with s.connect() as c:
            is_well(c)


@on_platterd
def a_session_of_discovery_has_no_commands(factory):
    with serving(factory) as s, connect(s.portal) as c:
        assert c.targets() == [(s.target, ["127.0.0.1:%d,1" % s.iscsi_port])]
        c.command(TUR)
        assert rejection(c)[0] == PROTOCOL
        c.send_pdu(c.bhs(TASK_MANAGEMENT | IMMEDIATE, FINAL | LUN_RESET, itt=5))
        assert rejection(c)[0] == PROTOCOL
        assert c.ping(b"here") == b"here"
        assert c.logout() == 0
        c.expect_close()


# ---- text

@on_platterd
def targets_are_told_in_the_full_feature_phase(factory):
    """Piece by piece, where the answer is longer than what the initiator takes in one PDU."""
    names = ["iqn.2026-11.org.example:disk-%02d-%s" % (n, "x" * 40) for n in range(40)]
    config = "".join("[export e%d]\ndriver = memory\nsize = 1M\n[target %s]\nlun.0 = e%d\n"
                     % (n, name, n) for n, name in enumerate(names))
    with serving(factory, config=config) as s:
        address = ["127.0.0.1:%d,1" % s.iscsi_port]
        for receive in (512, 4096, 262144):
            with connect(s.portal, keys={"MaxRecvDataSegmentLength": receive}) as c:
                assert c.targets() == [(name, address) for name in names]
                assert c.targets(names[7]) == [(names[7], address)]
        with connect(s.portal, names[3]) as c:
            assert c.targets() == [(names[3], address)]
            assert c.targets("") == [(names[3], address)]
            assert c.targets(names[4]) == []
            # A question that comes in pieces.
            assert c.text({"SendTargets": "All", "X-org.example.y": "z" * 100}, piece=16) == \
                [("TargetName", names[3]), ("TargetAddress", *address),
                 ("X-org.example.y", "NotUnderstood")]


@on_platterd
def text_that_goes_on_from_nowhere_is_rejected(factory):
    with serving(factory) as s, s.connect() as c:
        c.send_pdu(c.bhs(TEXT | IMMEDIATE, FINAL, 0, 5, at20=0x55), b"SendTargets=All\0")
        assert rejection(c)[0] == INVALID
        c.send_pdu(c.bhs(TEXT | IMMEDIATE, FINAL | 0x40, 0, 6, at20=NO_TAG), b"SendTargets=All\0")
        assert rejection(c)[0] == PROTOCOL
        c.send_pdu(c.bhs(TEXT | IMMEDIATE, FINAL, 0, 7, at20=NO_TAG), b"no pair\0")
        assert rejection(c)[0] == PROTOCOL
        c.send_bytes(bytes(c.bhs(TEXT | IMMEDIATE, FINAL, 0, 7, at20=NO_TAG)) * 2)  # one at a time
        seen = set()
        with contextlib.suppress(Rejected):
            for _ in range(3):
                seen.add(c.receive().opcode)
        while seen != {TEXT_RESPONSE}:
            seen.add(c.receive().opcode)
        assert c.text({}) == []
        # Without an end: a peer may have it all thrown away.
        ttt = NO_TAG
        with contextlib.suppress(Rejected):
            for _ in range(20):
                c.send_pdu(c.bhs(TEXT | IMMEDIATE, 0x40, 0, 8, at20=ttt), b"x" * 8192)
                ttt = c.receive_kind(TEXT_RESPONSE, 8).ttt
            c.send_pdu(c.bhs(TEXT | IMMEDIATE, FINAL, 0, 8, at20=ttt), b"=1\0")
            c.receive()
            raise AssertionError("160 KiB of key")
        assert c.targets() != []


# ---- pings

@on_platterd
def pings_come_back_and_leave_nothing_behind(factory):
    with serving(factory) as s, s.connect() as c:
        data = random.randbytes(4096)

        def many(n):
            for _ in range(n // 20):
                tags = [c.next_tag() for _ in range(20)]
                for i, tag in enumerate(tags):
                    c.send_pdu(c.bhs(NOP_OUT | (i % 2 and IMMEDIATE), itt=tag, at20=NO_TAG), data)
                    c.cmd_sn = (c.cmd_sn + (i % 2 == 0)) % (1 << 32)
                got = {}
                while len(got) + rejected[0] < 20:
                    try:
                        p = c.receive()
                        got[p.itt] = p.data
                    except Rejected as e:
                        assert e.reason == TOO_MANY
                        rejected[0] += 1
                assert all(d == data for d in got.values())
                rejected[0] = 0
        rejected = [0]
        many(500)
        before = resident(s)
        many(4000)
        assert PRELOAD or resident(s) < before + 256 * KiB
        for n in (0, 1, 8192, 100 * KiB):
            assert c.ping(data[:1] * n) == data[:1] * n
    with serving(factory) as s, s.connect({"MaxRecvDataSegmentLength": 512}) as c:
        assert c.ping(b"x" * 4096) == b"x" * 512
        # One that wants no answer.
        c.send_pdu(c.bhs(NOP_OUT | IMMEDIATE, itt=NO_TAG, at20=NO_TAG), b"data")
        assert is_silent(c, 0.1)
        c.cdb(TUR).check()


@on_platterd(limit=120)
def a_silent_initiator_is_asked_and_given_up(factory):
    """After half a minute it is asked; a quarter of one later it is gone, if it does not answer,
    and what it held is free."""
    with serving(factory) as s:
        lively, dead, stuck = s.connect(), s.connect(), s.connect()
        for c in (dead, stuck):
            c.answer_pings = False
        stuck.send_bytes(bytes(stuck.bhs(SCSI_COMMAND, itt=5))[:20])    # in the middle of a PDU
        assert dead.cdb("16 00 00 00 00 00").check()                    # RESERVE(6)
        assert lively.cdb(TUR).status == 0x18
        began = time.monotonic()
        for c in (lively, dead, stuck):
            c.socket.settimeout(60 * PATIENCE)
            assert c.receive().opcode == NOP_IN and c.pings == 1
        assert time.monotonic() - began > 25
        for c in (dead, stuck):
            c.expect_close()
        lively.cdb(TUR).check()
        assert lively.ping(b"here") == b"here"


# ---- more than one send takes

def all_at_once(c, commands):
    """Sends them with one call; returns their tags."""
    pdus, c.send_bytes = bytearray(), lambda data: pdus.extend(data)
    tags = [c.command(cdb, **how) for cdb, how in commands]
    del c.send_bytes
    c.send_bytes(pdus)
    return tags


@on_platterd
def hundreds_of_commands_that_come_at_once_are_answered(factory):
    """Without data, with data, and with an R2T for each."""
    keys = {"ImmediateData": "No", "InitialR2T": "Yes"}
    with serving(factory, args=("--depth", "1024")) as s, s.connect(keys) as c:
        assert c.window > 500, c.window
        for tag in all_at_once(c, [(TUR, {})] * 500):
            c.finish(tag).check()
        for tag in all_at_once(c, [(write(n, 1), {"dout": b"%04d" % n * 128})
                                   for n in range(500)]):
            c.finish(tag).check()
        for n, tag in enumerate(all_at_once(c, [(read(n, 1), {"din": 512}) for n in range(500)])):
            assert c.finish(tag).check().data == b"%04d" % n * 128


@on_platterd
def the_blocks_before_a_bad_one_come_however_many_they_are(factory):
    """In so many PDUs that there is room for their status with the last of them, or not."""
    disk = {"driver": "fault", "over": "memory", "kind": "read", "offset": 200 * 512,
            "length": 512, "repeat": "forever"}
    with serving(factory, **disk) as s, s.connect({"MaxRecvDataSegmentLength": 512}) as c:
        data = random.randbytes(200 * 512)
        c.cdb(write(0, 200), dout=data).check()
        for n in (1, 84, 85, *range(124, 131), 200):
            task = c.cdb(read(200 - n, n + 1), 512 * (n + 1))
            assert task.sense.key == 3 and task.sense.information == 200, (n, task.condition)
            assert task.data == data[-512 * n:], n


@on_platterd
def memory_that_is_short_for_a_while_is_busy(factory):
    disk = {"driver": "fault", "over": "memory", "kind": "read", "errno": "ENOMEM"}
    with serving(factory, **disk) as s, s.connect() as c:
        assert c.cdb(read(0, 8), 4096).status == BUSY
        assert "Cannot allocate memory" in s.said(), s.said()
        is_well(c)


@on_platterd
def what_is_half_sent_when_the_session_ends_is_forgotten(factory):
    with serving(factory, size="32M") as s:
        for _ in range(3):
            c = s.connect({"MaxRecvDataSegmentLength": 512})
            for _ in range(4):
                c.command(read(0, 16 * KiB), 8 * MiB)
            c.receive()     # the first of many; nobody takes the others
            header = c.bhs(NOP_OUT | IMMEDIATE, itt=c.next_tag(), at20=NO_TAG)
            header[5:8] = b"\xff\xff\xff"      # more data than was agreed on
            c.send_bytes(header)
            with contextlib.suppress(Closed):
                while True:
                    c.receive()
            c.socket.close()
        with s.connect() as c:
            is_well(c)


# ---- task management

def gathering(c, lba=0, **how):
    """A write that waits for its data, and the tag of the R2T that asks for it."""
    c.answer_r2ts = False
    itt = c.command(write(lba, 64), dout=b"!" * 32 * KiB, first=512, unsolicited=0, **how)
    while not c.tasks[itt].r2ts:
        c.receive()
    ttt, = c.tasks[itt].r2ts
    return itt, ttt


@on_platterd
def an_aborted_write_is_over(factory):
    """Its data comes after that, and goes nowhere; there is no status."""
    with serving(factory) as s:
        for function, how in ((ABORT_TASK, "task"), (ABORT_TASK_SET, ""), (CLEAR_TASK_SET, ""),
                              (LUN_RESET, ""), (WARM_RESET, "")):
            with s.connect() as c:
                itt, ttt = gathering(c)
                ref = {"task": itt, "ref_cmd_sn": (c.cmd_sn - 1) % (1 << 32)} if how else {}
                assert c.manage(function, **ref) == FUNCTION_COMPLETE
                c.answer_r2t(c.tasks[itt], ttt)
                del c.tasks[itt]
                assert is_silent(c, 0.1)
                c.answer_r2ts = True
                c.ready()
                assert content(c, 0, 64) == bytes(32 * KiB)
                is_well(c)


@on_platterd
def a_write_that_runs_is_aborted_only_when_it_has_ended(factory):
    with serving(factory, driver="fault", over="memory", kind="write", fault="delay",
                 delay=delay(400), repeat="forever") as s, s.connect() as c:
        itt = c.command(write(0, 8), dout=b"!" * 4096)
        began = time.monotonic()
        assert c.manage(ABORT_TASK, task=itt) == FUNCTION_COMPLETE
        assert time.monotonic() - began > 0.2
        del c.tasks[itt]
        before = content(c, 0, 8)
        time.sleep(0.3)
        assert content(c, 0, 8) == before and is_silent(c, 0.1)


@on_platterd
def functions_for_what_is_not_there_say_so(factory):
    with serving(factory) as s, s.connect() as c:
        assert c.manage(ABORT_TASK, task=0x1234, ref_cmd_sn=(c.cmd_sn - 1) % (1 << 32)) == NO_TASK
        assert c.manage(LUN_RESET, lun=7) == NO_LUN
        assert c.manage(ABORT_TASK_SET, lun=b"\xff" * 8) == NO_LUN
        assert c.manage(TASK_REASSIGN, task=5) == NO_REASSIGN
        assert c.manage(0x33) == NOT_SUPPORTED and c.manage(0) == NOT_SUPPORTED
        assert c.manage(ABORT_TASK, task=0x1234, immediate=False) == NO_TASK
        is_well(c)


@on_platterd
def a_command_that_did_not_come_is_aborted_beforehand(factory):
    """Its number counts as taken; so does that of one which has come before its turn."""
    with serving(factory) as s, s.connect() as c:
        lost = c.cmd_sn
        c.cmd_sn += 2
        held = c.command(write(0, 1), dout=b"x" * 512, cmd_sn=(lost + 1) % (1 << 32))
        assert c.manage(ABORT_TASK, task=held, ref_cmd_sn=(lost + 1) % (1 << 32)) == \
            FUNCTION_COMPLETE
        del c.tasks[held]
        assert c.exp_cmd_sn == lost
        assert c.manage(ABORT_TASK, task=0x5555, ref_cmd_sn=lost) == FUNCTION_COMPLETE
        c.cdb(TUR).check()
        assert c.exp_cmd_sn == c.cmd_sn
        assert content(c, 0, 1) == bytes(512)


@on_platterd
def commands_are_aborted_in_the_same_breath(factory):
    """Before anything has been said about them; and those whose turn has not come."""
    with serving(factory) as s, s.connect() as c:
        sent, c.send_bytes = [], lambda data: sent.append(data)
        itts = [c.command(write(8 * i, 8), dout=b"!" * 4096, first=0, unsolicited=0)
                for i in range(3)]
        lost = c.cmd_sn
        c.cmd_sn += 1
        itts += [c.command(write(32, 64), dout=b"!" * 32 * KiB, first=512, unsolicited=1024),
                 c.command(write(32, 2), dout=b"!" * 1024, lun=1)]
        functions = []
        for function, task in ((ABORT_TASK, itts[1]), (LUN_RESET, NO_TAG), (QUERY_TASK, itts[0])):
            functions.append(c.next_tag())
            c.send_pdu(c.bhs(TASK_MANAGEMENT | IMMEDIATE, FINAL | function, itt=functions[-1],
                             at20=task))
        del c.send_bytes
        c.send_bytes(b"".join(sent))
        assert sorted(c.receive().itt for _ in functions) == sorted(functions)
        assert is_silent(c, 0.1)
        c.cdb(TUR, cmd_sn=lost)
        assert c.finish(itts[4]).condition == "5/2500"      # that was not its unit
        c.tasks.clear()
        c.ready()
        assert content(c, 0, 128) == bytes(64 * KiB)
        is_well(c)


@on_platterd
def a_reset_ends_what_is_held_back_however_its_unit_is_addressed(factory):
    with serving(factory) as s, s.connect() as c:
        for function in (ABORT_TASK_SET, CLEAR_TASK_SET, LUN_RESET):
            lost = c.cmd_sn
            c.cmd_sn = (c.cmd_sn + 1) % (1 << 32)
            c.command(write(0, 8), dout=b"!" * 4096)
            other = c.command(write(0, 8), dout=b"!" * 4096, lun=b"\0\0\0\1" + bytes(4))
            assert c.manage(function, lun=b"\x40" + bytes(7)) == FUNCTION_COMPLETE
            c.command(TUR, cmd_sn=lost)
            assert c.finish(other).condition == "5/2500"
            c.tasks.clear()
            while c.cdb(TUR).status:
                pass
            assert content(c, 0, 8) == bytes(4096)


@on_platterd
def a_cold_reset_ends_all_sessions_of_the_target(factory):
    with serving(factory) as s, s.connect() as c, s.connect() as other:
        itt, _ = gathering(other)
        assert c.manage(COLD_RESET) == FUNCTION_COMPLETE
        c.expect_close()
        other.expect_close()
        c.full = other.full = False
        with s.connect() as again:
            is_well(again)


@on_platterd
def a_reset_by_another_is_told(factory):
    with serving(factory) as s, s.connect() as c, s.connect() as other:
        itt, ttt = gathering(c)
        assert other.manage(LUN_RESET) == FUNCTION_COMPLETE
        task = c.tasks.pop(itt)
        c.data_out(itt, 512, task.out[512:], ttt)
        c.answer_r2ts = True
        assert c.cdb(TUR).condition in ("6/2903", "6/2f00")
        c.ready()
        is_well(c)


# ---- logout, reinstatement, shutting down

@on_platterd
def logout_is_answered_and_ends_what_is_under_way(factory):
    with serving(factory) as s:
        for reason, immediate in ((0, True), (1, True), (0, False)):
            c = s.connect()
            itt, ttt = gathering(c)
            assert c.logout(reason, immediate=immediate) == 0
            c.expect_close()
        with s.connect() as c:
            assert c.logout(1, cid=c.cid + 1) == 1      # no such connection
            assert c.logout(2) == 2                     # connection recovery is not supported
            c.send_pdu(c.bhs(6 | IMMEDIATE, FINAL | 3, 0, 5))
            assert rejection(c)[0] == INVALID
            assert content(c, 0, 64) == bytes(32 * KiB)


@on_platterd
def a_new_login_replaces_the_session_of_the_same_port(factory):
    """Of the old one no write is still to come when the new one is answered."""
    with serving(factory, driver="fault", over="memory", kind="write", fault="delay",
                 delay="500ms", repeat="forever") as s:
        isid = b"\x80\0\0\0\0\x07"
        old = s.connect(isid=isid)
        old.cdb("16 00 00 00 00 00").check()
        old.command(write(0, 8), dout=b"!" * 4096)
        gathering(old, 64)
        with s.connect(ready=False) as other:
            assert other.cdb(TUR).sense.key == 6
            assert other.cdb(TUR).status == 0x18
        with s.connect(isid=isid) as new:
            before = content(new, 0, 128)
            with contextlib.suppress(Closed):
                while True:
                    old.receive()
            time.sleep(0.6)
            assert content(new, 0, 128) == before and before[32 * KiB:] == bytes(32 * KiB)
            with s.connect() as other:      # and the reservation is gone
                other.cdb(TUR).check()
            # Another initiator with that ISID, and that initiator with another: ports of their own.
            with s.connect(isid=isid, initiator="iqn.2026-01.org.example:other"), s.connect():
                new.cdb(TUR).check()
        old.socket.close()


@on_platterd
def many_logins_of_one_port_leave_one_session(factory):
    with serving(factory) as s:
        isid = b"\x80\0\0\0\0\x08"
        old = [s.connect(isid=isid) for _ in range(12)]
        for c in old[:-1]:
            c.expect_close()
            c.socket.close()
        is_well(old[-1])
        old[-1].close()


@on_platterd
def of_those_who_wait_for_a_session_to_end_the_latest_has_it(factory):
    """The others are logins that their initiator has given up."""
    with serving(factory, driver="fault", over="memory", kind="write", fault="delay",
                 delay="1s", repeat="forever") as s:
        isid = b"\x80\0\0\0\0\x0a"
        old = s.connect(isid=isid)
        old.command(write(0, 8), dout=b"!" * 4096)
        waiting = []
        for _ in range(4):
            waiting.append(Client(s.portal, isid=isid))
            waiting[-1].login_request(0, 1, {"InitiatorName": iscsiraw.INITIATOR,
                                             "TargetName": s.target, "AuthMethod": "None"})
            waiting[-1].send_login(1, 3)
            time.sleep(0.05)
        for c in waiting[:-1]:
            c.expect_close()
        latest = waiting[-1]
        assert latest.login_response(1).next_stage == 3
        latest.full = True
        latest.ready()
        for c in [old] + waiting:
            c.socket.close()


@on_platterd
def there_is_one_connection_in_a_session(factory):
    with serving(factory) as s, s.connect() as c:
        for tsih, isid, status in ((c.tsih, c.isid, 0x0206), (c.tsih + 1, c.isid, 0x020A),
                                   (c.tsih, b"\x80\0\0\0\0\x09", 0x020A)):
            with Client(s.portal, isid=isid) as more:
                more.tsih, more.cid = tsih, 2
                try:
                    more.login(s.target)
                    raise AssertionError("a second connection")
                except Refused as e:
                    assert e.status == status, hex(e.status)
                more.expect_close()
        is_well(c)


@on_platterd
def initiators_are_asked_to_log_out_when_the_server_stops(factory):
    with serving(factory) as s:
        polite, rude = s.connect(), s.connect()
        s.terminate()
        for c in (polite, rude):
            p = c.receive()
            assert p.opcode == ASYNC and c.events[0][0] == 1
            assert 0 < struct.unpack_from(">H", p.bhs, 42)[0] < 10
        is_well(polite)         # it may still put things in order
        assert polite.logout() == 0
        polite.expect_close()
        rude.expect_close()
        rude.full = False
        assert s.wait() == 0


@on_platterd
def errors_of_the_disk_are_told_and_counted(factory):
    with serving(factory, driver="fault", over="memory", kind="write", offset="4096",
                 length="4096", repeat="forever") as s, s.connect() as c:
        assert c.cdb(write(8, 8), dout=b"!" * 4096).sense.key == 3
        c.cdb("2a 08 00000000 00 0001 00", dout=b"!" * 512).check()
        assert "LUN 0: command 2a: Input/output error" in s.said()


@on_platterd
def a_peer_that_is_gone_leaves_no_part_of_its_write(factory):
    with serving(factory) as s:
        for how in ("R2T", "immediate", "direct"):
            c = s.connect()
            if how == "R2T":
                itt, ttt = gathering(c)
                c.data_out(itt, 512, b"!" * 16 * KiB, ttt, final=False)
            else:
                size = 4096 if how == "immediate" else 64 * KiB
                b = c.bhs(SCSI_COMMAND, FINAL | WRITE | 1, 0, 5, size)
                b[5:8] = size.to_bytes(3, "big")
                b[32:42] = write(0, size // 512)
                c.send_bytes(bytes(b) + b"!" * (size - 100))
                time.sleep(0.1)
            c.reset()
        with s.connect() as c:
            assert content(c, 0, 128) == bytes(64 * KiB)


# ---- memory

@on_platterd(limit=120)
def writes_beyond_all_memory_are_answered(factory):
    """None hangs, whatever comes unasked and however little memory there is: each is done, or told
    to come again, and nothing is lost of those that are done."""
    path = factory.image(160 * MiB)
    with serving(factory, args=["--memory", "64M", "--loops", "1"], driver="file", path=path,
                 size=None) as s:
        count, done, failed = 10, collections.Counter(), []

        def initiator(n):
            try:
                with s.connect({"MaxOutstandingR2T": 2}) as c:
                    data = [random.randbytes(MiB) for _ in range(count)]
                    itts = [c.command(write(2048 * (count * n + i), 2048), dout=d,
                                      **({"first": 0, "unsolicited": 0} if i % 3 == 0 else {}))
                            for i, d in enumerate(data)]
                    status = [c.finish(itt).status for itt in itts]
                    done.update(status)
                    for i, d in enumerate(data):
                        assert content(c, 2048 * (count * n + i), 2048) == \
                            {GOOD: d, BUSY: bytes(MiB)}[status[i]]
                    c.cdb(write(2048 * count * n, 40), dout=data[0][:20 * KiB]).check()
            except BaseException as e:
                failed.append((n, repr(e)))

        threads = [threading.Thread(target=initiator, args=(n,)) for n in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        print(done, failed)
        assert not failed and done[GOOD] >= 16 * 3
        assert PRELOAD or resident(s) < 192 * MiB


@on_platterd
def commands_that_wait_for_each_other_wait_for_no_memory(factory):
    """A read between ordered writes, which take all the memory that a session may have."""
    with serving(factory, "32M") as s, s.connect() as c:
        c.answer_r2ts = False
        first = c.command(write(0, 128), dout=b"1" * 64 * KiB, first=0, unsolicited=0,
                          attribute=iscsiraw.ORDERED)
        middle = c.command(read(0, 8192), 4 * MiB)
        rest = [c.command(write(0, 8192), dout=b"2" * 4 * MiB, first=0, unsolicited=0,
                          attribute=iscsiraw.ORDERED) for _ in range(3)]
        while not c.tasks[first].r2ts:
            c.receive()
        time.sleep(0.2)
        c.answer_r2ts = True
        for itt in [first] + rest:
            for ttt in list(c.tasks[itt].r2ts):
                c.answer_r2t(c.tasks[itt], ttt)
        c.finish(first).check()
        assert c.finish(middle).check().data == b"1" * 64 * KiB + bytes(4 * MiB - 64 * KiB)
        for itt in rest:
            c.finish(itt).check()
        assert content(c, 8191, 1) == b"2" * 512


@on_platterd
def memory_that_is_held_without_getting_on_is_taken_back(factory):
    """Who keeps others waiting for it is cut off, and they go on."""
    with serving(factory, "64M", args=["--memory", "64M", "--loops", "1"]) as s:
        lazy = [s.connect() for _ in range(8)]
        for c in lazy:
            c.answer_r2ts = False
            c.command(write(0, 16384), dout=b"!" * 8 * MiB, first=0, unsolicited=0)
        with s.connect() as c:
            data = random.randbytes(2 * MiB)
            c.cdb(write(0, 4096), dout=data, first=0, unsolicited=0).check()
            assert content(c, 0, 4096) == data
        assert "others waited for" in s.said()
        for c in lazy:
            c.reset()


@on_platterd
def a_peer_that_takes_no_answers_does_not_stop_others(factory):
    with serving(factory, "64M", args=["--memory", "64M", "--loops", "1"]) as s:
        for receive in (512, 262144):
            c = s.connect({"MaxRecvDataSegmentLength": receive})
            for i in range(60):
                c.command(read(0, 8192), 4 * MiB)
            with s.connect() as other:
                for _ in range(10):
                    is_well(other)
                other.cdb(read(0, 16384), 8 * MiB).check()
            c.reset()
        with s.connect() as c:
            is_well(c)


if __name__ == "__main__":
    tap.main()
