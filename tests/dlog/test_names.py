import pytest

from dlog.errors import InvalidName
from dlog.names import check_name, name_of, node_of, path_of


@pytest.mark.parametrize(
    "name", ["a", "flights", "db/orders/2024", "ünïcode", "a b", "x.y", "a" * 255]
)
def test_a_good_name_is_one_node_and_comes_back_from_it(name: str) -> None:
    assert check_name(name) == name
    assert "/" not in node_of(name)
    assert name_of(node_of(name)) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("a" * 256, "256 bytes"),
        ("ü" * 128, "256 bytes"),
        ("a\nb", "control"),
        ("a\x00b", "control"),
        ("a\x7fb", "control"),
        ("a\u2028b", "control"),
        ("a\u200bb", "control"),
        (".", "begins with a dot"),
        ("..", "begins with a dot"),
        (".hidden", "begins with a dot"),
        ("a/../b", "begins with a dot"),
        ("a/.b", "begins with a dot"),
        ("a//b", "empty part"),
        ("/a", "slash"),
        ("a/", "slash"),
        ("/", "slash"),
        ("a\ud800", "UTF-8"),
    ],
)
def test_a_bad_name_is_refused_with_its_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidName) as caught:
        path_of(name)
    assert reason in str(caught.value)
    assert "Use 1 to 255 bytes" in str(caught.value)
    assert not caught.value.retryable


def test_what_is_no_string_is_no_name() -> None:
    with pytest.raises(InvalidName):
        check_name(b"a")  # type: ignore[arg-type]


def test_percent_signs_survive() -> None:
    assert name_of(node_of("50%25")) == "50%25"
    assert node_of("a/b") != node_of("a%2Fb")
