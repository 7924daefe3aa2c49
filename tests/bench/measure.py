#!/usr/bin/python3
"""`platter bench` measures what it is asked to, touches nothing else, and tells what it could not.
How fast anything is, no test judges."""

import functools
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import server
import tap
from server import PATIENCE, PRELOAD, Platterd, served, until

PLATTER = os.path.join(server.BUILD, "platter")
ALL, PARTS_MISSING, NOTHING = 0, 1, 2
MiB = 1 << 20
SHORT = ["--time", "20ms", "--size", "4M"]
# A sanitizer has to come first in nbdkit, which is started here without it.
INSTALLED = "[!p]*" if PRELOAD else "*"
READ, FUA, FLUSH = "randread-4k-1x2", "randwrite-fua-4k-1x2", "randwrite-flush-4k-1x2"


def start(*words):
    return subprocess.Popen([PLATTER, "bench", *words], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def bench(*words, status=ALL):
    """What it says. It has to end with that status."""
    process = start(*words)
    said = process.communicate(timeout=50 * PATIENCE)[0]
    assert process.returncode == status, "status %d: %s" % (process.returncode, said)
    return said


def in_a_folder(case=None, **how):
    """Registers a case that gets an empty folder, and holds it to leave it so."""
    if case is None:
        return functools.partial(in_a_folder, **how)

    def run():
        with tempfile.TemporaryDirectory(prefix="platter-") as folder:
            case(folder)
    run.__name__ = case.__name__
    tap.test(run, **how)
    return case


def figures(*words, status=ALL):
    """What the file of figures has: {target: {load: [samples]}}, and the whole."""
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        bench(*words, "--json", f.name, status=status)
        whole = json.load(f)
    titles = ["/".join(filter(None, (t["name"], t["mode"], t["step"]))) for t in whole["targets"]]
    loads = [load["name"] for load in whole["loads"]]
    assert len(set(titles)) == len(titles) and len(set(loads)) == len(loads)
    return {title: {load: whole["samples"][i][k] for i, load in enumerate(loads)}
            for k, title in enumerate(titles)}, whole


def sound(sample, has_server=True):
    """Whether its figures can be those of a measurement."""
    latency = [sample["latency_us"][q] for q in ("p50", "p90", "p99", "p99.9", "max")]
    assert sample["rate"] > 0 and 0 < latency[0], sample
    assert latency == sorted(latency), latency
    assert sample["client_cpu_us"] > 0 and 0 <= sample["busy"] <= 1, sample
    assert (sample["server_cpu_us"] is not None) == has_server, sample
    assert not has_server or sample["server_cpu_us"] > 0, sample


# ---- what is measured ----------------------------------------------------------------------------

@in_a_folder
def each_pair_is_measured_in_each_repeat(folder):
    targets = ["raw/none", "nbd/none", "iscsi/auto"] + ([] if PRELOAD else ["plugin/none"])
    by_target, whole = figures(*SHORT, "--repeats", "2", "--cells", READ + "," + FUA,
                               "--targets", ",".join(targets), folder)
    assert sorted(by_target) == sorted(targets), by_target.keys()
    for target, by_load in by_target.items():
        assert sorted(by_load) == [READ, FUA]
        for samples in by_load.values():
            assert len(samples) == 2
            for sample in samples:
                sound(sample, has_server=target != "raw/none")
    assert whole["repeats"] == 2 and whole["size"] == 4 * MiB and whole["seconds"] == 0.02
    assert os.listdir(folder) == []


@in_a_folder(slow=True)
def each_target_that_is_installed_is_measured(folder):
    by_target, whole = figures(*SHORT, "--repeats", "1", "--cells", ",".join((READ, FUA, FLUSH)),
                               "--targets", INSTALLED, folder)
    for target, how in zip(by_target, whole["targets"]):
        for samples in by_target[target].values():
            sound(samples[0], has_server=how["kind"] != "raw")


@in_a_folder
def the_table_of_stable_writes_adds_one_thing_at_a_time(folder):
    by_target, whole = figures("--time", "10ms", "--size", "4M", "--repeats", "1", "--cells",
                               "randwrite-fua-4k-1x16", "--targets", "steps", folder)
    for name in ("nbd", "iscsi"):
        for mode in ("none", "directsync"):
            steps = [t["step"] for t in whole["targets"] if (t["name"], t["mode"]) == (name, mode)]
            assert steps == ["write and flush", "native FUA", "4 connections", "polling"], steps
    for by_load in by_target.values():
        for samples in by_load.values():
            sound(samples[0])


@in_a_folder
def its_own_ceiling_is_measured_in_the_same_run(folder):
    by_target, whole = figures(*SHORT, "--repeats", "1", "--targets", "nbd/none,ceiling",
                               "--cells", READ, folder)
    assert sorted(by_target) == ["ceiling-iscsi/nothing", "ceiling-nbd/nothing", "nbd/none"]
    assert all("driver=null" in t["command"] for t in whole["targets"] if t["kind"] == "ceiling")
    for by_load in by_target.values():
        sound(by_load[READ][0])


@in_a_folder
def the_machine_is_described(folder):
    whole = figures(*SHORT, "--repeats", "1", "--targets", "raw/none", "--cells", READ, folder)[1]
    facts = {fact["name"]: fact["value"] for fact in whole["facts"]}
    assert os.uname().release in facts["kernel"] and facts["processors"].startswith(
        str(os.cpu_count())), facts
    assert "file system" in facts and "others" in facts, facts


@served(on=[Platterd])
def a_server_that_is_there_is_measured_as_it_is(server):
    with server("driver=memory", iscsi=True, size="8M") as s:
        by_target, _ = figures(*SHORT, "--repeats", "1", "--cells", READ, "--targets", "given",
                               s.uri, s.iscsi_uri)
        assert sorted(by_target) == sorted([s.uri, s.iscsi_uri])
        for by_load in by_target.values():
            sound(by_load[READ][0], has_server=False)


@served(on=[Platterd])
def each_job_has_a_connection_of_its_own(server):
    with server("driver=memory", size="8M", args=["--max-connections", "3"]) as s:
        words = [*SHORT, "--repeats", "1", "--targets", "given", s.uri, "--cells"]
        bench(*words, "randread-4k-3x2")
        bench(*words, "randread-4k-4x2", status=NOTHING)


@served(on=[Platterd])
def a_target_that_is_busy_is_asked_again(server):
    write = "randwrite-256k-4x64"
    with server(server.image(64 * MiB), iscsi=True, args=["--memory", "64M"]) as s:
        by_target, _ = figures("--quick", "--overwrite", "--cells", write, "--targets", "given",
                               s.iscsi_uri)
        sound(by_target[s.iscsi_uri][write][0], has_server=False)


# ---- what is not touched -------------------------------------------------------------------------

@in_a_folder
def a_file_that_is_there_is_written_only_when_that_is_asked_for(folder):
    path = os.path.join(folder, "disk.img")
    with open(path, "wb") as f:
        f.write(b"precious" * (MiB // 8))
    words = [*SHORT, "--repeats", "1", "--targets", "nbd/writeback", path]
    said = bench("--cells", FUA, *words, status=NOTHING)
    assert "disk.img would be overwritten" in said and "--overwrite" in said, said
    bench("--cells", READ, *words)
    with open(path, "rb") as f:
        assert f.read() == b"precious" * (MiB // 8)
    bench("--cells", FUA, "--overwrite", *words)
    with open(path, "rb") as f:
        assert f.read() != b"precious" * (MiB // 8)
    assert os.path.getsize(path) == MiB and os.listdir(folder) == ["disk.img"]


@served(on=[Platterd])
def a_server_that_is_there_is_written_only_when_that_is_asked_for(server):
    with server("driver=memory", size="8M") as s:
        words = [*SHORT, "--repeats", "1", "--targets", "given", "--cells", FUA, s.uri]
        assert "would be overwritten" in bench(*words, status=NOTHING)
        bench("--overwrite", *words)


def children(pid):
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            return set(f.read().split())
    except FileNotFoundError:
        return set()


@in_a_folder
def control_c_keeps_what_was_measured(folder):
    seen = set()
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        process = start("--time", "20ms", "--size", "4M", "--repeats", "1000", "--targets",
                        "nbd/none", "--cells", READ, "--json", f.name, folder)
        # A server and a client each time.
        until(lambda: seen.update(children(process.pid)) or len(seen) > 6, "it measures")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20 * PATIENCE)[0]
        assert process.returncode == PARTS_MISSING, "status %d: %s" % (process.returncode, said)
        whole = json.load(f)
    assert whole["interrupted"] is True
    [[samples]] = whole["samples"]
    assert samples[0] is not None and None in samples
    sound(samples[0])
    assert os.listdir(folder) == []
    assert not any(os.path.exists("/proc/" + pid) for pid in seen), "processes are left"


@in_a_folder
def nothing_is_left_behind(folder):
    before = set(glob.glob("/tmp/platter-bench-*"))
    bench(*SHORT, "--repeats", "1", "--targets", "nbd/none,iscsi/none", "--cells", READ, folder)
    assert set(glob.glob("/tmp/platter-bench-*")) <= before
    assert os.listdir(folder) == []


# ---- what could not be measured ------------------------------------------------------------------

@in_a_folder
def who_is_not_installed_is_told_and_the_others_are_measured(folder):
    with tempfile.TemporaryDirectory(prefix="platter-") as root:
        words = [*SHORT, "--repeats", "1", "--targets", "nbd/none,nbd-server", "--cells", READ,
                 "--peers-root", root, folder]
        assert "nbd-server is not installed" in bench(*words, status=PARTS_MISSING)
        by_target, whole = figures(*words, status=PARTS_MISSING)
    assert by_target["nbd-server/writeback"][READ] == [None]
    assert [t["absent"] for t in whole["targets"]] == [None, "nbd-server is not installed"]
    sound(by_target["nbd/none"][READ][0])


@served(on=[Platterd])
def what_a_server_cannot_is_told_and_the_rest_is_measured(server):
    with server(server.image(8 * MiB), cache="unsafe") as s:
        words = [*SHORT, "--repeats", "2", "--overwrite", "--targets", "given", "--cells",
                 READ + "," + FUA, s.uri]
        said = bench(*words, status=PARTS_MISSING)
        assert said.count("platter bench: " + FUA) == 1, said
        assert re.search(rf"\n  {FUA} by \S+: .*the server does not offer FUA\n", said), said
        by_target, whole = figures(*words, status=PARTS_MISSING)
    by_load = by_target[s.uri]
    assert by_load[FUA] == [None, None]
    failed, = whole["failures"]
    assert whole["loads"][failed["load"]]["name"] == FUA and "FUA" in failed["why"], failed
    sound(by_load[READ][1], has_server=False)


@in_a_folder
def a_wrong_command_line_is_refused_with_the_reason(folder):
    """Before anything is measured."""
    os.mkfifo(folder + "/fifo")
    for words, reason in [
            ([], "name a directory, or what is to be measured"),
            ([folder, folder], "one PATH at a time"),
            ([folder + "/none"], "/none: No such file or directory"),
            ([folder + "/fifo"], "/fifo is no directory, file or block device"),
            (["--json", folder + "/none/a", folder], "/none/a: No such file or directory"),
            (["--html", "/proc/a", folder], "/proc/a: No such file or directory"),
            (["--json", folder + "/a", "--cells", READ, "--targets", "given", "nbd://localhost:1"],
             "Connection refused"),
            (["--table", "x", folder], "osync|matrix|mixed|depth"),
            (["--cells", "randreed-4k-1x1", folder], "'randreed-4k-1x1': no row"),
            (["--cells", "read-fua-4k-1x1", folder], "only writes are stable"),
            (["--cells", "read-4k-1x999", folder], "depth to 256"),
            (["--targets", "nbd,nobody", folder], "'nbd,nobody': word 2 is no target"),
            (["--targets", "nbd", "nbd://localhost"], "nbd needs a PATH"),
            (["--repeats", "0", folder], "--repeats is from 1 to 1000"),
            (["--time", "1ms", folder], "--time is from 10ms to 3600s"),
            (["--size", "1", folder], "--size is at least 1M"),
            (["--size", "1P", folder], "no room for a scratch file"),
            (["--targets", "given", "nbds://localhost"], "TLS is not spoken here"),
            (["--from", "x.json", folder], "--from measures nothing")]:
        said = bench(*words, status=NOTHING)
        assert reason in said and said.startswith("platter bench: "), said
    assert os.listdir(folder) == ["fifo"]
    os.unlink(folder + "/fifo")


@tap.test
def rows_and_targets_can_be_listed():
    said = bench("--list", "--table", "matrix", "--cells", "*-4k-2x128")
    for word in ("randread-4k-2x128", "qemu-nbd/none+native", "tgt/writeback", "steps: native FUA",
                 "osync", "depth"):
        assert word in said, said
    assert "-1x" not in said


tap.main()
