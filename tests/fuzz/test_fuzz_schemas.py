"""As `test_fuzz`, of what needs Arrow."""

import pytest

from tests.fuzz import test_fuzz
from tests.fuzz.target import Target
from tests.fuzz.targets.schemas import SCHEMAS

pytestmark = pytest.mark.spark
of_each = pytest.mark.parametrize("target", SCHEMAS, ids=[target.name for target in SCHEMAS])


@of_each
def test_what_is_valid_is_taken(target: Target) -> None:
    test_fuzz.test_what_is_valid_is_taken(target)


@of_each
def test_nothing_is_raised_but_what_the_parser_promises(target: Target) -> None:
    test_fuzz.test_nothing_is_raised_but_what_the_parser_promises(target)
