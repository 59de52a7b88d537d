"""Every problem of a configuration is found at once."""

from pathlib import Path
from typing import NamedTuple

import pytest

from gatepost.check.pack_loading import load
from gatepost.check.problems import problems
from gatepost.config.reading import read
from gatepost.secrets.keyring import create

VALID_CONFIG = """
resource = "https://mcp.example.com/mcp"
[listen]
trusted_proxies = ["10.0.0.0/8"]
[keys]
ring = "file:keyring.json"
[[issuers]]
issuer = "https://id.example.com"
tenant = { claim = "org_id" }
tenants = { org_1 = "acme" }
roles = { approver = { claim = "roles", value = "approver" } }
[tools]
packs = ["demo"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    create(Path("keyring.json"))
    return tmp_path


def problems_found(
    text: str, environment: dict[str, str] | None = None
) -> list[tuple[str, str, str]]:
    """Return id, setting and whole text of every problem."""
    Path("gatepost.toml").write_text(text)
    reading = read(Path("gatepost.toml"), environment or {})
    listed = list(reading.problems)
    if reading.config is not None:
        listed += problems(reading.config, load(reading.config.tools))
    return [
        (problem.id, problem.setting, f"{problem.message} {problem.hint}") for problem in listed
    ]


class ProblemCase(NamedTuple):
    """What replaces what in the good file, and the problem that follows."""

    old: str
    new: str
    id: str
    setting: str
    says: str


PROBLEM_CASES = [
    ProblemCase("[keys]", "[key]", "config.E001", "key", "`keys`"),
    ProblemCase("ring =", "rong =", "config.E001", "keys.rong", "did you mean `keys.ring`"),
    ProblemCase("[tools]", "[tools]\ntimeout = 3", "config.E001", "tools.timeout", "timeout_s"),
    ProblemCase(
        "[tools]", "[tools]\ntimeout_s = 'x'", "config.E002", "tools.timeout_s", "expected"
    ),
    ProblemCase(
        "[tools]",
        "[limits]\nmax_body_bytes = 1.5\n[tools]",
        "config.E002",
        "limits.max_body_bytes",
        "int",
    ),
    ProblemCase(
        'resource = "https://mcp.example.com/mcp"', "", "config.E002", "resource", "is missing"
    ),
    ProblemCase("issuer = ", "isuer = ", "config.E001", "issuers[0].isuer", "issuers[0].issuer"),
    ProblemCase("[[issuers]]", "[[issuers", "config.E003", "", "line"),
    ProblemCase('"file:keyring.json"', '"hunter2"', "config.E005", "keys.ring", "reference"),
    ProblemCase(
        'ring = "file:keyring.json"', "", "config.E006", "keys.ring", "gatepost keyring new"
    ),
    ProblemCase(
        "file:keyring.json", "file:other.json", "config.E007", "keys.ring", "does not exist"
    ),
    ProblemCase('trusted_proxies = ["10.0.0.0/8"]', "", "config.E008", "listen", "HTTPS"),
    ProblemCase("10.0.0.0/8", "10.0.0.1/8", "config.E009", "listen.trusted_proxies[0]", "network"),
    ProblemCase('"demo"', '"dmeo"', "config.E010", "tools.packs[0]", "'demo'"),
    ProblemCase(
        "[tools]", "[tools]\nload = ['x.py']", "config.E011", "tools.load[0]", "does not exist"
    ),
    ProblemCase("[tools]", "[tools]\nload = ['bad.py']", "config.E011", "tools.load[0]", "line 1"),
    ProblemCase("[tools]", "[tools]\nload = ['named.py']", "config.E011", "tools.load[0]", "a-z"),
    ProblemCase(
        "[tools]", "[tools]\nload = ['none.py']", "config.E011", "tools.load[0]", "no pack"
    ),
    ProblemCase("[tools]", "[tools]\nload = ['twice.py']", "config.E012", "tools", "'echo'"),
    ProblemCase(
        'tenant = { claim = "org_id" }',
        'tenant.claim = "org_id"\nintrospection.client_id = "g"\n'
        'introspection.client_secret = "env:NOT_SET"',
        "config.E020",
        "issuers[0].introspection.client_secret",
        "NOT_SET",
    ),
    ProblemCase(
        'tenant = { claim = "org_id" }',
        'tenant.claim = "org_id"\nintrospection.client_id = "g"\n'
        'introspection.method = "private_key_jwt"\nintrospection.private_key = "file:bad.py"',
        "config.E020",
        "issuers[0].introspection.private_key",
        "PEM",
    ),
    ProblemCase(
        "[tools]",
        "[workspace]\nroot = '/dev/null/x'\n[tools]",
        "config.E021",
        "workspace.root",
        "/dev/null",
    ),
    ProblemCase(
        "[tools]",
        "[workspace]\nquota_bytes = 0\n[tools]",
        "config.E050",
        "workspace.quota_bytes",
        "above 0",
    ),
    ProblemCase(
        "[tools]",
        "[workspace]\nquota_files = -1\n[tools]",
        "config.E050",
        "workspace.quota_files",
        "above 0",
    ),
    ProblemCase(
        "[tools]",
        "[network]\nca_bundle = 'bad.py'\n[tools]",
        "config.E022",
        "network.ca_bundle",
        "PEM",
    ),
    ProblemCase(
        "[tools]",
        "[network]\nca_bundle = 'nowhere'\n[tools]",
        "config.E022",
        "network.ca_bundle",
        "PEM",
    ),
    *[
        ProblemCase(
            "[tools]",
            f"[network]\nproxy = {proxy!r}\n[tools]",
            "config.E023",
            "network.proxy",
            "proxy",
        )
        for proxy in ("socks5://127.0.0.1:1", "nonsense", "http://", "http://a:b", "http://[")
    ],
    *[
        ProblemCase(
            "[tools]",
            f"[network]\nallow_hosts = [{entry!r}]\n[tools]",
            "config.E024",
            "network.allow_hosts[0]",
            "is not a host",
        )
        for entry in (
            "",
            "*",
            "*.corp",
            "http://a",
            "a/b",
            "a:0",
            "a:",
            "a:x",
            "u@a",
            "127.1",
            "a b",
        )
    ],
    ProblemCase("[listen]", "[listen]\ntls_key = 'k'", "config.E014", "listen.tls_key", "both"),
    ProblemCase(
        "[listen]",
        "[listen]\ntls_key = 'k'\ntls_certificate = 'c'",
        "config.E014",
        "listen.tls_certificate",
        "PEM",
    ),
    ProblemCase(
        "[listen]",
        "[listen]\nallowed_origins = ['https://a.example/']",
        "config.E015",
        "listen.allowed_origins[0]",
        "as browsers send it",
    ),
    ProblemCase(
        "[listen]",
        "[listen]\nallowed_origins = ['*']",
        "config.E015",
        "listen.allowed_origins[0]",
        "*",
    ),
    ProblemCase("[listen]", "[listen]\nport = 70000", "config.E016", "listen.port", "70000"),
    ProblemCase("[listen]", "[listen]\nworkers = 0", "config.E016", "listen.workers", "at least 1"),
    ProblemCase(
        "[tools]",
        "[limits]\nbody_timeout_s = 0\n[tools]",
        "config.E016",
        "limits.body_timeout_s",
        "more",
    ),
    ProblemCase(
        "[tools]",
        "[tasks]\nmax_per_caller = 0\n[tools]",
        "config.E016",
        "tasks.max_per_caller",
        "more",
    ),
    ProblemCase(
        "[tools]",
        "[limits]\ncached_tokens = -1\n[tools]",
        "config.E016",
        "limits.cached_tokens",
        "negative",
    ),
    ProblemCase(
        "[listen]", 'mode = "development"\n[listen]', "config.E017", "resource", "loopback"
    ),
    ProblemCase(
        "[tools]",
        "[tenancy]\nsuspended = ['Acme']\n[tools]",
        "config.E018",
        "tenancy.suspended[0]",
        "a-z",
    ),
    ProblemCase(
        "[tools]",
        "[tenancy]\nsuspended = ['acmee']\n[tools]",
        "config.W001",
        "tenancy.suspended[0]",
        "'acme'",
    ),
    ProblemCase(
        "[tools]",
        "[workspace]\nroot = 'bad.py'\n[tools]",
        "config.E019",
        "workspace.root",
        "folder",
    ),
    ProblemCase(
        "[tools]",
        "[scopes]\nobtainable = ['files:wrote']\n[tools]",
        "config.W002",
        "scopes.obtainable",
        "files:write",
    ),
    ProblemCase('packs = ["demo"]', "", "config.W003", "tools", "tools.load"),
    ProblemCase("https://mcp", "http://mcp", "authz.E002", "resource", "https"),
    ProblemCase("org_1", 'org_2 = "ACME", org_1', "authz.E018", "issuers[0].tenants", "ACME"),
]


@pytest.mark.parametrize("case", PROBLEM_CASES, ids=lambda case: f"{case.id} {case.new[:30]!r}")
def test_each_configuration_error_has_its_own_problem(folder: Path, case: ProblemCase) -> None:
    """A good file with one error gives one problem with id, setting and hint."""
    (folder / "bad.py").write_text("boom")
    (folder / "none.py").write_text("x = 1")
    (folder / "named.py").write_text("from gatepost import Pack\npack = Pack('Save-It')\n")
    (folder / "twice.py").write_text(
        "from gatepost import CallContext, Pack\npack = Pack('mine')\n\n@pack.tool()\n"
        "async def echo(ctx: CallContext) -> str:\n    '''Say it again.'''\n    return ''\n"
    )
    assert case.old in VALID_CONFIG
    listed = [
        problem
        for problem in problems_found(VALID_CONFIG.replace(case.old, case.new, 1))
        if problem[0] == case.id
    ]

    assert [(problem[0], problem[1]) for problem in listed] == [(case.id, case.setting)]
    assert case.says in listed[0][2]


def test_a_good_configuration_has_no_problem(folder: Path) -> None:
    """The file in this module is fit for production."""
    assert problems_found(VALID_CONFIG) == []


def test_all_configuration_problems_are_reported_at_once(folder: Path) -> None:
    """An operator sees every error at the first start."""
    text = """
    resource = "http://mcp.example.com/mcp"
    [tools]
    packs = ["demmo"]
    [tenancy]
    suspended = ["?"]
    """

    assert {problem[0] for problem in problems_found(text)} >= {
        "authz.E002",
        "authz.E010",
        "config.E006",
        "config.E008",
        "config.E010",
        "config.E018",
    }


def test_problems_do_not_repeat_values_that_may_be_secret(folder: Path) -> None:
    """A password in the wrong setting must not reach the build log."""
    text = VALID_CONFIG.replace('"file:keyring.json"', '"hunter2"').replace(
        "[tools]", 'introspection = { client_id = "g", client_secret = "hunter2" }\n[tools]'
    )

    assert problems_found(text)
    assert "hunter2" not in str(problems_found(text))
