"""What is told of a value that came back from its stored form as something else."""

import dataclasses
import math
from collections import Counter, OrderedDict
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, Field, PrivateAttr, SecretStr

from singleflight_app.engine.comparing import is_same


class Level(StrEnum):
    """A text that is more."""

    JUNIOR = "junior"


class Hiding(BaseModel):
    """A model of which not everything is stored."""

    shown: float = 0.0
    left_out: int = Field(0, exclude=True, repr=False)
    _private: int = PrivateAttr(0)


@dataclasses.dataclass(eq=False)
class Unequal:
    """An object that equals itself alone."""

    x: float


def hiding(**private: int) -> Hiding:
    made = Hiding(left_out=private.pop("left_out", 0))
    made._private = private.pop("private", 0)
    return made


@pytest.mark.parametrize(
    ("copy", "value"),
    [
        (None, None),
        (1.0, 1),
        ([1.0, {"a": (1,)}], [1, {"a": (1,)}]),
        (math.nan, math.nan),
        ({"a": [math.nan]}, {"a": [math.nan]}),
        (Hiding(shown=math.nan), Hiding(shown=math.nan)),
        (Unequal(1.5), Unequal(1.5)),
        (SecretStr("a"), SecretStr("a")),
        (Decimal("1.50"), Decimal("1.50")),
    ],
)
def test_these_came_back_as_they_were(copy: Any, value: Any) -> None:  # noqa: ANN401
    """Also what never equals itself."""
    assert is_same(copy, value)


@pytest.mark.parametrize(
    ("copy", "value"),
    [
        ("junior", Level.JUNIOR),
        (["junior"], [Level.JUNIOR]),
        ({"a": "junior"}, {"a": Level.JUNIOR}),
        ({"a": 1}, OrderedDict(a=1)),
        ({"a": 1}, Counter("a")),
        (1, True),
        ([1], (1,)),
        ("1.50", Decimal("1.50")),
        ({"1": 1}, {1: 1}),
        (SecretStr("**********"), SecretStr("key")),
        (hiding(), hiding(private=7)),
        (hiding(), hiding(left_out=7)),
        (Unequal(1.5), Unequal(2.5)),
        ([1], [1, 2]),
        (None, 0),
    ],
)
def test_these_did_not(copy: Any, value: Any) -> None:  # noqa: ANN401
    """Also what compares equal, or reads alike."""
    assert not is_same(copy, value)
