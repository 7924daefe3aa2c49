"""guest - a server in a Linux guest, and what it asks of the guest's block devices.

    output = guest.run(guest.NULL_BLK, "serve /dev/nullb0 cache=none",
                       "ask nullb0 write+fua:0:4096")
    assert guest.asked(output) == ["write+fua", "reply write+fua:0:4096"]

The guest has devices that this machine may lack, and a kernel that may be watched. A case
that is `served` runs once for each front end.
"""

import functools
import os
import re
import subprocess
from typing import NamedTuple

import dmlog
import tap
from server import BUILD, FRONT_ENDS, PLATTERD, PLUGIN, SOURCE, Nbdkit

GUEST = os.path.join(SOURCE, "tests", "guest", "guest")
CLIENT, WITNESS = (os.path.join(BUILD, "tests", "guest", name) for name in ("client", "witness"))
IQN = "iqn.2026-11.org.example:disk"
FILE_PLUGIN = "/usr/lib/x86_64-linux-gnu/nbdkit/plugins/nbdkit-file-plugin.so"

# What the steps of a script may call.
FUNCTIONS = f"""
set -eu
tracing=/sys/kernel/tracing
export DM_DISABLE_UDEV=1

# holds WHAT HAS WANTED
holds() {{
	[ "$2" = "$3" ] || {{ echo "$1 is '$2', not '$3'"; exit 1; }}
}}

# null_blk with a volatile write cache: it knows FUA, and loses the cache with its power.
nullb_on() {{ echo 1 >/sys/kernel/config/nullb/nullb0/power; }}
nullb_off() {{ echo 0 >/sys/kernel/config/nullb/nullb0/power; }}
nullb() {{
	mkdir /sys/kernel/config/nullb/nullb0
	for set in size=${{1:-64}} memory_backed=1 discard=1 cache_size=32 blocksize=${{2:-512}}; do
		echo ${{set#*=}} >/sys/kernel/config/nullb/nullb0/${{set%=*}}
	done
	nullb_on
}}

# serve FILE OPTION... : by the front end that the case is for, on $address; platterd gets the
# words of $also, too. serve_by PLUGIN FILE OPTION... : by nbdkit.
address=/tmp/socket
platterd={PLATTERD}
serve() {{ serve_by_$front_end "$@"; }}
serve_by_nbdkit() {{ serve_by {PLUGIN} "$@"; }}
serve_by_iscsi() {{
	address=iscsi://127.0.0.1:3260/{IQN}/0
	also="--iscsi 127.0.0.1:3260 --target {IQN} --state /tmp/state"
	serve_by_platterd "$@"
}}
serve_by() {{ start nbdkit -f -U /tmp/socket -P /tmp/pid "$@"; }}
also=
serve_by_platterd() {{
	local export="name=,path=$1" option
	shift
	for option; do
		export=$export,$option
	done
	start $platterd --foreground --unix /tmp/socket --pidfile /tmp/pid $also --export "$export"
}}
start() {{
	rm -f /tmp/pid /tmp/socket
	"$@" >/tmp/said 2>&1 &
	until [ -s /tmp/pid ]; do
		kill -0 $! 2>/dev/null || {{ cat /tmp/said; exit 1; }}
		sleep 0.02
	done
}}
unserve() {{
	kill $(cat /tmp/pid)
	wait
	cat /tmp/said
}}

# Prints what the export says of itself: the way of its FUA writes, and why.
describe() {{
	nbdkit -v -U - {PLUGIN} "$@" --run true 2>&1 | sed -n "s|.*export $1: ||p"
}}

# slow DISK : /dev/mapper/slow is that disk, whose writes and flushes take 5 ms or more.
slow() {{
	dmsetup create slow --table "0 $(blockdev --getsz $1) delay $1 0 0 $1 0 5"
}}

# record DISK LOG : $recorded is that disk, slowed down and recorded; see dmlog.py. What nobody may
# have yet is recorded before the end, and nothing behind it.
recorded=/dev/mapper/recorded
record() {{
	slow $1
	dmsetup create recorded --table "0 $(blockdev --getsz $1) log-writes /dev/mapper/slow $2"
	record_log=$2
}}
record_mark() {{ dmsetup message recorded 0 mark $1; }}
record_end() {{
	/usr/bin/sync $recorded
	record_mark {dmlog.END}
	until recorded_last | grep -q {dmlog.END}; do sleep 0.05; done
	until dmsetup remove recorded 2>/dev/null; do sleep 0.05; done
}}
recorded_last() {{
	set -- $(dmsetup status recorded)
	/usr/bin/dd if=$record_log iflag=direct skip=$5 count=1 2>/dev/null
}}

# Sends steps to the server.
send() {{ {CLIENT} $address "$@"; }}

# traced DISK COMMAND... : prints what the disk was asked for while the command ran.
traced() {{
	local disk=$1 dev status=0
	shift
	dev=$(cat /sys/block/$disk/dev)
	echo "dev == $((${{dev%:*}} << 20 | ${{dev#*:}}))" >$tracing/events/block/block_rq_issue/filter
	echo 1 >$tracing/events/block/block_rq_issue/enable
	: >$tracing/trace
	"$@" || status=$?
	echo 0 >$tracing/events/block/block_rq_issue/enable
	grep -v '^#' $tracing/trace
	return $status
}}

# ask DISK STEP... : sends steps to the server, traced.
ask() {{
	local disk=$1
	shift
	traced $disk send "$@"
}}
"""


