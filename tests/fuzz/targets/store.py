"""Nodes of the metadata store."""

from typing import Final
from uuid import UUID

from bookie.identity.cookie import Cookie
from dlog.kafka.protocol.topics import TopicRecord, next_producer_ids
from dlog.kafka.protocol.users import KafkaUsers
from dlog.manifest import Manifest, Sealed
from dlog.protocol import consumer_steps
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.gateway_record import GatewayRecord
from dlog.protocol.replica_record import ReplicaRecord, SnapshotRequest
from leader.election import Candidacy
from leader.record import CandidateRecord
from leader.refusals import LifelineAddress
from ledger import registry
from ledger.entry import (
    Digest,
)
from ledger.errors import DamagedMetadata
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager import ids as ledger_ids
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import Quorum
from ledger.wire import metadata_pb2
from tests.dlog.kafka.test_sasl import USERS
from tests.fuzz.target import Target
from tests.fuzz.targets.samples import KEY

LIFELINE: Final = LifelineAddress("h", 1, b"secret")

METADATA: Final = LedgerMetadata(
    quorum=Quorum(2, 2, 2),
    fragments=(
        Fragment(EntryId(0), (BookieId("a"), BookieId("b"))),
        Fragment(EntryId(9), (BookieId("a"), BookieId("c"))),
    ),
    digest=Digest.HMAC_SHA256,
    access_key=KEY,
    custom={"log": b"flights"},
)
MANIFEST: Final = (
    Manifest(incarnation="i")
    .with_segment(1, LedgerId(101), 5)
    .with_sealed(1, Sealed(EntryId(9), 10, 100, 3, 4, 1000, 2000))
    .with_segment(2, LedgerId(102), 6)
)
MARK: Final = UnderreplicatedLedger(
    (
        MissingReplica(BookieId("a"), Reason.AWAY, 5, EntryId(9)),
        MissingReplica(BookieId("b"), Reason.LOST, 6),
    ),
    attempts=1,
    lost=((3, 4),),
)
COOKIE: Final = Cookie("b-1", "i", "c", "h:1", "/a", tries=("t",), census=b"x")
REGISTRATION: Final = metadata_pb2.BookieNode(
    version=registry.FORMAT_VERSION, address="h:1", incarnation="i", operator_address="h:2"
).SerializeToString()
CONSUMER: Final = consumer_steps.encode(
    ConsumerState(incarnation="i", log_incarnation="l", position=5)
)
REPLICA: Final = ReplicaRecord(
    log="l",
    candidate="a",
    address="http://a",
    process="h:1",
    role="leader",
    epoch=1,
    applied=2,
    version=3,
    since_ms=4,
    snapshots="file:///s",
    newest_snapshot=1,
    phase="writing",
    total_bytes=9,
)
STORE: Final = (
    Target(
        "node-replica",
        lambda data: ReplicaRecord.decode(data, path="/r"),
        (REPLICA.encode(),),
        refuses=DamagedMetadata,
    ),
    Target(
        "node-snapshot-request",
        lambda data: SnapshotRequest.decode(data, path="/r"),
        (SnapshotRequest(asked_by="a", asked_ms=1, begun=True, offset=7).encode(),),
        refuses=DamagedMetadata,
    ),
    Target(
        "node-ledger",
        lambda data: LedgerMetadata.decode(data, path="/l"),
        (METADATA.encode(), METADATA.closed(EntryId(40), 999).encode()),
        refuses=DamagedMetadata,
        use=lambda metadata: (metadata.encode(), metadata.fragment_of(9)),
    ),
    Target(
        "node-manifest",
        lambda data: Manifest.decode(data, path="/m"),
        (
            Manifest(incarnation="i").encode("log"),
            MANIFEST.encode("log"),
            MANIFEST.trimmed(5).encode("log"),
        ),
        refuses=DamagedMetadata,
        use=repr,
    ),
    Target(
        "node-mark",
        lambda data: UnderreplicatedLedger.decode(data, path="/u"),
        (MARK.encode(),),
        refuses=DamagedMetadata,
    ),
    Target("node-cookie", Cookie.decode, (COOKIE.encode(),), refuses=ValueError),
    Target(
        "node-registration",
        lambda data: registry.BookieRegistration.decode(
            data, "/bookies/available/b-1", read_only=False
        ),
        (REGISTRATION,),
        refuses=DamagedMetadata,
    ),
    Target("node-ids", ledger_ids._decode, (ledger_ids._encode(7),), refuses=DamagedMetadata),
    Target(
        "node-consumer",
        lambda data: consumer_steps.decode(data, path="/c"),
        (CONSUMER,),
        refuses=DamagedMetadata,
    ),
    Target(
        "node-candidate",
        lambda data: CandidateRecord.decode(data, path="/e"),
        (CandidateRecord("me", 5).encode(),),
        refuses=DamagedMetadata,
    ),
    Target(
        "node-gateway",
        lambda data: GatewayRecord.decode(data, path="/kafka/gateways/0000000001"),
        (GatewayRecord(node_id=1, host="h", port=9092, lifeline=LIFELINE).encode(),),
        refuses=DamagedMetadata,
    ),
    Target(
        "node-users",
        KafkaUsers.decode,
        (USERS.encode(), USERS.without("alice").encode()),
        refuses=DamagedMetadata,
        use=lambda users: users.encode(),
    ),
    Target(
        "node-topic",
        lambda data: TopicRecord.decode("t", data),
        (TopicRecord.new("t", 3, id_=UUID(int=7), now_ms=5, settings={"codec": "lz4"}).encode(),),
        refuses=DamagedMetadata,
        use=lambda topic: topic.encode(),
    ),
    Target(
        "node-producer-ids",
        next_producer_ids,
        (next_producer_ids(None)[1],),
        refuses=DamagedMetadata,
    ),
    Target(
        "name-candidate",
        lambda data: Candidacy.parse(data.decode()),
        (b"t-0000000001",),
        refuses=UnicodeDecodeError,
    ),
)
