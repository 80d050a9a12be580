"""Files on the disks of a bookie."""

from array import array
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

from google_crc32c import extend
from google_crc32c import value as crc32c

from bookie.collector import store_memory
from bookie.collector.garbage import StoreMemory
from bookie.entrylog import format as entrylog_format
from bookie.entrylog.catalog import LogScan
from bookie.entrylog.ledger_map import TRAILER_BYTES, LedgerMapBuilder, encode_map, read_map
from bookie.errors import FileDamaged
from bookie.index import format as index_format
from bookie.index import redo
from bookie.index.format import LedgerHeader
from bookie.index.redo import Image, Redo, RedoPlace
from bookie.index.tombstones import PATH as TOMBSTONES_PATH
from bookie.index.tombstones import Edition, Tombstones
from bookie.journal import format as journal_format
from bookie.journal import recovery
from bookie.journal.format import FileHeader, JournalMark, Record, RecordKind
from bookie.loss.census import ROLL_PATH, Census, Needed, Roll, RollPlace, Rolls
from bookie.loss.limbo import Limbo
from dlog.testing.memory_disk import MemoryDisk
from tests.fuzz.target import Target, crc, sealed_at_end
from tests.fuzz.targets.samples import FRAMES, KEY


def _disk_with(path: str, data: bytes) -> MemoryDisk:
    disk = MemoryDisk("d", 1 << 24)
    file = disk.create(path)
    file.write([data], 0)
    file.close()
    return disk


