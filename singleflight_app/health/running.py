"""Checks side by side, each in a thread of its own, none waited for beyond the bound; what one raises is a finding."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace

from singleflight_app.health.finding import Finding, warning
from singleflight_app.health.secrets import masked

Check = Callable[[], Iterable[Finding]]


def run_all(checks: Mapping[str, Check], within: float) -> list[Finding]:
    """Return what the checks found, in their order, after at most `within` seconds."""
    ends_at = time.monotonic() + within
    futures = {subject: _begun(check) for subject, check in checks.items()}
    found = [
        finding
        for subject, future in futures.items()
        for finding in _answer(subject, future, max(0.0, ends_at - time.monotonic()), within)
    ]
    return [replace(finding, text=masked(finding.text)) for finding in found]


def _begun(check: Check) -> "Future[list[Finding]]":
    future: Future[list[Finding]] = Future()

    def work() -> None:
        try:
            future.set_result(list(check()))
        except Exception as exc:  # noqa: BLE001  (whoever waits gets it)
            future.set_exception(exc)

    # No pool: the interpreter would wait for a check that hangs.
    threading.Thread(target=work, name="singleflight-health", daemon=True).start()
    return future


def _answer(subject: str, future: "Future[list[Finding]]", timeout: float, within: float) -> list[Finding]:
    try:
        return future.result(timeout)
    except TimeoutError:
        text = f"nothing was found out within {within:g} s"
        return [warning(f"{subject}.unknown", text, "Look at its load and the network, and run the doctor again.")]
    except Exception as exc:  # noqa: BLE001  (a check that fails is a finding, not an end)
        text = f"the check itself failed: {type(exc).__name__}: {exc}"
        return [warning(f"{subject}.unknown", text, "Tell the authors of singleflight_app, with this text.")]
