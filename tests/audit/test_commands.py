"""`gatepost audit` as an operator types it, and a file in the hands of an auditor."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.secrets.keyring import KeyRing
from tests.audit.conftest import AuditLog, audit_log, verified_by_hand
from tests.support.commands import DeploymentFolder

TENANTS = ("acme", "globex")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentFolder]:
    """Yield a deployment with records of two tenants."""
    folder = tmp_path_factory.mktemp("deployment")
    deployment = DeploymentFolder(folder, f"sqlite:///{folder}/gatepost.db", TENANTS)

    async def fill() -> None:
        async with audit_log(f"sqlite:///{folder}/gatepost.db", ring_of(deployment)) as log:
            await log.fill()
            await add_hostile_record(log)

    asyncio.run(fill())
    yield deployment
    deployment.close()


def ring_of(deployment: DeploymentFolder) -> KeyRing:
    return KeyRing.load(f"file:{deployment.ring}")


async def add_hostile_record(log: AuditLog) -> None:
    """Add a record whose texts try to be something else where they are written."""
    await log.writer.events.note(
        "globex",
        "approval",
        outcome="rejected",
        tool="deploy",
        details={"rule": "a|b\\c=d\ne\u2028f"},
        private={"reason": "no|pipe \\ back=slash\r\nCEF:0|forged", "arguments": '{"a":"ü\u0001"}'},
    )


@pytest.fixture(scope="module")
def key(deployment: DeploymentFolder) -> Path:
    """Write the public keys to a file, as an auditor has them."""
    path = deployment.folder / "keys.pem"
    path.write_text(deployment.run("audit", "key").out)
    return path


@pytest.fixture(scope="module")
def exported(deployment: DeploymentFolder) -> Path:
    """Export globex's records to a file."""
    path = deployment.folder / "globex.jsonl"
    result = deployment.run("audit", "export", "--tenant", "globex", "--output", str(path))
    assert result.code == 0, result
    return path


def test_verify_prints_one_line_for_each_tenant(deployment: DeploymentFolder) -> None:
    """The exit code is 0."""
    result = deployment.run("audit", "verify")

    assert result.code == 0, result
    # How far the last checkpoint reaches depends on what was asked of this server before.
    whole = "acme: 12 records are valid, 1 to 12; signed checkpoints cover records up to 1"
    assert re.fullmatch(re.escape(whole) + r"[02]\.", result.out.splitlines()[0])
    assert result.out.splitlines()[1].startswith("globex: 9 records are valid")


def test_an_empty_export_prints_a_warning(deployment: DeploymentFolder) -> None:
    """The warning goes to standard error and suggests a similar tenant."""
    result = deployment.run("audit", "export", "--tenant", "acmee")

    assert (result.code, len(result.out.splitlines())) == (0, 1)
    assert result.err == "There are no audit records of tenant acmee. Did you mean acme?\n"
    assert deployment.run("audit", "export", "--tenant", "acme").err == ""


def test_verify_needs_only_the_public_key_for_a_file(
    deployment: DeploymentFolder, key: Path, exported: Path, tmp_path: Path
) -> None:
    """The command needs no configuration file."""
    result = deployment.run(
        "audit", "verify", str(exported), "--key", str(key), "--config", "/none"
    )

    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "globex: 9 records are valid, 1 to 9; signed checkpoints cover records up to 9.\n"
    )


def edited_lines(lines: list[str], at: int, before: str, after: str) -> list[str]:
    assert before in lines[at], lines[at]
    return [*lines[:at], lines[at].replace(before, after), *lines[at + 1 :]]


FILES = {
    # the file's lines: a title, records 1 to 8, a checkpoint, record 9, a checkpoint
    "a body": (lambda lines: edited_lines(lines, 3, "approved", "rejected"), 3),
    "a detail": (lambda lines: edited_lines(lines, 3, "alice", "mallo"), 3),
    "a hash": (lambda lines: edited_lines(lines, 3, '"hash":"', '"hash":"00'), 3),
    "the number": (lambda lines: edited_lines(lines, 3, '"number":3', '"number":4'), 3),
    "without one": (lambda lines: [*lines[:3], *lines[4:]], 3),
    "two changed over": (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 3),
    "one twice": (lambda lines: [*lines[:4], *lines[3:]], 3),
    "without details": (lambda lines: [*lines[:3], without_details(lines[3]), *lines[4:]], 3),
    "without the last checkpoint": (lambda lines: lines[:-1], 9),
    "without checkpoints": (lambda lines: [line for line in lines if "signature" not in line], 1),
    "without the first checkpoint": (lambda lines: [*lines[:9], *lines[10:]], 9),
    "a checkpoint of another": (lambda lines: [*lines[:-1], lines[9]], 8),
    "a signature": (lambda lines: edited_lines(lines, -1, '"signature":"', '"signature":"AAAA'), 9),
}


def without_details(line: str) -> str:
    read = json.loads(line)
    del read["details"]
    return json.dumps(read, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.requirement("AU6")
@pytest.mark.parametrize("name", FILES)
def test_verify_names_the_changed_record_of_a_file(
    deployment: DeploymentFolder, key: Path, exported: Path, tmp_path: Path, name: str
) -> None:
    """The public key is enough to find a change."""
    change, number = FILES[name]
    lines = exported.read_text().strip().split("\n")
    assert len(lines) == 12
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join(change(lines)))
    result = deployment.run("audit", "verify", str(bad), "--key", str(key))

    assert result.code == 1, result
    assert result.out.startswith(f"globex: record {number} is bad: "), result