def _bytes_of(disk: MemoryDisk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def _journal_sealed(data: bytes) -> bytes:
    """Let the header of a journal file, and its first record, have the checksums they should."""
    size = journal_format.FILE_HEADER_BYTES
    head, rest = data[:size], data[size:]
    if len(rest) >= 8:
        length = int.from_bytes(rest[:4], "little")
        rest = rest[:4] + crc(rest[8:length]) + rest[8:]
    return head[:-4] + crc(head[:-4]) + rest


def _replay(data: bytes) -> list[Record]:
    disk = _disk_with(journal_format.path_of(1), data)
    return [record for segment in recovery.plan(disk) for record in recovery.replay(disk, segment)]


def _record_sealed(data: bytes) -> bytes:
    return data[:4] + crc(data[8:]) + data[8:]


def _record(data: bytes) -> Record:
    record = journal_format.decode_record(data)
    if isinstance(record, str):
        raise ValueError(record)  # noqa: TRY004 - what is wrong with it
    return record


JOURNAL_RECORDS: Final = tuple(
    b"".join(journal_format.encode_record(record, 5, 64))
    for record in (
        Record(RecordKind.FENCE, 7, KEY),
        Record(
            RecordKind.ADD, 7, KEY, array("q", [0, 1]), array("I", map(len, FRAMES[:2])),
            FRAMES[0] + FRAMES[1],
        ),
    )
)  # fmt: skip
JOURNAL: Final = journal_format.encode_file_header(FileHeader(1, 5, 0, 0))


def _index_header(data: bytes) -> LedgerHeader:
    block = index_format.PAGE_BYTES
    return index_format.decode_header(
        data[:block], 7, "index", lambda offset: data[max(0, offset) :][:block]
    )


def _page_sealed(data: bytes) -> bytes:
    """Let header and overflowing page of an index file have the checksums that they should."""
    block = index_format.PAGE_BYTES
    head, page = data[:block], data[block:]
    seed = crc32c(Struct("<q").pack(7))
    if len(page) >= 4:
        page = int(extend(seed, page[4:])).to_bytes(4, "little") + page[4:]
    return sealed_at_end(head) + page


def _overflowing() -> bytes:
    extents = tuple((2 * at, 2 * at) for at in range(index_format.EXTENTS_MAX + 3))
    header = LedgerHeader(7, KEY, extents=extents)
    file = bytearray(index_format.encode_header(header))
    for number, page in index_format.overflow(header):
        at = index_format.page_offset(number)
        file.extend(bytes(max(0, at + len(page) - len(file))))
        file[at : at + len(page)] = page
    return bytes(file)


def _tombstones(data: bytes) -> Tombstones:
    return Tombstones.load(_disk_with(TOMBSTONES_PATH, data))


def _two_part_sealed(head: Struct, crc_at: int) -> Callable[[bytes], bytes]:
    """Return what seals a header with the checksum of the body in it, and its own behind it."""

    def seal(data: bytes) -> bytes:
        body = data[head.size + 4 :]
        own = data[:crc_at] + crc(body) + data[crc_at + 4 : head.size]
        return own + crc(own) + body

    return seal


def _redo(data: bytes) -> list[Image]:
    found = Redo(_disk_with(redo.PATH, data))
    found.load()
    if not found:
        raise ValueError("it is not whole")
    for ledger_id in found:
        redo.is_all(ledger_id, partial(found.block, ledger_id))
    return [image for ledger_id in found for image in found.images(ledger_id)]


def _redo_sealed(data: bytes) -> bytes:
    """Let the header and the first batch have the checksums that they should."""
    head, chain, batch = data[:24], data[24:28], data[28:]
    if len(chain) < 4 or len(batch) < 24:
        return head + chain + batch
    size_bytes = max(24, min(len(batch), 24 + int.from_bytes(batch[16:24], "little")))
    sealed = crc(crc(head) + batch[4:size_bytes])
    return head + crc(head) + sealed + batch[4:]


def _made(path: str, make: Callable[[MemoryDisk], object]) -> bytes:
    disk = MemoryDisk("d", 1 << 24)
    make(disk)
    return _bytes_of(disk, path)


def _roll(data: bytes) -> object:
    roll = Roll(_disk_with(ROLL_PATH, data))
    problem = roll.load(ROLLED.place)
    if problem:
        raise ValueError(problem)
    return roll.editions


def _ledger_map(data: bytes) -> object:
    path = entrylog_format.path_of(3)
    file = _disk_with(path, data).open(path)
    found = read_map(file, 3)
    if found is None:
        raise ValueError("no map")
    return found.live_bytes(lambda _: True)


def _map_sealed(data: bytes) -> bytes:
    return data[:-TRAILER_BYTES] + sealed_at_end(data[-TRAILER_BYTES:])


def _a_map() -> bytes:
    builder = LedgerMapBuilder()
    builder.add(7, 200, 2)
    builder.add(9, 100, 1)
    frames = bytes(entrylog_format.HEADER_BYTES)
    return frames + encode_map(3, builder.build(len(frames), [1]), len(frames))


def _scan(data: bytes) -> object:
    disk = _disk_with(entrylog_format.path_of(3), data)
    scan = LogScan(disk, 3)
    entries = [entry for batch in scan for entry in batch.entries()]
    if scan.end.reason:
        raise ValueError(scan.end.reason)
    return entries


def _made_tombstones(disk: MemoryDisk) -> None:
    Tombstones.none(disk).add([1, 2, 3, 9])


def _made_roll(disk: MemoryDisk) -> Roll:
    roll = Roll(disk)
    roll.append({1: 11, 2: 12}, logs={1: 64})
    needed = Needed(RedoPlace(1, 3, 17), Edition(2, 5), Edition(1, 9))
    roll.append(needed=needed, removed=[2], logs={1: 0, 2: 99})
    return roll


ROLLED: Final = _made_roll(MemoryDisk("d", 1 << 24))


def _made_redo(disk: MemoryDisk) -> None:
    Redo(disk).append([Image(7, 0, index_format.encode_header(LedgerHeader(7, KEY)))])


def _collected(data: bytes) -> StoreMemory:
    seen = store_memory.decode(data)
    if seen is None:
        raise ValueError("it is damaged")
    return seen


LIMBO: Final = Limbo("a disk is gone").known([1, 2, 3], [2])
DISK: Final = (
    Target(
        "journal",
        _replay,
        (JOURNAL, JOURNAL + b"".join(JOURNAL_RECORDS), JOURNAL + JOURNAL_RECORDS[0] + bytes(64)),
        refuses=FileDamaged,
        seal=_journal_sealed,
    ),
    Target("journal-record", _record, JOURNAL_RECORDS, refuses=ValueError, seal=_record_sealed),
    Target(
        "journal-mark",
        lambda data: journal_format.decode_mark(data, "mark"),
        (journal_format.encode_mark(JournalMark(1, 64), 7),),
        refuses=FileDamaged,
        seal=sealed_at_end,
    ),
    Target(
        "entry-log",
        _scan,
        (entrylog_format.encode_header(3) + b"".join(FRAMES), entrylog_format.encode_header(3)),
        refuses=ValueError,
    ),
    Target("ledger-map", _ledger_map, (_a_map(),), refuses=ValueError, seal=_map_sealed),
    Target(
        "index-header",
        _index_header,
        (index_format.encode_header(LedgerHeader(7, KEY, extents=((0, 3),))),),
        refuses=FileDamaged,
        seal=_page_sealed,
        use=lambda header: [*header.pages(0, 5000)],
    ),
    Target(
        "index-overflow",
        _index_header,
        (_overflowing(),),
        refuses=FileDamaged,
        use=lambda header: [*header.pages(0, 5000)],
    ),
    Target(
        "redo",
        _redo,
        (_made(redo.PATH, _made_redo),),
        refuses=ValueError,
        seal=_redo_sealed,
    ),
    Target(
        "tombstones",
        _tombstones,
        (_made(TOMBSTONES_PATH, _made_tombstones),),
        refuses=FileDamaged,
        use=lambda tombstones: tombstones.add([1 << 40]),
        seal=_two_part_sealed(Struct("<8sIIIQQI"), 16),
    ),
    Target("roll", _roll, (_made(ROLL_PATH, _made_roll),), refuses=ValueError),
    Target(
        "census",
        Census.decode,
        (
            Census(
                3, (Rolls(RollPlace(1, 2), RollPlace(3, 4)),), (JournalMark(1, 64),), (100,)
            ).encode(),
        ),
        refuses=ValueError,
        seal=sealed_at_end,
    ),
    Target("limbo", Limbo.decode, (LIMBO.encode(),), refuses=ValueError, seal=sealed_at_end),
    Target(
        "collected",
        _collected,
        (store_memory.encode(StoreMemory(5, 1, 0, 99, older=False)),),
        refuses=ValueError,
        seal=sealed_at_end,
    ),
)
