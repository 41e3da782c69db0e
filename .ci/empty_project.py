"""`pip install .` and one line in INSTALLED_APPS are enough: a new project, no extra, no server.

Run outside of the checkout, by a Python that has the package and nothing else.
"""

import subprocess
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path

SETTINGS = """
INSTALLED_APPS += ["singleflight_app"]
SINGLEFLIGHT = {"MODE": "local", "CACHE": None}
"""
FLIGHTS = """
from singleflight_app import GLOBAL, single_flight

calls = []

@single_flight("greeting", scope=GLOBAL)
def greet(name: str) -> str:
    calls.append(name)
    return f"Hello, {name}"

assert greet("Ada") == "Hello, Ada" and calls == ["Ada"], calls
"""
NEEDED = ["py.typed", "storage/queries.sql", "migrations/0001_initial.py", "templates"]
EXTRAS = ["redis", "celery", "prometheus_client"]


def main() -> int:
    problems = [f"{name} is not in the installed package" for name in NEEDED if not is_installed(name)]
    problems += [f"{name} came along, which only an extra asks for" for name in EXTRAS if has_module(name)]
    for problem in problems:
        print(problem, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        use_in_project(Path(folder))
    return 1 if problems else 0


def is_installed(name: str) -> bool:
    spec = util.find_spec("singleflight_app")
    package = Path(spec.origin).parent if spec and spec.origin else Path("missing")
    return "site-packages" in package.parts and (package / name).exists()


def has_module(name: str) -> bool:
    return name in metadata.packages_distributions()


def use_in_project(folder: Path) -> None:
    """Let Django make a project, add the app, check it, and make one call in local mode."""
    run("-m", "django", "startproject", "empty", str(folder), cwd=folder)
    with (folder / "empty" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    run("manage.py", "check", cwd=folder)
    run("manage.py", "shell", "--command", FLIGHTS, cwd=folder)


def run(*arguments: str, cwd: Path) -> None:
    subprocess.run([sys.executable, *arguments], cwd=cwd, check=True)


if __name__ == "__main__":
    sys.exit(main())
