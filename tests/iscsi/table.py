#!/usr/bin/python3
"""Every row of tests/scsi/cdb.tsv, by iSCSI. What the fields of a row mean is said at the head of
the table; tests/unit/scsi_table.c puts the same rows to the SCSI layer directly."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import iscsiraw
import server
import tap
from server import Platterd

TABLE = os.path.join(server.SOURCE, "tests", "scsi", "cdb.tsv")
STATUS = {iscsiraw.GOOD: "GOOD", iscsiraw.CONDITION_MET: "MET",
          iscsiraw.RESERVATION_CONFLICT: "CONFLICT"}


# ---- the table ----------------------------------------------------------------------------------

def disks():
    """For each "disk" line its fields, and the rows that follow it with their line numbers."""
    found = []
    with open(TABLE) as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.rstrip("\n").split("\t")
            if fields[0] == "disk":
                found.append((fields[1:], []))
            else:
                assert len(fields) in (5, 6), "line %d has %d fields" % (number, len(fields))
                found[-1][1].append((number, fields))
    return found


def pattern(text):
    """"a5x7,00x505", or plain hex digits."""
    data = b""
    for piece in text.split(","):
        digits, _, times = piece.partition("x")
        data += bytes.fromhex(digits) * int(times or 1)
    return data


def options(words):
    return {} if words == "-" else dict(word.split("=", 1) for word in words.split())


# ---- what came of it -----------------------------------------------------------------------------

def field_pointer(sense):
    """"@1.3" in the CDB or "+1.3" in the parameter list, or "" if there is none."""
    specific = sense.specific
    if sense.key != 5 or specific is None:
        return ""
    bit = ".%d" % (specific[0] & 7) if specific[0] & 8 else ""
    return "%s%d%s" % ("@" if specific[0] & 0x40 else "+", specific[1] << 8 | specific[2], bit)


def answer_of(task):
    if task.sense:
        return str(task.sense) + field_pointer(task.sense)
    return STATUS.get(task.status, "status %02x" % task.status)


def wrong_numbers(task, checks):
    """What of the checks does not hold."""
    sent = max(0, len(task.out) + min(0, task.residual))
    is_now = {"moved": len(task.data) if task.expected_in else sent,
              "under": max(0, -task.residual), "over": max(0, task.residual),
              "info": task.sense and task.sense.information}
    checks = [] if checks == "-" else checks.split(",")
    for check in checks:
        key, _, want = check.partition("=")
        if key in is_now:
            is_so = is_now[key] is not None and (
                is_now[key] > 0 if want == "any" else is_now[key] == int(want))
            said = is_now[key]
        else:
            at, _, mask = key.partition("&")
            said = "%02x" % task.data[int(at)] if int(at) < len(task.data) else "not there"
            is_so = said != "not there" and \
                task.data[int(at)] & int(mask or "ff", 16) == int(want, 16)
        if not is_so:
            yield "%s: it is %s" % (check, said)
    if task.residual and not any(re.match("under|over", check) for check in checks):
        yield "a residual of %d, of which the row says nothing" % task.residual


def run_row(c, fields):
    """Returns what is wrong, as sentences."""
    _, cdb, data, answer, checks, *lun = fields
    task = c.cdb(cdb, din=int(data[1:]) if data[0] == "<" else 0,
                 dout=pattern(data[1:]) if data[0] == ">" else b"",
                 lun=int(lun[0]) if lun else None)
    wrong = list(wrong_numbers(task, checks))
    if answer_of(task) != answer:
        wrong.append("the answer is %s, and should be %s" % (answer_of(task), answer))
    return wrong


def run_disk(factory, fields, rows):
    name, unit, export, read_only = fields
    failures = []
    with factory(iscsi=options(unit) or True, read_only=read_only == "read-only",
                 **options(export)) as s, \
            iscsiraw.connect(("127.0.0.1", s.iscsi_port), s.target) as c:
        for number, row in rows:
            for wrong in run_row(c, row):
                failures.append("line %d: %s: %s" % (number, row[0], wrong))
    print("%s: %d rows" % (name, len(rows)))
    assert not failures, "\n".join(failures)


def register():
    for fields, rows in disks():
        def case(factory, fields=fields, rows=rows):
            run_disk(factory, fields, rows)
        server.served(case, name="each_row_comes_out_as_it_says_" + fields[0].replace("-", "_"),
                      on=[Platterd])


register()
tap.main()
