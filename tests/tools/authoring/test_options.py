"""What an author says about a tool is understood, or the pack does not load."""

from pathlib import Path
from typing import NamedTuple

import pytest

from gatepost import Pack
from gatepost.check.pack_loading import LoadedPacks, load
from gatepost.config.settings import ToolsSettings

PACK_SOURCE = """from gatepost import CallContext, Pack
pack = Pack("invoices")
"""
TOOL = '''
{decorator}
async def save(ctx: CallContext{more}) -> str:
    """Save."""
    return "saved"
'''


def packs_of_file(folder: Path, text: str) -> LoadedPacks:
    """Return the packs with one author's file."""
    file = folder / "author.py"
    file.write_text(PACK_SOURCE + text)
    return load(ToolsSettings(load=(str(file),)))


UNKNOWN_TYPES = [
    (
        "option: Option",
        "str",
        "save: parameter option has the type Option, which has no JSON Schema",
    ),
    ("options: list[Option]", "str", "save: parameter options has the type list[Option], which"),
    ("option: str", "Option", "save: the result has the type Option, which has no JSON Schema"),
]


@pytest.mark.parametrize(("parameter", "returned", "says"), UNKNOWN_TYPES)
def test_a_type_without_a_schema_is_named_with_its_parameter(
    tmp_path: Path, parameter: str, returned: str, says: str
) -> None:
    """The message is one line, and says which types can be used."""
    source = f"""
class Option: ...

@pack.tool()
async def save(ctx: CallContext, {parameter}) -> {returned}:
    'Save.'
"""
    message = refusal(tmp_path, source)

    assert says in message
    assert ": use a built-in type, a TypedDict, a dataclass or a pydantic model" in message
    assert "\n" not in message


def refusal(folder: Path, text: str) -> str:
    """Return why the file does not load; assert that none of its offers is there."""
    loaded_packs = packs_of_file(folder, text)
    (problem,) = loaded_packs.problems
    assert problem.id == "config.E011"
    assert problem.level == "error"
    assert not loaded_packs.offers
    return f"{problem.message} {problem.hint}"


class RefusedOption(NamedTuple):
    """How something is offered, and what the refusal says."""

    decorator: str
    says: str
    more: str = ""


UNKNOWN_OPTIONS = [
    RefusedOption('@pack.tool(scope={"files:write"})', "'scope'; did you mean 'scopes'?"),
    RefusedOption("@pack.tool(aproval=True)", "'aproval'; did you mean 'approval'?"),
    RefusedOption("@pack.tool(destructve=True)", "'destructve'; did you mean 'destructive'?"),
    RefusedOption('@pack.tool(nmae="x")', "'nmae'; did you mean 'name'?"),
    RefusedOption("@pack.tool(outputschema={})", "'outputschema'; did you mean 'output_schema'?"),
    RefusedOption("@pack.prompt(nmae='x')", "'nmae'; did you mean 'name'?"),
    RefusedOption('@pack.resource("a://b", nmae="x")', "'nmae'; did you mean 'name'?"),
    RefusedOption('@pack.tool(zzz="x")', "'zzz'; it can be acr_values, approval,"),
    RefusedOption('@pack.tool(mime_type="text/plain")', "'mime_type'"),
    RefusedOption('@pack.resource("a://b", scope={"x"})', "'scope'; did you mean 'scopes'?"),
    RefusedOption(
        '@pack.resource("a://{b}", mimetype="x/y")', "did you mean 'mime_type'?", ", b: str"
    ),
    RefusedOption('@pack.resource("a://b", approval=True)', "'approval'"),
    RefusedOption('@pack.prompt(scope={"x"})', "'scope'; did you mean 'scopes'?"),
    RefusedOption("@pack.prompt(approval=True)", "'approval'"),
]
WRONG_OPTIONS = [
    RefusedOption('@pack.tool(scopes="files:write")', "scopes must be a collection of texts"),
    RefusedOption("@pack.tool(scopes=None)", "scopes must be a collection of texts"),
    RefusedOption("@pack.tool(scopes={1})", "scopes must be a collection of texts"),
    RefusedOption("@pack.tool(scopes=b'files')", "scopes must be a collection of texts"),
    RefusedOption('@pack.tool(acr_values="gold")', "acr_values must be a collection of texts"),
    RefusedOption('@pack.tool(approval="yes")', "approval must be True or False"),
    RefusedOption("@pack.tool(approval=None)", "approval must be True or False"),
    RefusedOption("@pack.tool(destructive=1)", "destructive must be True or False"),
    RefusedOption('@pack.tool(read_only="false")', "read_only must be True or False"),
    RefusedOption('@pack.tool(timeout_s="5")', "timeout_s must be a number above 0"),
    RefusedOption("@pack.tool(timeout_s=0)", "timeout_s must be a number above 0"),
    RefusedOption('@pack.tool(timeout_s=float("inf"))', "timeout_s must be a number above 0"),
    RefusedOption("@pack.tool(max_age_s=True)", "max_age_s must be a whole number"),
    RefusedOption('@pack.tool(task_support="always")', "task_support must be one of forbidden,"),
    RefusedOption("@pack.tool(title=3)", "title must be a text"),
    RefusedOption("@pack.tool(read_only_form=True)", "read_only_form must be a function"),
    RefusedOption("@pack.tool(name=3)", "name must be a text, not 3"),
    RefusedOption('@pack.tool(output_schema="object")', "output_schema must be a JSON Schema"),
    RefusedOption('@pack.resource("a://b", name=3)', "name must be a text, not 3"),
    RefusedOption("@pack.prompt(name=3)", "name must be a text, not 3"),
    RefusedOption('@pack.resource("a://b", scopes="x")', "scopes must be a collection of texts"),
    RefusedOption(
        '@pack.resource("a://b", audience="user")', "audience must be a collection of texts"
    ),
    RefusedOption('@pack.resource("a://b", priority="1")', "priority must be a number"),
    RefusedOption('@pack.resource("a://b", ttl_s=-1)', "ttl_s must be a number from 0"),
    RefusedOption('@pack.prompt(scopes="x")', "scopes must be a collection of texts"),
    RefusedOption('@pack.prompt(icons="x.png")', "icons must be a collection of Icon"),
]


