"""`[packs.chat]`: where agents may send messages."""

from collections.abc import Iterator

from gatepost import REFERENCE_PREFIX, PackSettings, SettingFault, is_reference
from gatepost_packs.chat.address import refusal
from gatepost_packs.table import ENTRY

LONGEST_S = 60.0
MOST_PARTS = 100
MOST_PLACES = 10


class ChatSettings(PackSettings, frozen=True):
    """The pack `chat`."""

    channels: dict[str, str | tuple[str, ...]] = {}
    """
    Apprise URLs of each channel, one or several, by the name that agents use; `secret:NAME` for a
    secret URL.
    """
    max_parts: int = 10
    """Most messages that one long message may be split into, for providers with short messages."""
    timeout_s: float = 20.0
    """Seconds for sending to one provider; at most 60."""

    def places(self, name: str) -> tuple[str, ...]:
        """Return the destinations of a channel."""
        channel = self.channels[name]
        return (channel,) if isinstance(channel, str) else channel

    def faults(self) -> Iterator[SettingFault]:
        """Yield problems with the values, beyond their types."""
        if not 0 < self.timeout_s <= LONGEST_S:
            yield SettingFault("timeout_s", f"it must be more than 0 and at most {LONGEST_S:g}")
        if not 1 <= self.max_parts <= MOST_PARTS:
            yield SettingFault("max_parts", f"it must be between 1 and {MOST_PARTS}")
        for name in self.channels:
            setting = f"channels.{name}"
            if not ENTRY.fullmatch(name):
                hint = "letters, digits, `_`, `-` and `.`, at most 64 characters"
                yield SettingFault(setting, f"{name!r} is not a name for a channel", hint)
            if not 1 <= len(self.places(name)) <= MOST_PLACES:
                yield SettingFault(setting, f"a channel has between 1 and {MOST_PLACES} URLs")
            for place in self.places(name):
                yield from _faults(setting, place)


def _faults(setting: str, place: str) -> Iterator[SettingFault]:
    if place.startswith(REFERENCE_PREFIX):
        if not is_reference(place):
            yield SettingFault(
                setting, "it is not a valid name of a secret", "write secret:TEAM_CHAT_URL"
            )
    elif problem := refusal(place):
        # The URL is not shown: most URLs hold a token.
        yield SettingFault(setting, problem, "docs/chat.md lists what is supported")