class Disk(NamedTuple):
    """A kind of disk, and what it has to look like in the guest."""
    name: str
    write_cache: str
    fua: int
    modules: tuple = ()
    disks: tuple = ()
    setup: str = ""
    programs: tuple = ()

    def make(self):
        """The steps that make it, and make sure that it is what it is said to be."""
        queue = f"/sys/block/{self.name}/queue"
        return (f"{self.setup}\n"
                f"holds write_cache \"$(cat {queue}/write_cache)\" '{self.write_cache}'\n"
                f"holds fua \"$(cat {queue}/fua)\" {self.fua}")


NULL_BLK = Disk("nullb0", "write back", 1, modules=("null_blk:nr_devices=0",), setup="nullb")
SCSI_DEBUG = Disk("sda", "write back", 1,
                  modules=("sd_mod", "scsi_debug:dev_size_mb=16 delay=0 lbpu=1 lbpws=1"),
                  setup="until [ -b /dev/sda ]; do sleep 0.02; done")
VIRTIO = Disk("vda", "write back", 0, disks=("64M",))
VIRTIO_WRITE_THROUGH = Disk("vda", "write through", 0, disks=("64M,write-cache=off",))


def recorded(disk, log):
    """That disk, and $recorded over it: see record. log: a file that is made here."""
    with open(log, "wb") as file:
        file.truncate(8 << 30)      # most of it is never written
    name = "/dev/vd" + "abcdefgh"[len(disk.disks)]
    return disk._replace(
        setup=f"{disk.setup}\nrecord /dev/{disk.name} {name}",
        modules=(*disk.modules, "dm-log-writes", "dm-delay"),
        disks=(*disk.disks, log),
        programs=(*disk.programs, "dmsetup", "/usr/bin/dd", "/usr/bin/sync"))


# What checks a file system, by its kind.
CHECKS = {"ext4": "fsck.ext4 -f -n", "xfs": "xfs_repair -n"}


def use_a_file_system(device, kind="ext4"):
    """Steps: files are made, changed and found again, by a kernel that has nothing cached."""
    return (
        f"mkfs.{kind} -q {device}",
        f"mount {device} /mnt",
        f"head -c 5000000 {PLATTERD} >/mnt/copy",
        "cp /mnt/copy /mnt/copy2",
        "dd if=/mnt/copy of=/mnt/copy2 bs=4k count=9 conv=notrunc,fsync 2>/dev/null",
        "rm /mnt/copy",
        "fstrim /mnt",
        "umount /mnt",
        f"{CHECKS[kind]} {device} 2>&1",
        f"mount -o ro {device} /mnt",
        f"head -c 5000000 {PLATTERD} | cmp - /mnt/copy2",
        "umount /mnt",
        f"blkdiscard {device}")


def programs_for(kind="ext4"):
    """What these steps need."""
    return [f"mkfs.{kind}", CHECKS[kind].split()[0], PLATTERD]


class Iscsi:
    """platterd's other protocol, which tools/conn-iscsi.c speaks here."""
    name = "iscsi"


ALL_FRONT_ENDS = (*FRONT_ENDS, Iscsi)
front_end = Nbdkit      # of this case


def served(case=None, *, on=FRONT_ENDS, **how):
    """Registers a case for each front end; that of the first keeps the plain name."""
    if case is None:
        return functools.partial(served, on=on, **how)
    for one in on:
        def run_on(one=one):
            global front_end    # of this process, which runs this case only
            front_end = one
            case()
        run_on.__name__ = case.__name__ + ("" if one is on[0] else "_on_" + one.name)
        tap.test(run_on, **how)
    return case


def run(disk, *steps, programs=(), modules=(), timeout=50):
    """Runs shell steps with that disk; returns what they printed. A failing step fails."""
    command = [GUEST, f"--timeout={timeout}"]
    servers = ["nbdkit", PLUGIN, FILE_PLUGIN] if front_end is Nbdkit else [PLATTERD]
    for option, values in (("--put", [*servers, CLIENT, *disk.programs, *programs]),
                           ("--module", [*disk.modules, *modules]), ("--disk", disk.disks)):
        for value in values:
            command += [option, value]
    script = "\n".join([FUNCTIONS, "front_end=" + front_end.name, disk.make(), *steps, ""])
    done = subprocess.run([*command, "-"], input=script, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 77:
        tap.skip(done.stderr)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def asked(output):
    """The requests to the disk and the replies to the client in what `traced` printed.

    Requests are "read", "write", "write+fua", "flush", "discard" and "zero"; the end of
    a step is "reply" and the step's text. Source: blk_fill_rwbs() of Linux.
    """
    events = []
    for line in output.splitlines():
        reply = re.search(r"tracing_mark_write: (reply \S+)", line)
        issue = re.search(r"block_rq_issue: \S+ (\w+) ", line)
        if reply:
            events.append(reply[1])
        elif issue:
            flags = issue[1]
            if flags.startswith("FF"):
                events.append("flush")
            else:
                kind = {"R": "read", "W": "write", "D": "discard", "N": "zero"}[flags[0]]
                events.append(kind + ("+fua" if "F" in flags[1:] else ""))
    return events
