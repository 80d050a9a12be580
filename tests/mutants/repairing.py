"""Bugs of repair: what is not settled is touched, somebody else's change undone, a loss denied."""

from tests.mutants.mutant import mutant

_SWAPS = "tests/ledger/test_metadata_swaps.py::test_"

mutant(
    "swaps a member of an open ledger's last fragment",
    "ledger/metadata.py",
    old="            return SwapRefusal.UNSETTLED\n",
    new="            pass\n",
    test=_SWAPS + "the_last_fragment_is_edited_only_in_a_closed_ledger",
)
mutant(
    "swaps whoever stands at the index",
    "ledger/metadata.py",
    old="        if bookies[index] != old:\n",
    new="        if False:\n",
    test=_SWAPS + "what_may_not_be_swapped_says_why",
)
mutant(
    "swaps in who is a member already",
    "ledger/metadata.py",
    old="            return SwapRefusal.ALREADY_MEMBER\n",
    new="            pass\n",
    test=_SWAPS + "what_may_not_be_swapped_says_why",
)
mutant(
    "swaps in each fragment with that ensemble",
    "ledger/metadata.py",
    old="swapped if each is fragment else each for",
    new="swapped if each.bookies == bookies else each for",
    test=_SWAPS + "the_key_decides_which_fragment_it_is_and_not_its_ensemble",
)

_LISTING = "tests/bookie/storage/test_listing.py::test_"
_CORE = "tests/bookie/server/test_core.py::test_"
_LIMBO = "tests/bookie/loss/test_limbo.py::test_"

mutant(
    "denies what a damaged index page may name",
    "bookie/storage/entry_list.py",
    old="            return _Listed(ranges, first - 1, last, is_damaged=True)\n",
    new="            continue\n",
    test=_LISTING + "a_damaged_index_page_ends_what_is_denied_and_not_what_is_listed",
)
mutant(
    "denies what it did not come to look at on disk",
    "bookie/storage/entry_list.py",
    old="    if next(pages, None) is not None:\n        return _Listed(ranges, listed, listed)\n",
    new="",
    test=_LISTING + "one_request_looks_at_so_many_pages_and_runs_only",
)
mutant(
    "denies what it did not come to look at in memory",
    "bookie/storage/memtable.py",
    old="            considered = self._firsts[end] - 1\n",
    new="            pass\n",
    test=_LISTING + "one_request_looks_at_so_many_pages_and_runs_only",
)
mutant(
    "denies the ranges that an answer has no room for",
    "bookie/storage/entry_list.py",
    old="            considered = min(considered, listed)\n",
    new="",
    test=_LISTING + "an_answer_has_no_more_ranges_than_asked_for_and_says_where_to_go_on",
)
mutant(
    "forgets repairs that are in memory when it lists",
    "bookie/storage/entry_list.py",
    old="    return merge(in_runs, ((entry_id, entry_id) for entry_id in late))\n",
    new="    return merge(in_runs)\n",
    test=_LISTING + "what_came_late_closes_the_gap_that_it_fills",
)
mutant(
    "lists for whoever asks",
    "bookie/storage/entry_list.py",
    old="    if not compare_digest(record.key, query.key):\n",
    new="    if False:\n",
    test=_LISTING + "nothing_is_listed_without_the_key_or_out_of_order",
)
mutant(
    "lets a list drive index pages out of memory",
    "bookie/index/ledger_cache.py",
    old="            if not keep:\n",
    new="            if False:\n",
    test=_LISTING + "no_entry_is_read_and_no_page_stays_in_memory",
)
mutant(
    "calls a deleted ledger damaged when it lists",
    "bookie/storage/entry_list.py",
    old="    if stored.is_damaged and holdings.is_gone(query.ledger_id):\n",
    new="    if False:\n",
    test=_LISTING + "a_ledger_that_is_deleted_meanwhile_is_gone_and_not_damaged",
)
mutant(
    "denies in limbo what it does not list",
    "bookie/storage/engine.py",
    old="limbo.held(query, answer, let_go=let_go)",
    new="answer",
    test=_LIMBO + "what_is_held_is_listed_in_limbo_and_nothing_doubtful_is_denied",
)
mutant(
    "takes any number of lists at once",
    "bookie/server/core.py",
    old="        full = self._held_reads >= self.limits.held_reads_max\n",
    new="        full = False\n",
    test=_CORE + "lists_leave_readers_their_share_of_the_disk",
)
mutant(
    "gives the place of a list that nobody waits for to nobody else",
    "bookie/server/core.py",
    old="            self._disk_reads -= 1\n            self._held_reads -= 1\n",
    new="            self._disk_reads -= 1\n",
    test=_CORE + "so_many_lists_are_made_at_once_only",
)

_LOOKING = "tests/bookie/autorecovery/test_looking.py::test_"
_SERVICE = "tests/bookie/server/test_service.py::test_"
_LISTS = "            answer = yield ListedFromDisk(query)\n"
_TICKET = "            ticket = self.storage.last_ticket\n"

