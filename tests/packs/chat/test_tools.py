"""Messages reach people, by both protocols, and failures tell what would work."""

import re
from typing import Any

import pytest

from tests.packs.chat.conftest import World

pytestmark = pytest.mark.requirement("P6")


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
def test_a_message_reaches_a_webhook(world: World, protocol: Any) -> None:
    """As it is, and the answer says where it went."""
    text = "Deploy *done* <@U1> :smile: \\n @everyone &amp; ü"
    heard = world.worker(protocol).call("chat_send", channel="team", message=text, title="News")

    path, came = world.hooks.came[-1]
    assert heard.failure is None, heard.failure
    assert heard.value == {
        "channel": "team",
        "delivered": [{"service": "JSON", "parts": 1}],
        "failed": [],
    }
    assert (path, came["message"], came["title"]) == ("/hook/t0ken-9f2c", text, "News")


def test_a_message_reaches_a_mailbox(world: World) -> None:
    """By SMTP; what looks like HTML is text, and a title adds no header."""
    url = f"mailto://{world.smtp}/?mode=insecure&from=agent@example.com&to=ada@example.com"
    worker = world.worker("rest", url)

    heard = worker.call(
        "chat_send", channel="team", message="<b>1 < 2</b>", title="Hi\r\nBcc: eve@example.com"
    )

    assert heard.failure is None, heard.failure
    envelope, mail = world.post.mails[-1]
    texts = [part.get_payload(decode=True) for part in mail.walk() if not part.is_multipart()]
    assert (envelope.rcpt_tos, mail["bcc"]) == (["ada@example.com"], None)
    assert (mail.get_content_type(), mail["subject"]) == ("text/plain", "Hi Bcc: eve@example.com")
    assert [text.strip() for text in texts] == [b"<b>1 < 2</b>"]


def test_a_webhook_as_slack_has_it_gets_text(world: World) -> None:
    """Mattermost's plugin posts to a host of one's own; the name is ours, no picture is fetched."""
    worker = world.worker("mcp", f"mmost://{world.web}/3ccdd113474722377935511fc85d3dd4")

    heard = worker.call("chat_send", channel="team", message="Up *again*")

    path, came = world.hooks.came[-1]
    assert heard.value["delivered"] == [{"service": "Mattermost", "parts": 1}]
    assert (path, came["text"]) == ("/hooks/3ccdd113474722377935511fc85d3dd4", "Up *again*")
    assert "github" not in str(came)


def test_a_long_message_becomes_several(world: World) -> None:
    """Where the provider takes short ones only, as many as are allowed, and the answer says so."""
    world.hooks.came.clear()
    worker = world.worker("rest", f"mmost://{world.web}/3ccdd113474722377935511fc85d3dd4")
    text = "0123456789 " * 900

    heard = worker.call("chat_send", channel="team", message=text)
    longer = worker.call("chat_send", channel="team", message=text * 2)

    assert heard.value["delivered"] == [{"service": "Mattermost", "parts": 3}]
    came = " ".join(came["text"] for _, came in world.hooks.came)
    assert came.replace(" ", "") == text.replace(" ", "")
    assert longer.kind == "validation"
    assert re.search("would become [5-6] messages there, and at most 3", longer.failure or "")


def test_a_channel_of_several_places_reaches_all_it_can(world: World) -> None:
    """What one of them does not take is said, and the rest is sent."""
    url = f"json://{world.web}/one"
    worker = world.worker("mcp", url)
    world.keeping.put(worker.tenant, OTHER_CHAT_URL=f"json://{world.web}/broken")
    world.hooks.answers["/broken"] = 503

    value = worker.call("chat_send", channel="everybody", message="x").value

    assert value["delivered"] == [{"service": "JSON", "parts": 1}]
    assert value["failed"] == [{"service": "JSON", "reason": "it is out of order (HTTP 503)"}]


def test_a_channel_that_is_bound_to_hosts_is_refused(world: World) -> None:
    """Nobody knows before it is opened where it leads, so nothing is sent to find out."""
    worker = world.worker("rest", f"json://{world.web}/one")
    world.keeping.put(worker.tenant, "example.com", TEAM_CHAT_URL=f"json://{world.web}/one")
    world.hooks.came.clear()

    heard = worker.call("chat_send", channel="team", message="x")

    assert heard.kind == "denied"
    assert "is bound to example.com, and it cannot be told where" in str(heard.failure)
    assert world.hooks.came == []


