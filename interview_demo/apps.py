"""The demo as a Django app."""

from django.apps import AppConfig


class InterviewDemoConfig(AppConfig):
    """Interviews, their turns, and the page to click."""

    name = "interview_demo"
    verbose_name = "Interview demo"
    default_auto_field = "django.db.models.BigAutoField"
