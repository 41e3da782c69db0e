"""Members of the staff at the admin's pages, each with just the permissions that a test is about."""

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

LIST = "admin:singleflight_flight_changelist"
PAGE = "admin:singleflight_flight_change"
RESULT = "admin:singleflight_flight_result"


def staff(*codenames: str, name: str = "mira") -> Client:
    """Return the client of a new staff user with just these permissions."""
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, name: str, *args: object, **query: str) -> str:
    """Return the text of a page, which must be there."""
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200, response
    return response.content.decode()


def listed(client: Client, **query: str) -> list[int]:
    """Return the ids of the flights on a page of the list, in its order."""
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200, response
    return [flight.pk for flight in response.context["cl"].result_list]
