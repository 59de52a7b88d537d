"""`python -m bench --redaction`: what searching a megabyte costs, by the number of secrets."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from bench.report import number, table
from gatepost.redaction.json_document import cleaned
from gatepost.redaction.redactor import Redactor

SECRETS = (0, 1, 100, 1_000)
SECRET_CHARACTERS = 40
MEGABYTE = 1_000_000
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@dataclass(frozen=True)
class RedactionCost:
    """One kind of answer with so many secrets: milliseconds a megabyte, and times the floor's."""

    answer: str
    secrets: int
    ms: float
    ratio: float


@dataclass(frozen=True)
class Making:
    """What a redactor of so many secrets costs to make, in milliseconds."""

    secrets: int
    ms: float


def random_text(generator: Random, size: int) -> str:
    """Return lines of text as reports and logs have them."""
    vocabulary = [
        "".join(generator.choices(DIGITS[26:52], k=generator.randint(2, 11))) for _ in range(2_000)
    ]
    lines = []
    while size > 0:
        line = " ".join(generator.choices(vocabulary, k=generator.randint(6, 14)))
        lines.append(line)
        size -= len(line) + 1
    return "\n".join(lines)


def rows(generator: Random, size: int) -> str:
    """Return JSON as APIs answer it: strings, names, numbers, addresses with escapes."""
    count = size // 150
    return json.dumps(
        [
            {
                "id": number,
                "name": "".join(generator.choices(DIGITS, k=12)),
                "url": f"https://api.example.com/items/{number}?q=a%20b&page=2",
                "note": 'said "yes"\nand left',
                "total": generator.random() * 1000,
            }
            for number in range(count)
        ]
    )


def digits(generator: Random, size: int) -> str:
    """Return a file in base64, where each pattern of base64 might begin."""
    return "".join(generator.choices(DIGITS[:62], k=size))


def answers(size: int) -> Mapping[str, bytes]:
    """Return the answers to search, as blocks or as a structured value; always the same."""
    generator = Random(4)
    encode = msgspec.json.encode
    return {
        "text": encode([{"type": "text", "text": random_text(generator, size)}]),
        "JSON as text": encode([{"type": "text", "text": rows(generator, size)}]),
        "JSON as value": rows(generator, size).encode(),
        "base64": encode([{"type": "text", "text": digits(generator, size)}]),
    }


def secrets(count: int) -> dict[str, str]:
    """Return *count* secrets, none of which is in the answers."""
    generator = Random(5)
    return {
        f"S{at}": "".join(generator.choices(DIGITS, k=SECRET_CHARACTERS)) for at in range(count)
    }


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds of this process's CPU that *work* takes."""
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1000


def run(rounds: int, size: int = MEGABYTE) -> tuple[list[RedactionCost], list[Making]]:
    """
    Search every answer with every number of secrets, in turn, so many times.

    The floor is what any server does with an answer at the least: encode it.
    """
    making: dict[int, list[float]] = {count: [] for count in SECRETS}
    redactors: dict[int, Redactor] = {}
    searched: dict[tuple[str, int], list[tuple[float, float]]] = {}
    documents = answers(size)
    for _ in range(rounds):
        for count in SECRETS:
            values = secrets(count)
            begun = time.process_time()
            redactors[count] = Redactor(values)
            making[count].append((time.process_time() - begun) * 1000)
        for name, document in documents.items():
            value = msgspec.json.decode(document)
            floor = min(timed(lambda: msgspec.json.encode(value)) for _ in range(3))  # noqa: B023
            for count in SECRETS:
                blocks = name != "JSON as value"
                ms = timed(lambda: cleaned(document, redactors[count], blocks=blocks))  # noqa: B023
                scale = MEGABYTE / len(document)
                searched.setdefault((name, count), []).append((ms * scale, ms / (floor or ms)))
    costs = [
        RedactionCost(
            name, count, median(ms for ms, _ in pairs), median(ratio for _, ratio in pairs)
        )
        for (name, count), pairs in searched.items()
    ]
    return costs, [Making(count, median(times)) for count, times in making.items()]


def render(costs: Sequence[RedactionCost], makings: Sequence[Making]) -> str:
    """Render milliseconds a megabyte, with their ratio to the floor; then what making costs."""
    head = ["answer", *(f"{count} secrets" for count in SECRETS)]
    lines = []
    for name in dict.fromkeys(cost.answer for cost in costs):
        by_secrets = {cost.secrets: cost for cost in costs if cost.answer == name}
        cells = [f"{number(by_secrets[n].ms)} ({number(by_secrets[n].ratio)})" for n in SECRETS]
        lines.append([name, *cells])
    lines.append(["making, ms", *(number(making.ms) for making in makings)])
    return table(head, lines)


def save(
    costs: Sequence[RedactionCost],
    makings: Sequence[Making],
    machine: Mapping[str, object],
    path: Path,
) -> None:
    """Write every figure, and where it was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "machine": machine,
        "costs": [asdict(cost) for cost in costs],
        "making": [asdict(making) for making in makings],
    }
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")
