"""peers - servers of others, for tests that are about any server.

    @served(on=[QemuNbd, Tgt])
    def a_promise(server): ...
"""

import os
import socket
import subprocess
import time

from server import FrontEnd, Nbdkit, StartFailed


class NbdkitMemory(Nbdkit):
    name = "nbdkit-memory"

    def __init__(self, run, *words, **how):
        super().__init__(run, *words, plugin="memory", **how)

    def wait(self):
        """None, too, when it has crashed as nbdkit 1.32 may when a peer leaves it early."""
        status = super().wait()
        return None if "raw_send_socket: Assertion" in self.said() else status


class NbdkitFile(Nbdkit):
    name = "nbdkit-file"

    def __init__(self, run, image):
        super().__init__(run, image, plugin="file")


class QemuNbd(FrontEnd):
    name = "qemu-nbd"

    def __init__(self, run, image):
        super().__init__(run)
        self.start(["qemu-nbd", "--format=raw", "--persistent", "--shared=16",
                    "--socket=" + self.socket, "--pid-file=" + self.pid_file, image])


class Tgt(FrontEnd):
    """tgt's daemon, with one disk; options are those of tgtadm for it."""

    name, program, target = "tgt", "tgtd", "iqn.2026-11.org.example:peer"

    def __init__(self, run, image, **options):
        super().__init__(run)
        self.control = str(os.getpid() % 30000)     # its socket's name
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        self.start(["sh", "-c", "echo $$ >%s; exec %s -f -C %s --iscsi portal=127.0.0.1:%d"
                    % (self.pid_file, self.program, self.control, port)])
        # Its socket comes a moment later.
        while self.admin("sys", "show").returncode != 0:
            if not self.alive():
                raise StartFailed(self.said(), self.wait(), 0)
            time.sleep(0.05)
        words = [w for k, v in options.items() for w in ("--" + k, v)]
        for step in (["target", "new", "--tid", "1", "-T", self.target],
                     ["logicalunit", "new", "--tid", "1", "--lun", "1", "-b", image, *words],
                     ["target", "bind", "--tid", "1", "-I", "ALL"]):
            done = self.admin(*step)
            if done.returncode != 0:
                self.kill()
                raise StartFailed(done.stderr, done.returncode, 0)
        self.address = self.iscsi_uri = "iscsi://127.0.0.1:%d/%s/1" % (port, self.target)

    def admin(self, mode, op, *words):
        return subprocess.run(["tgtadm", "-C", self.control, "--lld", "iscsi", "--mode", mode,
                               "--op", op, *words], capture_output=True, text=True)

    def stop(self):
        self.kill()     # it does not end while it has a target
