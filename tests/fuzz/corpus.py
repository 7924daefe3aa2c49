#!/usr/bin/python3
"""Inputs that fuzzers have found worth keeping are survived by this build, too."""

import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tap

SOURCE = os.environ.get("PLATTER_SRC") or os.path.join(os.path.dirname(__file__), "..", "..")
BUILD = os.environ.get("PLATTER_BUILD") or "."
CORPORA = sorted(glob.glob(SOURCE + "/tests/fuzz/corpus/*"))


def replay(*paths, name):
    # What is replayed runs in one process, so that what one input leaves behind meets the next.
    return subprocess.run([f"{BUILD}/tests/fuzz/{name}", *paths], text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def add_case(folder):
    name = os.path.basename(folder)

    def survives():
        inputs = os.listdir(folder)
        ended = replay(folder, name=name)
        assert ended.returncode == 0, f"{ended.returncode}\n{ended.stderr[-3000:]}"
        assert int(ended.stdout) == len(inputs) > 0, (ended.stdout, len(inputs))

    survives.__name__ = f"{name}_survives_what_was_kept"
    tap.test(survives)


for corpus in CORPORA:
    add_case(corpus)


@tap.test
def every_fuzzer_has_inputs():
    programs = {os.path.basename(path)[:-2] for path in glob.glob(SOURCE + "/tests/fuzz/*.c")
                if "LLVMFuzzerTestOneInput(const" in open(path).read()}
    assert programs and programs == {os.path.basename(folder) for folder in CORPORA}


@tap.test
def an_input_that_cannot_be_read_is_told():
    ended = replay("/nonexistent/input", name=os.path.basename(CORPORA[0]))
    assert ended.returncode == 1 and "/nonexistent/input" in ended.stderr


tap.main()
