"""Who has a certificate, and whether it is the bookie that was meant."""

import pytest

from ledger.security.names import (
    Certificate,
    Identity,
    bookie_uri,
    certificate_of,
    identity_of,
    is_of_host,
    why_not_bookie,
)
from ledger.security.settings import NAME_KINDS, NameKind


def shown(**names: tuple[str, ...] | str) -> Certificate:
    return Certificate(0.0, **names)  # type: ignore[arg-type] # by name


def test_a_certificate_is_read_as_python_gives_it() -> None:
    found = certificate_of(
        {
            "subject": ((("organizationName", "o"),), (("commonName", "writer"),)),
            "notAfter": "Nov 23 18:00:00 2026 GMT",
            "subjectAltName": (
                ("URI", "spiffe://prod/w"),
                ("DNS", "w.example"),
                ("IP Address", "10.0.0.7"),
            ),
        }
    )
    assert found == Certificate(
        1795456800.0, ("spiffe://prod/w",), ("w.example",), ("10.0.0.7",), "writer"
    )


def test_the_first_kind_of_name_that_there_is_says_who_it_is() -> None:
    both = shown(uris=("spiffe://prod/w",), dns=("w.example",), common_name="w")
    assert identity_of(both, NAME_KINDS) == Identity(NameKind.URI, "spiffe://prod/w")
    assert identity_of(both, (NameKind.CN,)) == Identity(NameKind.CN, "w")
    assert identity_of(shown(common_name="w"), NAME_KINDS) == Identity(NameKind.CN, "w")
    assert identity_of(shown(ips=("10.0.0.7",)), NAME_KINDS) is None


def test_a_common_name_that_looks_like_a_uri_is_not_one() -> None:
    faked = identity_of(shown(common_name="spiffe://prod/operator"), NAME_KINDS)
    assert faked is not None
    assert str(faked) == "cn:spiffe://prod/operator"


@pytest.mark.parametrize(
    "uri", [bookie_uri("b1"), "spiffe://prod/bookie/b1", "spiffe://prod/ns/x/bookie/b1"]
)
def test_a_certificate_that_names_a_bookie_is_its_own_and_no_other_ones(uri: str) -> None:
    certificate = shown(uris=(uri,), ips=("10.0.0.7",))
    assert why_not_bookie(certificate, "b1", "elsewhere") is None
    assert why_not_bookie(certificate, "b2", "10.0.0.7") == (
        "its certificate is that of bookie b1, not b2"
    )


def test_a_bookie_of_another_trust_domain_is_not_taken() -> None:
    """By no name: the authority of that domain may say what it likes of its own."""
    found = shown(uris=("spiffe://other/bookie/b1", bookie_uri("b1")), dns=("host",))
    own = shown(uris=("spiffe://prod/ns/x/writer",))
    assert why_not_bookie(found, "b1", "host", own=own) == (
        "its certificate is of the trust domain other, this process's of prod"
    )
    of_ours = shown(uris=("spiffe://PROD/bookie/b1",))
    assert why_not_bookie(of_ours, "b1", "host", own=own) is None
    assert why_not_bookie(of_ours, "b2", "host", own=own) is not None
    for without in (None, shown(common_name="writer")):
        assert why_not_bookie(found, "b1", "host", own=without) is None
    assert why_not_bookie(shown(dns=("host",)), "b1", "host", own=own) is None


def test_a_name_with_signs_of_its_own_is_quoted_in_the_uri() -> None:
    assert bookie_uri("rack 1/b") == "dlog:bookie:rack%201%2Fb"
    assert why_not_bookie(shown(uris=(bookie_uri("rack 1/b"),)), "rack 1/b", "") is None


@pytest.mark.parametrize(
    "uri", ["spiffe://bookie/b1", "spiffe://prod/bookie/", "spiffe://prod/bookie", "x:bookie:b1"]
)
def test_a_uri_that_names_no_bookie_counts_for_none(uri: str) -> None:
    assert why_not_bookie(shown(uris=(uri,)), "b1", "host") is not None
    assert why_not_bookie(shown(uris=(uri,), dns=("host",)), "b1", "host") is None


@pytest.mark.parametrize(
    ("names", "host", "fits"),
    [
        (("b1.example",), "B1.Example.", True),
        (("b1.example",), "b2.example", False),
        (("*.example.org",), "b1.example.org", True),
        (("*.example.org",), "a.b1.example.org", False),
        (("*.example.org",), ".example.org", False),
        (("*.org",), "example.org", False),
        (("b*.example.org",), "b1.example.org", False),
        (("10.0.0.7",), "10.0.0.7", False),
    ],
)
def test_names_of_hosts_fit_whole_and_an_asterisk_is_one_label(
    names: tuple[str, ...], host: str, fits: bool
) -> None:
    assert is_of_host(shown(dns=names, common_name=host), host) is fits


def test_addresses_are_compared_as_such() -> None:
    assert is_of_host(shown(ips=("0:0:0:0:0:0:0:1",)), "::1")
    assert not is_of_host(shown(ips=("10.0.0.7",)), "10.0.0.8")


def test_a_stranger_is_told_by_all_that_it_is_not() -> None:
    reason = why_not_bookie(shown(dns=tuple(f"h{n}" for n in range(6))), "b1", "10.0.0.7")
    assert reason == (
        "its certificate is for h0, h1, h2, h3 and 2 more, and names neither 10.0.0.7 nor bookie b1"
    )
