"""The namespace itself: made on first use, recognised ever after.

`/instance` holds a random id that distinguishes this namespace from any other, also from an earlier
one at the same place; `/layout` names the ledger layout. Neither ever changes.
"""

import contextlib
import uuid
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ledger.errors import DamagedMetadata, NamespaceMismatch, NodeExists, NoSuchNode
from ledger.manager.layout import DEFAULT_LAYOUT, INSTANCE, LAYOUTS, LEDGERS
from ledger.metastore.port import MetadataStore
from ledger.wire import metadata_pb2 as pb

LAYOUT = "/layout"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Namespace:
    instance: str
    layout: str


async def open_namespace(store: MetadataStore, *, layout: str | None = None) -> Namespace:
    """Return what the namespace is, making it if it is new. Safe for many at once.

    *layout*, if given, must be the one it was made with. Raises `NamespaceMismatch`,
    `DamagedMetadata`, `MetadataUnavailable`."""
    if layout is not None and layout not in LAYOUTS:
        raise NamespaceMismatch(f"asked for layout {layout!r}", f"one of {', '.join(LAYOUTS)}")
    wanted = layout or DEFAULT_LAYOUT
    new_layout = pb.LayoutNode(version=FORMAT_VERSION, layout=wanted)
    new_instance = pb.InstanceNode(version=FORMAT_VERSION, instance=uuid.uuid4().hex)
    stored_layout = pb.LayoutNode()
    _parse(stored_layout, LAYOUT, await _get_or_create(store, LAYOUT, new_layout))
    if await store.exists(INSTANCE) is None:
        # Before the instance: in a namespace that has one, a missing root is damage, and
        # not "no ledgers", which would let every bookie delete all it has.
        with contextlib.suppress(NodeExists):
            await store.create(LEDGERS)
    stored_instance = pb.InstanceNode()
    _parse(stored_instance, INSTANCE, await _get_or_create(store, INSTANCE, new_instance))
    for version in (stored_layout.version, stored_instance.version):
        if version != FORMAT_VERSION:
            raise NamespaceMismatch(f"of format version {version}", f"version {FORMAT_VERSION}")
    found = stored_layout.layout
    if found not in LAYOUTS or (layout is not None and found != layout):
        raise NamespaceMismatch(f"of layout {found!r}", f"layout {wanted!r}")
    return Namespace(stored_instance.instance, found)


async def _get_or_create(
    store: MetadataStore, path: str, node: pb.LayoutNode | pb.InstanceNode
) -> bytes:
    with contextlib.suppress(NoSuchNode):
        return (await store.get(path)).value
    with contextlib.suppress(NodeExists):  # somebody may make it at the same moment
        await store.create(path, node.SerializeToString(deterministic=True))
    return (await store.get(path)).value


def _parse(node: pb.LayoutNode | pb.InstanceNode, path: str, value: bytes) -> None:
    try:
        node.ParseFromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error
