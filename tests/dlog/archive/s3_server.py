"""Moto's S3 on a thread of this process, behind a proxy that refuses, breaks and tears requests."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from dlog.archive import object_store

BUCKET = "bucket"


class FaultyS3:
    """*rate*: how probably a request meets a fault."""

    def __init__(self, upstream: tuple[str, int], seed: int) -> None:
        self.rate = 0.0
        self.seen: Counter[str] = Counter()
        """Faults, and methods of requests, so far."""
        self.read: list[tuple[str, int]] = []
        """Path and bytes of each answer to a GET."""
        self._upstream, self._random = upstream, Random(seed)
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault(self, method: str) -> str:
        """Draw what happens to the next request; empty: nothing."""
        with self._lock:
            self.seen[method] += 1
            if self._random.random() >= self.rate:
                return ""
            fault = self._random.choice(("refused", "broken", "unanswered"))
            self.seen[fault] += 1
            return fault

    def forward(self, handler: "_Handler", body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection(*self._upstream, timeout=30)
        try:
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            data = answer.read()
            if handler.command == "GET" and answer.status in {200, 206}:
                self.read.append((handler.path.partition("?")[0], len(data)))
            return answer.status, answer.getheaders(), data
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyS3
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault(self.command)
        if fault == "broken":
            self.close_connection = True
            return
        if fault == "refused":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status, headers, answer = self.proxy.forward(self, body)
        if fault == "unanswered":
            self.close_connection = True
            return
        self.send_response_only(status)
        has_length = False
        for name, value in headers:
            if name.lower() not in {"transfer-encoding", "connection"}:
                has_length |= name.lower() == "content-length"
                self.send_header(name, value)
        if not has_length:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - names of http.server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of http.server
        """Say nothing."""


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch, *, seed: int) -> Iterator[FaultyS3]:
    """Serve an empty bucket, and let this process find it as any S3."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    proxy = FaultyS3((host, port), seed)
    for name, value in {
        "AWS_ENDPOINT": proxy.address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    object_store._store_at.cache_clear()
    connection = HTTPConnection(host, port)
    connection.request("PUT", f"/{BUCKET}")
    assert connection.getresponse().status == 200
    connection.close()
    try:
        yield proxy
    finally:
        object_store._store_at.cache_clear()
        proxy.close()
        server.stop()
