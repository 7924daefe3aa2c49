"""ctl - a server with a control socket and metrics, and the operator's side of both.

    @ctl.served
    def a_promise(server):
        with server(image) as s, s.operator() as o:
            o.ask("retire", export="a")     # the answer; Refused when the server says no
"""

import functools
import http.client
import json
import os
import re
import socket
import subprocess
import tempfile

import server

TOOL = os.path.join(server.BUILD, "platter")
PATIENCE_S = 20 * server.PATIENCE


class Refused(Exception):
    """The server answered with an error."""


class Operator:
    """A client of the control socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.lines.close()
        self.socket.close()

    def receive(self):
        """The next answer: a line that is an object."""
        line = self.lines.readline()
        if not line:
            raise EOFError("the server has closed the connection")
        assert line.endswith(b"\n"), line
        answer = json.loads(line.decode())
        assert isinstance(answer, dict), answer
        return answer

    def raw(self, line):
        self.socket.sendall(line + b"\n")
        return self.receive()

    def ask(self, command, **arguments):
        answer = self.raw(json.dumps({"command": command, **arguments}).encode())
        if "error" in answer:
            assert list(answer) == ["error"], answer
            raise Refused(answer["error"])
        return answer

    def refusal(self, command, **arguments):
        try:
            answer = self.ask(command, **arguments)
        except Refused as e:
            return str(e)
        raise AssertionError(f"{command} {arguments}: {answer}")

    def exports(self, **arguments):
        return self.ask("exports", **arguments)["exports"]

    def export(self, name="", **arguments):
        """The one on offer by that name."""
        found, = [e for e in self.exports(**arguments) if e["name"] == name and not e["retired"]]
        return found

    def connections(self):
        return self.ask("connections")["connections"]


class Http(http.client.HTTPConnection):
    """To a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(self.path)

    def ask(self, method="GET", url="/metrics", **how):
        """Status, headers and text."""
        self.request(method, url, **how)
        response = self.getresponse()
        return response.status, response.headers, response.read().decode()


class Platterd(server.Platterd):
    """control: the path of its socket; metrics: where they are to be had."""

    def __init__(self, run, *words, args=(), control=None, metrics=None, **how):
        base = tempfile.mktemp(prefix="c", dir=run)
        self.control, self.metrics = control or base + ".ctl", metrics or base + ".met"
        super().__init__(run, *words, **how, args=[
            "--control", self.control, "--metrics", self.metrics, *args])

    def operator(self):
        return Operator(self.control)

    def http(self):
        return Http(self.metrics)

    def page(self):
        status, _, text = self.http().ask()
        assert status == 200
        return text

    def tool(self, name, *words):
        """Status and output of a subcommand of platter."""
        done = subprocess.run([TOOL, name, "--control", self.control, *words],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=PATIENCE_S)
        return done.returncode, done.stdout.decode()


def manual(name, title):
    """A section of a manual page, in pod."""
    with open(os.path.join(server.SOURCE, "docs", name + ".pod")) as f:
        return re.search(rf"^=head1 {title}\n(.*?)(?=^=head1 |\Z)", f.read(), re.M | re.S)[1]


served = functools.partial(server.served, on=[Platterd])
