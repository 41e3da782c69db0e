"""Valkeys of a test's own, on TCP ports: a cluster of three; a primary with a replica and its Sentinel."""

import gc
import signal
import socket
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from config.servers.valkey import binary
from tests.waiting import until

HOST = "127.0.0.1"
SLOTS = 16384


class Valkey:
    """One server, paused, killed and asked directly."""

    def __init__(self, folder: Path, *arguments: str, password: str = "") -> None:
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        locked = ("--requirepass", password, "--primaryauth", password) if password else ()
        quiet = ("--save", "", "--appendonly", "no", "--loglevel", "warning")
        place = ("--bind", HOST, "--port", str(self.port), "--dir", str(folder))
        command = [str(binary()), *arguments, *place, *locked, *quiet]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        # Typed by redis-py as what may also be a coroutine.
        self.admin: Any = Redis(
            HOST, self.port, password=password or None, socket_timeout=5, retry=Retry(NoBackoff(), 0)
        )
        until(self._answers, f"an answer of the Valkey on port {self.port}")

    def pause(self) -> None:
        """Let it accept connections and answer nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; nothing listens on its port any more."""
        self.admin.close()
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with suppress(RedisError):
            return bool(self.admin.ping())
        assert self.process.poll() is None, f"the Valkey on port {self.port} ended"
        return False


class Member(Valkey):
    """A node of a cluster, that nobody has met yet."""

    def __init__(self, folder: Path) -> None:
        self.bus = free_port()
        super().__init__(folder, "--cluster-enabled", "yes", "--cluster-port", str(self.bus))

    def meet(self, other: "Member") -> None:
        """Join the cluster of another node."""
        self.admin.execute_command("CLUSTER", "MEET", HOST, other.port, other.bus)

    def knows(self, count: int) -> bool:
        """Tell whether it sees a whole cluster of so many nodes."""
        told = self.admin.execute_command("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in told and f"cluster_known_nodes:{count}" in told

    @property
    def name(self) -> str:
        """What the cluster calls it."""
        return str(self.admin.execute_command("CLUSTER", "MYID").decode())


class Cluster:
    """Three primaries that share the slots, and those who joined later."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.nodes = [Member(folder / str(number)) for number in range(3)]
        for number, node in enumerate(self.nodes):
            share = (SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1)
            node.admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.admin.execute_command("CLUSTER", "ADDSLOTSRANGE", *share)
            node.meet(self.nodes[0])
        self._wait_until_whole()

    @property
    def cache(self) -> dict[str, Any]:
        """A cache of Django on this cluster, as the docs say."""
        return {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://{HOST}:{self.nodes[0].port}",
            "OPTIONS": {
                "CONNECTION_FACTORY": "singleflight_app.contrib.redis_cluster.ClusterConnectionFactory",
                "CLUSTER_NODES": [(HOST, node.port) for node in self.nodes[1:]],
                "SOCKET_CONNECT_TIMEOUT": 1,
                "SOCKET_TIMEOUT": 1,
            },
        }

    def admins(self) -> list[Any]:
        """Return a client of each primary."""
        return [node.admin for node in self.nodes]

    def owner_of(self, key: bytes) -> Member:
        """Return which of the three had the key's slot at the beginning."""
        slot = self.slot_of(key)
        return next(node for number, node in enumerate(self.nodes) if slot < SLOTS * (number + 1) // 3)

    def slot_of(self, key: bytes) -> int:
        """Return a key's slot."""
        return int(self.nodes[0].admin.execute_command("CLUSTER", "KEYSLOT", key))

    def add(self) -> Member:
        """Let a node without slots join."""
        node = Member(self._folder / str(len(self.nodes)))
        self.nodes.append(node)
        node.meet(self.nodes[0])
        self._wait_until_whole()
        return node

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()

    def _wait_until_whole(self) -> None:
        until(lambda: all(node.knows(len(self.nodes)) for node in self.nodes), "the nodes to agree on a cluster")


class Watched:
    """A primary with a replica, and a Sentinel that puts the one in the other's place."""

    def __init__(self, folder: Path, *, down_after: int = 60_000) -> None:
        self.primary = Valkey(folder / "primary")
        # A name of its own: django-redis keeps its pools for the life of the process, by their address.
        self.service = f"answers-{self.primary.port}"
        self.replica = Valkey(folder / "replica", "--replicaof", f"{HOST} {self.primary.port}")
        until(self._is_replicated, "the replica to be in step")
        written = folder / "sentinel.conf"
        written.write_text(
            f"sentinel monitor {self.service} {HOST} {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {self.service} {down_after}\n"
            f"sentinel failover-timeout {self.service} 2000\n"
        )
        self.sentinel = Valkey(folder / "sentinel", str(written), "--sentinel")
        until(self._is_known, "the Sentinel to know the replica")

    @property
    def cache(self) -> dict[str, Any]:
        """A cache of Django behind the Sentinel, as the docs say; the first Sentinel of the list is away."""
        return {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://{self.service}/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [(HOST, free_port()), (HOST, self.sentinel.port)],
                "SOCKET_CONNECT_TIMEOUT": 1,
                "SOCKET_TIMEOUT": 1,
            },
        }

    def admins(self) -> list[Any]:
        """Return a client of each primary."""
        return [self.primary.admin]

    def primary_port(self) -> int:
        """Return where the Sentinel says that the primary is."""
        _, port = self.sentinel.admin.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(port)

    def wait_for_failover(self) -> None:
        """Return once the replica is the primary."""
        until(lambda: self.primary_port() == self.replica.port, "the replica to be put in its place")
        until(lambda: self.replica.admin.execute_command("ROLE")[0] == b"master", "the replica to know of it")

    def close(self) -> None:
        """End all of them."""
        for server in (self.sentinel, self.replica, self.primary):
            server.kill()

    def _is_replicated(self) -> bool:
        return bool(self.replica.admin.execute_command("ROLE")[3] == b"connected")

    def _is_known(self) -> bool:
        return bool(self.sentinel.admin.execute_command("SENTINEL", "REPLICAS", self.service))


K = TypeVar("K", Cluster, Watched)


@contextmanager
def serving(made: K) -> Iterator[K]:
    """Have these servers until the block ends, and nobody who still listens to them after it."""
    try:
        yield made
        until(lambda: not _listeners(), "the threads that use them to end")
    finally:
        made.close()
        with warnings.catch_warnings():
            # An error of redis-py holds on to its client in a circle, whose sockets nobody closes.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def _listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in {"singleflight-listen", "singleflight-spread"}]


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
