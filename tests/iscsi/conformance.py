#!/usr/bin/python3
# takes minutes
"""libiscsi's conformance tests (iscsi-test-cu 1.19) against platterd, one process a test, with all
that lose data. What a kind of disk does not run, and what the tool skips there, is in tables
below with the reasons; a test that skips and is not in them fails, and one that is and does not
skip fails as well."""

# no valgrind

import fnmatch
import os
import queue
import re
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import server
import tap

TOOL = "iscsi-test-cu"
AT_ONCE = 3     # mostly they wait, for each other's sessions to end and for what must not come
LIMIT_S = 60 * server.PATIENCE
SIZE = 1 << 30
WHOLE = ("*",)

# ---- tables: which tests (patterns), and why -------------------------------------------------

# What the tool gets wrong; none of these can pass anywhere. The first is mended in libiscsi 1.20.
WRONG = {
    "iSCSITMF.LUNResetSimpleAsync":
        "asks whether the reset was answered before it waits for the answer",
    "WriteSame10.UnmapUntilEnd":
        "sends blocks of FFh and wants them to read as zeroes: where LBPRZ is 1, only a block of "
        "zeroes may be unmapped (SBC-3, WRITE SAME (10) command)",
    "WriteAtomic16.Simple":
        "sends 1 to 256 blocks whatever MAXIMUM ATOMIC TRANSFER LENGTH says",
}

# What it gets wrong for a disk with our defaults; a_disk_with_wide_limits runs them.
WRONG_BY_DEFAULT = {
    "GetLBAStatus.UnmapSingle":
        "asks for block i+1 and wants an answer for i+n, where n blocks are a physical one",
    "WriteSame16.Unmap": "writes 65536 blocks at once, and MAXIMUM TRANSFER LENGTH says 32768",
}

# And for a disk that others have written to; two_paths_to_a_fresh_disk_conform runs it.
WRONG_UNLESS_FRESH = {
    "MultipathIO.CompareAndWrite": "fills 256 blocks with zeroes and then wants them in 257",
}

# Blocks larger than the sectors of the medium are not written whole or not at all, so that the
# command is not there; and what they are on this machine is not for a test to say.
UNKNOWN_IF_WHOLE = {"WriteAtomic16.*": "depends on where the image lies"}

# A read-only disk: tests that begin by writing, or want to be told of other things than that.
WRITES = {
    pattern: "writes" for pattern in (
        "CompareAndWrite.Simple", "CompareAndWrite.DpoFua", "CompareAndWrite.Miscompare",
        "CompareAndWrite.Unwritten", "ExtendedCopy.Simple", "ExtendedCopy.Valid*", "OrWrite.*",
        "ProutReserve.Access*", "ReceiveCopyResults.CopyStatus", "Write1*", "WriteAtomic16.*",
        "WriteSame1*.Simple", "WriteSame1*.BeyondEol", "WriteSame1*.ZeroBlocks",
        "WriteSame1*.Check", "WriteVerify*", "iSCSIResiduals.Write*", "iSCSITMF.*")
}

# What the tool skips, or a part of it, in its words; and where ours, why that is right.
NO_SANITIZE = {     # a command that is none of ours
    "Sanitize.*": "SANITIZE .*is not implemented",
}
NO_DEFECT_LISTS = {     # nor are these: an image has no defects to list
    "ReadDefectData10.Simple": "READDEFECTDATA10 is not implemented",
    "ReadDefectData12.Simple": "READDEFECTDATA12 is not implemented",
}
NOT_REMOVABLE = {
    "PreventAllow.*": "Logical unit is not removable",
    "StartStopUnit.Simple": "Media is not removable",
}
WRITABLE = {"ReadOnly.ReadOnlySBC": "Logical unit is not write-protected"}
ONE_PATH = {"MultipathIO.*": "Multipath unavailable"}
LARGE_BLOCKS = {    # they want several blocks in a physical one
    pattern: "LBPPB < 2" for pattern in (
        "CompareAndWrite.InvalidDataOutSize", "WriteSame1*.InvalidDataOutSize",
        "WriteSame1*.UnmapUnaligned")
}
NOTHING_TO_UNMAP = {    # by whom nothing can be written
    **{pattern: "fully provisioned" for pattern in (
        "CompareAndWrite.InvalidDataOutSize", "GetLBAStatus.UnmapSingle", "Inquiry.BlockLimits",
        "Unmap.Simple", "Unmap.ZeroBlocks", "WriteSame1*.InvalidDataOutSize",
        "WriteSame1*.Unmap", "WriteSame1*.UnmapUnaligned", "WriteSame1*.UnmapUntilEnd")},
    "ReadOnly.ReadOnlySBC": "UNMAP is not implemented",
    "Unmap.VPD": "UNMAP is not implemented",
}
NOWHERE = {**NO_SANITIZE, **NO_DEFECT_LISTS}
ORDINARY = {**NOWHERE, **NOT_REMOVABLE, **WRITABLE, **ONE_PATH}


