"""The options by which every long-running command serves its metrics, once."""

from typing import Annotated, Final

import typer

PORT_HELP: Final = (
    "Serve /metrics, /healthz and /readyz on this port; 0: any free one, which is printed. "
    "Default: none."
)
HOST_HELP: Final = "Address to serve metrics on; who reaches it can read them."
PORT_VARIABLE: Final = "DLOG_METRICS"
HOST_DEFAULT: Final = "127.0.0.1"
PORT_MAX: Final = 65535

MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help=PORT_HELP,
        envvar=PORT_VARIABLE,
        min=0,
        max=PORT_MAX,
        show_default=False,
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help=HOST_HELP)]