@pytest.mark.parametrize("case", UNKNOWN_OPTIONS + WRONG_OPTIONS, ids=lambda case: case.decorator)
def test_an_unknown_option_makes_the_pack_fail_to_load(tmp_path: Path, case: RefusedOption) -> None:
    """A misspelt option would leave a tool open; the refusal names the option and where it is."""
    refusal_text = refusal(tmp_path, TOOL.format(decorator=case.decorator, more=case.more))

    assert case.says in refusal_text
    assert "pack invoices" in refusal_text
    assert " save " in refusal_text
    assert f"{tmp_path / 'author.py'}:4" in refusal_text


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ('Pack("other", scopes={"x"})', "unexpected keyword argument 'scopes'"),
        ("pack.skill('greet', scope={'x'})", "skill greet: there is no option 'scope'; did you"),
        ("pack.skill('greet', scopes='x')", "scopes must be a collection"),
        ("pack.skill('greet', name='x')", "skill greet: there is no option 'name'"),
        (
            "from gatepost import Effects\n"
            "@pack.tool(effects=Effects(read_only='false'))\nasync def save(ctx): ...",
            "Effects: read_only must be True or False, not 'false'",
        ),
        (
            "async def invoke(ctx, arguments): ...\n"
            "pack.add('raw', description='x', input_schema={'type': 'object'}, invoke=invoke,"
            " aproval=True)",
            "tool raw: there is no option 'aproval'; did you mean 'approval'?",
        ),
        ('@pack.tool("save")\nasync def save(ctx): ...', 'write @pack.tool(name="...")'),
        ('@pack.prompt("save")\nasync def save(ctx): ...', 'write @pack.prompt(name="...")'),
        ("@pack.resource\nasync def save(ctx): ...", "a resource needs a URI"),
    ],
)
def test_packs_skills_and_raw_schemas_refuse_unknown_options(
    tmp_path: Path, text: str, expected_text: str
) -> None:
    """All of them refuse unknown options."""
    assert expected_text in refusal(tmp_path, text)


def test_a_decorator_without_parentheses_offers_the_function() -> None:
    """`@pack.tool` and `@pack.prompt` alone mean no options."""
    pack = Pack("plain")

    @pack.tool
    def add(ctx: object, a: int, b: int) -> int:
        """Add."""
        return a + b

    @pack.prompt
    def greet(ctx: object) -> str:
        """Greet."""
        return "Greet the visitor."

    assert set(pack.tools) == {"add"}
    assert pack.tools["add"].scopes == frozenset()
    assert set(pack.prompts) == {"greet"}
    assert add(None, 1, 2) == 3
    assert greet(None) == "Greet the visitor."
