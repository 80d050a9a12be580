"""The envelopes of one ledger: made by its writer, opened by its readers.

The custom metadata of a ledger say with which key its data key was wrapped, and hold that. In such
a ledger every batch is in an envelope: one that is not was put there by somebody else.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from dlog.encryption.keyring import DataKey, keyring
from dlog.encryption.names import is_key_name
from dlog.envelope import SALT_BYTES, seal, unseal
from dlog.errors import BatchEncrypted, DamagedBatch
from dlog.recordbatch import Codec, RecordBatch, decode_batch

STAMP_KEY: Final = "dlog.key"
"""Name of the wrapping key."""
STAMP_DATA_KEY: Final = "dlog.data-key"
"""The data key, wrapped."""


async def new_data_key(name: str) -> DataKey | None:
    """Return a data key for the next ledger of a log that is encrypted with the key *name*; None
    if that is empty. Raises as `Keyring.new_data_key`, and what `keyring` does."""
    return await keyring().new_data_key(name) if name else None


def stamp_of(data_key: DataKey | None) -> dict[str, bytes]:
    """Return what the ledger that is made for *data_key* has in its custom metadata."""
    if data_key is None:
        return {}
    return {STAMP_KEY: data_key.name.encode(), STAMP_DATA_KEY: data_key.wrapped}


@dataclass(slots=True)
class Sealer:
    """Seals what its writer adds to a ledger, entry after entry."""

    data_key: DataKey
    incarnation: str
    ledger_id: int
    entry_id: int = 0
    """Of the entry that is sealed next."""

    @classmethod
    def of(cls, data_key: DataKey | None, incarnation: str, ledger_id: int) -> Self | None:
        return None if data_key is None else cls(data_key, incarnation, ledger_id)

    def seal(self, payload: bytes, codec: Codec, codec_level: int) -> bytes:
        """Return the envelope of *payload* as the next entry; say `added` if it becomes that."""
        return seal(
            payload,
            self.data_key.cipher,
            incarnation=self.incarnation,
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            salt=secrets.token_bytes(SALT_BYTES),
            codec=codec,
            codec_level=codec_level,
        )

    def added(self) -> None:
        self.entry_id += 1


@dataclass(frozen=True, slots=True)
class Opener:
    """Decodes the batches of one ledger, of an encrypted log or of another."""

    ledger_id: int
    incarnation: str
    data_key: DataKey | None

    @classmethod
    async def of(cls, ledger_id: int, custom: Mapping[str, bytes], incarnation: str) -> Self:
        """Return that of the ledger with these *custom* metadata, of this life of the log.

        Raises what `Keyring.data_key` and `keyring` do, and `DamagedBatch` if they are damaged."""
        data_key = None
        stamp = wrapping(custom)
        if stamp is not None:
            data_key = await keyring().data_key(*stamp)
        return cls(ledger_id, incarnation, data_key)

    def decode(self, entry_id: int, payload: bytes | memoryview) -> RecordBatch:
        """Return the batch. Raises `DamagedBatch`, also if it is not what was written for this
        place; and `BatchTooNew`."""
        if self.data_key is None:
            try:
                return decode_batch(payload)
            except BatchEncrypted:
                raise DamagedBatch("it is encrypted, and its ledger names no key") from None
        return unseal(
            payload,
            self.data_key.cipher,
            incarnation=self.incarnation,
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )


def wrapping(custom: Mapping[str, bytes]) -> tuple[str, bytes] | None:
    """Return the name of the wrapping key, and the wrapped data key, of a ledger with these
    *custom* metadata; None: it is not encrypted. Raises `DamagedBatch`."""
    name, wrapped = custom.get(STAMP_KEY), custom.get(STAMP_DATA_KEY)
    if name is None and wrapped is None:
        return None
    text = (name or b"").decode(errors="replace")
    if wrapped is None or not is_key_name(text):
        raise DamagedBatch("the metadata of its ledger do not say how it is encrypted")
    return text, wrapped
