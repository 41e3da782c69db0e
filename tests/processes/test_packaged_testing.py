"""C26: test mode in a project that has nothing but the wheel: its own tests, by `manage.py test` and by pytest.

The wheel lands in an environment of its own, which sees the other packages of this one and not the checkout. The
project is Django's own, with SQLite and no other server.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.servers.places import CHECKOUT

PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "singleflight_app")
PROJECT = Path(__file__).parent.parent / "packaged"  #: the user's app, in files that no test of this project collects
SETTINGS = """
INSTALLED_APPS += ["singleflight_app", "shop"]
SINGLEFLIGHT = {
    "MODE": "local",  # since the database is SQLite
    "STAGES": {"shop-score": {"lease_timeout": 120, "heartbeat_interval": 10, "wait_timeout": 150}},
}
"""


@dataclass
class Project:
    """A user's project, and the Python that it runs with."""

    python: Path
    folder: Path

    def run(self, *arguments: str) -> str:
        """Run a module or script in the project, and return what it says, whatever comes of it."""
        kept = {"PATH", "HOME", "LANG", "TMPDIR"}
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env={"COLUMNS": "200", **{name: value for name, value in os.environ.items() if name in kept}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that has the packaged app."""
    folder = tmp_path_factory.mktemp("packaged")
    source = folder / "source"
    source.mkdir()
    for name in PACKAGED:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CHECKOUT / name, source)
    offline = ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    pip("wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    packages = next((folder / "venv").glob("lib/python*/site-packages"))
    pip("install", *offline, "--target", str(packages), str(wheel))
    (packages / "the_others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def project(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a new Django project with one app and its tests."""
    made = Project(python, tmp_path_factory.mktemp("project"))
    assert made.run("-m", "django", "startproject", "empty", ".") == ""
    with (made.folder / "empty" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    shutil.copytree(PROJECT, made.folder / "shop")
    for path in (made.folder / "shop").glob("*.txt"):
        path.rename(path.with_suffix(""))
    (made.folder / "conftest.py").write_text('pytest_plugins = ["singleflight_app.testing.plugin"]\n')
    (made.folder / "pytest.ini").write_text(
        "[pytest]\nDJANGO_SETTINGS_MODULE = empty.settings\naddopts = -p no:cacheprovider\n"
    )
    return made


def pip(*arguments: str) -> None:
    """Run pip of this environment."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


def test_a_test_case_works_without_servers(project: Project) -> None:
    """Each kind of Django's; rows of the test are seen by its calls, also by async and background ones."""
    said = project.run("manage.py", "test")

    assert "Ran 7 tests" in said, said
    assert "\nOK\n" in said, said


def test_the_fixture_comes_with_one_line_of_conftest(project: Project) -> None:
    """Options by a marker; a changed value is an error of its own, unless the test has failed anyway."""
    said = project.run("-m", "pytest", "-q", "--strict-markers", "shop/pytest_shop.py")

    of = "shop/pytest_shop.py::test_"
    told = "\n".join(line[:150] for line in said.splitlines()[-5:])
    assert f"FAILED {of}two_calls - AssertionError: stage 'shop-score' was to be called once" in told, said
    assert f"FAILED {of}a_changed_value_is_nothing_beside_a_failure - LookupError" in told, said
    assert f"ERROR {of}a_changed_value_is_an_error_at_the_end - AssertionError: stage shop-untyped" in told, said
    assert "options of the marker `singleflight` are given by name" in said
    assert "2 failed, 4 passed, 2 errors" in told, said
