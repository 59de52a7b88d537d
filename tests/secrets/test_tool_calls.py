"""Secrets by name, through both protocols and two servers, while an operator changes them."""

import base64
import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gatepost import CallContext, Pack, Secret
from tests.support.client import Protocol, ToolCaller
from tests.support.commands import DeploymentFolder
from tests.support.issuers import Idp
from tests.support.measuring import capture_logs, each, eventually
from tests.support.server import Server, issuer_settings, running_server
from tests.support.stores import Postgres

safe = Pack("safe")


def digest_of(value: str | None) -> str:
    """Return a digest that identifies a value without showing it."""
    return "nothing" if value is None else hashlib.sha256(value.encode()).hexdigest()[:16]


@safe.tool()
async def unlock(ctx: CallContext, token: Secret, literals: bool = True) -> dict[str, Any]:
    """Open the safe."""
    value = await ctx.secret(token, field="token", literals=literals)
    return {"proof": digest_of(value)}


@safe.tool()
async def blurt(ctx: CallContext, token: Secret) -> str:
    """Tell what the secret is, as no tool should."""
    return f"It is {await ctx.secret(token, field='token')}, you know."


@safe.tool()
async def stow(ctx: CallContext, name: str, token: Secret) -> dict[str, Any]:
    """Keep a token for the next time."""
    await ctx.sealed.put(f"safe_{name}", await ctx.secret(token, field="token"))
    return {"kept": name}


@safe.tool()
async def fetch(ctx: CallContext, name: str) -> dict[str, Any]:
    """Use what was kept."""
    return {"proof": digest_of(await ctx.sealed.get(f"safe_{name}"))}


@safe.tool()
async def discard(ctx: CallContext, name: str) -> dict[str, Any]:
    """Forget what was kept."""
    return {"was": await ctx.sealed.delete(f"safe_{name}")}


@safe.tool(read_only=True)
async def say(ctx: CallContext, text: str) -> str:
    """Answer it as text."""
    return text


pytestmark = pytest.mark.usefixtures("working_directory")

TENANTS = ("acme", "globex", "initech")
SECRET_VALUE = "hunter2/hunter2+\N{SNOWMAN}"
NUMBERS = count(1)
BOTH_PROTOCOLS: tuple[Protocol, ...] = ("mcp", "rest")


class ServersWithSecrets:
    """
    The servers on the same premises: two, or one where SQLite is.

    Two in one process would not do: to close a file there drops the other's locks on it (POSIX).
    """

    def __init__(self, deployment: DeploymentFolder, servers: list[Server]) -> None:
        self.deployment, self.servers = deployment, servers

    def agent(self, tenant: str = "acme", protocol: Protocol = "mcp", at: int = 0) -> ToolCaller:
        return ToolCaller(self.servers[at % len(self.servers)], tenant, protocol)

    def fresh(self) -> str:
        """Return a name that no other test has."""
        return f"KEY_{next(NUMBERS)}"

    def logs(self) -> str:
        return "".join(server.log() for server in self.servers)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def secret_servers(
    request: pytest.FixtureRequest,
    idp: Idp,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: Postgres,
    postgres_template: str,
) -> Iterator[ServersWithSecrets]:
    folder: Path = tmp_path_factory.mktemp("deployment")
    with ExitStack() as stack:
        database = f"sqlite:///{folder}/gatepost.db"
        if request.param == "postgresql":
            database = stack.enter_context(postgres_server.database(like=postgres_template))
        deployment = DeploymentFolder(folder, database, TENANTS, tools=[__name__])
        stack.callback(deployment.close)
        issuers, number = [issuer_settings(idp)], 2 if request.param == "postgresql" else 1
        servers = [
            stack.enter_context(running_server(idp, issuers, **deployment.settings))
            for _ in range(number)
        ]
        yield ServersWithSecrets(deployment, servers)


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_a_secret_is_used_by_its_name(
    secret_servers: ServersWithSecrets, protocol: Protocol
) -> None:
    """Set while the servers run, used at both at once, gone at both when it is deleted."""
    name = secret_servers.fresh()
    secret_servers.deployment.set(name, SECRET_VALUE, "acme")
    for at in (0, 1):
        reply = secret_servers.agent("acme", protocol, at).call("unlock", token=f"secret:{name}")
        assert reply.value == {"proof": digest_of(SECRET_VALUE)}

    done = secret_servers.deployment.run("secrets", "delete", name, "--tenant", "acme")
    assert done == (0, f"Secret {name} of tenant acme is deleted.\n", "")
    for at in (0, 1):
        reply = secret_servers.agent("acme", protocol, at).call("unlock", token=f"secret:{name}")
        assert f"There is no secret {name} here." in str(reply.failure)
        assert reply.kind in (None, "not_found")
    assert SECRET_VALUE not in secret_servers.logs()


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_a_user_name_is_used_by_its_name_and_answers_may_hold_it(
    secret_servers: ServersWithSecrets, protocol: Protocol
) -> None:
    """A short one, which would otherwise be taken out of every word; the password stays out."""
    user, password = secret_servers.fresh(), secret_servers.fresh()
    marked = ("--tenant", "acme", "--username")
    assert secret_servers.deployment.run("secrets", "set", user, *marked, typed="bob\n").code == 0
    value = f"{SECRET_VALUE} of {password}"
    secret_servers.deployment.set(password, value, "acme")
    agent = secret_servers.agent("acme", protocol)

    blurted = str(agent.call("blurt", token=f"secret:{user}").value)
    hidden = str(agent.call("blurt", token=f"secret:{password}").value)
    spoken = str(agent.call("say", text=f"bobsled bob:{value}").value)

    assert "It is bob, you know." in blurted
    assert value not in hidden
    assert f"bobsled bob:[REDACTED:{password}]" in spoken


