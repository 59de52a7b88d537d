"""What a pack takes as a resource or a prompt, and what it refuses with a sentence."""

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gatepost import (
    Audio,
    CallContext,
    Contents,
    Icon,
    Image,
    ListedResource,
    Message,
    Pack,
    Relevance,
    ToolFailure,
)
from gatepost.check.pack_loading import load
from gatepost.config.settings import ToolsSettings
from gatepost.tools.authoring.resource import MAX_ENTRIES
from gatepost.tools.context.client import ProtocolError
from tests.support.endpoint import EndpointClient
from tests.support.measuring import each


async def nothing(ctx: CallContext) -> str:
    """Do nothing."""
    return ""


async def of_one(ctx: CallContext, x: str) -> str:
    """Do nothing with one variable."""
    return x


async def of_many(ctx: CallContext, x: list[str]) -> str:
    """Want several texts in one."""
    return ""


async def silent(ctx: CallContext) -> str:
    return ""


async def suggest(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
    """Suggest nothing."""
    return []


def resource(uri: str, function: Any = nothing, **options: Any) -> Callable[[], object]:
    return lambda: Pack("p").resource(uri, **options)(function)


def prompt(function: Any = nothing, **options: Any) -> Callable[[], object]:
    return lambda: Pack("p").prompt(**options)(function)


def twice() -> None:
    pack = Pack("p")
    pack.prompt()(nothing)
    pack.prompt()(nothing)


def at_one_uri() -> None:
    pack = Pack("p")
    pack.resource("a:b")(nothing)
    pack.resource("a:b", name="other")(nothing)


REFUSED_OFFERS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (resource("no uri"), ValueError, "not a URI"),
    (resource("a:b", silent), TypeError, "needs a docstring"),
    (resource("a:{x}"), TypeError, "differ"),
    (resource("a:b", of_one), TypeError, "differ"),
    (resource("a:{x}", of_many), TypeError, "one text"),
    (resource("a:b", name="Upper"), ValueError, "resource name"),
    (resource("a:b", mime_type="text"), ValueError, "MIME type"),
    (resource("a:b", priority=2), ValueError, "priority"),
    (resource("a:b", audience=("model",)), ValueError, "audience"),
    (resource("a:b", last_modified=datetime(2026, 1, 1)), ValueError, "time zone"),
    (resource("a:b", scopes="files:read"), TypeError, "collection of texts"),
    (resource("a:b", scopes={'a"b'}), ValueError, 'a"b'),
    (resource("a:{x}", of_one, size=3), ValueError, "its entries have"),
    (lambda: Pack("p").resource("a:b")(nothing).list(nothing), TypeError, "no variables"),
    (lambda: Pack("p").resource("a:{x}")(of_one).complete("y"), ValueError, "no variable y"),
    (lambda: Pack("p").prompt()(of_one).complete("y"), ValueError, "no argument y"),
    (prompt(silent), TypeError, "needs a docstring"),
    (prompt(of_many), TypeError, "one text"),
    (prompt(name="a-b"), ValueError, "prompt name"),
    (twice, ValueError, "two prompts named nothing"),
    (at_one_uri, ValueError, "two resources named a:b"),
    (lambda: Icon("http://example.com/a.png"), ValueError, "https"),
    (lambda: Icon("data:text/html,x"), ValueError, "https"),
    (lambda: Icon("https://a", mime_type="png"), ValueError, "MIME"),
    (lambda: Image(b"", "png"), ValueError, "MIME"),
    (lambda: Audio(b"", "wav"), ValueError, "MIME"),
    (lambda: Contents("", "x"), ValueError, "MIME"),
    (lambda: Relevance(priority=-1), ValueError, "priority"),
    (lambda: Message("system", "x").protocol_form(), ValueError, "user's or the assistant's"),  # type: ignore[arg-type]
    (lambda: Message("user", Contents("x")).protocol_form(), ValueError, "its URI"),
    (lambda: Message("user", 3).protocol_form(), TypeError, "cannot hold int"),  # type: ignore[arg-type]
]


