"""The demo pack, through the endpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.workspace import Workspaces
from gatepost_packs.demo import pack
from tests.support.client import modern_request
from tests.support.endpoint import JSON, EndpointClient, a_caller
from tests.support.measuring import HOLD_S, server_garbage_collection, shortest_hold

SEED_ROWS = [
    {"date": "2024-01-15", "amount": 1250.00, "vendor": "Acme Corp"},
    {"date": "2024-01-16", "amount": 890.50, "vendor": "Widget Inc"},
]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[EndpointClient]:
    workspaces = Workspaces(tmp_path)
    yield EndpointClient(pack.offers, workspaces=workspaces)
    workspaces.close()


async def result_of(client: EndpointClient, tool: str, **arguments: Any) -> dict[str, Any]:
    response = await client.call(tool, arguments)
    assert response.status == 200
    result: dict[str, Any] = response.json["result"]
    return result


@pytest.mark.requirement("A9")
async def test_save_csv_writes_the_invoice(client: EndpointClient, tmp_path: Path) -> None:
    """The example of the agent platform, word for word."""
    result = await result_of(client, "save_csv", filename="invoice-2024-001", rows=SEED_ROWS)

    assert result["isError"] is False
    assert result["content"] == [
        {"type": "text", "text": "CSV saved to /workspace/invoice-2024-001.csv (2 rows)"}
    ]
    assert (tmp_path / "acme/invoice-2024-001.csv").read_bytes() == (
        b"date,amount,vendor\r\n2024-01-15,1250.0,Acme Corp\r\n2024-01-16,890.5,Widget Inc\r\n"
    )


@pytest.mark.requirement("A9")
def test_save_csv_has_the_schema_the_platform_documents() -> None:
    """A prompt written for that page finds the same arguments."""
    schema = pack.tools["save_csv"].input_schema

    assert schema["required"] == ["filename", "rows"]
    assert schema["properties"]["filename"] == {
        "type": "string",
        "description": "Output filename without extension",
    }
    rows = schema["properties"]["rows"]
    assert rows["type"] == "array"
    assert rows["items"]["type"] == "object"
    assert rows["items"]["properties"] == {
        "date": {"type": "string"},
        "amount": {"type": "number"},
        "vendor": {"type": "string"},
    }
    assert pack.tools["save_csv"].description == (
        "Save parsed invoice data as a CSV file to the shared drive."
    )


async def test_save_csv_replaces_a_file_only_with_overwrite(
    client: EndpointClient, tmp_path: Path
) -> None:
    """Saving the same lines again is a retry and no error."""
    saved = tmp_path / "acme/a.csv"
    await result_of(client, "save_csv", filename="a", rows=[{"vendor": "x"}])

    again = await result_of(client, "save_csv", filename="a", rows=[{"vendor": "x"}])
    other = await result_of(client, "save_csv", filename="a", rows=[{"vendor": "yy"}])
    assert (again["isError"], other["isError"]) == (False, True)
    assert "`overwrite`" in other["content"][0]["text"]
    assert saved.read_bytes() == b"date,amount,vendor\r\n,,x\r\n"

    replaced = await result_of(
        client, "save_csv", filename="a", rows=[{"vendor": "yy"}], overwrite=True
    )
    assert replaced["isError"] is False
    assert saved.read_bytes() == b"date,amount,vendor\r\n,,yy\r\n"


async def test_each_tenant_has_its_own_files(client: EndpointClient, tmp_path: Path) -> None:
    """The same name is another file for each tenant."""
    await result_of(client, "save_csv", filename="a", rows=[])
    client.caller = a_caller(tenant_id="globex")
    await result_of(client, "save_csv", filename="a", rows=[{"vendor": "x"}])

    assert (tmp_path / "acme/a.csv").read_bytes() == b"date,amount,vendor\r\n"
    assert (tmp_path / "globex/a.csv").read_bytes() == b"date,amount,vendor\r\n,,x\r\n"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
async def test_a_cell_never_becomes_a_formula(
    client: EndpointClient, tmp_path: Path, start: str
) -> None:
    """A vendor named =WEBSERVICE(…) would send the sheet to an attacker when a person opens it."""
    rows = [{"vendor": f"{start}1+1", "date": f"{start}1"}]
    await result_of(client, "save_csv", filename="a", rows=rows)

    line = (tmp_path / "acme/a.csv").read_bytes().split(b"\r\n", 1)[1]
    assert line.lstrip(b'"').startswith(b"'")
    assert b",'" in line or b",\"'" in line


@pytest.mark.parametrize(
    "filename", ["", "../x", "a/b", "/etc/passwd", ".hidden", "a\nb", "x" * 101, "a:b", "-x"]
)
async def test_a_bad_filename_is_explained(client: EndpointClient, filename: str) -> None:
    """The failure tells the model which names are valid."""
    result = await result_of(client, "save_csv", filename=filename, rows=[])

    assert result["isError"] is True
    assert "`filename`" in result["content"][0]["text"]


async def test_save_csv_asks_for_its_scope(client: EndpointClient) -> None:
    """403 with the scope to ask the issuer for; the tool is listed all the same."""
    client.caller = a_caller(scopes=frozenset())
    response = await client.call("save_csv", {"filename": "a", "rows": []})
    listed = (await client.ask("tools/list")).json["result"]["tools"]

    assert response.status == 403
    assert 'error="insufficient_scope"' in response.headers["www-authenticate"]
    assert 'scope="files:write"' in response.headers["www-authenticate"]
    assert response.json["id"] == 7
    assert "save_csv" in [tool["name"] for tool in listed]


async def test_whoami_returns_the_caller_of_the_token(client: EndpointClient) -> None:
    """The structured value has the caller's data."""
    result = await result_of(client, "whoami")

    assert result["structuredContent"] == {
        "tenant": "acme",
        "issuer": "https://id.example.com",
        "subject": "alice",
        "subject_kind": "user",
        "client_id": "some-client",
        "scopes": ["files:write"],
        "roles": [],
        "resource": "https://mcp.example.com/mcp",
        "expires_at": 2_000_000_000,
    }


