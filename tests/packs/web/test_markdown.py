"""HTML as Markdown: what each element becomes, however carelessly it was written."""

from typing import Any

import pytest

from gatepost_packs.web.page_worker import answer
from tests.support.measuring import each

URL = "https://www.web.test/a/b"


def page_result(html: str, *, markdown: bool = True) -> dict[str, Any]:
    """Return the worker's answer for a page."""
    return answer({"source": html, "url": URL, "markdown": markdown})


ELEMENTS = [
    # HTML, Markdown
    ("<h1>a</h1><h3>b</h3>c", "# a\n\n### b\n\nc"),
    ("<p>a\n  b<p>c<br> d", "a b\n\nc  \nd"),
    ("a<b>b</b> <i> c </i><b>d<strong>e</strong></b>", "a**b** *c* **de**"),
    ("<b>a<p>b</b>c", "**a**\n\n**b**c"),
    ("<a href='c d(e)'>a <b>b</b></a>", "[a **b**](https://www.web.test/a/c%20d%28e%29)"),
    ("<a href='/x'><h2>a</h2><p>b</a>", "[a](https://www.web.test/x)\n\n[b](https://www.web.test/x)"),
    ("<a href='//x.test'>a]</a>", r"[a\]](https://x.test)"),
    ("<base href='/z/'><a href='q'>a</a>", "[a](https://www.web.test/z/q)"),
    ("<base href='javascript:x'><a href='q'>a</a>", "[a](https://www.web.test/a/q)"),
    ("<a href='javascript:alert(1)'>a</a><a href='data:x'>b</a>", "ab"),
    ("<a href='http://[::1'>a</a><a>b</a><a href=x></a>", "ab"),
    ("<a href=mailto:a@b>a</a>", "[a](mailto:a@b)"),
    ("<img src=a.png alt='x]'><img src=b><img src='data:x' alt=y>",
     r"![x\]](https://www.web.test/a/a.png)y"),
    ("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>e", "- a\n- b\n  - c\n- d\n\ne"),
    ("<ol start=9><li>a</li><li><p>b</p><p>c</p></li></ol>", "9. a\n\n10. b\n\n    c"),
    ("<li>a</li><ol start=x><li>b", "a\n\n1. b"),
    ("<blockquote>a<ul><li>b</ul></blockquote>c", "> a\n>\n> - b\n\nc"),
    ("<pre>a\n  <b>b</b>\n</pre>", "```\na\n  b\n```"),
    ("<pre><code class='x language-py'>a = '```'</code></pre>", "````py\na = '```'\n````"),
    ("<pre>a<div>  b</div>c<p>d</pre>", "```\na\n  b\nc\nd\n```"),
    ("<h2>a<a href='#a'>¶</a></h2><a href='b#c'>b</a>", "## a\n\nb"),
    ("<a href='#'> § </a>a <a href=''>c</a>", "a c"),
    ("a <code>b`c</code> <kbd>d</kbd>", "a ``b`c`` `d`"),
    ("<table><tr><th>a<th>b<tr><td>c|d<td><tr><td>e</table>",
     "| a | b |\n| --- | --- |\n| c\\|d |  |\n| e |  |"),
    ("<table><td>a<td><p>b<p>c</table>", "| a | b c |\n| --- | --- |"),
    ("<table><caption>x</caption><tr><td>a<td>b</table>", "x\n\n| a | b |\n| --- | --- |"),
    ("<table><tr><td><table><tr><td>a<td>b</table><td>c</table>",
     "| a | b |\n| --- | --- |\n\nc"),
    ("<table><tr><td>a<tr><td>b</table>", "a\n\nb"),
    (f"<table><tr><td>{'a ' * 600}<td>b</table>", f"{('a ' * 600).strip()}\n\nb"),
    ("<dl><dt>a<dd>b<dt>c<dd>d</dl>", "a\n\nb\n\nc\n\nd"),
    ("a<hr>b<hr/>c", "a\n\n---\n\nb\n\n---\n\nc"),
    ("<p>a &amp;lt; &#x41;&#66; &nbsp;&copy &x; &#99999999999;", "a \\&lt; AB \xa0© \\&x; \ufffd"),
    ("<del>a</del><em></em><b> </b>x", "~~a~~ x"),
]  # fmt: skip


