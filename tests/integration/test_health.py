"""Findings about real servers, with faults that were really made: each has its level, and a repair with the cure."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone
from pytest_django.fixtures import Settings

from config.celery import app
from singleflight_app import health
from singleflight_app.conf import get_settings
from singleflight_app.domain.states import Status
from singleflight_app.health import Finding, Level, database, flights, tables
from singleflight_app.health.finding import ok
from singleflight_app.health.running import run_all
from singleflight_app.storage.pool import dial
from tests import pooled
from tests.outages import Outage
from tests.rows import flight_row
from tests.valkeys import Valkey, free_port

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def found(name: str, among: list[Finding] | None = None) -> Finding:
    """Return the one finding of this name."""
    all_found = health.findings() if among is None else among
    named = [finding for finding in all_found if finding.id == name]
    assert len(named) == 1, [finding.id for finding in all_found]
    return named[0]


def of_database() -> list[Finding]:
    return list(database.check(get_settings()))


@contextmanager
def role_with(option: str, value: str) -> Iterator[None]:
    """Let every new session of the database begin with a setting."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
        cursor.execute(f"alter database {name} set {option} = '{value}'")
        try:
            yield
        finally:
            cursor.execute("set default_transaction_read_only = off")
            cursor.execute(f"alter database {name} reset {option}")


@contextmanager
def alias(name: str, **changes: str) -> Iterator[None]:
    """Have another alias of Django, which differs from the default one."""
    connections.settings[name] = {**connections.settings["default"], **changes}
    try:
        yield
    finally:
        del connections[name], connections.settings[name]


@contextmanager
def configured(**options: object) -> Iterator[None]:
    """Have other options of Celery."""
    before = {name: getattr(app.conf, name) for name in options}
    app.conf.update(options)
    try:
        yield
    finally:
        app.conf.update(before)


@pytest.fixture
def valkey(tmp_path: Path, settings: Settings) -> Iterator[Valkey]:
    """A Valkey of the test's own, as the app's Redis."""
    server = Valkey(tmp_path / "valkey")
    place = {**settings.CACHES["default"], "LOCATION": f"redis://127.0.0.1:{server.port}/0"}
    options = {**place["OPTIONS"], "SOCKET_TIMEOUT": 1, "SOCKET_CONNECT_TIMEOUT": 1}
    settings.CACHES = {**settings.CACHES, "default": {**place, "OPTIONS": options}}
    yield server
    server.resume()
    server.kill()


def test_where_all_is_well_every_part_is_looked_at() -> None:
    """And nothing is worse than a note, but for dead rows that earlier tests have left."""
    all_found = health.findings()

    assert {finding.subject for finding in all_found} == {"settings", "database", "flights", "redis", "celery"}
    assert {finding.id for finding in all_found} >= {
        "settings.checks",
        *(f"database.{name}" for name in ("answer", "clock", "connections", "migrations", "oldest_transaction")),
        *("flights.lease", "flights.pending", "flights.purge"),
        *(f"redis.{name}" for name in ("answer", "stream", "memory", "persistence", "clock", "stream_length")),
        *("celery.broker", "celery.queue", "celery.beat"),
    }
    bad = {finding.id for finding in all_found if finding.level.rank > Level.NOTE.rank}
    assert bad <= {"database.vacuum"}


def test_a_glance_has_the_numbers_of_a_dashboard() -> None:
    """Version, answer times, lag, oldest lease, what waits."""
    flight_row(status=Status.RUNNING, lease_expires_at=timezone.now() - timedelta(seconds=5))
    flight_row(status=Status.PENDING)

    facts = {finding.id: finding.facts for finding in health.glance(within=20)}

    assert facts["database.answer"].keys() >= {"version", "answer_ms"}
    assert facts["redis.answer"].keys() >= {"version", "answer_ms"}
    assert isinstance(facts["redis.stream"]["lag_ms"], float)
    assert (facts["flights.lease"]["running"], facts["flights.lease"]["stuck"]) == (1, 1)
    assert float(str(facts["flights.lease"]["oldest_expired_s"])) >= 5
    assert facts["flights.pending"]["pending"] == 1
    assert isinstance(facts["celery.queue"]["depth"], int)


# ---------------------------------------------------------------------------------------------------- PostgreSQL


