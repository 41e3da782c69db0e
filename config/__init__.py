"""The project around the app: settings, URLs, entry points, and the servers of a fresh checkout.

Nothing is imported here, so that `config.servers` costs no Django and no Celery. `config.apps` tells Celery.
"""
