"""The doctor, sent to Gatepost itself: a server that its own doctor faults is not finished."""

from gatepost.doctor import DoctorCredentials, examine
from tests.support import commands
from tests.support.commands import Gatepost


async def test_the_doctor_finds_no_problem_with_gatepost_dev(dev: Gatepost) -> None:
    """Every step up to the first call is good, with a token of the development issuer."""
    token = commands.token(dev.folder, "--tenant", "acme")

    report = await examine(dev.url, credentials=DoctorCredentials(token=token))

    assert {step.level for step in report.steps} == {"ok"}
    assert report.sentence == f"No problems found at {dev.url}."


async def test_the_doctor_reports_localhost_in_place_of_the_configured_url(dev: Gatepost) -> None:
    """`localhost` answers, but clients compare URLs, so the sentence names the right URL."""
    report = await examine(dev.url.replace("127.0.0.1", "localhost"))

    assert not report.healthy
    assert dev.url in report.sentence
    assert "give clients the URL it names" in report.sentence
