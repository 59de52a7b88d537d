"""The bench of redaction searches what it says, and shows it."""

from bench.redaction import SECRETS, answers, render, run, secrets
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor


def test_the_measured_answers_contain_no_secret() -> None:
    """The bench measures the search of answers without secrets, as most answers are."""
    redactor = Redactor(secrets(20))

    assert [name for name, each in answers(20_000).items() if cleaned(each, redactor)] == []


def test_the_report_has_a_line_for_each_kind_of_answer() -> None:
    """A further line has the cost of building the automaton."""
    costs, makings = run(1, size=5_000)
    lines = render(costs, makings).splitlines()

    assert len(costs) == len(answers(100)) * len(SECRETS)
    assert len(lines) == 2 + len(answers(100))
    assert lines[0].split() == ["answer", *f"{' secrets '.join(map(str, SECRETS))} secrets".split()]
