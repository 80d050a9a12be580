"""Bugs of segments in object storage: what is deleted, and what is believed, too early."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from dlog.aio.maintain import archive as driver
from dlog.aio.port import LedgerAppender
from dlog.aio.read import segments
from dlog.aio.store import delete_listed
from dlog.aio.write.writer import LogWriter
from dlog.archive import object_store, object_tail
from dlog.archive import segment_index as indexes
from dlog.archive.object_format import ObjectEntry
from dlog.archive.object_tail import ObjectTail
from dlog.errors import ObjectLost, ObjectStorageUnavailable
from dlog.manifest import LocalCopy, Location, Manifest, Segment, SegmentRun, StoredObject
from dlog.protocol import archive, edits, manifest_steps, object_owner, segment_index
from dlog.protocol.actions import CopyToObject, DeleteLedger, DeleteObject, ListObjects
from dlog.protocol.edits import Edit, trim
from dlog.protocol.manifest_steps import ManifestSteps
from dlog.protocol.segment_index import WriteIndex
from ledger.errors import BadVersion, MetadataUnavailable, NoSuchLedger
from ledger.ids import LedgerId
from ledger.metastore import uri
from ledger.protocol.procedure import Steps
from tests.simulation.mutations.mutation import Patch, mutation


@mutation("neondatabase/neon 2432", logs=True)
def deletes_the_ledger_once_it_is_uploaded(patch: Patch) -> None:
    """Before the manifest says that the segment is in an object."""

    def archive_segments(
        node: ManifestSteps, numbers: Sequence[int], *, incarnation: str, token: str
    ) -> Steps[tuple[StoredObject, ...]]:
        manifest, _ = yield from node.read()
        found = (manifest.find(number) for number in numbers)
        segments = tuple(s for s in found if s and s.sealed and s.location.object is None)
        if not segments:
            return ()
        numbers = [segment.number for segment in segments]
        name = archive.object_name(numbers, token)
        try:
            stored = yield from CopyToObject(segments, manifest.storage, name)
        except NoSuchLedger:
            return ()
        for segment in segments:
            with suppress(NoSuchLedger):
                yield from DeleteLedger(segment.ledger_id)
        parts = dict(zip(numbers, stored, strict=True))
        yield from node.edit(edits.add_objects(node.log, parts, incarnation=incarnation))
        return stored

    patch.set(archive, "archive_segments", archive_segments)


@mutation("apache/pulsar 17516", logs=True)
def lists_an_object_that_it_did_not_read_back(patch: Patch) -> None:
    honest = object_tail.verify_object

    async def verify_object(*args: object, **kwargs: object) -> None:
        if "expected" not in kwargs:
            await honest(*args, **kwargs)  # type: ignore[arg-type]

    patch.set(driver, "verify_object", verify_object)


@mutation("", logs=True)
def lets_the_ledger_go_without_a_second_look_at_the_object(patch: Patch) -> None:
    honest = object_tail.verify_object

    async def verify_object(*args: object, **kwargs: object) -> None:
        if "expected" in kwargs:
            await honest(*args, **kwargs)  # type: ignore[arg-type]

    patch.set(driver, "verify_object", verify_object)


@mutation("", logs=True)
def replaces_the_object_of_a_segment(patch: Patch) -> None:
    """Of two attempts the one that comes last wins."""

    def add_objects(log: str, parts: Mapping[int, StoredObject], *, incarnation: str) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            edits.check_incarnation(manifest, log, incarnation)
            edits.check_living(manifest, log)
            segments = (
                replace(s, location=replace(s.location, object=parts[s.number]))
                if s.number in parts
                else s
                for s in manifest.segments
            )
            return replace(manifest, segments=tuple(segments))

        return edit

    patch.set(archive, "add_objects", add_objects)


@mutation(
    "",
    logs=True,
    drawn=False,
    test="tests/dlog/aio/test_archived_segments.py"
    "::test_a_swap_that_loses_its_answer_is_found_done_and_keeps_its_object",
)
def takes_a_swap_without_an_answer_for_one_that_failed(patch: Patch) -> None:
    """And deletes the object, which the manifest may name by now."""
    honest = ManifestSteps.edit

    def edit(self: ManifestSteps, change: Edit) -> Steps[Manifest]:
        manifest, version = yield from self.read()
        wanted = change(manifest)
        objects = {s.location.object for s in wanted.segments} - {
            s.location.object for s in manifest.segments
        }
        if not objects:
            return (yield from honest(self, change))
        try:
            yield from self.write(wanted, version)
        except MetadataUnavailable:
            for stored in filter(None, objects):
                yield from DeleteObject(stored.storage, stored.name)
            raise
        except BadVersion:
            return (yield from honest(self, change))
        return wanted

    patch.set(ManifestSteps, "edit", edit)


@mutation("decision 37", logs=True)
def takes_an_object_that_is_not_listed_for_an_orphan(patch: Patch) -> None:
    """It may be of an attempt that is about to list it."""

    def orphan_objects(node: ManifestSteps, *, incarnation: str, delete: bool) -> Steps[list[str]]:
        manifest, _ = yield from node.read()
        if not manifest.storage:
            return []
        names = yield from ListObjects(manifest.storage)
        listed = {s.location.object.name for s in manifest.segments if s.location.object}
        for name in names:
            if name not in listed:
                yield from DeleteObject(manifest.storage, name)
        return names

    patch.set(archive, "orphan_objects", orphan_objects)


@mutation("", logs=True)
def gives_the_objects_of_all_attempts_one_name(patch: Patch) -> None:
    """Who comes second deletes the object of the first as its own."""
    patch.set(archive, "object_name", lambda numbers, _token: f"{numbers[0]}-0")


@mutation("", logs=True)
def deletes_objects_before_the_manifest_says_so(patch: Patch) -> None:
    async def truncate(self: LogWriter, before: int) -> None:
        self._machine.check_truncation(before)
        manifest, _ = await self._node.read()
        folder = object_store.open_folder(manifest.storage)
        for stored in manifest.trimmed(before).deleting_objects:
            await folder.delete(stored.name)
        edit = trim(self.log, before, incarnation=self._incarnation)
        after = await self._node.edit(edit)
        await delete_listed(self._ledgers, self._node, after)

    patch.set(LogWriter, "truncate", truncate)


@mutation(
    "AutoMQ/automq 3177",
    logs=True,
    drawn=False,
    test="tests/dlog/archive/test_archive_integration.py"
    "::test_a_reader_waits_for_storage_that_is_away_and_reads_on",
)
def takes_a_storage_that_does_not_answer_for_a_lost_object(patch: Patch) -> None:
    honest = ObjectTail._fetched

    async def fetched(self: ObjectTail, block: int) -> list[ObjectEntry]:
        try:
            return await honest(self, block)
        except ObjectStorageUnavailable:
            raise ObjectLost(self._log, "some", self._stored.name) from None

    patch.set(ObjectTail, "_fetched", fetched)


@mutation("redpanda-data/redpanda 7819", logs=True)
def skips_the_first_entry_of_a_block(patch: Patch) -> None:
    honest = ObjectTail.read_some

    async def read_some(
        self: ObjectTail,
        first: int,
        *,
        last: int | None = None,
        bytes_max: int = 1 << 20,
        wait_s: float = 0.0,
    ) -> list[ObjectEntry]:
        entries = await honest(self, first, last=last, bytes_max=bytes_max, wait_s=wait_s)
        firsts = set(self.index.firsts[1:])
        return [each for each in entries if each.entry_id == first or each.entry_id not in firsts]

    patch.set(ObjectTail, "read_some", read_some)


@mutation("", logs=True)
def lists_the_ledger_for_deletion_and_keeps_the_segment_on_it(patch: Patch) -> None:
    """The location that readers see is the old one, until somebody writes the next."""

    def without_ledger(self: Manifest, number: int) -> Manifest:
        segment = self.find(number)
        assert segment is not None
        return replace(self, deleting=(*self.deleting, segment.ledger_id))

    patch.set(Manifest, "without_ledger", without_ledger)


_COPIES = "tests/dlog/aio/test_archived_segments.py"


@mutation("a copy of a namespace", logs=True)
def deletes_what_a_copy_of_the_manifest_names(patch: Patch) -> None:
    """Whoever has the manifest deletes."""

    def hold_objects(*_: object, **__: object) -> Steps[None]:
        return
        yield

    patch.set(manifest_steps, "hold_objects", hold_objects)


@mutation(
    "a copy of a namespace",
    logs=True,
    drawn=False,
    test=f"{_COPIES}::test_a_copy_of_the_namespace_reads_objects_and_deletes_none",
)
def takes_any_mark_for_its_own(patch: Patch) -> None:
    """What is in the manifest is not compared with what is in the storage."""
    honest = object_owner.hold_objects

    def hold_objects(node: ManifestSteps, incarnation: str, *, claim: bool = False) -> Steps[None]:
        del claim
        return honest(node, incarnation, claim=True)

    patch.set(manifest_steps, "hold_objects", hold_objects)
    patch.set(archive, "hold_objects", hold_objects)


@mutation(
    "a copy of a namespace",
    logs=True,
    drawn=False,
    test=f"{_COPIES}::test_a_copy_of_the_namespace_reads_objects_and_deletes_none",
)
def owns_objects_wherever_the_metadata_store_is(patch: Patch) -> None:
    """Then a copy that is like the original is the owner if it comes first."""
    patch.set(uri, "places_of", lambda _uri: ("anywhere",))


@mutation(
    "a mark that comes late",
    logs=True,
    drawn=False,
    test=f"{_COPIES}::test_a_token_is_kept_as_long_as_its_mark_may_be_there_or_come",
)
def forgets_the_token_of_an_attempt_that_failed(patch: Patch) -> None:
    """Its mark may come still, and the log's own objects are then another's for good."""
    honest = object_owner.try_owner

    def try_owner(log: str, incarnation: str, seen: str, token: str, *, claim: bool) -> Edit:
        edit = honest(log, incarnation, seen, token, claim=claim)

        def forgetful(manifest: Manifest) -> Manifest:
            after = edit(manifest)
            return replace(after, owners=(after.owners[0], after.owners[-1]))

        return forgetful

    patch.set(object_owner, "try_owner", try_owner)


@mutation(
    "a copy of a namespace",
    logs=True,
    drawn=False,
    test=f"{_COPIES}::test_an_older_state_that_is_put_back_is_refused_until_it_claims",
)
def archives_without_holding_the_objects(patch: Patch) -> None:
    """A copy lets its ledgers go, and what is left is an object that is another's."""

    def hold_objects(*_: object, **__: object) -> Steps[None]:
        return
        yield

    patch.set(driver, "hold_objects", hold_objects)


