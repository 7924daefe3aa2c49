#!/usr/bin/python3
"""pki - certificates and keys for tests, made with certtool (Debian: gnutls-bin).

    pki.make(dir)       # once; every folder below is a set of files as NBD programs name them:

    server/             a server on localhost and 127.0.0.1: ca-cert.pem, server-cert.pem,
                        server-key.pem
    server-crl/         the same, and a ca-crl.pem that has "revoked" in it
    server-expired/     one whose certificate ran out
    server-future/      one whose certificate is not valid yet
    client/             ca-cert.pem, client-cert.pem, client-key.pem of CN=alice
    client-expired/     CN=late
    client-revoked/     CN=mallory
    client-server/      a client that has a certificate for servers only
    client-other/       a client that another CA has signed, which here calls itself the same
    client-none/        ca-cert.pem alone
    other/              a server of that other CA, and its ca-cert.pem

By hand: pki.py DIR.
"""

import os
import secrets
import shutil
import subprocess
import sys

NOW = 'activation_date = "2020-01-01 00:00:00 UTC"\nexpiration_date = "2090-01-01 00:00:00 UTC"\n'
PAST = 'activation_date = "2020-01-01 00:00:00 UTC"\nexpiration_date = "2021-02-03 00:00:00 UTC"\n'
FUTURE = 'activation_date = "2080-04-05 00:00:00 UTC"\nexpiration_date = "2090-01-01 00:00:00 UTC"\n'

CA = 'cn = "Test CA"\nca\ncert_signing_key\ncrl_signing_key\n'
CRL = 'crl_this_update_date = "2020-01-01 00:00:00 UTC"\n' \
      'crl_next_update_date = "2090-01-01 00:00:00 UTC"\ncrl_number = 1\n'
SERVER = 'cn = "server"\ndns_name = "localhost"\nip_address = "127.0.0.1"\n' \
         'tls_www_server\nsigning_key\n'
CLIENT = 'cn = "%s"\norganization = "Platter, Tests"\ntls_www_client\nsigning_key\n'


class Maker:
    def __init__(self, top):
        self.top = top
        self.serial = 0

    def path(self, *names):
        return os.path.join(self.top, *names)

    def certtool(self, *words):
        done = subprocess.run(["certtool", *words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("certtool %s: %s" % (" ".join(words), done.stderr))

    def template(self, text):
        path = self.path("template")
        self.serial += 1
        with open(path, "w") as f:
            f.write(text + "serial = %d\n" % self.serial)
        return "--template=" + path

    def key(self, path):
        self.certtool("--generate-privkey", "--key-type=ecdsa", "--curve=secp256r1", "--no-text",
                      "--outfile=" + path)
        os.chmod(path, 0o600)

    def authority(self, name):
        folder = self.path(name)
        os.makedirs(folder)
        self.key(folder + "/ca-key.pem")
        self.certtool("--generate-self-signed", "--load-privkey=" + folder + "/ca-key.pem",
                      self.template(CA + NOW), "--no-text",
                      "--outfile=" + folder + "/ca-cert.pem")
        return folder

    def signed(self, name, ca, kind, text, trust=None):
        """A folder with a certificate of `kind` that ca has signed, and whom it trusts."""
        folder = self.path(name)
        os.makedirs(folder, exist_ok=True)
        if not os.path.exists(folder + "/ca-cert.pem"):
            shutil.copy((trust or ca) + "/ca-cert.pem", folder)
        key, cert = ("%s/%s-%s.pem" % (folder, kind, what) for what in ("key", "cert"))
        self.key(key)
        self.certtool("--generate-certificate", "--load-privkey=" + key,
                      "--load-ca-certificate=" + ca + "/ca-cert.pem",
                      "--load-ca-privkey=" + ca + "/ca-key.pem",
                      self.template(text), "--no-text", "--outfile=" + cert)
        return folder


def make(top):
    """Returns top, made unless it is there."""
    if os.path.exists(os.path.join(top, "template")):
        return top
    m = Maker(top)
    ca, other = m.authority("ca"), m.authority("other")

    server = m.signed("server", ca, "server", SERVER + NOW)
    m.signed("server-expired", ca, "server", SERVER + PAST)
    m.signed("server-future", ca, "server", SERVER + FUTURE)
    m.signed("other", other, "server", SERVER + NOW)

    m.signed("client", ca, "client", CLIENT % "alice" + NOW)
    m.signed("client-expired", ca, "client", CLIENT % "late" + PAST)
    revoked = m.signed("client-revoked", ca, "client", CLIENT % "mallory" + NOW)
    m.signed("client-server", ca, "client", SERVER + NOW)
    m.signed("client-other", other, "client", CLIENT % "alice" + NOW, trust=ca)
    os.mkdir(m.path("client-none"))
    shutil.copy(ca + "/ca-cert.pem", m.path("client-none"))

    shutil.copytree(server, m.path("server-crl"))
    m.certtool("--generate-crl", "--load-ca-certificate=" + ca + "/ca-cert.pem",
               "--load-ca-privkey=" + ca + "/ca-key.pem",
               "--load-certificate=" + revoked + "/client-cert.pem", m.template(CRL),
               "--outfile=" + m.path("server-crl", "ca-crl.pem"))
    return top


def psk_file(path, *users, mode=0o600, ending="\n", **keys):
    """Lines of USER:HEX; users get a random key."""
    keys.update((user, secrets.token_hex(32)) for user in users)
    with open(path, "w", newline="") as f:
        os.chmod(path, mode)
        f.writelines("%s:%s%s" % (user, key, ending) for user, key in keys.items())
    return path


if __name__ == "__main__":
    make(sys.argv[1])
