"""What `gatepost dev` prints: a dozen lines that show a call that works and one that does not."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from gatepost.commands.token import DEFAULT_STATE

CALL = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo",'
    '"arguments":{"text":"hello"},"_meta":{'
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientCapabilities":{}}}}'
)


def program() -> str:
    """How this very program is typed in the shell it was started from."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m gatepost"
    if shutil.which("gatepost"):
        return "gatepost"
    return shlex.quote(os.path.relpath(started))


def lines(resource: str, tools: list[str], state: Path) -> list[str]:
    """The lines before the ready line."""
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
        f"Gatepost for development, on this machine only: {origin}/ tells more, Ctrl+C ends it.",
        f"Tools: {shown}. Sign in as alice or dave (tenant acme) or bob (globex), no password.",
        "This call works:",
        f"  curl -s -w '\\n' {resource} -H \"Authorization: Bearer {token}\" {headers} -d '{CALL}'",
        "This one is refused with 401 and a challenge, because it brings no token:",
        f"  curl -i -w '\\n' {resource} {headers} -d '{CALL}'",
        f"The dashboard, where alice and dave decide what waits: {origin}/dashboard",
        "To connect Claude Code (other clients: paste the URL):",
        f"  claude mcp add --transport http gatepost {resource}",
    ]
