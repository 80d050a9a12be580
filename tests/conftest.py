"""Fixtures for all tests."""

import asyncio
import gc
import importlib
import logging
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from dlog.local.errors import JavaMissing, ZooKeeperMissing
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.protocol.common import CHECKS
from tests.waiting import PATIENCE_S, SESSION_S

pytest_plugins = [
    "tests.coroutines",
    "tests.tiers",
    "tests.schedule",
    "tests.class_archive",
    "tests.zygote",
]

CHECKS.costly = True

# A loaded machine misses any deadline.
hypothesis.settings.register_profile("without deadlines", deadline=None)
hypothesis.settings.load_profile("without deadlines")

# Pytest rewrites what it imports of our packages, as of every package with a plugin. What the
# product imports late is imported here, so that nothing is rewritten in the middle of a test.
for late in (
    "bookie.tools.format",
    "dlog.testing",
    "ledger.metastore.memory",
    "ledger.metastore.sqlite",
    "ledger.metastore.zookeeper",
):
    importlib.import_module(late)

# A JVM that lives for a test compiles more than it runs: a session of Spark takes a third less.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# Seconds that Python gives a JVM of Spark to answer; a loaded machine takes longer than the 15 of
# the default.
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "300")

# A shell starts what runs in its background with Ctrl-C ignored, and all that tests start would
# inherit it: commands that are to end with it would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def freeze() -> None:
    """What is there now stays: a collection looks at what comes from now on. Of a quick run a
    quarter was looking again and again at the reports of the tests before."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    freeze()


@pytest.fixture(scope="module", autouse=True)
def patience(request: pytest.FixtureRequest) -> Iterator[None]:
    """What reads its settings from the environment, as a user's program does, does not give up
    because the machine stood still; what a test starts inherits them.

    Nothing else is patient by itself: a test that connects, transports or campaigns by a call of
    its own passes time-outs (`tests.patience`). The simulator has a clock of its own and the
    time-outs that users have. Afterwards what the module left unclosed is collected, so that
    it is reported here."""
    freeze()
    if "simulation" in request.path.parts:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLOG_SESSION_TIMEOUT_S", str(SESSION_S))
        patch.setenv("DLOG_TIMEOUT_S", str(PATIENCE_S))
        patch.setenv("DLOG_BOOKIE_TIMEOUT_S", str(PATIENCE_S))
        yield
    gc.collect()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs in this process sets up its log: for its own test only. Else nothing
    below an error would be logged any more, and a test that waits for a warning waits in vain."""
    root, kazoo = logging.getLogger(), logging.getLogger("kazoo")
    handlers, level, level_of_kazoo = root.handlers[:], root.level, kazoo.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    kazoo.setLevel(level_of_kazoo)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedZooKeeper]:
    """One server for the whole run; use `tests.zookeeper.fresh_uri` for a namespace in it.

    A test that stops or pauses a server must start one of its own."""
    server = ManagedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        asyncio.run(server.start())
    except (JavaMissing, ZooKeeperMissing) as error:
        pytest.skip(str(error))
    yield server
    asyncio.run(server.stop())
