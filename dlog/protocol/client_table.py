"""The results of requests that were done, so that a repeated one has no second effect.

Part of the replicated state: every replica puts the same into it at the same offset, and it is in
each snapshot. So its bounds are constants, and never time: what the table forgets must be the
same everywhere, and no clock may let a request happen twice.

Bounds: results of the last `REQUESTS_MAX` numbers of each client; `CLIENTS_MAX` clients and
`TABLE_BYTES_MAX` bytes, beyond which the client is forgotten that was idle for the most records.
A number below those that are kept is refused, as it may have been done. A client that was forgotten
as a whole is taken for a new one.
"""

import json
import struct
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from dlog.errors import DamagedSnapshot, InvalidResult, text_of
from dlog.protocol.command import NUMBER_MAX, RequestId

CLIENTS_MAX: Final = 10_000
REQUESTS_MAX: Final = 64
RESULT_BYTES_MAX: Final = 64 * 1024
NESTING_MAX: Final = 100
INTEGER_BITS_MAX: Final = 8192
"""Of results."""
TABLE_BYTES_MAX: Final = 64 * 1024 * 1024
_PLAIN_INTEGER: Final = 2**63
_CLIENT_CHARGE: Final = 200
_RESULT_CHARGE: Final = 100
"""What Python needs beside the bytes themselves, about."""
_NONE: Final = -1

_COUNT: Final = struct.Struct("<I")
_CLIENT: Final = struct.Struct("<BqH")
_RESULT: Final = struct.Struct("<qI")
_BYTES: Final = b"b"
_JSON: Final = b"j"
NO_RESULT: Final = b"e"
"""Of a command whose result cannot be kept. A constant, as texts differ between replicas."""


def encode_result(result: object) -> bytes:
    """Return *result* as it is kept: bytes, or what JSON can say. Raises `InvalidResult`, and
    nothing else, whatever *result* is."""
    if type(result) is int and -_PLAIN_INTEGER < result < _PLAIN_INTEGER:
        return b"j%d" % result  # as JSON says it, at a tenth of the cost
    if isinstance(result, bytes):
        encoded = _BYTES + bytes(result)
    else:
        try:
            _check_shape(result)
            text = json.dumps(result, allow_nan=False, separators=(",", ":"))
            is_same = bool(json.loads(text) == result)
            encoded = _JSON + text.encode()
        except Exception as error:  # the methods of the application's own classes raise anything
            raise InvalidResult(_shown(result), text_of(error)) from error
        if not is_same:
            raise InvalidResult(_shown(result), "JSON would make something else of it")
    if len(encoded) > RESULT_BYTES_MAX:
        reason = f"it has {len(encoded)} bytes, of {RESULT_BYTES_MAX} at most"
        raise InvalidResult(_shown(result), reason)
    return encoded


def _check_shape(result: object) -> None:
    """Raises ValueError for what JSON can say or not by how Python was started: how deep it may
    recurse, and how many digits an integer may have."""
    level = [result]
    for _ in range(NESTING_MAX + 1):
        if any(isinstance(each, int) and each.bit_length() > INTEGER_BITS_MAX for each in level):
            raise ValueError(f"an integer has more than {INTEGER_BITS_MAX} bits")
        inner: list[object] = []
        for each in level:
            if isinstance(each, list):
                inner += each
            elif isinstance(each, dict):
                inner += each.values()
            if len(inner) > RESULT_BYTES_MAX:
                raise ValueError(f"it has more than {RESULT_BYTES_MAX} bytes")
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested more than {NESTING_MAX} times")


def _shown(result: object) -> str:
    try:
        return repr(result)
    except Exception:  # noqa: BLE001 - an integer of many digits, or a class of the application
        return f"of class {type(result).__name__}"


