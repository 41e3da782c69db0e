"""Resumes: a candidate's PDF becomes text, or one sentence that says why not.

A resume is known by the SHA-256 of its bytes, never by its name: the same file uploaded twice is one
resume, and a changed file under the old name is another.
"""

import hashlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

SAMPLE = Path(__file__).with_name("mira_solane.pdf")
MAX_BYTES = 5_000_000
MAX_PAGES = 20
EXCERPT_LENGTH = 2_000  #: characters of the resume that a scoring prompt carries


class UnreadableResume(ValueError):
    """The file is no PDF with text in it; nothing was stored."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} can't be used as a resume: {reason}")
        self.name, self.reason = name, reason


@dataclass(frozen=True)
class Resume:
    """One PDF: its bytes, their digest, and the text in them."""

    name: str
    content: bytes
    digest: str
    text: str

    @property
    def excerpt(self) -> str:
        """The part that fits into every scoring prompt."""
        return self.text[:EXCERPT_LENGTH]


def sample_resume() -> Resume:
    """Return the resume that is shipped with the demo, of a person who does not exist."""
    return read_resume(SAMPLE.name, SAMPLE.read_bytes())


def read_resume(name: str, content: bytes) -> Resume:
    """Read an uploaded file; `UnreadableResume` says what is wrong with it."""
    if len(content) > MAX_BYTES:
        raise UnreadableResume(name, f"it has {len(content)} bytes and {MAX_BYTES} are allowed; upload a smaller PDF")
    text = resume_text(content, name=name)
    return Resume(name, content, hashlib.sha256(content).hexdigest(), text)


def resume_text(content: bytes, *, name: str = "the file") -> str:
    """Return the text of a PDF's pages, one line per line, blank lines left out."""
    try:
        pages = PdfReader(BytesIO(content)).pages
        if len(pages) > MAX_PAGES:
            raise UnreadableResume(name, f"it has {len(pages)} pages and {MAX_PAGES} are allowed")
        text = "\n".join(page.extract_text() for page in pages)
    # pypdf meets broken files with errors of its own and with plain ones of what it tried to read.
    except (
        PyPdfError,
        DependencyError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
    ) as exc:
        if isinstance(exc, UnreadableResume):
            raise
        raise UnreadableResume(name, "it is not a PDF that can be read; export it again as PDF") from exc
    # PostgreSQL stores no NUL, and a font without a mapping can produce one.
    lines = [line.strip() for line in text.replace("\x00", "").splitlines()]
    if not any(lines):
        raise UnreadableResume(name, "its pages hold no text (a scan?); export it from the word processor instead")
    return "\n".join(line for line in lines if line)
