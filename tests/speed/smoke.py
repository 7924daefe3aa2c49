#!/usr/bin/python3
"""The speed comparison works. How fast anything is, no test judges."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import server
import tap

CELL = "plugin-auto-fua-4k-1x16"


@tap.test
def compare_measures_a_cell_and_tells_it_well_formed():
    compare = os.path.join(server.SOURCE, "tests/speed/compare")
    folder = server.Factory(server.Nbdkit)
    try:
        figures = folder.path("figures.json")
        done = subprocess.run([compare, "--quick", "--size", "8M", "--cells", CELL,
                               "--json", figures], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(figures) as f:
            told = json.load(f)
    finally:
        folder.close()

    header, line = done.stdout.splitlines()
    assert header.split()[:5] == ["cell", "goals", "ours", "peer", "ratio"], header
    name, goal, *rates = line.split()[:5]
    assert (name, goal) == (CELL, "2") and all(float(r) > 0 for r in rates), line

    assert told["size"] == 8 << 20 and told["quick"] is True
    [row] = told["rows"]
    assert row["cell"] == CELL and row["verdict"] == "-", row
    for who in ("ours", "peer"):
        [measured] = row[who]
        assert measured["iops"] > 0 and measured["server_us"] > 0, measured
        assert 0 < measured["p50_us"] <= measured["p99_us"], measured
        assert abs(measured["mib_s"] * 256 - measured["iops"]) < 1 + measured["iops"] / 100, measured
    assert row["ratio"] == row["ours"][0]["iops"] / row["peer"][0]["iops"]


tap.main()
