"""The web node for an ASGI server: `config.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

from config.servers import start_servers
from singleflight_app.contrib.asgi import releasing

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
start_servers()

application = releasing(get_asgi_application())
