"""A resume is its bytes: text comes out of every PDF that has any, one sentence out of everything else."""

import hashlib

import pytest
from fpdf import FPDF

from interview_demo.resumes import (
    EXCERPT_LENGTH,
    MAX_BYTES,
    MAX_PAGES,
    SAMPLE,
    UnreadableResume,
    read_resume,
    resume_text,
    sample_resume,
)
from interview_demo.resumes.write_sample import build


def pdf_of(*pages: str) -> bytes:
    pdf = FPDF()
    pdf.set_font("Helvetica")
    for page in pages:
        pdf.add_page()
        pdf.multi_cell(0, 8, page)
    return bytes(pdf.output())


def test_the_shipped_resume_is_read() -> None:
    """The sample is a real PDF with claims and skills in it, known by the digest of its bytes."""
    resume = sample_resume()

    assert "Mira Solane" in resume.text
    assert "PostgreSQL with row-level locking" in resume.text
    assert resume.digest == hashlib.sha256(SAMPLE.read_bytes()).hexdigest()


def test_the_script_writes_the_shipped_text() -> None:
    """The script in the repository is the source of the PDF beside it."""
    assert resume_text(bytes(build().output())) == sample_resume().text


def test_the_name_of_the_file_does_not_matter() -> None:
    """Two uploads of one file are one resume."""
    content = pdf_of("Ada Marsh\nWrote compilers")

    assert read_resume("a.pdf", content).digest == read_resume("final (2).pdf", content).digest


def test_the_excerpt_fits_into_a_prompt() -> None:
    """However long a resume is, scoring prompts carry at most its beginning."""
    resume = read_resume("long.pdf", pdf_of("word " * 2_000))

    assert len(resume.text) > EXCERPT_LENGTH
    assert len(resume.excerpt) == EXCERPT_LENGTH


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is not a PDF"),
        (b"a letter, not a PDF", "it is not a PDF"),
        (SAMPLE.read_bytes()[:300], "it is not a PDF"),
        (b"%PDF-1.7\n" + b"\x00\xff" * 500, "it is not a PDF"),
        (pdf_of(""), "no text"),
        (pdf_of(*["page"] * (MAX_PAGES + 1)), "pages"),
        (b"%PDF-1.7" + b" " * MAX_BYTES, "upload a smaller PDF"),
    ],
    ids=["empty", "text", "cut", "noise", "blank page", "too many pages", "too large"],
)
def test_what_is_no_resume_is_refused_with_a_reason(content: bytes, reason: str) -> None:
    """The sentence names the file and what is wrong with it."""
    with pytest.raises(UnreadableResume, match=reason) as refused:
        read_resume("cv.pdf", content)

    assert str(refused.value).startswith("cv.pdf can't be used as a resume")
