"""Starlark scripts."""

from tests.packs.pages import MUST, READS, Page

RUNS = "FTFT"

PAGES = {
    "script_list": Page("scripts", {}, READS, "scripts:read", "P10"),
    "script_run": Page(
        "scripts",
        {"name": ("string", MUST), "function": ("string?", None), "args": ("array", [])},
        RUNS,
        "scripts:run",
        "P10",
    ),
    "script_exec": Page("scripts", {"code": ("string", MUST)}, RUNS, "scripts:exec", "P10"),
    "script_reload": Page("scripts", {}, "FFTF", "scripts:run", "P10"),
}
