"""The demo's page and the requests that it, and the demo command, make."""

from django.urls import path

from interview_demo import views

app_name = "interview_demo"

urlpatterns = [
    path("", views.welcome, name="welcome"),
    path("interviews/", views.start, name="start"),
    path("interviews/<uuid:session>/", views.interview, name="interview"),
    path("interviews/<uuid:session>/answers/", views.answer, name="answer"),
    path("interviews/<uuid:session>/report/", views.report, name="report"),
]
