"""Whatever is asked, what git gets is of the table: searched for, not listed."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gatepost_packs.git.permitted_commands import RULES, ArgumentsRefused
from gatepost_packs.git.policy import decide

pytestmark = pytest.mark.requirement("X2")

WORDS = st.sampled_from(
    [
        *("--", "-C", "-c", "-u", "-m", "--upload-pack=id", "--output=/x", "-oProxyCommand=id"),
        *("ext::sh", "..", "../..", "/etc/passwd", "/workspace/../..", ".git", ".GIT/hooks"),
        *("https://h.example/a", "git@h.example:a", "file:///x", "origin", "main", "HEAD"),
        *(flag for rule in RULES.values() for flag in sorted(rule.flags)),
        *(f"{name}=1" for rule in RULES.values() for name in sorted(rule.values)),
    ]
)


def is_known(option: str, command: str) -> bool:
    rule = RULES[command]
    name = option.partition("=")[0]
    return (
        option in rule.flags
        or option in rule.forced
        or name in {*rule.values, *rule.optional, *rule.message}
        or any(option.removeprefix(short).isdigit() for short in rule.numbers)
    )


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(
        st.one_of(WORDS, st.text(max_size=12), st.text("-.=:/@~ gitu", max_size=8)), max_size=8
    ),
)
@example("commit", ["-m", "--upload-pack=id"])
@example("add", ["ext::sh"])
@example("clone", ["https://h.example/a", "--", "x"])
def test_git_gets_only_options_that_the_table_allows(command: str, rest: list[str]) -> None:
    """The check never raises, and no path leads out of the workspace."""
    plan = decide([command, *rest])
    if isinstance(plan, ArgumentsRefused):
        assert plan.message
        return
    assert plan.argv[0] == command
    words = list(plan.argv[1:])
    takes: Callable[[str], bool] = lambda word: (  # noqa: E731
        word in {"-m", "-n", "-b", "-B", "-u"} and (word in RULES[command].values or word == "-m")
    )
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("-"):
            assert is_known(word, command), plan.argv
            if takes(word) and words:
                words.pop(0)
    for word in plan.argv:
        assert "\0" not in word
        assert not word.startswith("/")
        # A file of the workspace may have such a name.
        assert RULES[command].kinds == ("path",) or not word.startswith(("ext::", "file:"))
    for word in words:
        assert ".." not in word.split("/")
