"""A small GitHub: issues of repositories, as the REST API's documentation has them."""

import time
from typing import Any

from tests.packs.forges.front import Answer, Asked, Forge

TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"  # GitHub's own example of one
DOCS = "https://docs.github.com/rest"


class Github(Forge):
    """
    `octo/demo` has issues, and every second one of them is a pull request.

    Other repositories of `octo` answer as their names say.
    """

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Have the issues of the beginning."""
        self.issues = [self._issue(n, pull=n % 2 == 0) for n in range(1, 12)]

    def _issue(self, number: int, *, pull: bool = False, **told: Any) -> dict[str, Any]:
        kind = "pull" if pull else "issues"
        issue = {
            "id": 1000 + number,
            "number": number,
            "title": f"Issue {number}",
            "body": "A text\n" * 3,
            "state": "closed" if number == 9 else "open",
            "user": {"login": "octocat"},
            "labels": [{"id": 1, "name": "bug"}] if number < 4 else [],
            "html_url": f"https://github.com/octo/demo/{kind}/{number}",
            "updated_at": f"2024-01-{number:02}T00:00:00Z",
        }
        return issue | ({"pull_request": {"url": "…"}} if pull else {}) | told

    def _answered(self, asked: Asked) -> Answer:
        names = asked.path.removeprefix("/api/v3").split("/")
        if len(names) != 5 or names[1] != "repos" or names[4] != "issues":
            return Answer(404, {"message": "Not Found", "documentation_url": DOCS})
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(401, {"message": "Bad credentials", "documentation_url": DOCS})
        if names[2:4] == ["octo", "demo"]:
            return self._listed(asked) if asked.method == "GET" else self._created(asked)
        return self._odd(names[3])

    def _listed(self, asked: Asked) -> Answer:
        state, labels = asked.first("state", "open"), asked.first("labels")
        found = [
            issue
            for issue in reversed(self.issues)
            if state in ("all", issue["state"])
            and set(filter(None, labels.split(","))) <= {label["name"] for label in issue["labels"]}
        ]
        size, page = int(asked.first("per_page", "30")), int(asked.first("page", "1"))
        headers = {}
        if page * size < len(found):
            after = f"{self.url}{asked.path}?page={page + 1}&per_page={size}"
            headers["link"] = f'<{after}>; rel="next", <{after}>; rel="last"'
        return Answer(200, found[(page - 1) * size : page * size], headers)

    def _created(self, asked: Asked) -> Answer:
        given = asked.json
        if "nobody" in given["assignees"]:
            wrong = {
                "value": "nobody",
                "resource": "Issue",
                "field": "assignees",
                "code": "invalid",
            }
            return Answer(422, {"message": "Validation Failed", "errors": [wrong]})
        issue = self._issue(len(self.issues) + 1, **given)
        self.issues.append(issue)
        return Answer(201, issue)

    def _odd(self, name: str) -> Answer:
        now = int(time.time())
        spent = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(now + 90)}
        return {
            "spent": Answer(403, {"message": "API rate limit exceeded for user ID 1."}, spent),
            "hasty": Answer(
                403,
                {"message": "You have exceeded a secondary rate limit."},
                {"retry-after": "7"},
            ),
            "flooded": Answer(429, {"message": "Too many requests"}),
            "closed": Answer(403, {"message": "Resource not accessible by personal access token"}),
            "without": Answer(410, {"message": "Issues are disabled for this repo"}),
            "moved": Answer(
                301,
                {"message": "Moved Permanently", "url": "…"},
                {"location": f"{self.url}/repos/octo/demo/issues"},
            ),
            "strange": Answer(418, {"message": "I'm a teapot"}),
            "broken": Answer(502, b"<html>Bad gateway</html>"),
            "resting": Answer(503, {"message": "Service unavailable"}, {"retry-after": "11"}),
            "page": Answer(
                200, b"<html>Sign in to the network</html>", {"content-type": "text/html"}
            ),
            "huge": Answer(200, b"[" + b'{"number": 1, "html_url": "x"},' * 600_000),
            "list": Answer(201, [{"number": "one"}]),
        }.get(name, Answer(404, {"message": "Not Found", "documentation_url": DOCS}))
