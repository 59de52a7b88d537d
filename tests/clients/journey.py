"""What every official client's report has to show after the whole way in, whoever drove it."""

import re
from typing import Any
from urllib.parse import urlsplit

from tests.support.browser import Person

CSV = {
    "filename": "invoices.csv",
    "rows": [{"date": "2026-07-28", "amount": 12.5, "vendor": "Grüßner & Söhne"}],
}
DEMO_TOOLS = {"echo", "whoami", "save_csv", "delete_csv", "count_slowly"}


def expect_discovery(report: dict[str, Any], url: str) -> None:
    """The client was refused first, followed the challenge, and registered by itself."""
    first, metadata = report["exchanges"][:2]
    assert (first["method"], first["url"], first["status"]) == ("POST", url, 401)
    assert first["challenge"].startswith('Bearer resource_metadata="')
    assert first["challenge"].split('"')[1] == metadata["url"]
    assert metadata["status"] == 200
    assert [each["status"] for each in registrations(report)] == [201]


def registrations(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The POSTs that are neither calls nor token requests."""
    return [
        each
        for each in report["exchanges"]
        if each["method"] == "POST"
        and not each["grant_type"]
        and urlsplit(each["url"]).path.rsplit("/", 1)[-1] in {"register", "reg"}
    ]


def expect_grants(report: dict[str, Any], person: Person, resource: str) -> None:
    """PKCE with S256 and `resource` went along with everything, and a refresh token was used."""
    for asked in person.asked:
        assert asked["code_challenge_method"] == "S256"
        assert asked["resource"] == resource
    tokens = [each for each in report["exchanges"] if each.get("grant_type")]
    assert {each["status"] for each in tokens} == {200}
    assert {each["resource"] for each in tokens} == {resource}
    assert tokens[-1]["grant_type"] == "refresh_token"
    assert [each["grant_type"] for each in tokens].count("authorization_code") == len(person.asked)


def expect_calls(report: dict[str, Any], *, tenant: str) -> None:
    """The tools are there, they answer, and they know who called."""
    assert set(report["tools"]) >= DEMO_TOOLS
    assert report["echo"] == "grüß Gott"
    assert tenant in str(report["whoami"])
    assert [step["progress"] for step in report["progress"]] == [1, 2, 3]
    assert "invoices.csv" in report["saved"]
    assert report["after_refresh"] == "again"


def expect_step_up(report: dict[str, Any], person: Person, url: str) -> None:
    """Saving was refused with the scope it needs, and the person was asked for it once more."""
    refused = [each for each in report["exchanges"] if each["status"] == 403]
    assert {each["url"] for each in refused} == {url}, refused
    for each in refused:
        assert 'error="insufficient_scope"' in each["challenge"]
        scope = re.search(r'scope="([^"]*)"', each["challenge"])
        assert scope is not None
        assert "files:write" in scope[1].split()
    assert len(person.asked) == 2
    assert "files:write" in person.asked[-1]["scope"].split()


def expect_no_step_up(report: dict[str, Any], person: Person) -> None:
    """A client that asked for everything at first was never refused, nor its person asked again."""
    assert 403 not in {each["status"] for each in report["exchanges"]}
    assert len(person.asked) == 1


def expect_all(
    report: dict[str, Any], person: Person, url: str, *, tenant: str, steps_up: bool = True
) -> None:
    """The whole journey."""
    for exchange in report["exchanges"]:
        exchange.setdefault("grant_type", None)
    expect_discovery(report, url)
    expect_grants(report, person, url)
    expect_calls(report, tenant=tenant)
    if steps_up:
        expect_step_up(report, person, url)
    else:
        expect_no_step_up(report, person)
    assert "files:write" in report["granted"].split()
