"""Writes `metadata_1.json`: values of the metadata store as the first release wrote them.

    python -m tests.kept.metadata

The file is kept for ever: every later version must be able to read it. Names can be added, by the
same command; it refuses to change what is kept. What is written in another way gets a new name.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import UUID

from bookie.identity.cookie import Cookie
from dlog.kafka.protocol.scram import ScramCredential, ScramKeys, ScramMechanism
from dlog.kafka.protocol.topics import TopicRecord, next_producer_ids
from dlog.kafka.protocol.users import KafkaUsers
from dlog.log_schema import LogSchema, LogSchemas
from dlog.manifest import Location, Manifest, Sealed, Segment, StoredObject
from dlog.position import NO_TXID
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.consumer_steps import decode as decode_consumer
from dlog.protocol.consumer_steps import encode as encode_consumer
from dlog.protocol.gateway_record import GatewayRecord
from dlog.protocol.replica_record import ReplicaRecord, SnapshotRequest
from dlog.settings import LogSettings
from leader.refusals import LifelineAddress
from ledger.cluster import decode_instance, encode_instance
from ledger.entry import access_key
from ledger.feature_level import ClusterLevel
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.ledger_owner import LedgerOwner, owner_in, owner_value
from ledger.mark import UnderreplicatedLedger, written_without
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum
from ledger.registry import BookieRegistration
from ledger.security.access import Grant, Role, Rules
from ledger.security.quotas import Quota, Quotas, Subject
from tests.kept.messages import keep

KEPT: Final = Path(__file__).with_name("metadata_1.json")
ENSEMBLE: Final = (BookieId("b0"), BookieId("b1"), BookieId("b2"))
OPEN: Final = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    fragments=(
        Fragment(EntryId(0), ENSEMBLE),
        Fragment(EntryId(17), (*ENSEMBLE[:2], BookieId("b9"))),
    ),
    access_key=access_key(bytes(range(32))),
    secret=bytes(range(32)),
    custom={"log": b"orders"},
    creation_token=b"token",
    created_ms=1_764_000_000_000,
)
WITH_PASSWORD: Final = LedgerMetadata(
    quorum=Quorum(3, 3, 2),
    fragments=(Fragment(EntryId(0), ENSEMBLE),),
    state=LedgerState.CLOSED,
    last_entry=EntryId(41),
    length=4200,
    access_key=access_key(b"password"),
    creation_token=b"token",
)
MARK: Final = UnderreplicatedLedger(
    written_without([BookieId("b2")], EntryId(17), 1_764_000_000_000)
)
RULES: Final = Rules((Grant("cn:alice", Role.WRITER, "orders*"),))
COOKIE: Final = Cookie(
    bookie="b0",
    instance="0123456789abcdef",
    cookie="fedcba9876543210",
    address="host:3181",
    directories="main",
    life=3,
    token="token",
    clean=True,
    checkpoint=7,
    census=b"census",
)
MANIFEST: Final = Manifest(incarnation="a" * 32)
SEALED: Final = Sealed(EntryId(4), 5, 500, NO_TXID, NO_TXID, 1_764_000_000_000, 1_764_000_001_000)
ELSEWHERE: Final = replace(
    MANIFEST,
    segments=(
        Segment(
            1,
            LedgerId(7),
            1_764_000_000_000,
            0,
            SEALED,
            Location(on_bookies=False, object=StoredObject("orders/1-5f3a", 4096)),
        ),
    ),
    next_segment=2,
    epoch=1,
    deleting_objects=(StoredObject("orders/0-77c1", 1024),),
)
_STORAGE: Final = f"s3://bucket/logs/{MANIFEST.incarnation}"
ARCHIVED: Final = replace(
    MANIFEST,
    settings=replace(
        MANIFEST.settings, archive="s3://bucket/logs", archive_after_s=3600, local_keep_s=86400
    ),
    segments=(
        Segment(
            1,
            LedgerId(7),
            1_764_000_000_000,
            0,
            SEALED,
            Location(object=StoredObject("1-5f3a1c2b", 4096, _STORAGE)),
        ),
    ),
    next_segment=2,
    epoch=1,
    deleting_objects=(StoredObject("0-77c10000", 1024, _STORAGE),),
)
LED: Final = MANIFEST.taken_over(1, LedgerId(7), 5, "kafka gateway h:1", gateway=True)
ENCRYPTED: Final = replace(MANIFEST, settings=LogSettings(encrypt_with="one"))
QUOTAS: Final = Quotas((Quota(Subject.LOGS, "billing/*", 100_000, 100, 200_000, 200),))
LEVEL_2: Final = ClusterLevel(2, needs="0.1.0")
RISING: Final = ClusterLevel(1, 2, "0.1.0")
REGISTRATION: Final = BookieRegistration(
    "b0", "host:3181", "incarnation", "rack", operator_address="host:3182", level=2
)
OWNER: Final = LedgerOwner("orders", "a" * 32)

GATEWAY: Final = GatewayRecord(
    node_id=17,
    host="broker-1.example.org",
    port=9092,
    since_ms=1_764_000_000_000,
    process="host:1",
    lifeline=LifelineAddress("broker-1.example.org", 40000, bytes(16), "boot net:[1]", tls=True),
)
TOPIC: Final = TopicRecord(
    name="orders",
    id=UUID(int=7),
    logs=("orders", "orders-1", "shop/orders"),
    created_ms=1_764_000_000_000,
    deleting=("a1", "", "b2"),
    settings={"retention_bytes": "1000"},
)
USERS: Final = KafkaUsers(
    {
        "orders": ScramCredential(
            16_384,
            {
                ScramMechanism.SHA_256: ScramKeys(b"salt", b"s" * 32, b"k" * 32),
                ScramMechanism.SHA_512: ScramKeys(b"pepper", b"S" * 64, b"K" * 64),
            },
        )
    },
    bytes(range(32)),
)
REPLICA: Final = ReplicaRecord(
    log="orders",
    candidate="app-1",
    address="http://app-1:8000",
    process="app-1:17",
    role="leader",
    epoch=3,
    applied=700,
    version=2,
    since_ms=1_764_000_000_000,
    snapshots="file:///srv/snapshots",
    newest_snapshot=400,
    phase="checking",
    done_bytes=10,
    total_bytes=20,
    error="of the application",
    updated_ms=1_764_000_000_001,
)
SNAPSHOT_REQUEST: Final = SnapshotRequest(
    asked_by="op:9", asked_ms=1_764_000_000_000, begun=True, offset=700, error="none"
)
CONSUMER: Final = ConsumerState(
    incarnation="c" * 16,
    log_incarnation="a" * 32,
    position=400,
    epoch=3,
    exclusive=True,
    owner="app-1:17",
    updated_ms=1_764_000_000_000,
)
STORE_OF_SNAPSHOTS: Final = replace(
    CONSUMER,
    exclusive=False,
    note="snapshot-00000000000000000700-0123456789abcdef 00000000000000000400.snapshot",
)


SCHEMAS: Final = LogSchemas(
    versions=(
        LogSchema(format="avro", definition=b"{}", version=2, created_ms=1_764_000_000_000),
        LogSchema(format="protobuf", definition=b"set", version=4, message="shop.Order"),
    ),
    next_number=5,
)


def values() -> Mapping[str, bytes]:
    """Return what this version writes."""
    return {
        "ledger, open": OPEN.encode(),
        "ledger, closed, with a password": WITH_PASSWORD.encode(),
        "mark": MARK.encode(),
        "rules": RULES.encode(),
        "cookie": COOKIE.encode(),
        "manifest": MANIFEST.encode("orders"),
        "manifest, encrypted": ENCRYPTED.encode("orders"),
        "manifest, led by a gateway": LED.encode("orders"),
        "manifest, with objects": ELSEWHERE.encode("orders"),
        "manifest, archived": ARCHIVED.encode("orders"),
        "quotas": QUOTAS.encode(),
        "instance": encode_instance("instance", ClusterLevel()),
        "instance, level 2": encode_instance("instance", LEVEL_2),
        "instance, being raised": encode_instance("instance", RISING),
        "registration": REGISTRATION.encode(),
        "owner": owner_value(OWNER),
        "owner, of no log": owner_value(None),
        "replica": REPLICA.encode(),
        "requested snapshot": SNAPSHOT_REQUEST.encode(),
        "consumer": encode_consumer(CONSUMER),
        "consumer, a store of snapshots": encode_consumer(STORE_OF_SNAPSHOTS),
        "gateway": GATEWAY.encode(),
        "topic": TOPIC.encode(),
        "producer ids": next_producer_ids(None)[1],
        "users": USERS.encode(),
        "schemas": SCHEMAS.encode(),
    }


def read(kept: Mapping[str, bytes]) -> Mapping[str, object]:
    """Return what *kept* says."""
    return {
        "ledger, open": LedgerMetadata.decode(kept["ledger, open"], path="/kept"),
        "ledger, closed, with a password": LedgerMetadata.decode(
            kept["ledger, closed, with a password"], path="/kept"
        ),
        "mark": UnderreplicatedLedger.decode(kept["mark"], path="/kept"),
        "rules": Rules.decode(kept["rules"]),
        "cookie": Cookie.decode(kept["cookie"]),
        "manifest": Manifest.decode(kept["manifest"], path="/kept"),
        "manifest, encrypted": Manifest.decode(kept["manifest, encrypted"], path="/kept"),
        "manifest, led by a gateway": Manifest.decode(
            kept["manifest, led by a gateway"], path="/kept"
        ),
        "manifest, with objects": Manifest.decode(kept["manifest, with objects"], path="/kept"),
        "manifest, archived": Manifest.decode(kept["manifest, archived"], path="/kept"),
        "quotas": Quotas.decode(kept["quotas"]),
        "instance": decode_instance(kept["instance"]),
        "instance, level 2": decode_instance(kept["instance, level 2"]),
        "instance, being raised": decode_instance(kept["instance, being raised"]),
        "registration": BookieRegistration.decode(
            kept["registration"], "/bookies/available/b0", read_only=False
        ),
        "owner": owner_in(kept["owner"], "/owners/7"),
        "owner, of no log": owner_in(kept["owner, of no log"], "/owners/7"),
        "replica": ReplicaRecord.decode(kept["replica"], path="/kept"),
        "requested snapshot": SnapshotRequest.decode(kept["requested snapshot"], path="/kept"),
        "consumer": decode_consumer(kept["consumer"], path="/kept"),
        "consumer, a store of snapshots": decode_consumer(
            kept["consumer, a store of snapshots"], path="/kept"
        ),
        "gateway": GatewayRecord.decode(kept["gateway"], path="/kafka/gateways/0000000017"),
        "topic": TopicRecord.decode("orders", kept["topic"]),
        "producer ids": next_producer_ids(kept["producer ids"])[0],
        "users": KafkaUsers.decode(kept["users"]),
        "schemas": LogSchemas.decode(kept["schemas"], path="/kept"),
    }


if __name__ == "__main__":
    try:
        made_now = keep(KEPT, values())
    except ValueError as error:
        sys.exit(str(error))
    sys.stdout.write(f"kept: {', '.join(made_now) or 'nothing new'}\n")
