"""DATABASE_URL and REDIS_URL: what is taken, and the one sentence for what is not."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.addresses import database_from, redis_url_from
from config.servers import places


def test_nothing_given_names_the_embedded_servers() -> None:
    """By their sockets, short enough for every system."""
    database, redis = database_from({"DATABASE_URL": ""}), redis_url_from({})

    assert database["HOST"] == str(places.postgres_sockets())
    assert database["NAME"] == "singleflight"
    assert redis == f"unix://{places.valkey_socket()}?db=0"
    assert len(f"{database['HOST']}/.s.PGSQL.{database['PORT']}") < 104


@pytest.mark.parametrize("folder", ["x" * 300, "/a/very/deep" + "/folder" * 60])
def test_socket_path_is_short_however_deep_the_checkout(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """A unix socket's path has at most 107 bytes."""
    monkeypatch.setenv("SINGLEFLIGHT_SERVERS_DIR", folder)

    assert len(str(places.postgres_sockets())) < 80


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://u:p%40ss@db:6432/app",
            {"USER": "u", "PASSWORD": "p@ss", "HOST": "db", "PORT": 6432, "NAME": "app"},
        ),
        ("postgres://db/app", {"HOST": "db", "NAME": "app"}),
        ("postgresql://ci@%2Frun%2Fpg/app", {"USER": "ci", "HOST": "/run/pg", "NAME": "app"}),
        ("postgresql:///app?host=/run/pg", {"HOST": "/run/pg", "NAME": "app", "OPTIONS": {}}),
        ("postgresql://db/app?sslmode=require", {"OPTIONS": {"sslmode": "require"}}),
    ],
)
def test_url_of_a_database_is_taken(url: str, expected: dict[str, object]) -> None:
    """TCP or a socket folder, with options."""
    database = database_from({"DATABASE_URL": url})

    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert {key: database[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:///db.sqlite3", "has the scheme 'sqlite', but flights need PostgreSQL"),
        ("mysql://u:secret@h/db", "has the scheme 'mysql', but flights need PostgreSQL"),
        ("not a url", "has no scheme"),
        ("secret:secret", "has no scheme"),
        ("postgresql:///db", "names no host"),
        ("postgresql://u:secret@/db", "names no host"),
        ("postgresql://u:secret@h", "names no database"),
        ("postgresql://u:secret@h/", "names no database"),
        ("postgresql://u:secret@h:port/db", "is not a valid URL"),
        ("postgresql://u:sec#ret@h/db", "is not a valid URL"),
        ("postgresql://u:sec[ret@h/db", "is not a valid URL"),
        ("postgresql://h:99999/db", "is not a valid URL"),
    ],
)
def test_wrong_database_url_is_one_sentence_without_the_password(url: str, problem: str) -> None:
    """The sentence has the repair, and nothing of the URL but its scheme."""
    with pytest.raises(ImproperlyConfigured) as caught:
        database_from({"DATABASE_URL": url})

    sentence = str(caught.value)
    assert sentence.startswith(f"DATABASE_URL {problem}")
    assert "Write postgresql://USER:PASSWORD@HOST:PORT/NAME" in sentence
    assert "sec" not in sentence
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "url", ["redis://cache", "redis://:pw@cache:6380/3", "rediss://cache/0", "unix:///run/redis.sock?db=1"]
)
def test_url_of_redis_is_taken_as_it_is(url: str) -> None:
    """django-redis reads it."""
    assert redis_url_from({"REDIS_URL": url}) == url


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("memcached://u:secret@h", "has the scheme 'memcached', but the cache needs Redis"),
        ("localhost:6379", "has no scheme"),
        ("redis://:secret@/0", "names no host"),
        ("redis://:secret@h:port/0", "is not a valid URL"),
        ("redis://:secret@h/zero", "names a database that is not a number"),
        ("unix://", "names no socket"),
        ("redis://[secret/0", "is not a valid URL"),
    ],
)
def test_wrong_redis_url_is_one_sentence_without_the_password(url: str, problem: str) -> None:
    """The sentence has the repair, and nothing of the URL but its scheme."""
    with pytest.raises(ImproperlyConfigured) as caught:
        redis_url_from({"REDIS_URL": url})

    sentence = str(caught.value)
    assert sentence.startswith(f"REDIS_URL {problem}")
    assert "Write redis://HOST:PORT/0" in sentence
    assert "secret" not in sentence
