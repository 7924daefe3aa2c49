#!/usr/bin/python3
"""TLS on platterd: who gets in and who is told why not, whatever a peer does on the way, and
that nothing is left of those who fail."""

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import nbdraw
import pki
import tap
from nbdraw import CMD_WRITE, OPT_STARTTLS, Client, Closed
from server import PATIENCE, PRELOAD, SOURCE, VALGRIND, Platterd, served as served_by, until
from usage import descriptors

DISK = {"driver": "memory", "size": "1M"}
served = functools.partial(served_by, on=[Platterd])
until = functools.partial(until, seconds=10)


def certificates(server):
    if shutil.which("certtool") is None:
        tap.skip("certtool (gnutls-bin) is not installed")
    return functools.partial(os.path.join, pki.make(server.path("pki")))


def works(client):
    client.write(4096, b"w" * 512)
    assert client.read(4096, 512) == b"w" * 512


def come(s, tls, name=""):
    """A whole visit."""
    with nbdraw.connect(s.address, name, tls=tls) as c:
        works(c)


def is_refused(s, tls, name=""):
    try:
        come(s, tls, name)
    except (ssl.SSLError, ConnectionError, Closed, nbdraw.Refused) as e:
        return str(e) or repr(e)
    raise AssertionError("served: %s" % tls)


def says(s, *parts):
    """Until one line of the log has all parts."""
    until(lambda: any(all(p in line for p in parts) for line in s.said().splitlines()),
          "said: %s; but %s" % (parts, s.said()))


def ticks(s):
    """Of CPU time used, a hundredth of a second each."""
    with open("/proc/%d/stat" % s.pid) as f:
        words = f.read().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def resident(s):
    """Bytes of memory of its own."""
    with open("/proc/%d/status" % s.pid) as f:
        lines = dict(line.split(":", 1) for line in f)
    return int(lines["RssAnon"].split()[0]) * 1024


def run(*command, status=0):
    """What a command prints. It has to end with that status."""
    if shutil.which(command[0]) is None:
        tap.skip(command[0] + " is not installed")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == status, "%s: %d: %s" % (
        " ".join(command), done.returncode, done.stdout[-2000:])
    return done.stdout


# ---- a peer with GnuTLS, which can do more than ssl

GNUTLS_CLIENT, GNUTLS_CRD_CERTIFICATE, GNUTLS_KU_PEER, GNUTLS_SHUT_WR = 2, 1, 1, 1
GNUTLS_E_AGAIN = -28


class Gnutls:
    """For Client.socket: speaks TLS on a connected socket. Takes any server's certificate."""

    def __init__(self, plain, version="1.3"):
        try:
            self.lib = ctypes.CDLL("libgnutls.so.30")
        except OSError:
            tap.skip("there is no libgnutls.so.30")
        plain.settimeout(None)
        self.plain = plain
        self.session, credentials = ctypes.c_void_p(), ctypes.c_void_p()
        priority = "NORMAL:-VERS-ALL:+VERS-TLS%s" % version
        self.call("gnutls_init", ctypes.byref(self.session), GNUTLS_CLIENT, session=False)
        self.call("gnutls_priority_set_direct", priority.encode(), None)
        self.call("gnutls_certificate_allocate_credentials", ctypes.byref(credentials),
                  session=False)
        self.call("gnutls_credentials_set", GNUTLS_CRD_CERTIFICATE, credentials)
        self.call("gnutls_transport_set_int2", plain.fileno(), plain.fileno())
        self.call("gnutls_handshake")

    def call(self, name, *words, session=True):
        function = getattr(self.lib, name)
        function.restype = ctypes.c_ssize_t if "record" in name else ctypes.c_int
        result = GNUTLS_E_AGAIN
        while result == GNUTLS_E_AGAIN:     # it saw to something else, new keys say
            result = function(*([self.session] if session else []), *words)
        if result < 0:
            raise ConnectionError("%s: %d" % (name, result))
        return result

    def sendall(self, data):
        data = bytes(data)
        while data:
            data = data[self.call("gnutls_record_send", data, ctypes.c_size_t(len(data))):]

    def recv_into(self, view):
        data = ctypes.create_string_buffer(len(view))
        n = self.call("gnutls_record_recv", data, ctypes.c_size_t(len(view)))
        view[:n] = data.raw[:n]
        return n

    def send_nothing(self):
        """A record with a byte of padding and no data."""
        self.call("gnutls_record_send2", b"", ctypes.c_size_t(0), ctypes.c_size_t(1), 0)

    def update_key(self):
        """And asks the peer to do the same."""
        self.call("gnutls_session_key_update", GNUTLS_KU_PEER)

    def half_close(self):
        self.call("gnutls_bye", GNUTLS_SHUT_WR)

    def close(self):
        self.plain.close()