# ---- a run ---------------------------------------------------------------------------------------

def listed():
    """The names of all tests, "Read10.Simple" say."""
    if shutil.which(TOOL) is None:
        tap.skip(TOOL + " is not installed")
    done = subprocess.run([TOOL, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    names = [line[4:] for line in done.stdout.split() if re.fullmatch(r"ALL\.\w+\.\w+", line)]
    assert len(names) > 200, "%d tests" % len(names)
    return names


def matched(name, table):
    """What a table says of a test, or None."""
    return next((why for p, why in table.items() if fnmatch.fnmatchcase(name, p)), None)


def one(name, urls, skips):
    """Runs a test; returns what is wrong, or None."""
    command = [TOOL, "--dataloss", "--allow-sanitize", "--fail", "--test=ALL." + name, *urls]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return "has not ended after %d s" % LIMIT_S
    said = done.stdout.decode(errors="replace")
    ran = re.search(r"tests +1 +1 +1 +0 ", said)    # total, ran, passed, failed
    if done.returncode != 0 or not ran:
        return "status %d\n%s" % (done.returncode, said[said.find("Suite:"):][:3000])
    skipped = re.search(r"\[SKIPPED\] *(.*)", said)
    words = matched(name, skips)
    if skipped and (words is None or not re.search(words, skipped[0])):
        return "skips: " + skipped[1]
    if words is not None and not skipped:
        return "is to skip (%s), and passes" % words
    return None


def run(start, skips, leave_out=(), only=WHOLE):
    """All tests of the tool that match `only`, but those left out; by several processes, each with
    a server and a disk of its own. start(number): a context manager of a server with .urls."""
    left_out = {**WRONG, **dict(leave_out)}
    todo, failures, count = queue.Queue(), [], 0
    for name in listed():
        if matched(name, left_out) is None and any(fnmatch.fnmatchcase(name, p) for p in only):
            todo.put(name)
            count += 1
    assert count > 0

    def work(number):
        try:
            with start(number) as s:
                while True:
                    name = todo.get_nowait()
                    wrong = one(name, s.urls, skips)
                    if wrong is not None:
                        failures.append("%s: %s" % (name, wrong))
                    if not s.alive():
                        failures.append("%s: the server has died:\n%s" % (name, s.said()))
                        return
        except queue.Empty:
            pass
        except BaseException as e:
            failures.append("a server: %r" % e)
            raise

    threads = [threading.Thread(target=work, args=(n,)) for n in range(min(AT_ONCE, count))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print("%d tests" % count)
    assert not failures, "\n".join(["%d failed:" % len(failures), *sorted(failures)])
    assert todo.empty()


def plain(factory, scsi=True, **how):
    """Servers of one image each."""
    def start(number):
        s = factory(factory.image(SIZE, "disk%d.img" % number), iscsi=scsi, **how)
        s.urls = [s.iscsi_uri]
        return s
    return start


# ---- kinds of disks -------------------------------------------------------------------------------

def kind(short=None, limit=300):
    """Registers a case of every test, and if `short` are patterns, one of these for the plain run,
    and the whole for the slow one."""
    def register(case):
        def named(name, only, **how):
            def on(factory):
                case(factory, only)
            server.served(on, name=name, on=[server.Platterd], **how)
        if short is not None:
            named(case.__name__ + "_in_short", short, limit=limit)
        named(case.__name__, WHOLE, slow=short is not None, limit=limit)
        return case
    return register


@kind()
def a_disk_of_512_byte_blocks_conforms(factory, only):
    run(plain(factory), ORDINARY, WRONG_BY_DEFAULT, only)


@kind()
def a_disk_with_wide_limits_conforms(factory, _):
    """What the tool needs for the tests that it gets wrong otherwise."""
    scsi = {"physical-block-size": 512, "max-io-size": "32M"}
    run(plain(factory, scsi), ORDINARY, (), WRONG_BY_DEFAULT)


@kind(short=("CompareAndWrite.*", "GetLBAStatus.*", "Read1*.Simple", "ReadCapacity*", "Unmap.*",
             "Write1*.Simple", "WriteSame16.*", "Inquiry.*", "iSCSIResiduals.*"))
def a_disk_of_4096_byte_blocks_conforms(factory, only):
    run(plain(factory, {"block-size": 4096}), {**ORDINARY, **LARGE_BLOCKS},
        {"WriteSame16.Unmap": WRONG_BY_DEFAULT["WriteSame16.Unmap"], **UNKNOWN_IF_WHOLE}, only)


@kind(short=("PreventAllow.*", "StartStopUnit.*", "NoMedia.*", "TestUnitReady.*", "Inquiry.*",
             "Mandatory.*", "ModeSense6.*"))
def a_removable_disk_conforms(factory, only):
    run(plain(factory, {"removable": "on"}), {**NOWHERE, **WRITABLE, **ONE_PATH}, WRONG_BY_DEFAULT,
        only)


@kind(short=("ReadOnly.*", "Read1*.Simple", "Verify10.*", "Inquiry.*", "Mandatory.*", "Unmap.*",
             "ModeSense6.*", "ProutReserve.Ownership*"))
def a_read_only_disk_conforms(factory, only):
    run(plain(factory, read_only=True),
        {**NOWHERE, **NOT_REMOVABLE, **ONE_PATH, **NOTHING_TO_UNMAP}, WRITES, only)


@kind(short=("iSCSI*", "Read16.Simple", "Write16.Simple", "Reserve6.2Initiators",
             "ProutPreempt.*"))
def a_disk_behind_chap_conforms(factory, only):
    def start(number):
        secrets, conf = factory.path("secrets%d" % number), factory.path("conf%d" % number)
        with open(secrets, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write("in somebody a-long-secret\n")
        with open(conf, "w") as f:
            f.write("[server]\nstate = %s\n[export disk]\npath = %s\n"
                    "[target iqn.2026-11.org.example:chap]\nchap = %s\nlun.0 = disk\n" %
                    (factory.path("state%d" % number),
                     factory.image(SIZE, "disk%d.img" % number), secrets))
        s = factory(args=["-c", conf], iscsi=True)
        s.urls = [s.iscsi_uri.replace("://", "://somebody%a-long-secret@")]
        return s
    run(start, ORDINARY, WRONG_BY_DEFAULT, only)


def two_paths(factory):
    """By two portals; wherever a test has a second session, that is by the second."""
    def start(number):
        s = factory(factory.image(SIZE, "disk%d.img" % number), iscsi=True,
                    args=["--iscsi", "127.0.0.1:0"])
        s.urls = re.findall(r"^iscsi://\S+", s.said(), re.M)
        assert len(set(s.urls)) == 2, s.urls
        return s
    return start


BY_TWO_PATHS = {**NOWHERE, **NOT_REMOVABLE, **WRITABLE}


@kind(short=("MultipathIO.*", "Prout*", "Prin*", "Reserve6.2Initiators", "Reserve6.Logout"))
def two_paths_to_one_disk_conform(factory, only):
    run(two_paths(factory), BY_TWO_PATHS, {**WRONG_BY_DEFAULT, **WRONG_UNLESS_FRESH}, only)


@kind()
def two_paths_to_a_fresh_disk_conform(factory, _):
    run(two_paths(factory), BY_TWO_PATHS, (), WRONG_UNLESS_FRESH)


tap.main()