async def test_count_slowly_reports_each_step(client: EndpointClient) -> None:
    """Each step is an event, and the last event is the answer."""
    params = {"name": "count_slowly", "arguments": {"steps": 3, "delay_s": 0}}
    response = await client.ask("tools/call", params, meta={"progressToken": 1})

    assert [event["params"]["progress"] for event in response.events[:-1]] == [1, 2, 3]
    assert response.events[-1]["result"]["content"][0]["text"] == "Counted to 3"


@pytest.mark.parametrize(("steps", "delay"), [(0, 0), (1001, 0), (1, -1), (1, 11)])
async def test_count_slowly_has_bounds(client: EndpointClient, steps: int, delay: float) -> None:
    """A call must not hold its resources for days."""
    assert (await result_of(client, "count_slowly", steps=steps, delay_s=delay))["isError"] is True


def test_every_demo_tool_has_effect_hints() -> None:
    """The approver sees them; clients take a tool without hints for destructive."""
    for tool in pack.tools.values():
        assert tool.annotations.read_only_hint is not None
        assert tool.annotations.idempotent_hint is not None
        assert tool.annotations.open_world_hint is False


async def read_resource(client: EndpointClient, uri: str) -> dict[str, Any]:
    contents: list[dict[str, Any]] = (await client.ask("resources/read", {"uri": uri})).json[
        "result"
    ]["contents"]
    assert len(contents) == 1
    return contents[0]


READER = a_caller(scopes=frozenset({"files:read", "files:write"}))


async def test_the_workspace_is_listed_read_and_completed(
    client: EndpointClient, tmp_path: Path
) -> None:
    """A saved file is a resource at once; its URI has the encoded name."""
    client.caller = READER
    await result_of(client, "save_csv", filename="Jänner 24", rows=SEED_ROWS)
    (tmp_path / "acme/logo.png").write_bytes(b"\x89PNG\xff")
    listed = (await client.ask("resources/list")).json["result"]["resources"]
    files = {
        resource["name"]: resource
        for resource in listed
        if resource["uri"].startswith("workspace://")
    }
    reference = {"type": "ref/resource", "uri": "workspace://{+path}"}
    argument = {"name": "path", "value": "J"}
    completed = await client.ask("completion/complete", {"ref": reference, "argument": argument})

    assert sorted(files) == ["Jänner 24.csv", "logo.png"]
    assert files["Jänner 24.csv"]["uri"] == "workspace://J%C3%A4nner%2024.csv"
    assert files["logo.png"]["size"] == 5
    assert files["logo.png"]["annotations"]["lastModified"].endswith("Z")
    assert (await read_resource(client, "workspace://J%C3%A4nner%2024.csv"))["text"].startswith(
        "date,"
    )
    assert (await read_resource(client, "workspace://logo.png"))["mimeType"] == "image/png"
    assert "blob" in await read_resource(client, "workspace://logo.png")
    assert completed.json["result"]["completion"]["values"] == ["Jänner 24.csv"]