def gnutls_client(s, version="1.3"):
    c = Client(s.address)
    c.must(OPT_STARTTLS)
    c.socket = Gnutls(c.socket, version)
    c.structured_reply()
    c.go()
    return c


@served
def keys_may_be_changed_at_any_time(server):
    with server(**DISK, tls=certificates(server)("server")) as s:
        with gnutls_client(s) as c:
            for _ in range(4):
                c.socket.update_key()
                works(c)
            cookies = {c.send(nbdraw.CMD_READ, 0, 65536) for _ in range(20)}
            c.socket.update_key()
            assert {c.receive().check().cookie for _ in cookies} == cookies


@served
def who_changes_keys_for_ever_is_shown_out(server):
    with server(**DISK, tls=certificates(server)("server")) as s:
        before = descriptors(s)
        with nbdraw.connect(s.address, tls=certificates(server)("client")) as other:
            c = gnutls_client(s)
            try:
                for _ in range(1000):
                    c.socket.update_key()
                c.read(0, 512)
            except (ConnectionError, Closed):
                pass
            else:
                raise AssertionError("still served")
            c.socket.close()
            works(other)
        until(lambda: descriptors(s) == before, "no descriptors are left")
        says(s, "TLS: ", "handshake packets")


@served
def records_without_data_hold_nobody_up(server):
    with server(**DISK, args=["--loops", "1"], tls=certificates(server)("server")) as s:
        with nbdraw.connect(s.address, tls=certificates(server)("client")) as other:
            c = gnutls_client(s)
            with contextlib.suppress(ConnectionError):     # so many may be too many for it
                for i in range(5000):
                    c.socket.send_nothing()
                    if i % 500 == 0:
                        works(other)
            c.socket.close()
            works(other)
        is_idle(s)


@served
def a_new_handshake_in_a_session_is_refused(server):
    with server(**DISK, tls=certificates(server)("server")) as s:
        c = gnutls_client(s, version="1.2")
        works(c)
        try:
            c.socket.call("gnutls_handshake")
        except ConnectionError:
            pass
        else:
            raise AssertionError("there was one")
        says(s, "TLS: ", "ehandshake")
        c.socket.close()
        come(s, certificates(server)("client"))


@served
def a_client_may_end_its_direction_and_read_its_answers(server):
    with server(**DISK, tls=certificates(server)("server")) as s:
        c = gnutls_client(s)
        cookies = {c.send(nbdraw.CMD_READ, 0, 65536) for _ in range(10)}
        c.socket.half_close()
        assert {c.receive().check().cookie for _ in cookies} == cookies
        try:
            c.take(1)
        except Closed as e:
            assert "0 of 1" in str(e), e       # by a close_notify
        c.socket.close()


# ---- clients that vanish

def is_idle(s):
    """It uses no CPU to speak of: a loop that spins would use all of it."""
    before = ticks(s)
    time.sleep(0.5)
    assert ticks(s) - before <= 10, "busy: %d ticks" % (ticks(s) - before)


@served
def a_client_that_vanishes_leaves_no_work_behind(server):
    client = certificates(server)("client")

    def in_the_middle_of_a_payload(c):
        c.send_head(CMD_WRITE, 0, 65536)
        c.socket.sendall(bytes(1000))

    def with_answers_to_come(c):
        for _ in range(16):
            c.send(nbdraw.CMD_READ, 0, 1 << 20)

    def in_the_middle_of_a_record(c):
        os.write(c.socket.fileno(), b"\x17\x03\x03\x01\x00" + bytes(100))

    def by_half(c):
        socket.socket(fileno=os.dup(c.socket.fileno())).shutdown(socket.SHUT_WR)
        c.expect_close()

    for tcp in (False, True):
        with server(**DISK, tcp=tcp, tls=certificates(server)("server")) as s:
            baseline = descriptors(s)
            come(s, client)
            for how in (works, in_the_middle_of_a_payload, with_answers_to_come,
                        in_the_middle_of_a_record, by_half):
                for end in (Client.reset, lambda c: c.socket.close()):
                    c = nbdraw.connect(s.address, tls=client)
                    how(c)
                    end(c)
            until(lambda: descriptors(s) == baseline, "no descriptors are left")
            is_idle(s)
            come(s, client)


