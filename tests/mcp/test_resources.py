"""`resources/list`, `resources/templates/list` and `resources/read` in every revision."""

import json
from typing import Any

import pytest

from gatepost import CallContext, Pack
from tests.mcp.conftest import PNG, base64, declared_capabilities, pack
from tests.support.endpoint import VERSION, EndpointClient, a_caller
from tests.support.endpoint_clients import REVISIONS, ask, result_of
from tests.support.measuring import each

pytestmark = pytest.mark.parametrize("revision", REVISIONS)


@pytest.fixture
def client() -> EndpointClient:
    return EndpointClient(pack.offers, obtainable=frozenset())


async def contents_of(client: EndpointClient, revision: str, uri: str) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = (await result_of(client, revision, "resources/read", uri=uri))[
        "contents"
    ]
    return contents


@pytest.mark.requirement("R-01", "V-08")
async def test_r_01_resources_are_declared_when_there_are_some(revision: str) -> None:
    """Without resources the capability is missing and the methods are unknown."""
    tools_alone = EndpointClient([pack.tools["stamp"]])
    with_template = EndpointClient([pack.templates["report://{quarter}"]])

    assert "resources" not in await declared_capabilities(tools_alone, revision)
    assert "resources" in await declared_capabilities(with_template, revision)
    for method in ("resources/list", "resources/templates/list", "resources/read"):
        response = await ask(tools_alone, revision, method, uri="library://rules")
        assert response.error == (404 if revision == VERSION else 200, -32601)


@pytest.mark.requirement("R-02", "R-03", "R-14", "IC-01")
async def test_r_03_resources_have_the_members_of_each_revision(
    client: EndpointClient, revision: str
) -> None:
    """`uri` and `name` always; titles came with 2025-06-18, icons with 2025-11-25."""
    listed = (await result_of(client, revision, "resources/list"))["resources"]
    rules = next(resource for resource in listed if resource["uri"] == "library://rules")
    new = {
        "title": ("House rules", "2025-06-18"),
        "icons": (
            [
                {
                    "src": "https://mcp.example.com/icon.png",
                    "mimeType": "image/png",
                    "sizes": ["48x48"],
                }
            ],
            "2025-11-25",
        ),
    }
    hints = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-02T03:04:05Z"}
    if revision < "2025-06-18":
        del hints["lastModified"]

    assert rules == {
        "uri": "library://rules",
        "name": "rules",
        "description": "Return the rules of the library.",
        "mimeType": "text/markdown",
        "size": 7,
        "annotations": hints,
        **{member: value for member, (value, since) in new.items() if revision >= since},
    }
    assert all(resource["uri"] and resource["name"] for resource in listed)
    assert "library://hidden" not in {resource["uri"] for resource in listed}


@pytest.mark.requirement("R-02")
async def test_r_02_entries_of_a_lister_are_listed_and_readable(
    client: EndpointClient, revision: str
) -> None:
    """Entries that the template or its function would refuse are left out."""
    listed = (await result_of(client, revision, "resources/list"))["resources"]
    reports = [resource for resource in listed if resource["uri"].startswith("report://")]

    assert [report["uri"] for report in reports] == ["report://q1", "report://q2"]
    assert reports[0]["name"] == "q1"
    assert reports[0]["mimeType"] == "text/csv"
    assert reports[0].get("title") == ("Q1" if revision >= "2025-06-18" else None)
    for report in reports:
        assert (await contents_of(client, revision, report["uri"]))[0]["uri"] == report["uri"]


@pytest.mark.requirement("R-03", "IC-01")
async def test_r_03_templates_have_the_members_of_each_revision(
    client: EndpointClient, revision: str
) -> None:
    """A template is listed as its author wrote it (RFC 6570)."""
    result = await result_of(client, revision, "resources/templates/list")
    templates = {template["uriTemplate"]: template for template in result["resourceTemplates"]}

    assert sorted(templates) == [
        "library://failing/{kind}",
        "note://{+path}{?line,word}",
        "report://{quarter}",
    ]
    assert templates["report://{quarter}"]["name"] == "report"
    assert ("icons" in templates["report://{quarter}"]) == (revision >= "2025-11-25")


@pytest.mark.requirement("R-04", "R-12")
async def test_r_04_contents_are_text_or_base64(client: EndpointClient, revision: str) -> None:
    """Each has its URI and type; bytes arrive unchanged."""
    rules, cover = "library://rules", "library://cover"

    assert await contents_of(client, revision, rules) == [
        {"uri": rules, "mimeType": "text/markdown", "text": "# Rules"}
    ]
    assert await contents_of(client, revision, cover) == [
        {"uri": cover, "mimeType": "image/png", "blob": base64(PNG)}
    ]
    assert await contents_of(client, revision, "library://index") == [
        {"uri": "library://index", "mimeType": "application/json", "text": '{"books":3}'}
    ]
    assert await contents_of(client, revision, "library://several") == [
        {"uri": "library://several", "mimeType": "text/plain", "text": "a"},
        {
            "uri": "library://several/b",
            "mimeType": "application/x-b",
            "blob": base64(b"b"),
        },
    ]


