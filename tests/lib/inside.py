"""inside - cases that run in a Linux guest, as they would run here.

    @inside.served(programs=["dmsetup"], modules=["dm-flakey"])
    def a_promise(server):
        inside.null_blk()
        with server("/dev/nullb0", cache="none") as s:
            nbdraw.connect(s.address) ...

Here such a case boots a guest, and in it this same program runs the case, for one front end after
the other; Python goes along, with every module that has been imported. So a case has devices and
a kernel that it may break, and servers and clients as any other case has them.
"""

import contextlib
import encodings.idna       # the guest's sockets need it
import functools
import importlib.util
import io
import marshal
import os
import re
import subprocess
import sys
import tempfile
import zipfile

import guest
import server
import tap
from server import FRONT_ENDS, until

assert encodings.idna
IN_GUEST = "PLATTER_IN_GUEST" in os.environ
SLOWNESS = 4            # of emulation
PYTHON = "/usr/bin/python3"
NULLB = "/sys/kernel/config/nullb/"


# ---- here: a guest for a case ------------------------------------------------------------------

def imported():
    """What Python needs there: a zip of the modules of this process, and files by their paths."""
    files, archive = [os.path.realpath(PYTHON)], io.BytesIO()
    specs = {s.name: s for s in (getattr(m, "__spec__", None) for m in sys.modules.values()) if s}
    with zipfile.ZipFile(archive, "w") as z:
        for name, spec in specs.items():
            if not spec.has_location:
                continue        # it is built in, or frozen
            if not spec.origin.endswith(".py"):
                files.append(spec.origin)
                continue
            code = marshal.dumps(spec.loader.get_code(name))
            stem = name.replace(".", "/") + ("/__init__" if spec.submodule_search_locations else "")
            z.writestr(stem + ".pyc", importlib.util.MAGIC_NUMBER + bytes(12) + code)
            if spec.origin.startswith(server.SOURCE):
                files.append(spec.origin)       # for tracebacks
    return archive.getvalue(), files


def run_there(names, limit, programs, modules):
    """Runs these cases of this program in a guest."""
    program = os.path.realpath(sys.argv[0])
    archive, files = imported()
    with tempfile.NamedTemporaryFile(suffix=".zip") as z:
        z.write(archive)
        z.flush()
        words = ["--timeout=%d" % limit]
        for option, values in (
                ("--put", [*files, z.name, program, server.PLATTERD, "nbdkit", server.PLUGIN,
                           "/usr/bin/setpriv", *programs]),
                ("--module", ["null_blk:nr_devices=0", *modules])):
            for value in values:
                words += [option, value]
        variables = {"PLATTER_IN_GUEST": 1, "PLATTER_SRC": server.SOURCE,
                     "PLATTER_BUILD": server.BUILD, "PLATTER_SLOWNESS": SLOWNESS,
                     "PLATTER_SEED": os.environ.get("PLATTER_SEED", ""),
                     "PYTHONHOME": "/usr", "PYTHONPATH": z.name}
        script = "".join("export %s='%s'\n" % item for item in variables.items())
        # By these Python knows that it is at home.
        script += "mkdir -p {0}/lib-dynload; >{0}/os.py\n".format(os.path.dirname(os.__file__))
        script += "%s -S -B %s %s" % (files[0], program, " ".join(names))
        done = subprocess.run([guest.GUEST, *words, "-"], input=script, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 77:
        tap.skip(done.stdout)
    assert done.returncode == 0, "status %d: %s" % (done.returncode, done.stdout)
    # All of them, and none skipped: nothing is missing in a guest of our own.
    passed = re.findall(r"^ok \d+ - (\w+)$", done.stdout, re.M)
    assert passed == names, "passed in the guest: %s" % passed


def served(case=None, *, on=FRONT_ENDS, programs=(), modules=(), slow=False, limit=None):
    """Registers a case that runs in a guest, for each front end there."""
    if case is None:
        return functools.partial(served, on=on, programs=programs, modules=modules, slow=slow,
                                 limit=limit)
    if IN_GUEST:
        @functools.wraps(case)
        def with_devices(*words):
            with devices:
                case(*words)
        return server.served(with_devices, on=on, slow=slow, limit=limit)
    limit = limit or (tap.SLOW_LIMIT_S if slow else 4 * tap.LIMIT_S)
    names = [case.__name__ + ("" if f is on[0] else "_on_" + f.name) for f in on]

    def run():
        run_there(names, limit - 5, programs, modules)
    run.__name__ = case.__name__
    tap.test(run, slow=slow, limit=limit)
    return case


# ---- there: devices -----------------------------------------------------------------------------

def sh(line):
    """Runs a line of shell, and returns what it printed."""
    done = subprocess.run(["sh", "-ec", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    assert done.returncode == 0, "%s: status %d: %s" % (line, done.returncode, done.stdout)
    return done.stdout.strip()


def put(path, value):
    with open(path, "w") as f:
        f.write(str(value))


devices = contextlib.ExitStack()        # of a case; they go with it


def insist(command, *words):
    """Until it succeeds: the ring of a server that was killed holds its files for a moment."""
    def succeeds():
        try:
            command(*words)
        except (AssertionError, OSError):
            return False
        return True
    until(succeeds)


def null_blk(name="nullb0", size=64, **settings):
    """A memory disk of so many MiB with a volatile cache; returns its path."""
    os.mkdir(NULLB + name)
    devices.callback(insist, os.rmdir, NULLB + name)
    for key, value in {"size": size, "memory_backed": 1, "discard": 1, "cache_size": 32,
                       "blocksize": 512, **settings}.items():
        put(NULLB + name + "/" + key, value)
    null_blk_power(name, 1)
    return "/dev/" + name


def null_blk_power(name, on):
    put(NULLB + name + "/power", on)


def mount(*words):
    """At /mnt."""
    sh("mount %s /mnt" % " ".join(words))
    devices.callback(unmount)


def unmount():
    """If it still has to be."""
    if os.path.ismount("/mnt"):
        insist(sh, "umount /mnt")


class Mapped:
    """A device of the device mapper. lines: (sectors, target), of targets such as "error"."""

    def __init__(self, name, *lines):
        self.name = name
        self.ask("create", table=lines)
        devices.callback(insist, self.ask, "remove")
        self.path = "/dev/dm-" + self.ask("info", "-c", "--noheadings", "-o", "minor").strip()

    def ask(self, verb, *words, table=()):
        """dmsetup(8)."""
        at, text = 0, ""
        for sectors, target in table:
            kind, _, rest = target.partition(" ")
            text += "%d %d %s %s\n" % (at, sectors, kind, rest)
            at += sectors
        done = subprocess.run(["dmsetup", "--noudevsync", verb, self.name, *words],
                              input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        assert done.returncode == 0, "dmsetup %s: %s%s" % (verb, text, done.stdout)
        return done.stdout

    def load(self, *lines):
        """From here on it is that."""
        self.ask("load", table=lines)
        self.ask("resume", "--noflush", "--nolockfs")

    def message(self, text):
        return self.ask("message", "0", text)

    def suspend(self):
        """What is asked of it waits until it is resumed."""
        self.ask("suspend", "--noflush", "--nolockfs")

    def resume(self):
        self.ask("resume")
