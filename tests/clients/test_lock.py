"""The npm packages of the tests install from a lock that works on any machine."""

import json

from tests.support.programs import FOLDER


def test_the_npm_lock_carries_hashes_and_no_registry_address() -> None:
    """A lock file with a registry URL breaks on machines that cannot reach that registry."""
    text = (FOLDER / "package-lock.json").read_text(encoding="utf-8")
    packages = {name: each for name, each in json.loads(text)["packages"].items() if name}

    assert packages
    assert [name for name, each in packages.items() if "integrity" not in each] == []
    assert [name for name, each in packages.items() if "resolved" in each] == []