_INDEX = "tests/dlog/aio/test_segment_index.py"


@mutation(
    "a truncation beside the archiver",
    logs=True,
    drawn=False,
    test=f"{_INDEX}::test_a_swap_demands_the_segments_as_they_were_read",
)
def indexes_segments_that_are_not_listed_any_more(patch: Patch) -> None:
    honest = segment_index.add_run

    def add_run(
        log: str,
        run: SegmentRun,
        due: Sequence[Segment],
        before: SegmentRun | None,
        *,
        incarnation: str,
    ) -> Edit:
        edit = honest(log, run, due, before, incarnation=incarnation)

        def careless(manifest: Manifest) -> Manifest:
            after = edit(manifest)
            if after != manifest or run in manifest.runs:
                return after
            numbers = {segment.number for segment in due}
            kept = tuple(s for s in manifest.segments if s.number not in numbers)
            return replace(manifest, runs=(*manifest.runs, run), segments=kept)

        return careless

    patch.set(segment_index, "add_run", add_run)


@mutation(
    "apache/pulsar 17516",
    logs=True,
    drawn=False,
    test=f"{_INDEX}::test_an_index_that_was_torn_is_never_listed",
)
def lists_an_index_that_it_did_not_read_back(patch: Patch) -> None:
    async def write_index(action: WriteIndex) -> StoredObject:
        data = indexes.encode_index(action.manifest, action.log, action.segments)
        folder = object_store.open_folder(action.manifest.storage)

        async def chunks() -> AsyncGenerator[bytes, None]:
            yield data

        await folder.put(action.name, chunks())
        return StoredObject(action.name, len(data), action.manifest.storage)

    patch.set(indexes, "write_index", write_index)