def test_a_database_that_is_away_is_one_error(outage: Outage) -> None:
    """What needs it is not looked at."""
    outage.begin()

    (finding,) = of_database()

    assert (finding.id, finding.level) == ("database.answer", Level.ERROR)
    assert "gives no answer" in finding.text
    assert "Start it" in finding.repair


@pytest.mark.sessions
@pytest.mark.parametrize(
    ("option", "value", "name", "level"),
    [
        ("synchronous_commit", "off", "database.synchronous_commit", Level.ERROR),
        ("default_transaction_read_only", "on", "database.replica", Level.ERROR),
        ("default_transaction_isolation", "repeatable read", "database.isolation", Level.ERROR),
        ("statement_timeout", "300ms", "database.statement_timeout", Level.WARNING),
    ],
)
def test_a_session_that_begins_wrongly_is_found(option: str, value: str, name: str, level: Level) -> None:
    """Set for the database, the role or the server: what counts is what a session of the app begins with."""
    with role_with(option, value):
        finding = found(name, of_database())

    assert finding.level is level
    assert finding.repair
    assert not [finding for finding in of_database() if finding.id == name]


def test_what_one_server_can_not_be_made_to_be_is_found_too() -> None:
    """An old version, a replica, a server without fsync."""
    row = SimpleNamespace(number=130011, version="13.11", is_replica=True, fsync="off", full_page_writes="on")
    row.synchronous_commit = "on"

    levels = [
        (finding.id, finding.level)
        for look in (database._version, database._role, database._durability)
        for finding in look(row)
    ]

    assert levels == [(f"database.{name}", Level.ERROR) for name in ("version", "replica", "fsync")]


def test_a_database_without_migrations_says_which_are_missing() -> None:
    """Fresh, before the first `migrate`; no other check falls over it."""
    name = f"{connection.settings_dict['NAME']}_fresh"
    with connection.cursor() as cursor:
        cursor.execute(f"drop database if exists {name}")
        cursor.execute(f"create database {name}")
    try:
        with alias("fresh", NAME=name):
            all_found = health.findings(alias="fresh")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"drop database {name} (force)")

    finding = found("database.migrations", all_found)
    assert finding.level is Level.ERROR
    assert "0001_initial" in finding.text
    assert finding.repair == "Run `manage.py migrate`."
    assert not [finding for finding in all_found if finding.subject == "flights"]


def test_a_database_that_is_newer_than_this_release_is_a_note() -> None:
    """An old node in a rolling deploy."""
    with connection.cursor() as cursor:
        cursor.execute("insert into django_migrations (app, name, applied) values ('singleflight', '9999_next', now())")
        try:
            finding = found("database.migrations", of_database())
        finally:
            cursor.execute("delete from django_migrations where name = '9999_next'")

    assert (finding.level, "9999_next" in finding.text) == (Level.NOTE, True)


