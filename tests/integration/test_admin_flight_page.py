"""The page of a flight with real rows: its state in a sentence, its timeline, its audit rows."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import override_settings
from django.utils import timezone

from singleflight_app.domain.states import Status
from singleflight_app.storage import selectors
from tests.rows import event_row, flight_row
from tests.staff import PAGE, page, staff

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def _said(**columns: object) -> str:
    """Return the head of the page of such a flight, as words."""
    times = {name: timezone.now() + value for name, value in columns.items() if isinstance(value, timedelta)}
    shown = page(staff("view_flight"), PAGE, flight_row(**{**columns, **times}).pk)
    head = shown[shown.index('<section class="singleflight-head"') :]
    return " ".join(re.sub("<[^>]*>", " ", head[: head.index("</section>")]).split())


def _in(**units: float) -> timedelta:
    """Return a time relative to when the row is made; this one is collected long before."""
    return timedelta(**units)


def test_audit_rows_are_listed_newest_first() -> None:
    """Those of this flight and nobody else's, escaped."""
    flight, other = flight_row(), flight_row()
    event_row(flight, kind="granted")
    event_row(flight, kind="forgotten", actor="ops@example.com", detail="by <hand>")
    event_row(other, kind="taken_over")

    shown = page(staff("view_flight"), PAGE, flight.pk)

    assert shown.index("<td>forgotten</td>") < shown.index("<td>granted</td>")
    assert "ops@example.com" in shown
    assert "by &lt;hand&gt;" in shown
    assert "<hand>" not in shown
    assert "taken_over" not in shown
    assert flight.digest_hex in shown


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"status": Status.RUNNING, "owner": "node-b:7:x"},
            r"▶ running Running on node-b:7 for 1 min 1\d s, last beat",
        ),
        ({"status": Status.RUNNING, "owner": "n:7:x"}, r"ago, lease for [23]\d\.\d s more\.$"),
        (
            {"status": Status.RUNNING, "lease_expires_at": _in(seconds=-90)},
            "lease over for 1 min 3.*The next caller takes",
        ),
        ({"status": Status.RUNNING, "owner": "", "lease_expires_at": _in(seconds=-1)}, "lease was ended by hand"),
        ({"status": Status.PENDING, "started_at": None}, r"◷ pending Has waited for a worker for \d"),
        ({"status": Status.PENDING, "started_at": None, "created_at": _in(hours=-1)}, "whoever asks next runs it"),
        ({"status": Status.SUCCEEDED}, r"Succeeded on node-a:100 after 10\.\d s\. Its result answers for 59 min"),
        ({"status": Status.SUCCEEDED, "forgotten": True}, "It was forgotten: whoever asks next gets a new call"),
        ({"status": Status.SUCCEEDED, "expires_at": _in(hours=-1)}, "Whoever asks next gets a new call"),
        ({"status": Status.FAILED}, "The same failure is replayed for 59 min"),
        ({"status": Status.FAILED, "retryable": True, "retry_at": _in(seconds=-1)}, "Whoever asks next tries again"),
        ({"status": Status.FAILED, "retryable": True, "retry_at": _in(hours=2)}, "replayed for 1 h 59 min more; then"),
        ({"status": Status.TIMED_OUT}, "Outlived execution_timeout"),
        ({"status": Status.CANCELLED}, "Cancelled. Whoever asks next gets a new call."),
    ],
)
def test_the_state_is_said_in_a_sentence(columns: dict[str, object], said: str) -> None:
    """What it means for whoever asks now, by the database clock."""
    assert re.search(said, _said(**columns))


@pytest.mark.parametrize("status", list(Status))
def test_pages_do_without_time_zones(status: Status) -> None:
    """With USE_TZ off all times are local ones."""
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Shanghai"):
        flight = flight_row(status=status, started_at=timezone.now() - timedelta(seconds=70))
        event_row(flight, at=flight.started_at)

        shown = page(staff("view_flight"), PAGE, flight.pk)

    assert "singleflight-timeline-picture" in shown
    assert status is not Status.RUNNING or re.search(r"for 1 min 1\d s, last beat \d\.\d s ago", shown)


