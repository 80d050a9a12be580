"""All parsers of what comes from outside."""

from collections.abc import Sequence
from typing import Final

from tests.fuzz.target import Target
from tests.fuzz.targets.disk import DISK
from tests.fuzz.targets.entries import ENTRIES
from tests.fuzz.targets.people import PEOPLE
from tests.fuzz.targets.store import STORE
from tests.fuzz.targets.wire import WIRE

TARGETS: Final[Sequence[Target]] = (*WIRE, *ENTRIES, *STORE, *DISK, *PEOPLE)
