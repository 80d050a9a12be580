"""An HTTP service on a replicated state machine: FastAPI, and a `Replica` in each process.

    dlog up                                              # a cluster, in another terminal
    python -m examples.accounts_service --port 8001
    python -m examples.accounts_service --port 8002      # kill one: the other one serves
    curl -L -X POST 'http://127.0.0.1:8002/accounts/alice?amount=5' -H 'Idempotency-Key: me:1'
    curl http://127.0.0.1:8001/accounts/alice            # linearizable, from any process
    curl 'http://127.0.0.1:8001/accounts/alice?stale=1'  # at once, with its age

Only the leader accepts a POST; the others redirect to it (307, which repeats method and body). A
client without an answer repeats the request with the same key, at any process: it has one effect.
The key is CLIENT:NUMBER, and the number grows. For an opaque key, as a UUID, use
``request_id=(key, 0)``: the last 10,000 of them are remembered.
"""

import argparse
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, BinaryIO

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from dlog import Command, LogError, NotLeader, RequestId, StateMachine
from dlog.aio import Replica


class Accounts(StateMachine):
    def __init__(self) -> None:
        self.balances: dict[str, int] = {}

    def apply(self, command: Command) -> int | None:
        name, amount = json.loads(command.payload)
        balance = self.balances.get(name, 0) + int(amount)
        if balance < 0:
            return None  # refused: a result, not an error, which would stop every replica
        self.balances[name] = balance
        return balance

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.balances).encode())

    def restore(self, source: BinaryIO) -> None:
        self.balances = json.load(source)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the replica in the process that serves, once its event loop runs."""
    address, snapshots = app.state.address, app.state.snapshots
    async with Replica.open(
        "accounts", Accounts(), address=address, snapshots=snapshots
    ) as replica:
        app.state.replica = replica
        print(f"serves {address}", flush=True)
        yield


def replica_of(request: Request) -> Replica[Accounts]:
    replica: Replica[Accounts] = request.app.state.replica
    return replica


Accountant = Annotated[Replica[Accounts], Depends(replica_of)]
app = FastAPI(lifespan=lifespan)


@app.post("/accounts/{name}")
async def change(
    name: str, amount: int, replica: Accountant, idempotency_key: Annotated[str, Header()]
) -> dict[str, int]:
    client, _, number = idempotency_key.rpartition(":")
    try:
        request_id = RequestId(client, int(number))
    except ValueError as error:  # InvalidValue is one, too
        raise HTTPException(400, f"Idempotency-Key: {error}") from error
    balance = await replica.submit(json.dumps([name, amount]).encode(), request_id=request_id)
    if not isinstance(balance, int):
        raise HTTPException(409, "not enough money")
    return {"balance": balance}


@app.get("/accounts/{name}")
async def balance_of(name: str, replica: Accountant, *, stale: bool = False) -> dict[str, object]:
    balance = await replica.read(
        lambda accounts: accounts.balances.get(name, 0),
        consistency="local" if stale else "linearizable",
    )
    age_s = replica.age_s()
    return {"balance": balance, "age_s": age_s if age_s < float("inf") else None}


@app.get("/health")
async def health(replica: Accountant) -> dict[str, object]:
    return {"role": replica.role, "applied": replica.applied}


@app.exception_handler(NotLeader)
async def redirect(request: Request, error: NotLeader) -> Response:
    """The command was certainly not applied."""
    if not error.address:  # no leader is known here yet
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
    return RedirectResponse(f"{error.address}{request.url.path}?{request.url.query}", 307)


@app.exception_handler(LogError)
async def unavailable(_request: Request, error: LogError) -> Response:
    """It may have been applied: the client repeats it with the same key."""
    status = 503 if error.retryable or error.outcome_unknown else 500
    return JSONResponse({"detail": str(error)}, status, {"Retry-After": "1"})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument("--snapshots", help="a directory, which the processes may share")
    arguments = parser.parse_args()
    config = uvicorn.Config(app, port=arguments.port, log_level="warning")
    listener = config.bind_socket()
    app.state.snapshots = arguments.snapshots
    app.state.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
