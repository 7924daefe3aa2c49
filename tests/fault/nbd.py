#!/usr/bin/python3
# takes minutes
"""One call of the server fails while it serves NBD, each in its turn: memory, system calls, the
ring. Whoever is answered is told the truth, and the next client does not notice."""

import errno
import functools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import faults
import nbdraw
import pki
import server as servers
import tap
from faults import KINDS, SHARE, Faults, Nbdkit, Platterd
from nbdraw import (CMD_FLUSH, CMD_WRITE, CMD_WRITE_ZEROES, FAST_ZERO, FUA, NO_HOLE, SEND_CACHE,
                    SEND_FAST_ZERO)
from server import PRELOAD

KiB = 1 << 10
SIZE = 512 * KiB


class Talk(faults.Talk):
    """All that NBD has, once."""

    refusals, ends = nbdraw.Error, (nbdraw.Closed, nbdraw.Refused)

    def __init__(self, image, tls):
        super().__init__(image)
        self.tls = tls

    def greet(self, s):
        c = nbdraw.Client(s.address)
        if self.tls:
            c.starttls(self.tls)
        return c

    def write(self, c, offset, length, fua=0):
        entry = self.journal.write(offset, length, bool(fua))
        self.do("write", entry, c.write, offset, entry.data, fua)

    def zero(self, c, offset, length, flags=0):
        entry = self.journal.ask("zero", offset, length)
        self.do("zero", entry, c.zero, offset, length, flags)

    def fast_zero(self, c, offset, length):
        """Or nothing, where it would not be fast."""
        entry = self.journal.ask("zero", offset, length)
        error = c.call(CMD_WRITE_ZEROES, offset, length, FAST_ZERO).error
        if error == errno.EOPNOTSUPP:
            self.journal.refused(entry)
        elif error:
            self.refused.append(("fast zero", error))
        else:
            self.journal.answered(entry)

    def trim(self, c, offset, length, flags=0):
        entry = self.journal.ask("trim", offset, length)
        self.do("trim", entry, c.trim, offset, length, flags)

    def flush(self, c):
        self.do("flush", None, c.flush)

    def read(self, c):
        data = self.do("read", None, c.read, 0, SIZE)
        if data is not None:
            self.agree(data)

    def read_all(self, s):
        with nbdraw.connect(s.address, tls=self.tls) as c:
            return c.read(0, SIZE)

    def haggle(self, c):
        assert c.option(0x7777, b"nonsense")[-1][0] != nbdraw.REP_ACK
        c.list()
        if self.tls:
            c.extended_headers()
        else:
            c.structured_reply()
        c.info()
        c.meta_context(nbdraw.OPT_LIST_META_CONTEXT, contexts=())
        c.set_meta_context()
        c.go()

    def together(self, c, d):
        """Requests that wait for one another."""
        flying = []
        for n in range(4):
            for client, offset in ((c, 64 * KiB), (d, 128 * KiB)):
                entry = self.journal.write(offset + n * 8 * KiB, 4 * KiB, True)
                cookie = client.send(CMD_WRITE, entry.offset, 4 * KiB, FUA, entry.data)
                flying.append((client, cookie, entry))
        for client in c, d:
            client.send(CMD_FLUSH)
        for client in c, d:
            for _ in range(5):
                reply = client.receive()
                for entry in [e for f, k, e in flying if f is client and k == reply.cookie]:
                    if not reply.error:
                        self.journal.answered(entry)
                if reply.error:
                    self.refused.append(("together", reply.error))

    def commands(self, c, d):
        self.write(c, 0, 4 * KiB)
        self.write(c, 4 * KiB, 4 * KiB, FUA)
        self.write(d, 256 * KiB, 128 * KiB, FUA)
        self.write(c, 8 * KiB + 100, 1000, FUA)
        self.write(d, 16 * KiB - 7, 5000)
        self.zero(c, 28 * KiB, 4 * KiB, FUA)
        self.zero(c, 32 * KiB + 10, 5000, NO_HOLE)
        if c.flags & SEND_FAST_ZERO:
            self.fast_zero(c, 36 * KiB + 4, 3 * KiB)
        self.trim(c, 40 * KiB, 8 * KiB, FUA)
        if c.flags & SEND_CACHE:
            self.do("cache", None, c.cache, 0, 64 * KiB)
        self.do("status", None, c.block_status, 0, SIZE)
        self.read(d)
        self.flush(c)
        self.together(c, d)

    def talk(self, s):
        with self.greet(s) as c, self.greet(s) as d:
            self.haggle(c)
            d.export_name()
            self.commands(c, d)


# Front end, what it serves with, by TLS or not, and the kinds of calls for which that matters.
WAYS = {
    "plugin": (Nbdkit, {"fua": "commit"}, False, ["memory", "call"]),
    "plugin_past_the_cache": (Nbdkit, {"cache": "none", "fua": "native"}, False, KINDS),
    "platterd": (Platterd, {"fua": "commit"}, False, KINDS),
    "platterd_past_the_cache": (Platterd, {"cache": "none", "fua": "native"}, False, ["ring"]),
    "platterd_by_tls": (Platterd, {"fua": "native"}, True, KINDS),
}


def serve(server, kind, options, tls, share):
    image = server.image(SIZE, fill=0xEE)
    folder = pki.make(server.path("pki")) if tls else None
    if tls:
        options = {**options, "tls": folder + "/server"}
    # nbdkit's own mistakes are nbdkit's.
    only = "plugin.so" if server.front_end is Nbdkit else ""
    talk = Talk(image, folder and folder + "/client")
    faults.Run(Faults(server.path("faults"), only), KINDS[kind],
               lambda: server(image, **options), talk, talk.check).all(share)


for way, (front_end, options, tls, kinds) in WAYS.items():
    for kind in kinds:
        # GnuTLS asks for memory thousands of times; a sanitizer would tell of what it does without.
        library = tls and kind == "memory"
        if library and PRELOAD:
            continue
        for share, end in (SHARE, ""), ((600, "_in_600_places") if library else
                                      (None, "_wherever_it_is")):
            servers.served(functools.partial(serve, kind=kind, options=options, tls=tls,
                                             share=share),
                           name="%s_%s_that_fails_once_harms_nobody%s" % (way, kind, end),
                           on=[front_end], slow=bool(end))

tap.main()
