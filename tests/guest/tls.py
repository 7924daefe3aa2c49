#!/usr/bin/python3
"""TLS where the kernel can encrypt for the server."""

import glob
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import guest
import pki
from guest import served, tap
from server import Platterd

# Of GnuTLS in a client: what it is not to speak.
OVERRIDES = {"1.3": "", "1.2": "[overrides]\ndisabled-version = tls1.3\n"}


def copy_by_tls(version, *steps, modules=()):
    """A disk is written and read again; then the steps."""
    if shutil.which("certtool") is None:
        tap.skip("certtool is not installed")
    with tempfile.TemporaryDirectory() as top:
        pki.make(top)
        with open(top + "/overrides", "w") as f:
            f.write(OVERRIDES[version])
        uri = f"nbds://127.0.0.1:10809/?tls-certificates={top}/client"
        guest.run(guest.NULL_BLK,
                  f"also='--tcp 127.0.0.1:10809 --tls required --tls-certificates {top}/server'",
                  "serve /dev/nullb0 cache=none",
                  f"export GNUTLS_SYSTEM_PRIORITY_FILE={top}/overrides",
                  f"head -c 1000000 {guest.PLATTERD} >/tmp/data",
                  f"for n in 1 2; do nbdcopy /tmp/data '{uri}'; nbdcopy '{uri}' /tmp/back; done",
                  "head -c 1000000 /tmp/back | cmp - /tmp/data",
                  *steps, "unserve",
                  programs=["nbdcopy", top + "/overrides", *glob.glob(top + "/server/*"),
                            *glob.glob(top + "/client/*")], modules=modules)


def counted(name, least):
    return f"[ $(awk '/^{name}\\>/ {{ print $2 }}' /proc/net/tls_stat) -ge {least} ]"


@served(on=[Platterd])
def the_kernel_encrypts_for_both_versions_of_tls():
    for version in OVERRIDES:
        copy_by_tls(version, counted("TlsTxSw", 4), "! " + counted("TlsCurrTxSw", 1),
                    modules=["tls", "gcm", "ctr", "ghash_generic"])


@served(on=[Platterd])
def a_kernel_that_cannot_is_done_without():
    copy_by_tls("1.3", "[ ! -e /proc/net/tls_stat ]")


tap.main()
