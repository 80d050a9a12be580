"""Calls that open a handle: what they return is awaited, or entered."""

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
H = TypeVar("H", bound=AbstractAsyncContextManager[Any])


class Opening(Coroutine[Any, Any, H], Generic[H]):
    """A handle that is not open yet.

    `await` opens it, and `async with` opens it, enters it and closes it at the end. A coroutine to
    those who make a task of it."""

    def __init__(self, opened: Coroutine[Any, Any, H]) -> None:
        self._opened = opened
        self._handle: H | None = None

    def __await__(self) -> Generator[Any, Any, H]:
        return self._opened.__await__()

    def send(self, value: Any) -> Any:
        return self._opened.send(value)

    def throw(self, *error: Any) -> Any:
        return self._opened.throw(*error)

    def close(self) -> None:
        self._opened.close()

    async def __aenter__(self) -> H:
        handle = self._handle = await self._opened
        entered: H = await handle.__aenter__()
        return entered

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._handle is not None, "it was entered"
        return await self._handle.__aexit__(exc_type, exc, traceback)


def opening(call: Callable[P, Coroutine[Any, Any, H]]) -> Callable[P, Opening[H]]:
    """Let what *call* opens be entered without awaiting it first."""

    @wraps(call)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[H]:
        return Opening(call(*args, **kwargs))

    return opened
