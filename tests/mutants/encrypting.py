"""Bugs of encryption: what is to be hidden is not, or opens where it should not."""

from tests.mutants.mutant import mutant

_ENVELOPE = "tests/dlog/test_envelope.py::test_"
_LOGS = "tests/dlog/aio/test_encrypted_logs.py::test_"

mutant(
    "uses one key stream for all entries of a ledger that have one salt",
    "dlog/envelope.py",
    old="_NONCE.pack(entry_id & 0xFFFFFFFF, salt)",
    new="_NONCE.pack(0, salt)",
    test=_ENVELOPE + "two_entries_never_have_one_nonce_even_with_the_same_salt",
)
mutant(
    "opens an envelope at any place",
    "dlog/envelope.py",
    old="    return place + known\n",
    new="    return known\n",
    test=_ENVELOPE + "it_opens_at_its_own_place_only",
)
mutant(
    "leaves the numbers to whoever changes them",
    "dlog/envelope.py",
    old="    return place + known\n",
    new="    return place\n",
    test=_ENVELOPE + "not_one_byte_of_it_can_be_changed",
)
mutant(
    "believes a batch in plain in an encrypted ledger",
    "dlog/envelope.py",
    old='        raise DamagedBatch("it is not encrypted, in a ledger in which all are")\n',
    new="        return decode_batch(payload)\n",
    test=_LOGS + "what_is_not_as_its_writer_wrote_it_for_this_place_is_never_given_to_a_reader",
)
mutant(
    "stages in plain for a log that is encrypted",
    "dlog/aio/write/sink.py",
    old="data_key = await new_data_key(settings.encrypt_with)",
    new='data_key = await new_data_key("")',
    test=_LOGS + "no_disk_of_a_bookie_ever_holds_what_was_appended_and_readers_get_it_all",
)
mutant(
    "rolls into a segment in plain",
    "dlog/aio/write/segment_roll.py",
    old="        return await new_data_key(self._encrypt_with)\n",
    new='        return await new_data_key("")\n',
    test=_LOGS + "no_disk_of_a_bookie_ever_holds_what_was_appended_and_readers_get_it_all",
)
mutant(
    "believes the last batch of an encrypted ledger by what it says of itself",
    "dlog/aio/read/segments.py",
    old="        await _authenticate(metadata, ledger_id, payloads, without_key=without_key)\n",
    new="",
    test=_LOGS + "a_writer_believes_no_last_batch_that_its_key_does_not_open",
)
mutant(
    "seals no log without its key",
    "dlog/aio/maintain/seal.py",
    old="            without_key=True,\n",
    new="",
    test=_LOGS + "who_has_no_key_hears_what_to_give_and_looks_after_the_log_all_the_same",
)
