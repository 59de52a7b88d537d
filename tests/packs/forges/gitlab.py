"""A small GitLab: projects, issues, files and uploads, as the REST API's documentation has them."""

import base64
import json
import re
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from tests.packs.forges.front import Answer, Asked, Forge

PERSONAL = "glpat-" + "x" * 20
OAUTH = "5" * 64
README = "# Grüße\n".encode() * 3
PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0"

PART = re.compile(
    rb'name="([^"]*)"(?:; filename="([^"]*)")?(?:\r\nContent-Type: ([^\r]*))?\r\n\r\n'
)


class Gitlab(Forge):
    """One project, `group/demo`, number 1; who it is asked by is judged as GitLab does."""

    def __init__(self, elsewhere: str = "") -> None:
        super().__init__(self._answered)
        self.elsewhere = elsewhere
        self.issues: list[dict[str, Any]] = []

    @property
    def api(self) -> str:
        return f"{self.url}/api/v4"

    def _answered(self, asked: Asked) -> Answer | None:
        path = asked.path.removeprefix("/api/v4/")
        if path == asked.path:
            return Answer(404, {"error": "404 Not Found"})
        given = asked.headers.get("private-token"), asked.headers.get("authorization")
        if given not in ((PERSONAL, None), (None, f"Bearer {OAUTH}")):
            return Answer(401, {"message": "401 Unauthorized"})
        if path == "slow":
            return None
        if path == "mirror":
            seen = given[0] or given[1] or ""
            coded = base64.b64encode(seen.encode()).decode()
            return Answer(
                200, {"seen": seen, "coded": coded, "url": quote(f"?a={seen}")}, {"x-seen": seen}
            )
        kind, _, rest = path.partition("/")
        project, _, below = rest.partition("/")
        if kind != "projects":
            return self._odd(path)
        if not rest:
            return self._projects(asked)
        if unquote(project) not in ("1", "group/demo"):
            return Answer(404, {"message": "404 Project Not Found"})
        return self._project(asked, below)

    def _projects(self, asked: Asked) -> Answer:
        pages = {"x-total": "1", "x-next-page": "", "link": f'<{self.api}/projects>; rel="first"'}
        headers = {**pages, "set-cookie": "_gitlab_session=abc", "ratelimit-remaining": "1999"}
        found = {"id": 1, "path_with_namespace": "group/demo", "query": dict(asked.query)}
        return Answer(200, [found], headers)

    def _project(self, asked: Asked, below: str) -> Answer:
        match asked.method, below:
            case "GET", "":
                return Answer(200, {"id": 1, "path_with_namespace": "group/demo"})
            case "GET" | "HEAD", "issues":
                return Answer(200, self.issues)
            case "POST", "issues":
                return self._created(asked)
            case "PUT", "issues/1":
                return Answer(200, {"iid": 1, **asked.json})
            case "PATCH", "echo":
                return Answer(200, parse_qs(asked.body.decode()))
            case "DELETE", "issues/1":
                return Answer(204, b"")
            case "POST", "uploads":
                return self._uploaded(asked)
            case "GET", "repository/files/docs%2FREADME.md/raw":
                return Answer(200, README, {"content-type": "text/plain; charset=utf-8"})
            case "GET", "repository/files/logo.png/raw":
                return Answer(200, PICTURE, {"content-type": "image/png"})
        return Answer(404, {"message": "404 Not found"})

    def _created(self, asked: Asked) -> Answer:
        if asked.headers.get("content-type") == "application/json":
            given = asked.json
        else:
            given = {name: value[0] for name, value in parse_qs(asked.body.decode()).items()}
        if not given.get("title"):
            return Answer(400, {"message": {"title": ["can't be blank"]}})
        if given["title"] in [issue["title"] for issue in self.issues]:
            return Answer(409, {"message": "Duplicated issue"})
        issue = {"iid": len(self.issues) + 1, **given}
        self.issues.append(issue)
        return Answer(201, issue)

    def _uploaded(self, asked: Asked) -> Answer:
        boundary = asked.headers["content-type"].partition("boundary=")[2].encode()
        found = {}
        for part in asked.body.split(b"--" + boundary)[1:-1]:
            head = PART.search(part)
            assert head is not None, part
            name, filename, kind = [(one or b"").decode() for one in head.groups()]
            found[name] = [filename, kind, part[head.end() :].removesuffix(b"\r\n").decode()]
        return Answer(201, {"parts": found, "markdown": "![x](/uploads/x)"})

    def _odd(self, path: str) -> Answer:
        away = {"location": f"{self.elsewhere}/api/v4/projects/1"}
        return {
            "forbidden": Answer(403, {"message": "403 Forbidden", "error": "insufficient_scope"}),
            "flooded": Answer(
                429, b"Retry later\n", {"retry-after": "30", "content-type": "text/plain"}
            ),
            "broken": Answer(500, {"message": "500 Internal Server Error"}),
            "moved": Answer(302, b"", {"location": "/api/v4/projects/1"}),
            "artifact": Answer(302, b"", away),
            "huge": Answer(200, [{"id": n, "text": "ü" * 10} for n in range(20_000)]),
            "letters": Answer(200, "ü".encode() * 200_000, {"content-type": "text/plain"}),
            "html": Answer(200, b"<p>Sign in</p>", {"content-type": "text/html"}),
            "null": Answer(200, None),
            "deep": Answer(200, b"[" * 5_000 + b"]" * 5_000),
            "wrong": Answer(200, b'{"a": ', {"content-type": "application/json"}),
            "latin": Answer(200, b"\xfc", {"content-type": "text/plain; charset=ISO-8859-1"}),
        }.get(path, Answer(404, {"error": "404 Not Found"}))


def echoed(asked: Asked) -> Answer:
    """What another server says: which headers reached it."""
    return Answer(200, {"headers": sorted(asked.headers), "seen": json.dumps(dict(asked.headers))})
