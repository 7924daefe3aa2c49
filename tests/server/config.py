#!/usr/bin/python3
"""What platter.conf and its reload promise; tests/unit/config.c has the rest of what is refused."""

import concurrent.futures
import os
import re
import signal
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))

import nbdraw
import server
import tap

MiB = 1 << 20


def alone(case):
    return server.served(case, on=[server.Platterd])


class Config:
    """A platter.conf: sections as they are written, and a server that reads it."""

    def __init__(self, s, **sections):
        os.mkdir(s.path("etc"))     # what lies beside it may be read by the server
        self.path = s.path("etc/platter.conf")
        self.s, self.sections = s, {}
        self.set(**sections)

    def set(self, **sections):
        """name=text: an export; None takes it away. server=text is the server's."""
        for name, text in sections.items():
            self.sections[name] = text
            if text is None:
                del self.sections[name]
        self.write("".join("[%s]\n%s\n" % (name if name == "server" else "export " + name, text)
                           for name, text in self.sections.items()))

    def write(self, text):
        """As careful people do, so that nobody reads half of it."""
        with open(self.path + ".new", "w") as f:
            f.write(text)
        os.rename(self.path + ".new", self.path)

    def start(self, *args):
        return self.s(args=["-c", self.path, *args])


def reload(p, wanted="reload: "):
    """Returns what the server said of it."""
    before = len(p.said())
    os.kill(p.pid, signal.SIGHUP)
    end = time.monotonic() + 20 * server.PATIENCE
    while True:
        said = p.said()[before:]
        done = re.search(r"reload: (\d+ exports|nothing is changed.*)", said)
        if done:
            assert wanted in said, said
            return said
        assert time.monotonic() < end and p.alive(), "no reload: " + said
        time.sleep(0.005)


def names(p):
    with nbdraw.Client(p.address) as c:
        return sorted(c.list())


def memory(size=1):
    return "driver = memory\nsize = %dM" % size


# ---- what is read -----------------------------------------------------------------------------


@alone
def a_file_can_say_all(s):
    c = Config(s)
    c.write("""
        # all of it
        [server]
        loops = 1
        [export]
        path = %s
        read-only = on
        [export two words]
        driver = memory
        size = 3M
        description = in RAM
        [listener one]
        tcp = 127.0.0.1:0
        [listener two]
        unix = %s
        mode = 0666
    """ % (s.image(2 * MiB), s.path("sock")))
    with c.start() as p:
        assert names(p) == ["", "two words"]
        with nbdraw.connect(p.address, "two words") as n:
            assert (n.size, n.description) == (3 * MiB, "in RAM")
        port = int(re.search(r"nbd://127\.0\.0\.1:(\d+)$", p.said(), re.M)[1])
        for address in (("127.0.0.1", port), s.path("sock")):
            with nbdraw.connect(address) as n:
                assert n.size == 2 * MiB and n.flags & nbdraw.READ_ONLY
        assert os.stat(s.path("sock")).st_mode & 0o777 == 0o666


@alone
def the_command_line_goes_before_the_file(s):
    c = Config(s, server="list = off\nloops = 1", a=memory())
    with c.start("--list", "on") as p:
        assert names(p) == ["a"]
    with c.start() as p, nbdraw.Client(p.address) as n:
        assert n.refusal(nbdraw.OPT_LIST) == nbdraw.ERR_POLICY


@alone
def an_error_names_file_line_and_key(s):
    c = Config(s)
    for text, line, key in (("[server]\nlops = 1\n", 2, "lops"),
                            ("[server]\nloops = 1\nloops = 2\n", 3, "loops"),
                            ("[export a]\npath = a\ncache = fast\n", 3, "cache=fast"),
                            ("[export a]\npath = a\n[export a]\n", 3, "export a"),
                            ("path = a\n", 1, "path")):
        c.write(text)
        said = s.refusal(args=["-c", c.path])
        assert "%s:%d: " % (c.path, line) in said and key in said, said


@alone
def one_export_that_cannot_be_opened_keeps_no_other_from_being_served(s):
    gone = s.path("gone.img")
    c = Config(s, good=memory(), bad="path = " + gone)
    with c.start() as p:
        assert gone in p.said()
        assert nbdraw.connect(p.address, "good").size == MiB
        with nbdraw.Client(p.address) as n:
            (error, text), = n.option(nbdraw.OPT_GO, nbdraw.info_data("bad"))
            assert error > nbdraw.REP_ERROR, (error, text)
            n.go("good")
    c.set(good=None)
    assert gone in s.refusal(args=["-c", c.path])