@served
def a_client_that_is_killed_leaves_no_work_behind(server):
    image = server.image(64 << 20)
    with server(image, tcp=True, tls=certificates(server)("server")) as s:
        uri = s.uri + "?tls-certificates=" + certificates(server)("client")
        baseline = descriptors(s)
        copy = subprocess.Popen(["sh", "-c", "exec nbdcopy '%s' - | sleep 60" % uri],
                                start_new_session=True, stderr=subprocess.DEVNULL)
        until(lambda: descriptors(s) > baseline, "somebody came")
        time.sleep(0.2)
        os.killpg(copy.pid, signal.SIGKILL)
        copy.wait()
        until(lambda: descriptors(s) == baseline, "no descriptors are left")
        is_idle(s)


@served
def many_failing_handshakes_leave_nothing_behind(server):
    at = certificates(server)
    refused = nbdraw.tls_context(at("client"))
    refused.maximum_version = ssl.TLSVersion.TLSv1_1
    refused.minimum_version = ssl.TLSVersion.TLSv1
    refused.set_ciphers("ALL:@SECLEVEL=0")
    elsewhere = nbdraw.tls_context(at("other"))

    def fail(i):
        c = Client(s.address)
        c.must(OPT_STARTTLS)
        if i % 4 == 0:
            c.socket.sendall(b"\x16\x03\x01\x20\x00\x01" + bytes(1000))
        elif i % 4 == 1:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                elsewhere.wrap_socket(c.socket, server_hostname="localhost")
                raise AssertionError("trusted")
        elif i % 4 == 2:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                refused.wrap_socket(c.socket, server_hostname="localhost")
                raise AssertionError("spoken")
        c.socket.close()

    with server(**DISK, tcp=True, tls=at("server"), args=["--loops", "1"]) as s:
        before = descriptors(s)
        come(s, at("client"))
        for i in range(100):        # what the allocator keeps for the next ones
            fail(i)
        until(lambda: descriptors(s) == before, "no descriptors are left")
        grown = resident(s)
        for i in range(100):
            fail(i)
        until(lambda: descriptors(s) == before, "no descriptors are left")
        # A sanitizer keeps what was freed, and finds leaks by itself.
        growth = resident(s) - grown
        assert PRELOAD or VALGRIND or growth < 1 << 20, "grew by %d bytes" % growth
        come(s, at("client"))
        is_idle(s)


# ---- certificates

@served
def a_client_is_told_apart_by_its_certificate(server):
    at = certificates(server)
    refusals = (("client-none", "ertificate"), ("client-expired", "expired certificate"),
                ("client-revoked", "revoked"), ("client-server", "purpose"),
                ("client-other", "ertificate"))
    with server(**DISK, tcp=True, tls=at("server-crl"),
                args=["--tls-verify-peer", "on"]) as s:
        with nbdraw.connect(s.address, tls=at("client")) as c:
            for name, reason in refusals:
                is_refused(s, at(name))
                says(s, "warning: 127.0.0.1:", ": TLS handshake: ", reason)
                works(c)


@served
def an_export_is_for_those_whom_its_rules_name(server):
    at = certificates(server)
    with open(at("client", "client-cert.pem")) as f:
        fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(f.read())).hexdigest()
    exports = {"subject": "allow-subject=CN=alice,,O=Platter\\,, Tests",
               "fingerprint": "allow-fingerprint=" + fingerprint,
               "another": "allow-subject=CN=mallory,,O=Platter\\,, Tests",
               "unlike": "allow-fingerprint=" + fingerprint[::-1]}
    args = ["--tls", "required", "--tls-certificates", at("server")]
    for name, rule in exports.items():
        args += ["--export", "name=%s,driver=memory,size=1M,%s" % (name, rule)]
    with server(args=args) as s:
        for name in exports:
            if name in ("subject", "fingerprint"):
                come(s, at("client"), name)
            else:
                is_refused(s, at("client"), name)
            is_refused(s, at("client-none"), name)
        come(s, at("client-revoked"), "another")      # it has no list of the revoked


