"""How property tests search: as long as it takes on a loaded machine, without leaving files behind."""

from hypothesis import HealthCheck, settings

searching = settings(
    deadline=None,
    database=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
