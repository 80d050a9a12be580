"""A chunk: records of one entry as a reader hands them on, made one by one when asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, overload

from dlog.position import Place, Record
from dlog.recordbatch import RecordBatch


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Chunk(Sequence[Record]):
    """The records in the slots *skip* .. *skip* + *take* - 1 of *batch*, one at least.

    A sequence of records: each is made when it is asked for and kept by nobody here. *batch* has
    them as columns, for who wants no objects at all."""

    batch: RecordBatch
    place: Place
    """Of slot 0, also if that is skipped."""
    skip: int
    take: int

    @property
    def begin(self) -> int:
        """Offset of the first record."""
        return self.place.first_offset + self.skip

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.begin + self.take

    def since(self, offset: int) -> "Chunk":
        """Return the records from *offset* on. Requires `begin` <= *offset* < `end`."""
        done = offset - self.begin
        return Chunk(self.batch, self.place, self.skip + done, self.take - done) if done else self

    def records(self) -> Iterator[Record]:
        return self.batch.records(self.place, skip=self.skip, take=self.take)

    __iter__ = records

    def __len__(self) -> int:
        return self.take

    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Record]: ...
    def __getitem__(self, index: int | slice, /) -> Record | list[Record]:
        if isinstance(index, slice):
            return list(self)[index]
        return self.batch.record(self.place, range(self.skip, self.skip + self.take)[index])

    def __repr__(self) -> str:
        return f"<{self.take} records from {self.begin} on>"
