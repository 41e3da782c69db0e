"""A real PostgreSQL and a real Valkey for a checkout that was given none.

```python
from config.servers import start_servers

start_servers()   # returns when both answer; nothing to stop, nothing to close
```

Without DATABASE_URL a PostgreSQL runs, without REDIS_URL a Valkey, shared by all processes of the checkout.
Each caller is a *user* until its process ends, however it ends; a second after the last user is gone the
servers stop. The data stays in `.servers/`.

How: a user holds a shared flock on `<name>.users` for life, which the kernel lets go even after a SIGKILL.
One detached *keeper* per server (holder of the lock `<name>.keeper`) owns the server process, restarts it
when it dies, and stops it once it gets the users' lock for itself. If a keeper is killed, its server runs on,
and the next caller's keeper adopts it. Nothing is decided by a pid that a file remembers.
"""

from config.servers.errors import ServerCannotStart
from config.servers.using import start_servers

__all__ = ["ServerCannotStart", "start_servers"]