@served
def a_server_with_a_certificate_out_of_time_says_so_and_is_not_trusted(server):
    at = certificates(server)
    for folder, words in (("server-expired", ("expired", "2021-02-03")),
                          ("server-future", ("not valid before", "2080-04-05"))):
        with server(**DISK, tls=at(folder)) as s:
            says(s, at(folder) + "/server-cert.pem", *words)
            assert "certificate" in is_refused(s, at("client")).lower()
            says(s, ": TLS handshake: the peer says: ")


@served
def the_name_of_a_server_is_in_its_certificate(server):
    at = certificates(server)
    with server(**DISK, tcp=True, tls=at("server")) as s:
        for host, fine in (("localhost", True), ("127.0.0.1", True), ("example.org", False),
                           ("127.0.0.2", False)):
            c = Client(s.address)
            c.must(OPT_STARTTLS)
            try:
                nbdraw.tls_context(at("client")).wrap_socket(c.socket, server_hostname=host)
            except ssl.SSLCertVerificationError:
                assert not fine, host
            else:
                assert fine, host
            c.socket.close()
        says(s, ": TLS handshake: the peer says: ")


@served
def what_belongs_to_others_or_not_together_is_no_certificate(server):
    at = certificates(server)
    key = at("server", "server-key.pem")
    os.chmod(key, 0o644)
    said = server.refusal(**DISK, tls=at("server"))
    assert key in said and "0644" in said, said
    shutil.copy(at("other", "server-key.pem"), key)
    os.chmod(key, 0o600)
    assert key in server.refusal(**DISK, tls=at("server"))
    os.unlink(key)
    assert key in server.refusal(**DISK, tls=at("server"))


@served
def the_steps_of_the_manual_lead_to_certificates_and_keys(server):
    with open(os.path.join(SOURCE, "docs", "platterd.pod")) as f:
        section = f.read().partition("=head1 CERTIFICATES\n")[2].partition("=head1")[0]
    steps = [line[1:] for line in section.splitlines() if line.startswith(" ")]
    folder = server.path("steps")
    os.mkdir(folder)
    for name in ("certtool", "psktool"):
        run(name, "--version")
    done = subprocess.run(["bash", "-eu", "-c", "\n".join(steps)], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    subject = re.findall("^\\s*Subject: (.*)$", done.stdout, re.M)[-1]
    fingerprint = re.findall("^[0-9a-f]{64}$", done.stdout, re.M)[-1]
    with server(tls=folder, args=[
            "--tls-verify-peer", "on",
            "--export", "name=a,driver=memory,size=1M,allow-subject=" + subject.replace(",", ",,"),
            "--export", "name=b,driver=memory,size=1M,allow-fingerprint=" + fingerprint]) as s:
        context = nbdraw.tls_context(folder)
        for name in ("a", "b"):
            with Client(s.address) as c:
                c.must(OPT_STARTTLS)
                c.socket = context.wrap_socket(c.socket, server_hostname="disks.example.org")
                c.go(name)
                works(c)
    with server(**DISK, tls=folder, args=["--tls-verify-peer", "on"]) as s:
        run(*qemu_img(s, folder, "tls-hostname=disks.example.org"))
    with server(**DISK, tls=folder + "/keys.psk") as s:
        run("nbdinfo", psk_uri(s, "alice", folder + "/keys.psk"))


@served
def nothing_is_answered_once_the_peer_has_broken_tls(server):
    """Neither by it nor in clear; the others go on. What breaks it comes in one piece with the
    requests, of which there is a slot for the first."""
    at = certificates(server)
    with server(**DISK, tcp=True, tls=at("server"), args=("--depth", "1")) as s:
        with nbdraw.connect(s.address, tls=at("client")) as c:
            c.write(0, b"x" * 4096)
            with socket.socket(fileno=os.dup(c.socket.fileno())) as raw:
                raw.settimeout(30 * PATIENCE)
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                for _ in range(2):
                    c.send(nbdraw.CMD_READ, 0, 4096)
                raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))    # a record by no key
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
                got = b"".join(iter(functools.partial(raw.recv, 1 << 16), b""))
            assert len(got) < 512, len(got)     # an alert, perhaps
        with nbdraw.connect(s.address, tls=at("client")) as c:
            works(c)


