"""What has no place in a key, and what to pass instead.

The domain knows no framework: classes are recognised by their dotted names, so nothing is imported to refuse it.
"""

from collections.abc import Iterator

_LONGEST_SHOWN = 40
_MOST_STEPS = 8
_SHOWN_INTEGERS = range(-(2**63), 2**63)
_ANYTHING = "pass its id, its text, or a dict of the fields that matter"
_ITERATOR = "it can be read only once; pass a list of what it yields"
_REQUEST = "pass what the answer depends on: ids, texts, the user's pk"
_FILE = "pass its bytes (the key holds their digest), or its name and version"
_SET = "pass a sorted list"
_FUNCTION = "pass a name that tells which function is meant"
_TEXT = "pass str(...) of it"

#: by the dotted name of a class or of any base of it; the nearest base counts
ADVICE = {
    "builtins.set": _SET,
    "builtins.frozenset": _SET,
    "builtins.dict_keys": _SET,
    "builtins.dict_items": "pass the dict",
    "builtins.dict_values": "pass a list of them",
    "builtins.range": "pass a list of it, or its ends",
    "builtins.complex": "pass two numbers",
    "builtins.function": _FUNCTION,
    "builtins.method": _FUNCTION,
    "builtins.builtin_function_or_method": _FUNCTION,
    "functools.partial": _FUNCTION,
    "builtins.type": "pass its name",
    "builtins.module": "pass its name",
    "builtins.coroutine": "await it, and pass the result",
    "_asyncio.Future": "await it, and pass the result",
    "builtins.BaseException": _TEXT,
    "array.array": "pass a list of it, or its tobytes()",
    "collections.deque": "pass a list of it",
    "datetime.timedelta": "pass its total_seconds()",
    "datetime.tzinfo": "pass its name",
    "fractions.Fraction": "pass numerator and denominator",
    "ipaddress._IPAddressBase": _TEXT,
    "pathlib.PurePath": "pass str(...) of it, or the bytes of the file",
    "pathlib._local.PurePath": "pass str(...) of it, or the bytes of the file",
    "re.Pattern": "pass its pattern",
    "_io._IOBase": _FILE,
    "tempfile._TemporaryFileWrapper": _FILE,
    "tempfile.SpooledTemporaryFile": _FILE,
    "django.core.files.utils.FileProxyMixin": _FILE,
    "starlette.datastructures.UploadFile": _FILE,
    "django.db.models.base.ModelBase": "pass its label (_meta.label)",
    "django.db.models.query.QuerySet": "pass a list of its ids, in a fixed order",
    "django.db.models.manager.BaseManager": "pass a list of ids, in a fixed order",
    "django.forms.forms.BaseForm": "pass its cleaned_data",
    "django.utils.functional.Promise": _TEXT,
    "django.contrib.auth.models.AnonymousUser": "pass None when nobody is logged in",
    "django.contrib.sessions.backends.base.SessionBase": _REQUEST,
    "django.http.request.HttpRequest": _REQUEST,
    "rest_framework.request.Request": _REQUEST,
    "starlette.requests.HTTPConnection": _REQUEST,
    "werkzeug.sansio.request.Request": _REQUEST,
    "aiohttp.web_request.BaseRequest": _REQUEST,
    "httpx.Request": _REQUEST,
    "requests.models.Request": _REQUEST,
    "requests.models.PreparedRequest": _REQUEST,
    "urllib.request.Request": _REQUEST,
    "numpy.generic": "pass its item()",
    "numpy.ndarray": "pass its tolist(), or its tobytes() with shape and dtype",
    "pandas.core.generic.NDFrame": "pass its to_dict()",
}


class Unkeyable(Exception):
    """A value has no canonical form; `steps` lead to it, the innermost first."""

    def __init__(self, problem: str, repair: str) -> None:
        super().__init__(f"{problem}; {repair}")
        self.problem, self.repair = problem, repair
        self.steps: list[str] = []

    def sentence(self) -> str:
        """Return what is wrong with which argument, and what to pass instead."""
        name, *rest = [*reversed(self.steps)] or [""]
        subject = f"argument {name}" if name else "the request"
        way = "".join(rest[:_MOST_STEPS]) + ("..." if len(rest) > _MOST_STEPS else "")
        return f"{subject}{way} {self}"


def dotted_names(kind: type) -> Iterator[str]:
    """Yield the names of a class and of its bases, the nearest first."""
    return (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)


def advice_for(kind: type) -> str:
    """Return what to pass instead of a value of this class."""
    advice = next((ADVICE[name] for name in dotted_names(kind) if name in ADVICE), None)
    return advice or (_ITERATOR if hasattr(kind, "__next__") else _ANYTHING)


def shown(value: object) -> str:
    """Return a value for an error's sentence, never long: its class when its text might be, or might raise."""
    if value is None or (type(value) is int and value in _SHOWN_INTEGERS) or type(value) in {bool, float}:
        return repr(value)
    if type(value) is str:
        return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}...")
    return f"a {type(value).__qualname__}"
