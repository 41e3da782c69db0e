"""Results that are too large for a row: the storage has the bytes, the row the name, and both go together (C34).

Long, since a file can be lost at each step between the call and the purge.
"""

import asyncio
import base64
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import FileSystemStorage
from django.core.management import call_command
from pytest_django.fixtures import Settings

from singleflight_app import CoordinationUnavailable, Layer, ResultTooLarge, Role
from singleflight_app.conf import get_settings
from singleflight_app.engine.handles import FlightHandle
from singleflight_app.models import Blob, Flight
from tests.held import Counted, Held, at_once, begin, results
from tests.looped import loops
from tests.nodes import Node, nodes
from tests.outages import Outage
from tests.past import end_leases
from tests.storages import Bucket, Folder, HangingStorage, bucket, hanging, storage_threads
from tests.stored import row_of
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

LARGE = "x" * 1200
_GONE = b"update singleflight_flight set expires_at = clock_timestamp() - interval '1 day' returning id"
_LONG_AGO = b"update singleflight_blob set created_at = clock_timestamp() - interval '1 day' returning id"


def _configure(settings: Settings, options: dict[str, Any], **more: Any) -> None:  # noqa: ANN401
    settings.STORAGES = {**settings.STORAGES, "results": options}
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "BLOB_STORAGE": "results", **more}


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> Folder:
    """A folder that takes large results."""
    made = Folder(tmp_path / "results")
    _configure(settings, made.options)
    return made


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Folder | Bucket]:
    """Each kind of storage in turn."""
    if request.param == "folder":
        yield request.getfixturevalue("folder")
        return
    with bucket() as made:
        _configure(settings, made.options)
        yield made


def _write(node: Node, statement: bytes) -> None:
    assert node.runtime.database is not None
    node.runtime.database.run(statement, {})


def _purge(node: Node) -> None:
    _write(node, _GONE)
    _write(node, _LONG_AGO)
    call_command("purge_flights")


def test_a_large_result_lies_in_the_storage_and_is_replayed_from_there(storage: Folder | Bucket, unique: str) -> None:
    """Its row has the name alone; another process gets the same value, and reads the file once."""
    with nodes(2) as (one, other):
        called = one.run("large", {"key": unique}, Counted(LARGE))
        replayed = other.run("large", {"key": unique}, Counted("not called"))
        again = other.run("large", {"key": unique}, Counted("not called"))

        assert (called.value, replayed.value, again.value) == (LARGE, LARGE, LARGE)
        assert (replayed.layer, again.layer) == (Layer.DATABASE, Layer.MEMORY)
        row = row_of(called)
        assert (row.result, [row.result_location]) == (None, storage.names())
        assert storage.read(row.result_location) == f'"{LARGE}"'.encode()


def test_a_result_that_fits_stays_in_its_row(folder: Folder, unique: str) -> None:
    """By the bytes that are stored, two of them quotation marks here."""
    with nodes(1) as (one,):
        called = one.run("large", {"key": unique}, Counted("x" * 998))

        assert row_of(called).result_location == ""
        assert folder.names() == []


def test_followers_and_handles_get_a_large_result(folder: Folder, unique: str) -> None:
    """In the owner's process, in another one, in a thread, on a loop, and by a handle."""
    call = Held(LARGE)

    async def ask() -> str:
        async def not_called() -> str:
            raise AssertionError

        return (await other.arun("large-row", {"key": unique}, not_called)).value

    with nodes(2) as (one, other):
        callers = at_once(2, one.run, "large-row", {"key": unique}, call)
        call.wait_until_begun()
        remote = begin(other.run, "large-row", {"key": unique}, call)
        looped = begin(asyncio.run, ask())
        other.wait_for_callers(one.key("large-row", {"key": unique}), 2)
        call.let_go()

        values = [*(outcome.value for outcome in results([*callers, remote])), *results([looped])]
        assert values == [LARGE] * 4
        owner = next(outcome for outcome in results(callers) if outcome.role is Role.OWNER)
        assert _handle(other, unique, owner.flight_id, owner.generation).wait(5).value == LARGE
    assert call.count == 1


def _handle(node: Node, unique: str, flight_id: int | None, generation: int | None) -> FlightHandle[Any]:
    from pydantic import JsonValue  # noqa: PLC0415

    from singleflight_app.engine.call import Call  # noqa: PLC0415
    from singleflight_app.outcomes.codec import for_policy  # noqa: PLC0415

    policy = node.runtime.settings.policy("large-row")
    call: Call[Any] = Call(
        node.key("large-row", {"key": unique}), policy, Counted(None), for_policy(JsonValue, policy), 5.0
    )
    return node.runtime.coordinator.handle(call, flight_id, generation)


