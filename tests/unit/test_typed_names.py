"""Every public name is used in `tests/typing`, where mypy and pyright see what callers see."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import singleflight_app
from singleflight_app import contrib, testing

PAGES = sorted((Path(__file__).parents[1] / "typing").glob("*.py"))


def names_of(module: ModuleType) -> Iterator[str]:
    """Yield the public classes and functions that a module makes itself."""
    for name, value in vars(module).items():
        makes = inspect.isclass(value) or inspect.isfunction(value)
        if makes and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name


def companions() -> Iterator[str]:
    """Yield the public names of every module of `contrib`."""
    for found in pkgutil.iter_modules(contrib.__path__, f"{contrib.__name__}."):
        yield from names_of(importlib.import_module(found.name))


def used() -> set[str]:
    """Return every name that code in `tests/typing` mentions beyond its imports."""
    nodes = [node for page in PAGES for node in ast.walk(ast.parse(page.read_text("utf-8")))]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", [*singleflight_app.__all__, *testing.__all__, *companions()])
def test_a_public_name_is_checked_by_the_type_checkers(name: str) -> None:
    """What is not used there may lose its types unnoticed."""
    assert name in used()


def test_every_page_is_checked_strictly_by_both() -> None:
    """No file is left out by a comment."""
    texts = [page.read_text("utf-8") for page in PAGES]

    assert texts
    assert not [text for text in texts if "mypy: ignore-errors" in text or "# pyright: basic" in text]