# What the channel's secret holds ({web} and {smtp} are allowed), what the provider answers, and
# what is heard of it.
FAILS: list[tuple[str, int, str, str]] = [
    ("json://{web}/a/t0ken-9f2c", 413, "validation", "does not take this message .HTTP 413"),
    ("json://{web}/a/t0ken-9f2c", 429, "rate_limit", "no more messages for now .HTTP 429"),
    ("json://{web}/a/t0ken-9f2c", 302, "denied", "it refuses what it is sent with .HTTP 302"),
    ("jsons://[::ffff:127.0.0.1]/t0ken-9f2c", 200, "denied", "its server is none"),
    ("slack://t0ken-9f2c", 200, "denied", "none that Apprise can use; an operator can correct"),
    ("t0ken-9f2c without a scheme", 200, "denied", "it is no URL as Apprise has them"),
    ("dbus://t0ken-9f2c", 200, "denied", "dbus:// shows messages on the server itself"),
    ("syslog://t0ken-9f2c", 200, "denied", "syslog:// shows messages on the server"),
    ("irc://{web}/t0ken-9f2c", 200, "denied", "irc:// opens connections that the rules"),
    ("jsons://{web}/t0ken-9f2c?verify=no", 200, "denied", "turns off the check of certificates"),
    ("discord://t0ken-9f2c/x?template=/etc/passwd", 200, "denied", "template names a file"),
]


@pytest.mark.parametrize(
    ("url", "status", "kind", "says"), FAILS, ids=[f"{url} {status}" for url, status, *_ in FAILS]
)
def test_a_failure_tells_what_would_work(
    world: World, url: str, status: int, kind: str, says: str
) -> None:
    """In words about the channel; nothing of the URL, which is a secret, is in them."""
    world.hooks.answers["/a/t0ken-9f2c"] = status
    worker = world.worker("rest", url.format(web=world.web, smtp=world.smtp))

    heard = worker.call("chat_send", channel="team", message="x")

    assert heard.failure is not None
    assert re.search(says, heard.failure), heard.failure
    assert heard.kind == kind
    assert "9f2c" not in heard.failure


def test_a_failure_is_the_tool_s_own_over_mcp(world: World) -> None:
    """A result that the model reads."""
    world.hooks.answers["/a"] = 503

    heard = world.worker("mcp", f"json://{world.web}/a").call(
        "chat_send", channel="team", message="x"
    )

    assert heard.failure == "Nothing went to team. JSON: it is out of order (HTTP 503)."


@pytest.mark.parametrize("protocol", ["mcp", "rest"])
@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"channel": "taem"}, "not_found", "no channel 'taem'. There is: team, everybody"),
        ({"channel": "everybody"}, "not_found", "no secret OTHER_CHAT_URL"),
        ({"message": ""}, "validation", "message"),
        ({"message": " \n"}, "validation", "`message` is empty"),
        ({"message": "x" * 20_001}, "validation", "message"),
        ({"title": "x" * 251}, "validation", "title"),
    ],
)
def test_a_wrong_argument_is_named(
    world: World, protocol: Any, arguments: dict[str, str], kind: str, says: str
) -> None:
    """Or which secret an operator has to set; nothing is sent before all is known."""
    world.hooks.came.clear()
    usual = {"channel": "team", "message": "x"}

    heard = world.worker(protocol).call("chat_send", **(usual | arguments))

    assert re.search(says, heard.failure or ""), heard.failure
    assert heard.kind in (None, kind)
    assert world.hooks.came == []


def test_two_tenants_with_the_same_channel_never_meet(world: World) -> None:
    """Each has its own URL under the same name."""
    world.hooks.came.clear()
    workers = [world.worker("rest", f"json://{world.web}/of-{name}") for name in ("one", "two")]

    for name, worker in zip(("one", "two"), workers, strict=True):
        assert worker.call("chat_send", channel="team", message=name).failure is None

    assert [(path, came["message"]) for path, came in world.hooks.came] == [
        ("/of-one", "one"),
        ("/of-two", "two"),
    ]
