"""What is-safe shows: the verdict first, nothing lost, and no text of others that is more than text."""

import io
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from faultline.base.paths import ROOT
from faultline.releases import is_safe_view
from faultline.releases.changes import Comparison
from faultline.releases.is_safe_view import UpgradeAnswer
from tests.support.changes import cells, compared

PIECES = [
    *("`", "``", "```", "\n", "\n\n", "|", "\\", "\\|", "~~~", "<script>", "</pre>", "</details>", "<!--", "-->", " "),
    *("@evil", "evil#1", "https://evil.example", "[evil](http://evil)", "![](evil)", "# evil", "- evil", "    evil"),
    *("\x1b]0;evil\x07", "\x1b[2J", "\x00", "\u202eevil", "{{ evil }}", "&lt;", '" onload="evil', "$(evil)", "'"),
]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def answer(before, after, **facts):
    usual = {"candidate": "trl==1.12.0", "baseline": "today", "repeat": "trl==1.12.0"}
    usual |= {"packages": [("trl", "1.16.0", "1.12.0")], "comparison": compared(before, after)}
    return UpgradeAnswer(**usual | facts)


def hostile(text):
    """An answer in which all that isn't ours is the text."""
    return answer(
        ["trains", "trains", "raises:other:E: " + text],
        ["raises:other:" + text, f"crashes:{text.replace(':', '')}:{text}", "trains"],
        candidate=text,
        baseline=text,
        stack=text,
        repeat=text,
        packages=[(text, text, text), (text, "", "1")],
    )


def tokens(markdown):
    """The tokens of a Markdown text, those within lines as well."""
    results = MarkdownIt("commonmark").enable("table").parse(markdown)
    return [*results, *(child for token in results for child in token.children or ())]


@settings(max_examples=50)
@example("```")
@example("`")
@given(HOSTILE)
def test_in_the_comment_texts_of_others_are_code(text):
    """Breaks when an error message can mention people, load pictures, or write HTML, headings, lists or tables."""
    unusable = answer([], [], comparison=Comparison(unusable=text), candidate=text, packages=[])
    shape, other = [tokens(is_safe_view.markdown(result)) for result in (hostile(text), unusable)]
    for token in (*shape, *other):
        assert token.type not in ("html_inline", "html_block", "link_open", "image", "code_block", "hr")
        if token.type == "text":
            assert "evil" not in token.content and not {*"@<|`&"} & {*token.content}, token.content
    results = [token.type for token in shape]
    assert results.count("heading_open") == 1 and results.count("strong_open") == 3
    assert results.count("bullet_list_open") == 1 + 3 and not results.count("table_open")


@settings(max_examples=50)
@given(HOSTILE)
def test_on_the_terminal_texts_of_others_move_nothing(text):
    """Breaks when an error message can set a title, clear the screen or start a line of its own."""
    out = io.StringIO()
    is_safe_view.terminal(Console(file=out, width=80), hostile(text))
    assert out.getvalue().replace("\n", "").isprintable()
    assert not any(line.startswith(("# evil", "- evil")) for line in out.getvalue().splitlines())


def test_a_text_adds_no_column_to_a_table():
    assert is_safe_view.code("a|b") == "`a\u00a6b`"


def test_the_verdict_comes_first():
    """Breaks when the reader must look for the answer."""
    result = answer(["trains", "trains"], ["raises:other:RuntimeError: Output 0 of Split", "trains"])
    text = is_safe_view.markdown(result)
    assert text.startswith("## NOT SAFE: `trl 1.16.0 → 1.12.0`\n")
    assert "RuntimeError: Output 0 of Split" in text
    assert f"faultline run --cell {cells(1)[0].id} --stack 'trl==1.12.0'" in text
    out = io.StringIO()
    is_safe_view.terminal(Console(file=out, width=80), result)
    assert out.getvalue().startswith("NOT SAFE: trl 1.16.0 → 1.12.0 (against your installed stack)\n")
    assert "packages: trl 1.16.0 → 1.12.0" in out.getvalue() and "RuntimeError: Output 0 of Split" in out.getvalue()


def test_a_comment_fits_however_much_changed():
    """Breaks when a comment is refused for its length, or is cut within a block."""
    several = [f"raises:other:{'E' * number}Error: {'words ' * 500}" for number in range(1, 101)]
    result = answer(["trains"] * len(several), several, packages=[("p" * 900, "1" * 900, "2" * 900)] * 200)
    text = is_safe_view.markdown(result)
    assert len(text) <= 65536
    assert "more, which verdict.json has" in text and text.count("```") % 2 == 0
    assert len(json.loads(json.dumps(is_safe_view.data(result)))["groups"]) == len(several), "the JSON is cut as well"


def test_places_are_told_in_few_words():
    """Breaks when a cause that hits a family of strategies lists them all."""
    [group] = compared(["trains"] * 21, ["raises:other:E: x"] * 21).groups
    where = dict(is_safe_view.places(group))
    assert where["checkpointing"] == "any" and "zero1*" in where["strategies"]
    assert where["failures"] == "zero3_dummy_loss (broken)" and "precision" not in where


def test_the_page_has_the_keys():
    """Breaks when whoever reads verdict.json is misled."""
    results = is_safe_view.data(answer(["trains"], ["raises:other:E: x"]))
    text = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8").split("`verdict.json`")[1]
    for key in (*results, *results["groups"][0]):
        assert f"`{key}`" in text, f"{key} isn't told"
