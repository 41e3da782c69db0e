"""Settings of the checkout: each environment variable has a default with which a fresh one just runs.

DATABASE_URL, REDIS_URL and CELERY_BROKER_URL name servers to use; for what they don't name, `config.servers`
starts one. Importing this module starts nothing and connects to nothing.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from config.addresses import database_from, redis_url_from
from config.servers import places

BASE_DIR = Path(__file__).resolve().parent.parent

# ----------------------------------------------------------------------------------------------- security
DEBUG = os.environ.get("DEBUG", "1").lower() in {"1", "true", "yes", "on"}
SECRET_KEY = os.environ.get("SECRET_KEY", "")
if not SECRET_KEY:
    if not DEBUG:
        raise ImproperlyConfigured("With DEBUG=0 set SECRET_KEY to a long random string of your own.")
    SECRET_KEY = "for-development-only-" + "x" * 40
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")
CSRF_TRUSTED_ORIGINS = [origin for origin in os.environ.get("CSRF_TRUSTED_ORIGINS", "").split(",") if origin]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

# --------------------------------------------------------------------------------------------- application
# The app works without it, and CI runs it so on the newest Django.
WITH_PROMETHEUS = find_spec("django_prometheus") is not None

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    *(["django_prometheus"] if WITH_PROMETHEUS else []),
    "config.apps.ProjectConfig",
    "singleflight_app",
    "interview_demo",
]
MIDDLEWARE = [
    *(["django_prometheus.middleware.PrometheusBeforeMiddleware"] if WITH_PROMETHEUS else []),
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    *(["django_prometheus.middleware.PrometheusAfterMiddleware"] if WITH_PROMETHEUS else []),
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
ASGI_APPLICATION = "config.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# ------------------------------------------------------------------------------------------------- servers
DATABASES: dict[str, dict[str, Any]] = {"default": database_from(os.environ)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": redis_url_from(os.environ),
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.DefaultClient",
            # Redis only makes things faster: a slow one is worth a second, not a request.
            "SOCKET_CONNECT_TIMEOUT": 1,
            "SOCKET_TIMEOUT": 1,
        },
    },
}

# ------------------------------------------------------------------------------------------ single flights
_DEMO = {"lease_timeout": 2, "heartbeat_interval": 0.5, "execution_timeout": 180, "failure_ttl": 5}
SINGLEFLIGHT: dict[str, Any] = {
    "NAMESPACE": os.environ.get("SINGLEFLIGHT_NAMESPACE", "dev"),
    "MODE": "hybrid",
    "DATABASE": "default",
    "CACHE": "default",
    # Scaled down like the simulated model's answers, so that a takeover can be watched; docs/settings.md has
    # what suits real ones.
    "STAGES": {
        "interview-extraction": {
            **_DEMO,
            "wait_timeout": 120,
            "result_ttl": 1800,
            "compress_over": 1024,
            "replay_memory_ttl": 60,
        },
        "interview-score": {**_DEMO, "wait_timeout": 60, "result_ttl": 600, "replay_memory_ttl": 30},
        "interview-followup": {**_DEMO, "wait_timeout": 60, "result_ttl": 600, "replay_memory_ttl": 15},
        "interview-report": {**_DEMO, "wait_timeout": 200, "result_ttl": 1800, "replay_memory": False},
    },
}

# -------------------------------------------------------------------------------------------------- celery
CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "") or "filesystem://"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
if CELERY_BROKER_URL == "filesystem://":
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(places.broker_messages()),
        "data_folder_out": str(places.broker_messages()),
        "control_folder": str(places.broker_folder() / "control"),
        # One message is taken per interval; the default is a second.
        "polling_interval": 0.05,
    }
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_SCHEDULE_FILENAME = str(places.servers_folder() / "beat-schedule")
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "singleflight.sweep", "schedule": 10.0},
    "purge": {"task": "singleflight.purge", "schedule": 300.0},
}

# ------------------------------------------------------------------------------------- language, time, files
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
USE_I18N = True
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
# gunicorn serves the admin's files from where the apps keep them; no collectstatic needed.
WHITENOISE_USE_FINDERS = True
