"""Issues of GitHub repositories, with the interface of OpenPact (`github_*`)."""

import re
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from gatepost import CallContext, OutboundReply, Pack, ToolFailure
from gatepost_packs.github.errors import refusal, unread
from gatepost_packs.github.settings import GithubSettings

pack = Pack("github")

# User names of an enterprise may have an underscore before its short code.
REPO = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98})/(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,100}", re.ASCII
)
NEXT_PAGE = re.compile(r'[?&]page=(\d{1,9})[^>]*>;\s*rel="next"', re.ASCII)

VERSION = "2022-11-28"
TIMEOUT_S = 20.0
MAX_BYTES = 16_000_000
"""Bytes of a response; a hundred issues with GitHub's longest texts stay below it."""
REDIRECTS = 2
"""A renamed or transferred repository is answered with its new address."""


class Label(msgspec.Struct, frozen=True):
    """A label as GitHub sends it; only the used members."""

    name: str | None = None


class ReceivedIssue(msgspec.Struct, frozen=True):
    """An issue or pull request as GitHub sends it; only the used members."""

    number: int
    html_url: str
    title: str = ""
    state: str = ""
    updated_at: str = ""
    labels: list[Label | str] = []
    pull_request: Any = msgspec.UNSET


class Issue(BaseModel):
    """One issue."""

    number: int
    title: str
    state: str
    labels: list[str]
    url: str
    updated: str


class Issues(BaseModel):
    """A page of issues; `next_page` is null on the last one."""

    issues: list[Issue]
    next_page: int | None


class CreatedIssue(BaseModel):
    """The created issue."""

    number: int
    url: str


RepositoryName = Annotated[str, Field(description="The repository, as owner/name", max_length=220)]
GitHubNames = list[Annotated[str, Field(min_length=1, max_length=100)]]


@pack.tool(
    title="List issues",
    scopes={"github:read"},
    read_only=True,
    destructive=False,
    idempotent=True,
    open_world=True,
    untrusted="GitHub",
)
async def github_list_issues(
    ctx: CallContext,
    repo: RepositoryName,
    state: Annotated[
        Literal["open", "closed", "all"], Field(description="Which issues to list")
    ] = "open",
    labels: Annotated[
        GitHubNames, Field(description="Only issues that have all of these labels", max_length=50)
    ] = [],  # noqa: B006  # the default that clients are shown; no code changes it
    limit: Annotated[int, Field(description="Issues on a page", ge=1, le=100)] = 30,
    page: Annotated[int, Field(description="Which page, from 1", ge=1, le=100_000)] = 1,
) -> Issues:
    """
    List the issues of a GitHub repository, newest first. Pull requests are left out, so a page may
    hold fewer than `limit` issues; `next_page` says whether there are more.
    """
    if invalid := [label for label in labels if "," in label]:
        # GitHub separates labels by commas, and has no way to escape one.
        message = f"The label {invalid[0]!r} holds a comma, which GitHub uses to separate labels."
        raise ToolFailure("validation", message, field="labels")
    params = {"state": state, "labels": ",".join(labels) or None, "per_page": limit, "page": page}
    reply = await _sent(ctx, "GET", repo, params=params)
    if reply.truncated:
        message = "This page is too large to read: pass a smaller `limit`."
        raise ToolFailure("validation", message, field="limit")
    try:
        received = msgspec.json.decode(reply.body, type=list[ReceivedIssue])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise unread(wrote=False) from None
    next_link = NEXT_PAGE.search(reply.headers.get("link", ""))
    return Issues(
        issues=[_issue(issue) for issue in received if issue.pull_request is msgspec.UNSET],
        next_page=int(next_link[1]) if next_link else None,
    )


@pack.tool(
    title="Create an issue",
    scopes={"github:write"},
    read_only=False,
    destructive=False,
    idempotent=False,
    open_world=True,
    untrusted="GitHub",
)
async def github_create_issue(
    ctx: CallContext,
    repo: RepositoryName,
    title: Annotated[str, Field(description="What it is about", min_length=1, max_length=256)],
    body: Annotated[str, Field(description="The text, as Markdown", max_length=65_536)] = "",
    labels: Annotated[GitHubNames, Field(description="Labels to give it", max_length=100)] = [],  # noqa: B006  # see above
    assignees: Annotated[
        GitHubNames, Field(description="User names of who should see to it", max_length=10)
    ] = [],  # noqa: B006  # see above
) -> CreatedIssue:
    """Create an issue in a GitHub repository."""
    fields = {"title": title, "body": body, "labels": labels, "assignees": assignees}
    reply = await _sent(ctx, "POST", repo, json=fields)
    try:
        received = msgspec.json.decode(reply.body, type=ReceivedIssue)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise unread(wrote=True) from None
    return CreatedIssue(number=received.number, url=received.html_url)


async def _sent(ctx: CallContext, method: str, repo: str, **carried: Any) -> OutboundReply:
    """Return GitHub's response if it is the expected one."""
    if not REPO.fullmatch(repo):
        message = "`repo` should be owner/name, as in the repository's URL: `octocat/hello-world`."
        raise ToolFailure("validation", message, field="repo")
    settings = ctx.settings(GithubSettings)
    headers = {"accept": "application/vnd.github+json", "x-github-api-version": VERSION}
    if settings.token:
        token = await ctx.secret(
            settings.token, field="token", literals=False, to=settings.api_url, fixed=True
        )
        headers["authorization"] = f"Bearer {token.strip()}"
    wrote = method != "GET"
    reply = await ctx.http.send(
        method,
        f"{settings.api_url.rstrip('/')}/repos/{repo}/issues",
        headers=headers,
        timeout_s=TIMEOUT_S,
        max_bytes=MAX_BYTES,
        # A redirected POST would become a GET, and list issues instead of creating one.
        redirects=0 if wrote else REDIRECTS,
        **carried,
    )
    if reply.status != (201 if wrote else 200):
        raise refusal(reply, repo, wrote=wrote)
    return reply


def _issue(received: ReceivedIssue) -> Issue:
    names = [label if isinstance(label, str) else label.name for label in received.labels]
    return Issue(
        number=received.number,
        title=received.title,
        state=received.state,
        labels=[name for name in names if name],
        url=received.html_url,
        updated=received.updated_at,
    )
