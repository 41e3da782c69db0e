"""The demo on the terminal: what happens as it happens, and the table at the end."""

import time

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from interview_demo.demo.asking import LOST, Asked
from interview_demo.demo.operator import DASHBOARD
from interview_demo.demo.tally import FOLLOWER, OWNER, REPLAY, StageTally, Tally

_STYLES = {OWNER: "bold yellow", FOLLOWER: "cyan", REPLAY: "magenta", LOST: "bold red"}
_NUMBERS = (
    "requests",
    "model\ncalls",
    "merged",
    "replayed",
    "taken\nover",
    "lost",
    "calls\nsaved",
    "tokens\nsaved",
)
_WIDTH = 80  #: of the table at least, also where no terminal says how wide it is


class Terminal:
    """A narrator on a rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        console.width = max(console.width, _WIDTH)
        self._began_at = time.monotonic()

    def scene(self, title: str) -> None:
        """Open a scene."""
        self._console.print(f"\n[bold]{escape(title)}[/bold]")

    def happened(self, text: str) -> None:
        """Say one thing that happened."""
        self._console.print(f"  {self._clock()}  {escape(text)}")

    def asked(self, asked: Asked) -> None:
        """Say how one caller came by its answer."""
        role = f"[{_STYLES.get(asked.role, '')}]{asked.role:<8}[/]"
        what = f"  {self._clock()}  node {asked.node}  {role}  {_short(asked.stage):<10}  {asked.subject:<11}"
        if asked.role == LOST:
            self._console.print(f"{what}  its node died under it")
            return
        how = f"from {asked.layer:<8}  generation {asked.generation}  waited {asked.waited:5.2f} s"
        self._console.print(f"{what}  {how}  answer {asked.digest}")

    def table(self, tally: Tally) -> None:
        """Print the numbers by stage."""
        table = Table(
            title="Who paid, and who shared", title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=0
        )
        table.add_column("stage", no_wrap=True)
        for name in _NUMBERS:
            table.add_column(name, justify="right")
        table.add_column("same\nanswer")
        for name, stage in tally.stages.items():
            table.add_row(_short(name), *_cells(stage))
        self._console.print()
        self._console.print(table)

    def verdict(self, tally: Tally, broken: list[str], *, simulated: bool) -> None:
        """Print what it comes to."""
        model = "The model was simulated." if simulated else "The model was a real one."
        self._console.print(
            f"{tally.requests} requests, {tally.model_calls} model calls, {tally.expected_calls} expected "
            f"(one per key, and one for the killed node). {model} {self._clock()} in all."
        )
        for line in broken:
            self._console.print(f"[bold red]not kept:[/bold red] {escape(line)}")
        if not broken:
            self._console.print("[bold green]One key, one call, one answer.[/bold green]")

    def stays(self, invitation: str) -> None:
        """Say where the same numbers are to be seen, while the nodes are left running."""
        self._console.print(f"\nDashboard: {escape(invitation)}\nThe nodes stay up until Ctrl-C.")

    def ends(self) -> None:
        """Say how to get there when the nodes end with the demo."""
        self._console.print(f"\nDashboard: make serve, then http://127.0.0.1:8000{DASHBOARD} with the user it prints.")

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began_at:5.1f} s"


def _short(stage: str) -> str:
    return stage.removeprefix("interview-")


def _cells(stage: StageTally) -> list[str]:
    same = "yes" if stage.distinct_answers_max == 1 else f"no: {stage.distinct_answers_max}"
    numbers = (
        stage.requests,
        stage.model_calls,
        stage.followers,
        stage.replays,
        stage.taken_over,
        stage.lost,
        stage.saved,
        stage.tokens_saved,
    )
    return [*map(str, numbers), same]
