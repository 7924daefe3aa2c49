#!/usr/bin/python3
"""Nobody has an export that is not theirs, whatever they prove or pretend."""

import contextlib
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile

import nbd

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))

import nbdraw
import pki
import server
from tap import main, skip

MEMORY = "driver=memory,size=1M"
NOBODY, NOGROUP = 65534, 65534
POLICY = nbdraw.REP_ERROR | 2
TLS_REQUIRED = nbdraw.REP_ERROR | 5
UNKNOWN = nbdraw.REP_ERROR | 6


def alone(case):
    return server.served(case, on=[server.Platterd])


def exports(*texts):
    """Words of the command line; a text is what follows "name="."""
    return [word for text in texts for word in ("--export", "name=" + text)]


def answer(address, name, tls=None):
    """What GO is answered: "" when it works. The connection goes on after a refusal."""
    with nbdraw.Client(address) as c:
        if tls is not None:
            c.starttls(tls)
        try:
            c.go(name)
        except nbdraw.Refused as e:
            c.list()
            return e.reply
        assert c.read(0, 512) == bytes(512)
        return ""


# ---- users and groups --------------------------------------------------------------------------

@contextlib.contextmanager
def as_other(uid=0, gid=0):
    """To the kernel, a socket that connects meanwhile is that user's."""
    if os.geteuid() != 0:
        skip("only root can connect as somebody else")
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def open_to_all(s):
    """The socket, so that it is the export that says no."""
    os.chmod(os.path.dirname(s.socket), 0o755)
    os.chmod(s.socket, 0o666)


def answer_to(s, name, uid=0, gid=0):
    with as_other(uid, gid):
        return answer(s.address, name)


@alone
def a_unix_peer_is_let_in_by_its_user(server):
    with server(args=exports("root,allow-uid=root," + MEMORY, "nobody,allow-uid=65534," + MEMORY,
                             "both,allow-uid=0;nobody," + MEMORY)) as s:
        open_to_all(s)
        assert answer_to(s, "root") == answer_to(s, "both") == ""
        assert answer_to(s, "nobody", NOBODY) == answer_to(s, "both", NOBODY) == ""
        assert answer_to(s, "nobody") == answer_to(s, "root", NOBODY) == POLICY
        assert answer_to(s, "both", 12345) == POLICY


@alone
def a_unix_peer_is_let_in_by_its_primary_group(server):
    with server(args=exports("disk,allow-gid=nogroup," + MEMORY,
                             "either,allow-gid=nogroup,allow-uid=7," + MEMORY)) as s:
        open_to_all(s)
        assert answer_to(s, "disk") == answer_to(s, "either") == POLICY
        assert answer_to(s, "disk", 0, NOGROUP) == answer_to(s, "either", 7) == ""
        assert answer_to(s, "disk", 7) == POLICY


@alone
def who_comes_by_tcp_is_no_user_of_this_machine(server):
    with server(args=exports("disk,allow-uid=0," + MEMORY, "group,allow-gid=0," + MEMORY,
                             "open," + MEMORY), tcp=True) as s:
        assert answer(s.address, "disk") == answer(s.address, "group") == POLICY
        assert answer(s.address, "open") == ""


@alone
def the_list_shows_each_peer_what_it_may_have(server):
    with server(args=exports("b," + MEMORY, "root,allow-uid=0," + MEMORY,
                             "a,allow-uid=65534," + MEMORY, "quiet,listed=off," + MEMORY)) as s:
        open_to_all(s)
        with nbdraw.Client(s.address) as c:
            assert c.list() == ["b", "root"]
        with as_other(NOBODY), nbdraw.Client(s.address) as c:
            assert c.list() == ["b", "a"]
        assert answer_to(s, "quiet") == ""


@alone
def a_refusal_does_not_tell_what_is_in_a_directory(server):
    """Nothing of it is looked at for a peer that may not have it."""
    server.image(1 << 20, "there.img")
    with server(args=exports(",allow-uid=65534,dir=" + server.dir)) as s:
        open_to_all(s)
        assert answer_to(s, "there.img") == answer_to(s, "missing.img") == POLICY
        assert "there.img: " not in s.said()
        os.chmod(server.dir, 0o755)
        assert answer_to(s, "there.img", NOBODY) == ""
        assert answer_to(s, "missing.img", NOBODY) == UNKNOWN
        with nbdraw.Client(s.address) as c:
            assert c.list() == []


