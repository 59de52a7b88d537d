"""What a model should know before it uses the tools for GitLab (`gitlab_tool_help`)."""

from typing import Any

from pydantic import BaseModel

from gatepost.packs.gitlab.pack import pack
from gatepost.tools.api import CallContext


class Usage(BaseModel):
    """One tool: what for, with what, and what comes back; `?` marks what may be left out."""

    purpose: str
    inputs: list[str]
    output: str
    example: dict[str, Any]


class Help(BaseModel):
    """All tools for GitLab."""

    overview: str
    tools: dict[str, Usage]
    notes: list[str]


TOOLS = {
    "gitlab_openapi_spec": Usage(
        purpose="Read GitLab's OpenAPI description piece by piece.",
        inputs=["spec_url?", "offset?", "max_bytes?", "refresh?"],
        output="status_code, offset, total_bytes, truncated, text.",
        example={"offset": 0, "max_bytes": 200_000},
    ),
    "gitlab_openapi_paths": Usage(
        purpose="Search and list available GitLab REST endpoints.",
        inputs=["spec_url?", "filter_text?", "limit?", "offset?", "refresh?"],
        output="entries[{path, method, summary}], plus pagination metadata.",
        example={"filter_text": "issues", "limit": 20},
    ),
    "gitlab_openapi_operation": Usage(
        purpose="See what one endpoint takes and answers.",
        inputs=["path", "method", "spec_url?", "refresh?"],
        output="summary, description, operationId, tags, parameters, requestBody, responses.",
        example={"path": "/projects/{id}/issues", "method": "POST"},
    ),
    "gitlab_request": Usage(
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
        output="status_code, headers, text, json (where the body is whole JSON), truncated, "
        "base64 (with include_base64).",
        example={
            "endpoint": "https://gitlab.com/api/v4",
            "token": "secret:GITLAB_TOKEN",
            "path": "/projects/123/issues",
            "method": "POST",
            "json_body": {"title": "Bug: something is broken"},
        },
    ),
    "gitlab_tool_help": Usage(
        purpose="Show this help.",
        inputs=[],
        output="overview, tools, notes.",
        example={},
    ),
}

NOTES = [
    "Set endpoint to the GitLab REST base URL, which ends in /api/v4: https://gitlab.com/api/v4.",
    "Set token to a GitLab personal access token, or better to secret:NAME, which names one that "
    "is kept for you and that you never see. It goes to the hosts that an operator bound it to and "
    "no others. An operator may refuse tokens given literally.",
    "A project's or group's path is one id in a path: write its slashes as %2F "
    "(/projects/group%2Fproject), and those of a file's path likewise.",
    "status_code is GitLab's own: 401 for a wrong token, 403 for one that lacks a scope, 404 also "
    "for what the token may not see, 429 with the header retry-after when it is too much at once.",
    "Lists are paged: pass params page and per_page (at most 100), and read the headers "
    "x-next-page and x-total-pages.",
    "An answer that is longer than max_bytes has truncated=true and no json: ask for fewer with "
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
async def gitlab_tool_help(ctx: CallContext) -> Help:
    """Return machine-readable help for GitLab MCP tools."""
    overview = (
        "Use gitlab_openapi_paths to discover endpoints, gitlab_openapi_operation to see what one "
        "takes, and gitlab_request to call it."
    )
    return Help(overview=overview, tools=TOOLS, notes=NOTES)