def test_the_same_name_is_another_secret_in_another_tenant(
    secret_servers: ServersWithSecrets,
) -> None:
    """Each tenant has its own secret; the message lists only the caller's names."""
    name, near = secret_servers.fresh(), secret_servers.fresh()
    secret_servers.deployment.set(name, SECRET_VALUE + "a", "acme")
    secret_servers.deployment.set(near, SECRET_VALUE, "globex")
    mine, theirs = secret_servers.agent("acme"), secret_servers.agent("globex")

    assert mine.call("unlock", token=f"secret:{name}").value == {
        "proof": digest_of(SECRET_VALUE + "a")
    }
    refused = str(theirs.call("unlock", token=f"secret:{name}").failure)
    assert near in refused
    assert "--tenant globex" in refused
    assert "acme" not in refused

    secret_servers.deployment.set(name, SECRET_VALUE + "g", "globex")
    assert mine.call("unlock", token=f"secret:{name}").value == {
        "proof": digest_of(SECRET_VALUE + "a")
    }
    assert theirs.call("unlock", token=f"secret:{name}").value == {
        "proof": digest_of(SECRET_VALUE + "g")
    }


REFUSED_REFERENCES = {
    # reference: what is told
    "secret:": "That is no name of a secret",
    "secret:lower_case": "That is no name of a secret",
    "secret:safe_inner": "That is no name of a secret",
    "secret:A B": "That is no name of a secret",
    "secret:HUNTER2\n": "That is no name of a secret",
    "secret:UNKNOWN_NAME": "gatepost secrets set UNKNOWN_NAME --tenant acme",
}