def test_a_purge_deletes_the_row_and_then_the_file(
    storage: Folder | Bucket, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of a large result is left behind, and the line says so."""
    with nodes(1) as (one,):
        one.run("large", {"key": unique}, Counted(LARGE))
        _write(one, _GONE)

        call_command("purge_flights")

    assert "purged 1 flights and 0 audit rows, and deleted 1 files of results in" in capsys.readouterr().out
    assert (storage.names(), Blob.objects.count(), Flight.objects.count()) == ([], 0, 0)


def test_a_fenced_owner_deletes_its_file(folder: Folder, unique: str) -> None:
    """P3: what a late owner wrote is no answer; the newer one stays."""
    late = Held("late" * 300)
    with nodes(2) as (one, other):
        owner = begin(one.run, "large-fast", {"key": unique}, late)
        late.wait_until_begun()
        end_leases(one)
        newer = other.run("large-fast", {"key": unique}, Counted("newer" * 300))

        late.let_go()

        assert owner.result(20).value == "newer" * 300
        assert folder.names() == [row_of(newer).result_location]
        assert list(Blob.objects.values_list("location", flat=True)) == folder.names()


@pytest.mark.parametrize("how", ["fresh", "past"])
def test_the_file_of_a_replaced_outcome_goes_with_the_next_purge(folder: Folder, unique: str, how: str) -> None:
    """Once nobody can be writing it any more; the newer one stays."""
    with nodes(1) as (one,):
        one.run("large-row", {"key": unique}, Counted(LARGE))
        if how == "past":
            _write(one, _GONE)
        newer = one.run("large-row", {"key": unique}, Counted("newer" * 300), is_fresh=how == "fresh")
        call_command("purge_flights")
        assert len(folder.names()) == 2
        _write(one, _LONG_AGO)

        call_command("purge_flights")

        assert folder.names() == [row_of(newer).result_location]
        assert one.run("large-row", {"key": unique}, Counted("not called")).value == "newer" * 300


def test_the_file_of_an_owner_that_died_before_its_settle_is_swept(folder: Folder, unique: str) -> None:
    """Its name was noted before it was written; while its generation runs, it may still be settled."""
    with nodes(2) as (one, other):
        key = one.key("large-fast", {"key": unique})
        claimed = one.runtime.store.claim(key, label="", owner="dead", policy=one.runtime.settings.policy("large-fast"))
        assert isinstance(claimed, tuple)
        row = claimed[1]
        Blob.objects.create(location="singleflight/dead", flight_id=row.flight_id, generation=row.generation)
        folder.write("singleflight/dead", b"x")
        _write(one, _LONG_AGO)
        call_command("purge_flights")
        assert folder.names() == ["singleflight/dead"]
        one.expire(key)
        newer = other.run("large-fast", {"key": unique}, Counted(LARGE))
        _write(one, _LONG_AGO)

        call_command("purge_flights")

        assert folder.names() == [row_of(newer).result_location]


def test_what_the_storage_does_not_take_stays_in_the_row(
    settings: Settings, tmp_path: Path, unique: str, failures: list[str]
) -> None:
    """P8: a paid answer is kept where there is room for it."""
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    _configure(settings, Folder(in_the_way).options)
    with nodes(2) as (one, other):
        called = one.run("large-row", {"key": unique}, Counted(LARGE))

        assert other.run("large-row", {"key": unique}, Counted("not called")).value == LARGE
        assert row_of(called).result_location == ""
    assert failures == ["storage"]


def test_a_storage_that_gives_no_answer_costs_no_second_call(
    folder: Folder, settings: Settings, tmp_path: Path, unique: str
) -> None:
    """The caller is told, the outcome stays, and is there again when the storage is."""
    with nodes(1) as (one,):
        one.run("large-row", {"key": unique}, Counted(LARGE))
        in_the_way = tmp_path / "file"
        in_the_way.touch()
        _configure(settings, Folder(in_the_way).options)
        with nodes(1) as (other,), pytest.raises(CoordinationUnavailable, match="did not give back a stored result"):
            other.run("large-row", {"key": unique}, Counted("not called"))
        _configure(settings, folder.options)

        with nodes(1) as (other,):
            assert other.run("large-row", {"key": unique}, Counted("not called")).value == LARGE


class GivesOneName(FileSystemStorage):
    """A storage that names files by itself: all alike."""

    def __init__(self, location: str, *, name: str) -> None:
        super().__init__(location)
        self._name = name

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        """Put everything into the same file."""
        self.delete(self._name)
        return self._name


@pytest.mark.parametrize(("name", "location"), [("name", "name"), (f"{'d' * 200}/{'n' * 200}", "")])
def test_a_storage_may_name_its_files_itself(
    settings: Settings, tmp_path: Path, unique: str, name: str, location: str, failures: list[str]
) -> None:
    """P8: a name that it gave before is the newer result's; one that is too long leaves the result in the row."""
    backend = f"{__name__}.GivesOneName"
    _configure(settings, {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path), "name": name}})
    with nodes(2) as (one, other):
        one.run("large-row", {"key": f"{unique}-before"}, Counted("before" * 300))

        called = one.run("large-row", {"key": unique}, Counted(LARGE))

        assert called.value == other.run("large-row", {"key": unique}, Counted("not called")).value == LARGE
        assert row_of(called).result_location == location
    assert failures == ([] if location else ["storage", "storage"])


