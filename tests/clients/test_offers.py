"""The official Python client reads, completes and fills in what the demo pack offers."""

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceTemplateReference

from tests.support.commands import Gatepost, token

WITHIN_S = 30


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_resources_prompts_and_completions_work_in_each_revision(
    dev: Gatepost, mode: str
) -> None:
    """A written resource is listed, read and completed, and a prompt includes it."""
    bearer = token(dev.folder, "--tenant", "acme", "--scopes", "files:read files:write")
    headers = {"Authorization": f"Bearer {bearer}"}
    name = f"offers {mode}"
    uri = f"workspace://offers%20{mode}.csv"
    with anyio.fail_after(WITHIN_S):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=WITHIN_S) as http,
            Client(streamable_http_client(dev.url, http_client=http), mode=mode) as client,
        ):
            await client.call_tool("save_csv", {"filename": name, "rows": [{"vendor": "Acme"}]})
            listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
            templates = (await client.list_resource_templates()).resource_templates
            contents = (await client.read_resource(uri)).contents
            prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
            arguments = {"path": f"{name}.csv"}
            messages = (await client.get_prompt("check_invoice", arguments)).messages
            completed = await client.complete(
                ResourceTemplateReference(type="ref/resource", uri="workspace://{+path}"),
                {"name": "path", "value": name},
            )
            with pytest.raises(MCPError) as missing:
                await client.read_resource("workspace://nothing.csv")

    assert {uri, "demo://invoice-format"} <= listed
    assert [template.uri_template for template in templates] == ["workspace://{+path}"]
    assert contents[0].text.startswith("date,amount,vendor")
    assert prompts == ["check_invoice"]
    assert messages[0].content.resource.text.endswith("Acme\r\n")
    assert completed.completion.values == [f"{name}.csv"]
    assert missing.value.error.code == (-32002 if mode == "legacy" else -32602)
