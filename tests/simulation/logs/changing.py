"""Processes that change settings of logs, and reset and forget consumers, beside who uses them."""

from dlog.aio.admin import delete_consumer, reset_consumer, update_settings
from dlog.errors import ConsumerBusy, InvalidPosition, NoSuchConsumer, NoSuchLog, Trimmed
from ledger.errors import LogError
from tests.simulation.logs.process import Process
from tests.simulation.logs.requests import Reset, Update

CHANGES: tuple[dict[str, object], ...] = (
    {"roll_records": 2},
    {"roll_records": 0, "roll_bytes": 0},
    {"codec": "zstd"},
    {"codec": "none"},
    {"digest": "crc32c"},
    {"digest": "hmac_sha256"},
    {"retention_bytes": 500},
    {"retention_bytes": 0, "retention_age_s": 0.0},
    {"retention_age_s": 0.2},
    {"retention_waits_for_consumers": True},
    {"retention_waits_for_consumers": False},
    {"degraded_writes": False},
    {"degraded_writes": True},
)


async def update(process: Process, name: str) -> None:
    """Change some setting of the log."""
    changes = process.world.scheduler.random.choice(CHANGES)
    process.note(f"changes {name} to {changes}")
    process.world.logs.requests.updates.append(Update(process.request(name), changes))
    try:
        await update_settings(name, changes, client=process.ledgers)
        process.mark("settings_changed")
    except LogError as error:
        _passing(process, error)


async def reset(process: Process, name: str, consumer: str) -> None:
    """Let the consumer begin again somewhere in the log."""
    logs = process.world.logs
    history = logs.current.get(name)
    offset = 0 if history is None else process.world.scheduler.random.randrange(history.end + 1)
    process.note(f"resets {consumer} of {name} to {offset}")
    logs.requests.resets.append(Reset(process.request(name), consumer, offset))
    try:
        await reset_consumer(consumer, name, offset, client=process.ledgers)
        process.mark("consumer_reset")
    except LogError as error:
        _passing(process, error)


async def forget(process: Process, name: str, consumer: str) -> None:
    """Delete the consumer, unless somebody has it for itself."""
    process.note(f"forgets {consumer} of {name}")
    process.world.logs.requests.forgotten[name, consumer] = None
    try:
        await delete_consumer(consumer, name, client=process.ledgers)
        process.mark("consumer_deleted")
    except LogError as error:
        _passing(process, error)


def _passing(process: Process, error: LogError) -> None:
    gone = isinstance(error, NoSuchLog | NoSuchConsumer | ConsumerBusy | Trimmed | InvalidPosition)
    if not gone and not error.retryable and not error.outcome_unknown:
        raise error
    process.note(str(error))
    process.mark(f"admin_{type(error).__name__}")
