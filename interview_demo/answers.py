"""What the model answers in each stage: the shapes that a reply must have to count as an answer.

Extra fields are refused, so that the JSON schema which is sent along says the same as the check of the reply.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Answer(BaseModel):
    """Base of the answers: immutable, nothing beside the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Extraction(Answer):
    """What an interviewer takes from a resume."""

    questions: list[str] = Field(min_length=1, max_length=15)
    suggestions: list[str]
    direction: str
    resume_score: int = Field(ge=0, le=100)

    @model_validator(mode="after")
    def _questions_are_asked(self) -> Self:
        if not all(question.strip() for question in self.questions):
            raise ValueError("a question is empty")
        return self


class Score(Answer):
    """One answer of the candidate, judged."""

    score: int = Field(ge=0, le=100)
    logic_ok: bool
    missing_points: list[str]
    feedback: str
    follow_up_needed: bool
    follow_up_question: str


class FollowUp(Answer):
    """The next question on the same subject, or the end of it."""

    end_interview: bool
    ask_to_user: str
    target_skill: str
    difficulty: Literal["easy", "medium", "hard"]

    @model_validator(mode="after")
    def _asks_or_ends(self) -> Self:
        if not self.end_interview and not self.ask_to_user.strip():
            raise ValueError("neither a question nor the end")
        return self


class Report(Answer):
    """The interview as a whole."""

    overall_comment: str
    highlights: list[str] = Field(max_length=3)
    improvement_tips: list[str] = Field(max_length=3)
    next_actions: list[str] = Field(max_length=3)


class ScoredTurn(Answer):
    """One question with its answer and mark, as the report's prompt carries it."""

    question: str
    answer: str
    is_follow_up: bool
    score: int
    missing_points: list[str]


class Transcript(Answer):
    """All scored turns of an interview, in order."""

    turns: list[ScoredTurn]
