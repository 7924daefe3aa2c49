#!/usr/bin/python3
"""The page of metrics is what Prometheus reads, and its numbers are those of what was done."""

import contextlib
import errno
import http.client
import os
import re
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import ctl
import nbdraw
import tap
from nbdraw import CMD_READ, CMD_WRITE, FUA
from server import until
from usage import descriptors

KiB, MiB = 1 << 10, 1 << 20
MEMORY = ["--export", "name=a,driver=memory,size=1M"]


# ---- the format, held to its letter --------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
UNESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


def labels(text):
    found, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        assert m, "no label: " + text[at:]
        assert m[1] not in found
        found[m[1]] = re.sub(r"\\.", lambda e: UNESCAPED[e[0]], m[2])
        at = m.end()
        assert text[at:at + 1] in ("", ",")
        at += 1
    return found


def parse(page):
    """{family: (type, {(name, labels as a sorted tuple): value})}"""
    assert page.endswith("\n")
    families, family = {}, None
    for line in page[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert re.fullmatch(NAME, family) and line.split(" ", 3)[3]
            assert family not in families, family + " is not in one piece"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family and kind in ("counter", "gauge", "histogram")
            assert name.endswith("_total") == (kind == "counter"), name
            families[family] = kind, {}
        else:
            m = SAMPLE.fullmatch(line)
            assert m, "no sample: " + line
            kind, samples = families[family]
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert m[1] in [family + s for s in suffixes], line
            key = m[1], tuple(sorted(labels(m[2] or "").items()))
            assert key not in samples, "twice: " + line
            samples[key] = float(m[3])
    for family, (kind, samples) in families.items():
        if kind == "histogram":
            check_histogram(family, samples)
    return families


def check_histogram(family, samples):
    series = {}
    for (name, pairs), value in samples.items():
        if name == family + "_bucket":
            pairs = dict(pairs)
            series.setdefault(tuple(sorted((k, v) for k, v in pairs.items() if k != "le")),
                              []).append((float(pairs["le"]), value))
    assert len(series) == sum(name == family + "_count" for name, _ in samples)
    for key, buckets in series.items():
        bounds, values = zip(*buckets)
        assert list(bounds) == sorted(set(bounds)) and bounds[-1] == float("inf")
        assert list(values) == sorted(values)
        assert samples[family + "_count", key] == values[-1]
        assert samples[family + "_sum", key] >= 0
        assert 15 <= len(buckets) <= 25


class Page:
    def __init__(self, s):
        self.families = parse(s.page())

    def get(self, name, **wanted):
        """The one sample with exactly these labels."""
        family = name if name in self.families else name.rpartition("_")[0]
        return self.families[family][1][name, tuple(sorted(wanted.items()))]

    def by(self, name, label, **wanted):
        """{value of label: number}, without zeroes."""
        return {dict(pairs)[label]: value
                for (n, pairs), value in self.families[name][1].items()
                if n == name and value and wanted.items() <= dict(pairs).items()}


@tap.test
def the_parser_here_is_strict():
    good = '# HELP a_total x\n# TYPE a_total counter\na_total{b="c\\"\\\\\\n"} 1\n'
    assert parse(good) == {"a_total": ("counter", {("a_total", (("b", 'c"\\\n'),)): 1.0})}
    for wrong in (good[:-1], good + good, good.replace("counter", "gauge"),
                  good + 'a_total{b="c\\"\\\\\\n"} 2\n', good.replace("\\n", "\\t"),
                  good.replace(" 1", ""), good.replace(" 1", "  1"), good + "b_total 1\n",
                  good.replace('b="', 'b=')):
        try:
            parse(wrong)
        except (AssertionError, KeyError, ValueError):
            continue
        raise AssertionError("taken: " + wrong)


# ---- numbers -------------------------------------------------------------------------------------


@ctl.served
def counters_are_what_a_client_did(server):
    image = server.image(MiB)
    with server(image, fua="commit", args=MEMORY) as s, nbdraw.connect(s.address) as c:
        for _ in range(3):
            c.read(0, 4 * KiB)
        for _ in range(5):
            c.write(0, bytes(8 * KiB), FUA)
        c.write(0, bytes(512))
        c.flush()
        c.trim(0, 64 * KiB)
        c.zero(0, 64 * KiB)
        c.cache(0, KiB)
        c.block_status(0, MiB)
        assert c.call(CMD_READ, MiB, 512).error == errno.EINVAL
        assert c.call(CMD_WRITE, MiB, 512, 0, bytes(512)).error == errno.ENOSPC
        page = Page(s)
        assert page.by("platter_export_requests_total", "kind", export="") == {
            "read": 4, "write": 2, "write_fua": 5, "flush": 1, "trim": 1, "zero": 1, "cache": 1,
            "extents": 1}
        assert page.by("platter_export_bytes_total", "kind", export="") == {
            "read": 12 * KiB, "write": 512, "write_fua": 40 * KiB, "trim": 64 * KiB,
            "zero": 64 * KiB, "cache": KiB}
        assert page.by("platter_export_errors_total", "error", export="", kind="read") == {
            "EINVAL": 1}
        assert page.by("platter_export_errors_total", "error", export="", kind="write") == {
            "ENOSPC": 1}
        assert page.by("platter_export_errors_total", "error", export="", kind="flush") == {}
        assert page.get("platter_export_fua_native_total", export="") == 0
        assert page.get("platter_export_fua_committed_total", export="") == 6
        assert page.get("platter_export_flush_groups_total", export="") == 6
        # The other export has nothing of it.
        assert page.by("platter_export_requests_total", "kind", export="a") == {}


@ctl.served
def latencies_are_in_a_histogram_of_each_kind_in_use(server):
    with server(args=MEMORY) as s, nbdraw.connect(s.address, "a") as c:
        began = time.monotonic()
        for _ in range(100):
            c.read(0, 4 * KiB)
        took = time.monotonic() - began
        page = Page(s)
        assert page.by("platter_export_latency_seconds", "kind") == {}
        assert page.get("platter_export_latency_seconds_count", export="a", kind="read") == 100
        total = page.get("platter_export_latency_seconds_sum", export="a", kind="read")
        assert 0 < total < took
        kinds = {dict(pairs)["kind"]
                 for _, pairs in page.families["platter_export_latency_seconds"][1]}
        assert kinds == {"read"}


@ctl.served
def a_slow_request_is_in_a_slow_bucket(server):
    slow = "name=slow,driver=fault,over=memory,size=1M,kind=read,fault=delay,delay=100ms"
    with server(args=["--export", slow]) as s, nbdraw.connect(s.address, "slow") as c:
        c.read(0, 512)
        page = Page(s)
        buckets = {float(dict(pairs)["le"]): value for (name, pairs), value
                   in page.families["platter_export_latency_seconds"][1].items()
                   if name.endswith("_bucket")}
        assert max(buckets[le] for le in buckets if le < 0.1) == 0
        assert buckets[float("inf")] == 1
        assert page.get("platter_export_latency_seconds_sum", export="slow", kind="read") >= 0.1


@ctl.served
def the_server_and_its_exports_have_gauges(server):
    failing = "name=bad,driver=fault,over=memory,size=2M,kind=flush"
    with server(args=MEMORY + ["--export", failing]) as s:
        page = Page(s)
        version = subprocess.check_output([ctl.TOOL, "version"]).decode().split()[1]
        assert page.get("platter_build_info", version=version) == 1
        assert 0 < page.get("platter_uptime_seconds") < ctl.PATIENCE_S
        assert page.by("platter_connections", "phase") == {}
        assert page.by("platter_export_size_bytes", "export") == {"a": MiB, "bad": 2 * MiB}
        assert page.by("platter_export_open", "export") == {"a": 1, "bad": 1}
        assert page.by("platter_export_failed", "export") == {}
        with nbdraw.connect(s.address, "bad") as c, nbdraw.Client(s.address) as early:
            c.write(0, bytes(512))
            assert c.call(nbdraw.CMD_FLUSH).error == errno.EIO
            page = Page(s)
            assert page.by("platter_export_connections", "export") == {"bad": 1}
            assert page.by("platter_connections", "phase") == {"served": 1, "handshake": 1}
            assert page.by("platter_export_errors_total", "error", kind="flush") == {"EIO": 1}
            early.close()


@ctl.served
def the_manual_has_every_metric(server):
    with server(args=MEMORY) as s:
        items = re.findall(r"^=item (.*)", ctl.manual("platterd", "METRICS"), re.M)
        assert sorted(items) == sorted(parse(s.page()))


@ctl.served
def the_control_socket_has_the_same_page(server):
    with server(args=MEMORY) as s, s.operator() as o:
        by_control, by_http = parse(o.ask("metrics")["metrics"]), parse(s.page())
        for page in (by_control, by_http):
            del page["platter_uptime_seconds"]
        assert by_control == by_http


ODD = ['quote"quote', "back\\slash", "new\\nline", 'end\\', "Ünïcödé ☃", "a{b}", "a,b=c", " ",
       "tab\there", "esc\033[2J", "n" * 4096]


@ctl.served
def any_name_is_one_label(server):
    args = []
    for name in ODD:
        args += ["--export", "name=%s,driver=memory,size=1M" % name.replace(",", ",,")]
    with server(args=args) as s, s.operator() as o:
        page = Page(s)
        assert set(page.by("platter_export_open", "export")) == set(ODD)
        assert sorted(e["name"] for e in o.exports()) == sorted(ODD)
        for name in ODD:
            with nbdraw.connect(s.address, name) as c:
                c.read(0, 512)
            assert Page(s).get("platter_export_requests_total", export=name, kind="read") == 1


@ctl.served
def a_name_that_is_no_text_is_shown_as_text(server):
    with server(args=["--export", b"name=a\xff\xfeb,driver=memory,size=1M"]) as s, \
            s.operator() as o:
        assert [e["name"] for e in o.exports()] == ["a\\xff\\xfeb"]
        assert set(Page(s).by("platter_export_open", "export")) == {"a\\xff\\xfeb"}


@ctl.served
def a_retired_export_is_no_second_series(server):
    conf = server.path("platter.conf")

    def write(size):
        with open(conf, "w") as f:
            f.write(f"[export a]\ndriver=memory\nsize={size}\n")

    write("1M")
    with server(args=["-c", conf]) as s, s.operator() as o, nbdraw.connect(s.address, "a") as c:
        c.read(0, 512)
        write("2M")
        o.ask("reload")
        page = Page(s)
        assert page.get("platter_export_size_bytes", export="a") == 2 * MiB
        assert page.by("platter_export_requests_total", "kind", export="a") == {}
        assert page.get("platter_retired_exports") == 1
        c.read(0, 512)
        shown = sorted((e["retired"], e["operations"]["read"]["count"]) for e in o.exports())
        assert shown == [(False, 0), (True, 2)]


# ---- HTTP ----------------------------------------------------------------------------------------


@ctl.served
def only_get_of_the_page_is_answered(server):
    with server(args=MEMORY) as s:
        status, headers, _ = s.http().ask()
        assert status == 200
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        for url in ("/", "/metrics/", "/metricsx", "/../metrics", "//metrics", "/Metrics"):
            assert s.http().ask(url=url)[0] == 404, url
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            status, headers, _ = s.http().ask(method)
            assert status == 405 and headers["Allow"] == "GET", method
        assert s.http().ask("GET", body=b"x" * 100000)[0] == 200
        assert s.http().ask("GET", "/metrics?x=y")[0] == 200


@ctl.served
def a_scraper_keeps_its_connection(server):
    with server(args=MEMORY) as s:
        h = s.http()
        for _ in range(20):
            status, _, text = h.ask()
            assert status == 200 and parse(text)
            first = h.sock
            assert first is not None and h.sock is first


@ctl.served
def metrics_are_served_over_tcp(server):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with server(args=MEMORY, metrics="127.0.0.1:%d" % port):
        h = http.client.HTTPConnection("127.0.0.1", port, timeout=ctl.PATIENCE_S)
        h.request("GET", "/metrics")
        assert parse(h.getresponse().read().decode())
        said = server.refusal(args=MEMORY, metrics="127.0.0.1:%d" % port)
        assert str(port) in said, said


@ctl.served
def http_clients_are_bounded_and_in_nobodys_way(server):
    with server(args=MEMORY) as s, nbdraw.connect(s.address, "a") as c:
        c.read(0, 512)
        before = descriptors(s)
        crowd = []
        for i in range(100):
            h = socket.socket(socket.AF_UNIX)
            h.connect(s.metrics)
            with contextlib.suppress(ConnectionError):
                h.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" if i % 2 else b"")
            crowd.append(h)
        c.read(0, 512)
        with s.operator() as o:
            assert "version" in o.ask("version")
        assert descriptors(s) <= before + 40
        for h in crowd:
            h.close()
        until(lambda: descriptors(s) == before, "they are forgotten")
        assert parse(s.page())


@ctl.served
def an_http_client_that_does_not_read_is_in_nobodys_way(server):
    args = []
    for i in range(200):
        args += ["--export", "name=%d%s,driver=memory,size=1M" % (i, "x" * 200)]
    with server(args=args) as s, nbdraw.connect(s.address, "0" + "x" * 200) as c:
        assert len(s.page()) > 2 * MiB
        crowd = []
        for _ in range(10):
            h = socket.socket(socket.AF_UNIX)
            h.connect(s.metrics)
            h.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            crowd.append(h)
        assert parse(s.page())
        c.read(0, 512)
        assert s.http().ask(url="/")[0] == 404
        for h in crowd:
            h.close()


@ctl.served(slow=True)
def a_silent_http_client_is_dropped(server):
    with server(args=MEMORY) as s:
        before = descriptors(s)
        h = socket.socket(socket.AF_UNIX)
        h.connect(s.metrics)
        h.sendall(b"GET /met")
        h.settimeout(3 * ctl.PATIENCE_S)
        while h.recv(4096):     # it may be told why
            pass
        assert descriptors(s) == before


GARBAGE = [     # and the status that it gets, or None
    (b"\0" * 1000, None),
    (b"GET\r\n\r\n", None),
    (os.urandom(5000), None),
    (b"GET /metrics HTTP/9.9\r\n\r\n", 505),
    (b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n", 414),
    (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n", 431),
    (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 405),
    (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
]


@ctl.served
def garbage_ends_its_own_connection_alone(server):
    with server(args=MEMORY) as s:
        for data, status in GARBAGE:
            with socket.socket(socket.AF_UNIX) as h:
                h.settimeout(ctl.PATIENCE_S)
                h.connect(s.metrics)
                with contextlib.suppress(ConnectionError):
                    h.sendall(data)
                if status:
                    assert h.recv(12) == b"HTTP/1.1 %d" % status
            assert parse(s.page())


tap.main()
