"""Writes the sample resume: `python -m interview_demo.resumes.write_sample`.

Mira Solane, her employers and her numbers are made up for this demo.
"""

from datetime import UTC, datetime

from fpdf import FPDF

from interview_demo.resumes import SAMPLE

INK, ACCENT = (34, 40, 49), (0, 95, 115)

SECTIONS: dict[str, list[str]] = {
    "Profile": [
        (
            "Back-end engineer with eight years of Python in payments and logistics. Likes systems that "
            "stay correct when half of them is down, and writes the runbook before the launch."
        ),
    ],
    "Experience": [
        (
            "- Led the move of a settlement ledger from nightly batches to PostgreSQL with row-level "
            "locking; reconciliation went from 9 hours to 11 minutes."
        ),
        (
            "- Designed an idempotency layer for the public payments API at Quellwerk Pay; duplicate "
            "charges fell from 40 a month to none in two years."
        ),
        ("- Built the parcel tracking pipeline of Norrland Freight on Celery and RabbitMQ, 6 million events a day."),
        ("- Cut the p99 latency of the quote service from 2.4 s to 310 ms with request coalescing and a Redis cache."),
        ("- Ran the on-call rotation of twelve people and halved the number of pages by fixing causes first."),
        "- Wrote the zero-downtime migration guide that four Django teams follow today.",
    ],
    "Projects": [
        ("- Open-source lease library for PostgreSQL, explored with a model checker before its first release."),
        "- Volunteer platform of a food bank: Django, two servers, 300 helpers every Saturday.",
    ],
    "Skills": [
        "Python, Django, PostgreSQL, Redis, Celery, RabbitMQ, Kubernetes, Prometheus",
    ],
    "Education": [
        "MSc Computer Science, University of Aldermoor, 2017",
    ],
}


def build() -> FPDF:
    """Return the resume as a one-page document."""
    pdf = FPDF(format="A4")
    pdf.set_creation_date(datetime(2026, 1, 5, tzinfo=UTC))
    pdf.set_title("Resume of Mira Solane (a fictional person)")
    pdf.set_margin(20)
    pdf.add_page()
    _line(pdf, "Mira Solane", size=24, style="B", color=ACCENT)
    _line(pdf, "Senior back-end engineer", size=13)
    _line(pdf, "Lindhaven / mira@solane.example / fictional person, made for a demo", size=9)
    for heading, paragraphs in SECTIONS.items():
        pdf.ln(3)
        _line(pdf, heading.upper(), size=11, style="B", color=ACCENT)
        for paragraph in paragraphs:
            _line(pdf, paragraph, size=10.5)
    return pdf


def _line(pdf: FPDF, text: str, *, size: float, style: str = "", color: tuple[int, int, int] = INK) -> None:
    pdf.set_font("Helvetica", style, size)
    pdf.set_text_color(*color)
    pdf.multi_cell(0, size * 0.5, text, align="L", new_x="LMARGIN", new_y="NEXT")


if __name__ == "__main__":
    build().output(str(SAMPLE))
