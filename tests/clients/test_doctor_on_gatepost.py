"""The doctor, sent to Gatepost itself: a server that its own doctor faults is not finished."""

from gatepost.doctor import DoctorCredentials, examine
from tests.support import commands
from tests.support.commands import Gatepost


async def test_the_doctor_finds_nothing_wrong_with_gatepost_dev(dev: Gatepost) -> None:
    """No step fails or warns, with a token of the development issuer up to the first call."""
    token = commands.token(dev.folder, "--tenant", "acme")

    report = await examine(dev.url, credentials=DoctorCredentials(token=token))

    assert {step.level for step in report.steps} == {"ok"}
    assert report.sentence == f"No problems found at {dev.url}."


async def test_another_spelling_of_this_machine_is_said(dev: Gatepost) -> None:
    """`localhost` answers too, but clients compare URLs: the sentence names the one to paste."""
    report = await examine(dev.url.replace("127.0.0.1", "localhost"))

    assert not report.healthy
    assert dev.url in report.sentence
    assert "give clients the URL it names" in report.sentence
