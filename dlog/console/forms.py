"""What a browser sends in a form, and where it is."""

import asyncio
from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

from dlog.console.request_guard import BODY_BYTES_MAX, FIELDS_MAX

FORM_S: Final = 10.0
"""A form may take so long to come."""


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, each once. Raises `HTTPException` for one that is too large, or
    takes too long."""
    body = b""
    try:
        async with asyncio.timeout(FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise HTTPException(413, "That form is too large.")
    except TimeoutError:
        raise HTTPException(408, "That form did not come in time.") from None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, "That is no form of this console.") from None
    return {name: values[0] for name, values in fields.items()}


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else "an unknown address"
