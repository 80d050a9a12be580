"""A test that is a coroutine function runs on an event loop of its own, and not for ever.

This is the one way to write an async test: `async def test_...`. `asyncio.run` stands in a test
only where the test is about several loops, or computes its examples, or blocks around the loop.
"""

import asyncio
import inspect
from typing import Final

import pytest

WITHIN: Final = 0.9
"""The part of the test's time-out after which it is cancelled, so that it can still clean up."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asked = pyfuncitem.get_closest_marker("timeout")
    timeout_s = float(asked.args[0] if asked else str(pyfuncitem.config.getini("timeout")))
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def in_time() -> None:
        async with asyncio.timeout(WITHIN * timeout_s):
            await pyfuncitem.obj(**arguments)

    asyncio.run(in_time())
    return True
