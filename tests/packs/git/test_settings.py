"""What `gatepost check` says of the packs' tables and of the machine."""

from typing import Any

import pytest

from gatepost.sandbox.launch import landlock_version
from gatepost_packs.git import process_environment
from gatepost_packs.ssh.settings import OFFICIAL, SshSettings
from tests.support.issuers import Idp
from tests.support.measuring import each
from tests.support.server import check_problems, issuer_settings

KEY = OFFICIAL[0].split(" ")[2]


def problems_of(**settings: Any) -> list[tuple[str, str]]:
    """Return the ids and settings of the problems with these packs."""
    with Idp() as idp:
        reported_problems = check_problems(
            [issuer_settings(idp)], tools={"packs": ["git", "ssh"]}, **settings
        )
    return [
        (problem.id, problem.setting)
        for problem in reported_problems
        if problem.id[7:] in {"E060", "E070", "W070", "W071", "W072"}
    ]


@pytest.mark.requirement("X2", "X3")
def test_valid_settings_are_not_reported() -> None:
    """The machine has git and ssh; without Landlock there is a warning."""
    packs = {
        "git": {"credentials": {"gitlab.com": "secret:TOKEN", "h.example:8443": "secret:T2"}},
        "ssh": {
            "known_hosts": [
                f"h.example ssh-ed25519 {KEY}",
                f"[h.example]:2222 ssh-ed25519 {KEY} me",
            ]
        },
    }
    unconfined = [] if landlock_version() else [("config.W070", "tools.packs")]

    assert problems_of(packs=packs) == unconfined
    assert SshSettings(**packs["ssh"]).lines[:2] == OFFICIAL


REFUSED_SETTINGS = [
    ({"git": {"credentials": {"gitlab.com": "glpat-literal"}}}, "packs.git.credentials"),
    ({"git": {"credentials": {"gitlab.com": "secret:gitlab_token"}}}, "packs.git.credentials"),
    ({"git": {"credentials": {"https://gitlab.com": "secret:A"}}}, "packs.git.credentials"),
    ({"git": {"credentials": {"GitLab.com": "secret:A"}}}, "packs.git.credentials"),
    ({"git": {"max_output_bytes": 1}}, "packs.git.max_output_bytes"),
    ({"ssh": {"known_hosts": ["h.example"]}}, "packs.ssh.known_hosts[0]"),
    ({"ssh": {"known_hosts": [f"* ssh-ed25519 {KEY}"]}}, "packs.ssh.known_hosts[0]"),
    (
        {"ssh": {"known_hosts": [f"@cert-authority h ssh-ed25519 {KEY}"]}},
        "packs.ssh.known_hosts[0]",
    ),
    ({"ssh": {"known_hosts": [f"h ssh-rsa {KEY}"]}}, "packs.ssh.known_hosts[0]"),
    ({"ssh": {"known_hosts": ["h ssh-ed25519 AAAA="]}}, "packs.ssh.known_hosts[0]"),
    ({"ssh": {"known_hosts": [f"h ssh-ed25519 {KEY}\nevil"]}}, "packs.ssh.known_hosts[0]"),
]


@pytest.mark.requirement("X2", "X3")
@each(("packs", "setting"), REFUSED_SETTINGS, ids=[str(case[0])[:60] for case in REFUSED_SETTINGS])
def test_an_invalid_setting_is_named(packs: dict[str, Any], setting: str) -> None:
    """The error does not repeat a value that may be a token."""
    with Idp() as idp:
        reported_problems = check_problems([issuer_settings(idp)], packs=packs)

    assert [problem.setting for problem in reported_problems if problem.id == "config.E060"] == [
        setting
    ]
    assert all("glpat" not in problem.message + problem.hint for problem in reported_problems)


@pytest.mark.requirement("X2")
def test_missing_programs_of_the_machine_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each problem has its id; without the git pack there is none."""
    monkeypatch.setattr(process_environment, "confines", lambda: False)
    monkeypatch.setattr(process_environment.shutil, "which", lambda name: None)
    ids = [id_ for id_, _ in problems_of(network={"proxy": "http://127.0.0.1:3128"})]

    assert ids == ["config.E070", "config.W071", "config.W070", "config.W072"]
    with Idp() as idp:
        assert not [
            problem
            for problem in check_problems([issuer_settings(idp)])
            if problem.id.endswith(("070", "071", "072"))
        ]
    monkeypatch.setattr(process_environment, "git_version", lambda: (2, 37))
    assert ("config.E070", "tools.packs") in problems_of()
