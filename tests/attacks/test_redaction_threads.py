"""What was found by making the redactor work on one text for so long that no other thread ran."""

import threading
import time
from collections.abc import Callable

import pytest

from gatepost.redaction import secret_search as layer
from gatepost.redaction.redactor import Redactor, cleaned_text
from gatepost.redaction.secret_search import layers, readings, unescaped

REDACTOR = Redactor({"KEY": "hunter2hunter2"})

NOTHING_BUT = {
    "apostrophes": "'" * 1_000_000,
    "escapes": "%41" * 1_000_000,
    "nearly escapes": "&" * 4_000_000,
    "escapes around a secret": "%41" * 700_000 + "%68unter2hunter2",
}


def _longest_hold(work: Callable[[], object]) -> float:
    """Return the longest share of the CPU time of *work* in which no other thread ran."""
    worker = threading.Thread(target=work)
    start = last = time.process_time()
    longest = 0.0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return longest / (last - start)


@pytest.mark.parametrize("text", NOTHING_BUT.values(), ids=NOTHING_BUT)
def test_other_threads_run_while_a_hostile_text_is_searched(text: str) -> None:
    """The redactor works on a text of quotes or escapes in many short steps."""
    assert any(_longest_hold(lambda: cleaned_text(text, REDACTOR)) < 0.25 for _ in range(2))


def test_escapes_are_read_the_same_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result does not depend on where a part ends, even in the middle of an escape."""
    form = r"a\\n\ud83d\ude00 \ud83dx&amp;&lt;&notanentity;&" + "a" * 33 + r";%2541%4 &#128512;\q\""
    text = form.encode() * 9
    whole, ways = layers(text), readings(text)
    for size in range(70, 240):
        monkeypatch.setattr(layer, "WINDOW_BYTES", size)
        assert unescaped(text) == whole[1]
        assert layers(text) == whole
    for way, part in zip(ways, readings(text), strict=True):
        for at in range(len(way.text) - 1):
            assert part.source(at, at + 1) == way.source(at, at + 1)
