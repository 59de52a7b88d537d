"""Key pairs, key sets, minted tokens, and the commands around them."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from joserfc import jwt
from joserfc.jwk import KeySet

from gatepost_keys.__main__ import main
from gatepost_keys.generate import GenerationRefused, forget_old, new_key, read_keys, write_key
from gatepost_keys.mint import AccessTokenClaims, sign
from gatepost_keys.public_keys import ALGORITHMS, kid_of, public_set
from gatepost_keys.subject import TokenSubject
from tests.support.measuring import each

GRANT = AccessTokenClaims(
    issuer="http://127.0.0.1:8000/dev-as",
    person=TokenSubject(username="alice", tenant="acme"),
    client_id="test",
    resource="http://127.0.0.1:8000/mcp",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "private" / "keys"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def verified_token(token: str, document: dict[str, object], algorithm: str) -> jwt.Token:
    return jwt.decode(token, KeySet.import_key_set(document), algorithms=[algorithm])


@each("algorithm", sorted(set(ALGORITHMS) - {"EdDSA"}))
def test_the_public_set_verifies_tokens_of_the_key(algorithm: str) -> None:
    """The id is `dev-` and the thumbprint, and the set has no private member."""
    key = new_key(algorithm)
    document = public_set([key])
    token = verified_token(sign(GRANT.claims(now=0, lifetime_s=1), key), document, algorithm)

    assert key.kid == kid_of(key) == f"dev-{key.thumbprint()}"
    assert token.header == {"typ": "at+jwt", "alg": algorithm, "kid": key.kid}
    assert not {"d", "p", "q", "dp", "dq", "qi"} & set(document["keys"][0])
    assert (document["keys"][0]["alg"], document["keys"][0]["use"]) == (algorithm, "sig")


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS1", "ES256K", ""])
def test_creating_a_key_that_is_not_asymmetric_is_refused(algorithm: str) -> None:
    """The refusal lists the supported algorithms."""
    with pytest.raises(GenerationRefused, match="ES256"):
        new_key(algorithm)


def test_key_files_are_readable_by_their_owner_only(folder: Path) -> None:
    """The modes are 0600 in a folder of 0700, for any umask."""
    before = os.umask(0)
    try:
        path = write_key(new_key("ES256"), folder)
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    """The message says which command closes it."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)

    with pytest.raises(GenerationRefused, match="chmod 700"):
        write_key(new_key("ES256"), folder)


def test_a_key_that_others_may_read_is_refused(folder: Path) -> None:
    """It may have been copied, so a new key is needed."""
    write_key(new_key("ES256"), folder).chmod(0o644)

    with pytest.raises(GenerationRefused, match="chmod 600"):
        read_keys(folder)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"kty": "oct", "k": "AAAA", "alg": "ES256"}', "\x00"]
)
def test_a_file_that_is_no_key_is_refused(folder: Path, content: str) -> None:
    """The message names the file, without a traceback."""
    path = write_key(new_key("ES256"), folder)
    path.write_text(content, encoding="utf-8")

    with pytest.raises(GenerationRefused, match="not a private key"):
        read_keys(folder)


def test_a_folder_that_git_tracks_is_refused(tmp_path: Path) -> None:
    """A tracked key becomes a production key in some installation; an ignored folder is fine."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(GenerationRefused, match="git repository"):
        write_key(new_key("ES256"), tmp_path / "keys")
    exists = (tmp_path / "keys").exists()
    (tmp_path / ".gitignore").write_text("keys/\n", encoding="utf-8")

    assert not exists
    assert write_key(new_key("ES256"), tmp_path / "keys").exists()


def test_a_rotation_deletes_old_keys_but_never_the_newest(folder: Path) -> None:
    """It keeps the requested number, at least the key that signs."""
    written = [write_key(new_key("ES256"), folder) for _ in range(3)]

    assert forget_old(folder, 0) == written[:2]
    assert len(read_keys(folder)) == 1


@pytest.mark.parametrize("lifetime_s", [0, -1, 601])
def test_a_minted_token_lives_600_seconds_at_most(lifetime_s: int) -> None:
    """Lock 5 applies to `mint` and to the issuer."""
    with pytest.raises(GenerationRefused, match="600"):
        GRANT.claims(now=0, lifetime_s=lifetime_s)


def test_the_commands_make_rotate_publish_and_mint(folder: Path) -> None:
    """They run as the help shows; `mint` prints the token only."""
    at = f"--folder={folder}"
    first = run("new", at, "--algorithm=ES256").output.strip()
    second = run("rotate", at).stdout.strip()
    document = json.loads(run("publish", at).output)
    minted = run("mint", at, "--tenant=acme", "--subject=alice", "--scopes=files:write").output
    token = verified_token(minted.strip(), document, "ES256")

    assert [key["kid"] for key in document["keys"]] == [second, first]
    assert token.header["kid"] == second
    roles = ["approver", "admin", "operator"]
    assert (token.claims["org_id"], token.claims["roles"]) == ("acme", roles)
    assert (token.claims["scope"], token.claims["dev"]) == ("files:write", True)


REFUSED_COMMANDS = [
    (["publish"], 1, "python -m gatepost_keys new"),
    (["rotate"], 1, "python -m gatepost_keys new"),
    (["mint", "--tenant=acme"], 1, "python -m gatepost_keys new"),
    (["mint"], 2, "--tenant"),
    (["new", "--algorithm=HS256"], 2, "ES256"),
    (["serve"], 1, "--development"),
    (["serve", "--development", "--host=0.0.0.0"], 1, "loopback"),
    (["serve", "--development", "--resource=https://mcp.example.com"], 1, "loopback"),
    (["serve", "--development", "--port=99999"], 2, "65535"),
    (["frobnicate"], 2, "No such command"),
]


@pytest.mark.parametrize(("arguments", "code", "hint"), REFUSED_COMMANDS)
def test_wrong_use_of_the_key_commands_is_answered_with_a_sentence(
    arguments: list[str], code: int, hint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1 for refusals and 2 for wrong use; no traceback is printed."""
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    result = run(*arguments)

    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (code, True)
    assert hint in result.output


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--tenant=ACME", "lower-case"),
        ("--resource=https://mcp.example.com/mcp", "not on this machine"),
        ("--issuer=https://id.example.com", "not on this machine"),
        ("--lifetime=601", "600"),
    ],
)
def test_tokens_for_resources_on_other_machines_are_not_minted(
    folder: Path, option: str, hint: str
) -> None:
    """A development key must not sign a token that names a real resource."""
    run("new", f"--folder={folder}", "--algorithm=ES256")
    result = run("mint", f"--folder={folder}", "--tenant=acme", option)

    assert result.exit_code == 1
    assert hint in result.output


def test_a_production_marker_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock 3 applies to the command that starts only the issuer."""
    monkeypatch.setenv("APP_ENV", "production")
    result = run("serve", "--development")

    assert result.exit_code == 1
    assert "APP_ENV=production" in result.output


def test_a_key_folder_that_cannot_be_created_is_reported(folder: Path) -> None:
    """The message has the path and the reason."""
    folder.parent.mkdir(parents=True)
    folder.write_text("", encoding="utf-8")
    result = run("new", f"--folder={folder / 'keys'}", "--algorithm=ES256")

    assert result.exit_code == 1
    assert str(folder) in result.output
