"""Who may touch the namespace in ZooKeeper: the same for all of its nodes? Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dlog.health.signs import Gravity, Sign, counted, named
from ledger.metastore.acl_survey import AclSurvey


@dataclass(frozen=True, slots=True)
class AclFacts:
    survey: AclSurvey | None
    """None: the store knows no ACLs."""

    def signs(self) -> Iterator[Sign]:
        if self.survey is None:
            return
        if not self.survey.ids:
            yield Sign(
                Gravity.NOTE,
                "open-namespace",
                "whoever reaches ZooKeeper may read and change all metadata, keys of ledgers too",
                "Let nobody else reach it, or make namespaces with credentials (dlog init --help).",
            )
        if self.survey.differing:
            paths = [path for path, _ in self.survey.examples]
            yield Sign(
                Gravity.WRONG,
                "acl-differs",
                f"{counted(self.survey.differing, 'node')} of the namespace may be touched by "
                f"others than the rest of it: {named(paths)}",
                "They were made by other programs. Give them the ACL of /instance "
                "(zkCli: getAcl, setAcl).",
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

    def shown(self) -> Mapping[str, object]:
        if self.survey is None:
            return {"ids": None}
        return {
            "ids": list(self.survey.ids),
            "nodes": self.survey.nodes,
            "differing": self.survey.differing,
            "examples": {path: list(ids) for path, ids in self.survey.examples},
        }
