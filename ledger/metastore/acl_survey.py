"""Looks whether all nodes of a namespace on ZooKeeper are for those it was made for."""

from dataclasses import dataclass
from typing import Final

from ledger.errors import MetadataDenied, NoSuchNode
from ledger.metastore.acl import NODES, WITNESSES, AclRoles, roles_of
from ledger.metastore.ops import INSTANCE, ROOT
from ledger.metastore.port import MetadataStore, NodeAcls
from ledger.tasks import for_each

NODES_MAX: Final = 10_000
CALLS_MAX: Final = 50
NAMED_MAX: Final = 100
_OF_THE_SERVER: Final = "/zookeeper"
"""There if the namespace lives in the server's own root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSurvey:
    ids: tuple[str, ...]
    """Who may touch `/instance`; empty: everybody who reaches the server."""
    roles: AclRoles
    """Who may touch what else."""
    nodes: int
    """That were looked at."""
    differing: int
    """How many have another ACL than the roles say."""
    missing: tuple[str, ...]
    """Nodes that only operators are to make, and are not there: only where there are roles."""
    examples: tuple[tuple[str, tuple[str, ...]], ...]
    """Path and ids of the first `NAMED_MAX` of those."""
    whole: bool
    """Whether there were no more than `NODES_MAX`."""


async def read_roles(acls: NodeAcls) -> AclRoles:
    """Return who has which role. Raises `NoSuchNode` without a namespace."""
    known: list[tuple[str, ...]] = []
    for path in WITNESSES:
        try:
            known.append(await acls.ids(path))
        except NoSuchNode:
            if path == INSTANCE:
                raise
            known.append(())
    return roles_of(*known)


async def survey_acls(store: MetadataStore, *, nodes_max: int = NODES_MAX) -> AclSurvey | None:
    """Compare the ACLs of up to *nodes_max* nodes, level by level, with what the roles say that the
    ACLs of `WITNESSES` show.

    None: the store has no ACLs. Raises `NoSuchNode` without a namespace, `MetadataUnavailable`."""
    acls = store.acls
    if acls is None:
        return None
    await store.sync()
    wanted = await acls.ids(INSTANCE)
    roles = await read_roles(acls)
    found: list[tuple[str, tuple[str, ...]]] = []
    differing = nodes = 0
    level, below = [ROOT], list[str]()

    async def look(path: str) -> None:
        nonlocal differing
        try:
            ids = await acls.ids(path)
            names = await store.children(path)
        except NoSuchNode:
            return  # deleted since
        except MetadataDenied:
            ids, names = ("somebody else",), []
        if not roles.allow(path, ids):
            differing += 1
            if len(found) < NAMED_MAX:
                found.append((path, ids))
        room = nodes_max - nodes - len(below)
        children = (f"{path.rstrip(ROOT)}/{name}" for name in names)
        below.extend([each for each in children if each != _OF_THE_SERVER][: max(0, room + 1)])

    while level and nodes < nodes_max:
        looked_at = level[: nodes_max - nodes]
        nodes += len(looked_at)
        await for_each(looked_at, look, at_once=CALLS_MAX)
        level, below = below, []
    missing = [
        path
        for path in NODES
        if roles.keep_rights and path != ROOT and await store.exists(path) is None
    ]
    return AclSurvey(
        ids=wanted,
        roles=roles,
        missing=tuple(missing),
        nodes=nodes,
        differing=differing,
        examples=tuple(sorted(found)),
        whole=not level,
    )
