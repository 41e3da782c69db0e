"""The interview in numbers: the mean of the main questions, and the radar made of what is known."""

from collections.abc import Iterable, Mapping
from statistics import fmean

from interview_demo.models import Interview, Turn

SKILLS = {"interview": 0.7, "resume": 0.3}
POTENTIAL = {"interview": 0.55, "resume": 0.25, "demeanor": 0.20}


def totals(interview: Interview) -> dict[str, float | None]:
    """Return total and radar of an interview; a part that is not known yet is None."""
    total = mean_score(interview.turns.all())
    resume = interview.extraction and float(interview.extraction["resume_score"])
    known = {"interview": total, "resume": resume}
    return {
        "total": total,
        **known,
        "skills": weighted(SKILLS, known),
        "potential": weighted(POTENTIAL, known),
    }


def mean_score(turns: Iterable[Turn]) -> float | None:
    """Return the mean over the main questions that have a score; follow-ups don't count."""
    scores = [turn.score["score"] for turn in turns if turn.score and not turn.is_follow_up]
    return round(fmean(scores), 1) if scores else None


def weighted(weights: Mapping[str, float], known: Mapping[str, float | None]) -> float | None:
    """Return the weighted mean of the known parts; the weights of missing ones are shared among the rest."""
    parts = [(weight, value) for name, weight in weights.items() if (value := known.get(name)) is not None]
    return round(sum(w * value for w, value in parts) / sum(w for w, _ in parts), 1) if parts else None