async def test_another_tenants_files_are_not_there(client: EndpointClient) -> None:
    """They are in no list, no read by name and no completion."""
    client.caller = READER
    await result_of(client, "save_csv", filename="secret", rows=[])
    client.caller = a_caller(tenant_id="globex", scopes=READER.scopes)
    listed = (await client.ask("resources/list")).json["result"]["resources"]
    missing = await client.ask("resources/read", {"uri": "workspace://secret.csv"})
    argument = {"name": "path", "value": ""}
    reference = {"type": "ref/prompt", "name": "check_invoice"}
    completed = await client.ask("completion/complete", {"ref": reference, "argument": argument})

    assert [resource["uri"] for resource in listed] == ["demo://invoice-format"]
    assert missing.error == (400, -32602)
    assert missing.json["error"]["data"] == {"uri": "workspace://secret.csv"}
    assert completed.json["result"]["completion"]["values"] == []


async def test_the_workspace_asks_for_its_scope(client: EndpointClient) -> None:
    """A list without it is a list without files; a read says what to ask the issuer for."""
    client.caller = READER
    await result_of(client, "save_csv", filename="a", rows=[])
    client.caller = a_caller(scopes=frozenset())
    listed = (await client.ask("resources/list")).json["result"]["resources"]
    response = await client.ask("resources/read", {"uri": "workspace://a.csv"})

    assert [resource["uri"] for resource in listed] == ["demo://invoice-format"]
    assert response.status == 403
    assert 'scope="files:read"' in response.headers["www-authenticate"]


async def test_check_invoice_brings_the_file_along(client: EndpointClient) -> None:
    """The model needs no tool to read the file; a missing file is an error."""
    client.caller = READER
    await result_of(client, "save_csv", filename="a b", rows=SEED_ROWS)
    params = {"name": "check_invoice", "arguments": {"path": "a b.csv"}}
    messages = (await client.ask("prompts/get", params)).json["result"]["messages"]
    missing = await client.ask("prompts/get", {**params, "arguments": {"path": "c.csv"}})

    file, columns, question = (message["content"] for message in messages)
    assert file["resource"]["uri"] == "workspace://a%20b.csv"
    assert "Acme Corp" in file["resource"]["text"]
    assert columns["resource"]["uri"] == "demo://invoice-format"
    assert question["text"].startswith("Which lines")
    assert missing.error == (400, -32602)
    assert "/workspace/c.csv does not exist" in missing.json["error"]["message"]


async def test_delete_csv_deletes_the_file_that_save_csv_made(
    client: EndpointClient, tmp_path: Path
) -> None:
    """A second deletion finds no file, and a path with a folder is refused."""
    await result_of(client, "save_csv", filename="old", rows=[])
    deleted = await result_of(client, "delete_csv", filename="old")
    again = await result_of(client, "delete_csv", filename="old")
    outside = await result_of(client, "delete_csv", filename="../old")

    assert deleted["content"] == [{"type": "text", "text": "CSV deleted: old.csv"}]
    assert not (tmp_path / "acme/old.csv").exists()
    assert (again["isError"], outside["isError"]) == (True, True)


@pytest.mark.requirement("A7")
def test_deleting_waits_for_a_person() -> None:
    """A person who tries Gatepost sees an approval without configuring one."""
    assert pack.tools["delete_csv"].approval
    assert not pack.tools["save_csv"].approval


async def test_many_rows_are_saved_while_others_are_served(client: EndpointClient) -> None:
    """The file is built in a thread."""
    rows = [{"date": "=1", "amount": 1.5, "vendor": "=" + "x" * 300}] * 9_900
    arguments = {"filename": "many", "rows": rows, "overwrite": True}
    fields, body = modern_request("tools/call", {"name": "save_csv", "arguments": arguments})

    async def save() -> None:
        answer = await client.send(body, [JSON, *fields])
        assert answer.json["result"]["isError"] is False

    with server_garbage_collection():
        hold_s, limit = await shortest_hold(save, HOLD_S)
    assert hold_s < limit
