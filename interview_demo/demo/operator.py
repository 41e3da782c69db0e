"""Who looks at the admin while the demo's nodes run: a user whose password lasts as long as they do."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.contrib.auth.models import Permission, User

NAME = "demo"
DASHBOARD = "/admin/singleflight/dashboard/"


@dataclass(frozen=True)
class Operator:
    """A member of staff with every permission of the app, and none beside."""

    name: str
    password: str

    def invitation(self, node_url: str) -> str:
        """Return where to look, and as whom."""
        return f"{node_url}{DASHBOARD}  (user {self.name}, password {self.password})"


@contextmanager
def invited_operator() -> Iterator[Operator]:
    """Let the user in with a new password, and shut the door at the end."""
    user, _ = User.objects.get_or_create(username=NAME, defaults={"is_staff": True})
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="singleflight"))
    operator = Operator(NAME, secrets.token_urlsafe(9))
    user.set_password(operator.password)
    user.save(update_fields=["password"])
    try:
        yield operator
    finally:
        # Another program may have let the user in anew: its password is not this one's to take.
        if User.objects.get(pk=user.pk).check_password(operator.password):
            user.set_unusable_password()
            user.save(update_fields=["password"])
