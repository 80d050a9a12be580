"""What the first release wrote into the metadata store is read by this version."""

import json

from tests.kept.metadata import COOKIE, KEPT, MANIFEST, MARK, OPEN, RULES, WITH_PASSWORD, read


def test_values_of_the_first_release_say_what_they_said() -> None:
    kept = {name: bytes.fromhex(value) for name, value in json.loads(KEPT.read_text()).items()}
    assert read(kept) == {
        "ledger, open": OPEN,
        "ledger, closed, with a password": WITH_PASSWORD,
        "mark": MARK,
        "rules": RULES,
        "cookie": COOKIE,
        "manifest": MANIFEST,
    }
