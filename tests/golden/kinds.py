"""Classes of the golden requests. Their names and this module's stand in the golden keys: neither may change."""

import dataclasses
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Level(Enum):
    """An enum is told apart from its value."""

    JUNIOR = "junior"
    SENIOR = "senior"


class Text(StrEnum):
    """An enum that is a string, too."""

    JUNIOR = "junior"


class Number(IntEnum):
    """An enum that is a number, too."""

    ONE = 1


class Rights(IntFlag):
    """An enum whose members add up."""

    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A dataclass with the same fields, and every option."""

    x: int
    y: int = 0
    scale: dataclasses.InitVar[int] = 1


class Question(BaseModel):
    """A pydantic model that takes what it does not know."""

    model_config = ConfigDict(extra="allow")

    text: str
    points: list[Point] = []
    level: int = Field(default=1, alias="grade")


class Box(BaseModel, Generic[T]):
    """A generic pydantic model."""

    content: T


class Pair(NamedTuple):
    """A tuple with names."""

    first: int
    second: int
