"""The demo's cluster: one model server and two web nodes, started together and ended together."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from interview_demo.demo.modelling import Model
from interview_demo.demo.nodes import Node
from interview_demo.demo.processes import Program
from interview_demo.demo.waiting import wait_until


@dataclass(frozen=True)
class Cluster:
    """Two nodes that answer, and the model that both of them ask."""

    model: Model
    first: Node
    second: Node

    @property
    def programs(self) -> list[Program]:
        """All that runs."""
        return [self.model.program, *(node.program for node in (self.first, self.second) if node.program)]

    def last_words(self) -> str:
        """Return the end of what each program printed, to explain a failure."""
        return "\n".join(f"{each.name} printed last:\n{tail}" for each in self.programs if (tail := each.tail()))

    def watch(self) -> None:
        """Stay until one of them ends by itself, which is `ProgramEnded`, or Ctrl-C."""

        def looked() -> None:
            for program in self.programs:
                program.check()

        wait_until(looked, timeout=float("inf"), what="the end")

    def end(self) -> None:
        """Ask all of it to end, and return at once."""
        for program in self.programs:
            program.end()

    def environment(self, node: Node) -> Mapping[str, str]:
        """Return what a node needs to know: the model's address and the other node's."""
        other = self.second if node is self.first else self.first
        return {**self.model.environment(), "OTHER_NODE_URL": other.url}

    def restart(self, node: Node) -> None:
        """Start a killed node again, at its old address; returns before it answers."""
        node.start(self.environment(node))


@contextmanager
def running_cluster(*, first_port: int = 0, second_port: int = 0, pace: float = 1.0) -> Iterator[Cluster]:
    """Start a cluster; port 0 takes a free one. It is ended on the way out, whatever the way."""
    with ExitStack() as stack:
        nodes = Node("A", first_port), Node("B", second_port)
        for node in nodes:
            stack.callback(node.stop)
        model = Model(pace=pace)
        stack.callback(model.stop)
        cluster = Cluster(model, *nodes)
        for node in nodes:
            node.start(cluster.environment(node))
        # All are told at once, and then waited for one by one.
        stack.callback(cluster.end)
        for node in nodes:
            node.wait_ready()
        yield cluster
