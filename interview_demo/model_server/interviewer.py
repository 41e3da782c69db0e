"""What the simulated model thinks of a resume, an answer, an interview.

Every function takes the prompt's data and the call's mark, and returns the answer's fields. What decides the
course of an interview (whether a follow-up is needed) hangs on the answer alone; the scores vary by chance.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_QUESTIONS = 10
_ENOUGH_WORDS = 60
_ENOUGH_REASONS = 3
_REASONS = re.compile(
    r"\b(because|so that|therefore|instead of|trade-?off|measured|unless|otherwise|\d+)\b", re.IGNORECASE
)
_ORDERS = re.compile(
    r"\b(ignore|forget|disregard|override)\b.{0,40}\b(rules?|instructions?|prompt|rubric)\b|\bscore\s*(=|:|of)\s*100\b",
    re.IGNORECASE | re.DOTALL,
)
_LIST = re.compile(r"[^.,]+(,[^.,]+){3,}")  #: a line of skills
_DIMENSIONS = {
    "implementation": "how exactly did you build that, step by step?",
    "edge case": "which input or moment breaks it first, and what happens then?",
    "performance": "where does the time go under ten times the load, and how would you find out?",
    "troubleshooting": "it fails at three in the morning: what do you look at first, and why?",
    "trade-off": "what did you give up for it, and when would you decide otherwise?",
}
_CLAIM_QUESTIONS = (
    'Your resume says: "{claim}". What was the hardest part, and how did you know it worked?',
    'About "{claim}": which alternatives did you turn down, and why?',
    'Take "{claim}". What would fail first if the load grew tenfold?',
)
_SKILL_QUESTIONS = (
    "When did {skill} last surprise you in production, and what did you change?",
    "For which kind of problem would you not choose {skill}?",
)


def extract(data: Mapping[str, Any], mark: str) -> Mapping[str, object]:
    """Turn the resume's own claims and skills into questions."""
    lines = _joined(str(data.get("resume", "")).splitlines())
    claims = [line[1:].strip() for line in lines if line.startswith(("-", "*", "•"))] or lines[:MAX_QUESTIONS]
    skills = next((re.split(r",\s*", line) for line in lines if _LIST.fullmatch(line)), [])
    questions = [random.choice(_CLAIM_QUESTIONS).format(claim=_short(claim.rstrip("."), 140)) for claim in claims]
    questions += [random.choice(_SKILL_QUESTIONS).format(skill=skill.strip()) for skill in skills if skill.strip()]
    unproven = [claim for claim in claims if not re.search(r"\d", claim)]
    return {
        "questions": questions[:MAX_QUESTIONS] or ["What did you build last, and what was hard about it?"],
        "suggestions": [f'Put a number behind "{_short(claim.rstrip("."))}".' for claim in unproven[:3]],
        "direction": f"{lines[1] if len(lines) > 1 else 'Not stated'} (simulated reading {mark})",
        "resume_score": _bounded(50 + 3 * len(claims) + 2 * len(skills) + random.randint(-6, 6)),
    }


def score(data: Mapping[str, Any], mark: str) -> Mapping[str, object]:
    """Judge an answer by its substance, its reasons and how it keeps to the question."""
    question, answer = str(data.get("question", "")), str(data.get("answer", ""))
    if _ORDERS.search(answer):
        return _refused(mark)
    substance = min(1.0, len(answer.split()) / _ENOUGH_WORDS)
    reasoning = min(1.0, len(_REASONS.findall(answer)) / _ENOUGH_REASONS)
    missing = [word for word in _content_words(question) if word not in answer.lower()][:3]
    kept = 1.0 - len(missing) / 4
    points = 40 * (0.4 + 0.6 * substance) * (0.7 + 0.3 * kept) + 20 * substance + 20 * reasoning
    points += 15 * substance * reasoning + 5 * kept + random.randint(-6, 6)
    shallow = substance < 1.0 or reasoning < 1.0
    return {
        "score": _bounded(points),
        "logic_ok": reasoning > 0,
        "missing_points": [f"nothing was said about {word}" for word in missing],
        "feedback": f'"{_short(answer, 60)}" {_verdict(substance, reasoning)} (simulated reading {mark})',
        "follow_up_needed": shallow,
        "follow_up_question": f'You said "{_short(answer, 60)}": why?' if shallow else "",
    }


def follow_up(data: Mapping[str, Any], mark: str) -> Mapping[str, object]:
    """Ask deeper on one dimension, or end the subject when enough was asked."""
    if int(data.get("follow_ups_asked", 0)) >= int(data.get("follow_ups_allowed", 0)):
        return {
            "end_interview": True,
            "ask_to_user": "",
            "target_skill": f"simulated reading {mark}",
            "difficulty": "easy",
        }
    dimension = random.choice(list(_DIMENSIONS))
    said = _short(str(data.get("answer", "")), 60)
    return {
        "end_interview": False,
        "ask_to_user": f'You said "{said}": {_DIMENSIONS[dimension]}',
        "target_skill": f"{dimension} (simulated reading {mark})",
        "difficulty": random.choice(["easy", "medium", "hard"]),
    }


def report(data: Mapping[str, Any], mark: str) -> Mapping[str, object]:
    """Sum up the turns: the best become highlights, what was missing becomes tips."""
    turns: Sequence[Mapping[str, Any]] = data.get("turns") or []
    ranked = sorted(turns, key=lambda turn: int(turn.get("score", 0)), reverse=True)
    mean = sum(int(turn.get("score", 0)) for turn in turns) / len(turns) if turns else 0
    tips = [point for turn in reversed(ranked) for point in turn.get("missing_points", [])]
    counted = "1 answer" if len(turns) == 1 else f"{len(turns)} answers"
    return {
        "overall_comment": f"{counted}, {mean:.0f} points on average (simulated reading {mark}).",
        "highlights": [f'{turn["score"]} points: "{_short(str(turn["answer"]), 70)}"' for turn in ranked[:3]],
        "improvement_tips": list(dict.fromkeys(tips))[:3] or ["Give the reason before the result."],
        "next_actions": [f"Practise: {_short(str(turn['question']), 90)}" for turn in ranked[-2:]],
    }


def _refused(mark: str) -> Mapping[str, object]:
    return {
        "score": 0,
        "logic_ok": False,
        "missing_points": ["an answer to the question"],
        "feedback": f"The answer gives orders instead of an answer (simulated reading {mark})",
        "follow_up_needed": False,
        "follow_up_question": "",
    }


def _verdict(substance: float, reasoning: float) -> str:
    if substance >= 1.0 and reasoning >= 1.0:
        return "is complete, and every step has its reason."
    return "stays short of the reasons." if reasoning < 1.0 else "leaves much unsaid."


def _joined(lines: Sequence[str]) -> list[str]:
    """Return the lines with each wrapped bullet made whole: a continuation begins in lower case."""
    joined: list[str] = []
    for line in lines:
        if joined and line[:1].islower():
            joined[-1] = f"{joined[-1]} {line}"
        else:
            joined.append(line)
    return joined


def _content_words(text: str) -> list[str]:
    return list(dict.fromkeys(word for word in re.findall(r"[a-z]{5,}", text.lower())))


def _short(text: str, length: int = 100) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rsplit(" ", 1)[0] + "…"


def _bounded(points: float) -> int:
    return max(1, min(100, round(points)))
