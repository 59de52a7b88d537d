"""Explain the tools of the pack: `gitlab_tool_help`."""

from typing import Any

from pydantic import BaseModel

from gatepost import CallContext
from gatepost_packs.gitlab.pack import pack


class ToolUsage(BaseModel):
    """One tool: its purpose, inputs and output; `?` marks optional inputs."""

    purpose: str
    inputs: list[str]
    output: str
    example: dict[str, Any]


class GitlabHelp(BaseModel):
    """All tools for GitLab."""

    overview: str
    tools: dict[str, ToolUsage]
    notes: list[str]


TOOLS = {
    "gitlab_openapi_spec": ToolUsage(
        purpose="Read GitLab's OpenAPI description piece by piece.",
        inputs=["spec_url?", "offset?", "max_bytes?", "refresh?"],
        output="status_code, offset, total_bytes, truncated, text.",
        example={"offset": 0, "max_bytes": 200_000},
    ),
    "gitlab_openapi_paths": ToolUsage(
        purpose="Search and list available GitLab REST endpoints.",
        inputs=["spec_url?", "filter_text?", "limit?", "offset?", "refresh?"],
        output="entries[{path, method, summary}], plus pagination metadata.",
        example={"filter_text": "issues", "limit": 20},
    ),
    "gitlab_openapi_operation": ToolUsage(
        purpose="Describe one endpoint: its arguments and responses.",
        inputs=["path", "method", "spec_url?", "refresh?"],
        output="summary, description, operationId, tags, parameters, requestBody, responses.",
        example={"path": "/projects/{id}/issues", "method": "POST"},
    ),
    "gitlab_request": ToolUsage(
        purpose="Send a request to GitLab's REST API.",
        inputs=[
            "endpoint",
            "token",
            "path",
            "method?",
            "params?",
            "json_body?",
            "form?",
            "headers?",
            "files?",
            "timeout_s?",
            "max_bytes?",
            "include_text?",
            "include_base64?",
        ],
        output=(
            "status_code, headers, text, json (if the body is complete JSON), truncated, "
            "base64 (with include_base64)."
        ),
        example={
            "endpoint": "https://gitlab.com/api/v4",
            "token": "secret:GITLAB_TOKEN",
            "path": "/projects/123/issues",
            "method": "POST",
            "json_body": {"title": "Bug: something is broken"},
        },
    ),
    "gitlab_tool_help": ToolUsage(
        purpose="Show this help.",
        inputs=[],
        output="overview, tools, notes.",
        example={},
    ),
}

HELP_NOTES = [
    "Set endpoint to the GitLab REST base URL, which ends in /api/v4: https://gitlab.com/api/v4.",
    "Set token to a GitLab personal access token, or better to secret:NAME, the name of a "
    "stored token that you never see. A stored token goes only to the hosts that an operator "
    "bound it to. A literal token is refused unless the operator allows it.",
    "In a path, the path of a project or group is one id: write its slashes as %2F "
    "(/projects/group%2Fproject). Do the same for the path of a file.",
    "status_code is GitLab's own: 401 for a wrong token, 403 for a missing scope, 404 also for "
    "objects that the token may not see, 429 with the header retry-after for too many requests.",
    "Lists are paged: pass params page and per_page (at most 100), and read the headers "
    "x-next-page and x-total-pages.",
    "A body longer than max_bytes has truncated=true and no json: ask for fewer entries with "
    "per_page, or raise max_bytes.",
    "Upload with files=[{name, filename, data_base64, content_type}]; read binary files with "
    "include_base64=true.",
]


@pack.tool(
    title="Help for GitLab",
    scopes={"gitlab:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=False,
)
async def gitlab_tool_help(ctx: CallContext) -> GitlabHelp:
    """Return machine-readable help for GitLab MCP tools."""
    overview = (
        "Use gitlab_openapi_paths to discover endpoints, gitlab_openapi_operation to see the "
        "arguments of one, and gitlab_request to call it."
    )
    return GitlabHelp(overview=overview, tools=TOOLS, notes=HELP_NOTES)