@mutation("decision 37", logs=True)
def takes_objects_of_runs_for_orphans(patch: Patch) -> None:
    """As the manifest does not list their segments."""

    def is_indexed(*_: object) -> Steps[bool]:
        return False
        yield

    patch.set(archive, "_is_indexed", is_indexed)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_INDEX}::test_a_truncation_deletes_the_objects_below_it_also_within_a_run",
)
def sweeps_a_run_beyond_the_trim_point(patch: Patch) -> None:
    honest = segment_index.doomed_objects

    def doomed_objects(
        segments: Sequence[Segment], run: SegmentRun, trim: int
    ) -> Iterator[tuple[StoredObject, int]]:
        return honest(segments, run, trim + 1)

    patch.set(segment_index, "doomed_objects", doomed_objects)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_COPIES}::test_small_segments_share_an_object_which_goes_with_the_last_of_them",
)
def deletes_a_shared_object_with_the_first_of_its_segments(patch: Patch) -> None:
    honest = Manifest.trimmed

    def trimmed(self: Manifest, before: int) -> Manifest:
        after = honest(self, before)
        gone = [s for s in self.segments if after.find(s.number) is None and s.location.object]
        objects = {s.location.object.name: s.location.object for s in gone if s.location.object}
        kept = (
            s
            if s.location.object is None or s.location.object.name not in objects
            else replace(s, location=Location(on_bookies=True))
            for s in after.segments
        )
        waiting = {stored.name: stored for stored in after.deleting_objects} | objects
        return replace(after, segments=tuple(kept), deleting_objects=tuple(waiting.values()))

    patch.set(Manifest, "trimmed", trimmed)


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_COPIES}::test_an_attempt_for_several_segments_takes_those_that_are_left",
)
def judges_a_shared_object_by_its_first_segment(patch: Patch) -> None:
    honest = archive.numbers_of
    patch.set(archive, "numbers_of", lambda name: honest(name)[:1])


