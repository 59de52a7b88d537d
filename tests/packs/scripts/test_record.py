"""Who let a script run, and who took that back, is on record, wherever it was decided."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gatepost import ended

pytestmark = pytest.mark.requirement("P11")

CONFIG = """
resource = "http://127.0.0.1:8000/mcp"
mode = "development"
storage = { database = "sqlite:///gatepost.db" }
keys = { ring = "file:keyring.json" }
tools = { packs = ["scripts"] }
tenancy = { tenants = ["acme"] }
issuers = [{ issuer = "http://127.0.0.1:9/main", tenant = { value = "acme" } }]
"""
WHO = ("--tenant", "acme")
Gatepost = Callable[..., str]


@pytest.fixture
def gatepost(tmp_path: Path) -> Gatepost:
    """Commands of the operator's, with a key ring and one script that nobody has called yet."""

    def run(*words: str) -> str:
        code, says, complaints = ended(*words, cwd=tmp_path)
        assert code == 0, complaints
        return says

    (tmp_path / "gatepost.toml").write_text(CONFIG, encoding="utf-8")
    scripts = tmp_path / "workspaces" / "acme" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "mine.star").write_text("def main():\n  return 1\n", encoding="utf-8")
    run("keyring", "new", "keyring.json")
    return run


def on_record(gatepost: Gatepost) -> list[dict[str, Any]]:
    told = gatepost("audit", "export", *WHO)
    found = [json.loads(line).get("record") for line in told.splitlines()]
    return [one for one in found if one is not None]


def test_a_command_that_decides_about_a_script_is_on_record(gatepost: Gatepost) -> None:
    """Before it counts; a look at what there is, and a command that changes nothing, are not."""
    seen = gatepost("scripts", "approve", "mine", *WHO)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", seen)
    gatepost("scripts", "approve", "mine", "--digest", digest, *WHO)
    gatepost("scripts", "revoke", "mine", *WHO)
    gatepost("scripts", "list", *WHO)

    told = [(one["kind"], one["outcome"], one["tool"]) for one in on_record(gatepost)]
    assert told == [("approval", "approved", "mine.star"), ("approval", "revoked", "mine.star")]
    assert on_record(gatepost)[0]["approval"] == f"script:{digest}"
    gatepost("audit", "verify")
