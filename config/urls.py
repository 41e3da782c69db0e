"""The admin, the interviews to click, and /metrics."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("interview_demo.urls")),
    path("", include("singleflight_app.urls")),
]
