"""Which redirect addresses may be registered, and which match: the classic way in."""

import pytest

from gatepost_keys.issuer.redirects import destination, fault, form_target, matches
from tests.support.measuring import each

CURSOR = "cursor://anysphere.cursor-mcp/oauth/callback"

ACCEPTED_URIS = [
    "http://127.0.0.1:33418/",
    "http://127.0.0.1/callback",
    "http://[::1]:5000/callback",
    "http://localhost:8787/callback",
    "http://localhost:6274/oauth/callback/debug?x=1",
    "https://claude.ai/api/mcp/auth_callback",
    "https://vscode.dev/redirect",
    "https://www.cursor.com/agents/mcp/oauth/callback",
    "https://example.com:8443/cb",
    CURSOR,
]

REFUSED_URIS = [
    "",
    "/callback",
    "//evil.example/callback",
    "http://evil.example/callback",
    "http://127.0.0.1.evil.example/callback",
    "http://localhost.evil.example/callback",
    "http://127.1/callback",
    "http://0x7f000001/callback",
    "http://0.0.0.0/callback",
    "http://user@127.0.0.1/callback",
    "https://claude.ai@evil.example/callback",
    "https://claude.ai:443@evil.example/callback",
    "https://evil.example\\@claude.ai/callback",
    "https://claude.ai/callback#fragment",
    "https://claude.ai/callback#",
    "https://claude.ai/a/../callback",
    "https://claude.ai/a/./callback",
    "https://claude.ai/a/%2e%2E/callback",
    "https://claude.ai/..",
    "https:///callback",
    "https://:443/callback",
    "https://claude.ai:port/callback",
    "https://claude.ai:99999/callback",
    "https://cla ude.ai/callback",
    "https://claude.ai/call\nback",
    "https://claude.ai/call\tback",
    "https://claude.ai/\u202ecallback",
    "https://clаude.ai/callback",  # noqa: RUF001 - the letter a is Cyrillic: that is the attack
    'https://claude.ai/"onload="',
    "https://-claude-.ai/callback",
    "javascript:alert(1)",
    "JavaScript://127.0.0.1/%0aalert(1)",
    "data:text/html,hello",
    "file:///etc/passwd",
    "vbscript:x",
    "blob:https://claude.ai/x",
    "myapp://callback",
    "cursor://anysphere.cursor-mcp/oauth/callback/more",
    "cursor://evil/oauth/callback",
    "https://claude.ai/" + "a" * 2048,
]


@each("uri", ACCEPTED_URIS)
def test_redirect_addresses_of_real_clients_are_accepted(uri: str) -> None:
    """They are https, http on this machine, and the listed private schemes."""
    assert fault(uri, [CURSOR]) is None


@each("uri", REFUSED_URIS)
def test_an_ambiguous_or_foreign_redirect_address_is_refused(uri: str) -> None:
    """The cases are other schemes, disguised hosts and parser differences."""
    assert fault(uri, [CURSOR])


URI_MATCHES = [
    ("http://127.0.0.1/cb", "http://127.0.0.1:5000/cb", True),
    ("http://127.0.0.1:1/cb", "http://127.0.0.1:65535/cb", True),
    ("http://[::1]/cb", "http://[::1]:5000/cb", True),
    ("http://localhost:1/cb", "http://localhost:2/cb", True),
    ("https://claude.ai/cb", "https://claude.ai/cb", True),
    (CURSOR, CURSOR, True),
    ("http://127.0.0.1/cb", "http://localhost/cb", False),
    ("http://127.0.0.1/cb", "http://127.0.0.1/cb/", False),
    ("http://127.0.0.1/cb", "http://127.0.0.1/CB", False),
    ("http://127.0.0.1/cb", "http://127.0.0.1/cb?next=x", False),
    ("http://127.0.0.1/cb", "http://127.0.0.1/x/../cb", False),
    ("http://127.0.0.1/cb", "https://127.0.0.1/cb", False),
    ("http://127.0.0.1/cb", "http://evil@127.0.0.1/cb", False),
    ("http://127.0.0.1/cb", "http://127.0.0.1:5000/cb#x", False),
    ("https://claude.ai/cb", "https://claude.ai:8443/cb", False),
    ("https://claude.ai/cb", "https://CLAUDE.ai/cb", False),
    ("https://claude.ai/cb", "https://claude.ai/cb/..", False),
    (CURSOR, CURSOR + "?x", False),
]


@each(("registered", "requested", "same"), URI_MATCHES)
def test_a_redirect_address_must_match_its_registration_byte_for_byte(
    registered: str, requested: str, same: bool
) -> None:
    """Only the port may differ, and only on loopback (RFC 8252 section 7.3)."""
    assert matches(registered, requested) is same


@pytest.mark.parametrize(
    ("uri", "label", "target"),
    [
        ("http://127.0.0.1:41717/cb", "127.0.0.1:41717 (this computer)", "http://127.0.0.1:41717"),
        ("https://claude.ai/cb", "claude.ai", "https://claude.ai"),
        (CURSOR, "cursor: (an application on this computer)", "cursor:"),
    ],
)
def test_the_consent_page_names_the_host_of_the_redirect_address(
    uri: str, label: str, target: str
) -> None:
    """The host gets the code, and the form of the page may lead only there."""
    assert (destination(uri), form_target(uri)) == (label, target)
