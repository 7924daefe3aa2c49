#!/usr/bin/python3
"""What `platter bench` tells of figures: the same whether they were just measured or are read from a
file, on a page that needs nothing else; and a file that is no such result is refused with its name."""

import copy
import html.parser
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import server
import tap
from server import PATIENCE

PLATTER = os.path.join(server.BUILD, "platter")
NOTHING = 2
ROWS = [("randread-4k-1x%d" % depth, depth) for depth in (1, 4, 16)]
QUANTILES = ("p50", "p90", "p99", "p99.9", "max")


def target(name, mode, kind, step=None, absent=None, iscsi=False):
    return {"name": name, "mode": mode, "step": step, "kind": kind, "direct": False,
            "iscsi": iscsi, "command": name + " --serve", "absent": absent}


def sample(rate):
    return {"rate": rate, "server_cpu_us": 5.5, "client_cpu_us": 2.0, "busy": 0.5, "steady": True,
            "latency_us": {q: 100.0 * (n + 1) for n, q in enumerate(QUANTILES)}}


def result(rates=((1000, 2000, 1500), (3000, 6000, 5000), (3000, 6100, 9000)), repeats=5):
    """Of ceiling, ours and a peer; in each repeat all are one percent faster."""
    return {
        "table": "own", "command": "platter bench <x> & y", "repeats": repeats, "seconds": 1.0,
        "size": 1 << 20, "seed": 7, "interrupted": False,
        "facts": [{"name": "kernel", "value": "Linux <6> & more"}],
        "targets": [target("ceiling-nbd", "nothing", "ceiling"), target("nbd", "auto", "ours"),
                    target("other", "", "peer"),
                    target("tgt", "none", "peer", absent="it is not installed")],
        "loads": [{"name": name, "block": 4096, "depth": depth, "jobs": 1} for name, depth in ROWS],
        "samples": [[[sample(rate * 1.01 ** n) for n in range(repeats)] for rate in row]
                    + [[None] * repeats] for row in rates],
        "failures": [],
    }


