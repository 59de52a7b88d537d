"""The lines that `gatepost dev` prints, with a call that works and one that is refused."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from gatepost.config.settings import Config
from gatepost.dev.imitating import (
    APP_CLIENT,
    MACHINE_CLIENT,
    SECRET_FILES,
    client_id,
    sign_in_scopes,
    tables,
)
from gatepost.dev.token_command import DEFAULT_STATE
from gatepost_keys.imitation import DEVELOPMENT
from gatepost_keys.imitation.facts import api_of
from gatepost_keys.issuer.settings import IssuerSettings

CALL = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo",'
    '"arguments":{"text":"hello"},"_meta":{'
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientCapabilities":{}}}}'
)


def program() -> str:
    """Return the command that starts this program in the current shell."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m gatepost"
    if shutil.which("gatepost"):
        return "gatepost"
    return shlex.quote(os.path.relpath(started))


def lines(config: Config, issuer: IssuerSettings, tools: list[str], state: Path) -> list[str]:
    """Return the lines before the ready line."""
    resource = config.resource
    origin = resource.removesuffix("/mcp")
    option = "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"
    token = f"$({program()} token --tenant acme{option})"
    headers = (
        "-H 'Content-Type: application/json' "
        "-H 'Accept: application/json, text/event-stream' "
        "-H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: echo'"
    )
    names = ", ".join(tools[:8]) + (", …" if len(tools) > 8 else "")
    return [
        f"Gatepost development server, on this machine only: see {origin}/, stop with Ctrl+C.",
        f"Tools: {names}. Sign in as {people_of(issuer)}; no password.",
        "This call works:",
        f"  curl -s -w '\\n' {resource} -H \"Authorization: Bearer {token}\" {headers} -d '{CALL}'",
        "This call has no token and is refused with 401 and a challenge:",
        f"  curl -i -w '\\n' {resource} {headers} -d '{CALL}'",
        f"Dashboard, where alice and dave approve calls: {origin}/dashboard",
        "Connect Claude Code (in other clients, paste the URL):",
        f"  claude mcp add --transport http gatepost {resource}",
        *imitated(config, issuer, state),
    ]


def people_of(issuer: IssuerSettings) -> str:
    """Return who can sign in, tenant by tenant."""
    described: list[str] = []
    for tenant in issuer.tenants:
        names = " or ".join(person.username for person in issuer.people if person.tenant == tenant)
        described.append(f"{names} ({'tenant ' if not described else ''}{tenant})")
    return " or ".join(described)


def imitated(config: Config, issuer: IssuerSettings, state: Path) -> list[str]:
    """Return the lines about the imitated provider: its clients, and the tables that fit it."""
    shape = issuer.imitation
    if shape == DEVELOPMENT:
        return []
    scopes = " ".join(sign_in_scopes(shape, api_of(shape, config.resource)))
    secret = (
        "no secret" if shape.public_clients else f"secret in {state / SECRET_FILES[APP_CLIENT]}"
    )
    facts = [
        f"The issuer imitates {shape.name}. Its tokens are for development all the same.",
        f"Client id for your MCP client: {client_id(shape, APP_CLIENT)} ({secret})",
    ]
    if shape.machine:
        facts.append(
            f"Client id for programs: {client_id(shape, MACHINE_CLIENT)} "
            f"(secret in {state / SECRET_FILES[MACHINE_CLIENT]}), "
            f"at {issuer.origin}{issuer.path('token')}"
        )
    if scopes:
        facts.append(f"Every client has to ask for these scopes: {scopes}")
    table = [f"  {line}".rstrip() for line in tables(config)]
    return [*facts, "A configuration for this provider looks like this:", *table]
