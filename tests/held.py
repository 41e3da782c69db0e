"""A call that goes on until the test lets it go, and callers in threads of their own: interleavings without a clock."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PATIENCE = 40.0  #: seconds after which a test has failed, wherever it waits
_begun: "list[Future[Any]]" = []


class Held(Generic[T]):
    """An expensive call: it says that it began, and ends when the test says so, with what the test says."""

    def __init__(self, value: T, *, error: BaseException | None = None) -> None:
        self.value, self.error = value, error
        self.begun, self._let_go = threading.Event(), threading.Event()
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self) -> T:
        with self._lock:
            self.count += 1
        self.begun.set()
        assert self._let_go.wait(PATIENCE), "the test never let this call go"
        if self.error is not None:
            raise self.error
        return self.value

    def wait_until_begun(self) -> None:
        """Return once a call runs."""
        assert self.begun.wait(PATIENCE), "the call never began"

    def let_go(self) -> None:
        """Let the running call, and each later one, end."""
        self._let_go.set()


class Counted(Generic[T]):
    """A call that returns at once, each time the next of its values, the last one for ever."""

    def __init__(self, *values: T) -> None:
        self._values, self._lock = list(values), threading.Lock()
        self.count = 0

    def __call__(self) -> T:
        with self._lock:
            self.count += 1
            return self._values.pop(0) if len(self._values) > 1 else self._values[0]


def begin(function: Callable[..., T], *args: Any, **kwargs: Any) -> "Future[T]":  # noqa: ANN401
    """Call a function in a thread of its own, one that no hanging test has to wait for."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as exc:  # noqa: BLE001  (the test asks the future)
            future.set_exception(exc)

    threading.Thread(target=work, daemon=True).start()
    _begun.append(future)
    return future


def wait_for_all_begun() -> None:
    """Return once no thread of this test runs; what it still does and says would be taken for the next one's."""
    begun, _begun[:] = list(_begun), []
    _, running = wait(begun, PATIENCE)
    assert not running, f"{len(running)} calls of this test go on: let them go, and wait for what they come to"


def results(futures: "Iterable[Future[T]]") -> list[T]:
    """Return what each came to; the first failure is raised."""
    return [future.result(PATIENCE) for future in futures]


def at_once(count: int, function: Callable[..., T], *args: Any, **kwargs: Any) -> "list[Future[T]]":  # noqa: ANN401
    """Let `count` threads make the same call at the same time."""
    barrier = threading.Barrier(count)

    def work() -> T:
        barrier.wait(PATIENCE)
        return function(*args, **kwargs)

    return [begin(work) for _ in range(count)]