@pytest.mark.sessions
def test_a_transaction_that_is_open_for_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its process, for it keeps dead rows alive; the repair ends it."""
    monkeypatch.setattr(tables, "OLD_TRANSACTION", 0.0)
    with dial(get_settings()) as other, other.transaction():
        pid = other.execute("select pg_backend_pid(), txid_current()").fetchall()[0][0]

        finding = found("database.oldest_transaction", of_database())

        assert finding.level is Level.WARNING
        assert finding.facts["pid"] == pid
        assert f"pg_terminate_backend({pid})" in finding.repair


def test_a_table_that_is_not_vacuumed_is_found() -> None:
    """Autovacuum switched off for it; dead rows would only grow."""
    with connection.cursor() as cursor:
        cursor.execute("alter table singleflight_flight set (autovacuum_enabled = false)")
        try:
            finding = found("database.vacuum", of_database())
        finally:
            cursor.execute("alter table singleflight_flight reset (autovacuum_enabled)")

    assert (finding.level, "RESET (autovacuum_enabled)" in finding.repair) == (Level.WARNING, True)


@pytest.mark.sessions
def test_too_many_processes_for_the_server_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment tells how many there are."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1000")

    finding = found("database.connections", of_database())

    assert finding.level is Level.WARNING
    assert "Lower POOL_SIZE" in finding.repair


@pytest.mark.sessions
@pytest.mark.skipif(pooled.BINARY is None, reason="pgbouncer is not installed: apt-get install pgbouncer")
@pytest.mark.parametrize(("prepares", "level"), [(None, Level.NOTE), (True, Level.WARNING)])
def test_a_pooler_in_front_is_seen(prepares: bool | None, level: Level) -> None:
    """Transaction mode is fine; prepared statements by decree need a new one."""
    with pooled.pooler() as folder, alias("pooled", HOST=folder, PORT="5432"):
        there = replace(get_settings(), database="pooled", prepare_statements=prepares)
        all_found = list(database.check(there))

    finding = found("database.pooler", all_found)
    assert finding.level is level
    assert "transaction mode is fine" in finding.text
    assert ("max_prepared_statements" in finding.repair) is bool(prepares)
    assert "DISABLE_SERVER_SIDE_CURSORS" in found("database.cursors", all_found).repair


# ------------------------------------------------------------------------------------------------------- flights


def test_leases_that_nobody_sweeps_are_found() -> None:
    """A waiter, then the sweep, have one lease of time each: 60 s at most here, and this one is over for days."""
    long_ago = timezone.now() - timedelta(days=2)
    flight_row(status=Status.RUNNING, stage="calm", lease_expires_at=long_ago)

    finding = found("flights.lease", of_database())

    assert finding.level is Level.WARNING
    assert "singleflight_sweep" in finding.repair


def test_background_flights_without_a_worker_are_found() -> None:
    """Past the longest `pending_timeout`."""
    flight_row(status=Status.PENDING, stage="calm", created_at=timezone.now() - timedelta(days=2))

    finding = found("flights.pending", of_database())

    assert (finding.level, finding.facts["pending"]) == (Level.WARNING, 1)


def test_a_purge_that_never_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it has left."""
    monkeypatch.setattr(flights, "OVERDUE", 2)
    for _ in range(2):
        flight_row(expires_at=timezone.now() - timedelta(hours=3))

    finding = found("flights.purge", of_database())

    assert (finding.level, finding.facts["overdue"]) == (Level.WARNING, 2)
    assert "purge_flights" in finding.repair


# --------------------------------------------------------------------------------------------------------- Redis


def test_a_redis_that_is_away_is_an_error(valkey: Valkey) -> None:
    """Answers still come, but `forget` fails."""
    valkey.kill()

    finding = found("redis.answer")

    assert finding.level is Level.ERROR
    assert "woken by the poll" in finding.text


def test_a_redis_that_hangs_holds_nobody_up(valkey: Valkey) -> None:
    """It is a finding, whichever bound comes first."""
    valkey.pause()

    about_redis = [finding for finding in health.glance() if finding.subject == "redis"]

    assert len(about_redis) == 1
    assert about_redis[0].level.rank >= Level.WARNING.rank


def test_a_policy_that_evicts_the_streams_is_a_note(valkey: Valkey) -> None:
    """It says what it costs."""
    valkey.admin.config_set("maxmemory", "100mb")
    valkey.admin.config_set("maxmemory-policy", "allkeys-lru")

    finding = found("redis.eviction")

    assert (finding.level, finding.facts["policy"]) == (Level.NOTE, "allkeys-lru")
    assert "costs a poll interval" in finding.text


def test_a_redis_that_is_full_and_evicts_nothing_is_found(valkey: Valkey) -> None:
    """It refuses hints and floors: the probe is refused, or the memory tells."""
    used = valkey.admin.info("memory")["used_memory"]
    valkey.admin.config_set("maxmemory-policy", "noeviction")
    valkey.admin.config_set("maxmemory", str(int(used * 1.05)))

    bad = {finding.id: finding for finding in health.findings() if finding.level.rank >= Level.WARNING.rank}

    assert bad.keys() & {"redis.memory", "redis.answer"}
    assert all(finding.repair for finding in bad.values())


def test_snapshots_without_a_log_are_a_note(valkey: Valkey) -> None:
    """A restart from an old one brings forgotten outcomes back; one that saves nothing is fine."""
    assert found("redis.persistence").level is Level.OK

    valkey.admin.config_set("save", "3600 1")
    assert found("redis.persistence").level is Level.NOTE

    valkey.admin.config_set("appendonly", "yes")
    assert found("redis.persistence").level is Level.OK


def test_a_replica_takes_no_hint(valkey: Valkey, tmp_path: Path) -> None:
    """So it is no Redis for the app."""
    primary = Valkey(tmp_path / "primary")
    try:
        valkey.admin.execute_command("REPLICAOF", "127.0.0.1", primary.port)

        assert found("redis.replica").level is Level.ERROR
    finally:
        primary.kill()


