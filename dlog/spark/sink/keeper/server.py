"""The keeper's end of the socket: one task for each connection, one request at a time on it."""

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dlog.aio.write.sink import Staged
from dlog.receipts import Receipt
from dlog.settings import LogSettings, parse_settings
from dlog.spark.sink.keeper import frames
from dlog.spark.sink.keeper.held_logs import Batch, Holding
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.tasks import stop_accepting

WORKING_S: Final = 2.0
"""How often a caller hears that its request is still worked on."""
CONNECTIONS_MAX: Final = 512
CLAIMED_AT_ONCE_MAX: Final = 16

_PEER: Final = struct.Struct("3i")
_log = get_logger(__name__)


class KeeperServer:
    """Answers what `client` asks. What was asked for is done also if the caller goes away."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._server: asyncio.Server | None = None
        self._connected: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[frames.Header]] = set()

    async def listen(self, path: Path) -> None:
        """Take the place of whoever was there: the caller has the lock."""
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - no file is quicker
        self._server = await asyncio.start_unix_server(self._accept, path)
        path.chmod(0o600)  # noqa: ASYNC240 - as above

    async def close(self) -> None:
        """Take nothing more, and finish what was begun."""
        if self._server is not None:
            await stop_accepting(self._server)
        if self._working:
            await asyncio.wait(self._working)
        for task in self._connected:
            task.cancel()
        await asyncio.gather(*self._connected, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connected) >= CONNECTIONS_MAX or not _is_ours(writer):
            writer.close()
            return
        self._connected.add(task)
        try:
            while True:
                header, body = await _read(reader)
                await self._answer(header, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the caller is done, or gone
        except ValueError as error:
            _log.warning("request_refused", error=str(error))
        finally:
            self._connected.discard(task)
            writer.close()

    async def _answer(
        self, header: frames.Header, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        work = asyncio.create_task(self._outcome(header, body))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        while not (await asyncio.wait([work], timeout=WORKING_S))[0]:
            writer.writelines(frames.encode({"working": True}))
            await writer.drain()
        writer.writelines(frames.encode(work.result()))
        await writer.drain()

    async def _outcome(self, header: frames.Header, body: bytes) -> frames.Header:
        try:
            return {"result": await self._perform(header, body)}
        except LogError as error:
            return {"error": frames.error_facts(error)}
        except Exception as error:  # noqa: BLE001 - the caller waits for an answer
            _log.exception("request_failed", op=header.get("op"))
            return {"error": frames.error_facts(error)}

    async def _perform(self, header: frames.Header, body: bytes) -> object:
        match header["op"]:
            case "claim":
                return await self._claim(header)
            case "commit":
                done = await self._holding.commit(_batch(header, body))
                return [done.first_offset, done.end_offset, done.already]
            case "finish":
                for log in header["logs"]:
                    await self._holding.finish(log, header["run"])
                return None
            case op:
                raise ValueError(f"no operation {op!r}")

    async def _claim(self, header: frames.Header) -> object:
        at_once = asyncio.Semaphore(CLAIMED_AT_ONCE_MAX)
        settings = _settings(header)

        async def claim(log: str) -> dict[str, Any]:
            async with at_once:
                assignment = await self._holding.claim(
                    log, run=header["run"], create=header["create"], settings=settings
                )
                return frames.assignment_facts(assignment)

        assignments = await asyncio.gather(*map(claim, header["logs"]))
        if header["all"]:
            assignments += map(frames.assignment_facts, self._holding.assignments())
        return assignments


def _batch(header: frames.Header, body: bytes) -> Batch:
    inline = iter(frames.cut(body, [part for part in header["parts"] if isinstance(part, int)]))
    parts: list[bytes | Staged] = [
        next(inline) if isinstance(part, int) else frames.staged_of(part)
        for part in header["parts"]
    ]
    return Batch(
        log=header["log"],
        run=header["run"],
        receipt=Receipt(bytes.fromhex(header["origin"]), header["number"]),
        parts=parts,
        entry_bytes_max=header["entry_bytes_max"],
        create=header["create"],
        settings=_settings(header),
        final=header["final"],
    )


def _settings(header: Mapping[str, Any]) -> LogSettings | None:
    return None if header["settings"] is None else parse_settings(header["settings"])


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    header_bytes, body_bytes = frames.sizes(await reader.readexactly(frames.SIZES.size))
    header = frames.decode(await reader.readexactly(header_bytes))
    return header, await reader.readexactly(body_bytes)


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    """Return whether the caller is of our user, though the directory lets no other in."""
    peer = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    with suppress(OSError):
        found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return bool(_PEER.unpack(found)[1] == os.getuid())
    return False
