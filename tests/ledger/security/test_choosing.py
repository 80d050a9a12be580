"""Which connections are secured: what both ends were told, and what the bookie has said."""

import pytest

from ledger.errors import TransportMismatch
from ledger.security.settings import Takes, TlsMode, is_secured, takes_of

OFF, OPTIONAL, REQUIRED = TlsMode
PLAIN, BOTH, TLS = Takes


@pytest.mark.parametrize(
    ("mode", "takes", "secured"),
    [
        (OFF, PLAIN, False),
        (OFF, BOTH, False),
        (OFF, None, False),
        (OPTIONAL, PLAIN, False),
        (OPTIONAL, None, False),
        (OPTIONAL, BOTH, True),
        (OPTIONAL, TLS, True),
        (REQUIRED, None, True),
        (REQUIRED, BOTH, True),
        (REQUIRED, TLS, True),
    ],
)
def test_tls_is_used_with_whoever_has_it(mode: TlsMode, takes: Takes | None, secured: bool) -> None:
    assert is_secured(mode, takes, name="b1") is secured


def test_a_client_that_requires_it_refuses_a_plain_bookie() -> None:
    with pytest.raises(TransportMismatch, match="bookie b1 takes plain connections only, and here"):
        is_secured(REQUIRED, PLAIN, name="b1")


def test_a_client_without_it_hears_what_to_set() -> None:
    with pytest.raises(TransportMismatch, match="takes TLS only, and here it is off; set DLOG_TLS"):
        is_secured(OFF, TLS, name="b1")


def test_each_mode_of_a_server_has_a_word_in_the_registration() -> None:
    assert [takes_of(mode) for mode in TlsMode] == [PLAIN, BOTH, TLS]
