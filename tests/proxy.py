"""A proxy in front of PostgreSQL that loses a reply after the server has committed, as a cut network would."""

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from django.db import connection

#: An Execute message with an unnamed portal: the client asks for a prepared statement to be run.
_EXECUTE = b"E\x00\x00\x00\x09\x00\x00\x00\x00\x00"
#: A Sync message, after which the client waits.
_SYNC = b"S\x00\x00\x00\x04"
#: ReadyForQuery, idle: the statement is committed.
_READY = b"Z\x00\x00\x00\x05I"
_PORT = "5432"


class Proxy:
    """Listens on a socket in `folder`; every connection goes to the server of the default alias."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lost_replies = self.statements = self.round_trips = self.refused = 0
        self._is_cut = False
        # Where the server is by now: a test may point the alias here later.
        self._server = str(connection.settings_dict["HOST"]), str(connection.settings_dict["PORT"] or _PORT)
        self._armed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(folder, f".s.PGSQL.{_PORT}")))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def lose_next_reply(self) -> None:
        """Let the next statement commit, and cut the connection in place of its reply."""
        self._armed.set()

    def cut(self) -> None:
        """End all connections, and refuse each that is asked for until `mend`."""
        self._is_cut = True
        for end in self._sockets:
            _cut(end)

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        """Cut everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            _cut(end)
        self._accepting.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                self.refused += 1
                _cut(client)
                continue
            server = _connect(*self._server)
            self._sockets += [client, server]
            is_doomed = threading.Event()
            for pump in (self._to_server, self._to_client):
                threading.Thread(target=pump, args=(client, server, is_doomed), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, is_doomed: threading.Event) -> None:
        while data := _received(client):
            self.statements += data.count(_EXECUTE)
            self.round_trips += data.count(_SYNC)
            if _EXECUTE in data and self._armed.is_set():
                self._armed.clear()
                is_doomed.set()
            with suppress(OSError):
                server.sendall(data)
        _cut(server)

    def _to_client(self, client: socket.socket, server: socket.socket, is_doomed: threading.Event) -> None:
        reply = b""
        while data := _received(server):
            if not is_doomed.is_set():
                with suppress(OSError):
                    client.sendall(data)
                continue
            reply += data
            if reply.endswith(_READY):
                self.lost_replies += 1
                break
        _cut(client)
        _cut(server)


@contextmanager
def proxy() -> Iterator[Proxy]:
    """Have a proxy whose `folder` stands in for the database's host."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="sf") as folder, ExitStack() as stack:
        there = Proxy(folder)
        stack.callback(there.close)
        yield there


def _connect(host: str, port: str) -> socket.socket:
    if host.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(Path(host, f".s.PGSQL.{port}")))
        return server
    return socket.create_connection((host, int(port)))


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