@each(("attempt", "kind", "expected_text"), REFUSED_OFFERS)
def test_an_invalid_offer_is_refused_with_a_reason(
    attempt: Callable[[], object], kind: type[Exception], expected_text: str
) -> None:
    """The error comes when the pack is loaded."""
    with pytest.raises(kind, match=expected_text):
        attempt()


async def test_a_decorated_function_can_still_be_called() -> None:
    """Authors can test it, and build one function on another."""
    pack = Pack("p")
    first_offer, prompt_function = pack.resource("a:{x}")(of_one), pack.prompt(name="asked")(of_one)

    assert await first_offer(None, "v") == "v"  # type: ignore[arg-type]
    assert await prompt_function(None, "v") == "v"  # type: ignore[arg-type]
    assert first_offer.complete("x")(suggest) is suggest
    assert first_offer.__doc__ == prompt_function.__doc__ == of_one.__doc__


async def test_plain_functions_run_outside_the_event_loop() -> None:
    """Resources, listers, prompts and suggestions alike may block."""
    pack, threads = Pack("p"), []

    def note() -> None:
        threads.append(threading.current_thread().name)

    @pack.resource("a:{x}")
    def read(ctx: CallContext, x: str) -> str:
        """Read."""
        note()
        return x

    @read.list
    def entries(ctx: CallContext) -> list[ListedResource]:
        """List."""
        note()
        return []

    @pack.prompt()
    def ask(ctx: CallContext, x: str) -> str:
        """Ask."""
        note()
        return x

    @ask.complete("x")
    def fitting(ctx: CallContext, value: str, given: Mapping[str, str]) -> list[str]:
        """Suggest."""
        note()
        return []

    client = EndpointClient(pack.offers)
    reference = {"type": "ref/prompt", "name": "ask"}
    await client.ask("resources/read", {"uri": "a:b"})
    await client.ask("resources/list")
    await client.ask("prompts/get", {"name": "ask", "arguments": {"x": "y"}})
    argument = {"name": "x", "value": ""}
    await client.ask("completion/complete", {"ref": reference, "argument": argument})

    assert len(threads) == 4
    assert threading.main_thread().name not in threads


async def test_the_most_literal_template_is_used() -> None:
    """It wins over other matching templates, and a resource of that exact URI over it."""
    pack = Pack("p")

    def add(name: str, uri: str) -> None:
        @pack.resource(uri, name=name)
        async def read(ctx: CallContext, x: str) -> str:
            """Say which one answered."""
            return name

    for name, uri in (("wide", "a://{+x}"), ("narrow", "a://b/{x}"), ("last", "a://{+x}/end")):
        add(name, uri)

    @pack.resource("a://b/fixed")
    async def fixed(ctx: CallContext) -> str:
        """Say so."""
        return "fixed"

    client = EndpointClient(pack.offers)
    answers = {}
    for uri in ("a://b/fixed", "a://b/x", "a://b/x/y", "a://b/x/end"):
        result = (await client.ask("resources/read", {"uri": uri})).json["result"]
        answers[uri] = result["contents"][0]["text"]

    assert answers == {
        "a://b/fixed": "fixed",
        "a://b/x": "narrow",
        "a://b/x/y": "wide",
        "a://b/x/end": "last",
    }


COLLIDING_PACKS = """
from gatepost import CallContext, Pack

one, two = Pack("one"), Pack("two")


for pack in (one, two):

    @pack.resource("shelf://{book}", name=f"book_{pack.name}")
    async def book(ctx: CallContext, book: str) -> str:
        '''Read a book.'''
        return book

    @pack.prompt()
    async def ask(ctx: CallContext) -> str:
        '''Ask.'''
        return ""
"""


def test_check_finds_doubled_uris_and_prompts(tmp_path: Path) -> None:
    """Each problem names the packs."""
    source = tmp_path / "colliding.py"
    source.write_text(COLLIDING_PACKS)
    loaded_packs = load(ToolsSettings(load=(str(source),)))

    assert [
        (offer_problem.id, offer_problem.message) for offer_problem in loaded_packs.problems
    ] == [
        ("config.E012", "several resources are at 'shelf://{book}' (packs one, two)"),
        ("config.E012", "several prompts are named 'ask' (packs one, two)"),
    ]


