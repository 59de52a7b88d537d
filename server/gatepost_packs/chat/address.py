"""Checks Apprise URLs without knowing their provider."""

import re
from urllib.parse import parse_qsl

SCHEME = re.compile(r"\s*([A-Za-z0-9]{1,12})://", re.ASCII)

REFUSED = {
    "blink1 dbus glib gnome kde macosx qt syslog windows": "shows messages on the server itself",
    "deltachat deltachats growl irc ircs nostr rsyslog smpp smpps xmpp xmpps": (
        "opens connections that the rules for outgoing ones cannot check"
    ),
    "amqp amqps aprs mqtt mqtts": "opens connections that the rules for outgoing ones cannot check",
    "vapid": "keeps its keys in files on the server",
    "file http https": "is a file with channels or text, not a channel",
}
"""Unsupported schemes and the reason. The worker confines schemes that are new to Apprise, too."""
REASONS = {scheme: reason for schemes, reason in REFUSED.items() for scheme in schemes.split()}

FILES = frozenset({"attach", "config", "keyfile", "subfile", "template"})
"""Parameters that name files of the server, or addresses to fetch files from."""
NO = frozenset({"0", "disable", "disabled", "f", "false", "n", "never", "no", "none", "off"})


def scheme_of(url: str) -> str:
    """Return the provider's scheme in *url*, in lower case; empty if it is not such a URL."""
    match = SCHEME.match(url)
    return match[1].lower() if match else ""


def refusal(url: str) -> str | None:
    """Return why nothing is sent to *url*, about "it", with no part of the URL but the scheme."""
    scheme = scheme_of(url)
    if not scheme:
        return "it is not an Apprise URL such as slack://TOKEN_A/TOKEN_B/TOKEN_C"
    if scheme in REASONS:
        return f"{scheme}:// {REASONS[scheme]}"
    for name, value in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        if name.strip().lower() in FILES:
            return f"its parameter {name.strip().lower()} names a file"
        if name.strip().lower() == "verify" and value.strip().lower() in NO:
            return (
                "it turns off certificate checks; to trust your own certificates, set "
                "[network] ca_bundle"
            )
    return None
