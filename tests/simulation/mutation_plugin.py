"""A plugin of pytest: the mutation that `VARIABLE` names is there while the tests run.

It comes after all tests were collected, so that what they import is what they always import.
"""

import os
from contextlib import ExitStack
from typing import Final

VARIABLE: Final = "DLOG_TEST_MUTATION"

_stack: Final = ExitStack()


def pytest_collection_finish() -> None:
    from tests.simulation.mutations import put_back

    _stack.enter_context(put_back(os.environ[VARIABLE]))


def pytest_unconfigure() -> None:
    _stack.close()