@pytest.mark.parametrize("alias_of_cache", ["nowhere", "plain"])
def test_a_cache_that_is_no_redis_is_an_error(alias_of_cache: str, settings: Settings) -> None:
    """The system check says so too."""
    plain = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.CACHES = {**settings.CACHES, "plain": plain}
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "CACHE": alias_of_cache}

    all_found = health.findings()

    assert found("redis.answer", all_found).level is Level.ERROR
    assert found("settings.singleflight.E007", all_found).level is Level.ERROR


def test_no_redis_is_a_choice(settings: Settings) -> None:
    """Not a fault."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "CACHE": None}

    assert found("redis.answer").level is Level.NOTE


# -------------------------------------------------------------------------------------------------------- Celery


def test_a_broker_that_is_away_is_an_error_without_its_password() -> None:
    """Its address helps, its password must not be there."""
    address = f"amqp://mira:topsecret@127.0.0.1:{free_port()}//"
    with configured(broker_url=address, broker_transport_options={}):
        finding = found("celery.broker")

    assert finding.level is Level.ERROR
    assert "127.0.0.1" in finding.text
    assert "topsecret" not in finding.text


def test_a_queue_that_grows_is_told_in_numbers() -> None:
    """Messages that no worker takes; this one is of no flight, so that whoever takes it later has nothing to do."""
    before = found("celery.queue").facts["depth"]

    app.send_task("singleflight.run_flight", args=[0], ignore_result=True)

    assert found("celery.queue").facts["depth"] == int(str(before)) + 1


def test_celery_options_that_double_the_recovery_are_a_note() -> None:
    """And so is a beat without sweep and purge: something else may run them."""
    with configured(task_acks_late=True, beat_schedule={}):
        all_found = health.findings()

    assert found("celery.options", all_found).level is Level.NOTE
    assert "singleflight.purge" in found("celery.beat", all_found).text


def test_without_celery_that_is_all_there_is_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "celery.app", None)

    finding = found("celery.broker")

    assert (finding.level, "not installed" in finding.text) == (Level.NOTE, True)


# ------------------------------------------------------------------------------------------------------- as a whole


def test_local_mode_needs_no_server(settings: Settings, outage: Outage) -> None:
    """It says what was not looked at."""
    outage.begin()
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODE": "local"}

    assert [finding.id for finding in health.findings()] == ["settings.checks", "settings.mode"]
    assert [finding.id for finding in health.glance()] == ["settings.mode"]


def test_settings_that_make_no_sense_are_findings(settings: Settings) -> None:
    """Under the id of the system check, with its hint."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODUS": "hybrid"}

    (finding,) = health.findings()

    assert (finding.id, finding.level) == ("settings.singleflight.E001", Level.ERROR)
    assert "MODUS" in finding.text
    assert "Known options" in finding.repair


def test_a_check_that_hangs_or_fails_is_a_finding() -> None:
    """The others are told all the same, in their order."""
    gone_on = threading.Event()

    def failing() -> list[Finding]:
        raise ValueError("redis://mira:topsecret@host is odd")

    def hanging() -> list[Finding]:
        gone_on.wait(60)
        return []

    checks: dict[str, Any] = {"a": failing, "b": hanging, "c": lambda: [ok("c.fine", "fine")]}
    all_found = run_all(checks, within=0.5)
    gone_on.set()

    assert [finding.id for finding in all_found] == ["a.unknown", "b.unknown", "c.fine"]
    assert "topsecret" not in all_found[0].text
    assert all(finding.repair for finding in all_found[:2])


def test_passwords_of_the_settings_are_in_no_text(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a driver puts them."""
    secret = "grün-und-geheim"
    monkeypatch.setitem(settings.DATABASES, "other", {"PASSWORD": secret})

    (finding,) = run_all({"a": lambda: [ok("a.b", f"password={secret}")]}, within=5)

    assert finding.text == "password=***"


@pytest.mark.sessions
def test_a_server_that_refuses_the_role_is_told_without_its_password() -> None:
    """The server's own sentence is in it."""
    with alias("stranger", USER="stranger", PASSWORD="hush-hush"):
        all_found = health.findings(alias="stranger")

    finding = found("database.answer", all_found)
    assert finding.level is Level.ERROR
    assert "stranger" in finding.text
    assert "hush-hush" not in finding.text
