"""examined - what `platter doctor` says.

    done = examined.run("disk.img")         # a process that has ended; what it said is printed
    report = examined.Report(text)          # of --json
    report.facts["disk"]["FUA"], report.found
"""

import json
import os
import subprocess

from server import BUILD, PATIENCE

PLATTER = os.path.join(BUILD, "platter")
HEALTHY, ADVICE, UNSAFE, CANNOT = 0, 1, 2, 3
VERDICTS = ("healthy", "advice", "unsafe")      # by status


def run(*words, before=()):
    """before: words of the command line before it."""
    done = subprocess.run([*before, PLATTER, "doctor", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=50 * PATIENCE)
    print(done.stdout)
    return done


class Report:
    """facts: {group: {name: value}}; found: what was found, the first thing first; all: the
    object itself. What holds for every report is checked."""

    def __init__(self, text):
        self.all = json.loads(text)
        self.facts = {}
        for fact in self.all["facts"]:
            self.facts.setdefault(fact["group"], {}).setdefault(fact["name"], fact["value"])
        findings = self.all["findings"]
        self.found = [f["what"] for f in findings]
        order = [(VERDICTS.index(f["severity"]), f["worth"]) for f in findings]
        assert order == sorted(order, reverse=True), order
        assert self.all["verdict"] == VERDICTS[order[0][0]], (self.all["verdict"], order)
        assert all(f["what"] and f["why"] and f["remedy"] != "" for f in findings), findings