def test_error_usage_and_savings_are_told() -> None:
    """The error is text of a provider, and never markup."""
    flight = flight_row(
        status=Status.FAILED, error_type="app.Refused", error_message="<b>no</b>", model="small-1", input_tokens=41
    )
    shared = flight_row(cost="0.5", joins=3, replays=1)
    client = staff("view_flight")

    failed, succeeded = page(client, PAGE, flight.pk), page(client, PAGE, shared.pk)

    assert "app.Refused" in failed
    assert "&lt;b&gt;no&lt;/b&gt;" in failed
    assert "<b>no</b>" not in failed
    assert "small-1" in failed
    assert "Saved 2.00 (joins: 3, replays: 1)." in succeeded
    assert "app.Refused" not in succeeded


def test_progress_is_shown() -> None:
    """As far as the call says it is; its text is escaped."""
    flight = flight_row(status=Status.RUNNING, progress={"fraction": 0.25, "text": "page <1>"})

    shown = page(staff("view_flight"), PAGE, flight.pk)

    assert '<progress value="0.25" max="1"></progress> page &lt;1&gt;' in shown


def test_the_timeline_is_drawn_with_owners_as_lanes() -> None:
    """A bar per generation, marks for what else happened, a lease for a running one, and a text alternative."""
    start = timezone.now() - timedelta(seconds=60)
    flight = flight_row(status=Status.RUNNING, generation=12, owner="node-b:2:y", started_at=start)
    event_row(flight, kind="granted", generation=11, owner="node-a:1:x", at=start)
    event_row(flight, kind="taken_over", generation=12, owner="node-b:2:y", at=start + timedelta(seconds=30))
    event_row(flight, kind="fenced", generation=11, owner="node-a:1:x", at=start + timedelta(seconds=40))

    shown = page(staff("view_flight"), PAGE, flight.pk)

    assert shown.count('<g class="sf-lane">') == 2
    assert "node-a:1<title>node-a:1:x</title>" in shown
    assert shown.count('<g class="sf-bar sf-lost">') == 1
    assert shown.count('<g class="sf-bar sf-running">') == 1
    assert 'class="sf-late"' in shown
    assert 'class="sf-mark sf-mark-taken_over"' in shown
    assert 'class="sf-lease"' in shown
    assert 'aria-labelledby="timeline-title timeline-desc"' in shown
    assert "style=" not in shown[shown.index('<svg class="singleflight-timeline') : shown.index("</desc>")]


def test_the_timeline_has_plain_numbers_in_every_language() -> None:
    """A decimal comma or a grouped thousand would be no coordinate."""
    flight = flight_row(status=Status.RUNNING)

    with override_settings(USE_THOUSAND_SEPARATOR=True, LANGUAGE_CODE="de", LANGUAGES=[("de", "Deutsch")]):
        shown = page(staff("view_flight"), PAGE, flight.pk)

    start = shown.index("<svg class=", shown.index("picture-heading"))
    picture = shown[start : shown.index("</svg>", start)]
    numbers = re.findall(r' (?:x|y|x1|x2|y1|y2|width|height)="([^"]*)"', picture)
    assert numbers
    assert all(number.isdigit() for number in numbers)


def test_of_many_audit_rows_the_newest_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the page says that there are more; the picture has a dozen generations."""
    monkeypatch.setattr(selectors, "EVENTS_SHOWN", 40)
    flight = flight_row(generation=100)
    for number in range(30):
        event_row(flight, kind="granted", generation=70 + number)
        event_row(flight, kind="settled", generation=70 + number, detail="succeeded")

    shown = page(staff("view_flight"), PAGE, flight.pk)

    assert shown.count("<td>granted</td>") == 20
    assert "The newest 40 rows; there may be older ones." in shown
    assert shown.count('<g class="sf-bar sf-succeeded">') == 12
    assert "8 older generations are not drawn." in shown


def test_a_flight_whose_audit_rows_are_purged_has_a_page() -> None:
    """A settled one without a picture, a running one with what its row knows."""
    settled, running = flight_row(), flight_row(status=Status.RUNNING)
    client = staff("view_flight")

    without, with_one = page(client, PAGE, settled.pk), page(client, PAGE, running.pk)

    assert "Nothing is left of its audit rows." in without
    assert "singleflight-timeline-picture" not in without
    assert '<g class="sf-bar sf-running">' in with_one


def test_the_result_is_a_link_for_those_who_may_read_it() -> None:
    """The page itself never has it."""
    flight = flight_row()
    client = staff("view_flight")
    without = page(client, PAGE, flight.pk)
    User.objects.get().user_permissions.add(Permission.objects.get(codename="view_result_flight"))

    with_permission = page(client, PAGE, flight.pk)

    assert f"/{flight.pk}/result/" not in without
    assert f"/{flight.pk}/result/" in with_permission
