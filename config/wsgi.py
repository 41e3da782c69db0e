"""The web node for gunicorn: `config.wsgi:application`."""

import os

from django.core.wsgi import get_wsgi_application

from config.servers import start_servers

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
start_servers()

application = get_wsgi_application()
