"""tree - the files that the house rules are about."""

import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tap

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# tests/ last: the others are the product.
FOLDERS = ("core", "plugin", "scsi-emu", "server", "tools", "tests")


def c_files(folders=FOLDERS, endings=(".c", ".h")):
    """Paths from the top of the tree."""
    found = [os.path.relpath(path, SOURCE)
             for folder in folders
             for path in glob.glob(f"{SOURCE}/{folder}/**", recursive=True)
             if path.endswith(endings)]
    assert found, f"no C files below {SOURCE}"
    return sorted(found)


def tracked_files():
    """What git has in a checkout; a tarball has no such list."""
    def git(*words):
        return subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True)

    top = git("rev-parse", "--show-toplevel")
    if top.returncode != 0 or os.path.realpath(top.stdout.strip()) != os.path.realpath(SOURCE):
        tap.skip("this is not a git checkout")
    names = [n for n in git("ls-files").stdout.splitlines()
             if os.path.isfile(os.path.join(SOURCE, n))]
    assert names, "git tracks no file here"
    return names


def read(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def nothing(faults):
    """Fails with one line for each fault."""
    for fault in faults:
        print(fault)
    assert not faults, f"{len(faults)} against the rule"
