"""The namespace itself: made on purpose, once, and recognised ever after.

`/instance` holds a random id that distinguishes this namespace from any other, also from an earlier
one at the same place; `/layout` names the ledger layout. Neither ever changes.
"""

import contextlib
import uuid
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledger.errors import DamagedMetadata, NamespaceMismatch, NodeExists, NoNamespace, NoSuchNode
from ledger.manager.layout import DEFAULT_LAYOUT, INSTANCE, LAYOUTS, LEDGERS
from ledger.metastore.nodes import children_of
from ledger.metastore.port import MetadataStore
from ledger.wire import metadata_pb2 as pb

LAYOUT = "/layout"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Namespace:
    instance: str
    layout: str


async def open_namespace(store: MetadataStore, *, layout: str | None = None) -> Namespace:
    """Return what the namespace is. *layout*, if given, must be the one it was made with.

    Raises `NoNamespace` if none was made there, or not wholly; `NamespaceMismatch`,
    `DamagedMetadata`, `MetadataUnavailable`."""
    if layout is not None and layout not in LAYOUTS:
        raise NamespaceMismatch(f"asked for layout {layout!r}", f"one of {', '.join(LAYOUTS)}")
    stored_layout, stored_instance = pb.LayoutNode(), pb.InstanceNode()
    try:
        _parse(stored_layout, LAYOUT, (await store.get(LAYOUT)).value)
        _parse(stored_instance, INSTANCE, (await store.get(INSTANCE)).value)
    except NoSuchNode as error:
        raise NoNamespace(store.uri) from error
    for version in (stored_layout.version, stored_instance.version):
        if version != FORMAT_VERSION:
            raise NamespaceMismatch(f"of format version {version}", f"version {FORMAT_VERSION}")
    found = stored_layout.layout
    if found not in LAYOUTS or (layout is not None and found != layout):
        raise NamespaceMismatch(f"of layout {found!r}", f"layout {layout or DEFAULT_LAYOUT!r}")
    return Namespace(stored_instance.instance, found)


async def make_namespace(store: MetadataStore, *, layout: str | None = None) -> Namespace:
    """Return what the namespace is, making it if there is none. Safe for many at once.

    Without *layout* a new one is `DEFAULT_LAYOUT`. Raises as `open_namespace`, and
    `DamagedMetadata` if there are ledgers of a namespace whose own nodes were lost: another
    one in its place would let bookies delete what they have."""
    with contextlib.suppress(NoNamespace):
        return await open_namespace(store, layout=layout)
    await store.sync()
    if await store.exists(INSTANCE) is None and await children_of(store, LEDGERS):
        raise DamagedMetadata(INSTANCE, "it is missing, but there are ledgers")
    new_layout = pb.LayoutNode(version=FORMAT_VERSION, layout=layout or DEFAULT_LAYOUT)
    new_instance = pb.InstanceNode(version=FORMAT_VERSION, instance=uuid.uuid4().hex)
    with contextlib.suppress(NodeExists):  # whoever is first says which layout it is
        await store.create(LAYOUT, new_layout.SerializeToString(deterministic=True))
    # Before the instance: in a namespace that has one, a missing root is damage, and
    # not "no ledgers", which would let every bookie delete all it has.
    with contextlib.suppress(NodeExists):
        await store.create(LEDGERS)
    with contextlib.suppress(NodeExists):
        await store.create(INSTANCE, new_instance.SerializeToString(deterministic=True))
    return await open_namespace(store, layout=layout)


def _parse(node: pb.LayoutNode | pb.InstanceNode, path: str, value: bytes) -> None:
    try:
        node.ParseFromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error
