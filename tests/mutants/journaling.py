"""Bugs of the journal's paths: commits on the loop, headers beside the lock, acks over sockets."""

from tests.mutants.mutant import mutant

_COMMITTING = "tests/bookie/server/test_committing.py::test_"
_PUBLISHING = "tests/bookie/storage/test_publishing.py::test_"
_WINDOW = "tests/ledger/test_transport_window.py::test_"
_TRANSPORT = "tests/ledger/test_transport.py::test_"
_JOURNAL = "tests/bookie/journal/test_journal.py::test_"
_HANDLE = "tests/simulation/scenarios/test_handle.py::test_"

mutant(
    "lets the loop wait for a disk that it does not know",
    "bookie/server/service.py",
    old="len(self._times) == TIMES and ",
    new="",
    test=_COMMITTING + "a_disk_that_is_not_known_is_not_waited_for",
)
mutant(
    "lets the loop wait for a disk that is often slow",
    "bookie/server/service.py",
    old=" and self._slow <= SLOW_MAX and",
    new=" and",
    test=_COMMITTING + "a_disk_that_is_slow_every_tenth_time_is_slow",
)
mutant(
    "commits much on the loop",
    "bookie/server/service.py",
    old=" and size_bytes <= HERE_BYTES_MAX",
    new="",
    test=_COMMITTING + "little_is_committed_on_the_loop_of_a_bookie_whose_disk_is_fast",
)
mutant(
    "lets one of several journals wait for another on the loop",
    "bookie/server/service.py",
    old="self._is_possible = journals == 1",
    new="self._is_possible = True",
    test=_COMMITTING + "of_several_journals_none_waits_for_another",
)
mutant(
    "goes on when a commit on the loop has failed",
    "bookie/server/service.py",
    old="            self.fail(error)\n            return\n        finally:\n",
    new="            return\n        finally:\n",
    test=_COMMITTING + "a_failure_on_the_loop_ends_the_bookie",
)
mutant(
    "makes headers while adds wait for the lock",
    "bookie/storage/checkpoint.py",
    old="            memtable = holdings.memory.begin_flush()\n        del recent\n",
    new="            memtable = holdings.memory.begin_flush()\n"
    "            list(map(header_of, holdings.ledgers.flushing()))\n        del recent\n",
    test=_PUBLISHING + "headers_are_made_without_the_lock",
)
mutant(
    "takes a record for clean that was changed while it was written out",
    "bookie/storage/ledger_table.py",
    old="            if header.ledger_id not in self._dirty:\n",
    new="            self._dirty.pop(header.ledger_id, None)\n            if True:\n",
    test=_PUBLISHING + "what_is_promised_while_a_checkpoint_writes_is_written_by_the_next",
)
mutant(
    "answers the newest batch in flight first",
    "ledger/transport/window.py",
    old="            flight = self._flights.popleft()\n",
    new="            flight = self._flights.pop()\n",
    test=_WINDOW + "an_ack_of_several_batches_answers_their_runs_in_order",
)
mutant(
    "takes an ack of batches that are not the oldest",
    "ledger/transport/window.py",
    old=" or self._flights[0].batch != first:",
    new=":",
    test=_WINDOW + "an_ack_that_does_not_fit_is_refused",
)
mutant(
    "makes each bookie's message anew",
    "ledger/transport/sockets.py",
    old="            self._runs, self._message = runs, batch_message(runs)\n",
    new="            return batch_message(runs)\n",
    test=_TRANSPORT + "what_several_bookies_get_in_one_turn_is_made_once",
)
mutant(
    "sends to one bookie what was meant for another",
    "ledger/transport/sockets.py",
    old="if len(runs) != len(self._runs) or not all(map(is_, runs, self._runs)):",
    new="if len(runs) != len(self._runs):",
    test=_TRANSPORT + "what_several_bookies_get_in_one_turn_is_each_ones_own",
)
mutant(
    "believes a record whose columns or frames have changed",
    "bookie/journal/format.py",
    old="    if extend(crc32c(columns), frames) != header.crc:\n",
    new="    if False:\n",
    test=_JOURNAL + "every_byte_of_a_journal_flipped_is_found_or_was_never_needed",
)
mutant(
    "publishes a LAC that an entry carries",
    "ledger/writer.py",
    old="        elif self.last_add_pushed == effect.last_add_confirmed:\n",
    new="        else:\n",
    test=_HANDLE + "no_lac_travels_by_itself_while_each_entry_follows_the_confirmation_of_the_last",
)
mutant(
    "takes the mark of another bookie that fits",
    "bookie/journal/recovery.py",
    old="    if tag and tag != tag_of(headers[0].epoch):",
    new="    if False:",
    test=_JOURNAL + "a_mark_of_another_journal_that_fits_refuses",
)
