"""What opens more in production than an operator can mean is said before the server starts."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from gatepost.cli.main import main
from tests.check.test_problems import VALID_CONFIG, folder, problems_found

__all__ = ["folder"]

TOOL = """
from gatepost import Pack
pack = Pack("mine")
@pack.tool
async def noop(ctx) -> None:
    \"\"\"Nothing.\"\"\"
"""


class ExposureCase(NamedTuple):
    """What replaces what in the good file, and the problem that follows."""

    old: str
    new: str
    id: str
    setting: str


def host_cases(*entries: str, id_: str = "config.E114") -> list[ExposureCase]:
    """Return one case for each entry of `allow_hosts`."""
    return [
        ExposureCase("[tools]", f"[network]\nallow_hosts = ['{entry}']\n[tools]", id_,
             "network.allow_hosts[0]")
        for entry in entries
    ]  # fmt: skip


NO_REQUEST_LIMIT = "requests_per_second = 0\n"
EXPOSURE_CASES = [
    *[
        ExposureCase('["10.0.0.0/8"]', networks, "config.E110", "listen.trusted_proxies")
        for networks in (
            '["0.0.0.0/0"]',
            '["::/0"]',
            '["0.0.0.0/1", "128.0.0.0/1"]',
            '["10.0.0.0/8", "0.0.0.0/0"]',
            '["::ffff:0.0.0.0/96"]',
            '["64.0.0.0/2", "128.0.0.0/1"]',
        )
    ],
    *[
        ExposureCase("[listen]", f"[listen]\nallowed_origins = ['{origin}']", id_,
             "listen.allowed_origins[0]")
        for origin, id_ in (
            ("http://app.example.com", "config.E111"),
            ("http://10.0.0.7:3000", "config.E111"),
            ("http://localhost:6274", "config.W111"),
            ("http://127.0.0.1:3000", "config.W111"),
            ("http://[::1]", "config.W111"),
        )
    ],
    *[
        ExposureCase("[tools]", f"[approvals]\nauto_approve = {patterns}\n[tools]", id_, setting)
        for patterns, id_, setting in (
            ('["*"]', "config.E112", "approvals.auto_approve[0]"),
            ('["**"]', "config.E112", "approvals.auto_approve[0]"),
            ('["echo", "pack:*"]', "config.E112", "approvals.auto_approve[1]"),
        )
    ],
    ExposureCase(
        '[tools]\npacks = ["demo"]',
        '[approvals]\nauto_approve = ["pack:d*", "pack:w*"]\n'
        '[tools]\npacks = ["demo", "workspace"]',
        "config.W112",
        "approvals.auto_approve",
    ),
    ExposureCase(
        "[tools]",
        f"[limits]\n{NO_REQUEST_LIMIT}concurrency = 0\n[limits.tenant]\nconcurrency = 0\n[tools]",
        "config.E113",
        "limits",
    ),
    ExposureCase(
        "[tools]",
        "[limits]\nrequests_per_second = 1e12\nconcurrency = 1000000000\n"
        "[limits.tenant]\nconcurrency = 1000000000\n[tools]",
        "config.E113",
        "limits",
    ),
    ExposureCase("[tools]", f"[limits]\n{NO_REQUEST_LIMIT}[tools]", "config.W113",
         "limits.requests_per_second"),
    ExposureCase("[tools]", "[limits]\nburst = 1000000000\n[tools]", "config.W113",
         "limits.requests_per_second"),
    ExposureCase("[tools]", "[limits]\naudit_bytes_per_day = 0\n"
         "[limits.tenant]\naudit_bytes_per_day = 0\n[tools]", "config.W122",
         "limits.audit_bytes_per_day"),
    ExposureCase("[tools]", "[limits]\nfailures_per_second = 0\n[tools]", "config.W114",
         "limits.failures_per_second"),
    *host_cases(
        "169.254.169.254",
        "169.254.169.254:80",
        "169.254.170.2:80",
        "[::ffff:169.254.169.254]:80",
        "[64:ff9b::a9fe:a9fe]:80",
        "[fd00:ec2::254]:80",
        "[FD00:EC2:0::254]:80",
        "[fe80::1]:80",
        "100.100.100.200:80",
        "168.63.129.16:80",
        "metadata.google.internal:80",
        "METADATA.google.internal.:80",
    ),
    *host_cases("127.0.0.1:9464", "localhost:9464", "[::1]:9464", "[::ffff:127.0.0.1]:9464",
           "0.0.0.0:9464", "127.0.0.2:9464", id_="config.E115"),
    ExposureCase(
        "[listen]",
        "[network]\nallow_hosts = ['10.0.0.5:9000']\n[listen]\nmetrics = '10.0.0.5:9000'",
        "config.E115",
        "network.allow_hosts[0]",
    ),
    ExposureCase(
        "[listen]",
        "[network]\nallow_hosts = ['127.0.0.1:9000']\n[listen]\nmetrics = '0.0.0.0:9000'",
        "config.E115",
        "network.allow_hosts[0]",
    ),
    *[
        ExposureCase(
            "[tools]", f"[workspace]\nroot = '{root}'\n[tools]", "config.E116", "workspace.root"
        )
        for root in ("/", "//", "/var/..", "/etc", "/usr/share/x", "/home", "/home/alice",
                     "/proc/self/cwd/../../../../../../..", "slash", "slash/var/../etc")
    ],
]  # fmt: skip


@pytest.mark.parametrize("case", EXPOSURE_CASES, ids=lambda case: f"{case.id} {case.new}"[:70])
def test_a_setting_that_exposes_too_much_is_reported(folder: Path, case: ExposureCase) -> None:
    """Each problem has its id and setting; an error prevents the server's start."""
    Path("slash").symlink_to("/")
    assert case.old in VALID_CONFIG

    problems = problems_found(VALID_CONFIG.replace(case.old, case.new))

    assert (case.id, case.setting) in [(id_, setting) for id_, setting, _ in problems]


