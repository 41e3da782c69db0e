"""The moves of an interview: start, answer, report.

Each may be asked for by many requests at once, on any node, before or after a crash: the expensive call is
made once (a flight), and the interview advances once. What a move writes is fenced by the flight's
generation; a degraded flight has none and writes nothing.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import close_old_connections
from django.db.models import QuerySet

from interview_demo import flights
from interview_demo.answers import Answer, FollowUp, ScoredTurn, Transcript
from interview_demo.model import model_name
from interview_demo.models import Interview, Turn
from interview_demo.receipts import OutcomeOf, Receipt, receipt_of
from interview_demo.resumes import Resume


class InterviewConflict(Exception):
    """The request contradicts what is stored; nothing was changed."""


@dataclass(frozen=True)
class Advance:
    """What a request brought about: by which flights, and whether it moved the interview on."""

    receipts: list[Receipt]
    advanced: bool


def start(session: UUID, resume: Resume) -> tuple[Interview, Advance]:
    """Begin an interview, or join its beginning: one extraction, one first question."""
    interview, _ = Interview.objects.get_or_create(
        session=session,
        defaults={
            "resume_name": resume.name[:200],
            "resume_digest": resume.digest,
            "resume_excerpt": resume.excerpt,
            "model": model_name(),
        },
    )
    if interview.resume_digest != resume.digest:
        raise InterviewConflict("this interview was started with another resume; start a new one")
    _let_go()
    outcome = flights.extract_resume.outcome(session=str(session), resume=resume.content, model=interview.model)
    _write(Interview.objects.filter(pk=interview.pk), outcome, field="extraction", fence="extraction_generation")
    interview.refresh_from_db()
    advanced = _ask(interview, number=1, main_number=1, question=outcome.value.questions[0])
    return interview, Advance([receipt_of(flights.EXTRACTION_STAGE, outcome)], advanced)


def answer(interview: Interview, number: int, text: str) -> tuple[Turn, Advance]:
    """Score the answer to a turn and ask the next question. Empty text: the answer that is stored."""
    turn = _answered(interview, number, text)
    _let_go()
    outcome = flights.score_answer.outcome(
        session=str(interview.session),
        question_number=turn.number,
        question=turn.question,
        answer=turn.answer,
        resume=interview.resume_excerpt,
        model=interview.model,
    )
    written = _write(Turn.objects.filter(pk=turn.pk), outcome, field="score", fence="generation")
    turn.refresh_from_db()
    receipts = [receipt_of(flights.SCORE_STAGE, outcome)]
    if turn.score and turn.score["follow_up_needed"] and turn.follow_ups_before < flights.MAX_FOLLOW_UPS:
        follow_up = _follow_up(interview, turn)
        receipts.append(receipt_of(flights.FOLLOW_UP_STAGE, follow_up))
        if not follow_up.value.end_interview:
            return turn, Advance(receipts, _go_deeper(interview, turn, follow_up.value.ask_to_user))
    return turn, Advance(receipts, _go_on(interview, turn, is_first=written))


def report(interview: Interview) -> tuple[Interview, Advance]:
    """Write the report over all scored turns."""
    turns = transcript(interview)
    _let_go()
    outcome = flights.write_report.outcome(session=str(interview.session), transcript=turns, model=interview.model)
    rows = Interview.objects.filter(pk=interview.pk)
    written = _write(rows, outcome, field="report", fence="report_generation")
    interview.refresh_from_db()
    return interview, Advance([receipt_of(flights.REPORT_STAGE, outcome)], written)


def transcript(interview: Interview) -> Transcript:
    """Return the scored turns; an interview without any has nothing to report."""
    turns = [
        ScoredTurn(
            question=turn.question,
            answer=turn.answer,
            is_follow_up=turn.is_follow_up,
            score=turn.score["score"],
            missing_points=turn.score["missing_points"],
        )
        for turn in interview.turns.all()
        if turn.score
    ]
    if not turns:
        raise InterviewConflict("no answer was scored yet; answer a question first")
    return Transcript(turns=turns)


def _answered(interview: Interview, number: int, text: str) -> Turn:
    """Give the turn its answer if it has none; the first one stays."""
    turns = Turn.objects.filter(interview=interview, number=number)
    if text:
        turns.filter(answer="").update(answer=text)
    turn = turns.first()
    if turn is None:
        raise InterviewConflict(f"question {number} was not asked yet")
    if not turn.answer:
        raise InterviewConflict(f"question {number} has no answer yet; send one")
    if text and turn.answer != text:
        raise InterviewConflict(f"question {number} was answered already; the first answer stays")
    return turn


def _follow_up(interview: Interview, turn: Turn) -> OutcomeOf[FollowUp]:
    _let_go()
    return flights.choose_follow_up.outcome(
        session=str(interview.session),
        question_number=turn.number,
        question=turn.question,
        answer=turn.answer,
        follow_ups_asked=turn.follow_ups_before,
        model=interview.model,
    )


def _go_deeper(interview: Interview, turn: Turn, question: str) -> bool:
    return _ask(
        interview,
        number=turn.number + 1,
        main_number=turn.main_number,
        question=question,
        follow_ups_before=turn.follow_ups_before + 1,
    )


def _go_on(interview: Interview, turn: Turn, *, is_first: bool) -> bool:
    """Ask the resume's next question; after the last one the score alone was the advance."""
    questions = (interview.extraction or {}).get("questions", [])
    if turn.main_number >= len(questions):
        return is_first
    main_number = turn.main_number + 1
    question = questions[main_number - 1]
    return _ask(interview, number=turn.number + 1, main_number=main_number, question=question)


def _ask(interview: Interview, *, number: int, main_number: int, question: str, follow_ups_before: int = 0) -> bool:
    """Add a turn; True for the one request whose turn it is."""
    _, created = Turn.objects.get_or_create(
        interview=interview,
        number=number,
        defaults={
            "main_number": main_number,
            "question": question,
            "follow_ups_before": follow_ups_before,
        },
    )
    return created


def _write(rows: QuerySet[Any], outcome: OutcomeOf[Answer], *, field: str, fence: str) -> bool:
    """Store an answer where the row's generation is older; True if this request wrote it.

    Equal generations hold equal answers, so followers of the writer have nothing to write.
    """
    if outcome.generation is None:
        return False
    fresh = rows.filter(**{f"{fence}__lt": outcome.generation})
    return bool(fresh.update(**{field: outcome.value.model_dump(), fence: outcome.generation}))


def _let_go() -> None:
    """Give back the request's connection: the call may take seconds, and whoever waits needs none.

    Django takes a new one at the next query. Under a CONN_MAX_AGE the connection is kept.
    """
    close_old_connections()