# ---- reload -----------------------------------------------------------------------------------


@alone
def a_reload_adds_changes_and_retires(s):
    c = Config(s, stays=memory(1), goes=memory(2), grows=memory(3))
    with c.start() as p:
        old = {name: nbdraw.connect(p.address, name) for name in ("stays", "goes", "grows")}
        for name, n in old.items():
            n.write(0, name.encode().ljust(512))
        c.set(goes=None, grows=memory(4), comes=memory(5))
        reload(p, "3 exports")
        assert names(p) == ["comes", "grows", "stays"]
        with nbdraw.connect(p.address, "grows") as n:
            assert n.size == 4 * MiB and n.read(0, 512) == bytes(512), "another disk"
        with nbdraw.connect(p.address, "stays") as n:
            assert n.read(0, 512) == b"stays".ljust(512), "the same disk"
        with nbdraw.Client(p.address) as n:
            assert n.refusal(nbdraw.OPT_GO, nbdraw.info_data("goes")) == nbdraw.ERR_UNKNOWN
        for name, n in old.items():     # whoever was there finishes
            assert n.read(0, 512) == name.encode().ljust(512)
            n.close()


def when_free(address, name):
    """Whoever left may not be gone yet."""
    end = time.monotonic() + 10 * server.PATIENCE
    while True:
        try:
            return nbdraw.connect(address, name)
        except nbdraw.Refused:
            assert time.monotonic() < end
            time.sleep(0.02)


@alone
def a_change_of_access_alone_is_for_new_clients(s):
    c = Config(s, a=memory() + "\ndescription = old")
    with c.start() as p, nbdraw.connect(p.address, "a") as old:
        old.write(0, b"x" * 512)
        c.set(a=memory() + "\ndescription = new\nread-only = off\nlisted = off\naccess = exclusive")
        reload(p)
        assert names(p) == []
        with nbdraw.Client(p.address) as n:
            assert n.refusal(nbdraw.OPT_GO, nbdraw.info_data("a")) is not None, "it is exclusive"
        assert old.read(0, 512) == b"x" * 512
        old.close()
        with when_free(p.address, "a") as n:
            assert n.description == "new" and n.read(0, 512) == b"x" * 512


@alone
def a_bad_configuration_changes_nothing(s):
    c = Config(s, a=memory(1))
    with c.start() as p, nbdraw.connect(p.address, "a") as n:
        n.write(0, b"x" * 512)
        for text, says in (("[export b]\ndriver = memory\nsize = 1M\n[server]\nlops = 1\n",
                            ":5: [server] has no key lops"),
                           ("[export b]\ndriver = memory\n", ":1: option size is missing"),
                           ("[export a]\npath = a\n[export a]\npath = b\n", "given twice"),
                           ("[server]\ntls = required\ntls-psk = %s\n[export b]\ndriver = null\n"
                            "size = 1M\n" % s.path("none"), s.path("none")),
                           ("\0", ":1: ")):
            c.write(text)
            said = reload(p, "nothing is changed")
            assert says in said, said
            assert names(p) == ["a"]
            assert n.read(0, 512) == b"x" * 512
        os.unlink(c.path)
        assert c.path in reload(p, "nothing is changed")
        with nbdraw.connect(p.address, "a") as again:
            assert again.read(0, 512) == b"x" * 512


@alone
def what_has_to_wait_for_the_next_start_is_said(s):
    c = Config(s, server="loops = 1\nlist = on", a=memory())
    with c.start() as p:
        c.set(server="loops = 2\nlist = off\nuser = nobody\nmemory = 64M")
        said = reload(p)
        waiting = set(re.findall(r"reload: (\S+): takes effect at the next start", said))
        assert waiting == {"loops", "user", "memory"}, said
        with nbdraw.Client(p.address) as n:
            assert n.refusal(nbdraw.OPT_LIST) == nbdraw.ERR_POLICY, "list does not have to"
        with open(c.path, "a") as f:
            f.write("[listener more]\ntcp = 0\n")
        assert "listeners: take effect at the next start" in reload(p)


