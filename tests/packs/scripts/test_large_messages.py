"""What a script sends is bounded before it is decoded, because all calls wait meanwhile."""

import sys

import pytest

from gatepost_packs.scripts.errors import failure_of
from gatepost_packs.scripts.process import ScriptFailed
from gatepost_packs.scripts.settings import ScriptsSettings
from tests.packs.scripts.test_process import SETTINGS, WORKER_PROLOGUE, run
from tests.support.measuring import each

pytestmark = pytest.mark.requirement("P10")

LARGE_MESSAGES = {
    "arguments of many values": ("t('call', tool='x', arguments={'a': [[]] * 50_000})", "values"),
    "a long number": (
        """f(b'{"type":"call","tool":"x","arguments":{"a":' + b"1" * 90_000 + b"}}")""",
        "values",
    ),
    "a result of many values": ("t('done', value=[[]] * 150_000)", "values"),
    "a result that is too large": ("t('done', value='x' * 1_000_000)", "output"),
}


@each(("does", "reason"), LARGE_MESSAGES.values(), ids=LARGE_MESSAGES.keys())
async def test_a_message_that_would_delay_other_calls_is_refused(does: str, reason: str) -> None:
    """All calls wait while its values are decoded."""
    with pytest.raises(ScriptFailed) as ended:
        await run(
            "1",
            settings=ScriptsSettings(max_output_bytes=1_000_000),
            command=(sys.executable, "-I", "-S", "-c", WORKER_PROLOGUE + does),
        )

    assert ended.value.reason == reason


async def test_a_script_may_have_many_values_but_not_in_one_call() -> None:
    """The maximum for a call is that of a request; a result has as many as its bytes allow."""
    ran = await run("[1] * 60000", settings=ScriptsSettings())
    with pytest.raises(ScriptFailed) as ended:
        await run("call('x', a = [1] * 60000)")

    message = failure_of(ended.value, "x.star", SETTINGS).failure.message
    assert len(ran.value) == 60_000
    assert "more than 40000 values" in message
