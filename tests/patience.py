"""What a test passes so that nothing gives up because the machine stood still for some seconds.

A test whose subject is a time-out passes its own; one whose subject is a default passes none.
"""

from functools import partial
from typing import Final

import leader
from ledger.client import ClientConfig
from ledger.transport.sockets import SocketTransport
from tests.waiting import PATIENCE_S, SESSION_S

PATIENT: Final = ClientConfig(
    session_timeout_s=SESSION_S, metadata_timeout_s=PATIENCE_S, bookie_timeout_s=PATIENCE_S
)
patient_campaign: Final = partial(leader.campaign, lease_s=PATIENCE_S)
"""`leader.campaign`, of candidates who may be silent for long and still lead."""
patient_transport: Final = partial(SocketTransport, timeout_s=PATIENCE_S)