def tell(what, *words):
    """What it says of a file of that text or result, as a whole."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(what if isinstance(what, str) else json.dumps(what))
        f.flush()
        done = subprocess.run([PLATTER, "bench", "--from", f.name, *words], text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=20 * PATIENCE)
        return done, f.name


def told(what, *words):
    done, _ = tell(what, *words)
    assert done.returncode in (0, 1), done
    return done.stdout


# ---- the table -----------------------------------------------------------------------------------

@tap.test
def a_file_tells_the_same_as_the_run_that_wrote_it():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.json")
        ran = subprocess.run(
            [PLATTER, "bench", "--time", "20ms", "--size", "4M", "--repeats", "2", "--cells",
             "randread-4k-1x2,randwrite-fua-4k-1x2", "--targets", "raw/none,nbd/none,nbd/auto",
             "--json", path, folder], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            timeout=50 * PATIENCE)
        assert ran.returncode == 0
        again = subprocess.run([PLATTER, "bench", "--from", path], stdout=subprocess.PIPE, text=True)
        assert ran.stdout.endswith(again.stdout) and "randread-4k-1x2" in again.stdout, again.stdout


@tap.test
def ratios_are_those_to_the_best_peer():
    said = told(result())
    rows = re.findall(r"nbd/auto +\S+k +\d+% +([\d.]+) +([\d.]+)-([\d.]+)", said)
    assert [float(r[0]) for r in rows] == [1.33, 1.2, 0.68], said
    assert "(ratio: to other)" in said and "tgt/none: it is not installed" in said


@tap.test
def iscsi_is_compared_with_the_best_peer_that_speaks_it():
    both = result()
    both["targets"][0] = target("iscsi", "auto", "ours", iscsi=True)
    both["targets"][3] = target("tgt", "none", "peer", iscsi=True)
    for row in both["samples"]:
        row[0], row[3] = row[1], [sample(s["rate"] / 2) for s in row[1]]
    said = told(both)
    assert re.findall(r"iscsi/auto +\S+k +\d+% +([\d.]+) ", said) == ["2.00"] * 3, said
    assert [float(r) for r in re.findall(r"nbd/auto +\S+k +\d+% +([\d.]+) ", said)] \
        == [1.33, 1.2, 0.68], said
    assert said.count("(ratio: to other; of iSCSI to tgt/none)") == 3, said


@tap.test
def what_failed_is_told_with_the_reason():
    part = result()
    part["failures"] = [{"load": 1, "target": 1, "why": "it <hung> up"}]
    part["samples"][1][1] = [None] * 5
    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "page")
        assert "\n  randread-4k-1x4 by nbd/auto: it <hung> up\n" in told(part, "--html", page)
        with open(page) as f:
            assert "failed, and not tried again: it &lt;hung&gt; up" in f.read()


@tap.test
def what_chance_may_have_made_is_not_significant():
    noisy = result()
    rng = random.Random(tap.seed())
    for row in noisy["samples"]:
        for n, one in enumerate(row[1]):
            one["rate"] = row[2][n]["rate"] * rng.choice((0.7, 0.8, 1.3, 1.4) if n else (1.3,))
    row = noisy["samples"][0]
    for n, factor in enumerate((0.7, 1.4, 0.8, 1.3, 1.0)):
        row[1][n]["rate"] = row[2][n]["rate"] * factor
    first = told(noisy).split("randread-4k-1x4")[0]
    assert re.search(r"nbd/auto.* n\.s\.", first), first
    assert " n.s." not in told(result()).split("\nrate:")[0]


@tap.test
def the_depth_that_is_enough_is_told():
    said = told(result())
    assert re.search(r"less than a tenth more:\n(.*\n)*  randread-4k-1x4  nbd/auto\n", said), said


@tap.test
def an_interrupted_run_is_told_as_such():
    part = result()
    part["interrupted"] = True
    part["samples"][2] = [[None] * 5 for _ in range(4)]
    assert "Interrupted" in told(part)


# ---- the page ------------------------------------------------------------------------------------

class Page(html.parser.HTMLParser):
    VOID = {"meta", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)


def page_of(what):
    with tempfile.NamedTemporaryFile(suffix=".html") as f:
        told(what, "--html", f.name)
        return f.read().decode()


@tap.test
def the_page_needs_nothing_but_itself():
    text = page_of(result())
    page = Page()
    page.feed(text)
    assert page.open == [] and "script" not in page.seen and "link" not in page.seen
    assert not [a for a in page.attributes if a[0] in ("src", "href", "srcset")]
    assert "url(" not in text and "@import" not in text and "://" not in text


@tap.test
def the_page_has_plots_of_all_that_was_measured():
    text = page_of(result())
    plots = [xml.fromstring(plot) for plot in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert len(plots) == 3      # rates, latencies, ratios
    for plot, dots in zip(plots, (6, 12, 3)):      # not of the ceiling
        assert len(plot.findall("circle")) == dots, dots
        for dot in plot.findall("circle"):
            assert 0 <= float(dot.get("cx")) <= 560 and 0 <= float(dot.get("cy")), dot.attrib


@tap.test
def whatever_a_page_tells_of_is_text():
    odd = result()
    for one in odd["targets"]:
        one["name"] = "<u>%s&" % one["name"]
    text = page_of(odd)
    assert "<u>" not in text and "&lt;u&gt;nbd&amp;/auto" in text
    assert "&lt;x&gt; &amp; y" in text and "Linux &lt;6&gt;" in text
    for plot in re.findall(r"<svg.*?</svg>", text, re.S):
        xml.fromstring(plot)


# ---- files that are none -------------------------------------------------------------------------

@tap.test
def what_is_no_result_is_refused_with_file_and_place():
    def without(*path):
        what = result()
        at = what
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]
        return what
    for what, why in (("", "line"), ("{", "line 1"), ("[]", "no result of platter bench"),
                      (without("seed"), "seed"), (without("loads", 0, "name"), "loads[0]"),
                      (without("targets", 1, "kind"), "targets[1]"),
                      (without("samples", 2, 1, 3), "samples[2]"),
                      (without("samples", 1), "do not go together"),
                      (without("samples", 0, 0, 0, "rate"), "samples[0]"),
                      (result(rates=((1, 1e-320, 1),) * 3), "samples[0]"),
                      (result(rates=((1, 1, 1e300),) * 3), "samples[0]"),
                      ({**result(), "repeats": 0}, "0 repeats"),
                      ({**result(), "repeats": -1}, "repeats")):
        done, name = tell(what)
        assert done.returncode == NOTHING and name in done.stderr and why in done.stderr, (why, done)
        assert done.stdout == ""


@tap.test
def whatever_is_in_the_file_it_is_told_or_refused():
    rng = random.Random(tap.seed())
    strange = [None, -1, 0, 1e308, 1e-308, 2 ** 63 - 1, "", "x" * 300, [], {}, True, "randread-4k-1x0"]

    def spoil(at):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(at[key], (dict, list)) and rng.random() < 0.8:
            spoil(at[key])
        else:
            at[key] = rng.choice(strange)
    for _ in range(150):
        what = copy.deepcopy(result(repeats=2))
        for _ in range(rng.randrange(1, 4)):
            spoil(what)
        done, _ = tell(what, "--html", "/dev/null")
        assert done.returncode in (0, 1, NOTHING), (done, what)
        assert done.returncode != NOTHING or done.stderr, what


tap.main()
