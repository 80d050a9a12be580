"""The ACLs of the namespace in ZooKeeper, which should be the same on all of its nodes. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dlog.health.findings import Finding, Severity, named
from ledger.metastore.acl_survey import AclSurvey
from ledger.values import counted

_MEND: Final = "As an operator run 'dlog access protect': it restores what the roles say."


@dataclass(frozen=True, slots=True)
class AclFacts:
    survey: AclSurvey | None
    """None: the store knows no ACLs."""
    grants: int = 0
    """The number of grants: they bind nobody who can change them."""

    def findings(self) -> Iterator[Finding]:
        if self.survey is None:
            return
        if not self.survey.ids:
            yield Finding(
                Severity.NOTE,
                "open-namespace",
                "anyone who can reach ZooKeeper may read and change all metadata, including keys "
                "of ledgers",
                "Restrict access to it, or create namespaces with credentials (dlog init --help).",
            )
        elif len(self.survey.roles.operators) > 1 and not self.survey.roles.keep_rights:
            yield Finding(
                Severity.WARNING if self.grants else Severity.NOTE,
                "all-are-operators",
                f"each of {len(self.survey.roles.operators)} identities that may write to "
                "ZooKeeper may grant itself every role, and register as a bookie",
                "Assign operators, bookies and clients: dlog access protect --help.",
            )
        if self.survey.missing:
            yield Finding(
                Severity.WARNING,
                "acl-missing",
                f"only operators can make what is missing: {named(self.survey.missing)}",
                _MEND,
            )
        if self.survey.differing:
            paths = [path for path, _ in self.survey.examples]
            yield Finding(
                Severity.WARNING,
                "acl-differs",
                f"{counted(self.survey.differing, 'node')} of the namespace may be touched by "
                f"others than the rest of it: {named(paths)}",
                "They were created by other programs, or before roles were assigned. " + _MEND,
            )

    def summary(self) -> str:
        if self.survey is None:
            return "the store has none of its own"
        who = counted(len(self.survey.ids), "identity") if self.survey.ids else "everybody"
        if len(self.survey.ids) > 1:
            who = f"{len(self.survey.ids)} identities"
        return f"{counted(self.survey.nodes, 'node')} looked at, for {who}"

    def unseen(self) -> Iterator[str]:
        if self.survey is not None and not self.survey.whole:
            yield f"ACLs of more than {self.survey.nodes} nodes"

    def to_dict(self) -> Mapping[str, object]:
        if self.survey is None:
            return {"ids": None}
        return {
            "ids": list(self.survey.ids),
            "operators": list(self.survey.roles.operators),
            "bookies": list(self.survey.roles.bookies),
            "clients": list(self.survey.roles.clients),
            "readers": list(self.survey.roles.readers),
            "nodes": self.survey.nodes,
            "missing": list(self.survey.missing),
            "differing": self.survey.differing,
            "examples": {path: list(ids) for path, ids in self.survey.examples},
        }