def test_a_purge_walks_past_files_that_are_needed(folder: Folder, unique: str) -> None:
    """No statement looks at more notes than one batch has, however many results are still in their TTL."""
    with nodes(1) as (one,):
        kept = [one.run("large-row", {"key": f"{unique}{number}"}, Counted(LARGE)) for number in range(3)]
        Blob.objects.create(location="singleflight/dead", flight_id=row_of(kept[0]).pk, generation=0)
        folder.write("singleflight/dead", b"x")
        _write(one, _LONG_AGO)

        found = one.runtime._notes.noted(after=0, grace=600, limit=2)
        call_command("purge_flights", batch_size=2)

        assert [(blob.location, blob.is_needed) for blob in found] == [
            (row_of(by).result_location, True) for by in kept[:2]
        ]
        assert folder.names() == sorted(row_of(by).result_location for by in kept)


@pytest.mark.parametrize("location", ["../../elsewhere", "/elsewhere", "singleflight"])
def test_a_name_that_no_file_can_have_is_led_anew(folder: Folder, unique: str, location: str) -> None:
    """R13: the row is damaged, the storage is not; and a purge has nothing to delete."""
    with nodes(2) as (one, other):
        called = one.run("large-row", {"key": unique}, Counted(LARGE))
        Flight.objects.filter(pk=row_of(called).pk).update(result_location=location)

        anew = other.run("large-row", {"key": unique}, Counted("anew"))

        assert (anew.value, anew.role) == ("anew", Role.OWNER)


class ForgetsNothing(FileSystemStorage):
    """A storage that says so when there is nothing to delete."""

    def delete(self, name: str) -> None:
        """Delete a file, or say that there is none."""
        Path(self.path(name)).unlink()


def test_a_note_goes_with_a_file_that_was_never_written(settings: Settings, tmp_path: Path, unique: str) -> None:
    """Its owner died between the two; not every storage passes over what is not there."""
    backend = f"{__name__}.ForgetsNothing"
    _configure(settings, {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path)}})
    with nodes(1) as (one,):
        Blob.objects.create(location=f"singleflight/{unique}", flight_id=0, generation=0)
        _write(one, _LONG_AGO)

        call_command("purge_flights")

        assert not Blob.objects.exists()


def test_a_storage_that_hangs_holds_up_who_waits_for_it_alone(settings: Settings, unique: str) -> None:
    """P4: other async callers of the process go on, and so do the statements of those who will wait for it."""
    count = get_settings().pool_size + 1

    async def large() -> str:
        return LARGE

    async def small() -> str:
        return "small"

    with hanging() as options, loops(1) as (loop,):
        _configure(settings, options)
        with nodes(2) as (one, other):
            owners = [begin(one.run, "large-row", {"key": f"{unique}{n}"}, Counted(LARGE)) for n in range(count)]
            until(lambda: storage_threads() == count, "all owners to write their files")
            aowners = [loop.begin(other.arun("large-row", {"key": f"a{unique}{n}"}, large)) for n in range(count)]
            until(lambda: storage_threads() == 2 * count, "as many async ones as there may be at once")

            quick = loop.run(other.arun("calm-row", {"key": unique}, small))

            assert quick.value == "small"
            HangingStorage.may_answer.set()
            assert {outcome.value for outcome in results([*owners, *aowners])} == {LARGE}


