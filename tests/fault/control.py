#!/usr/bin/python3
"""One call of the server fails while an operator has orders for it, each in its turn: memory, system
calls, the ring. An order is carried out or refused; clients notice neither."""

import functools
import http.client
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import faults
import iscsiraw
import nbdraw
import pki
import server as servers
import tap
from faults import KINDS, SHARE, Faults, Operated
from server import PRELOAD

KiB = 1 << 10
TARGET = "iqn.2026-11.org.example:disks"
EXPORT = "[export %s]\npath = %s\n\n"


class Orders:
    """Every order there is, with a reload that adds an export and a LUN, and one that takes them
    away again."""

    def __init__(self, factory):
        self.factory = factory
        self.conf = factory.path("conf")
        self.images = {name: factory.image(64 * KiB, name, fill=1) for name in "ab"}
        self.common = "[server]\ntls = optional\ntls-certificates = %s/server\nstate = %s\n\n" % (
            pki.make(factory.path("pki")), factory.path("state"))

    def configure(self, names):
        with open(self.conf + ".new", "w") as f:
            f.write(self.common + "".join(EXPORT % (n, self.images[n]) for n in names)
                    + "[target %s]\n" % TARGET
                    + "".join("lun.%d = %s\n" % (n, name) for n, name in enumerate(names)))
        os.rename(self.conf + ".new", self.conf)

    def serve(self):
        self.configure("a")
        return self.factory(args=["-c", self.conf], iscsi=True)

    def order(self, o, command, **arguments):
        try:
            return o.ask(command, **arguments)
        except ctl.Refused as e:
            self.refused.append((command, str(e)))
            return None

    def __call__(self, s):
        self.refused = []
        try:
            with s.operator() as o:
                for command in "exports", "targets", "connections":
                    self.order(o, command)
                for names in "ab", "a":
                    self.configure(names)
                    self.order(o, "reload")
                self.order(o, "resize", export="a")
            s.page()
        except (TimeoutError, ConnectionRefusedError):
            raise
        except (OSError, EOFError, http.client.HTTPException, AssertionError) as e:
            self.refused.append(("connection", repr(e)))
        return self.refused

    def check(self, s):
        """Those who had a disk before have it now."""
        with nbdraw.connect(s.address, "a") as c, \
                iscsiraw.connect(("127.0.0.1", s.iscsi_port), TARGET) as i:
            c.write(0, b"\1" * 4096, nbdraw.FUA)
            assert i.cdb("28 00 00000000 00 0008 00", din=4096).check().data == b"\1" * 4096


def case(factory, kind, share):
    orders = Orders(factory)
    faults.Run(Faults(factory.path("faults")), KINDS[kind], orders.serve, orders,
               orders.check).all(share)


for kind in KINDS:
    # GnuTLS asks for memory a thousand times at each reload; a sanitizer would tell of what it does
    # without.
    library = kind == "memory"
    if library and PRELOAD:
        continue
    for share, end in (SHARE, ""), (600, "_in_600_places") if library else \
            (None, "_wherever_it_is"):
        servers.served(functools.partial(case, kind=kind, share=share),
                       name="%s_that_fails_once_costs_an_order_at_most%s" % (kind, end),
                       on=[Operated], slow=bool(end))

tap.main()
