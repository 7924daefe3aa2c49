"""nbdlink - tells Linux's NBD driver what nbd-client does not: how long a device waits for a server
that is gone, and the connections to go on with. By generic netlink, see nbd-netlink.h of Linux.
"""

import os
import socket
import struct

GENERIC, REQUEST, ACK, ERROR, NESTED = 16, 1, 4, 2, 1 << 15
CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 16, 3, 1, 2
RECONFIGURE = 3
INDEX, SOCKETS, DEAD_CONN_TIMEOUT = 1, 7, 8
SOCKET, SOCKET_FD = 1, 1


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def nested(kind, *attributes):
    return attribute(kind | NESTED, b"".join(attributes))


def ask(family, command, *attributes):
    """Returns the attributes of the first answer, {kind: data}."""
    body = struct.pack("=BBH", command, 1, 0) + b"".join(attributes)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC) as s:
        s.send(struct.pack("=IHHII", 16 + len(body), family, REQUEST | ACK, 1, 0) + body)
        answer = s.recv(1 << 16)
    length, kind = struct.unpack_from("=IH", answer)
    if kind == ERROR:
        error, = struct.unpack_from("=i", answer, 16)
        if error:
            raise OSError(-error, os.strerror(-error))
    found, at = {}, 20
    while kind != ERROR and at < length:
        size, name = struct.unpack_from("=HH", answer, at)
        found[name] = answer[at + 4:at + size]
        at += (size + 3) & ~3
    return found


def reconfigure(index, *attributes):
    family = ask(CONTROL, GET_FAMILY, attribute(FAMILY_NAME, b"nbd\0"))[FAMILY_ID]
    ask(struct.unpack("=H", family)[0], RECONFIGURE, attribute(INDEX, struct.pack("=I", index)),
        *attributes)


def be_patient(index, seconds):
    """Requests to /dev/nbdINDEX wait that long for a server to come back."""
    reconfigure(index, attribute(DEAD_CONN_TIMEOUT, struct.pack("=Q", seconds)))


def go_on(index, sockets):
    """With these, which are ready for commands, in place of those that are dead."""
    reconfigure(index, nested(SOCKETS, *(nested(SOCKET, attribute(
        SOCKET_FD, struct.pack("=I", s.fileno()))) for s in sockets)))
