"""Bugs of a bookie's identity: of its lives, of copies, of names that were given up."""

from dataclasses import replace
from typing import Any

from bookie.disk.port import Directories, Disk
from bookie.errors import BookieSuperseded
from bookie.identity import lives, stamp
from bookie.identity.cookie import Cookie, write_cookie
from bookie.identity.lives import Claim
from ledger.ids import BookieIdentity
from ledger.metastore.port import MetadataStore
from ledger.registry import COOKIES
from tests.simulation import disks_elsewhere
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("rules 74, 76")
def accepts_an_older_directory(patch: Patch) -> None:
    """A backup of an earlier life: whose cookie it is is all that is asked."""
    honest = stamp._check_newest

    def check_newest(
        stamped: list[stamp._Stamped], known: Cookie, directories: Directories, **how: bool
    ) -> None:
        here = stamped[0].cookie
        assert here is not None
        known = replace(_not_ahead(known, directories), token=here.token)
        honest(stamped, known, directories, **how)

    patch.set(stamp, "_check_newest", check_newest)


@mutation("rules 74, 76")
def compares_no_checkpoints(patch: Patch) -> None:
    """A backup of this life is taken for the newest data."""
    honest = stamp._check_newest

    def check_newest(
        stamped: list[stamp._Stamped], known: Cookie, directories: Directories, **how: bool
    ) -> None:
        honest(stamped, _not_ahead(known, directories), directories, **how)

    patch.set(stamp, "_check_newest", check_newest)


def _not_ahead(known: Cookie, directories: Directories) -> Cookie:
    """Return the store's node as if it knew of no checkpoint that is not in the directories."""
    return replace(known, checkpoint=min(known.checkpoint, stamp._checkpoint(directories)))


@mutation("rules 74, 76")
def takes_a_copy_for_the_original(patch: Patch) -> None:
    patch.set(stamp._Stamped, "is_original", True)


@mutation("own, rule 74")
def a_start_leaves_the_clean_stop_standing(patch: Patch) -> None:
    """What is copied from then on passes for the data of the clean stop."""
    honest = stamp._of_life

    def of_life(life: Cookie, one: stamp._Stamped) -> Cookie:
        assert one.cookie is not None
        return replace(honest(life, one), clean=one.cookie.clean)

    def cookie_as_before(cookie: Cookie, /, **changes: Any) -> Cookie:
        if "token" in changes and "life" in changes and "clean" in changes:
            changes["clean"] = cookie.clean
        return replace(cookie, **changes)

    patch.set(stamp, "_of_life", of_life)
    patch.set(stamp, "replace", cookie_as_before)


@mutation("own, rule 74")
def counts_a_start_before_the_directories_know(patch: Patch) -> None:
    """A crash in between leaves data that nobody accepts any more."""

    def write(disk: Disk, cookie: Cookie) -> None:
        write_cookie(disk, replace(cookie, tries=()))

    patch.set(stamp, "write_cookie", write)


@mutation("rules 74, 76")
def a_retired_name_comes_back(patch: Patch) -> None:
    """As it was before: the cluster forgets who was given up, and takes a new disk for the old."""

    async def retire(store: MetadataStore, bookie: str, _known: Cookie | None) -> bool:
        await store.delete(f"{COOKIES}/{bookie}")
        return True

    patch.set(disks_elsewhere, "retire", retire)


@mutation(
    "own, rule 74",
    test="tests/bookie/identity/test_lives.py::test_a_bookie_ends_when_another_process_took_its_identity",
    drawn=False,
)
def a_running_bookie_does_not_ask_whose_life_it_is(patch: Patch) -> None:
    """It goes on beside the process that took its identity, and writes over its node."""
    honest = lives.look

    async def look(store: MetadataStore, claim: Claim) -> Claim:
        try:
            return await honest(store, claim)
        except BookieSuperseded:
            return Claim(claim.cookie, (await store.get(claim.path)).version)

    patch.set(lives, "look", look)


@mutation(
    "own, rule 74",
    test="tests/bookie/identity/test_identity.py::"
    "test_where_the_locks_prove_nothing_a_start_waits_until_nobody_has_the_name",
    drawn=False,
)
def a_lock_is_taken_for_proof_on_another_machine(patch: Patch) -> None:
    honest = stamp._read

    def read(disk: Disk, place: str) -> stamp._Stamped:
        stamped = honest(disk, place)
        cookie = stamped.cookie
        if cookie is None:
            return stamped
        return replace(stamped, cookie=replace(cookie, system=disk.where()))

    patch.set(stamp, "_read", read)


@mutation("own, rule 75")
def does_not_compare_the_cluster(patch: Patch) -> None:
    """Whoever has the right name and identity is believed, also one of a copy of the cluster."""
    honest = BookieIdentity.why_not

    def why_not(self: BookieIdentity, who: BookieIdentity, bookie: str) -> str | None:
        return honest(self, replace(who, instance=self.instance), bookie)

    patch.set(BookieIdentity, "why_not", why_not)


@mutation("own, rule 75")
def does_not_compare_the_data(patch: Patch) -> None:
    """A bookie that was emptied is believed under its old name."""
    honest = BookieIdentity.why_not

    def why_not(self: BookieIdentity, who: BookieIdentity, bookie: str) -> str | None:
        return honest(self, replace(who, identity=self.identity), bookie)

    patch.set(BookieIdentity, "why_not", why_not)


@mutation("own, rule 75")
def does_not_compare_the_life(patch: Patch) -> None:
    """A process is believed whose data another one has taken over."""
    honest = BookieIdentity.why_not

    def why_not(self: BookieIdentity, who: BookieIdentity, bookie: str) -> str | None:
        return honest(self, replace(who, life=self.life), bookie)

    patch.set(BookieIdentity, "why_not", why_not)
