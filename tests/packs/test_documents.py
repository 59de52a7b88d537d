"""Every tool of the two documents that Gatepost serves the tools of is there, described, tested."""

from typing import Any

import pytest

from tests.packs.documented_tools import PAGES
from tests.support.cases import each

OPENPACT = """
workspace_read workspace_write workspace_list memory_read memory_write
vault_read vault_write vault_list vault_search chat_send calendar_read
github_list_issues github_create_issue web_fetch
script_list script_run script_exec script_reload
"""
OCTOPROX = """
fs_list fs_read_text fs_write_text fs_delete git ssh_public_key
gitlab_request gitlab_openapi_spec gitlab_openapi_paths gitlab_openapi_operation gitlab_tool_help
openapi_load openapi_list_apis openapi_list_endpoints openapi_get_operation openapi_call
"""


@pytest.mark.requirement("X8", "X9")
@each("name", [*OPENPACT.split(), *OCTOPROX.split()])
def test_a_documented_tool_is_served(name: str) -> None:
    """With a page that holds its parameters, defaults, annotations and scopes."""
    pages: dict[str, Any] = PAGES

    assert name in pages
