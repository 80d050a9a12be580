"""What the first release wrote into the metadata store is read by this version."""

import json

from ledger.feature_level import ClusterLevel
from tests.kept.metadata import (
    ARCHIVED,
    CONSUMER,
    COOKIE,
    ELSEWHERE,
    ENCRYPTED,
    GATEWAY,
    KEPT,
    LED,
    LEVEL_2,
    MANIFEST,
    MARK,
    OPEN,
    OWNER,
    QUOTAS,
    REGISTRATION,
    REPLICA,
    RISING,
    RULES,
    SCHEMAS,
    SNAPSHOT_REQUEST,
    STORE_OF_SNAPSHOTS,
    TOPIC,
    USERS,
    WITH_PASSWORD,
    read,
    values,
)


def test_values_of_the_first_release_say_what_they_said() -> None:
    kept = {name: bytes.fromhex(value) for name, value in json.loads(KEPT.read_text()).items()}
    assert read(kept) == {
        "ledger, open": OPEN,
        "ledger, closed, with a password": WITH_PASSWORD,
        "mark": MARK,
        "rules": RULES,
        "cookie": COOKIE,
        "manifest": MANIFEST,
        "manifest, encrypted": ENCRYPTED,
        "manifest, led by a gateway": LED,
        "manifest, with objects": ELSEWHERE,
        "manifest, archived": ARCHIVED,
        "quotas": QUOTAS,
        "instance": ("instance", ClusterLevel()),
        "instance, level 2": ("instance", LEVEL_2),
        "instance, being raised": ("instance", RISING),
        "registration": REGISTRATION,
        "owner": OWNER,
        "owner, of no log": None,
        "replica": REPLICA,
        "requested snapshot": SNAPSHOT_REQUEST,
        "consumer": CONSUMER,
        "consumer, a store of snapshots": STORE_OF_SNAPSHOTS,
        "gateway": GATEWAY,
        "topic": TOPIC,
        "producer ids": 1001,
        "users": USERS,
        "schemas": SCHEMAS,
    }


def test_values_are_written_as_the_first_release_wrote_them() -> None:
    kept = json.loads(KEPT.read_text())
    assert {name: value.hex() for name, value in values().items()} == kept
