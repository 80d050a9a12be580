"""A gateway for Kafka's clients in the process of a test: a Kafka without Docker, Java or a port to
choose. Needs the extra ``kafka``."""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from dlog.aio.namespace_connection import connect
from dlog.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    from dlog.kafka.gateway import Gateway


class kafka:  # noqa: N801 - used as a function that may stand after `with` and `async with`
    """Serve Kafka's clients on the cluster at *uri*; give the address that they call bootstrap.

        with dlog.testing.cluster() as cluster, dlog.testing.kafka(cluster.uri) as bootstrap:
            producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)

    ``async with`` serves on the running event loop: a client that blocks needs a thread then.
    *partitions*: of a topic that is created by its first use. Used once. Raises ImportError without
    the extra, and what a gateway raises."""

    def __init__(self, uri: str, *, partitions: int = 1) -> None:
        self._uri, self._partitions = uri, partitions
        self._stack = AsyncExitStack()
        self._thread: LoopThread | None = None

    async def __aenter__(self) -> str:
        from dlog.kafka.gateway import GatewayOptions, gateway
        from dlog.kafka.topic_requests import TopicDefaults

        defaults = TopicDefaults(partitions=self._partitions)
        try:
            # A session of its own, as a gateway has that is a process.
            ledgers = await connect(self._uri, alone=True)
            self._stack.push_async_callback(ledgers.close)
            serving = gateway(ledgers, GatewayOptions(port=0, topics=defaults))
            running: Gateway = await self._stack.enter_async_context(serving)
        except BaseException:
            await self._stack.aclose()
            raise
        return running.address

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def __enter__(self) -> str:
        self._thread = LoopThread.get()
        return self._thread.run(self.__aenter__())

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        self._thread.run(self.__aexit__(None, None, None))