@pytest.mark.requirement("AU2")
def test_a_file_truncated_at_a_checkpoint_is_found_by_a_later_checkpoint(
    deployment: DeploymentFolder, key: Path, exported: Path, tmp_path: Path
) -> None:
    """The truncated file verifies by itself; a stored checkpoint shows the missing records."""
    export = tmp_path / "kept.jsonl"
    export.write_text(deployment.run("audit", "checkpoint", "--tenant", "globex").out)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("\n".join(exported.read_text().strip().split("\n")[:10]))
    options = ["--key", str(key)]
    alone = deployment.run("audit", "verify", str(cut), *options)
    anchored = deployment.run("audit", "verify", str(cut), *options, "--checkpoint", str(export))
    whole = deployment.run("audit", "verify", "--checkpoint", str(export))

    assert (alone.code, anchored.code, whole.code) == (0, 1, 0)
    assert anchored.out.startswith("globex: record 9 is bad: it is missing")


@pytest.mark.requirement("AU6")
def test_a_file_verifies_with_the_script_in_the_documentation(key: Path, exported: Path) -> None:
    """The script in docs/audit.md uses no code of Gatepost."""
    done = verified_by_hand(exported, key)

    assert done.stderr == ""
    assert done.stdout == "9 records, 9 of them proven\n"


def test_record_bodies_have_the_same_hash_after_reencoding(exported: Path) -> None:
    """Bodies contain no floats and keep their order, so Python's `json` encodes them again."""
    previous = bytes(32)
    for line in exported.read_text().strip().split("\n"):
        read = json.loads(line)
        if "record" in read:
            body = json.dumps(read["record"], separators=(",", ":"), ensure_ascii=False)
            previous = hashlib.sha256(previous + body.encode()).digest()
            assert previous.hex() == read["hash"]
            for field, (salt, value) in read.get("details", {}).items():
                digest = hashlib.sha256(bytes.fromhex(salt) + value.encode()).hexdigest()
                assert read["record"]["commitments"][field] == digest


@pytest.mark.requirement("AU7")
def test_cef_writes_one_escaped_line_for_each_event(deployment: DeploymentFolder) -> None:
    """Bars and backslashes are escaped in the header, equals signs in the extension."""
    result = deployment.run("audit", "export", "--tenant", "globex", "--format", "cef")
    lines = result.out.splitlines()
    last = lines[-1]

    assert len(lines) == 9
    assert all(line.startswith("CEF:0|Gatepost|gatepost|") for line in lines)
    assert "|approval|approval rejected|4|rt=" in last
    assert r"reason=no|pipe \\ back\=slash\nCEF:0|forged" in last
    assert "cs1Label=tenant cs1=globex" in last
    assert "suid=alice" in lines[0]


@pytest.mark.requirement("AU7")
def test_otlp_writes_one_export_request_on_each_line(deployment: DeploymentFolder) -> None:
    """The format is that of OpenTelemetry's file exporter, with times in nanoseconds."""
    result = deployment.run("audit", "export", "--tenant", "globex", "--format", "otlp")
    (request,) = map(json.loads, result.out.strip().split("\n"))
    (resource,) = request["resourceLogs"]
    (scope,) = resource["scopeLogs"]
    records = scope["logRecords"]
    attributes = {attribute["key"]: attribute["value"] for attribute in records[0]["attributes"]}

    assert resource["resource"]["attributes"][0] == {
        "key": "service.name",
        "value": {"stringValue": "gatepost"},
    }
    assert len(records) == 9
    assert records[0]["timeUnixNano"] == str(int(records[0]["timeUnixNano"]))
    assert len(records[0]["timeUnixNano"]) == 19
    assert attributes["gatepost.audit.number"] == {"intValue": "1"}
    assert attributes["enduser.id"] == {"stringValue": "alice"}
    assert records[0]["eventName"] == "gatepost.audit.approval"


def test_an_export_can_begin_at_a_later_time(
    deployment: DeploymentFolder, key: Path, tmp_path: Path
) -> None:
    """It begins after the checkpoint before that time, so that the file verifies by itself."""
    path = tmp_path / "late.jsonl"
    command = ["audit", "export", "--tenant", "acme", "--since", "2027-01-15T08:00:09"]
    deployment.run(*command, "--output", str(path))
    result = deployment.run("audit", "verify", str(path), "--key", str(key))

    assert result.code == 0, result
    assert result.out.startswith("acme: 7 records are valid, 6 to 12")


REFUSED_COMMANDS = {
    "no export": (["verify", "FILE"], "it is no export"),
    "no key in it": (["verify", "FILE", "--key", "FILE"], "there is no key in it"),
    "no checkpoint": (["verify", "--checkpoint", "BAD"], "a checkpoint cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED_COMMANDS)
def test_unusable_files_and_options_are_reported_in_a_sentence(
    deployment: DeploymentFolder, tmp_path: Path, name: str
) -> None:
    """The command ends with exit code 1 and gives no verdict."""
    words, message = REFUSED_COMMANDS[name]
    files = {"FILE": b'{"a": 1}\n', "BAD": b'{"signature": 1}\n'}
    for word, content in files.items():
        (tmp_path / word).write_bytes(content)
    result = deployment.run(
        "audit", *(str(tmp_path / word) if word in files else word for word in words)
    )

    assert result.code == 1
    assert message in result.err
    assert "Traceback" not in result.err


def test_the_public_key_is_printed_as_pem_with_its_id(
    deployment: DeploymentFolder, key: Path
) -> None:
    """openssl reads the PEM of the Ed25519 key below the comment line."""
    name, *pem = key.read_text().splitlines()

    assert name == f"# key {ring_of(deployment).current.id}"
    assert pem[0] == "-----BEGIN PUBLIC KEY-----"
    assert len(base64.b64decode(pem[1])) == 44
