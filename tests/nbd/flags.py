#!/usr/bin/python3
"""What an export advertises is what it keeps, for each cache mode."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import tap
from nbdraw import (CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_CACHE, SEND_FAST_ZERO, SEND_FLUSH,
                    SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES)
from server import served

MiB = 1 << 20
SYNCING = ("auto", "writeback", "none", "directsync", "writethrough")
WRITING = SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO
DURABLE = SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN


def flags_of(server, *words, **options):
    with server(*words, **options) as s, nbdraw.connect(s.address) as c:
        return c.flags


@served
def syncing_modes_offer_everything(server):
    """But CACHE, where no page cache is used."""
    image = server.image(MiB)
    for mode in SYNCING:
        flags = flags_of(server, image, cache=mode)
        want = HAS_FLAGS | WRITING | DURABLE
        if mode in ("auto", "writeback", "writethrough"):
            want |= SEND_CACHE
        assert flags & want == want, "cache=%s: %#x lacks %#x" % (mode, flags, want & ~flags)
        assert not flags & READ_ONLY, mode


@served
def the_default_is_auto(server):
    """Which an image with holes does not carry."""
    with server(server.image(MiB)) as s, nbdraw.connect(s.address) as c:
        assert "cache=writeback instead of auto (" in c.description, c.description


@served
def unsafe_promises_no_durability(server):
    flags = flags_of(server, server.image(MiB), cache="unsafe")
    assert not flags & DURABLE, "%#x" % flags
    assert flags & WRITING == WRITING, "%#x" % flags


@served
def read_only_offers_nothing_that_writes(server):
    image = server.image(MiB)
    for mode in SYNCING + ("unsafe",):
        flags = flags_of(server, image, cache=mode, read_only=True)
        assert flags & READ_ONLY, mode
        assert not flags & WRITING, "cache=%s: %#x" % (mode, flags)


@served
def fua_never_comes_without_flush(server):
    image = server.image(MiB)
    exports = [((image,), {"cache": mode, "fua": fua}) for mode in SYNCING + ("unsafe",)
               for fua in ("auto", "native", "commit") if (mode, fua) != ("unsafe", "native")]
    exports += [((), {"driver": d, "size": "1M"}) for d in ("memory", "null")]
    exports += [((), {"driver": d, "over": "memory", "size": "1M"}) for d in ("fault", "powercut")]
    exports += [((image,), {"driver": "powercut", "over": "file", "cache": "unsafe"})]
    for words, options in exports:
        flags = flags_of(server, *words, **options)
        assert not flags & SEND_FUA or flags & SEND_FLUSH, "%s: %#x" % (options, flags)
        assert not flags & SEND_FAST_ZERO or flags & SEND_WRITE_ZEROES, "%s: %#x" % (options, flags)
        if options.get("cache") == "unsafe":
            assert not flags & DURABLE, "%s: %#x" % (options, flags)


@served
def any_byte_may_be_asked_for(server):
    image = server.image(MiB + 7)
    for mode in SYNCING:
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            least, preferred, most = c.block_size
            assert least == 1, "cache=%s: the minimum block is %d" % (mode, least)
            assert 512 <= preferred <= most and preferred & (preferred - 1) == 0, c.block_size
            assert c.size == MiB + 7


@served
def the_description_tells_mode_and_fua_path(server):
    image = server.image(MiB)
    for mode in SYNCING + ("unsafe",):
        with server(image, cache=mode) as s, nbdraw.connect(s.address) as c:
            assert "file" in c.description and mode in c.description, c.description
            assert mode == "unsafe" or "FUA" in c.description, c.description


@served
def every_connection_hears_the_same(server):
    with server(server.image(MiB), cache="none") as s:
        heard = []
        for _ in range(3):
            c = nbdraw.Client(s.address)
            c.structured_reply()
            heard += [c.info(), c.info(), c.go()]
            c.close()
        assert len(set(heard)) == 1, heard


if __name__ == "__main__":
    tap.main()
