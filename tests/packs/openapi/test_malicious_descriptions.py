"""Descriptions of attackers and of careless authors do no harm."""

import json
from typing import Any

import pytest

from gatepost_packs.openapi.description.document import ApiDescription
from gatepost_packs.openapi.description.operation import read_operation
from gatepost_packs.openapi.description.operation_arguments import tool_names
from gatepost_packs.openapi.description.reading import DescriptionUnreadable, canonical
from gatepost_packs.openapi.description.reference import refuse_outside
from gatepost_packs.openapi.description.servers import NoServerUrl, base_url, operation_base
from tests.support.measuring import count_lines, each

pytestmark = pytest.mark.requirement("X7")

DESCRIPTION_HEAD = {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}}


def document(**members: Any) -> ApiDescription:
    """Return the parsed description with these members."""
    return parsed_description(json.dumps({**DESCRIPTION_HEAD, **members}).encode())


def parsed_description(data: bytes) -> ApiDescription:
    description = ApiDescription(canonical(data))
    refuse_outside(description)
    return description


def first_operation(description: ApiDescription) -> Any:
    """Return the whole first operation, which must be JSON."""
    operation = read_operation(description, description.entries[0]).source
    return json.loads(json.dumps(operation))


def nested_aliases(levels: int) -> bytes:
    """Return YAML with ten aliases of ten aliases, and so on."""
    lines = ["openapi: 3.0.0", "x0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [
        f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 10)}]" for level in range(1, levels)
    ]
    return "\n".join(lines).encode()


def nested_merges(levels: int) -> bytes:
    """Return YAML with objects merged from ten merged objects, and so on."""
    lines = ["openapi: 3.0.0", "x0: &x0 {a: 1}"]
    for level in range(1, levels):
        brought = ", ".join([f"*x{level - 1}"] * 10)
        lines.append(f"x{level}: &x{level} {{<<: [{brought}], k{level}: [{brought}]}}")
    return "\n".join(lines).encode()


REFUSED_DOCUMENTS = {
    "alias bomb": (nested_aliases(12), "too large with its YAML aliases expanded"),
    "merge bomb": (nested_merges(12), "too large with its YAML aliases expanded"),
    "alias of itself": (b"openapi: 3.0.0\nx: &x [*x]", r"has no anchor"),
    "python tag": (b"openapi: !!python/object:os.system x", "has the YAML tag"),
    "binary tag": (b"openapi: 3.0.0\nx: !!binary aGk=", "has the YAML tag"),
    "own tag": (b"openapi: 3.0.0\nx: !include /etc/passwd", "has the YAML tag"),
    "deep YAML": (b"openapi: " + b"[" * 10_000, "deeper than 100 levels"),
    "deep blocks": (b"- " * 10_000, "deeper than 100 levels"),
    "deep JSON": (b'{"a":' * 10_000, "deeper than 100 levels"),
    "JSON as deep as is read": (b'{"a":' * 200 + b"1" + b"}" * 200, "deeper than 100 levels"),
    "several documents": (b"openapi: 3.0.0\n---\nopenapi: 3.0.0", "several YAML documents"),
    "a list": (b"[1, 2]", "must be an object"),
    "a text": (b"hello", "must be an object"),
    "nothing": (b"", "must be an object"),
    "bytes": (bytes(range(256)), "not valid Unicode"),
    "half a character": (b'{"openapi": "3.0.0", "x": "\\ud800"}', "not valid JSON"),
    "a list as key": (b"openapi: 3.0.0\n? [a]\n: b", "as a key"),
    "merged text": (b"openapi: 3.0.0\n<<: text", "not an object"),
    "too large": (b" " * 20_000_001, "at most 20000000 are allowed"),
    "no version": (b"info: {}", "neither `openapi`"),
    "an older version": (b"swagger: '1.2'", "is not supported"),
    "a newer version": (b"openapi: 4.0.0", "is not supported"),
    "ref to a file": (
        b"openapi: 3.0.0\npaths: {/a: {get: {parameters: [{$ref: './pet.yaml'}]}}}",
        "'./pet.yaml', which is outside",
    ),
    "ref to a server": (
        b"openapi: 3.0.0\ncomponents: {schemas: {a: {$ref: 'http://169.254.169.254/'}}}",
        "which is outside",
    ),
    "ref to a file of the machine": (
        b"openapi: 3.0.0\ncomponents: {schemas: {a: {$ref: 'file:///etc/passwd#/a'}}}",
        "which is outside",
    ),
}


