"""Kinds of requests: each is answered as its title says, and the report compares their costs."""

from pathlib import Path

from bench.issuer import running
from bench.requests import KINDS, TOOLS, RequestSample, RequestSite, render


def test_gatepost_answers_every_kind(tmp_path: Path) -> None:
    """A kind that is refused would be measured as a refusal."""
    answers = {}
    with running() as issuer:
        site = RequestSite(tmp_path, issuer, TOOLS, {})
        with site.gate("off") as server:
            for kind in KINDS:
                answers[kind.title] = site.answer(server, kind)

    failing = {title for title, body in answers.items() if b'"isError":true' in body}
    assert failing == {
        "of a tool that refuses (ToolFailure)",
        "of a tool that fails unexpectedly",
        "with an argument that is not valid",
    }


def test_costs_are_shown_by_kind() -> None:
    """The lowest of each server's costs count, and the median of what calls wait for."""
    samples = [
        RequestSample(title, 100.0, off_us, 2 * off_us, on_rate=rate, on_p99_us=10 * rate)
        for title in ("a call", "over REST")
        for off_us, rate in ((400.0, 1_000.0), (200.0, 3_000.0), (500.0, 2_000.0))
    ]
    _, call, rest = render(samples).splitlines()

    assert call.split() == ["a", "call", "100", "200", "0.50", "400", "0.25", "2,000", "20.0"]
    assert rest.split()[2:] == call.split()[2:]
