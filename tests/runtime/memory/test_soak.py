"""Twenty seconds of mixed traffic at a server process leaves nothing behind."""

import asyncio
from pathlib import Path

import pytest

from bench import issuer, soak
from bench.gatepost import free_port

SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_does_not_grow_after_the_first_fifth_of_a_soak(tmp_path: Path) -> None:
    """Calls, tasks, questions, sessions left, clients that vanish, with up to half a megabyte."""
    with (
        issuer.running() as origin,
        soak.served(tmp_path, origin, free_port()) as (process, mint),
    ):
        report = asyncio.run(soak.run(process, mint, SECONDS))

    assert not report.failed
    assert report.after.operations > 2 * report.before.operations > 0
    assert not report.leaks, soak.render(report)
