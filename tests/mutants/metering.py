"""Bugs of metrics and health: numbers that stand still, strangers who take all, lies of health."""

from tests.mutants.mutant import mutant

_MOVE = "tests/metering/test_metrics_move.py::test_each_metric_that_is_declared_moves"
_SERVING = "tests/ledger/metering/test_serving.py::test_"
_DECLARING = "tests/ledger/metering/test_declaring.py::test_"
_SERVER = "ledger/metering/http_server.py"

mutant(
    "counts no fences",
    "bookie/server/core.py",
    old="        self.fences += 1\n",
    new="",
    test=_MOVE,
)
mutant(
    "counts takeovers only if they fail",
    "dlog/aio/write/takeover_driver.py",
    old="        metrics.TAKEOVER_S.observe(time.monotonic() - began)\n",
    new="",
    test=_MOVE,
)
mutant(
    "is ready though clients do not find it",
    "bookie/metrics.py",
    old="        if trouble:\n",
    new="        if False:\n",
    test=_MOVE,
)
mutant(
    "holds as many connections for metrics as come",
    _SERVER,
    old="if len(self._connections) >= self._limits.connections_max:",
    new="if False:",
    test=_SERVING + "one_connection_more_than_allowed_ends_the_oldest",
)
mutant(
    "waits for ever for a request for metrics",
    _SERVER,
    old="async with asyncio.timeout(self._limits.request_s):",
    new="async with asyncio.timeout(None):",
    test=_SERVING + "who_sends_nothing_is_hung_up_on",
)
mutant(
    "waits for ever until metrics are taken",
    _SERVER,
    old="async with asyncio.timeout(self._limits.answer_s):",
    new="async with asyncio.timeout(None):",
    test=_SERVING + "who_does_not_take_the_answer_is_hung_up_on",
)
mutant(
    "makes a page for everybody who asks",
    _SERVER,
    old="if self._made is None or now >= self._made_at + self._limits.page_s:",
    new="if True:",
    test=_SERVING + "who_asks_all_the_time_gets_the_page_that_was_made_last",
)
mutant(
    "is alive though its loop hangs",
    _SERVER,
    old="return _said(HTTPStatus.SERVICE_UNAVAILABLE, reason)",
    new='return _said(HTTPStatus.OK, "alive")',
    test=_SERVING + "it_is_not_alive_when_the_loop_of_the_process_hangs",
)
mutant(
    "has a series for each log, however many",
    "ledger/metering/declaration.py",
    old="name = given if given in found or len(found) < SERIES_MAX else OTHERS",
    new="name = given",
    test=_DECLARING + "series_are_bounded_and_the_rest_is_put_together",
)