@each("protocol", BOTH_PROTOCOLS)
@each(("reference", "says"), REFUSED_REFERENCES.items(), ids=map(repr, REFUSED_REFERENCES))
def test_an_unknown_secret_reference_is_explained(
    secret_servers: ServersWithSecrets, protocol: Protocol, reference: str, says: str
) -> None:
    """The failure tells the model what would work and does not repeat an invalid name."""
    reply = secret_servers.agent("acme", protocol).call("unlock", token=reference)

    assert says in str(reply.failure)
    assert "lower_case" not in str(reply.failure)


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_a_literal_is_accepted_only_where_literals_are_allowed(
    secret_servers: ServersWithSecrets, protocol: Protocol
) -> None:
    """The refusal does not repeat it."""
    agent = secret_servers.agent("acme", protocol)

    assert agent.call("unlock", token=SECRET_VALUE).value == {"proof": digest_of(SECRET_VALUE)}
    refused = agent.call("unlock", token=SECRET_VALUE, literals=False).failure
    assert "`token` takes no literal value here; name a secret" in str(refused)
    assert SECRET_VALUE not in str(refused)


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_a_secret_that_a_pack_stores_is_available_at_every_server(
    secret_servers: ServersWithSecrets, protocol: Protocol
) -> None:
    """It is stored at one, used at the other, unknown to another tenant, and deleted for all."""
    name = secret_servers.fresh().lower()
    here, remote = (
        secret_servers.agent("acme", protocol),
        secret_servers.agent("acme", protocol, at=1),
    )
    assert here.call("stow", name=name, token="abc").value == {"kept": name}

    assert remote.call("fetch", name=name).value == {"proof": digest_of("abc")}
    other = secret_servers.agent("globex", protocol).call("fetch", name=name)
    assert other.value == {"proof": digest_of(None)}
    assert "no name of a secret" in str(here.call("unlock", token=f"secret:safe_{name}").failure)
    listed = secret_servers.deployment.run("secrets", "list", "--tenant", "acme")
    assert f"safe_{name}" not in listed.out

    assert remote.call("discard", name=name).value == {"was": True}
    assert here.call("fetch", name=name).value == {"proof": digest_of(None)}
    assert here.call("discard", name=name).value == {"was": False}


def test_the_use_of_a_secret_is_logged_with_its_name(secret_servers: ServersWithSecrets) -> None:
    """The log line has the name of the secret and never its value."""
    name = secret_servers.fresh()
    secret_servers.deployment.set(name, SECRET_VALUE, "acme")
    agent, server = secret_servers.agent("acme"), secret_servers.servers[0]
    before = len(server.log())
    with capture_logs() as events:
        agent.call("unlock", token=f"secret:{name}")
        agent.call("unlock", token=SECRET_VALUE)
        agent.call("unlock", token=[SECRET_VALUE])

    eventually(lambda: server.log()[before:].count("/mcp") >= 3, within=20)
    used = [event for event in events if event["event"] == "secret_used"]
    assert [(event["tenant"], event["secret"]) for event in used] == [("acme", name)]
    assert SECRET_VALUE not in secret_servers.logs() + str(events)


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_no_answer_shows_a_secret(secret_servers: ServersWithSecrets, protocol: Protocol) -> None:
    """A new one is known before its tool has it, and a replaced one stays out of answers."""
    name = secret_servers.fresh()
    agent, other = (secret_servers.agent("acme", protocol, at) for at in (0, 1))
    secret_servers.deployment.set(name, f"first {SECRET_VALUE} {name}", "acme")
    reply = agent.call("blurt", token=f"secret:{name}")
    assert reply.text == f"It is [REDACTED:{name}], you know."

    secret_servers.deployment.set(name, f"second {SECRET_VALUE} {name}", "acme")
    reply = agent.call("blurt", token=f"secret:{name}")
    assert reply.text == f"It is [REDACTED:{name}], you know."
    assert SECRET_VALUE not in agent.call("say", text=f"first {SECRET_VALUE} {name}").text
    literal = other.call("blurt", token=f"third {SECRET_VALUE} {name}")
    assert literal.text == "It is [REDACTED:TOKEN], you know."
    assert SECRET_VALUE not in secret_servers.logs()


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_every_server_soon_redacts_a_new_secret(
    secret_servers: ServersWithSecrets, protocol: Protocol
) -> None:
    """No call has to use it first; another tenant's answers still show the text."""
    name = secret_servers.fresh()
    value = f"nobody said {name.lower()} yet"
    workers = [secret_servers.agent("acme", protocol, at) for at in (0, 1)]
    for agent in workers:
        assert agent.call("say", text=value).text == value
    secret_servers.deployment.set(name, value, "acme")

    for agent in workers:
        eventually(lambda by=agent: by.call("say", text=value).text != value, within=10)
        assert agent.call("say", text=value).text == f"[REDACTED:{name}]"
    assert secret_servers.agent("globex", protocol).call("say", text=value).text == value


