"""The decorator: what makes two calls one, what it refuses, and how it looks to whoever reads the code (C29).

In local mode, so that no server is needed; what servers add is in `tests/integration`. Long by the uses that it
shows: right ones, and wrong ones with their sentences.
"""

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import asgiref.sync
import pytest
from pydantic import BaseModel
from pytest_django.fixtures import Settings

from singleflight_app import GLOBAL, FlightKey, InvalidRequest, Role, SingleFlight, folded, run, single_flight


class Score(BaseModel):
    """What a decorated function returns."""

    points: int


@pytest.fixture(autouse=True)
def _local(settings: Settings) -> None:
    settings.SINGLEFLIGHT = {"MODE": "local", "CACHE": None}


@pytest.fixture(autouse=True)
def _stages_of_one_test() -> Iterator[None]:
    """Let each test give its functions the stages it likes."""
    known = dict(folded.registry)
    yield
    folded.registry.clear()
    folded.registry.update(known)


calls: list[tuple[object, ...]] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def tenant_scope(tenant: str) -> str:
    """Return whose answer it is."""
    return f"tenant:{tenant}"


@single_flight("decorated-score", scope=tenant_scope, version="prompt-3")
def score(tenant: str, answer: str, *, level: int = 1) -> Score:
    """Judge an answer."""
    calls.append((tenant, answer, level))
    return Score(points=len(calls))


def test_however_it_is_written_it_is_one_call() -> None:
    """C29: by position, by name, in any order, with or without a default, 1 or 1.0."""
    found = [
        score("a", "yes"),
        score("a", answer="yes"),
        score(answer="yes", tenant="a"),
        score("a", "yes", level=1),
        score("a", "yes", level=1.0),  # type: ignore[arg-type]
    ]

    assert found == [Score(points=1)] * 5
    assert calls == [("a", "yes", 1)]


def test_another_argument_or_tenant_is_another_call() -> None:
    """P9: and None is not the same as left out."""
    score("a", "yes")
    score("a", "no")
    score("b", "yes")
    score("a", "yes", level=2)
    score("a", "yes", level=None)  # type: ignore[arg-type]

    assert len(calls) == 5


def test_a_decorated_function_looks_like_itself() -> None:
    """Name, docstring, module and signature are those of the function."""
    assert score.__name__ == score.__qualname__ == "score"
    assert score.__doc__ == "Judge an answer."
    assert score.__module__ == __name__
    assert (
        str(inspect.signature(score))
        == "(tenant: str, answer: str, *, level: int = 1) -> tests.unit.test_decorated_functions.Score"
    )


def test_a_decorated_method_looks_like_itself() -> None:
    """A bound one has lost its `self`, as any method has."""
    assert Marker("a").mark.__name__ == "mark"
    assert Marker("a").mark.__doc__ == "Mark an answer."
    assert str(inspect.signature(Marker.mark)) == "(self, answer: str) -> str"
    assert str(inspect.signature(Marker("a").mark)) == "(answer: str) -> str"
    assert str(inspect.signature(_as_any(Marker).mark_all)) == "(answer: str) -> str"
    assert str(inspect.signature(Marker.mark_plain)) == "(answer: str) -> str"


def test_a_decorated_coroutine_function_looks_like_itself() -> None:
    """Django and its companions ask whether it has to be awaited."""
    flight = single_flight("decorated-coroutine", scope=GLOBAL)(_unused)

    assert flight.__name__ == "_unused"
    assert asgiref.sync.iscoroutinefunction(flight)
    assert not asgiref.sync.iscoroutinefunction(score)
    assert str(inspect.signature(flight)) == "() -> int"


def test_wrong_arguments_are_a_type_error_as_ever() -> None:
    """Python's own sentence, and no call."""
    with pytest.raises(TypeError, match="missing a required argument: 'answer'"):
        score("a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'grade'"):
        score("a", "yes", grade=1)  # type: ignore[call-arg]

    assert not calls


def test_the_forms_agree_on_the_key() -> None:
    """`key` explains what `outcome` and `forget` mean."""
    outcome = score.outcome("a", "yes")
    key: FlightKey = score.key("a", answer="yes")

    assert outcome.role is Role.OWNER
    assert '"answer":"yes"' in key.canonical
    assert key.scope == "tenant:a"
    assert score.forget(tenant="a", answer="yes") is True
    assert score.outcome("a", "yes").role is Role.OWNER


def test_an_argument_without_a_canonical_form_is_refused_before_the_call() -> None:
    """By its name."""
    with pytest.raises(InvalidRequest, match="argument answer is a set"):
        score("a", {1})  # type: ignore[arg-type]

    assert not calls


