#!/usr/bin/python3
"""The goals of speed are judged by the figures that are there, and by nothing else."""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import server
import tap

GOALS = os.path.join(server.SOURCE, "tests/speed/goals")
ROW = "randwrite-fua-4k-1x16"


def goals(*words, status):
    done = subprocess.run([GOALS, *words], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def judged(rates, cpus, row=ROW, status=0):
    """What is said of targets with such rates, by repeat, and such microseconds of CPU."""
    figures = {
        "targets": [dict(zip(("name", "mode"), name.split("/")), step=None) for name in rates],
        "loads": [{"name": row}],
        "samples": [[[rate and {"rate": rate, "server_cpu_us": cpus[name]} for rate in each]
                     for name, each in rates.items()]],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(figures, f)
        f.flush()
        return goals(f.name, status=status)


@tap.test
def a_cell_reaches_its_goals_or_misses_them():
    cpus = {"nbd/auto": 5, "qsd/writeback+threads": 10, "nbd-server/writeback": 99}
    rates = {"nbd/auto": [200, 220, 240], "qsd/writeback+threads": [100, 110, 90],
             "nbd-server/writeback": [50, 60, 70]}
    said = judged(rates, cpus).splitlines()[1].split()
    assert said[2:5] == ["2", "CPU", "0.6"] and said[5:] == [
        "220", "100", "2.20", "2.00-2.67", "reached", "-", "0.50", "qsd/writeback+threads"], said
    assert "missed" in judged({**rates, "nbd/auto": [190, 190, 500]}, cpus, status=1)
    assert "missed" in judged(rates, {**cpus, "nbd/auto": 7}, status=1)


@tap.test
def no_slower_is_a_tie_where_it_cannot_be_told():
    rates = {"plugin/auto": [95, 95], "nbdkit-file/writeback": [100, 100]}
    cpus = dict.fromkeys(rates)
    assert " tie " in judged(rates, cpus, row="randread-4k-1x1")
    assert " missed " in judged({**rates, "plugin/auto": [80, 80]}, cpus,
                                row="randread-4k-1x1", status=1)


@tap.test
def what_was_not_measured_is_not_judged():
    rates = {"nbd/none": [100, None], "qsd/none+native": [100, 100]}
    assert "no cell with a target of ours and a peer" in judged(rates, dict.fromkeys(rates),
                                                                status=2)


@tap.test
def the_rows_are_those_of_the_cells():
    rows = goals("--rows", "--cells", "plugin/none", status=0).strip().split(",")
    listed = [line.split()[1] for line in goals("--list", "--cells", "plugin/none",
                                                status=0).splitlines()]
    assert rows == listed and ROW in rows, (rows, listed)
    assert "no cell is like nothing" in goals("--list", "--cells", "nothing", status=2)


tap.main()
