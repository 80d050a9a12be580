"""Why a connection came to nothing, in words that say what to look at. Pure."""

import ssl
from typing import Final

_OURS: Final = {
    "CERTIFICATE_REQUIRED": "it wants a certificate, and got none",
    "UNKNOWN_CA": "it does not know the authority of our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "our certificate is not one for clients",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "ACCESS_DENIED": "it does not accept our certificate",
}
"""Alerts of the other end, by the end of their name."""
_PLAIN: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


def why_failed(error: BaseException) -> str:
    """Return why a connection, or the handshake of TLS on it, ended with *error*."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed here: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        for alert, reason in _OURS.items():
            if name.endswith(alert):
                return reason
        if name.endswith(_PLAIN):
            return "it does not speak TLS; is DLOG_TLS set there?"
        return f"TLS failed: {name.lower().replace('_', ' ') or type(error).__name__}"
    return str(error) or type(error).__name__
