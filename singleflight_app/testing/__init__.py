"""Test mode: flights in memory instead of servers, a clock that is moved by hand, other processes that are played.

    from singleflight_app.testing import flights_in_memory

    class ScoreTest(TestCase):
        def setUp(self):
            self.flights = self.enterContext(flights_in_memory())

        def test_a_double_click_is_paid_once(self):
            for _ in range(2):
                self.client.post("/score/", {"answer": "..."})

            self.flights.assert_called_once(score_answer)

`with flights_in_memory() as flights:` does the same for a block, and `@flights_in_memory()` for a TestCase (which then
has `self.flights`) or a function. In pytest there is the fixture `flights`. docs/howto/testing.md shows the rest.
"""

from singleflight_app.testing.elsewhere import Elsewhere
from singleflight_app.testing.flights import Flights
from singleflight_app.testing.mode import flights_in_memory
from singleflight_app.testing.record import Request

__all__ = ["Elsewhere", "Flights", "Request", "flights_in_memory"]