@served
def keys_that_nobody_is_offered_are_a_warning(server):
    at = certificates(server)
    args = ["--tls-certificates", at("server")]
    warning = "warning: tls-certificates is given and tls=off"
    with server(**DISK, args=args) as s:
        assert warning in s.said(), s.said()
    with server(args=[*args, "--export", "name=a,driver=memory,size=1M,tls=required"]) as s:
        assert warning not in s.said(), s.said()


# ---- in clear

@served
def nothing_is_told_in_clear_where_tls_is_required(server):
    at = certificates(server)
    args = ["--export", "name=secret,driver=memory,size=54321"]
    with server(**DISK, tcp=True, tls=at("server"), args=args) as s:
        plain = s.uri.replace("nbds", "nbd", 1)
        run("nbdinfo", plain, status=1)
        run("qemu-img", "info", plain, status=1)
        listed = subprocess.run(["nbdinfo", "--list", plain], capture_output=True, text=True)
        assert "secret" not in listed.stdout and "54321" not in listed.stdout, listed.stdout
        assert "secret" in run("nbdinfo", "--list",
                               s.uri + "?tls-certificates=" + at("client"))


@served
def a_client_that_wants_tls_never_goes_on_without(server):
    at = certificates(server)
    with server(**DISK, tcp=True) as s:
        run("nbdinfo", s.uri.replace("nbd", "nbds", 1) + "?tls-certificates=" + at("client"),
            status=1)
        run(*qemu_img(s, at("client")), status=1)


def qemu_img(s, client, *options):
    kind = "x509" if os.path.exists(client + "/ca-cert.pem") else "psk,username=alice"
    where = "server.type=inet,server.host=%s,server.port=%d" % s.address \
        if isinstance(s.address, tuple) else "server.type=unix,server.path=" + s.address
    return ("qemu-img", "info", "--object",
            ",".join(["tls-creds-%s,id=tls,endpoint=client,dir=%s" % (kind, client),
                      *(o for o in options if o.startswith("priority="))]),
            "--image-opts",
            ",".join(["driver=nbd,tls-creds=tls", where,
                      *(o for o in options if not o.startswith("priority="))]))


@served
def qemu_checks_the_name_that_it_is_told(server):
    at = certificates(server)
    for tcp in (False, True):
        with server(**DISK, tcp=tcp, tls=at("server")) as s:
            run(*qemu_img(s, at("client"), "tls-hostname=localhost"))
            run(*qemu_img(s, at("client"), "tls-hostname=example.org"), status=1)


# ---- pre-shared keys

def psk_uri(s, user, path):
    return "%s%stls-psk-file=%s" % (s.uri.replace("://", "://%s@" % user, 1),
                                    "&" if "?" in s.uri else "?", path)


@served
def a_key_and_its_user_open_the_door(server):
    keys = pki.psk_file(server.path("keys.psk"), "alice", "bob")
    image = server.image(1 << 20, fill=0x5A)
    for tcp in (False, True):
        with server(image, tcp=tcp, tls=keys) as s:
            for user in ("alice", "bob"):
                run("nbdinfo", psk_uri(s, user, keys))
            run("nbdcopy", psk_uri(s, "alice", keys), server.path("copy"))
            with open(server.path("copy"), "rb") as f:
                assert f.read() == b"\x5A" * (1 << 20)


@served
def keys_are_spoken_by_both_versions_of_tls(server):
    os.mkdir(server.path("keys"))
    keys = pki.psk_file(server.path("keys/keys.psk"), "alice")
    with server(**DISK, tls=keys) as s:
        for version in ("1.2", "1.3"):
            run(*qemu_img(s, server.path("keys"),
                          "priority=NORMAL:-VERS-ALL:+VERS-TLS" + version))


@served
def a_wrong_key_or_user_is_refused_and_named_in_the_log(server):
    keys = pki.psk_file(server.path("keys.psk"), "alice")
    wrong = pki.psk_file(server.path("wrong.psk"), "alice", "bob")
    with server(**DISK, tls=keys) as s:
        answers = []
        for user, words in (("alice", ("identity \"alice\"",)),
                            ("bob", ("unknown identity \"bob\"",))):
            answers.append(run("nbdinfo", psk_uri(s, user, wrong), status=1))
            says(s, ": TLS handshake: ", *words)
        assert answers[0] == answers[1], answers
        run("nbdinfo", psk_uri(s, "alice", keys))
        run("nbdinfo", s.uri.replace("nbds", "nbd", 1), status=1)


