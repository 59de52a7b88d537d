"""The audit log records who approved a script and who revoked it, wherever they decided."""

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gatepost.storage.backends import open_records
from tests.support.commands import completed, tenant_folder

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
TENANT_OPTIONS = ("--tenant", "acme")
Gatepost = Callable[..., str]


@pytest.fixture
def gatepost(tmp_path: Path) -> Gatepost:
    """Return the operator's commands, with a key ring and one script that was never called."""

    def run(*words: str) -> str:
        code, says, complaints = completed(*words, cwd=tmp_path)
        assert code == 0, complaints
        return says

    (tmp_path / "gatepost.toml").write_text(CONFIG, encoding="utf-8")
    scripts = tenant_folder(tmp_path / "workspaces", "acme") / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "mine.star").write_text("def main():\n  return 1\n", encoding="utf-8")
    run("keyring", "new", "keyring.json")
    return run


WEBHOOK = """
[approvals.webhook]
url = "http://127.0.0.1:9/hook"
secret = "file:hook"
[network]
allow_hosts = ["127.0.0.1:9"]
"""


async def unsent_messages(folder: Path) -> list[Any]:
    """Return the messages that the servers still have to send to the webhook, and remove them."""
    records = await open_records(f"sqlite:///{folder / 'gatepost.db'}")
    async with aclosing(records):
        messages = await records.lease_messages(time.time() + 1, time.time() + 9, "test", 9)
        for tenant, message in messages:
            assert await records.for_tenant(tenant).outbox.remove(message)
    return [json.loads(message.body) for _, message in messages]


def exported_records(gatepost: Gatepost) -> list[dict[str, Any]]:
    output = gatepost("audit", "export", *TENANT_OPTIONS)
    records = [json.loads(line).get("record") for line in output.splitlines()]
    return [record for record in records if record is not None]


def test_a_command_that_decides_about_a_script_is_recorded(gatepost: Gatepost) -> None:
    """The record is written first; reading commands and those without effect have none."""
    seen = gatepost("scripts", "approve", "mine", *TENANT_OPTIONS)
    (digest,) = re.findall(r"--digest ([0-9a-f]{64})", seen)
    gatepost("scripts", "approve", "mine", "--digest", digest, *TENANT_OPTIONS)
    gatepost("scripts", "revoke", "mine", *TENANT_OPTIONS)
    gatepost("scripts", "list", *TENANT_OPTIONS)

    recorded = [
        (record["kind"], record["outcome"], record["tool"]) for record in exported_records(gatepost)
    ]
    assert recorded == [("approval", "approved", "mine.star"), ("approval", "revoked", "mine.star")]
    assert exported_records(gatepost)[0]["approval"] == f"script:{digest}"
    gatepost("audit", "verify")


def test_a_decision_by_command_is_sent_to_the_webhook(gatepost: Gatepost, tmp_path: Path) -> None:
    """The command stores the message as for any other decision, and the servers send it."""
    with (tmp_path / "gatepost.toml").open("a", encoding="utf-8") as file:
        file.write(WEBHOOK)
    key = base64.b64encode(bytes(32)).decode()
    (tmp_path / "hook").write_text(f"whsec_{key}", encoding="utf-8")
    (tmp_path / "hook").chmod(0o600)
    (digest,) = re.findall(
        r"--digest ([0-9a-f]{64})", gatepost("scripts", "approve", "mine", *TENANT_OPTIONS)
    )
    for words in (("approve", "mine", "--digest", digest), ("revoke", "mine")):
        gatepost("scripts", *words, *TENANT_OPTIONS)
        messages = asyncio.run(unsent_messages(tmp_path))
        expected = "approved" if words[0] == "approve" else "withdrawn"
        assert [
            (message["type"], message["data"]["id"], message["data"]["state"])
            for message in messages
        ] == [("approval.decided", f"script:{digest}", expected)]
