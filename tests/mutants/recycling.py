"""Bugs of journal files that are written again: an earlier life of a file is taken for this one."""

from tests.mutants.mutant import mutant

_RECYCLING = "tests/bookie/journal/test_recycling.py::test_"
_CRASHES = _RECYCLING + "nothing_is_lost_and_nothing_old_comes_back_after_a_crash_at_any_operation"

mutant(
    "takes records of another epoch for those of this file",
    "bookie/journal/recovery.py",
    old="    if header.epoch != epoch:\n",
    new="    if False:\n",
    test=_RECYCLING + "records_of_an_earlier_life_never_replay_and_show_no_damage",
)
mutant(
    "gives a file its new name before its new header is durable",
    "bookie/journal/writer.py",
    old="        file.sync()\n    finally:\n        file.close()\n    disk.rename(spare,",
    new="    finally:\n        file.close()\n    disk.rename(spare,",
    test=_CRASHES,
)
mutant(
    "lets a file that is written again keep its epoch",
    "bookie/journal/writer.py",
    old="        header = replace(header, ",
    new="        header = replace(header, epoch=int.from_bytes(file.read(8, 24), 'little'), ",
    test=_RECYCLING + "records_of_an_earlier_life_never_replay_and_show_no_damage",
)
mutant(
    "takes files back before the mark that leaves them behind is durable",
    "bookie/journal/journals.py",
    old="            write_mark(disk, mark)\n            writer.leave_behind(mark.journal_id)\n",
    new="            writer.leave_behind(mark.journal_id)\n            write_mark(disk, mark)\n",
    test=_CRASHES,
)
mutant(
    "keeps every journal file to be written again",
    "bookie/journal/spares.py",
    old="            if len(kept) < room:\n",
    new="            if True:\n",
    test=_RECYCLING + "a_bounded_number_of_files_is_kept",
)
mutant(
    "waits on a full disk that its own spares fill",
    "bookie/journal/writer.py",
    old="            if self._spares.give_up():\n",
    new="            if False:\n",
    test=_RECYCLING + "a_full_disk_gets_the_space_of_the_spares_before_anybody_waits_for_it",
)