@served
def keys_and_certificates_are_not_mixed(server):
    at = certificates(server)
    keys = pki.psk_file(server.path("keys.psk"), "alice")
    with server(**DISK, tls=keys) as s:
        is_refused(s, at("client"))
        run("nbdinfo", psk_uri(s, "alice", keys))
    with server(**DISK, tls=at("server")) as s:
        run("nbdinfo", psk_uri(s, "alice", keys), status=1)
        come(s, at("client"))
    said = server.refusal(**DISK, tls=keys, args=["--tls-certificates", at("server")])
    assert "tls" in said.lower(), said


@served
def what_is_no_good_file_of_keys_is_refused_at_the_start(server):
    path = server.path("keys.psk")
    key = "00112233445566778899aabbccddeeff"
    for how, part in (({}, "no keys"), ({"alice": "xyz"}, "hexadecimal"),
                      ({"alice": "0011"}, "2 bytes"), ({"alice": key, "mode": 0o644}, "0644"),
                      ({"alice": key, "mode": 0o660}, "0660")):
        pki.psk_file(path, **how)
        said = server.refusal(**DISK, tls=path)
        assert path in said and part in said and "0011" not in said.replace("0011.psk", ""), said
    assert "open" in server.refusal(args=["--tls", "required", "--tls-psk", path + "-missing"],
                                    **DISK)
    pki.psk_file(path, alice=key, ending="\r\n")
    good = pki.psk_file(server.path("good.psk"), alice=key)
    with server(**DISK, tls=path) as s:
        run("nbdinfo", psk_uri(s, "alice", good))


# ---- reload

def hang_up(s):
    """SIGHUP, and what the server says to it."""
    before = s.said().count("reload: ")
    os.kill(s.pid, signal.SIGHUP)
    until(lambda: s.said().count("reload: ") > before, "a reload")


@served
def new_credentials_are_for_those_who_come_from_now_on(server):
    at = certificates(server)
    live = shutil.copytree(at("server"), server.path("live"))
    with server(**DISK, tls=live, args=["--tls-verify-peer", "on"]) as s:
        with nbdraw.connect(s.address, tls=at("client-revoked")) as old:
            shutil.copy(at("server-crl", "ca-crl.pem"), live)
            come(s, at("client-revoked"))
            hang_up(s)
            is_refused(s, at("client-revoked"))
            says(s, ": TLS handshake: ", "revoked")
            come(s, at("client"))
            works(old)

            # What is no good changes nothing.
            shutil.copy(at("other", "server-key.pem"), live)
            hang_up(s)
            says(s, "reload: nothing is changed", live + "/server-key.pem")
            is_refused(s, at("client-revoked"))
            come(s, at("client"))
            works(old)


@served
def whoever_was_revoked_stays_out_when_the_list_cannot_be_had(server):
    """A reload that cannot see it any more is no reload."""
    at = certificates(server)
    live = shutil.copytree(at("server-crl"), server.path("live"))
    os.mkdir(server.path("away"))
    listed, there = os.path.join(live, "ca-crl.pem"), server.path("away/crl.pem")
    os.rename(listed, there)
    os.symlink("../away/crl.pem", listed)
    with server(**DISK, tls=live, args=["--tls-verify-peer", "on"]) as s:
        is_refused(s, at("client-revoked"))
        os.unlink(there)
        hang_up(s)
        says(s, "reload: nothing is changed", listed)
        is_refused(s, at("client-revoked"))
        come(s, at("client"))
    said = server.refusal(**DISK, tls=live)
    assert listed in said, said


@served
def new_keys_are_for_those_who_come_from_now_on(server):
    keys = pki.psk_file(server.path("keys.psk"), "alice")
    other = pki.psk_file(server.path("other.psk"), "alice")
    with server(**DISK, tls=keys) as s:
        old = shutil.copy(keys, server.path("old.psk"))
        run("nbdinfo", psk_uri(s, "alice", old))
        os.replace(other, keys)
        hang_up(s)
        run("nbdinfo", psk_uri(s, "alice", keys))
        run("nbdinfo", psk_uri(s, "alice", old), status=1)
        os.chmod(keys, 0o644)
        hang_up(s)
        says(s, "reload: nothing is changed", "0644")
        run("nbdinfo", psk_uri(s, "alice", keys))


tap.main()
