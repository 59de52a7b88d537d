"""`[packs.chat]`: where agents may send messages."""

from collections.abc import Iterator

from gatepost.packs.chat.address import refusal
from gatepost.packs.table import ENTRY, REFERENCE, Fault, PackSettings, is_reference

LONGEST_S = 60.0
MOST_PARTS = 100
MOST_PLACES = 10


class ChatSettings(PackSettings, frozen=True):
    """The pack `chat`."""

    channels: dict[str, str | tuple[str, ...]] = {}
    """Apprise URL of each channel, or several, by the name that agents give: `secret:NAME`."""
    max_parts: int = 10
    """How many messages one long message may become, where a provider takes short ones only."""
    timeout_s: float = 20.0
    """How long sending to one provider may take; at most 60."""

    def places(self, name: str) -> tuple[str, ...]:
        """Where messages to a channel go."""
        channel = self.channels[name]
        return (channel,) if isinstance(channel, str) else channel

    def faults(self) -> Iterator[Fault]:
        """See `PackSettings`."""
        if not 0 < self.timeout_s <= LONGEST_S:
            yield Fault("timeout_s", f"it must be more than 0 and at most {LONGEST_S:g}")
        if not 1 <= self.max_parts <= MOST_PARTS:
            yield Fault("max_parts", f"it must be between 1 and {MOST_PARTS}")
        for name in self.channels:
            setting = f"channels.{name}"
            if not ENTRY.fullmatch(name):
                hint = "letters, digits, `_`, `-` and `.`, at most 64 characters"
                yield Fault(setting, f"{name!r} is not a name for a channel", hint)
            if not 1 <= len(self.places(name)) <= MOST_PLACES:
                yield Fault(setting, f"a channel leads to between 1 and {MOST_PLACES} places")
            for place in self.places(name):
                yield from _faults(setting, place)


def _faults(setting: str, place: str) -> Iterator[Fault]:
    if place.startswith(REFERENCE):
        if not is_reference(place):
            yield Fault(setting, "that is no name of a secret", "write secret:TEAM_CHAT_URL")
    elif problem := refusal(place):
        # The URL is not shown: there is a token in most of them.
        yield Fault(setting, problem, "docs/chat.md has what is served")
