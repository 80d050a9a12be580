"""Where a connection comes from, as limits on strangers count it. Pure."""

from ipaddress import IPv6Address, ip_address
from typing import Final

NETWORK_BITS: Final = 64
"""Of an IPv6 address: who has one has all that begin like it."""


def source_of(peername: object) -> str:
    """Return what all connections of one host have in common; *peername* is what a socket says of
    its other end."""
    host = str(peername[0]) if isinstance(peername, tuple) and peername else str(peername)
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        network = int(address) >> NETWORK_BITS << NETWORK_BITS
        return f"{IPv6Address(network)}/{NETWORK_BITS}"
    return str(address)