@pytest.mark.parametrize("damage", ["gone", "cut", "longer"])
def test_a_damaged_file_is_led_anew_once(storage: Folder | Bucket, unique: str, damage: str) -> None:
    """R13: whatever became of it, nobody gets another value, and the next caller gets an answer."""
    with nodes(2) as (one, other):
        called = one.run("large-row", {"key": unique}, Counted(LARGE))
        name = row_of(called).result_location
        if damage == "gone":
            storage.delete(name)
        else:
            storage.write(name, storage.read(name)[:-1] if damage == "cut" else storage.read(name) * 100)

        anew = other.run("large-row", {"key": unique}, Counted("anew"))

        assert (anew.value, anew.role) == ("anew", Role.OWNER)
        assert one.run("large-row", {"key": unique}, Counted("not called")).value == "anew"


def test_a_process_without_the_storage_passes_the_outcome_over(folder: Folder, settings: Settings, unique: str) -> None:
    """A deploy that is half done: the outcome is not forgotten, but replaced by one that everybody can read."""
    with nodes(1) as (one,):
        one.run("large-row", {"key": unique}, Counted(LARGE))
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "BLOB_STORAGE": None}
    with nodes(2) as (bare, other):
        replaced = bare.run("large-row", {"key": unique}, Counted(LARGE + "!"))

        assert (replaced.value, replaced.role) == (LARGE + "!", Role.OWNER)
        assert other.run("large-row", {"key": unique}, Counted("not called")).value == LARGE + "!"


def test_an_end_that_is_written_late_keeps_its_file(folder: Folder, unique: str, outage: Outage) -> None:
    """R6: the database was away between the file and the settle."""
    call = Held(LARGE)
    with nodes(2) as (one, other):
        owner = begin(one.run, "large-fast", {"key": unique}, call)
        call.wait_until_begun()
        original = one.runtime.coordinator._settling._try_settle

        def away(*_: object) -> None:
            one.runtime.coordinator._settling._try_settle = original  # type: ignore[method-assign]
            raise CoordinationUnavailable("away")

        one.runtime.coordinator._settling._try_settle = away  # type: ignore[method-assign,assignment]
        call.let_go()

        assert owner.result(20).value == LARGE
        until(lambda: row_of(owner.result(0)).status == "succeeded", "the late settle")
        assert [row_of(owner.result(0)).result_location] == folder.names()
        assert other.run("large-fast", {"key": unique}, Counted("not called")).value == LARGE


def test_a_sealed_result_is_sealed_in_the_storage_too(folder: Folder, settings: Settings, unique: str) -> None:
    """Whoever can read the folder reads nothing."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": [key]}
    with nodes(2) as (one, other):
        one.run("large-row", {"key": unique}, Counted(LARGE))

        assert other.run("large-row", {"key": unique}, Counted("not called")).value == LARGE
    (name,) = folder.names()
    assert b"xxx" not in folder.read(name)


@pytest.mark.parametrize("size", [5_000_000, 50_000_000])
def test_megabytes_are_stored_out_of_the_row(folder: Folder, unique: str, size: int) -> None:
    """C34: where `max_result_bytes` allows them, every process gets them."""
    value = secrets.token_hex(size // 2)
    with nodes(2) as (one, other):
        called = one.run("huge", {"key": unique}, Counted(value))

        assert other.run("huge", {"key": unique}, Counted("not called")).value == value
        assert row_of(called).result is None
        assert row_of(called).size == size + 2


def test_fifty_megabytes_are_refused_for_replay_by_name(folder: Folder, unique: str) -> None:
    """C34: the default `max_result_bytes`; those who waited beside the owner have the value, and no file is written."""
    call = Held("x" * 50_000_000)
    with nodes(2) as (one, other):
        callers = at_once(2, one.run, "large-row", {"key": unique}, call)
        call.wait_until_begun()
        one.wait_for_callers(one.key("large-row", {"key": unique}), 2)
        call.let_go()

        assert [len(outcome.value) for outcome in results(callers)] == [50_000_000] * 2
        with pytest.raises(ResultTooLarge, match="has 50000002 bytes and max_result_bytes is 10000000"):
            other.run("large-row", {"key": unique}, call)
    assert folder.names() == []


def test_two_purges_at_once_delete_each_file_once_or_twice_and_lose_none(folder: Folder, unique: str) -> None:
    """A purge is safe beside itself."""
    with nodes(1) as (one,):
        for number in range(20):
            one.run("large-row", {"key": f"{unique}{number}"}, Counted(LARGE))
        kept = one.run("large-row", {"key": unique}, Counted(LARGE))
        assert one.runtime.database is not None
        one.runtime.database.run(
            b"update singleflight_flight set expires_at = clock_timestamp() - interval '1 day' "
            b"where id <> %(kept)s returning id",
            {"kept": kept.flight_id},
        )

        results(at_once(2, call_command, "purge_flights", batch_size=5))

        assert folder.names() == [row_of(kept).result_location]
        assert Blob.objects.count() == 1
