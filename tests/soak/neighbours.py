#!/usr/bin/python3
# takes minutes
"""Whatever clients do that do not behave, others keep at least four fifths of their throughput,
memory is bounded, and descriptors return to where they were.

The neighbour is `platter bench` with one connection of its own, to a disk in memory. What it gets done
is counted by the server, in windows with the others there and windows without them by turns; all are
on one worker. As this machine has other things to do, too, it is measured by the time that the
neighbour and the worker had the processor, and that in which both slept, so that one was kept
waiting: what they lost to others does not count. The median of all pairs of windows decides, and a
case fails only when that is too small three times in a row.
"""

import contextlib
import functools
import glob
import os
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import iscsiraw
import nbdraw
import pki
import rude
import server
import tap
import usage
from nbdraw import CMD_READ
from server import PRELOAD, until

KiB, MiB = 1 << 10, 1 << 20
BENCH = [os.path.join(server.BUILD, "platter"), "bench", "--targets", "given", "--repeats", "1",
         "--time", "3600s", "--overwrite", "--cells"]
ENOUGH, TRIES = 0.8, 3
WINDOWS, WINDOW_S = 5, 0.2
MEMORY = 128 * MiB          # of a worker, for requests
EACH = 128 * KiB            # and what a connection may take besides
LIMIT = 1100                # of them


# ---- neighbours

NEIGHBOURS = {
    "small_reads": "randread-4k-1x1",
    "large_reads": "randread-1024k-1x4",
    "large_writes": "randwrite-1024k-1x4",
}


def threads(pid, name=""):
    """The folders of its threads of that name."""
    found = []
    for task in glob.glob("/proc/%d/task/*" % pid):
        with contextlib.suppress(OSError), open(task + "/comm") as f:
            if f.read().startswith(name):
                found.append(task)
    return found


def had_processor(tasks):
    """Seconds."""
    return sum(int(open_text(task + "/schedstat").split()[0]) for task in tasks) / 1e9


def all_sleep(tasks):
    return all(open_text(task + "/stat").rpartition(")")[2].split()[0] == "S" for task in tasks)


def open_text(path):
    with open(path) as f:
        return f.read()


class Neighbour:
    def __init__(self, s, name, iscsi):
        self.server, self.operator = s, s.operator()
        uri = s.iscsi_uri if iscsi else "nbd+unix:///neighbour?socket=" + s.socket
        self.bench = subprocess.Popen([*BENCH, NEIGHBOURS[name], uri],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def __enter__(self):
        until(self.done, "the neighbour has begun")
        return self

    def __exit__(self, *_):
        self.bench.terminate()
        self.bench.wait()
        self.operator.close()

    def done(self):
        """Operations so far."""
        assert self.bench.poll() is None, "the neighbour was thrown out"
        return sum(op["count"]
                   for op in self.operator.export("neighbour")["operations"].values())

    def rate(self):
        """Operations in a second that was theirs."""
        client = int(open_text("/proc/%d/task/%d/children" % (self.bench.pid, self.bench.pid)))
        tasks = threads(client) + threads(self.server.pid, "worker")
        done, used, began = self.done(), had_processor(tasks), time.monotonic()
        samples = asleep = own = 0
        while own < WINDOW_S or samples < 20:
            time.sleep(0.005)
            samples += 1
            asleep += all_sleep(tasks)
            own = had_processor(tasks) - used + \
                asleep / samples * (time.monotonic() - began)
        return (self.done() - done) / own


# ---- those who do not behave

@contextlib.contextmanager
def closed_in_the_end(connections):
    """They are sockets, or clients that have one."""
    try:
        yield connections
    finally:
        for c in connections:
            getattr(c, "socket", c).close()      # without a word


@contextlib.contextmanager
def meanwhile(act, pause):
    """Does that again and again."""
    over = threading.Event()

    def go_on():
        while not over.wait(pause):
            act()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def never_reads(s):
    """Large answers and small ones, and by iSCSI."""
    clients = [rude.never_reads(s, 300, size, "abused")
               for size in (32 * MiB, 4 * MiB, MiB, 64 * KiB) for _ in range(25)]
    for _ in range(4):
        c = iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target, lun=1)
        for _ in range(8):
            c.command("28 00 00000000 00 4000 00", 8 * MiB)
        clients.append(c)
    return closed_in_the_end(clients)


def stops_in_a_write(s):
    """Which is large, so others may have to wait for the memory that it holds."""
    clients = [rude.stops_in_a_write(s, size, "abused")
               for size in (32 * MiB, 4 * MiB, MiB, 64 * KiB) for _ in range(25)]
    return closed_in_the_end(clients)


