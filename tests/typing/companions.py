"""Checked by mypy and pyright, never run: the names of `singleflight_app.contrib`."""

from decimal import Decimal
from typing import assert_type

from django.core.asgi import get_asgi_application

from singleflight_app import Usage, current_flight
from singleflight_app.contrib.asgi import Application, Message, Receive, Send, releasing
from singleflight_app.contrib.openai import Price, usage_of
from singleflight_app.contrib.redis_cluster import BoundedCluster, ClusterConnectionFactory

cluster: BoundedCluster = ClusterConnectionFactory({}).connect("redis://127.0.0.1:7000")
application: Application = releasing(get_asgi_application())


async def served(scope: Message, receive: Receive, send: Send) -> None:
    """An application is called as any."""
    await application(scope, receive, send)


def priced(reply: object) -> None:
    """What a reply cost."""
    prices = {"m": Price(input=Decimal(1), output=Decimal(2))}
    assert_type(usage_of(reply, prices=prices), Usage)
    assert_type(usage_of(reply).tokens, int)
    assert_type(usage_of(reply, cost=Decimal(1)).cost, Decimal)
    current_flight().record_usage(usage_of(reply))
    usage_of(reply, cost=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
