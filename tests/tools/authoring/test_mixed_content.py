"""What people return from tools reaches clients: pictures, recordings, files, and lists of them."""

import base64
import dataclasses
import json
import random
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from gatepost import Audio, CallContext, Contents, File, Image, Pack
from tests.support.endpoint import EndpointClient
from tests.support.measuring import each

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
JPEG = b"\xff\xd8\xff\xe0" + bytes(range(256))


class Sale(BaseModel):
    """A sale."""

    amount: int


@dataclasses.dataclass
class Month:
    """A month."""

    name: str


class Year(msgspec.Struct):
    """A year."""

    number: int


def blob(data: bytes) -> str:
    return base64.b64encode(data).decode()


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def image(data: bytes, mime_type: str) -> dict[str, str]:
    return {"type": "image", "data": blob(data), "mimeType": mime_type}


def resource(uri: str, mime_type: str, **body: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, **body}}


BINARY = resource("attachment:result.bin", "application/octet-stream", blob=blob(b"\0\xff"))
CONTENT_CASES = [
    # annotation, what it returns, what the client gets
    (Image, Image(PNG), [image(PNG, "image/png")]),
    (Image | None, None, []),
    (Image, Image(JPEG), [image(JPEG, "image/jpeg")]),
    (Image, Image(JPEG, "image/x-own"), [image(JPEG, "image/x-own")]),
    (Image, Image(b"?"), [image(b"?", "image/png")]),
    (Audio, Audio(b"RIFF"), [{"type": "audio", "data": blob(b"RIFF"), "mimeType": "audio/wav"}]),
    (bytes, b"\0\xff", [BINARY]),
    (File, File("a,b", "é 1.csv"), [resource("attachment:%C3%A9%201.csv", "text/csv", text="a,b")]),
    (
        File,
        File(b"%PDF", "a.pdf"),
        [resource("attachment:a.pdf", "application/pdf", blob="JVBERg==")],
    ),
    (Contents, Contents("x", uri="a://b"), [resource("a://b", "text/plain", text="x")]),
    (list[Image], [Image(PNG), Image(JPEG)], [image(PNG, "image/png"), image(JPEG, "image/jpeg")]),
    (list[Image], [], []),
    (tuple[str, Image], ("Look:", Image(PNG)), [text("Look:"), image(PNG, "image/png")]),
    (
        list[str | Image | Sale | Month | Year | dict[str, int] | None],
        ["Hi", Sale(amount=1), Month("May"), Year(2025), {"a": 1}, None, Image(PNG)],
        [
            *map(text, ("Hi", '{"amount":1}', '{"name":"May"}', '{"number":2025}', '{"a":1}')),
            image(PNG, "image/png"),
        ],
    ),
    # Without an annotation, the value decides.
    (Any, Image(PNG), [image(PNG, "image/png")]),
    (Any, [b"\0\xff", "end"], [BINARY, text("end")]),
    (Any, Sale(amount=2), [text('{"amount":2}')]),
    (
        Any,
        [Month("May"), {"sale": Sale(amount=3)}],
        [text('[{"name":"May"},{"sale":{"amount":3}}]')],
    ),
    (Any, ["a", "b"], [text('["a","b"]')]),
]


def pack_returning(hint: Any, value: Any) -> Pack:
    """Return a pack whose only tool returns that value."""
    pack = Pack("charts")

    def draw(ctx: CallContext) -> Any:
        """Draw."""
        return value

    draw.__annotations__["return"] = hint
    pack.tool(draw)
    return pack


@pytest.mark.requirement("TL-08")
@each(("hint", "value", "sent"), CONTENT_CASES)
async def test_returned_content_arrives_in_order_without_a_structured_value(
    hint: Any, value: Any, sent: Any
) -> None:
    """Content arrives in its order, and promises no structured value."""
    client = EndpointClient(pack_returning(hint, value).offers)
    (listed,) = (await client.ask("tools/list")).json["result"]["tools"]
    result = (await client.call("draw")).json["result"]

    assert result["content"] == sent
    assert "outputSchema" not in listed
    assert "structuredContent" not in result
    assert result["isError"] is False


async def test_a_picture_arrives_byte_for_byte() -> None:
    """Its data may look like a secret and is not redacted."""
    noise = random.Random(7).randbytes(600_000)
    client = EndpointClient(pack_returning(Image, Image(noise)).offers)
    (block,) = (await client.call("draw")).json["result"]["content"]

    assert base64.b64decode(block["data"]) == noise


async def test_too_large_a_picture_is_omitted_and_the_text_beside_it_stays() -> None:
    """A note says what is missing."""
    pack = pack_returning(Any, ["Sales", Image(bytes(3_100_000))])
    content = (await EndpointClient(pack.offers).call("draw")).json["result"]["content"]

    assert content[0] == text("Sales")
    assert [block["type"] for block in content] == ["text", "text"]
    assert "1 parts were omitted" in content[1]["text"]


async def test_far_too_large_content_is_refused_before_encoding() -> None:
    """Encoding it would hold up every other call."""
    pack = pack_returning(list[bytes], [bytes(8_000_001)] * 2)
    result = (await EndpointClient(pack.offers).call("draw")).json["result"]

    assert result["isError"] is True
    assert "16000002 bytes of content" in json.dumps(result["content"])


@each("name", ["", "..", "a/b", "..\\b", "a\nb"])
def test_an_invalid_file_name_is_refused(name: str) -> None:
    """Clients may save a file under its name."""
    with pytest.raises(ValueError, match="not a file name"):
        File(b"", name)


async def test_resources_and_prompts_take_the_same_values() -> None:
    """A picture as a resource keeps its type; a file in a message is embedded."""
    pack = Pack("mixed")

    @pack.resource("logo://own")
    def logo(ctx: CallContext) -> Image:
        """Return the logo."""
        return Image(JPEG)

    @pack.resource("terms://own")
    def conditions(ctx: CallContext) -> File:
        """Return the conditions."""
        return File("Pay.", "terms.md")

    client = EndpointClient(pack.offers)
    read = [
        (await client.ask("resources/read", {"uri": uri})).json["result"]["contents"]
        for uri in ("logo://own", "terms://own")
    ]

    assert read == [
        [{"uri": "logo://own", "mimeType": "image/jpeg", "blob": blob(JPEG)}],
        [{"uri": "terms://own", "mimeType": "text/markdown", "text": "Pay."}],
    ]
