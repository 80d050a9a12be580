"""How both leaders of the demo are elected, over connections secured as the environment says."""

from dlog.config import load
from dlog.demo import LEASE_S, LOG, SESSION_TIMEOUT_S
from leader import campaign
from leader.term import Term
from ledger.metastore import open_store
from ledger.security.certificates import Security


async def elected(uri: str, *, candidate: str) -> Term:
    """Stand for election until elected."""
    tls = load().secured
    store = await open_store(uri, session_timeout_s=SESSION_TIMEOUT_S, tls=tls)
    security = Security.of(tls)
    return await campaign(store, LOG, candidate=candidate, lease_s=LEASE_S, security=security)
