"""A file of wrapping keys, one a line: its name, and 32 bytes in base64. Lines from # on do not
count. Old keys stay in it as long as anything that they wrapped is to be read."""

import base64
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from dlog.encryption.names import KEY_BYTES, NAME_ALLOWED, decoded, is_key_name
from dlog.envelope import encryption, new_cipher
from dlog.errors import InvalidKeys, KeyMissing

FILE_BYTES_MAX: Final = 256 * 1024
_NONCE_BYTES: Final = 12
_WRAPS: Final = b"dlog.data-key "
"""Stands before the name of the wrapping key, as associated data."""


class KeyFile:
    """Wraps data keys with those of a file, which is read anew for a key that is not known."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()
        self._keys: dict[str, bytes] = {}

    def wrap(self, name: str, data_key: bytes) -> bytes:
        """Raises `KeyMissing`, `InvalidKeys`, `EncryptionMissing`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        associated = _WRAPS + name.encode()
        return nonce + new_cipher(self._key(name)).encrypt(nonce, data_key, associated)

    def unwrap(self, name: str, wrapped: bytes) -> bytes:
        """Raises `KeyMissing`, also if the key of this name is another one, and as `wrap`."""
        with encryption():
            from cryptography.exceptions import InvalidTag
        cipher = new_cipher(self._key(name))
        try:
            return cipher.decrypt(
                wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _WRAPS + name.encode()
            )
        except (InvalidTag, ValueError):
            reason = f"the one of this name in {self._path} is another"
            raise KeyMissing(name, reason) from None

    def _key(self, name: str) -> bytes:
        if name not in self._keys:
            self._keys = read_keys(self._path)
        if name not in self._keys:
            raise KeyMissing(name, f"{self._path} does not have it")
        return self._keys[name]


def read_keys(path: Path) -> dict[str, bytes]:
    """Return the keys of the file by name. Raises `InvalidKeys`, which tells none of them."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidKeys(str(path), error.strerror or "it cannot be read") from error
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise InvalidKeys(str(path), f"everybody may use it; run chmod o= {path}")
    if len(text) > FILE_BYTES_MAX:
        raise InvalidKeys(str(path), f"it has more than {FILE_BYTES_MAX} bytes")
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.split(b"\n"), 1):
        name, key = _parsed(line, f"{path}, line {number}")
        if name in keys:
            raise InvalidKeys(f"{path}, line {number}", f"there is a key {name!r} already")
        if name:
            keys[name] = key
    return keys


def add_key(path: Path, name: str) -> None:
    """Make a new key and put it behind those of the file, which is made 0600 if it is not there.

    Raises `InvalidKeys`, also if it has a key of this name."""
    if not is_key_name(name):
        raise InvalidKeys("a new key", f"its name has to be {NAME_ALLOWED}")
    if path.exists() and name in read_keys(path):
        raise InvalidKeys(str(path), f"there is a key {name!r} already; give the new one another")
    key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            size = os.fstat(descriptor).st_size
            begins = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            file.write(f"{'' if begins else os.linesep}{name} {key}\n".encode())
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise InvalidKeys(str(path), error.strerror or "it cannot be written") from error


def _parsed(line: bytes, where: str) -> tuple[str, bytes]:
    """Return name and key; both are empty for a line without them."""
    words = line.partition(b"#")[0].decode(errors="replace").split()
    if not words:
        return "", b""
    try:
        key = decoded(words[1]) if len(words) == 2 else b""
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        reason = f"write a name, a blank and {KEY_BYTES} bytes in base64; 'dlog key new' does"
        raise InvalidKeys(where, reason)
    if not is_key_name(words[0]):
        raise InvalidKeys(where, f"the name of a key is {NAME_ALLOWED}")
    return words[0], key
