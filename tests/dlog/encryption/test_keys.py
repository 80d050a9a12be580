"""Wrapping keys of a file, and the keyring: what they do, and what is told when they do not."""

import base64
import os
import stat
from pathlib import Path
from typing import Final

import pytest

from dlog.encryption import keyring as rings
from dlog.encryption.files import FILE_BYTES_MAX, KeyFile, add_key, read_keys
from dlog.encryption.keyring import Keyring, keyring, use_keys
from dlog.errors import InvalidKeys, KeyMissing

DATA_KEY: Final = bytes(range(32))
TEXT: Final = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_key_wraps_and_unwraps_and_its_file_is_private(path: Path) -> None:
    add_key(path, "one")
    wrapped = KeyFile(str(path)).wrap("one", DATA_KEY)
    add_key(path, "two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KeyFile(str(path)).unwrap("one", wrapped) == DATA_KEY
    assert list(read_keys(path)) == ["one", "two"]
    assert KeyFile(str(path)).wrap("one", DATA_KEY) != wrapped


def test_a_key_goes_behind_a_last_line_that_has_no_end(path: Path) -> None:
    write(path, f"one {TEXT}")
    add_key(path, "two")
    assert list(read_keys(path)) == ["one", "two"]


def test_what_one_key_wrapped_does_not_open_by_another_of_its_name(path: Path) -> None:
    write(path, f"one {TEXT}")
    wrapped = KeyFile(str(path)).wrap("one", DATA_KEY)
    path.unlink()
    add_key(path, "one")
    with pytest.raises(KeyMissing, match="is another"):
        KeyFile(str(path)).unwrap("one", wrapped)
    with pytest.raises(KeyMissing, match="is another"):
        KeyFile(str(path)).unwrap("one", b"")


def test_what_was_wrapped_by_a_name_does_not_open_by_another_one(path: Path) -> None:
    write(path, f"one {TEXT}\ntwo {TEXT}")
    keys = KeyFile(str(path))
    with pytest.raises(KeyMissing):
        keys.unwrap("two", keys.wrap("one", DATA_KEY))


def test_a_key_that_was_added_since_is_found(path: Path) -> None:
    add_key(path, "one")
    keys = KeyFile(str(path))
    keys.wrap("one", DATA_KEY)
    with pytest.raises(KeyMissing, match="does not have it"):
        keys.wrap("two", DATA_KEY)
    add_key(path, "two")
    keys.wrap("two", DATA_KEY)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("one", "line 1: write a name"),
        (f"# a comment\n\none {TEXT} more", "line 3: write a name"),
        (f"one {TEXT[:-4]}", "line 1: write a name"),
        ("one !!!!", "line 1: write a name"),
        (f"o?e {TEXT}", "line 1: the name of a key is"),
        (f"{TEXT} {TEXT}", "line 1: the name of a key is"),
        (f"one {TEXT}\none {TEXT}", "there is a key 'one' already"),
        ("#" * (FILE_BYTES_MAX + 1), "more than"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_a_sentence_without_a_key(
    path: Path, text: str, reason: str
) -> None:
    with pytest.raises(InvalidKeys, match=reason) as caught:
        read_keys(write(path, text))
    assert TEXT[:10] not in str(caught.value)
    assert TEXT[:10] not in repr(caught.value)


def test_a_file_that_is_not_there_or_that_everybody_may_read_is_refused(path: Path) -> None:
    with pytest.raises(InvalidKeys, match="No such file"):
        read_keys(path)
    write(path, f"one {TEXT}", 0o644)
    with pytest.raises(InvalidKeys, match="chmod o="):
        read_keys(path)
    path.chmod(0o640)
    assert list(read_keys(path)) == ["one"]


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "ö", "x" * 256, TEXT, "ab" * 32])
def test_a_name_that_is_none_or_a_key_by_mistake_is_refused(path: Path, name: str) -> None:
    with pytest.raises(InvalidKeys, match="its name has to be") as caught:
        add_key(path, name)
    assert not name or name not in str(caught.value)
    assert not path.exists()


def test_a_name_is_not_given_twice(path: Path) -> None:
    add_key(path, "one")
    before = path.read_bytes()
    with pytest.raises(InvalidKeys, match="already"):
        add_key(path, "one")
    assert path.read_bytes() == before


async def test_a_data_key_is_unwrapped_once_and_remembered(path: Path) -> None:
    add_key(path, "one")
    ring = Keyring(KeyFile(str(path)))
    made = await ring.new_data_key("one")
    found = await ring.data_key("one", made.wrapped)
    path.unlink()  # noqa: ASYNC240 - what is remembered needs no file
    assert await ring.data_key("one", made.wrapped) is found
    nonce = bytes(12)
    assert found.cipher.decrypt(nonce, made.cipher.encrypt(nonce, b"a", None), None) == b"a"


async def test_what_is_remembered_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "CACHED_MAX", 2)
    add_key(path, "one")
    ring = Keyring(KeyFile(str(path)))
    wrapped = [(await ring.new_data_key("one")).wrapped for _ in range(3)]
    first = await ring.data_key("one", wrapped[0])
    for each in wrapped[1:]:
        await ring.data_key("one", each)
    assert await ring.data_key("one", wrapped[0]) is not first


async def test_no_two_data_keys_are_the_same(path: Path) -> None:
    add_key(path, "one")
    ring = Keyring(KeyFile(str(path)))
    opened = [KeyFile(str(path)).unwrap("one", (await ring.new_data_key("one")).wrapped)
              for _ in range(20)]  # fmt: skip
    assert len(set(opened)) == 20


async def test_without_keys_the_error_says_what_to_give() -> None:
    with pytest.raises(KeyMissing, match=r"'one' is needed .* DLOG_KEY_FILE"):
        await Keyring(None).data_key("one", b"wrapped")


async def test_keys_are_configured_and_an_argument_counts_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_key(path, "configured")
    other = path.with_name("other")
    add_key(other, "given")
    monkeypatch.setenv("DLOG_KEY_FILE", os.fspath(path))
    await keyring().new_data_key("configured")
    assert keyring() is keyring()
    use_keys(file=os.fspath(other))
    try:
        await keyring().new_data_key("given")
        with pytest.raises(KeyMissing):
            await keyring().new_data_key("configured")
    finally:
        use_keys()
    await keyring().new_data_key("configured")


def test_a_file_and_a_command_together_are_refused(path: Path) -> None:
    with pytest.raises(InvalidKeys, match="give one of them"):
        use_keys(file=os.fspath(path), command="true")