# ---- certificates ------------------------------------------------------------------------------

def certificates():
    """Made once a run of this program: a case is a process of its own."""
    return pki.make(os.path.join(PKI, "pki"))


def subject_of(folder):
    """As another implementation writes it."""
    done = subprocess.run(["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253",
                           "-in", folder + "/client-cert.pem"],
                          check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip().partition("=")[2].replace(",", ",,")   # for --export


def fingerprint_of(folder):
    with open(folder + "/client-cert.pem") as f:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(f.read())).hexdigest()


def with_certificate(s, folder, name):
    return answer(s.address, name, nbdraw.tls_context(folder))


def tls_words(top, verify, policy="required"):
    return ["--tls", policy, "--tls-certificates", top + "/server", "--tls-verify-peer", verify]


@alone
def a_client_is_let_in_by_the_subject_of_its_certificate(server):
    top = certificates()
    alice, nobody = top + "/client", top + "/client-none"
    subject = subject_of(alice)
    assert subject.startswith("CN=alice,,O="), subject
    with server(args=tls_words(top, "off") + exports(
            "whole,allow-subject=" + subject + "," + MEMORY,
            "part,allow-subject=CN=alice," + MEMORY,
            "other,allow-subject=CN=bob;CN=alice2," + MEMORY,
            "open," + MEMORY), tcp=True) as s:
        assert with_certificate(s, alice, "whole") == ""
        assert with_certificate(s, alice, "part") == POLICY
        assert with_certificate(s, alice, "other") == POLICY
        assert with_certificate(s, nobody, "whole") == POLICY
        assert with_certificate(s, nobody, "open") == ""


@alone
def a_client_is_let_in_by_the_fingerprint_of_its_certificate(server):
    top = certificates()
    alice, nobody = top + "/client", top + "/client-none"
    fingerprint = fingerprint_of(alice)
    colons = ":".join(fingerprint[i:i + 2] for i in range(0, 64, 2)).upper()
    with server(args=tls_words(top, "off") + exports(
            "plain,allow-fingerprint=" + fingerprint + "," + MEMORY,
            "colons,allow-fingerprint=" + "0" * 64 + ";" + colons + "," + MEMORY,
            "other,allow-fingerprint=" + "0" * 64 + "," + MEMORY), tcp=True) as s:
        assert with_certificate(s, alice, "plain") == with_certificate(s, alice, "colons") == ""
        assert with_certificate(s, alice, "other") == POLICY
        assert with_certificate(s, nobody, "plain") == POLICY


@alone
def a_certificate_that_nobody_vouches_for_is_nobodys(server):
    """Anybody can make one that says CN=alice; whether it ends there or is let in as a nobody."""
    top = certificates()
    impostor = top + "/client-other"
    for verify in ("off", "on"):
        with server(args=tls_words(top, verify) + exports(
                "subject,allow-subject=" + subject_of(impostor) + "," + MEMORY,
                "fingerprint,allow-fingerprint=" + fingerprint_of(impostor) + "," + MEMORY),
                tcp=True) as s:
            for name in ("subject", "fingerprint"):
                try:
                    assert with_certificate(s, impostor, name) == POLICY
                except (nbdraw.Closed, ssl.SSLError, ConnectionError):
                    pass
            if verify == "off":
                assert with_certificate(s, top + "/client", "subject") == ""


@alone
def an_export_that_demands_tls_is_to_be_had_by_tls(server):
    """Also of a server that is not told anything about TLS but its certificates."""
    top = certificates()
    with server(args=["--tls-certificates", top + "/server"] + exports(
            "secret,tls=required," + MEMORY, "open," + MEMORY), tcp=True) as s:
        assert answer(s.address, "secret") == TLS_REQUIRED
        assert answer(s.address, "open") == ""
        assert with_certificate(s, top + "/client-none", "secret") == ""


