"""Show a person who opens the server's address what it is, and which URL to paste where."""

import base64
import hashlib
import html
from importlib import resources

from gatepost.config.settings import Config
from gatepost_authz.protected_resource import Resource, SiblingPaths

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem;
  color: #1d2733; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.1rem; margin-top: 2rem }
code, pre { font: 14px/1.5 ui-monospace, monospace; background: #f1f4f7; border-radius: 4px }
code { padding: .1rem .3rem } pre { padding: .7rem 1rem; overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { color: #dbe3ea; background: #12181f } code, pre { background: #1e2731 }
}
"""

# No script, no picture, no frame, so nothing here can act for a user. The style is allowed by
# its digest, so that no other style applies (CSP level 3, section 8.3).
POLICY = (
    "default-src 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
).encode()
PAGE_HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)

ICON = resources.files("gatepost.http").joinpath("favicon.ico").read_bytes()
"""The icon that browsers show beside the address: a PNG of 32 pixels in an ICO file."""


DASHBOARD = (
    "<p>People see what agents do, and approve calls, on the dashboard: "
    "<code>{base}/dashboard</code>.</p>"
)


def start_page(config: Config, *, dashboard: bool) -> bytes:
    """Return the page at `/` in UTF-8; *dashboard* is whether there is a dashboard to name."""
    resource = Resource(config.resource)
    url = html.escape(config.resource)
    base = html.escape(SiblingPaths(resource).base)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Gatepost</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        "<h1>Gatepost: tools behind an OAuth gate</h1>",
        "<p>This is a remote MCP server. An agent or an MCP client connects to it, signs its user "
        "in at the identity provider, and may then use the tools that this user may use.</p>",
        "<h2>The address to paste into a client</h2>",
        f"<pre>{url}</pre>",
    ]
    if resource.templated:
        parts.append("<p>Put your organisation's id in place of <code>{tenant}</code>.</p>")
    if config.development:
        other_url = html.escape(_other_host(config.resource))
        parts.append(
            f"<p>Paste it exactly like this: <code>{other_url}</code> reaches the same server, but "
            "a token names one address, and clients compare it letter by letter.</p>"
        )
    parts += [
        "<h2>How to connect</h2>",
        f"<p>Claude Code:</p><pre>claude mcp add --transport http gatepost {url}</pre>",
        "<p>VS Code: run <em>MCP: Add Server</em>, choose <em>HTTP</em>, paste the address.</p>",
        "<p>MCP Inspector: <em>Add Servers</em>, <em>+ Add manually</em>, transport "
        "<em>streamable-http</em>, paste the address, turn on the switch.</p>",
        "<h2>What else answers here</h2>",
        *([DASHBOARD.format(base=base)] if dashboard else []),
        "<p><code>/health</code> says that the server runs, <code>/readyz</code> what it could "
        "learn of its identity providers. Agents that speak plain REST list tools at "
        f"<code>{base}/tools</code>; "
        "<code>/openapi.json</code> "
        "describes that. Everything else needs an access token.</p>",
        "</body></html>",
    ]
    return "\n".join(parts).encode()


def _other_host(url: str) -> str:
    if "//localhost" in url:
        return url.replace("//localhost", "//127.0.0.1", 1)
    return url.replace("//127.0.0.1", "//localhost", 1).replace("//[::1]", "//localhost", 1)
