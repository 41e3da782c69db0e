"""A session of PostgreSQL opened and closed again, spoken without a driver.

Loading one costs ten times what the rest of a start does, and would read PGOPTIONS and its like.
"""

import socket
import struct
from pathlib import Path
from typing import BinaryIO

PROTOCOL_3 = 196608
TIMEOUT = 2.0

READY = "00000"
NO_ANSWER = ""
STARTING_OR_STOPPING = "57P03"
NO_SUCH_DATABASE = "3D000"


def greet(address: Path, user: str, database: str) -> str:
    """READY, or the SQLSTATE with which the server refuses the session, or NO_ANSWER."""
    parameters = f"user\0{user}\0database\0{database}\0\0".encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as stream:
            connection.settimeout(TIMEOUT)
            connection.connect(str(address))
            connection.sendall(struct.pack("!II", len(parameters) + 8, PROTOCOL_3) + parameters)
            answer = _answer(stream)
            if answer == READY:
                connection.sendall(b"X\0\0\0\4")  # terminate
            return answer
    except (OSError, struct.error):
        return NO_ANSWER


def _answer(stream: BinaryIO) -> str:
    """Read messages up to the one that decides; the server looks for the database after it let the user in."""
    while True:
        kind, length = struct.unpack("!cI", stream.read(5))
        body = stream.read(length - 4)
        if kind == b"Z":
            return READY
        if kind == b"E":
            fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0")}
            return fields.get(b"C", NO_ANSWER)
