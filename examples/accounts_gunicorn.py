"""The service of `accounts_service` as a WSGI application, under gunicorn with several workers.

    dlog up                                               # a cluster, in another terminal
    python -m examples.accounts_gunicorn                  # runs gunicorn, with these settings
    curl -L -X POST 'http://127.0.0.1:8000/accounts/alice?amount=5' -H 'Idempotency-Key: me:1'
    curl http://127.0.0.1:8000/accounts/alice

gunicorn forks its workers, and nothing of dlog may be shared across a fork: a replica that was
opened before it (while modules are imported with ``--preload``, or in ``when_ready``) raises
`UsedAfterFork` in every worker. So each worker opens its own, which follows or leads, and has the
whole state in its memory. With a large state use one worker with many threads instead.

All workers accept from one socket, so a client cannot choose among them. Each therefore listens
on a port of its own as well, to which the others redirect what only the leader can do.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl, quote
from wsgiref.simple_server import WSGIServer, make_server

from dlog import LogError, NotLeader, Replica, RequestId
from examples.accounts_service import Accounts

bind, workers, worker_class, threads = "127.0.0.1:8000", 3, "gthread", 8  # settings of gunicorn
replica: Replica[Accounts]  # of this worker


class ThreadedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def post_worker_init(_worker: object) -> None:
    """A hook of gunicorn, in each worker after the fork: open the replica."""
    global replica  # noqa: PLW0603 - one for each worker
    server = make_server("127.0.0.1", 0, application, ThreadedServer)
    replica = Replica.open("accounts", Accounts(), address=f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()


def worker_exit(_server: object, _worker: object) -> None:
    """A hook of gunicorn, in each worker as it ends: hand leadership over."""
    replica.close()


Answer = tuple[str, dict[str, object], dict[str, str]]


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    status, body, headers = answer(environ)
    start_response(status, [("Content-Type", "application/json"), *headers.items()])
    return [json.dumps(body).encode()]


def answer(environ: dict[str, Any]) -> Answer:
    name, query = environ["PATH_INFO"].rpartition("/")[2], dict(parse_qsl(environ["QUERY_STRING"]))
    try:
        if environ["REQUEST_METHOD"] == "GET":
            balance = replica.read(
                lambda accounts: accounts.balances.get(name, 0),
                consistency="local" if "stale" in query else "linearizable",
            )
            return "200 OK", {"balance": balance, "role": replica.role}, {}
        client, _, number = environ.get("HTTP_IDEMPOTENCY_KEY", "").rpartition(":")
        command = json.dumps([name, int(query["amount"])]).encode()
        result = replica.submit(command, request_id=RequestId(client, int(number)))
    except NotLeader as error:  # certainly not applied
        if not error.address:
            return "503 Service Unavailable", {"detail": str(error)}, {"Retry-After": "1"}
        path = quote(environ["PATH_INFO"], encoding="latin-1")  # which came decoded
        url = f"{error.address}{path}?{environ['QUERY_STRING']}"
        return "307 Temporary Redirect", {"detail": str(error)}, {"Location": url}
    except (KeyError, ValueError) as error:
        return "400 Bad Request", {"detail": str(error)}, {}
    except LogError as error:  # it may have been applied: repeat it with the same key
        return "503 Service Unavailable", {"detail": str(error)}, {"Retry-After": "1"}
    if result is None:
        return "409 Conflict", {"detail": "not enough money"}, {}
    return "200 OK", {"balance": result}, {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _, options = parser.parse_known_args()  # those of gunicorn
    module = "examples.accounts_gunicorn"
    command = ("-m", "gunicorn", "-c", f"python:{module}", f"{module}:application", *options)
    os.execv(sys.executable, (sys.executable, *command))  # noqa: S606 - becomes gunicorn


if __name__ == "__main__":
    main()
