"""A command that has the wrapping keys, run for real."""

import base64
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from dlog.encryption.command import ANSWER_BYTES_MAX, KeyCommand
from dlog.encryption.keyring import Keyring
from dlog.errors import InvalidKeys, KeyCommandFailed, KeyMissing

pytestmark = pytest.mark.integration

DATA_KEY: Final = bytes(range(32))

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a command that runs a script, which finds its three lines in *asked*."""

    def made(body: str) -> str:
        file = tmp_path / "a kms.py"
        file.write_text(
            "import base64, os, subprocess, sys, time\nasked = sys.stdin.read().split()\n" + body
        )
        return f"{sys.executable} '{file}' --token hush-hush"

    return made


WRAPS: Final = """
data = base64.b64decode(asked[2])
print(base64.b64encode(b"<" + data + b">" if asked[0] == "wrap" else data[1:-1]).decode())
"""


def test_a_command_wraps_and_unwraps(script: Script) -> None:
    command = KeyCommand(script(WRAPS))
    wrapped = command.wrap("arn:aws:kms:eu:1:key/ab", DATA_KEY)
    assert wrapped == b"<" + DATA_KEY + b">"
    assert command.unwrap("arn:aws:kms:eu:1:key/ab", wrapped) == DATA_KEY


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit(3)", "it ended with 3"),
        ("print('not base64!')", "not base64"),
        ("pass", "answered nothing"),
        (f"print('A' * {ANSWER_BYTES_MAX + 1})", "answered more than"),
        ("while True: print('A' * 1000)", "answered more than"),
        ("print('A' * 8000)", "more than 4096"),
    ],
)
def test_a_command_that_does_not_answer_as_it_should_is_told_of(
    script: Script, body: str, reason: str
) -> None:
    with pytest.raises(KeyCommandFailed, match=reason) as caught:
        KeyCommand(script(body)).wrap("one", DATA_KEY)
    assert caught.value.retryable
    text = f"{caught.value} {caught.value!r}"
    assert "hush-hush" not in text, "arguments may be secrets"
    assert base64.b64encode(DATA_KEY).decode() not in text


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(600)",
        "sys.stdout.close(); os.close(1); time.sleep(600)",
        "subprocess.Popen(['sleep', '600']); sys.exit(0)",
    ],
    ids=["silent", "closed its output", "left a child with it"],
)
def test_a_command_that_takes_too_long_is_killed(script: Script, body: str) -> None:
    began = time.monotonic()
    with pytest.raises(KeyCommandFailed, match="longer than"):
        KeyCommand(script(body), answer_s=0.5).unwrap("one", b"wrapped")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("command", ["no-such-program-anywhere", "", "'unclosed", "/etc"])
def test_a_command_that_cannot_be_run_is_refused(command: str) -> None:
    with pytest.raises(InvalidKeys, match="DLOG_KEY_COMMAND"):
        KeyCommand(command).wrap("one", DATA_KEY)


async def test_what_a_command_unwraps_to_another_size_is_no_data_key(script: Script) -> None:
    with pytest.raises(KeyMissing, match="no data key"):
        await Keyring(KeyCommand(script("print('QUFB')"))).data_key("one", b"wrapped")
    with pytest.raises(KeyMissing, match="5000 bytes"):
        await Keyring(KeyCommand(script("print('QUFB')"))).data_key("one", bytes(5000))