@alone
def the_log_shows_a_subject_as_a_rule_has_to_say_it(server):
    top = certificates()
    with server(args=tls_words(top, "on") + exports("other,allow-subject=CN=bob," + MEMORY),
                tcp=True) as s:
        assert with_certificate(s, top + "/client", "other") == POLICY
        said = re.search(r"\((.*)\): export \"other\" is not for this client", s.said())[1]
    with server(args=tls_words(top, "on") + exports(
            "other,allow-subject=" + said.replace(",", ",,") + "," + MEMORY), tcp=True) as s:
        assert with_certificate(s, top + "/client", "other") == ""


@alone
def an_export_that_cannot_be_opened_tells_nothing_of_others(server):
    """Neither whose image it is nor where that lies; the log does."""
    image, config = server.image(1 << 20), server.path("platter.conf")
    with open(config, "w") as f:
        f.write("[export hidden]\npath=%s\nallow-uid=0\n[export mine]\npath=%s\n"
                "[export gone]\npath=%s.not\n" % (image, image, image))
    with server(args=["-c", config]) as s:
        open_to_all(s)
        assert answer(s.address, "hidden") == ""
        with as_other(NOBODY), nbdraw.Client(s.address) as c:
            for name in ("mine", "gone"):
                for option in (nbdraw.OPT_INFO, nbdraw.OPT_GO):
                    (_, text), = c.option(option, nbdraw.info_data(name))
                    assert b"hidden" not in text and image.encode() not in text, text
        assert 'export "hidden" of this server has it' in s.said()


@alone
def an_export_may_demand_tls_of_a_server_that_does_not(server):
    top = certificates()
    with server(args=tls_words(top, "off", "optional") + exports(
            "secret,tls=required," + MEMORY, "open," + MEMORY,
            "alice,allow-subject=" + subject_of(top + "/client") + "," + MEMORY), tcp=True) as s:
        assert answer(s.address, "secret") == TLS_REQUIRED
        assert answer(s.address, "open") == ""
        assert answer(s.address, "alice") == POLICY
        with nbdraw.Client(s.address) as c:
            assert c.list() == ["open"]
        assert with_certificate(s, top + "/client-none", "secret") == ""
        assert with_certificate(s, top + "/client", "alice") == ""


# ---- pre-shared keys ---------------------------------------------------------------------------

def with_key(s, user, keys, name):
    """What libnbd comes to."""
    h = nbd.NBD()
    h.set_tls(nbd.TLS_REQUIRE)
    h.set_tls_username(user)
    h.set_tls_psk_file(keys)
    h.set_export_name(name)
    try:
        h.connect_unix(s.socket)
    except nbd.Error as e:
        return e.string
    size = h.get_size()
    h.shutdown()
    return size


@alone
def a_client_is_let_in_by_the_identity_of_its_key(server):
    keys = pki.psk_file(server.path("keys"), "alice", "bob")
    with server(args=["--tls", "required", "--tls-psk", keys] + exports(
            "alice,allow-psk=alice," + MEMORY, "both,allow-psk=bob;alice," + MEMORY,
            "neither,allow-psk=alic;alice2," + MEMORY)) as s:
        assert with_key(s, "alice", keys, "alice") == 1 << 20
        assert with_key(s, "alice", keys, "both") == with_key(s, "bob", keys, "both") == 1 << 20
        assert "policy" in with_key(s, "bob", keys, "alice")
        assert "policy" in with_key(s, "alice", keys, "neither")
        # The right name without the right key is nobody at all.
        forged = pki.psk_file(server.path("forged"), "alice")
        assert isinstance(with_key(s, "alice", forged, "alice"), str)


# ---- mistakes ----------------------------------------------------------------------------------

@alone
def a_rule_that_cannot_be_kept_is_refused_at_the_start(server):
    for rule in ("allow-uid=no-such-user", "allow-gid=no-such-group", "allow-uid=-1",
                 "allow-fingerprint=12", "allow-uid=;"):
        said = server.refusal(args=exports("disk,%s,%s" % (rule, MEMORY)))
        assert rule in said, said


with tempfile.TemporaryDirectory(prefix="platter-") as PKI:
    main()
