"""What the three files of a failure's folder may say, and what follows from them."""

import pytest

from faultline.base.errors import UsageError
from faultline.catalogue.loading import failures, load
from faultline.catalogue.recognition import Condition, meets_any

HEAD = "from faultline.catalogue import *\n\nFAILURE = Failure('t', 'now', 'never', "
FIXED = "[[fixed]]\npackage = 'x'\nversion = '1'\nmeasured_by = ''\n"
CLAIMS = """claims={
    "https://example.org/1": (
        helps("mend it", remedy="mended"),
        helps("no checkpointing", checkpointing="off", where="*broken/zero*/reentrant"),
    ),
    TRIED_HERE: present("it is there", where="sft-broken", key="there"),
})
"""


@pytest.fixture
def folder(tmp_path):
    def write(failure=CLAIMS, **tables):
        place = tmp_path / "repros" / "example"
        place.mkdir(parents=True, exist_ok=True)
        (place / "failure.py").write_text(HEAD + failure)
        for name, text in tables.items():
            (place / f"{name}.toml").write_text(text)
        return place

    return write


def test_claims_have_the_source_of_their_group_and_a_key_from_what_they_change(folder):
    claims = load(folder()).claims
    assert [*claims] == ["mended", "off", "there"]
    assert claims["off"].swap == {"checkpointing": "off"}
    assert claims["off"].where == {"variant": "*broken", "strategy": "zero*", "checkpointing": "reentrant"}
    assert [claim.source for claim in claims.values()] == ["https://example.org/1"] * 2 + [""]
    twice = 'claims={"a": (helps("one", remedy="x"), helps("other", remedy="x"))})'
    with pytest.raises(UsageError, match=r"example/failure.py: two claims have the key `x`; name one with `key=`"):
        load(folder(twice))


def test_variants_follow_from_claims(folder):
    """Breaks when a remedy that a claim names isn't run, or runs where its claim isn't."""
    names = {v.name: v.strategies for v in load(folder()).variants}
    assert names == {"broken": ("*",), "mended": ("*",)}
    text = """variants=(Variant("broken", trainer="sft"), Variant("kept", strategies=("ddp",))), claims={
        TRIED_HERE: (
            helps("one", remedy="mended", where="sft-broken/zero*"),
            helps("two", remedy="kept"),
        )
    }, checkpointing=("off",))"""
    variants = load(folder(text)).variants
    names = {v.name: v.strategies for v in variants}
    assert names == {"broken": ("*",), "kept": ("ddp",), "sft-broken": ("*",), "sft-mended": ("zero*",)}
    assert {v.checkpointing for v in variants} == {("off",)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("recognise", "[error.torn]\ntold = 'x'", "error.torn: unknown key 'told'"),
        (
            "recognise",
            "[error.torn]\ndistinguish_by = 'x'",
            "unknown key 'distinguish_by'; did you mean distinguished_",
        ),
        ("recognise", "[error.torn]\nany_of = 'x'", "error.torn.any_of: expected a table"),
        ("recognise", "[error.torn]\nsame_as = 1", "error.torn.same_as: expected a text"),
        ("recognise", "[error.tron]\nsame_as = 'x'", "recognise.toml: error: unknown name 'tron'; did you mean torn?"),
        ("recognise", "[project.sft-mended]\nneeds = ['adapter']", "toml: project: unknown name 'sft-mended'"),
        ("recognise", "[project.broken]\nneeds = ['adaptor']", "project: unknown need 'adaptor'; did you mean adapter"),
        ("recognise", "[remedies]\nmendd = ''", "remedies: unknown name 'mendd'; did you mean mended?"),
        ("recognise", "[[warning]]\npattern = 'x'", "warning 1: `distinguished_by` is missing"),
        ("recognise", "[model", "recognise.toml: "),
        ("history", "[reported]\nstack = 'x'\ncell = 'broken'", "reported: a report is about a variant and"),
        ("history", f"{FIXED}cells = 'a/b/c/d/w2/cpu'", "a place is"),
        ("history", "reported = 'x'", "history.toml: reported: expected a table"),
    ],
)
def test_what_a_table_can_not_mean_is_one_clear_line(folder, name, text, message):
    place = folder(f"errors={{'torn': 'torn'}}, {CLAIMS}", **{name: text})
    with pytest.raises(UsageError) as raised:
        load(place)
    assert message in str(raised.value) and str(raised.value).startswith(f"repros/example/{name}.toml: ")
    assert "\n" not in str(raised.value)


def test_one_condition_of_several_is_enough():
    any_of = (Condition(("a", "b")), Condition(("a",), ("x", "b")))
    texts = ["", "a", "b", "a b", "a\nb", "a\nx", "b\nx"]
    assert [text for text in texts if meets_any(any_of, text)] == ["a", "a b", "a\nb"]
    assert meets_any((), "") and not meets_any(any_of[:1], "a")


def test_each_broken_variant_says_what_of_a_project_it_takes():
    """Breaks when audit is certain of a failure for its trainer and strategy alone, though only own code shows it."""
    silent, own_code, plain_too = [], [], []
    for failure in failures().values():
        for variant in failure.variants:
            name = f"{failure.name}/{variant.name}"
            if variant.broken and not (variant.needs or variant.look_for or variant.plain):
                silent.append(name)
            if variant.broken and variant.text and not (variant.needs or variant.look_for):
                own_code.append(name)
            if variant.plain and (variant.needs or variant.look_for):
                plain_too.append(name)
    assert not silent, "recognise.toml has no [project.VARIANT] with `needs`, `look_for`, or why it is `plain`"
    assert not own_code, "a variant with code of its own has to say what of it to look for"
    assert not plain_too, "what takes a setting or code is not plain"
