"""`gatepost check` finds channels that cannot be used."""

from typing import Any

import msgspec
import pytest

from gatepost_packs.chat.settings import ChatSettings
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("P6")

VALID_SETTINGS = [
    {},
    {"channels": {"team": "secret:TEAM_CHAT_URL", "ops.2": ["secret:A", "jsons://a.example/x"]}},
    {"channels": {"mail": "mailtos://mail.example/?to=a@b.example&overflow=truncate&verify=yes"}},
]


@pytest.mark.parametrize("table", VALID_SETTINGS)
def test_valid_channels_are_not_reported(table: dict[str, Any]) -> None:
    """References, and URLs that hold no secret."""
    assert list(msgspec.convert(table, ChatSettings).faults()) == []


REFUSED_SETTINGS = [
    ({"team chat": "secret:A"}, "channels.team chat", "not a name for a channel"),
    ({"team": "secret:team"}, "channels.team", "not a valid name of a secret"),
    ({"team": []}, "channels.team", "between 1 and 10 URLs"),
    ({"team": "word"}, "channels.team", "not an Apprise URL"),
    ({"team": "https://hooks.example/w0rd"}, "channels.team", "https:// is a file with channels"),
    ({"team": "FILE:///etc/w0rd"}, "channels.team", "file:// is a file with channels"),
    ({"team": " dbus://w0rd"}, "channels.team", "dbus:// shows messages on the server"),
    ({"team": "Windows://w0rd"}, "channels.team", "windows:// shows messages"),
    ({"team": "mqtts://w0rd"}, "channels.team", "mqtts:// opens connections"),
    ({"team": "vapid://w0rd"}, "channels.team", "vapid:// keeps its keys in files"),
    ({"team": "slack://w0rd/b/c?Template=x"}, "channels.team", "template names a file"),
    ({"team": "fcm://w0rd?keyfile=%2Fetc%2Fx"}, "channels.team", "keyfile names a file"),
    ({"team": "jsons://w0rd?verify=No"}, "channels.team", "turns off certificate checks"),
    ({"team": ["secret:A", "syslog://w0rd"]}, "channels.team", "syslog:// shows messages"),
]


@each(
    ("channels", "setting", "expected_text"),
    REFUSED_SETTINGS,
    ids=[str(bad[0]) for bad in REFUSED_SETTINGS],
)
def test_invalid_channels_are_reported(
    channels: dict[str, Any], setting: str, expected_text: str
) -> None:
    """The error names the channel and the reason, and does not show the URL."""
    (fault,) = msgspec.convert({"channels": channels}, ChatSettings).faults()

    assert fault.setting == setting
    assert expected_text in fault.message
    assert "w0rd" not in fault.message + fault.hint


@pytest.mark.parametrize(
    "table", [{"timeout_s": 0}, {"timeout_s": 61}, {"max_parts": 0}, {"max_parts": 101}]
)
def test_numeric_settings_are_bounded(table: dict[str, Any]) -> None:
    """The timeout must fit the tool's own."""
    (fault,) = msgspec.convert(table, ChatSettings).faults()

    assert fault.setting in table
