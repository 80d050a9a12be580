"""Users with passwords, for gateways: one value of the metadata store.

    /users     names, and of each what SCRAM keeps of its password

Only operators may change the node; readers of logs may not see it, where there are roles. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from dlog.kafka.protocol.scram import (
    ITERATIONS_MIN,
    InvalidUser,
    ScramCredential,
    ScramKeys,
    ScramMechanism,
    check_name,
    decoy,
)
from dlog.wire import gateway_pb2 as pb
from ledger.errors import DamagedMetadata
from ledger.nodes import parse_node

USERS_PATH: Final = "/users"
FORMAT_VERSION: Final = 1
USERS_MAX: Final = 1000
DECOY_KEY_BYTES: Final = 32
_NUMBERS: Final = {
    ScramMechanism.SHA_256: pb.SCRAM_SHA_256,
    ScramMechanism.SHA_512: pb.SCRAM_SHA_512,
}
_MECHANISMS: Final = {number: mechanism for mechanism, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class KafkaUsers:
    """All users, by name. Raises `InvalidUser` if they are too many."""

    credentials: Mapping[str, ScramCredential] = field(default_factory=dict)
    decoy_key: bytes = field(default=bytes(DECOY_KEY_BYTES), repr=False)
    """Made with the first user: before, there is nobody to hide."""
    changed_by: str = field(default="", compare=False)
    """Who made the last change, as he says himself."""
    changed_ms: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if len(self.credentials) > USERS_MAX:
            raise InvalidUser(
                max(self.credentials),
                f"there are {USERS_MAX} users already; certificates and tokens need none",
            )

    def find(self, name: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential of *name*; one that fits no password if there is no such user."""
        found = self.credentials.get(name)
        false = decoy(mechanism, name, self.decoy_key)  # also in vain: it takes time
        return false if found is None else found

    def with_(self, name: str, credential: ScramCredential, decoy_key: bytes) -> Self:
        """Return users with *name*, in place of one of that name. *decoy_key*: random, for the
        first one. Raises `InvalidUser`."""
        users = {**self.credentials, check_name(name): credential}
        key = self.decoy_key if any(self.decoy_key) else decoy_key
        return replace(self, credentials=dict(sorted(users.items())), decoy_key=key)

    def without(self, name: str) -> Self:
        """Raises `InvalidUser`."""
        if name not in self.credentials:
            raise InvalidUser(name, "there is none of that name; see 'dlog kafka user list'")
        return replace(
            self,
            credentials={each: keys for each, keys in self.credentials.items() if each != name},
        )

    def encode(self) -> bytes:
        node = pb.UsersNode(
            version=FORMAT_VERSION,
            decoy_key=self.decoy_key,
            changed_by=self.changed_by,
            changed_ms=self.changed_ms,
        )
        for name, credential in self.credentials.items():
            user = node.users.add(name=name, iterations=credential.iterations)
            for mechanism in sorted(credential.keys, key=lambda each: _NUMBERS[each]):
                keys = credential.keys[mechanism]
                user.keys.add(
                    mechanism=_NUMBERS[mechanism],
                    salt=keys.salt,
                    stored_key=keys.stored_key,
                    server_key=keys.server_key,
                )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises `DamagedMetadata`, also for what a newer program wrote."""
        if not value:  # the node was made so that it has its ACL
            return cls()
        node = pb.UsersNode()
        parse_node(node, value, USERS_PATH, version=FORMAT_VERSION)
        try:
            users = {check_name(user.name): _credential(user) for user in node.users}
            key = _decoy_key(node.decoy_key)
            return cls(dict(sorted(users.items())), key, node.changed_by, node.changed_ms)
        except (KeyError, ValueError, InvalidUser) as error:
            raise DamagedMetadata(
                USERS_PATH, f"it has a user that means nothing: {error}"
            ) from error


def _decoy_key(key: bytes) -> bytes:
    """Raises `ValueError`."""
    if len(key) != DECOY_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key


def _credential(user: pb.UserNode) -> ScramCredential:
    """Raises `KeyError`, `ValueError`."""
    keys = {}
    for each in user.keys:
        mechanism = _MECHANISMS[each.mechanism]
        size = mechanism.hash_bytes
        if not each.salt or len(each.stored_key) != size or len(each.server_key) != size:
            raise ValueError(f"keys of {user.name!r} of another size")
        keys[mechanism] = ScramKeys(each.salt, each.stored_key, each.server_key)
    if keys.keys() != _NUMBERS.keys() or user.iterations < ITERATIONS_MIN:
        raise ValueError(f"keys of {user.name!r} are missing, or of too few iterations")
    return ScramCredential(user.iterations, keys)