@pytest.mark.requirement("R-04")
async def test_r_04_variables_arrive_decoded_and_checked(
    client: EndpointClient, revision: str
) -> None:
    """Percent-encoding is undone once; numbers are numbers; a path keeps its slashes."""
    contents = await contents_of(client, revision, "note://a/b%20c/%C3%BC%2525?word=x%2Fy&line=7")

    assert json.loads(contents[0]["text"]) == {"path": "a/b c/ü%25", "line": 7, "word": "x/y"}
    assert (await contents_of(client, revision, "report://q3"))[0]["text"].endswith("q3,acme\n")


UNKNOWN_URIS = [
    "library://nothing",
    "library://hidden",
    "library://empty",
    "library://rules/",
    "LIBRARY://rules",
    "note://",
    "note://a/../b",
    "note://a/%2e%2e/b",
    "note://a/%2E./b",
    "note://a%2Fb",
    "note://a%5Cb",
    "note://a%00b",
    "note://a%0Ab",
    "note://a//b",
    "note:///etc/passwd",
    "note://a%FFb",
    "note://a%zz",
    "note://a%C0%AFb",
    "note://a b",
    "note://ü",
    "note://a#b",
    "note://a?unknown=1",
    "note://a?line=1&line=2",
    "note://a?line",
    "report://q1/x",
    "report://",
    "nothing",
    "",
]


@pytest.mark.requirement("R-05", "R-06", "R-12", "R-13")
@each("uri", UNKNOWN_URIS)
async def test_r_05_r_06_a_missing_resource_is_an_error(
    client: EndpointClient, revision: str, uri: str
) -> None:
    """Never empty contents; out of reach, not there, and no URI at all sound the same."""
    response = await ask(client, revision, "resources/read", uri=uri)

    assert response.error == ((400, -32602) if revision == VERSION else (200, -32002))
    assert response.json["error"] == {
        "code": response.json["error"]["code"],
        "message": "Unknown resource",
        "data": {"uri": uri},
    }


@pytest.mark.requirement("R-12")
async def test_r_12_a_too_long_uri_is_not_repeated_in_the_error(
    client: EndpointClient, revision: str
) -> None:
    """A URI beyond the maximum length is not looked up."""
    response = await ask(client, revision, "resources/read", uri="note://" + "a" * 100_000)

    assert response.json["error"]["message"] == "Unknown resource"
    assert len(response.body) < 200


@pytest.mark.requirement("R-12")
@pytest.mark.parametrize("uri", ["report://q9", "note://a?line=x"])
async def test_r_12_an_invalid_uri_value_is_explained(
    client: EndpointClient, revision: str, uri: str
) -> None:
    """The form is right, so the sentence says which value is wrong."""
    response = await ask(client, revision, "resources/read", uri=uri)

    assert response.error == (400 if revision == VERSION else 200, -32602)
    assert response.json["error"]["data"]["uri"] == uri
    assert response.json["error"]["data"]["field"] in ("quarter", "line")


@pytest.mark.requirement("R-07")
@each(
    ("uri", "code"),
    [
        ("library://broken", -32603),
        ("library://failing/timeout", -32603),
        ("library://failing/upstream_unavailable", -32603),
        ("library://failing/denied", -31004),
        ("library://failing/rate_limit", -32000),
    ],
)
async def test_r_07_failures_are_errors_without_detail(
    client: EndpointClient, revision: str, uri: str, code: int
) -> None:
    """HTTP 200: clients take many another status for a lost session or login."""
    response = await ask(client, revision, "resources/read", uri=uri)

    assert response.error == (200, code)
    assert b"hunter2" not in response.body


@pytest.mark.requirement("R-13")
async def test_r_13_a_resource_with_obtainable_scopes_is_challenged(revision: str) -> None:
    """The 403 names all scopes, and the function does not run."""
    guarded = Pack("guarded")

    @guarded.resource("vault://{name}", scopes={"vault:read", "vault:open"})
    async def vault(ctx: CallContext, name: str) -> str:
        """Hold something."""
        raise AssertionError("ran")

    client = EndpointClient(guarded.offers)
    client.caller = a_caller(scopes=frozenset({"vault:open"}))
    response = await ask(client, revision, "resources/read", uri="vault://x")

    assert response.status == 403
    assert 'scope="vault:open vault:read"' in response.headers["www-authenticate"]
    assert response.json["error"]["data"] == {"scopes": ["vault:open", "vault:read"]}


async def test_a_read_needs_a_uri(client: EndpointClient, revision: str) -> None:
    """The error is that of a missing parameter and not that of an unknown resource."""
    response = await ask(client, revision, "resources/read")

    assert response.json["error"]["code"] == -32602
    assert "params.uri" in response.json["error"]["message"]
