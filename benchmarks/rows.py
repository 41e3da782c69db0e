"""Rows by the hundred thousand, as the protocol would have left them."""

import psycopg

_FLIGHTS = """
insert into {schema}.singleflight_flight
    (digest, stage, scope, label, status, generation, owner, attempts, started_at, settled_at, expires_at,
     result, encoding, checksum, size)
select sha256(convert_to(%(stage)s || n, 'utf8')), %(stage)s, 'bench:' || n %% 1000, '', 'succeeded', n, 'bench:1:1', 1,
    clock_timestamp() - interval '2 days', clock_timestamp() - interval '2 days',
    clock_timestamp() - interval '1 day' - n * interval '1 ms',
    decode(repeat(md5(n::text), 19), 'hex'), '1/json', sha256('x'), 304
from generate_series(1, %(count)s) n
"""
_EVENTS = """
insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner, at)
select f.id, f.digest, f.stage, f.generation, kind, f.owner, clock_timestamp() - interval '10 years'
from singleflight_flight f, unnest(array['granted', 'settled']) as kind
where f.stage = %(stage)s
"""


def load_flights(connection: psycopg.Connection, stage: str, count: int, *, schema: str = "public") -> None:
    """Store so many flights that succeeded two days ago and expired a day ago, 300 bytes each."""
    connection.execute(_FLIGHTS.format(schema=schema).encode(), {"stage": stage, "count": count})
    connection.execute(f"analyze {schema}.singleflight_flight".encode())


def load_events(connection: psycopg.Connection, stage: str) -> None:
    """Store two audit rows of each flight of a stage, ten years old."""
    connection.execute(_EVENTS.encode(), {"stage": stage})
    connection.execute(b"analyze singleflight_flightevent")