@mutation(
    "",
    logs=True,
    drawn=False,
    test=f"{_INDEX}::test_an_index_is_an_orphan_only_if_no_manifest_can_list_it_any_more",
)
def takes_an_index_that_is_not_listed_for_an_orphan(patch: Patch) -> None:
    """Its attempt may be about to list it."""

    def is_orphan_index(manifest: Manifest, name: str) -> bool:
        listed = {run.index.name for run in manifest.runs}
        return name.startswith("index-") and name not in listed

    patch.set(segment_index, "is_orphan_index", is_orphan_index)
    patch.set(archive, "is_orphan_index", is_orphan_index)


_LOCAL = "tests/dlog/aio/test_local_copies.py"


@mutation("decision 137", logs=True)
def takes_local_copies_that_are_listed_for_orphans(patch: Patch) -> None:
    """As no segment rests on them."""

    def listed_ledgers(self: Manifest) -> tuple[LedgerId, ...]:
        return tuple(s.ledger_id for s in self.segments if s.location.on_bookies)

    patch.set(Manifest, "listed_ledgers", property(listed_ledgers))


@mutation("decision 137", logs=True)
def lists_a_local_copy_that_lacks_its_end(patch: Patch) -> None:
    """What one read brought is taken for all of it, and nobody reads it back."""
    honest = ObjectTail.read_some

    async def write(self: driver._Copier, writer: LedgerAppender, tail: ObjectTail) -> object:
        del self
        for each in await honest(tail, 0, bytes_max=1):
            await writer.add(bytes(each.payload))
        await writer.close()
        return ()

    async def check_copy(*_: object) -> None:
        """Nothing is read back."""

    patch.set(driver._Copier, "_write", write)
    patch.set(driver._Copier, "_check_copy", check_copy)


@mutation("decision 137", logs=True)
def lists_a_local_copy_and_forgets_it_with_its_segment(patch: Patch) -> None:
    """Nobody deletes its ledger, as its round may list it."""
    honest = Manifest.trimmed

    def trimmed(self: Manifest, before: int) -> Manifest:
        after = honest(self, before)
        copies = {copy.ledger_id for copy in self.copies}
        return replace(after, deleting=tuple(x for x in after.deleting if x not in copies))

    patch.set(Manifest, "trimmed", trimmed)


@mutation(
    "decision 137",
    logs=True,
    drawn=False,
    test=f"{_LOCAL}::test_who_lets_copies_go_stops_whoever_makes_more",
)
def lists_a_local_copy_in_a_later_round(patch: Patch) -> None:
    """The janitor may have deleted it by then."""
    honest = edits.add_copy

    def add_copy(log: str, copy: LocalCopy, *, incarnation: str, copy_round: int) -> Edit:
        def edit(manifest: Manifest) -> Manifest:
            now = manifest.copy_round
            return honest(log, copy, incarnation=incarnation, copy_round=now)(manifest)

        del copy_round
        return edit

    patch.set(archive, "add_copy", add_copy)


@mutation(
    "decision 137",
    logs=True,
    drawn=False,
    test=f"{_LOCAL}::test_encrypted_segments_come_back_without_a_key_and_are_read_with_it",
)
def reads_a_local_copy_as_the_ledger_that_it_is(patch: Patch) -> None:
    """Encryption is bound to the ledger that the segment was written as."""
    patch.set(segments.CopyTail, "ledger_id", property(lambda self: self._tail.ledger_id))
