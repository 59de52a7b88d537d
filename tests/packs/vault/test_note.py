"""A note says what it is called, what it is about, and where it leads; code in it says nothing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost_packs.vault.note import MAX_READ, STEP, read_note, section
from gatepost_packs.vault.note_names import chosen, key_of, keys_of, relative_target
from tests.support.measuring import HOLD_S, count_lines, each, shortest_hold

TITLES = [
    ("---\ntitle: Of its own\n---\n# Heading", "Of its own"),
    ("---\ntitle: 7\n---\n# Heading", "Heading"),
    ("text\n# Heading #\n# Second", "Heading"),
    ("   # Heading with `code` and *stars*", "Heading with `code` and *stars*"),
    ("## Second level\n# First level", "First level"),
    ("```\n# comment\n```\ntext", "Note"),
    ("    # indented\n", "Note"),
    ("#tag\n", "Note"),
    ("# \ntext", "Note"),
    ("# C#", "C#"),
    ("", "Note"),
]


@pytest.mark.requirement("P5")
@each(("text", "title"), TITLES, ids=[repr(t[0])[:40] for t in TITLES])
def test_a_note_has_a_title(text: str, title: str) -> None:
    """It comes from the front matter, else the first heading of level 1, else the file name."""
    assert read_note("folder/Note.md", text).title == title


TAGS = [
    ("#one and #two-2, #drei_ü!", ["one", "two-2", "drei_ü"]),
    ("#a/b/c #a/ #/x", ["a/b/c", "a", "x"]),
    ("#One #one #ONE", ["One"]),
    ("#1984 #y1984 #12/3", ["y1984"]),
    ("word#no http://x/#no (#no) ##no # no", []),
    ("#日本 #🏷️", ["日本", "🏷️"]),
    ("---\ntags: [a, '#b', 2024x, 7]\ntag: c\n---\n#d #A", ["a", "b", "2024x", "7", "c", "d"]),
    ("---\ntags: a, b c\n---\n", ["a", "b", "c"]),
    ("---\ntags: [[x], {y: z}, null, true]\n---\n", ["True"]),
    ("`#no` ``#no ` #no`` #yes ` #too", ["yes", "too"]),
    ("```\n#no\n```\n#yes\n~~~sh\n#no\n```\n#no\n~~~\n#too", ["yes", "too"]),
    ("````\n```\n#no\n```\n#no\n````\n#yes", ["yes"]),
    ("- item\n  ```\n  #no\n  ```\n\n> ```\n> #no\n> ```\n#yes", ["yes"]),
    ("text\n\n    #no\n\n- item\n\n    #yes\n", ["yes"]),
    ("```\n#no, as it never ends", []),
    ("`a\n\n#yes` b", ["yes"]),
    ("\\`#yes`".replace("#", " #"), ["yes"]),
    ("[[Note#heading]] [x](#heading) [[#heading]]", []),
]


@pytest.mark.requirement("P5")
@each(("text", "tags"), TAGS, ids=[repr(t[0])[:40] for t in TAGS])
def test_a_note_has_tags(text: str, tags: list[str]) -> None:
    """They come from text and front matter, nested ones too, each once, and not from code."""
    assert list(read_note("Note.md", text).tags) == tags


LINKS = [
    ("[[Other]]", [("Other", "", "", False, False)]),
    ("[[a/Other|shown]]", [("a/Other", "", "shown", False, False)]),
    ("[[Other#Part|x]]", [("Other", "Part", "x", False, False)]),
    ("[[Other#^block]]", [("Other", "^block", "", False, False)]),
    ("![[image.png|200]]", [("image.png", "", "200", True, False)]),
    ("| [[Other\\|x]] |", [("Other", "", "x", False, False)]),
    ("[[]] [[ ]] [[#here]] [[a\nb]] [not] [[open", []),
    ("[t](Other.md)", [("Other.md", "", "t", False, True)]),
    ('[t](../My%20Note.md#Part "title")', [("../My Note.md", "Part", "t", False, True)]),
    ("[t](<My Note.md>)", [("My Note.md", "", "t", False, True)]),
    ("![alt](a(1).png)", [("a(1).png", "", "alt", True, True)]),
    ("[![alt](i.png)](Other.md)", [("i.png", "", "alt", True, True)]),
    ("[t](https://x/y.md) [t](mailto:a@b) [t](//x/y) [t](#here) [t]()", []),
    ("[t][r]\n\n[r]: Other.md\n[^1]: foot", [("Other.md", "", "", False, True)]),
    ("`[[no]]` ```x [[no]]```\n\n    [[no]]\n", []),
    ("[[a]] [[a]] [[A]]", [("a", "", "", False, False)] * 2 + [("A", "", "", False, False)]),
]


@pytest.mark.requirement("P5")
@each(("text", "links"), LINKS, ids=[repr(t[0])[:40] for t in LINKS])
def test_a_note_has_links(text: str, links: list[tuple[object, ...]]) -> None:
    """Wiki links, embeds and Markdown links within the vault, in the order of the text."""
    note_links = read_note("Note.md", text).links

    assert [(x.target, x.heading, x.text, x.embed, x.relative) for x in note_links] == links


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(
    ("text", "aliases"),
    [
        ("---\naliases: [A b, C]\nalias: D, e\n---\n", ["A b", "C", "D", "e"]),
        ("---\naliases: One, Two\n---\n", ["One", "Two"]),
        ("---\naliases:\n---\n", []),
        ("no", []),
    ],
    ids=repr,
)
def test_a_note_has_other_names(text: str, aliases: list[str]) -> None:
    """A list, or one text with commas."""
    assert list(read_note("Note.md", text).aliases) == aliases


BODY = "# One\na\n## Two\nb\n```\n## No\n```\n### Three\nc\n## Four\nd\n"


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(
    ("heading", "part"),
    [
        ("Two", "## Two\nb\n```\n## No\n```\n### Three\nc"),
        ("two", "## Two\nb\n```\n## No\n```\n### Three\nc"),
        ("One#Three", "### Three\nc"),
        ("Four", "## Four\nd\n"),
        ("No", None),
        ("Five", None),
    ],
)
def test_a_heading_selects_the_text_down_to_the_next_one_of_its_level(
    heading: str, part: str | None
) -> None:
    """Down to the next one of its level."""
    assert section(BODY, heading) == part


@pytest.mark.requirement("P5")
@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("note", ["note.md", "a/Note.md", "b/c/note.md"]),
        ("NOTE.md", ["note.md", "a/Note.md", "b/c/note.md"]),
        ("a/note", ["a/Note.md"]),
        ("c/note", ["b/c/note.md"]),
        ("ote", []),
        ("x.png", ["x.png"]),
        ("cafe\u0301", ["Caf\u00e9.md"]),
    ],
)
def test_a_link_means_the_note_with_the_shortest_path(link: str, expected: list[str]) -> None:
    """An exact path comes first; case and Unicode normalization do not matter."""
    paths = ["b/c/note.md", "a/Note.md", "note.md", "x.png", "Caf\u00e9.md"]

    assert chosen(key_of(link), paths) == expected


@pytest.mark.requirement("P5")
def test_a_relative_path_stays_in_the_vault() -> None:
    """A link out of the vault has no target."""
    assert relative_target("a/b/n.md", "../c.md") == "a/c.md"
    assert relative_target("a/b/n.md", "./d/../c.md") == "a/b/c.md"
    assert relative_target("a/n.md", "../../c.md") is None
    assert keys_of("a/B/C.md") == ["a/b/c", "b/c", "c"]


GROWING_TEXTS = {
    "brackets": "[",
    "double brackets": "[[",
    "ticks": "`",
    "ticks of all lengths": "`` ` ``` ",
    "open links": "[a](",
    "open links with blanks": "[a]( ",
    "blanks": " ",
    "lines of blanks": "  \n",
    "headings with blanks": "# a ",
    "one heading of blanks": "# a\t",
    "tags": "#a",
    "definitions": "[a]: ",
    "quotes": "> ",
    "backslashes": "[\\",
    "dashes": "---\n",
    "fences": "```\n",
    "bars": "[[a|",
}


@pytest.mark.requirement("P5")
@each("piece", GROWING_TEXTS.values(), ids=GROWING_TEXTS)
def test_any_note_is_parsed_in_bounded_steps(piece: str) -> None:
    """Half a megabyte of the same is read, in steps that only add up."""
    small, large = piece * 500, piece * 5_000
    few, many = (
        count_lines(lambda: read_note("n.md", small)),
        count_lines(lambda: read_note("n.md", large)),
    )

    assert many <= few * 12 + 1_000
    read_note("n.md", piece * (500_000 // len(piece)))


@pytest.mark.requirement("P5")
@given(st.text(alphabet="#[]()|`~!>- \t\n\\:ab/*\u2028é", max_size=200))
def test_any_text_is_a_note(text: str) -> None:
    """No text raises an error, and all of it is kept."""
    note = read_note("n.md", text)

    assert note.front_matter.raw + note.front_matter.body == text
    assert all(tag.strip() == tag != "" for tag in note.tags)


def test_links_and_tags_are_found_wherever_a_long_text_is_searched_in_steps() -> None:
    """Each is found once, also at the border of two steps."""
    for before in range(STEP - 40, STEP + 3):
        text = "x" * before + " [[Wiki]] [text](Mark.md) #tag [[Last]]"
        note = read_note("n.md", text)
        assert [link.target for link in note.links] == ["Wiki", "Mark.md", "Last"]
        assert note.tags == ("tag",)


@pytest.mark.parametrize("unit", ["[a](", "[](", "[a](<", "[[a", "` `` ", "#a", "\n"])
async def test_a_long_note_delays_no_other_call(unit: str) -> None:
    """A single search of the whole text would hold the interpreter until its end."""
    text = (unit * (3_900_000 // len(unit))) + "`"
    hold_s, limit = await shortest_hold(lambda: asyncio.to_thread(read_note, "n.md", text), HOLD_S)
    assert hold_s < limit


def test_a_note_is_read_up_to_a_limit() -> None:
    """Text beyond the limit is not parsed."""
    inside = read_note("n.md", "[[A]]\n".ljust(MAX_READ - 10, "x") + "\n[[B]]\n[[C]]")
    assert [link.target for link in inside.links] == ["A", "B"]