def add_refusing_lister(pack: Pack) -> None:
    """Add a resource whose list is an error of the protocol."""

    @pack.resource("refusing:{x}")
    async def refusing(ctx: CallContext, x: str) -> str:
        """Hold something."""
        return x

    @refusing.list
    async def refuses(ctx: CallContext) -> list[ListedResource]:
        """Fail with an error of the protocol."""
        raise ProtocolError(5, "hunter2")


def add_failing_listers(pack: Pack) -> None:
    """Add resources whose lists fail, ask the client, or need a stronger sign-in."""

    @pack.resource("broken:{x}")
    async def broken(ctx: CallContext, x: str) -> str:
        """Hold something."""
        return x

    @broken.list
    async def breaks(ctx: CallContext) -> list[ListedResource]:
        """Fail."""
        raise RuntimeError("hunter2")

    @pack.resource("away:{x}")
    async def away(ctx: CallContext, x: str) -> str:
        """Hold something."""
        return x

    @away.list
    async def unavailable(ctx: CallContext) -> list[ListedResource]:
        """Fail as expected."""
        raise ToolFailure("upstream_unavailable", "hunter2 is away")

    @pack.resource("asking:{x}")
    async def eliciting(ctx: CallContext, x: str) -> str:
        """Hold something."""
        return x

    @eliciting.list
    async def asks(ctx: CallContext) -> list[ListedResource]:
        """Ask the caller's client."""
        await ctx.ask("Which?", {"type": "object", "properties": {"x": {"type": "string"}}})
        return []

    @pack.resource("strong:{x}", acr_values=("phr",))
    async def strong(ctx: CallContext, x: str) -> str:
        """Hold something."""
        return x

    @strong.list
    async def never(ctx: CallContext) -> list[ListedResource]:
        """Fail the test if it runs: the caller signed in weakly."""
        raise AssertionError("ran")


async def test_a_failing_lister_does_not_hide_other_resources(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    The other resources are listed beside one that fails, asks, or needs a stronger sign-in.

    The log names what is missing.
    """
    pack = Pack("p")

    @pack.resource("fixed:one")
    async def fixed(ctx: CallContext) -> str:
        """Hold something."""
        return ""

    @pack.resource("good:{x}")
    async def good(ctx: CallContext, x: str) -> str:
        """Hold something."""
        return x

    @good.list
    async def entries(ctx: CallContext) -> list[ListedResource]:
        """List one resource."""
        return [ListedResource(variables={"x": "1"})]

    add_refusing_lister(pack)
    add_failing_listers(pack)
    response = await EndpointClient(pack.offers).ask("resources/list")

    listed = [resource["uri"] for resource in response.json["result"]["resources"]]
    assert listed == ["fixed:one", "good:1"]
    assert b"hunter2" not in response.body
    missing = [
        (vars(record)["offer"], vars(record)["reason"])
        for record in caplog.records
        if record.message == "list_incomplete"
    ]
    assert sorted(missing) == [
        ("away:{x}", "upstream_unavailable"),
        ("broken:{x}", "internal"),
        ("refusing:{x}", "protocol_error"),
    ]


async def test_the_entries_of_a_lister_are_bounded() -> None:
    """A fixed resource wins over an entry of the same URI."""
    pack = Pack("p")

    @pack.resource("n:{x}")
    async def read(ctx: CallContext, x: int) -> str:
        """Hold a number."""
        return str(x)

    @read.list
    async def endless(ctx: CallContext) -> Iterator[ListedResource]:
        """Count for ever."""
        return (ListedResource(variables={"x": str(x)}) for x in count())

    @pack.resource("n:7", title="Seven")
    async def seven(ctx: CallContext) -> str:
        """Hold seven."""
        return "7"

    client = EndpointClient(pack.offers, page_size=2 * MAX_ENTRIES)
    listed = (await client.ask("resources/list")).json["result"]["resources"]

    assert len(listed) == MAX_ENTRIES
    assert [resource.get("title") for resource in listed if resource["uri"] == "n:7"] == ["Seven"]
