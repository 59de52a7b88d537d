"""`[packs.chat]`: the channels to which agents may send messages, with their Apprise URLs."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl

from gatepost import REFERENCE_PREFIX, PackSettings, SettingFault, is_reference
from gatepost_packs.settings_names import ENTRY

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
FALSE_VALUES = frozenset(
    {"0", "disable", "disabled", "f", "false", "n", "never", "no", "none", "off"}
)


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
        if name.strip().lower() == "verify" and value.strip().lower() in FALSE_VALUES:
            return (
                "it turns off certificate checks; to trust your own certificates, set "
                "[network] ca_bundle"
            )
    return None


LONGEST_S = 60.0
MAX_PARTS = 100
MAX_PLACES = 10


class ChatSettings(PackSettings, frozen=True):
    """The pack `chat`."""

    channels: dict[str, str | tuple[str, ...]] = {}
    """
    Apprise URLs of each channel, one or several, by the name that agents use; `secret:NAME` for a
    secret URL.
    """
    max_parts: int = 10
    """
    Maximum number of messages that one long message may be split into, for providers with short
    messages.
    """
    timeout_s: float = 20.0
    """Seconds for sending to one provider; at most 60."""

    def destinations(self, name: str) -> tuple[str, ...]:
        """Return the destinations of a channel."""
        channel = self.channels[name]
        return (channel,) if isinstance(channel, str) else channel

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if not 0 < self.timeout_s <= LONGEST_S:
            yield SettingFault("timeout_s", f"it must be more than 0 and at most {LONGEST_S:g}")
        if not 1 <= self.max_parts <= MAX_PARTS:
            yield SettingFault("max_parts", f"it must be between 1 and {MAX_PARTS}")
        for name in self.channels:
            setting = f"channels.{name}"
            if not ENTRY.fullmatch(name):
                hint = "letters, digits, `_`, `-` and `.`, at most 64 characters"
                yield SettingFault(setting, f"{name!r} is not a name for a channel", hint)
            if not 1 <= len(self.destinations(name)) <= MAX_PLACES:
                yield SettingFault(setting, f"a channel has between 1 and {MAX_PLACES} URLs")
            for reference in self.destinations(name):
                yield from _faults(setting, reference)


def _faults(setting: str, reference: str) -> Iterator[SettingFault]:
    if reference.startswith(REFERENCE_PREFIX):
        if not is_reference(reference):
            yield SettingFault(
                setting, "it is not a valid name of a secret", "write secret:TEAM_CHAT_URL"
            )
    elif problem := refusal(reference):
        # The URL is not shown: most URLs hold a token.
        yield SettingFault(setting, problem, "docs/chat.md lists what is supported")
