"""The model server as the demo sees it: a process to start, and a count to ask for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from interview_demo.demo.processes import Program
from interview_demo.demo.waiting import NeverCame, wait_until
from interview_demo.model import DEFAULT_MODEL
from interview_demo.model_server import LISTENING, SIMULATED_MODEL

_START_TIMEOUT = 20.0


@dataclass(frozen=True)
class StageCount:
    """What the model server counted of one stage."""

    begun: int = 0
    answered: int = 0
    tokens: int = 0


class Model:
    """A started model server: simulated, or in front of the model that the environment names."""

    def __init__(self, *, pace: float = 1.0) -> None:
        # A key alone is not enough: it lies in many environments, and a demo must not surprise with a bill.
        upstream = os.environ.get("OPENAI_BASE_URL") if os.environ.get("OPENAI_API_KEY") else None
        self.is_simulated = upstream is None
        options = ["--upstream", upstream] if upstream else ["--pace", str(pace)]
        self.program = Program("the model server", "interview_demo.model_server", options)
        try:
            self.url = wait_until(self._address, timeout=_START_TIMEOUT, what="the model server's address")
            self._client = httpx.Client(base_url=self.url, timeout=90.0)
        except BaseException:
            self.program.stop()
            raise

    def environment(self) -> Mapping[str, str]:
        """Return what makes a node ask this model."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "simulated" if self.is_simulated else os.environ["OPENAI_API_KEY"],
            "OPENAI_MODEL": SIMULATED_MODEL if self.is_simulated else os.environ.get("OPENAI_MODEL", DEFAULT_MODEL),
        }

    def counts(self) -> dict[str, StageCount]:
        """Return the counted calls by stage."""
        return self._counts({})

    def answered(self) -> int:
        """Return how many calls have ended, of all stages."""
        return sum(count.answered for count in self.counts().values())

    def begun(self, stage: str) -> int:
        """Return how many calls of a stage have begun."""
        return self.counts().get(stage, StageCount()).begun

    def wait_begun(self, stage: str, count: int, *, timeout: float) -> None:
        """Wait until the stage's `count`-th call has begun; the model server tells."""
        query = {"stage": stage, "begun": str(count), "wait": str(timeout)}
        if self._counts(query).get(stage, StageCount()).begun < count:
            raise NeverCame(f"call {count} of {stage}", timeout)

    def slow_next(self, stage: str, seconds: float) -> None:
        """Make the stage's next call long enough to be interrupted; a real model is slow by itself."""
        if self.is_simulated:
            self._client.post("/slow", json={"stage": stage, "seconds": seconds}).raise_for_status()

    def stop(self) -> None:
        """End the process."""
        self._client.close()
        self.program.stop()

    def _counts(self, query: Mapping[str, str]) -> dict[str, StageCount]:
        stages = self._client.get("/calls", params=query).raise_for_status().json()["stages"]
        return {name: StageCount(count["begun"], count["answered"], count["tokens"]) for name, count in stages.items()}

    def _address(self) -> str | None:
        self.program.check()
        first, newline, _ = self.program.printed().partition("\n")
        return first.removeprefix(LISTENING) if newline else None
