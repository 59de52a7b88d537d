"""The lines that `gatepost dev` prints, with a call that works and one that is refused."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from gatepost.cli.token import DEFAULT_STATE

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


def lines(resource: str, tools: list[str], state: Path) -> list[str]:
    """Return the lines before the ready line."""
    origin = resource.removesuffix("/mcp")
    where = "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"
    token = f"$({program()} token --tenant acme{where})"
    headers = (
        "-H 'Content-Type: application/json' "
        "-H 'Accept: application/json, text/event-stream' "
        "-H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: echo'"
    )
    shown = ", ".join(tools[:8]) + (", …" if len(tools) > 8 else "")
    return [
        f"Gatepost development server, on this machine only: see {origin}/, stop with Ctrl+C.",
        f"Tools: {shown}. Sign in as alice or dave (tenant acme) or bob (globex); no password.",
        "This call works:",
        f"  curl -s -w '\\n' {resource} -H \"Authorization: Bearer {token}\" {headers} -d '{CALL}'",
        "This call has no token and is refused with 401 and a challenge:",
        f"  curl -i -w '\\n' {resource} {headers} -d '{CALL}'",
        f"Dashboard, where alice and dave approve calls: {origin}/dashboard",
        "Connect Claude Code (in other clients, paste the URL):",
        f"  claude mcp add --transport http gatepost {resource}",
    ]