def is_half_open(s):
    """Silent since the handshake; with their own direction closed, and answers that they do not
    take; silent since they came."""
    clients = [nbdraw.connect(s.address, "abused") for _ in range(100)]
    for c in clients[:50]:
        for _ in range(8):
            c.send(CMD_READ, 0, 512 * KiB)
        c.socket.shutdown(rude.socket.SHUT_WR)
    return closed_in_the_end(clients + [rude.raw(s.address) for _ in range(100)])


@contextlib.contextmanager
def negotiates_slowly(s):
    """A byte a second: in NBD's handshake, in that of TLS, in a login of iSCSI."""
    sockets = [rude.raw(s.address) for _ in range(80)] + \
        [rude.stuck_in_tls(s.address) for _ in range(40)] + \
        [rude.raw(("127.0.0.1", s.iscsi_port)) for _ in range(80)]
    words = [b"\0\0\0\3" + b"IHAVEOPT"] * 80 + [bytes(12)] * 40 + [b"\x43\x87" + bytes(10)] * 80
    at = iter(range(12))

    def dribble():
        n = next(at, 11)
        for c, text in zip(sockets, words):
            with contextlib.suppress(OSError):
                c.send(text[n:n + 1])

    with closed_in_the_end(sockets), meanwhile(dribble, 1):
        dribble()
        yield sockets


def is_idle(s):
    """A thousand of them, ready for commands."""
    clients = []
    for _ in range(1000):
        c = nbdraw.Client(s.address)
        c.go("abused", wanted=())
        clients.append(c)
    return closed_in_the_end(clients)


@contextlib.contextmanager
def floods(s):
    """As many as are let in, who say nothing, and some hundred more a second that are not."""
    held = [rude.raw(s.address) for _ in range(LIMIT)]

    def knock():
        with contextlib.suppress(OSError):
            rude.raw(s.address).close()

    with closed_in_the_end(held), meanwhile(knock, 0.003):
        yield held


# ---- cases

def tried(s, abuse, neighbour):
    """The median of the ratios."""
    free, ratios = usage.descriptors(s), []
    for _ in range(WINDOWS):
        alone = neighbour.rate()
        with abuse(s) as clients:
            beside = neighbour.rate()
            more = usage.resident(s) - s.before
            assert PRELOAD or more < MEMORY + len(clients) * EACH, "%d bytes" % more
        until(lambda: usage.descriptors(s) <= free, "those who left are forgotten")
        ratios.append(beside / (alone or 1))
    print("where one %s: %.2f of %d a second (%s)" % (
        abuse.__name__.replace("_", " "), statistics.median(ratios), alone,
        " ".join("%.2f" % r for r in ratios)))
    return statistics.median(ratios)


def stand_by(factory, abuse, name, iscsi):
    rude.many_files(4096)
    image = factory.image(64 * MiB, fill=0x5A)
    with factory(iscsi=True, args=[
            "--loops", "1", "--poll", "off", "--max-connections", str(LIMIT), "--tls", "optional",
            "--tls-certificates", pki.make(factory.path("pki")) + "/server",
            "--export", "name=neighbour,driver=memory,size=64M",
            "--export", "name=abused,path=" + image]) as s:
        s.before = usage.resident(s) + 64 * MiB             # what the neighbour may write
        with Neighbour(s, name, iscsi) as neighbour:
            assert any(tried(s, abuse, neighbour) >= ENOUGH for _ in range(TRIES))
        assert s.alive()


def everywhere(factory, abuse):
    """Whatever the neighbour does."""
    for name in NEIGHBOURS:
        for iscsi in (False, True):
            print(name, "by iSCSI" if iscsi else "by NBD")
            stand_by(factory, abuse, name, iscsi)


# What is most likely to suffer; the slow cases are about all.
LIKELY = [
    (never_reads, "small_reads", False),
    (never_reads, "large_reads", False),
    (never_reads, "large_writes", True),
    (stops_in_a_write, "large_writes", False),
    (is_half_open, "large_reads", True),
    (negotiates_slowly, "small_reads", False),
    (is_idle, "small_reads", False),
    (floods, "small_reads", True),
]

for abuse, name, iscsi in LIKELY:
    ctl.served(functools.partial(stand_by, abuse=abuse, name=name, iscsi=iscsi), limit=120,
               name="who_%s_leaves_others_their_%s%s" % (
                   abuse.__name__, name, "_by_iscsi" if iscsi else ""))
for abuse in dict.fromkeys(abuse for abuse, *_ in LIKELY):
    ctl.served(functools.partial(everywhere, abuse=abuse), slow=True,
               name="who_%s_leaves_everybody_their_throughput" % abuse.__name__)

tap.main()
