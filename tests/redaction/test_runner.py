"""Which secrets the server searches a call's answer for, and from when on."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import pytest

from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor
from gatepost.storage.errors import StoreUnavailable
from gatepost.tools.authoring.pack import Pack
from gatepost.tools.calls.redaction import MANY_SECRETS, KnownSecrets, Redaction
from gatepost.tools.calls.registry import Registry
from gatepost.tools.calls.runner import Runner
from gatepost.tools.context.client import SilentClient
from gatepost.tools.offers.offer import Call, CallContext, Outcome, ToolFailure
from gatepost.tools.schemas.argument_size import LONG_BYTES
from gatepost.tools.schemas.secret import Secret
from gatepost.workspace import TenantWorkspace
from tests.support.endpoint import a_caller
from tests.support.measuring import HOLD_S, count_lines, each, shortest_hold


class State(msgspec.Struct, frozen=True):
    """What is known of one tenant."""

    version: int
    values: Mapping[str, str] = {}


class CountedSecrets:
    """Secrets that a test sets."""

    def __init__(self) -> None:
        self.states: dict[str | None, State] = {None: State(0)}
        self.away = False
        self.loads = 0

    def put(self, tenant: str, **values: str) -> None:
        self.states[tenant] = State(self.version + 1, values)

    @property
    def version(self) -> int:
        return max(state.version for state in self.states.values())

    def known_secrets(self, tenant: str | None) -> KnownSecrets:
        return self.states.get(tenant, self.states[None])

    def loaded(self, tenant: str) -> KnownSecrets | None:
        return self.states.get(tenant)

    async def load(self, tenant: str) -> KnownSecrets:
        self.loads += 1
        if self.away:
            raise StoreUnavailable("away")
        return self.states.setdefault(tenant, self.states[None])


class RedactionRunner:
    """A runner with one tool, and the secrets it reads."""

    def __init__(self) -> None:
        self.secrets = CountedSecrets()
        self.ran: list[str] = []
        self.searched: list[str] = []
        pack = Pack("stage")

        @pack.tool()
        async def say(ctx: CallContext, text: str, times: int = 1, sets: str = "") -> str:
            """Answer a text, after it has become a secret if it shall."""
            self.ran.append(ctx.caller.tenant_id)
            if sets:
                self.secrets.put(ctx.caller.tenant_id, SET=sets)
            return text * times

        @pack.tool()
        async def tell(ctx: CallContext, text: str) -> None:
            """Tell a text in every way but the answer, and fail with it."""
            await ctx.progress(1, message=text)
            await ctx.log("info", {"text": text})
            raise ToolFailure("conflict", text)

        @pack.tool()
        async def take(ctx: CallContext, text: list[int], token: Secret) -> None:
            """Take what is no text."""

        self.redaction = Redaction(self.secrets)
        registry = Registry(pack.tools.values())
        self.runner = Runner(registry, context_for=self._context, redaction=self.redaction)

    def _context(self, call: Call) -> CallContext:
        space = TenantWorkspace(-1, call.caller.tenant_id)
        return CallContext(
            caller=call.caller, request_id=call.request_id, workspace=space, client=call.client
        )

    async def call(self, name: str, arguments: Mapping[str, Any], tenant: str = "acme") -> Outcome:
        call = Call(
            caller=a_caller(tenant_id=tenant),
            name=name,
            arguments=msgspec.json.encode(arguments),
            request_id="request-1",
            client=SilentClient(),
        )
        return await self.runner.run(call)

    async def say(self, tenant: str = "acme", **arguments: Any) -> str:
        outcome = await self.call("say", arguments, tenant)
        text: str = outcome.content[0]["text"]
        return text


@pytest.fixture
def stage() -> RedactionRunner:
    return RedactionRunner()


@pytest.mark.requirement("P13")
async def test_secrets_are_loaded_before_the_tenants_first_call(stage: RedactionRunner) -> None:
    """The server loads them once, not for every call."""
    for _ in range(3):
        assert await stage.say(text="hello") == "hello"

    assert stage.secrets.loads == 1


@pytest.mark.requirement("P13")
async def test_no_tool_runs_while_the_secrets_are_unknown(stage: RedactionRunner) -> None:
    """An answer that cannot be searched is not given."""
    stage.secrets.away = True

    with pytest.raises(StoreUnavailable):
        await stage.say(text="hello")
    assert stage.ran == []


@pytest.mark.requirement("P13")
async def test_a_secret_set_during_a_call_is_redacted_in_its_answer(stage: RedactionRunner) -> None:
    """A person may have set it because of what this call does."""
    text = "was-set-meanwhile"

    assert await stage.say(text=text, sets=text) == "[REDACTED:SET]"
    assert await stage.say(text=text) == "[REDACTED:SET]"
    assert await stage.say("zeta", text=text) == text


@pytest.mark.requirement("P13")
async def test_a_value_is_not_redacted_after_the_source_dropped_it(stage: RedactionRunner) -> None:
    """The source of the secrets decides how long a replaced value counts."""
    stage.secrets.put("acme", KEY="the-old-value")
    assert await stage.say(text="the-old-value the-new-value") == "[REDACTED:KEY] the-new-value"

    stage.secrets.put("acme", KEY="the-new-value")
    assert await stage.say(text="the-old-value the-new-value") == "the-old-value [REDACTED:KEY]"


@pytest.mark.requirement("P13")
async def test_many_secrets_count_from_the_first_call_on(stage: RedactionRunner) -> None:
    """They count even while the search for so many is still being prepared."""
    values = {f"S{at}": f"secret-number-{at}-of-many" for at in range(MANY_SECRETS)}
    stage.secrets.put("acme", **values)

    answers = await asyncio.gather(*(stage.say(text=values[f"S{at}"]) for at in (0, 7, 99)))

    assert answers == ["[REDACTED:S0]", "[REDACTED:S7]", "[REDACTED:S99]"]


def test_tenants_without_secrets_share_one_redactor(stage: RedactionRunner) -> None:
    """Ten thousand tenants without secrets need one automaton."""
    stage.secrets.states[None] = State(5, {"GATEPOST": "what-the-server-keeps"})

    assert stage.redaction.of("acme") is stage.redaction.of("zeta")


@pytest.mark.requirement("P13")
async def test_a_long_answer_is_searched_outside_the_event_loop(stage: RedactionRunner) -> None:
    """Other calls are answered during the search."""
    stage.secrets.put("acme", KEY="a-secret-in-it")
    text = "x a-secret-in-it "
    await stage.say(text="so that all is prepared")
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(turn())
    assert await stage.say(text=text) == "x [REDACTED:KEY] "
    few, turns = turns, 0
    long = await stage.say(text=text, times=LONG_BYTES // len(text) + 2)
    others.cancel()

    assert turns > few
    assert long == "x [REDACTED:KEY] " * (LONG_BYTES // len(text) + 2)


DEAR_TEXTS = {
    "escaped documents": '[\\"hun\\",\\"ter2\\"]',
    "quotation marks": '"a",',
    "apostrophes": "'a',",
    "escaped quotation marks": '\\\\\\"',
    "line breaks": "a\n",
    "percent signs": "%41",
    "beginnings of tokens": "sk-",
    "beginnings of the caller's own secret": "a",
}
"""What takes longest to search."""
LONG_TEXT_CHARS = pytest.param(120_000, marks=pytest.mark.slow)


@pytest.mark.requirement("P13")
@pytest.mark.parametrize("length", [1_000, 16_000, LONG_TEXT_CHARS])
@each("text", DEAR_TEXTS.values(), ids=DEAR_TEXTS)
async def test_an_expensive_search_delays_no_other_call(
    stage: RedactionRunner, text: str, length: int
) -> None:
    """The text may be an answer, a failure, progress, a log message or wrong arguments."""
    stage.secrets.put("acme", KEY="hunter2hunter2", PASSWORD="correct horse battery staple")
    text = text * (length // len(text))
    ways: dict[str, dict[str, Any]] = {
        "say": {"text": text},
        "tell": {"text": text},
        "take": {"text": text, "token": "a" * 4_000},
    }
    for name, arguments in ways.items():
        hold_s, limit = await shortest_hold(partial(stage.call, name, arguments), HOLD_S)
        assert hold_s < limit, (name, hold_s, limit)


@pytest.mark.requirement("P13")
def test_a_search_takes_no_more_steps_for_hundreds_of_secrets_than_for_dozens() -> None:
    """The search reads a text once for each encoding, for any number of secrets."""
    text = 'said "yes" to 100%25 &amp; left\n' * 50
    document = msgspec.json.encode({"rows": [text, {"more": [text, "x"]}], "n": [1, 2, 3]})

    def taken(count: int) -> tuple[int, int]:
        redactor = Redactor({f"S{at}": f"secret-number-{at}-of-many" for at in range(count)})
        cleaned(document, redactor)  # what escapes stand for is remembered from here on
        return count_lines(lambda: redactor.clean(text)), count_lines(
            lambda: cleaned(document, redactor)
        )

    assert all(many <= few for many, few in zip(taken(400), taken(40), strict=True))