@pytest.mark.parametrize("case", EXPOSURE_CASES, ids=lambda case: f"{case.id} {case.new}"[:70])
def test_exposure_problems_are_not_reported_in_development(
    folder: Path, case: ExposureCase
) -> None:
    """The development server answers this machine only."""
    Path("slash").symlink_to("/")
    text = VALID_CONFIG.replace(case.old, case.new)

    assert case.id not in [id_ for id_, _, _ in problems_found(f'mode = "development"\n{text}')]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["10.0.0.0/8"]', '["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8"]'),
        ('["10.0.0.0/8"]', '["104.16.0.0/13", "172.64.0.0/13", "2606:4700::/32"]'),
        ("[listen]", "[listen]\nallowed_origins = ['https://app.example.com']"),
        ("[tools]", "[approvals]\nauto_approve = ['whoami', 'ec*']\n[tools]"),
        ("[tools]", "[network]\nallow_hosts = ['10.0.0.7:8080', '127.0.0.1:9465']\n[tools]"),
        ("[tools]", "[limits.tenant]\nrequests_per_second = 100\n[tools]"),
        ("[tools]", "[workspace]\nroot = '/var/lib/gatepost/workspaces'\n[tools]"),
    ],
)
def test_ordinary_production_settings_have_no_exposure_problem(
    folder: Path, old: str, new: str
) -> None:
    """Operators ignore a check that reports false alarms."""
    assert problems_found(VALID_CONFIG.replace(old, new)) == []


def test_environment_variables_are_checked_like_the_file(folder: Path) -> None:
    """Containers are usually configured by variables."""
    environment = {
        "GATEPOST_LISTEN__TRUSTED_PROXIES": '["0.0.0.0/0"]',
        "GATEPOST_WORKSPACE__ROOT": "/",
    }

    ids = [id_ for id_, _, _ in problems_found(VALID_CONFIG, environment)]

    assert [id_ for id_ in ids if ".E" in id_] == ["config.E110", "config.E116"]


OWN_TOOL_CONFIG = VALID_CONFIG.replace('packs = ["demo"]', 'load = ["tools/mine.py"]')


@pytest.mark.parametrize(
    ("location", "mode", "id_"),
    [
        ("tools/mine.py", 0o646, "config.E117"),
        ("tools", 0o777, "config.E117"),
        (".", 0o777, "config.E117"),
        ("tools/__pycache__", 0o777, "config.E117"),
        ("real", 0o777, "config.E117"),
        ("real/linked.py", 0o666, "config.E117"),
        ("tools", 0o1777, None),
        ("tools/mine.py", 0o644, None),
    ],
)
def test_a_tool_that_every_user_can_change_is_found(
    folder: Path, location: str, mode: int, id_: str | None
) -> None:
    """The check covers the file, its bytecode, its folders and the target of a link."""
    for name in ("tools", "real"):
        Path(name).mkdir(mode=0o755)
    Path("real/linked.py").write_text(TOOL)
    if location.startswith("real"):
        Path("tools/mine.py").symlink_to("../real/linked.py")
    else:
        Path("tools/mine.py").write_text(TOOL)
    Path("tools/__pycache__").mkdir(mode=0o755)
    Path(location).chmod(mode)

    problems = [(id_, setting) for id_, setting, _ in problems_found(OWN_TOOL_CONFIG)]

    Path(location).chmod(0o755)
    assert problems == ([(id_, "tools.load[0]")] if id_ else [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("location", ["tools/mine.py", "tools"])
def test_a_tool_of_another_user_is_a_warning(folder: Path, location: str) -> None:
    """Its owner can change it whatever its mode says."""
    Path("tools").mkdir()
    Path("tools/mine.py").write_text(TOOL)
    os.chown(location, 12345, 0)

    assert [(id_, setting) for id_, setting, _ in problems_found(OWN_TOOL_CONFIG)] == [
        ("config.W117", "tools.load[0]")
    ]


@pytest.mark.parametrize(
    ("mode", "ids"),
    [
        (0o600, []),
        (0o640, []),
        (0o644, ["config.W118"]),
        (0o602, ["config.E118"]),
        (0o666, ["config.E118", "config.W118"]),
    ],
)
def test_a_client_secret_that_others_can_read_is_found(
    folder: Path, mode: int, ids: list[str]
) -> None:
    """The problem names the setting that refers to the file."""
    Path("secret").write_text("a secret of a client")
    Path("secret").chmod(mode)
    text = VALID_CONFIG.replace(
        'tenant = { claim = "org_id" }',
        'tenant.claim = "org_id"\nintrospection.client_id = "g"\n'
        'introspection.client_secret = "file:secret"',
    )

    problems = [(id_, setting) for id_, setting, _ in problems_found(text)]

    assert problems == [(id_, "issuers[0].introspection.client_secret") for id_ in ids]


@pytest.mark.parametrize(("mode", "code"), [(0o644, 0), (0o666, 1)])
def test_a_configuration_that_every_user_can_change_is_refused(
    folder: Path, mode: int, code: int
) -> None:
    """`gatepost check` checks the permissions of its own file."""
    Path("gatepost.toml").write_text(VALID_CONFIG)
    Path("gatepost.toml").chmod(mode)

    result = CliRunner().invoke(main, ["check", "--config", "gatepost.toml"])

    assert result.exit_code == code, result.output
    assert ("config.E119" in result.output) == bool(code)
