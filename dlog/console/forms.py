"""What a browser sends in a form."""

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request

from dlog.console.guarding import BODY_BYTES_MAX, FIELDS_MAX


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form, each once. Raises `HTTPException` for one that is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(413, "That form is too large.")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, "That is no form of this console.") from None
    return {name: values[0] for name, values in fields.items()}
