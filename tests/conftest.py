"""What every test may use: the servers (on first need), a name that no other test uses, and waiting for facts."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.servers import start_servers
from singleflight_app import wiring
from singleflight_app.telemetry.signals import coordination_failed
from tests import held
from tests.embedded import Folder, folder, leave
from tests.outages import Outage


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Have servers before the test database is made (one for each worker); tests that need none start none."""
    start_servers()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Close the app's own connections before the test database is dropped."""
    yield
    wiring.close()


@pytest.fixture
def unique() -> str:
    """Return a string that makes a key of this test's own; flights are committed and outlive a rolled-back test."""
    return uuid.uuid4().hex


@pytest.fixture(autouse=True)
def ended_threads() -> Iterator[None]:
    """No caller outlives its test."""
    yield
    held.wait_for_all_begun()


@pytest.fixture
def empty_tables(transactional_db: None) -> None:
    """Begin without the flights that earlier tests committed, for tests that look at all there are."""
    from singleflight_app.models import Flight, FlightEvent, StageStat  # noqa: PLC0415  (not before Django is set up)

    for model in (Flight, FlightEvent, StageStat):
        model.objects.all().delete()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that was made and stopped: copies of it save the making."""
    path = tmp_path_factory.mktemp("made") / "servers"
    with folder(path) as here:
        leave(here.user())
        here.wait_for_the_end()
    return path


@pytest.fixture
def here(tmp_path: Path, template: Path) -> Iterator[Folder]:
    """A folder with a database."""
    with folder(tmp_path / "servers", template) as made:
        yield made


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Return the switch of a database that is out of reach."""
    return Outage(monkeypatch)


@pytest.fixture
def failures() -> Iterator[list[str]]:
    """Components whose failure was announced."""
    seen: list[str] = []

    def remember(*, component: str, **_: object) -> None:
        seen.append(component)

    coordination_failed.connect(remember)
    yield seen
    coordination_failed.disconnect(remember)