mutant(
    "lists what is in memory alone",
    "bookie/server/core.py",
    old="if ticket > self.durable and not (yield UntilDurable(ticket, HELD_WAIT_S)):",
    new="if False:",
    test=_CORE + "a_list_is_given_once_all_that_was_taken_before_it_was_made_is_durable",
)
mutant(
    "lists what did not become durable in time",
    "bookie/server/core.py",
    old="and not (yield UntilDurable(ticket, HELD_WAIT_S)):",
    new="and (yield UntilDurable(ticket, HELD_WAIT_S)) is None:",
    test=_CORE + "a_list_that_does_not_become_durable_in_time_is_none_and_leaves_its_place",
)
mutant(
    "asks for what is durable before it looks at what is there",
    "bookie/server/core.py",
    old=f"{_LISTS}{_TICKET}",
    new=f"{_TICKET}{_LISTS}",
    test=_CORE + "what_is_taken_while_a_list_is_made_has_to_be_durable_too",
)
mutant(
    "remembers lists that nobody waits for",
    "bookie/server/service.py",
    old="                self._until_durable.remove(waiting)\n",
    new="                pass\n",
    test=_SERVICE + "a_list_waits_for_every_journal_and_not_for_ever",
)
mutant(
    "counts as held what was read and is not listed",
    "bookie/autorecovery/replica_check.py",
    old="    return share.within(listing.share) if listing.is_supported else share\n",
    new="    return share\n",
    test=_LOOKING + "what_a_bookie_gives_and_does_not_list_is_missing",
)

_ENTRY = "tests/ledger/test_entry.py::test_"
_PASSWORDS = "tests/ledger/test_passwords.py::test_"

mutant(
    "checks the beginning of a large payload only",
    "ledger/entry.py",
    old="for at in range(0, len(payload), _CRC_BYTES):",
    new="for at in range(0, min(len(payload), 1), _CRC_BYTES):",
    test=_ENTRY + "damage_anywhere_in_a_large_payload_is_found",
)
mutant(
    "calls frames whole whose payload has not the hash of their trailer",
    "ledger/entry.py",
    old="and (plain or _has_its_hash(frame, header))",
    new="and (plain or True)",
    test=_ENTRY + "a_payload_that_was_exchanged_with_its_checksum_has_not_the_hash_of_the_trailer",
)
mutant(
    "takes frames of any digest for the ledger's when it repairs",
    "ledger/entry.py",
    old="        return header.digest is mac.digest and (",
    new="        return (",
    test=_ENTRY + "a_proof_is_believed_by_its_checksum_without_the_password",
)
mutant(
    "takes frames whose authentication code is damaged",
    "ledger/entry.py",
    old="        if kind == _AUTHENTICATED and not _is_whole(header_crc, data[payload_end:end]):\n",
    new="        if False:\n",
    test=_ENTRY + "damage_anywhere_is_found_without_the_password[payload-hmac]",
)
mutant(
    "copies frames whose authentication code is damaged",
    "ledger/entry.py",
    old="    _check_trailer(frame, header, what)\n",
    new="",
    test=_ENTRY + "damage_anywhere_is_found_without_the_password[payload-hmac]",
)
mutant(
    "believes proofs whose authentication code is damaged",
    "ledger/entry.py",
    old="    _check_trailer(proof, header, what)\n",
    new="",
    test=_ENTRY + "damage_anywhere_in_a_proof_is_found_without_the_password",
)
mutant(
    "lets the checksum of a trailer cover the trailer alone",
    "ledger/entry.py",
    old="    crc = crc32c_extend(header_crc, bytes(trailer[:_CODES_BYTES]))\n",
    new="    crc = crc32c(bytes(trailer[:_CODES_BYTES]))\n",
    test=_ENTRY + "a_frame_gives_back_what_was_put_in",
)
mutant(
    "recovers without the password what it cannot check",
    "ledger/recovery.py",
    old="        self._environment.reported(effect.bookie, answer.status)\n"
    "        found = verified(answer, self._ledger_id, self._credentials.checks)\n",
    new="        found = verified(answer, self._ledger_id, self._credentials.mac)\n",
    test=_PASSWORDS
    + "a_recovery_of_an_authenticated_ledger_keeps_its_bytes_and_their_codes[who repairs it]",
)
mutant(
    "does not authenticate when it repairs although it could",
    "ledger/environment.py",
    old="    if access_key(metadata.secret) != metadata.access_key:\n",
    new="    if True:\n",
    test=_PASSWORDS + "who_repairs_has_what_the_metadata_give",
)

_THROTTLE = "tests/ledger/test_throttle.py::test_"

mutant(
    "lets a new rate change what is owed",
    "ledger/throttle.py",
    old="        self._per_s = per_s\n        if per_s <= 0:\n",
    new="        self._paid_until *= self._per_s / max(per_s, 1)\n        self._per_s = per_s\n"
    "        if per_s <= 0:\n",
    test=_THROTTLE + "a_new_rate_holds_for_what_is_done_from_then_on",
)
