"""Every template of this checkout compiles.

A template is only read when its page is shown; a tag that is misspelt would wait for the first visitor.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402  (needs the settings named above)
from django.template import TemplateSyntaxError  # noqa: E402
from django.template.loader import get_template  # noqa: E402
from django.template.utils import get_app_template_dirs  # noqa: E402


def main() -> int:
    django.setup()
    names = template_names()
    problems = [f"{name}: {error}" for name in names if (error := fault(name))]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(names)} templates, {len(problems)} that do not compile")
    return 1 if problems else 0


def template_names() -> list[str]:
    folders = [Path(folder) for folder in get_app_template_dirs("templates")]
    ours = [folder for folder in folders if folder.parent.parent == ROOT]
    return sorted(str(file.relative_to(folder)) for folder in ours for file in folder.rglob("*") if file.is_file())


def fault(name: str) -> TemplateSyntaxError | None:
    try:
        get_template(name)
    except TemplateSyntaxError as error:
        return error
    return None


if __name__ == "__main__":
    sys.exit(main())
