"""The admin's pages; Django finds them here, and importing them registers them."""

from singleflight_app.admin.dashboard import DashboardAdmin
from singleflight_app.admin.flights import FlightAdmin, StageStatAdmin

__all__ = ["DashboardAdmin", "FlightAdmin", "StageStatAdmin"]