def test_key_replaces_the_arguments() -> None:
    """What it returns is compared, whatever else the function takes."""

    @single_flight("decorated-keyed", scope=GLOBAL, key=lambda answer_id: answer_id)
    def keyed(client: Any, answer_id: UUID) -> int:  # noqa: ANN401
        calls.append((client,))
        return len(calls)

    one, same, other = keyed(object(), UUID(int=1)), keyed(object(), UUID(int=1)), keyed(object(), UUID(int=2))

    assert (one, same, other) == (1, 1, 2)


class Marker:
    """A class whose methods are flights."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant

    @single_flight("decorated-method", scope=GLOBAL)
    def mark(self, answer: str) -> str:
        """Mark an answer."""
        calls.append((self.tenant,))
        return f"{answer} by {self.tenant}"

    @classmethod
    @single_flight("decorated-classmethod", scope=GLOBAL)
    def mark_all(cls, answer: str) -> str:
        """Mark by class."""
        calls.append((cls,))
        return f"{answer} by {cls.__name__}"

    @staticmethod
    @single_flight("decorated-staticmethod", scope=GLOBAL)
    def mark_plain(answer: str) -> str:
        """Mark without self."""
        calls.append(())
        return answer


def test_self_is_no_part_of_the_key() -> None:
    """What it changes must be an argument: two objects share one answer."""
    one, other = Marker("a"), Marker("b")

    answers = [one.mark("x"), other.mark("x"), one.mark(answer="x"), Marker.mark(one, "x")]

    assert answers == ["x by a"] * 4
    assert calls == [("a",)]
    assert one.mark.outcome("x").role is Role.REPLAY
    assert one.mark.key("x").digest == other.mark.key("x").digest
    assert one.mark.forget("x") is True


def test_class_and_static_methods_are_flights_when_the_decorator_is_inside() -> None:
    """Called on the class or on an instance."""
    # mypy binds no object that stands below @classmethod
    by_class, by_object = _as_any(Marker).mark_all, _as_any(Marker("a")).mark_all
    answers = [by_class("x"), by_object("x"), Marker.mark_plain("x"), _as_any(Marker("a")).mark_plain("x")]

    assert answers == ["x by Marker", "x by Marker", "x", "x"]
    assert calls == [(Marker,), ()]


def test_the_forms_of_a_class_method_take_the_class() -> None:
    """On every Python: from 3.13 on, no descriptor below @classmethod is asked, and the class would be lost."""
    mark_all = _as_any(Marker).mark_all

    outcome = mark_all.outcome(Marker, "z")

    assert outcome.value == "z by Marker"
    assert mark_all("z") == "z by Marker"
    assert mark_all.key(Marker, "z").digest == _as_any(Marker("a")).mark_all.key(Marker, answer="z").digest
    assert mark_all.forget(Marker, "z") is True


@pytest.mark.parametrize("form", ["outcome", "key", "forget", "submit"])
def test_a_class_method_without_its_class_is_refused(form: str) -> None:
    """An argument that is taken for the class would be left out of the key."""
    with pytest.raises(InvalidRequest, match=r"give the class itself first, as in X\.mark_all\.outcome\(X|no `cls`"):
        getattr(_as_any(Marker).mark_all, form)("z", "answer")

    assert not calls


@pytest.mark.parametrize(
    "submit",
    [
        lambda: Marker("a").mark.submit("x"),
        lambda: Marker.mark.submit(Marker("a"), "x"),
        lambda: _as_any(Marker).mark_all.submit(Marker, "x"),
    ],
)
def test_a_method_can_not_be_submitted(submit: Callable[[], object]) -> None:
    """No worker has its object."""
    with pytest.raises(InvalidRequest, match="submit a plain function"):
        submit()


def _generator() -> Iterator[int]:
    yield 1


async def _unused() -> int:
    return 1


async def _asynchronous_generator() -> AsyncIterator[int]:
    yield 1


def _plain(answer: str) -> str:
    return answer


def _as_any(thing: object) -> Any:  # noqa: ANN401  (uses that no type checker would let pass)
    return thing


def _method(self: object, answer: str) -> str:
    return answer


_method.__qualname__ = "Marker._method"  # as if it stood in the class


def test_a_plain_function_may_call_its_first_argument_cls() -> None:
    """C29: only a method has a receiver; a class label is part of the key."""

    def classify(cls: str, text: str) -> str:
        return f"{text}: {cls}"

    flight = single_flight("classifying", scope=GLOBAL)(classify)

    assert flight.key("spam", "hello") != flight.key("ham", "hello")


@pytest.mark.parametrize(
    ("decorate", "sentence"),
    [
        (lambda: single_flight("s")(_plain), "the scope is None; give a non-empty string"),
        (lambda: single_flight("s", scope="")(_plain), "the scope is ''"),
        (lambda: single_flight("s", scope=lambda tenant: tenant)(_plain), "scope asks for tenant; the arguments are"),
        (lambda: single_flight("s", scope=lambda self: self)(_method), "scope asks for self; the arguments are answer"),
        (
            lambda: single_flight("s", scope=lambda *, answer: answer, key=len)(_plain),
            "key takes its arguments by name; write them without",
        ),
        (lambda: single_flight("s", scope=GLOBAL, key=lambda other: other)(_plain), "key asks for other"),
        (
            lambda: single_flight("s", scope=GLOBAL, key=_as_any("answer"))(_plain),
            "key is 'answer'; give a function of the arguments that count",
        ),
        (lambda: single_flight("s", scope=GLOBAL, key=_unused)(_plain), "key is an async function; give a plain one"),
        (lambda: single_flight("s", scope=_as_any(_unused))(_plain), "scope is an async function; give a plain one"),
        (
            lambda: single_flight("s", scope=_as_any(iter))(_plain),
            "scope takes its arguments by name|tells no arguments",
        ),
        (lambda: single_flight("s", scope=_as_any(7))(_plain), "the scope is 7; give a non-empty string"),
        (lambda: single_flight("s", scope=GLOBAL, version=_as_any(3))(_plain), "the version is 3; give a string"),
        (lambda: single_flight("no stage", scope=GLOBAL)(_plain), "'no stage' is no stage name"),
        (lambda: single_flight("s", scope=GLOBAL)(_as_any(classmethod)(_plain)), "below @classmethod"),
        (lambda: single_flight("s", scope=GLOBAL)(staticmethod(_plain)), "below @staticmethod"),
        (
            lambda: single_flight("s", scope=GLOBAL)(functools.partial(_plain, "x")),
            "decorate a function, not a partial",
        ),
        (lambda: single_flight("s", scope=GLOBAL)(Score), "decorate a function, not a"),
    ],
)
def test_a_wrong_use_is_refused_when_the_module_is_imported(
    decorate: Callable[[], SingleFlight[..., Any]], sentence: str
) -> None:
    """Not at the first request of a customer."""
    with pytest.raises(InvalidRequest, match=sentence):
        decorate()


@pytest.mark.parametrize("function", [_generator, _asynchronous_generator])
def test_what_gives_no_value_when_it_returns_is_refused(function: Callable[[], object]) -> None:
    """A generator would be stored as nothing, and its work done by nobody."""
    with pytest.raises(InvalidRequest):
        single_flight("s", scope=GLOBAL)(function)


def test_a_scope_that_comes_out_empty_is_refused_at_the_call() -> None:
    """P9: an anonymous user is no tenant."""
    with pytest.raises(InvalidRequest, match="the scope is ''"):
        single_flight("s", scope=lambda answer: answer)(_plain)("")


def test_a_stage_belongs_to_one_function() -> None:
    """Two functions under one stage would answer for each other; a reloaded module is the same function."""

    def another(answer: str) -> str:
        return answer

    single_flight("decorated-owned", scope=GLOBAL)(_plain)
    single_flight("decorated-owned", scope=GLOBAL)(_plain)

    with pytest.raises(InvalidRequest, match=r"stage 'decorated-owned' belongs to .*_plain; give .*another a stage"):
        single_flight("decorated-owned", scope=GLOBAL)(another)


def test_an_annotation_that_is_not_imported_is_told_with_the_repair() -> None:
    """Linters like to move imports under TYPE_CHECKING; the result's type is read at run time."""

    def function(answer: str) -> "NotImported":  # type: ignore[name-defined]  # noqa: F821
        return answer

    flight: SingleFlight[[str], str] = SingleFlight(function, stage="s", scope=GLOBAL)

    with pytest.raises(InvalidRequest, match="import it outside of TYPE_CHECKING"):
        flight("x")


def test_a_return_type_that_can_not_be_stored_is_told_before_the_call() -> None:
    """P8: no call is paid whose answer could not be kept."""

    class Client:
        """What no JSON can say."""

    def function(answer: str) -> Client:
        calls.append((answer,))
        return Client()

    flight = single_flight("s", scope=GLOBAL)(function)

    with pytest.raises(InvalidRequest, match="can't be stored as JSON"):
        flight("x")
    assert not calls


def test_a_function_without_annotations_returns_plain_json() -> None:
    """Nothing has to be annotated to begin with."""

    def function(answer):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return {"answer": [answer, None, 1.5]}

    flight = single_flight("s", scope=GLOBAL)(function)

    assert flight("x") == flight("x") == {"answer": ["x", None, 1.5]}


def test_a_stage_of_a_function_is_nobody_elses() -> None:
    """`run` with the same stage and words would be answered with the function's result."""

    @single_flight("owned-stage", scope=GLOBAL)
    def owned(x: int) -> int:
        return x

    with pytest.raises(InvalidRequest, match=r"belongs to .*owned; give run\(\) a stage"):
        run("owned-stage", {"x": 1}, lambda: 2, scope=GLOBAL)
