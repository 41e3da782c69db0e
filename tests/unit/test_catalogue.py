"""The Chinese catalogue has every text of the app, and what Django reads is made of what translators write."""

import gettext
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.utils.translation import to_locale

import singleflight_app

APP = Path(singleflight_app.__file__).parent
LOCALE = to_locale("zh-hans")
CATALOGUE = Path("locale", LOCALE, "LC_MESSAGES", "django.po")

pytestmark = pytest.mark.skipif(
    shutil.which("xgettext") is None, reason="GNU gettext is not installed: apt-get install gettext"
)


def test_every_text_is_translated(tmp_path: Path) -> None:
    """Collected anew from the sources, no text is missing, and none is marked as in doubt."""
    copied = tmp_path / "app"
    shutil.copytree(APP, copied, ignore=shutil.ignore_patterns("__pycache__"))
    collect = [sys.executable, "-m", "django", "makemessages", "-l", LOCALE, "--no-location", "--no-obsolete"]
    without_project = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(collect, cwd=copied, env=without_project, check=True, capture_output=True)

    told = _told(copied / CATALOGUE, tmp_path / "made.mo")

    assert re.fullmatch(r"\d+ translated messages\.\s*", told), told


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """The compiled catalogue in the checkout belongs to its source."""
    _told(APP / CATALOGUE, tmp_path / "made.mo")

    with (APP / CATALOGUE).with_suffix(".mo").open("rb") as shipped, (tmp_path / "made.mo").open("rb") as made:
        assert _messages(gettext.GNUTranslations(shipped)) == _messages(gettext.GNUTranslations(made))


def _told(source: Path, compiled: Path) -> str:
    """Compile a catalogue, placeholders checked, and return msgfmt's count of what is in it."""
    made = subprocess.run(
        ["msgfmt", "--check", "--statistics", "-o", str(compiled), str(source)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )
    assert made.returncode == 0, made.stderr
    return made.stderr


def _messages(catalogue: gettext.GNUTranslations) -> dict[object, str]:
    return dict(catalogue._catalog)  # type: ignore[attr-defined]
