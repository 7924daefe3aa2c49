"""way - how a case gets to a server: in plain text, or by TLS.

    @every_way
    def a_promise(way):
        with way.serve(**DISK) as s, way.connect(s) as c: ...
"""

import functools

import nbdraw
import pki
from server import FRONT_ENDS, Platterd, served


class Way:
    def __init__(self, server, tls):
        self.server = server
        self.folder = pki.make(server.path("pki")) if tls else None

    def serve(self, *words, **how):
        if self.folder:
            how["tls"] = self.folder + "/server"
        return self.server(*words, **how)

    def greet(self, s, **how):
        client = nbdraw.Client(s.address, **how)
        if self.folder:
            client.starttls(self.folder + "/client")
        return client

    def connect(self, s, *words, **how):
        return nbdraw.connect(s.address, *words, **how,
                              tls=self.folder and self.folder + "/client")


def every_way(case=None, *, on=FRONT_ENDS, tls=True, way=Way):
    """Registers a case, which gets a Way, for each front end, and by TLS for our own server."""
    if case is None:
        return functools.partial(every_way, on=on, tls=tls, way=way)
    served(lambda server: case(way(server, False)), name=case.__name__, on=on)
    if tls:
        served(lambda server: case(way(server, True)), name=case.__name__ + "_by_tls",
               on=[Platterd])
    return case
