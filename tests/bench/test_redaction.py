"""The bench of redaction searches what it says, and shows it."""

from bench.redaction import SECRETS, answers, render, run, secrets
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor


def test_the_answers_hold_no_secret() -> None:
    """What is measured is the search of answers without any, as most are."""
    redactor = Redactor(secrets(20))

    assert [name for name, each in answers(20_000).items() if cleaned(each, redactor)] == []


def test_each_answer_is_shown_with_each_number_of_secrets() -> None:
    """One line for each kind of answer, and one for what making the automaton costs."""
    costs, makings = run(1, size=5_000)
    lines = render(costs, makings).splitlines()

    assert len(costs) == len(answers(100)) * len(SECRETS)
    assert len(lines) == 2 + len(answers(100))
    assert lines[0].split() == ["answer", *f"{' secrets '.join(map(str, SECRETS))} secrets".split()]
