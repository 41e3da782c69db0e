"""URLs of the app: included at "", they give /metrics, if django-prometheus is installed."""

from importlib.util import find_spec

from django.urls import URLPattern, path

app_name = "singleflight"
urlpatterns: list[URLPattern] = []

if find_spec("django_prometheus") is not None:
    from singleflight_app.views import metrics

    urlpatterns.append(path("metrics", metrics, name="metrics"))
