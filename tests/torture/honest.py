#!/usr/bin/python3
"""`platter torture` without a cut: it finds nothing on servers, files and devices that work, whoever
made them, and finds what is wrong with data that was changed behind its back."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import mounts
import pki
import tap
from peers import NbdkitFile, NbdkitMemory, QemuNbd, Tgt
from server import FrontEnd, Nbdkit, Platterd, served
from torture import CANNOT, LOST, check, torture

KiB, MiB = 1 << 10, 1 << 20
ALL_THERE = "all that was acknowledged as durable is there"
ONLY_READ_BACK = "what was written can be read back, not that it outlives a loss of power"


def keeps(target, *words):
    said = torture("--size", "4M", "--seconds", "1", *words, target)
    assert ALL_THERE in said and "NOT KEPT" not in said
    assert " ".join(said.split()).count(ONLY_READ_BACK) == 1
    return said


# ---- servers ------------------------------------------------------------------------------------

@served(on=[Nbdkit, Platterd, QemuNbd, NbdkitFile])
def a_server_is_found_to_work(server):
    with server(server.image(8 * MiB)) as s:
        said = keeps(s.uri)
        assert "it offers: FLUSH, FUA, zeroes, trim" in said


@served(on=[NbdkitMemory])
def a_server_of_memory_is_found_to_work(server):
    with server("8M") as s:
        keeps(s.uri)


@served(on=[Platterd])
def every_cache_mode_is_found_to_work(server):
    with server(server.image(8 * MiB), cache="none") as s:
        keeps(s.uri)
    for mode in ("directsync", "writethrough"):
        with server(server.image(8 * MiB), cache=mode, iscsi=True) as s:
            assert "write-through" in keeps(s.iscsi_uri)


@served(on=[Platterd])
def a_server_with_tls_is_found_to_work(server):
    folder = pki.make(server.path("pki"))
    with server(server.image(8 * MiB), tcp=True, tls=folder + "/server") as s:
        keeps("%s/?tls-certificates=%s/client" % (s.uri, folder))
    keys = pki.psk_file(server.path("keys"), "alice")
    with server(server.image(8 * MiB), tls=keys) as s:
        keeps(s.uri.replace("nbds+unix://", "nbds+unix://alice@") + "&tls-psk-file=" + keys)


@served(on=[Platterd, Tgt])
def an_iscsi_target_is_found_to_work(server):
    image = server.image(8 * MiB)
    with server(image, **({"iscsi": True} if server.front_end is Platterd else {})) as s:
        keeps(s.iscsi_uri)


@served(on=[Platterd])
def blocks_of_4096_bytes_are_written_whole(server):
    with server(server.image(8 * MiB), iscsi={"block-size": 4096}) as s:
        keeps(s.iscsi_uri)


@served(on=[Platterd])
def a_server_that_promises_nothing_proves_nothing(server):
    with server(server.image(8 * MiB), cache="unsafe") as s:
        said = torture("--size", "4M", "--seconds", "1", s.uri, status=CANNOT)
        assert "It promised nothing" in said and ALL_THERE not in said


# ---- files and devices --------------------------------------------------------------------------



@served(on=[FrontEnd])
def a_file_is_found_to_work(files):
    keeps(files.image(8 * MiB))


@served(on=[FrontEnd])
def a_device_is_found_to_work(files):
    for sector in (512, 4096):
        with mounts.loop(files.image(8 * MiB), sector) as device:
            keeps(device)


# ---- what was changed -----------------------------------------------------------------------------

def changed(files, change):
    """What is said after change(image), a bytearray."""
    image, journal = files.image(4 * MiB), files.path("journal")
    torture("--seconds", "1", "--journal", journal, image)
    with open(image, "rb+") as f:
        data = bytearray(f.read())
        change(data)
        f.seek(0)
        f.write(data)
    return check(journal, image, status=LOST)


def stamped(data, start=MiB):
    """Where the next 4 KiB are that are no zeroes."""
    return next(at for at in range(start, len(data), 4 * KiB)
                if all(any(data[c:c + 64]) for c in range(at, at + 4 * KiB, 64)))


@served(on=[FrontEnd])
def what_was_written_elsewhere_is_found(files):
    def move(data):
        at = stamped(data)
        data[:4 * KiB] = data[at:at + 4 * KiB]
    said = changed(files, move)
    assert re.search(r"misplaced: \d+ bytes", said)     # without zeroes, which have no place
    places = [int(at) for at in re.findall(r"misplaced  at (\d+), .* written to", said)]
    assert places and max(places) < 4 * KiB, places


@served(on=[FrontEnd])
def a_block_that_is_garbled_is_found(files):
    def spoil(data):
        data[stamped(data) + 100] ^= 1
    assert "garbled: 64 bytes" in changed(files, spoil)


@served(on=[FrontEnd])
def what_another_run_wrote_is_found(files):
    other = files.image(4 * MiB, "other")
    torture("--seconds", "1", other)

    def mix(data):
        with open(other, "rb") as f:
            theirs = f.read()
        at = next(a for a in range(0, len(data), 4 * KiB)
                  if any(data[a:a + 64]) and all(any(theirs[c:c + 64])
                                                 for c in range(a, a + 4 * KiB, 64)))
        data[at:at + 4 * KiB] = theirs[at:at + 4 * KiB]
    assert "foreign" in changed(files, mix)


@served(on=[FrontEnd])
def what_is_gone_is_found(files):
    def lose(data):
        at = stamped(data)
        data[at:at + 4 * KiB] = bytes(4 * KiB)
    said = changed(files, lose)
    assert "NOT KEPT" in said and "has zeroes, owed WRITE" in said


if __name__ == "__main__":
    tap.main()
