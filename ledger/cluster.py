"""The namespace itself: made on purpose, once, and recognised ever after.

`/instance` holds a random id that distinguishes this namespace from any other, also from an earlier
one at the same place; `/layout` names the ledger layout. Neither ever changes.
`/instance` holds the level of the cluster too (`ledger.feature_level`): programs read it first.
"""

import contextlib
import uuid
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from ledger.errors import DamagedMetadata, NamespaceMismatch, NodeExists, NoNamespace, NoSuchNode
from ledger.feature_level import FIRST, LEVEL_MAX, LEVELS, ClusterLevel
from ledger.ledger_owner import OWNERS_PATH
from ledger.manager.layout import DEFAULT_LAYOUT, INSTANCE, LAYOUTS, LEDGERS
from ledger.metastore.port import MetadataStore, children_of
from ledger.wire import metadata_pb2 as pb

LAYOUT = "/layout"
FORMAT_VERSION = 1
LEVELLED_VERSION: Final = 2
"""Of `/instance`, once it says of a level above the first: older programs refuse it, as they would
not heed it."""


@dataclass(frozen=True, slots=True)
class Namespace:
    instance: str
    layout: str
    held: ClusterLevel


async def open_namespace(store: MetadataStore, *, layout: str | None = None) -> Namespace:
    """Return what the namespace is. *layout*, if given, must be the one it was made with.

    Raises `NoNamespace` if none was made there, or not wholly; `NamespaceMismatch`, `LevelTooNew`,
    `DamagedMetadata`, `MetadataUnavailable`."""
    if layout is not None and layout not in LAYOUTS:
        raise NamespaceMismatch(f"asked for layout {layout!r}", f"one of {', '.join(LAYOUTS)}")
    stored_layout = pb.LayoutNode()
    try:
        _parse(stored_layout, LAYOUT, (await store.get(LAYOUT)).value)
        instance, held = decode_instance((await store.get(INSTANCE)).value)
    except NoSuchNode as error:
        raise NoNamespace(store.uri) from error
    _check_version(stored_layout.version, FORMAT_VERSION)
    held.check_readable()
    found = stored_layout.layout
    if found not in LAYOUTS or (layout is not None and found != layout):
        raise NamespaceMismatch(f"of layout {found!r}", f"layout {layout or DEFAULT_LAYOUT!r}")
    return Namespace(instance, found, held)


async def make_namespace(
    store: MetadataStore, *, layout: str | None = None, level: int = LEVEL_MAX
) -> Namespace:
    """Return what the namespace is, making it if there is none. Safe for many at once.

    Without *layout* a new one is `DEFAULT_LAYOUT`; it begins at *level*, as nobody older is there.
    Raises as `open_namespace`, and `DamagedMetadata` if there are ledgers of a namespace whose own
    nodes were lost: another one in its place would let bookies delete what they have."""
    with contextlib.suppress(NoNamespace):
        return await open_namespace(store, layout=layout)
    await store.sync()
    if await store.exists(INSTANCE) is None and await children_of(store, LEDGERS):
        raise DamagedMetadata(INSTANCE, "it is missing, but there are ledgers")
    new_layout = pb.LayoutNode(version=FORMAT_VERSION, layout=layout or DEFAULT_LAYOUT)
    held = ClusterLevel(level, needs=LEVELS[level].release)
    new_instance = encode_instance(uuid.uuid4().hex, held)
    with contextlib.suppress(NodeExists):  # whoever is first says which layout it is
        await store.create(LAYOUT, new_layout.SerializeToString(deterministic=True))
    # Before the instance: in a namespace that has one, a missing root is damage, and
    # not "no ledgers", which would let every bookie delete all it has.
    for root in (LEDGERS, OWNERS_PATH):
        with contextlib.suppress(NodeExists):
            await store.create(root)
    with contextlib.suppress(NodeExists):
        await store.create(INSTANCE, new_instance)
    return await open_namespace(store, layout=layout)


def encode_instance(instance: str, held: ClusterLevel) -> bytes:
    """Return the value of `/instance`; at the first level that of programs before levels."""
    if held.highest == FIRST:
        node = pb.InstanceNode(version=FORMAT_VERSION, instance=instance)
    else:
        node = pb.InstanceNode(
            version=LEVELLED_VERSION,
            instance=instance,
            level=held.level,
            raising_to=held.raising_to,
            needs=held.needs,
        )
    return node.SerializeToString(deterministic=True)


def decode_instance(value: bytes) -> tuple[str, ClusterLevel]:
    """Return the instance, and what stands there of the level, whether it can be read or not.

    Raises `DamagedMetadata`, `NamespaceMismatch`."""
    node = pb.InstanceNode()
    _parse(node, INSTANCE, value)
    _check_version(node.version, FORMAT_VERSION, LEVELLED_VERSION)
    return node.instance, ClusterLevel(node.level or FIRST, node.raising_to, node.needs)


def _check_version(found: int, *known: int) -> None:
    if found not in known:
        raise NamespaceMismatch(
            f"of format version {found}", f"version {' or '.join(map(str, known))}"
        )


def _parse(node: pb.LayoutNode | pb.InstanceNode, path: str, value: bytes) -> None:
    try:
        node.ParseFromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error