@each("name", REFUSED_DOCUMENTS)
def test_an_unreadable_description_is_refused_with_a_reason(name: str) -> None:
    """The refusal comes at once, however large the description would have become."""
    data, says = REFUSED_DOCUMENTS[name]

    with pytest.raises(DescriptionUnreadable, match=says):
        parsed_description(data)


def schema_of(**schemas: Any) -> ApiDescription:
    """Return a description with one operation, whose answer is the schema A."""
    answer = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    paths = {"/a": {"get": {"responses": {"200": answer}}}}
    return document(paths=paths, components={"schemas": schemas})


def shown_schema(description: ApiDescription) -> Any:
    return first_operation(description)["responses"]["200"]["content"]["application/json"]["schema"]


def test_a_schema_that_contains_itself_is_cut_where_it_repeats() -> None:
    """The replacement is valid where a schema is expected."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/A"}}}

    displayed = shown_schema(schema_of(A=node))

    assert displayed["properties"]["next"]["x-circular-ref"] == "#/components/schemas/A"
    assert "Circular" in displayed["properties"]["next"]["description"]


CIRCULAR_SCHEMAS = {
    "itself": {"A": {"$ref": "#/components/schemas/A"}},
    "two": {
        "A": {"$ref": "#/components/schemas/B"},
        "B": {"$ref": "#/components/schemas/A"},
    },
    "around": {
        "A": {"allOf": [{"$ref": "#/components/schemas/B"}]},
        "B": {"items": {"$ref": "#/components/schemas/A"}},
    },
    "the whole": {"A": {"properties": {"x": {"$ref": "#"}}}},
    "its parent": {"A": {"properties": {"x": {"$ref": "#/components/schemas"}}}},
    "the path": {"A": {"properties": {"x": {"$ref": "#/paths/~1a"}}}},
}


@pytest.mark.parametrize("name", CIRCULAR_SCHEMAS)
def test_circular_references_end(name: str) -> None:
    """The rest of the schema is shown."""
    assert shown_schema(schema_of(**CIRCULAR_SCHEMAS[name])) is not None


@pytest.mark.parametrize(
    "reference", ["#/components/schemas/No", "#No", "#/a/0/b", "#/info/title/x", "#/openapi"]
)
def test_an_unresolvable_reference_is_marked(reference: str) -> None:
    """Other references of the operation are resolved."""
    displayed = shown_schema(
        schema_of(A={"properties": {"x": {"$ref": reference}, "y": {"type": "string"}}})
    )

    assert displayed["properties"]["x"]["x-unresolved-ref"] == reference
    assert displayed["properties"]["y"] == {"type": "string"}


def test_exponentially_growing_references_are_left_out() -> None:
    """In this case each of thirty schemas has the next one ten times."""
    schemas = {
        f"S{at}": {
            "properties": {f"p{n}": {"$ref": f"#/components/schemas/S{at + 1}"} for n in range(10)}
        }
        for at in range(30)
    }
    description = schema_of(A={"$ref": "#/components/schemas/S0"}, **schemas)

    text = json.dumps(first_operation(description))

    assert "x-omitted-ref" in text
    assert len(text) < 6_000_000


def test_values_named_ref_that_are_no_references_are_kept() -> None:
    """Such are examples, defaults, allowed values and a property's name."""
    data = {"$ref": "./not-a-reference"}
    schema = {
        "properties": {
            "$ref": {"type": "string"},
            "example": {"$ref": "#/components/schemas/B"},
            "enum": {"type": "array", "default": data, "enum": [data]},
        },
        "example": data,
        "x-note": data,
    }

    displayed = shown_schema(schema_of(A=schema, B={"type": "integer"}))

    assert displayed["properties"]["$ref"] == {"type": "string"}
    assert displayed["properties"]["example"] == {"type": "integer"}
    assert displayed["properties"]["enum"]["default"] == data
    assert displayed["example"] == data


