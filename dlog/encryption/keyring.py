"""The wrapping keys of this process, by which it makes the data keys of ledgers, and finds them.

They are configured (`dlog.config`), or given by `use_keys`; a process has one keyring.
"""

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from dlog.config import load
from dlog.encryption.command import WRAPPED_BYTES_MAX, KeyCommand
from dlog.encryption.files import KeyFile
from dlog.encryption.names import KEY_BYTES
from dlog.envelope import new_cipher
from dlog.errors import InvalidKeys, KeyMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CACHED_MAX: Final = 1024
"""Data keys of ledgers that are remembered, so that nobody is asked again."""


class Wrapper(Protocol):
    """Who has the wrapping keys. Both may block, and raise what they are to raise."""

    def wrap(self, name: str, data_key: bytes) -> bytes: ...
    def unwrap(self, name: str, wrapped: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key of one ledger."""

    name: str
    """Of the wrapping key."""
    wrapped: bytes = field(repr=False)
    cipher: "AESGCM" = field(repr=False)


class Keyring:
    """May be used by several threads and loops."""

    def __init__(self, wrapper: Wrapper | None) -> None:
        self._wrapper = wrapper
        self._found: OrderedDict[tuple[str, bytes], DataKey] = OrderedDict()

    async def new_data_key(self, name: str) -> DataKey:
        """Return a new data key, wrapped by the key *name*.

        Raises `KeyMissing`, `InvalidKeys`, `KeyCommandFailed`, `EncryptionMissing`."""
        data_key = secrets.token_bytes(KEY_BYTES)
        cipher = new_cipher(data_key)
        wrapped = await asyncio.to_thread(self._of(name).wrap, name, data_key)
        return DataKey(name, wrapped, cipher)

    async def data_key(self, name: str, wrapped: bytes) -> DataKey:
        """Return the data key that was *wrapped* by the key *name*. Raises as `new_data_key`."""
        place = name, wrapped
        found = self._found.get(place)
        if found is None:
            found = DataKey(name, wrapped, new_cipher(await self._unwrapped(name, wrapped)))
            self._found[place] = found
            if len(self._found) > CACHED_MAX:
                self._found.popitem(last=False)
        return found

    async def rewrapped(self, name: str, wrapped: bytes, to: str) -> bytes:
        """Return the same data key wrapped by the key *to*. Raises as `new_data_key`."""
        data_key = await self._unwrapped(name, wrapped)
        return await asyncio.to_thread(self._of(to).wrap, to, data_key)

    async def _unwrapped(self, name: str, wrapped: bytes) -> bytes:
        if len(wrapped) > WRAPPED_BYTES_MAX:
            raise KeyMissing(name, f"a data key of {len(wrapped)} bytes is none that it wrapped")
        data_key = await asyncio.to_thread(self._of(name).unwrap, name, wrapped)
        if len(data_key) != KEY_BYTES:
            raise KeyMissing(name, f"it wrapped {len(data_key)} bytes, which are no data key")
        return data_key

    def _of(self, name: str) -> Wrapper:
        if self._wrapper is None:
            raise KeyMissing(name)
        return self._wrapper


_given: Keyring | None = None
_configured: tuple[tuple[str | None, str | None], Keyring] | None = None


def use_keys(*, file: str | None = None, command: str | None = None) -> None:
    """Let this process use the wrapping keys of *file*, or those that *command* has, whatever is
    configured; without either, those that are configured again. See docs/security.md.

    Raises `InvalidKeys` for both."""
    global _given  # noqa: PLW0603 - a process has one keyring
    _given = _keyring(file, command) if file or command else None


def keyring() -> Keyring:
    """Return the keyring of this process. Raises `InvalidConfig`, `InvalidKeys`."""
    global _configured  # noqa: PLW0603 - as above
    if _given is not None:
        return _given
    settings = load()
    places = settings.key_file, settings.key_command
    if _configured is None or _configured[0] != places:
        _configured = places, _keyring(*places)
    return _configured[1]


def _keyring(file: str | None, command: str | None) -> Keyring:
    if file and command:
        raise InvalidKeys("DLOG_KEY_FILE and DLOG_KEY_COMMAND", "give one of them")
    if command:
        return Keyring(KeyCommand(command))
    return Keyring(KeyFile(file) if file else None)
