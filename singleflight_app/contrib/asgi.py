"""An ASGI application that releases its leases when its server shuts down.

```python
application = releasing(get_asgi_application())
```

uvicorn waits for its requests, not for a call whose client has left, and then dies of the signal before the event loop
or the interpreter could end anything. Its lifespan's end comes in between, and Django has no use for that.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from singleflight_app import wiring

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


def releasing(application: Application) -> Application:
    """Return `application` with a lifespan of its own, whose end releases every lease of the process."""

    async def released(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await application(scope, receive, send)

    return released


async def _live(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await asyncio.to_thread(wiring.close)
    await send({"type": f"{message['type']}.complete"})
