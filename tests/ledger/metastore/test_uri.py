from pathlib import Path

import pytest

from ledger.errors import InvalidUri
from ledger.metastore.uri import FileUri, MemoryUri, ZooKeeperUri, parse_uri


def test_the_three_kinds_of_uris_are_understood() -> None:
    assert parse_uri("file:///var/lib/dlog") == FileUri(Path("/var/lib/dlog"))
    assert parse_uri("file:///with%20space") == FileUri(Path("/with space"))
    assert parse_uri("memory://test") == MemoryUri("test")
    assert parse_uri("zk://a:2181,b:2182/dlog/x/") == ZooKeeperUri(
        hosts="a:2181,b:2182", root="/dlog/x"
    )
    assert parse_uri("zk://a") == ZooKeeperUri(hosts="a:2181", root="")
    assert parse_uri("zk://[::1]:9/r") == ZooKeeperUri(hosts="[::1]:9", root="/r")
    assert parse_uri("zk://a:1,[::1]:9/r") == ZooKeeperUri(hosts="a:1,[::1]:9", root="/r")


def test_credentials_and_tls_come_as_options() -> None:
    parsed = parse_uri("zk://a/r?auth=digest:me:s%3Acret&ca=/ca.pem&cert=/c.pem&key=/k.pem")
    assert parsed == ZooKeeperUri(
        hosts="a:2181",
        root="/r",
        user="me",
        password="s:cret",
        ca_file="/ca.pem",
        cert_file="/c.pem",
        key_file="/k.pem",
    )


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/just/a/path",
        "http://a/b",
        "file://relative/path",
        "file://",
        "file:///d?x=1",
        "file:///d%00",
        "memory://",
        "memory://a/b",
        "zk://",
        "zk://:2181/r",
        "zk://a:port/r",
        "zk://a:99999/r",
        "zk://a,,b/r",
        "zk://a//r",
        "zk://a/../r",
        "zk://u:p@a/r",
        "zk://a/r?unknown=1",
        "zk://a/r?auth=plain:u:p",
        "zk://a/r?auth=digest:u",
        "zk://a/r?cert=/c.pem",
        "zk://a/r?ca=/c.pem&cert=/c.pem",
        "zk://a/r#part",
        "zk://[::1/r",
    ],
)
def test_what_is_no_uri_is_refused_with_the_reason(uri: str) -> None:
    with pytest.raises(InvalidUri):
        parse_uri(uri)


def test_a_password_is_not_repeated_in_an_error() -> None:
    for uri in ("zk://a/r?auth=digest:user:hunter2&x=1", "zk://user:hunter2@a/r"):
        with pytest.raises(InvalidUri) as caught:
            parse_uri(uri)
        assert "hunter2" not in str(caught.value)
