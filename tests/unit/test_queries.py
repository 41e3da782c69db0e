"""queries.sql: every statement is named, explained, complete, and asked for by somebody."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

import singleflight_app
from singleflight_app.storage.queries import query

TEXT = files("singleflight_app.storage").joinpath("queries.sql").read_text(encoding="utf-8")
HEADS = re.findall(r"^-- (name|fragment): (\w+)\n((?:--.*\n)+)", TEXT, re.MULTILINE)
NAMES = [name for kind, name, _ in HEADS if kind == "name"]
SOURCES = "".join(path.read_text(encoding="utf-8") for path in Path(singleflight_app.__path__[0]).rglob("*.py"))


def test_every_statement_and_fragment_has_a_head() -> None:
    """A name without a comment would be missing here."""
    assert len(HEADS) == len(re.findall(r"^-- (?:name|fragment):", TEXT, re.MULTILINE))
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_is_complete(name: str) -> None:
    """No slot is left open, no comment is sent, and it is one statement."""
    text = query(name).decode()

    assert not re.search(r"\{\w+\}", text)
    assert "--" not in text
    assert ";" not in text
    assert re.match(r"\s*(with|select|insert|update|delete)\b", text)


@pytest.mark.parametrize(("name", "comment"), [(name, comment) for kind, name, comment in HEADS if kind == "name"])
def test_a_statement_says_what_no_row_means(name: str, comment: str) -> None:
    """Form 5 of the style: the move first, then what to make of an empty answer."""
    silent = {"count_expired_flights", "count_expired_events", "add_tallies"}

    assert name in silent or re.search(r"[Nn]o row|returns no row|Count 0", comment), comment


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_is_asked_for(name: str) -> None:
    """What nobody sends is not kept."""
    assert f'"{name}"' in SOURCES


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_reads_the_database_clock_alone(name: str) -> None:
    """R1: `now()` stands still inside a transaction, and no time comes from the application."""
    text = query(name).decode()

    assert not re.search(r"\bnow\(\)|current_timestamp|localtime|statement_timestamp", text, re.IGNORECASE)


@pytest.mark.parametrize("name", ["grant_flight", "queue_flight", "lose_flight", "renew_leases", "purge_flights"])
def test_whoever_loses_a_race_does_not_wait_for_the_winner(name: str) -> None:
    """Taking over, renewing, sweeping and purging pass over locked rows."""
    assert re.search(r"for update( of \w+)? skip locked", query(name).decode())


def test_an_owners_write_carries_id_generation_and_owner() -> None:
    """P3: a late owner matches no row."""
    for name, parts in {
        "settle_flight": ("%(flight_id)s", "%(generation)s", "%(owner)s", "status = 'running'"),
        "renew_leases": ("d.generation = f.generation", "%(owner)s", "status = 'running'"),
    }.items():
        for part in parts:
            assert part in query(name).decode()


def test_an_unknown_statement_is_an_error() -> None:
    """A typo is found by the first test that runs it."""
    with pytest.raises(KeyError):
        query("no_such_statement")
