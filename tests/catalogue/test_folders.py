"""What the three files of a failure's folder may say, and what follows from them."""

import pytest

from faultline.base.errors import UsageError
from faultline.catalogue.loading import load
from faultline.catalogue.places import axes
from faultline.catalogue.recognition import Condition, met

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
    assert {v.name: v.strategies for v in variants} == {
        "broken": ("*",),
        "kept": ("ddp",),
        "sft-broken": ("*",),
        "sft-mended": ("zero*",),
    }
    assert {v.checkpointing for v in variants} == {("off",)}


def test_tables_are_read_into_the_failure(folder):
    recognise = """
[project.broken]
needs = ["adapter"]
look_for = "a loss of one's own"
[error.torn]
distinguished_by = "a tower"
any_of = [{ present = 'TOWER' }, { absent = ['\\bTOWER\\b', 'x'] }]
[remedies]
mended = ""
[words]
TOWER = 'a|b'
"""
    history = """
report = "broken/ddp"
[reported]
stack = "trl-1.0.0"
cell = "broken/ddp/reentrant"
[[fixed]]
cells = "broken/ddp*"
package = "trl"
version = "1.1.0"
measured_by = "faultline bisect"
"""
    failure = load(folder(f"errors={{'torn': 'torn'}}, {CLAIMS}", recognise=recognise, history=history))
    assert failure.variant("broken").needs == ("adapter",)
    assert failure.claims["mended"].general == "mend it" and not failure.claims["off"].general
    assert failure.recognition.of("torn").any_of == (Condition(("(?:a|b)",)), Condition(absent=(r"\b(?:a|b)\b", "x")))
    assert failure.recognition.distinguished_by("torn") == "a tower"
    assert failure.report == "broken/ddp/*"
    assert failure.reported.strategy == "ddp" and failure.reported.checkpointing == "reentrant"
    assert failure.reported.precision == "fp32"
    assert failure.history.fixed[0].where == {"variant": "broken", "strategy": "ddp*"}


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


def test_a_place_names_its_axes_in_order():
    place = {"variant": "broken", "strategy": "zero3*", "checkpointing": "*", "precision": "bf16", "world_size": "2"}
    assert axes("broken/zero3*/*/bf16/w2") == place
    assert axes("") == {}


def test_one_condition_of_several_is_enough():
    any_of = (Condition(("a", "b")), Condition(("a",), ("x", "b")))
    texts = ["", "a", "b", "a b", "a\nb", "a\nx", "b\nx"]
    assert [text for text in texts if met(any_of, text)] == ["a", "a b", "a\nb"]
    assert met((), "") and not met(any_of[:1], "a")