PATHS = {
    "@evil.example/x": False,
    "https://evil.example/x": False,
    "": False,
    "x-note": False,
    "//evil.example/x": True,
    "/a?b=c#d": True,
    "/a b/ü": True,
}


@pytest.mark.parametrize("path", PATHS)
def test_a_path_cannot_change_the_host(path: str) -> None:
    """A path that would change the host is no operation."""
    description = document(paths={path: {"get": {}}})

    assert bool(description.entries) is PATHS[path]


def test_malformed_operations_are_ignored() -> None:
    """Any value may stand where an operation is expected."""
    paths = {"/a": {"get": [], "post": None, "put": "x", "delete": {"tags": 7, "summary": []}}}
    description = document(paths=paths | {"/b": [], "/c": None, "/d": {"$ref": "#/paths/~1d"}})

    assert [(entry.path, entry.method) for entry in description.entries] == [("/a", "DELETE")]
    assert first_operation(description)["tags"] == 7
    assert document(paths=[]).entries == ()


def test_too_many_operations_are_refused() -> None:
    """A few bytes each, and objects in memory."""
    paths = {f"/{at}": {"get": {}} for at in range(20_001)}

    with pytest.raises(DescriptionUnreadable, match="20000 operations"):
        document(paths=paths)


BASE_URLS = [
    "ftp://api.example",
    "//",
    "https://",
    "https://user:word@api.example",
    "https://api.example\\@evil.example",
    "https://api.example?x=",
    "https://api.example#x",
    "https://api.example:99999",
    "https://api example",
    "https://ápi.example",
    "javascript:alert(1)",
    "/relative/without/anything",
]


@each("url", BASE_URLS)
def test_a_server_that_cannot_be_called_is_refused(url: str) -> None:
    """The error names the argument that replaces the server."""
    for content in (document(servers=[{"url": url}], paths={}),):
        with pytest.raises(NoServerUrl, match="base_url_override"):
            base_url(content)
    with pytest.raises(NoServerUrl, match="base_url_override"):
        operation_base([{"url": url}])


SERVERS: list[tuple[dict[str, Any], str, str]] = [
    ({"servers": [{"url": "https://a.example/v1/"}]}, "", "https://a.example/v1"),
    ({"servers": [{"url": "/v2"}]}, "https://b.example/docs/api.json", "https://b.example/v2"),
    ({}, "https://b.example/docs/api.json", "https://b.example"),
    (
        {"servers": [{"url": "https://{h}.example/{v}", "variables": {"h": {"default": "c"}}}]},
        "",
        "https://c.example",
    ),
    (
        {"servers": [{"url": "{s}://c.example", "variables": {"s": {"enum": ["https"]}}}]},
        "",
        "https://c.example",
    ),
]


@pytest.mark.parametrize(("members", "spec_url", "base"), SERVERS)
def test_servers_are_read_as_the_specification_has_it(
    members: dict[str, Any], spec_url: str, base: str
) -> None:
    """Relative to where the description is; variables at their defaults."""
    assert base_url(document(paths={}, **members), spec_url=spec_url) == base


def test_duplicate_and_invalid_operation_ids_get_unique_names() -> None:
    """The names are legal and unique, and do not depend on other operations."""
    ids = ["get", "get", "getPetByID", "issues/list-for-repo", "", "x" * 100, "日本語", "GET_ A"]
    paths = {
        f"/p{at}/{{id}}": {"get": {"operationId": operation_id}}
        for at, operation_id in enumerate(ids)
    }
    description = document(paths=paths)
    names = list(tool_names(description.entries).values())
    alone = tool_names(document(paths={"/p2/{id}": paths["/p2/{id}"]}).entries, "pre_")

    assert len(set(names)) == len(names)
    assert all(0 < len(name) <= 64 and name.isascii() for name in names)
    assert names[:4] == ["get_p0_id", "get_p1_id", "get_pet_by_id", "issues_list_for_repo"]
    assert list(alone.values()) == ["pre_get_pet_by_id"]


def test_a_huge_enum_costs_no_more_than_its_bytes() -> None:
    """The work is linear in the size of the description."""

    def work(count: int) -> int:
        description = schema_of(A={"enum": [f"v{at}" for at in range(count)]})
        return count_lines(lambda: first_operation(description))

    assert work(20_000) < work(10_000) * 3
