"""rude - NBD clients without manners: those that hold up, and do not go on."""

import resource
import socket
import struct
import time

import nbdraw
import tap
from nbdraw import CMD_READ, CMD_WRITE, OPT_STARTTLS

MiB = 1 << 20


def many_files(count):
    """Lets this process, and what it starts, have that many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        tap.skip("no more than %d descriptors are allowed here" % hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


def raw(address, timeout=30):
    """A connection that has said nothing."""
    if isinstance(address, str):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(timeout)
        s.connect(address)
        return s
    return socket.create_connection(address, timeout)


def is_open(s):
    """Whether the server has left this connection open; what it has sent is skipped."""
    s.setblocking(False)
    try:
        while s.recv(65536):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        s.setblocking(True)


def request(command, cookie, offset=0, length=0, flags=0):
    return struct.pack(">IHHQQI", 0x25609513, flags, command, cookie, offset, length)


def stuck_in_tls(address):
    """A client that begins TLS and goes no further."""
    c = nbdraw.Client(address)
    c.must(OPT_STARTTLS)
    c.socket.sendall(bytes.fromhex("1603010200010001fc0303"))
    return c.socket


def never_reads(s, count, size, name=""):
    """Asks for much, until nothing more is taken, and reads nothing."""
    c = nbdraw.connect(s.address, name)
    c.socket.setblocking(False)
    for n in range(count):
        try:
            if c.socket.send(request(CMD_READ, n + 1000, 0, size)) < 28:
                break
        except BlockingIOError:
            time.sleep(0.01)
            break
    c.socket.setblocking(True)
    return c


def stops_in_a_write(s, size, name=""):
    """Asks for memory for its data, and sends little of that."""
    c = nbdraw.connect(s.address, name)
    c.send_head(CMD_WRITE, 0, size)
    c.socket.sendall(bytes(4096))
    return c
