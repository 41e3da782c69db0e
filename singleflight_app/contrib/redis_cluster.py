"""A connection factory for django-redis on a Redis Cluster, which django-redis does not know (tried with 6.0 and 7.0).

It is named in a cache's OPTIONS; docs/redis.md has the settings. No call waits for one node much longer than for the
socket timeouts, a second each unless others are given.
"""

import os
import threading
from typing import Any

from django_redis.pool import ConnectionFactory
from redis.backoff import NoBackoff
from redis.cluster import PRIMARY, ClusterNode, RedisCluster
from redis.exceptions import ClusterDownError, SlotNotCoveredError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from singleflight_app.notify.clients import BOUNDS, Together


class BoundedCluster(RedisCluster):
    """A cluster client that does not ask again a node that hangs, nor lets callers queue for the map of its slots."""

    ERRORS_ALLOW_RETRY = (RedisConnectionError, ClusterDownError, SlotNotCoveredError)  # type: ignore[assignment]

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (those of RedisCluster)
        super().__init__(**options)
        self.nodes_manager.initialize = Together(self.nodes_manager.initialize)  # type: ignore[method-assign]

    def get_node(
        self, host: str | None = None, port: int | None = None, node_name: str | None = None
    ) -> ClusterNode | None:
        """Return a node; one that the cluster redirects to is there even if it owns no slot yet."""
        node: ClusterNode | None = super().get_node(host, port, node_name)  # type: ignore[no-untyped-call]
        if node is None and node_name is not None:
            host, _, number = node_name.rpartition(":")
            node = ClusterNode(host, int(number), PRIMARY)  # type: ignore[no-untyped-call]
            self.nodes_manager.create_redis_connections([node])  # type: ignore[no-untyped-call]
            self.nodes_manager.nodes_cache[node_name] = node
        return node


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """Makes one cluster client per process and address; django-redis asks for one in each of its threads.

    OPTIONS: `CLUSTER_NODES`, a list of (host, port), beside the node in LOCATION; the socket timeouts, USERNAME and
    PASSWORD of django-redis; `REDIS_CLIENT_KWARGS` for everything else that `redis.cluster.RedisCluster` takes.
    """

    _clients: dict[tuple[int, str], BoundedCluster] = {}
    _lock = threading.Lock()

    def connect(self, url: str) -> BoundedCluster:
        """Return this process's client of the cluster; a forked child has its own."""
        name = (os.getpid(), url)
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self.get_connection(self.make_connection_params(url))
            return self._clients[name]

    def get_connection(self, params: dict[str, Any]) -> BoundedCluster:
        """Return a client that has found the cluster; RedisClusterException if no node answers."""
        nodes = [ClusterNode(host, port) for host, port in self.options.get("CLUSTER_NODES", ())]  # type: ignore[no-untyped-call]
        retry = Retry(NoBackoff(), 1)
        given = {**BOUNDS, **params, "retry": retry, **self.redis_client_cls_kwargs}
        return BoundedCluster(startup_nodes=nodes, **given)

    def disconnect(self, connection: BoundedCluster) -> None:
        """Close the connections to all nodes; they are made again when they are needed."""
        connection.close()


def _after_fork() -> None:
    # A thread of the parent may hold it, one that is not here.
    ClusterConnectionFactory._lock = threading.Lock()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
