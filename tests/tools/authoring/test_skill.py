"""Skills: a folder becomes an entry and files, or a sentence says why not."""

import hashlib
from pathlib import Path

import pytest

from gatepost.tools.authoring.skill import MAX_FILES, read_skill

VALID_MANIFEST = "---\nname: brew-tea\ndescription: Brew a good cup of tea.\n---\n\n# Tea\n"


def a_skill(
    folder: Path, manifest: str | bytes = VALID_MANIFEST, *, name: str = "brew-tea"
) -> Path:
    skill = folder / name
    (skill / "references").mkdir(parents=True)
    text = manifest.encode() if isinstance(manifest, str) else manifest
    (skill / "SKILL.md").write_bytes(text)
    (skill / "references/times.csv").write_text("kind,minutes\ngreen,2\n")
    return skill


def test_an_entry_names_every_file_with_its_digest_and_size(tmp_path: Path) -> None:
    """A client that downloads them can tell that nothing was changed or left out."""
    skill = read_skill(a_skill(tmp_path), authority="kitchen")

    times = b"kind,minutes\ngreen,2\n"
    assert skill.entry == {
        "uri": "skill://kitchen/brew-tea/SKILL.md",
        "frontmatter": {"name": "brew-tea", "description": "Brew a good cup of tea."},
        "resources": [
            {
                "uri": "skill://kitchen/brew-tea/SKILL.md",
                "digest": f"sha256:{hashlib.sha256(VALID_MANIFEST.encode()).hexdigest()}",
                "size": len(VALID_MANIFEST),
            },
            {
                "uri": "skill://kitchen/brew-tea/references/times.csv",
                "digest": f"sha256:{hashlib.sha256(times).hexdigest()}",
                "size": len(times),
            },
        ],
    }
    assert [file.media_type for file in skill.files] == ["text/markdown", "text/csv"]


def test_a_folder_shows_its_direct_children(tmp_path: Path) -> None:
    """Folders among them say so, and are the only ones that have any."""
    skill = read_skill(a_skill(tmp_path), authority="kitchen")

    top = skill.folders["skill://kitchen/brew-tea"]
    below = skill.folders["skill://kitchen/brew-tea/references"]

    assert [(child["name"], child["mimeType"]) for child in top] == [
        ("SKILL.md", "text/markdown"),
        ("references", "inode/directory"),
    ]
    assert [child["uri"] for child in below] == ["skill://kitchen/brew-tea/references/times.csv"]
    assert len(skill.folders) == 2


def test_frontmatter_values_stay_as_written(tmp_path: Path) -> None:
    """A date stays, too, although YAML would turn it into a type that JSON lacks."""
    manifest = VALID_MANIFEST.replace(
        "---\n\n", "metadata:\n  since: 2026-11-22\n  count: 3\n---\n\n"
    )

    skill = read_skill(a_skill(tmp_path, manifest), authority="kitchen")

    assert skill.frontmatter["metadata"] == {"since": "2026-11-22", "count": 3}


def test_hidden_files_are_no_part_of_a_skill(tmp_path: Path) -> None:
    """A hidden file is neither listed nor served."""
    folder = a_skill(tmp_path)
    (folder / ".DS_Store").write_bytes(b"\0")

    assert len(read_skill(folder, authority="kitchen").files) == 2


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ("# Tea\n", "must begin with YAML"),
        ("---\nname: [\n---\n", "not valid YAML at line 3"),
        ("---\n- a\n---\n", "names and values"),
        ("---\ndescription: x\n---\n", "`name`"),
        ("---\nname: brew-tea\n---\n", "`description`"),
        ("---\nname: other\ndescription: x\n---\n", "its folder 'brew-tea'"),
        ("---\nname: brew-tea\ndescription: x\nmetadata: {1: a}\n---\n", "the key 1"),
        ("---\nname: brew-tea\ndescription: x\nmetadata: {a: .nan}\n---\n", "nan"),
        (
            "---\nname: brew-tea\ndescription: x\na: !!python/name:os.system\n---\n",
            "has the YAML tag",
        ),
        ("---\nname: brew-tea\ndescription: x\na: !!binary aGk=\n---\n", "has the YAML tag"),
    ],
)
def test_a_manifest_that_no_client_could_use_is_refused(
    tmp_path: Path, manifest: str, sentence: str
) -> None:
    """The error names the file and the problem."""
    folder = a_skill(tmp_path, manifest)

    with pytest.raises(ValueError, match=r"SKILL\.md|is no skill") as raised:
        read_skill(folder, authority="kitchen")

    assert sentence in str(raised.value)


@pytest.mark.parametrize("name", ["Brew-Tea", "-tea", "tea-", "brew--tea", "t" * 65, "brew_tea"])
def test_a_name_follows_the_rules_of_agent_skills(tmp_path: Path, name: str) -> None:
    """The name is part of every URI of the skill."""
    folder = a_skill(tmp_path, VALID_MANIFEST.replace("brew-tea", name), name=name)

    with pytest.raises(ValueError, match="a name is"):
        read_skill(folder, authority="kitchen")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """It would publish another file of the machine."""
    folder = a_skill(tmp_path)
    (tmp_path / "secret").write_text("s3cret")
    (folder / "references/notes.txt").symlink_to(tmp_path / "secret")

    with pytest.raises(ValueError, match="leads out"):
        read_skill(folder, authority="kitchen")


def test_a_skill_beyond_the_limits_of_clients_is_refused(tmp_path: Path) -> None:
    """The limits concern the files, and names that no URI can hold unchanged."""
    folder = a_skill(tmp_path)
    (folder / "a file").write_text("")
    with pytest.raises(ValueError, match="no name a URI can hold"):
        read_skill(folder, authority="kitchen")
    (folder / "a file").unlink()

    for number in range(MAX_FILES):
        (folder / f"{number}.txt").write_text("")
    with pytest.raises(ValueError, match="more than 512 files"):
        read_skill(folder, authority="kitchen")


def test_a_folder_without_a_manifest_is_no_skill(tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises(ValueError, match=r"no SKILL\.md"):
        read_skill(tmp_path, authority="kitchen")