def decode_result(encoded: bytes) -> object:
    """Return what `encode_result` was given. Raises `InvalidResult` if it could not be kept, and
    `DamagedSnapshot`."""
    kind, rest = encoded[:1], encoded[1:]
    if kind == _BYTES:
        return rest
    if encoded == NO_RESULT:
        raise InvalidResult("", "the request was done before, and had none then")
    if kind != _JSON:
        raise DamagedSnapshot(f"there are no results of kind {kind!r}")
    try:
        return json.loads(rest)
    except ValueError as error:
        raise DamagedSnapshot(f"the result of a request: {error}") from error


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The request may have been done; its result is not kept any more."""

    floor: int
    """Numbers up to this one are refused."""


@dataclass(slots=True)
class _Client:
    floor: int = _NONE
    """The largest number whose result was forgotten."""
    numbers: list[int] = field(default_factory=list)
    """Of the requests whose results are kept, sorted; one at least."""
    results: list[bytes] = field(default_factory=list)
    """In the order of `numbers`. Of two lists most requests touch the ends only; a dict and a heap
    for each of many clients are not in the caches of a processor when they are needed."""


class ClientTable:
    """Used by `dlog.protocol.replicated_state`, in the order of the log."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        """The one that was active last comes last."""
        self.size_bytes = 0
        self.forgotten = 0
        """Clients, since this was made."""

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, request: RequestId) -> bytes | Forgotten | None:
        """Return the result of *request*, as `encode_result` made it; None: it was never done."""
        client = self._clients.get(request.client)
        if client is None:
            return None
        number, numbers = request.number, client.numbers
        if number > numbers[-1]:
            return None
        if number <= client.floor:
            return Forgotten(client.floor)
        at = bisect_left(numbers, number)
        return client.results[at] if numbers[at] == number else None

    def put(self, request: RequestId, result: bytes) -> None:
        """Keep the *result* of *request*, which `find` does not find."""
        name, number = request.client, request.number
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client()
            self.size_bytes += _client_charge(name)
        numbers, results = client.numbers, client.results
        assert number > client.floor, "forgotten requests are refused"
        if not numbers or number > numbers[-1]:
            numbers.append(number)
            results.append(result)
        else:
            at = bisect_left(numbers, number)
            assert numbers[at] != number, "a request is done once"
            numbers.insert(at, number)
            results.insert(at, result)
        if len(numbers) <= REQUESTS_MAX:
            self.size_bytes += _result_charge(result)
        else:
            client.floor = numbers.pop(0)
            self.size_bytes += len(result) - len(results.pop(0))
        self._clients.move_to_end(name)
        if self.size_bytes > TABLE_BYTES_MAX or len(self._clients) > CLIENTS_MAX:
            self._forget_oldest()

    def encode(self) -> Iterator[bytes]:
        """Yield the table as bytes, a piece for each client."""
        yield _COUNT.pack(len(self._clients))
        for name, client in self._clients.items():
            encoded = name.encode()
            parts = [_CLIENT.pack(len(encoded), client.floor, len(client.results)), encoded]
            for number, result in zip(client.numbers, client.results, strict=True):
                parts += (_RESULT.pack(number, len(result)), result)
            yield b"".join(parts)

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Return the table that *encoded* is all of. Raises `DamagedSnapshot`."""
        table = cls()
        try:
            [count] = _COUNT.unpack_from(encoded)
            at = _COUNT.size
            for _ in range(count):
                at = table._decode_client(encoded, at)
        except (struct.error, UnicodeDecodeError) as error:
            raise DamagedSnapshot(f"its table of clients: {error}") from error
        if at != len(encoded) or count > CLIENTS_MAX:
            raise DamagedSnapshot(f"its table of {count} clients has {len(encoded)} bytes")
        return table

    def _decode_client(self, encoded: bytes, at: int) -> int:
        name_bytes, floor, count = _CLIENT.unpack_from(encoded, at)
        at += _CLIENT.size
        name = encoded[at : at + name_bytes].decode()
        at += name_bytes
        client = _Client(floor)
        if not name or name in self._clients or not 1 <= count <= REQUESTS_MAX:
            raise DamagedSnapshot(f"its table of clients: {count} results of {name!r}")
        self._clients[name] = client
        self.size_bytes += _client_charge(name)
        results: dict[int, bytes] = {}
        for _ in range(count):
            number, size = _RESULT.unpack_from(encoded, at)
            at += _RESULT.size
            result = encoded[at : at + size]
            at += size
            if len(result) != size or size > RESULT_BYTES_MAX:
                raise DamagedSnapshot(f"its table of clients: a result of {size} bytes")
            if not floor < number <= NUMBER_MAX or number in results:
                raise DamagedSnapshot(f"its table of clients: request {number} of {name!r}")
            results[number] = result
            self.size_bytes += _result_charge(result)
        client.numbers = sorted(results)
        client.results = [results[number] for number in client.numbers]
        return at

    def _forget_oldest(self) -> None:
        clients = self._clients
        while len(clients) > CLIENTS_MAX or (
            self.size_bytes > TABLE_BYTES_MAX and len(clients) > 1
        ):
            name, client = clients.popitem(last=False)
            self.forgotten += 1
            self.size_bytes -= _client_charge(name) + sum(map(_result_charge, client.results))


def _client_charge(name: str) -> int:
    return len(name.encode()) + _CLIENT_CHARGE


def _result_charge(result: bytes) -> int:
    return len(result) + _RESULT_CHARGE
