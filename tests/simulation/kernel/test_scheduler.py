"""The simulated time, hosts and network themselves."""

from collections.abc import Callable

import pytest

from tests.simulation.kernel.host import Host
from tests.simulation.kernel.network import Network, Stream, Weather
from tests.simulation.kernel.scheduler import Scheduler


def drain(scheduler: Scheduler, *, steps_max: int = 10_000) -> None:
    while scheduler.step():
        assert scheduler.steps < steps_max


def test_actions_run_in_order_of_time_and_then_of_scheduling() -> None:
    scheduler, ran = Scheduler(1), list[str]()
    scheduler.after(2.0, lambda: ran.append("late"))
    scheduler.after(1.0, lambda: ran.append("first"))
    scheduler.after(1.0, lambda: ran.append("second"))
    drain(scheduler)
    assert ran == ["first", "second", "late"]
    assert scheduler.now == 2.0


def test_a_cancelled_action_does_not_run() -> None:
    scheduler, ran = Scheduler(1), list[str]()
    scheduler.after(1.0, lambda: ran.append("never")).cancel()
    assert scheduler.next_time() is None
    assert not scheduler.step()
    assert ran == []


def test_what_a_host_planned_dies_with_it() -> None:
    scheduler, ran = Scheduler(1), list[str]()
    host = Host(scheduler, "a")
    host.after(1.0, lambda: ran.append("old life"))
    host.crash()
    host.start()
    host.after(1.0, lambda: ran.append("new life"))
    drain(scheduler)
    assert ran == ["new life"]


def test_a_paused_host_does_at_its_waking_what_became_due_in_order() -> None:
    scheduler, ran = Scheduler(1), list[tuple[str, float]]()
    host = Host(scheduler, "a")
    host.after(1.0, lambda: ran.append(("timer", scheduler.now)))
    scheduler.after(2.0, lambda: host.arrive(lambda: ran.append(("message", scheduler.now))))
    host.pause()
    scheduler.after(3600.0, host.resume)
    drain(scheduler)
    assert ran == [("timer", 3600.0), ("message", 3600.0)]


def test_an_alarm_rings_when_the_hosts_own_clock_shows_it() -> None:
    scheduler = Scheduler(3)
    host = Host(scheduler, "a")
    deadline = host.clock() + 10.0
    rang: list[float] = []
    host.at_clock(deadline, lambda: rang.append(host.clock()))
    drain(scheduler)
    assert deadline <= rang[0] < deadline + 1e-6
    assert scheduler.now != 10.0, "clocks of hosts do not run at the rate of true time"


class Echo:
    """Two hosts; `handle` at the second answers "yes"."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.scheduler = Scheduler(5)
        self.network = Network(self.scheduler)
        self.network.weather = weather or Weather()
        self.client, self.server = Host(self.scheduler, "client"), Host(self.scheduler, "server")
        self.handled: list[int] = []
        self.heard: list[tuple[int, str | None]] = []
        self.stream: Stream[str] = Stream(self.network, self.client, self.server, timeout_s=1.0)

    def request(self, number: int) -> None:
        def handle(reply: Callable[[str], None]) -> None:
            self.handled.append(number)
            reply("yes")

        def done(answer: str | None) -> None:
            self.heard.append((number, answer))

        self.network.request(self.client, self.server, handle, done, timeout_s=1.0)

    def stream_request(self, number: int) -> None:
        def handle(_connection: int, reply: Callable[[str], None]) -> None:
            self.handled.append(number)
            reply("yes")

        def done(answer: str | None) -> None:
            self.heard.append((number, answer))

        self.stream.request(handle, done)


def test_a_request_that_arrives_twice_is_answered_once() -> None:
    echo = Echo(Weather(duplicate=1.0))
    echo.request(1)
    drain(echo.scheduler)
    assert echo.handled == [1, 1]
    assert echo.heard == [(1, "yes")]


def test_requests_overtake_each_other() -> None:
    echo = Echo(Weather(delay_max_s=0.5))
    for number in range(20):
        echo.request(number)
    drain(echo.scheduler)
    assert sorted(echo.handled) == list(range(20))
    assert echo.handled != list(range(20))


@pytest.mark.parametrize(
    ("lost", "handled"), [(("client", "server"), []), (("server", "client"), [1])]
)
def test_a_one_way_partition_lets_a_request_time_out(
    lost: tuple[str, str], handled: list[int]
) -> None:
    echo = Echo()
    echo.network.cut(*lost)
    echo.request(1)
    drain(echo.scheduler)
    assert echo.handled == handled
    assert echo.heard == [(1, None)]
    assert echo.scheduler.now == pytest.approx(1.0)


def test_a_host_that_is_down_refuses_soon() -> None:
    echo = Echo()
    echo.server.crash()
    echo.request(1)
    drain(echo.scheduler)
    assert echo.heard == [(1, None)]
    assert echo.handled == []


def test_a_stream_keeps_its_order_both_ways() -> None:
    echo = Echo(Weather(delay_max_s=0.5))
    for number in range(20):
        echo.stream_request(number)
    drain(echo.scheduler)
    assert echo.handled == list(range(20))
    assert echo.heard == [(number, "yes") for number in range(20)]


def test_a_broken_stream_ends_all_that_is_open_and_hears_nothing_late() -> None:
    """The answers are lost, so nobody knows; the next request opens a new connection."""
    echo = Echo()
    echo.network.cut("server", "client")
    echo.stream_request(1)
    echo.stream_request(2)
    drain(echo.scheduler)
    assert echo.handled == [1, 2]
    assert echo.heard == [(1, None), (2, None)]
    echo.network.heal()
    echo.stream_request(3)
    drain(echo.scheduler)
    assert echo.heard[2:] == [(3, "yes")]


def test_a_restart_of_the_server_resets_the_stream() -> None:
    echo = Echo()
    echo.stream_request(1)
    echo.server.crash()
    echo.server.start()
    drain(echo.scheduler)
    assert echo.handled == [], "what was sent to the old process does not reach the new one"
    assert echo.heard == [(1, None)]
