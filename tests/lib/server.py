"""server - starts a front end of the core for a test, and stops it again.

    @served
    def a_promise(server):
        image = server.image(1 << 20)
        with server(image, cache="none") as s:
            nbdraw.connect(s.address) ...

A case runs once for each front end that it names, so a new front end inherits the tests.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import nbdraw
import tap

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("PLATTER_SRC") or os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("PLATTER_BUILD") or (
    os.getcwd() if os.path.exists("plugin.so") else SOURCE)
PLUGIN = os.path.join(BUILD, "plugin.so")
PLATTERD = os.path.join(BUILD, "platterd")

# Of a sanitizer build: the run-time library that has to come first in a process which
# loads the plugin.
PRELOAD = os.environ.get("PLATTER_PRELOAD")


def preloading(*libraries):
    """For a command: they come first in its process."""
    names = " ".join(filter(None, libraries))
    return ["env", "LD_PRELOAD=" + names] if names else []


NBDKIT = [*preloading(PRELOAD), "nbdkit"]
VALGRIND = (os.environ.get("PLATTER_VALGRIND") or "").split()   # a command that runs a server
COUNTS = os.path.exists(os.path.join(BUILD, "server", "main.gcno"))     # a coverage build
PATIENCE = int(os.environ.get("PLATTER_SLOWNESS") or 1)

# Debian's python3-libnbd belongs to /usr/bin/python3.
os.environ["PATH"] = "/usr/bin:/usr/sbin:" + os.environ["PATH"]


class StartFailed(Exception):
    """The server said no. str() is what it said."""

    def __init__(self, text, status, seconds):
        super().__init__(text)
        self.status, self.seconds = status, seconds


class FrontEnd:
    """A server that runs; what they all have in common. Subclasses say how it is started."""

    preload = None      # a library that comes before all others in its process

    def __init__(self, run):
        base = tempfile.mktemp(prefix="s", dir=run)
        self.socket, self.pid_file = base + ".sock", base + ".pid"
        self.address, self.uri = self.socket, "nbd+unix:///?socket=" + self.socket
        self.log = open(base + ".log", "a+")
        self.over = False       # and its end needs no judgement
        self.pid = None

    def start(self, command, env=None):
        """Returns when there is a file with its process id: then it is ready for clients."""
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env=env)
        while not self.has_started():
            time.sleep(0.005)
            waited = time.monotonic() - began
            if self.process.poll() is not None or self.refused():
                raise StartFailed(self.said(), self.wait(), waited)
            if waited > 10 * PATIENCE:
                self.kill()
                raise StartFailed("hangs at start\n" + self.said(), self.wait(), waited)

    def has_started(self):
        """Knows its process id then. One that is refused may take the file away again."""
        with contextlib.suppress(FileNotFoundError, ValueError), open(self.pid_file) as f:
            self.pid = int(f.read())
        return self.pid is not None

    def refused(self):
        """Whether it will not start, although its process has not ended yet."""
        return False

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.stop()
        except AssertionError as e:
            if kind is None:
                raise
            sys.stderr.write("%s\n" % e)
        if kind is not None:
            sys.stderr.write("".join("server: %s\n" % s for s in self.said().splitlines()))

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """As a crash would end it."""
        self.over = True
        os.kill(self.pid or self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def wait(self):
        """Its exit status, negative when a signal ended it."""
        try:
            return self.process.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            return self.kill()

    def terminate(self):
        os.kill(self.pid, signal.SIGTERM)

    def stop(self):
        """Asks it to end, and holds it to an orderly end."""
        if self.over:
            return
        with contextlib.suppress(ProcessLookupError):   # the status below tells why
            self.terminate()
        status, said = self.wait(), self.said()
        self.over = True
        assert status in (0, None), "the server ended with status %d: %s" % (status, said)
        assert "Sanitizer" not in said and "runtime error:" not in said, said

    @contextlib.contextmanager
    def clients_cut(self):
        """Around what cuts off a client with requests in flight, and what follows."""
        yield


class Nbdkit(FrontEnd):
    """nbdkit with the plugin; words are given as they are, options as key=value.

    wrap: a command that runs the server, strace say. filters: names, outermost first.
    threads: that many for each connection, instead of nbdkit's 16. plugin: one to compare with.
    """

    name = "nbdkit"

    def __init__(self, run, *words, filters=(), read_only=False, wrap=(), threads=16,
                 plugin=PLUGIN, **options):
        super().__init__(run)
        # It leaves some of its own.
        valgrind = [*VALGRIND, "--leak-check=no"] if VALGRIND else []
        command = [*wrap, *preloading(self.preload, PRELOAD), *valgrind, "nbdkit", "-f",
                   "--exit-with-parent", "-U", self.socket, "-P", self.pid_file,
                   "--threads=%d" % threads]
        command += ["--filter=" + f for f in filters]
        command += ["-r"] if read_only else []
        command += [plugin, *words]
        command += ["%s=%s" % (k, v) for k, v in options.items()]
        self.start(command)

    def refused(self):
        # With a sanitizer it may hang after the last word (see wait).
        return PRELOAD and re.search("error:(?!.*it is served read-only)", self.said())

    def wait(self):
        """As above, or None when it only lacks that.

        With gcc 12's sanitizers in it, Debian's nbdkit, whatever its plugin, hangs in glibc's
        locale lock at exit once it has printed the words for an errno.
        """
        hangs = PRELOAD and "error:" in self.said()
        try:
            return self.process.wait(1 if hangs else 20 * PATIENCE)
        except subprocess.TimeoutExpired:
            status = self.kill()
            return None if hangs else status

    def terminate(self):
        super().terminate()
        if PRELOAD:
            # The thread sanitizer keeps a signal that comes just before a poll(2) until
            # that ends, which only another signal brings about.
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                super().terminate()

    @contextlib.contextmanager
    def clients_cut(self):
        """As above, and stops the server: nbdkit 1.32 itself may abort when two of its threads
        answer a client that is gone. That, and no other end, excuses it and what clients saw."""
        lost = None
        try:
            yield
        except (nbdraw.Closed, ConnectionError, TimeoutError) as e:
            lost = e
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5 * PATIENCE)     # it should be about to end
        try:
            self.stop()
        except AssertionError as e:
            if not (self.process.returncode == -signal.SIGABRT
                    and "raw_send_socket: Assertion `sock >= 0' failed" in self.said()):
                raise e from lost
        else:
            if lost is not None:
                raise lost


class Platterd(FrontEnd):
    """platterd; words and options are those of Nbdkit, and describe its default export.

    args: more words of its command line. tcp: on 127.0.0.1 instead of a unix socket, and the
    address is host and port. tls: a folder of certificates or a file of keys (see tests/lib/pki.py),
    and nobody is served without TLS. iscsi: also by iSCSI, at 127.0.0.1 and iscsi_port, as LUN 0 of
    `target`; True, or the options of its units, {"serial": "X"} say.
    """

    name = "platterd"
    finds_leaks = True      # of a sanitizer build; a program about the sandbox sets it to False

    def __init__(self, run, *words, read_only=False, wrap=(), args=(), tcp=False, tls=None,
                 iscsi=False, **options):
        super().__init__(run)
        # It ends with this process, as nbdkit does by an option.
        command = [*wrap, "setpriv", "--pdeathsig", "TERM", *preloading(self.preload), *VALGRIND,
                   PLATTERD, "--foreground", "--pidfile", self.pid_file]
        command += ["--tcp", "127.0.0.1:0"] if tcp else ["--unix", self.socket]
        if tls is not None:
            kind = "certificates" if os.path.isdir(tls) else "psk"
            command += ["--tls", "required", "--tls-" + kind, tls]
        if iscsi:
            command += ["--iscsi", "127.0.0.1:0"]
        if isinstance(iscsi, dict) and iscsi:
            command += ["--scsi", ",".join("%s=%s" % (k, str(v).replace(",", ",,"))
                                           for k, v in iscsi.items())]
        command += args
        if words or options:
            command += self.export(words, read_only, options)
        env = dict(os.environ)
        if self.finds_leaks and "ASAN_OPTIONS" in env and not wrap and "--sandbox" not in args:
            # They are looked for by ways that the sandbox closes.
            env["ASAN_OPTIONS"] = env["ASAN_OPTIONS"].replace("detect_leaks=0", "detect_leaks=1")
            command += ["--sandbox", "off"]
        if VALGRIND and "--sandbox" not in args:
            # valgrind makes programs as it goes.
            command += ["--sandbox", "off"]
        self.start(command, env)
        if tcp:
            self.uri = re.search(r"nbds?://127\.0\.0\.1:\d+", self.said())[0]
            self.address = "127.0.0.1", int(self.uri.rpartition(":")[2])
        elif tls is not None:
            self.uri = self.uri.replace("nbd", "nbds", 1)
        if iscsi:
            self.iscsi_uri, port, self.target = re.search(
                r"iscsi://127\.0\.0\.1:(\d+)/([^/\s]+)/\d+", self.said()).group(0, 1, 2)
            self.iscsi_port = int(port)

    @staticmethod
    def export(words, read_only, options):
        """By the options of a single image where they suffice, else by --export."""
        if len(words) == 1 and "=" not in words[0] and set(options) <= {"cache", "fua"}:
            return [*(["--read-only"] if read_only else []),
                    *["--%s=%s" % item for item in options.items()], words[0]]
        pairs = [tuple(w.split("=", 1)) if "=" in w else ("path", w) for w in words]
        pairs += options.items()
        pairs += [("read-only", "on")] if read_only else []
        return ["--export", ",".join(["name="] + [
            "%s=%s" % (k, str(v).replace(",", ",,")) for k, v in pairs])]


FRONT_ENDS = [Nbdkit, Platterd]


def delay(ms):
    """As an option: so long that a client gets something done meanwhile, however slow all is."""
    return "%dms" % (ms * PATIENCE)


def until(condition, what="it has come", seconds=20):
    """Waits for what comes by itself, and returns what the condition then gives."""
    end = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "never: " + what
        time.sleep(0.01)
    return found


def strace(output, *rules):
    """For `wrap`: the server under strace, with the names of its files."""
    if shutil.which("strace") is None:
        tap.skip("strace is not installed")
    return ("strace", "-f", "-y", "-s0", "-o", output, *rules)


class Factory:
    """What a case gets: starts servers, makes images, in that directory, and cleans up after
    both."""

    def __init__(self, front_end, directory=None):
        self.front_end = front_end
        self.dir = tempfile.mkdtemp(prefix="platter-", dir=directory)
        # A socket's path has room for 107 bytes, which TMPDIR may use up.
        self.run = tempfile.mkdtemp(prefix="platter-", dir="/tmp")

    def __call__(self, *words, **how):
        return self.front_end(self.run, *words, **how)

    def path(self, name):
        return os.path.join(self.dir, name)

    def image(self, size, name="disk.img", fill=None):
        """A sparse file, or one full of the byte `fill`."""
        path = self.path(name)
        with open(path, "wb") as f:
            if fill is None:
                f.truncate(size)
            else:
                f.write(bytes([fill]) * size)
        return path

    def refusal(self, *words, **how):
        """What the server says when it does not start, which has to be quick."""
        try:
            with self(*words, **how):
                pass
        except StartFailed as e:
            assert e.status is None or e.status > 0, "status %d: %s" % (e.status, e)
            assert e.seconds < PATIENCE, "took %.1f s to say no" % e.seconds
            return str(e)
        raise AssertionError("served: %s %s" % (words, how))

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.run, ignore_errors=True)


def served(case=None, *, name=None, on=FRONT_ENDS, **how):
    """Registers a case for each front end; that of the first keeps the plain name."""
    if case is None:
        return functools.partial(served, name=name, on=on, **how)
    for front_end in on:
        def run(front_end=front_end):
            factory = Factory(front_end)
            try:
                case(factory)
            finally:
                factory.close()
        run.__name__ = name or case.__name__
        if front_end is not on[0]:
            run.__name__ += "_on_" + front_end.name
        tap.test(run, **how)
    return case
