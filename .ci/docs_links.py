"""Every relative link of README.md and docs/ leads to a file that is there, and to a heading of it.

Anchors are made as GitHub makes them. Links to other hosts are not followed: a check must not need
the network.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)`*\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)`*\s*$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def main() -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    problems = [problem for page in pages for problem in broken_links(page)]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(pages)} pages, {len(problems)} broken links")
    return 1 if problems else 0


def broken_links(page: Path) -> list[str]:
    name = page.relative_to(ROOT)
    if not page.is_file():
        return [f"{name}: the page is missing"]
    return [f"{name}: {target}: {reason}" for target in targets(page) if (reason := fault(page, target))]


def targets(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text("utf-8"))
    found = (inline or referred for inline, referred in LINK.findall(text))
    return [target for target in found if not re.match(r"[a-z][a-z0-9+.-]*:|//", target)]


def fault(page: Path, target: str) -> str | None:
    path, _, anchor = unquote(target).partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT):
        return "leads out of the repository"
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return "no such heading"
    return None


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text("utf-8"))
    seen: Counter[str] = Counter()
    names = set(NAMED.findall(text))
    for heading in HEADING.findall(text):
        slug = slugify(heading)
        names.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return names


def slugify(heading: str) -> str:
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