@alone
def limits_change_for_those_who_come(s):
    c = Config(s, server="max-connections = 5", a=memory())
    with c.start() as p, nbdraw.connect(p.address, "a") as first, \
            nbdraw.connect(p.address, "a") as second:
        c.set(server="max-connections = 2")
        reload(p)
        try:
            nbdraw.Client(p.address).close()
            raise AssertionError("a third one came in")
        except (nbdraw.Closed, ConnectionError):
            pass
        assert first.read(0, 512) == second.read(0, 512) == bytes(512)


@alone
def a_connection_keeps_the_depth_that_it_began_with(s):
    slow = memory().replace("driver = memory", "driver = fault\nover = memory") + \
        "\nkind = read\nfault = delay\ndelay = 100ms\nrepeat = forever"
    c = Config(s, server="depth = 2", a=slow)
    with c.start() as p, nbdraw.connect(p.address, "a") as n:
        c.set(server="depth = 1024")
        reload(p)
        began = time.monotonic()
        for _ in range(8):
            n.send(nbdraw.CMD_READ, 0, 512)
        for _ in range(8):
            n.receive().check()
        assert time.monotonic() - began >= 0.4, "more than two at once"


def traffic(address, name, offset, stop):
    """Writes and reads there, sixteen at a time, until told to stop, and not only once."""
    done = 0
    with nbdraw.connect(address, name) as c:
        while done < 20 or not stop.is_set():
            data = struct.pack("I", done) * 1024
            cookies = {c.send(nbdraw.CMD_WRITE, offset + i * 4096, 4096,
                              nbdraw.FUA if i % 4 == 0 else 0, data) for i in range(16)}
            while cookies:
                reply = c.receive()
                assert reply.error == 0
                cookies.remove(reply.cookie)
            assert c.read(offset + done % 16 * 4096, 4096) == data
            done += 1


@alone
def fifty_reloads_disturb_nobody(s):
    image = s.image(MiB)
    c = Config(s, stays=memory(), disk="path = " + image, changes=memory(1))
    stop = threading.Event()
    with c.start() as p, concurrent.futures.ThreadPoolExecutor() as pool:
        loads = [pool.submit(traffic, p.address, name, offset, stop)
                 for name, offset in (("stays", 0), ("disk", 0), ("disk", 512 << 10))]
        try:
            for i in range(50):
                extra = "extra%d" % (i % 3)
                c.set(changes=memory(2 + i % 2),
                      **{extra: None if extra in c.sections else memory()})
                reload(p, "exports")
                with nbdraw.connect(p.address, "changes") as n:
                    assert n.size == (2 + i % 2) * MiB
                for load in loads:
                    assert not load.done(), load.exception()
        finally:
            stop.set()
        for load in loads:
            load.result()


@alone
def an_image_that_has_grown_is_larger_for_those_who_come_after_a_reload(s):
    image = s.image(1 * MiB)
    c = Config(s, a="path = " + image, b=memory())
    with c.start() as p, nbdraw.connect(p.address, "a") as before:
        os.truncate(image, 3 * MiB)
        with nbdraw.connect(p.address, "a") as n:
            assert n.size == 1 * MiB
        reload(p, "2 exports")
        with nbdraw.connect(p.address, "a") as n:
            assert n.size == 3 * MiB
            n.write(2 * MiB, b"x" * 512, nbdraw.FUA)
            before.write(0, b"y" * 512)
            assert n.read(0, 512) == b"y" * 512


@alone
def a_new_image_within_reach_can_be_served(s):
    os.mkdir(s.path("images"))
    c = Config(s, server="reach = " + s.path("images"), a=memory())
    with c.start() as p:
        c.set(b="path = " + s.image(2 * MiB, name="images/new.img"),
              c="path = " + s.image(3 * MiB, name="out.img"))
        reload(p, "3 exports")
        with nbdraw.connect(p.address, "b") as n:
            assert n.size == 2 * MiB
            n.write(0, b"x" * 512, nbdraw.FUA)
        with open("/proc/%d/status" % p.pid) as f:
            if "Seccomp:\t2" not in f.read() or "no Landlock" in p.said():
                tap.skip("this server has no sandbox, or the kernel no Landlock")
        with nbdraw.Client(p.address) as n:
            assert n.refusal(nbdraw.OPT_GO, nbdraw.info_data("c")) is not None, "out of reach"


tap.main()