def test_answers_never_contain_the_servers_own_secrets(secret_servers: ServersWithSecrets) -> None:
    """The keys of its ring, and the address of its database where that has a password."""
    ring = json.loads(secret_servers.deployment.ring.read_text())
    key = ring["keys"][-1]["secret"]
    agent = secret_servers.agent("globex")
    for server in secret_servers.servers:
        server.services.keyring.reread()
    eventually(lambda: key not in agent.call("say", text=key).text, within=10)
    assert agent.call("say", text=f"a {key} b").text.startswith("a [REDACTED:GATEPOST")

    url = secret_servers.deployment.settings["storage"]["database"]
    if "postgresql" in url:
        assert "REDACTED:GATEPOST" in agent.call("say", text=url).text


def encoded_forms(value: str) -> list[bytes]:
    """Return the encodings of a value that a dump or a file may contain."""
    plain = value.encode()
    return [plain, plain.hex().encode(), base64.b64encode(plain), base64.urlsafe_b64encode(plain)]


def test_stored_secrets_do_not_contain_their_value(
    secret_servers: ServersWithSecrets, postgres_server: Postgres
) -> None:
    """Neither SQLite's files nor a dump of PostgreSQL has it in a simple encoding."""
    name, value = secret_servers.fresh(), f"at-rest-{SECRET_VALUE}"
    secret_servers.deployment.set(name, value, "acme")
    url = secret_servers.deployment.settings["storage"]["database"]
    if url.startswith("sqlite"):
        # Not in this process, whose locks on the file would end with the reading.
        files = sorted(secret_servers.deployment.folder.glob("gatepost.db*"))
        content = subprocess.run(
            ["cat", *files], check=True, capture_output=True, timeout=30
        ).stdout
    else:
        dump = "SELECT key, encode(value, 'hex'), encode(value, 'escape') FROM entries"
        text = postgres_server.sql(dump, urlsplit(url).path[1:])
        content = text.encode()

    assert name.encode() in content
    assert not [form for form in encoded_forms(value) if form in content]


@pytest.mark.parametrize("protocol", BOTH_PROTOCOLS)
def test_a_secret_whose_key_was_dropped_fails_with_its_name(
    secret_servers: ServersWithSecrets, protocol: Protocol
) -> None:
    """The tool's failure says that no other argument helps; the list says which key is missing."""
    name = secret_servers.fresh()
    secret_servers.deployment.set(name, SECRET_VALUE, "acme")
    listed = secret_servers.deployment.run("secrets", "list", "--tenant", "acme").out
    (key,) = [line.split()[3] for line in listed.splitlines() if line.startswith(f"{name} ")]
    for _ in range(2):
        secret_servers.deployment.rotate(keep=1)
    for server in secret_servers.servers:
        server.services.keyring.reread()

    reply = secret_servers.agent("acme", protocol).call("unlock", token=f"secret:{name}")

    assert f"The secret {name} is kept here and cannot be opened any more." in str(reply.failure)
    assert reply.kind in (None, "internal")
    code, listed, _ = secret_servers.deployment.run("secrets", "list", "--tenant", "acme")
    (line,) = [line for line in listed.splitlines() if line.startswith(f"{name} ")]
    assert line.endswith(f"cannot be decrypted: the key {key} that encrypted it is not in the ring")
    assert code == 0


def test_rotations_of_the_ring_keep_secrets(secret_servers: ServersWithSecrets) -> None:
    """While servers run: the old ones open, new ones too, and sealed anew all need one key."""
    old, new = secret_servers.fresh(), secret_servers.fresh()
    secret_servers.deployment.set(old, SECRET_VALUE, "initech")
    key = secret_servers.deployment.rotate()
    secret_servers.deployment.set(new, SECRET_VALUE + "2", "initech")
    agent = secret_servers.agent("initech", at=1)

    assert agent.call("unlock", token=f"secret:{new}").value == {
        "proof": digest_of(SECRET_VALUE + "2")
    }
    assert agent.call("unlock", token=f"secret:{old}").value == {"proof": digest_of(SECRET_VALUE)}
    secret_servers.deployment.run("secrets", "rotate")
    listed = secret_servers.deployment.run("secrets", "list", "--tenant", "initech").out
    keys = {line.split()[3] for line in listed.splitlines()[1:]}
    assert keys == {key}
    assert agent.call("unlock", token=f"secret:{old}").value == {"proof": digest_of(SECRET_VALUE)}