@pytest.mark.requirement("P9")
@each(("html", "markdown"), ELEMENTS, ids=[str(n) for n in range(len(ELEMENTS))])
def test_an_html_element_becomes_markdown(html: str, markdown: str) -> None:
    """Headings, lists, tables, code and links, which become absolute."""
    assert page_result(html)["text"] == markdown


@pytest.mark.requirement("P9")
def test_text_has_no_markup() -> None:
    """Lines and order stay."""
    html = "<h1>a</h1><p><b>b</b> <a href=x>c</a><ul><li>d</ul><table><tr><td>e<td>f</table>"

    assert page_result(html, markdown=False)["text"] == "a\n\nb c\n\n- d\n\ne\tf"


LONG_TEXT = "x" * 300

CONTENT_CHOICES = [
    # page, what of it is read
    (f"<nav>a</nav><p>{LONG_TEXT}<footer>c</footer>", LONG_TEXT),
    (f"<header>a</header><aside>b</aside><p>{LONG_TEXT}", LONG_TEXT),
    (f"<div role=navigation>a</div><p>{LONG_TEXT}<div role=search>b", LONG_TEXT),
    (f"<p>a<main>{LONG_TEXT}</main><p>b", LONG_TEXT),
    (f"<p>a<div role=main>{LONG_TEXT}</div><p>b", LONG_TEXT),
    (f"<p>a<main>b</main><article>{LONG_TEXT}</article><p>c", LONG_TEXT),
    (f"<article><header>a</header>{LONG_TEXT}</article>c", f"a\n\n{LONG_TEXT}"),
    (
        f"<article>{LONG_TEXT}</article><article>{LONG_TEXT}</article>",
        f"{LONG_TEXT}\n\n{LONG_TEXT}",
    ),
    (
        f"<p>{LONG_TEXT}<script>a</script><style>b</style><noscript>c</noscript><svg>d</svg>",
        LONG_TEXT,
    ),
    (
        f"<p>{LONG_TEXT}<select><option>a</select><button>b</button><textarea>c</textarea>",
        LONG_TEXT,
    ),
    (
        f"<p>{LONG_TEXT}<p hidden>a<p aria-hidden=true>b<p style='color:red;DISPLAY : none'>c",
        LONG_TEXT,
    ),
    (f"<p>{LONG_TEXT}<template><p>a</template><!-- b --><![CDATA[c]]><?d?>", LONG_TEXT),
    (f"<script>var a = '<p>b</p>'</script ><p>{LONG_TEXT}", LONG_TEXT),
    (f"<p>{LONG_TEXT}<nav>a", LONG_TEXT),
    (f"<p>{LONG_TEXT}\U000e0041\x1b[31m\x00", LONG_TEXT + r"\[31m"),
    ("<nav>only a menu is here, and more of it</nav>", "only a menu is here, and more of it"),
]


@pytest.mark.requirement("P9")
@each(("html", "text"), CONTENT_CHOICES, ids=[str(n) for n in range(len(CONTENT_CHOICES))])
def test_only_the_main_content_of_a_page_is_kept(html: str, text: str) -> None:
    """Navigation and invisible elements are left out."""
    assert page_result(html)["text"] == text


@pytest.mark.requirement("P9")
@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>\n a &amp; <b>\n</title><h1>c</h1>", "a & <b>"),
        ("<title></title><h1>a <b>b</b></h1>", "a b"),
        ("<p>a", ""),
        (f"<title>{'x' * 400}", "x" * 300),
    ],
)
def test_a_title_is_found(html: str, title: str) -> None:
    """The page's own, else its first heading."""
    assert page_result(html)["title"] == title
