"""What the manifest says of the last unit of each origin never falls, and was tried at least."""

from tests.simulation.logs.oracle import LogHistory

_NAME = "receipts_never_fall"


def broken(history: LogHistory) -> str | None:
    for version, manifest in history.new(_NAME, history.manifests):
        for receipt in manifest.receipts:
            key = f"{_NAME} {receipt.origin.hex()}"
            before = history.checked.get(key, -1)
            if receipt.number < before:
                return f"version {version} has {receipt}, after unit {before}"
            history.checked[key] = receipt.number
            if (receipt.origin, receipt.number) not in history.tried:
                return f"version {version} has {receipt}, which nobody tried to commit"
        known = sum(key.startswith(f"{_NAME} ") for key in history.checked)
        if len(manifest.receipts.each) < known:
            return f"version {version} has forgotten an origin"
    return None
