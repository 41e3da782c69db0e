"""The interview's four expensive calls. Each is one flight per interview, made once whoever asks how often.

Arguments are all that the answer depends on, because they are the key; the prompt's version stands in it too.
"""

from interview_demo import prompts
from interview_demo.answers import Extraction, FollowUp, Report, Score, Transcript
from interview_demo.model import ask
from interview_demo.resumes import resume_text
from singleflight_app import single_flight

EXTRACTION_STAGE = "interview-extraction"
SCORE_STAGE = "interview-score"
FOLLOW_UP_STAGE = "interview-followup"
REPORT_STAGE = "interview-report"
STAGES = (EXTRACTION_STAGE, SCORE_STAGE, FOLLOW_UP_STAGE, REPORT_STAGE)

MAX_FOLLOW_UPS = 2


def interview_scope(session: str) -> str:
    """Return whose answer it is: interviews never share one, not even with the same resume."""
    return f"interview:{session}"


@single_flight(EXTRACTION_STAGE, scope=interview_scope, version=prompts.EXTRACTION.version)
def extract_resume(*, session: str, resume: bytes, model: str) -> Extraction:
    """Turn a resume into questions; the key holds the digest of the file's bytes, not its name."""
    request = {"resume": resume_text(resume)}
    return ask(EXTRACTION_STAGE, prompts.EXTRACTION, request, Extraction, model=model)


@single_flight(SCORE_STAGE, scope=interview_scope, version=prompts.SCORE.version)
def score_answer(*, session: str, question_number: int, question: str, answer: str, resume: str, model: str) -> Score:
    """Judge one answer."""
    request = {"question": question, "answer": answer, "resume": resume}
    return ask(SCORE_STAGE, prompts.SCORE, request, Score, model=model)


@single_flight(FOLLOW_UP_STAGE, scope=interview_scope, version=prompts.FOLLOW_UP.version)
def choose_follow_up(
    *, session: str, question_number: int, question: str, answer: str, follow_ups_asked: int, model: str
) -> FollowUp:
    """Ask deeper about the last answer, or end its subject."""
    request = {
        "question": question,
        "answer": answer,
        "follow_ups_asked": follow_ups_asked,
        "follow_ups_allowed": MAX_FOLLOW_UPS,
    }
    return ask(FOLLOW_UP_STAGE, prompts.FOLLOW_UP, request, FollowUp, model=model)


@single_flight(REPORT_STAGE, scope=interview_scope, version=prompts.REPORT.version)
def write_report(*, session: str, transcript: Transcript, model: str) -> Report:
    """Sum the interview up."""
    return ask(REPORT_STAGE, prompts.REPORT, transcript.model_dump(), Report, model=model)
