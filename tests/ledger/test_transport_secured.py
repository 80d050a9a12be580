"""The contract of the transport once more, with TLS at both ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.security.certificates import Security
from tests.certificates import certificate, put
from tests.ledger.serving import BOOKIE, Secured, secured
from tests.ledger.test_transport import (  # noqa: F401 - collected here, too
    test_a_bookie_that_dies_answers_what_is_open_and_is_used_again_after_its_return,
    test_a_bookie_that_moved_is_found_at_its_new_address,
    test_a_cancelled_read_leaves_the_transport_usable,
    test_a_full_queue_refuses_more,
    test_a_long_poll_returns_soon_after_the_entry_is_confirmed,
    test_another_bookie_at_the_address_is_not_taken_for_the_right_one,
    test_close_lets_what_was_sent_to_a_slow_bookie_arrive,
    test_runs_are_answered_once_each_and_in_order,
    test_runs_that_queue_behind_a_commit_share_one_group,
    test_statuses_reach_the_runs_they_belong_to,
    test_what_a_bookie_holds_is_listed_answer_after_answer,
    test_what_was_added_is_read_back_byte_for_byte,
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    directory: Path = tmp_path_factory.mktemp("certificates")
    return Secured(
        Security(put(directory / "bookie", certificate("b1", bookie=BOOKIE)), serves=True),
        Security(put(directory / "client", certificate("writer"))),
    )


@pytest.fixture(autouse=True)
def with_tls(both: Secured) -> Iterator[None]:
    token = secured.set(both)
    yield
    secured.reset(token)
