"""Whether a cluster does what its settings say: it is tried, with a certificate and without one."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

from ledger.errors import BadMessage
from ledger.ids import BookieIdentity
from ledger.security.certificates import Security
from ledger.security.settings import TlsSettings
from ledger.transport.handshake import (
    HANDSHAKE_BYTES_MAX,
    Hello,
    Purpose,
    Welcome,
    decode_answer,
    encode_hello,
    hello_to,
)

_TIMEOUT_S: Final = 10.0


class NotSecured(Exception):
    """A bookie lets in who does not belong, or not who does."""


async def check_secured(
    bookies: Mapping[str, tuple[str, BookieIdentity | None]], tls: TlsSettings
) -> str:
    """Return which version of TLS *bookies* speak, by name at their addresses, once each has
    welcomed a client of *tls*, and neither one without a certificate nor one without TLS.

    Raises `NotSecured`, and `OSError` if one is not reached."""
    security = Security.of(tls)
    assert security is not None, "there is TLS"
    without = ssl.create_default_context(cafile=tls.ca)
    without.check_hostname = False
    versions = set()
    for bookie, (address, meant) in bookies.items():
        hello = hello_to(Purpose.ASKS, bookie, meant)
        version = await _welcomed(hello, address, security.client())
        if not version:
            raise NotSecured(f"{bookie} does not welcome a client with TLS")
        if await _welcomed(hello, address, without):
            raise NotSecured(f"{bookie} welcomes a client without a certificate")
        if await _welcomed(hello, address, None):
            raise NotSecured(f"{bookie} welcomes a client without TLS")
        versions.add(version)
    return ", ".join(sorted(versions))


async def _welcomed(hello: Hello, address: str, context: ssl.SSLContext | None) -> str:
    """Return over what a client is welcomed; empty: it is not."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(_TIMEOUT_S):
        try:
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        except (ssl.SSLError, ConnectionResetError):
            return ""
        try:
            writer.write(encode_hello(hello))
            # With TLS 1.3 a client hears only now that it should have shown a certificate.
            answer = decode_answer(await reader.read(HANDSHAKE_BYTES_MAX))
        except (ssl.SSLError, ConnectionError, BadMessage):
            return ""
        finally:
            writer.close()
    if not isinstance(answer, Welcome):
        return ""
    secured = writer.get_extra_info("ssl_object")
    return "no TLS" if secured is None else str(secured.version())
