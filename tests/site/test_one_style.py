"""The pages of a run and of an upgrade look like the site: the same colours and font, in light and dark."""

import pytest

from faultline.releases import is_safe_view
from faultline.releases.is_safe_view import Answer
from faultline.report import page as report_page
from faultline.runs.storage import RunInfo
from tests.support.changes import compared
from tests.support.entries import broken, result

LOOK = """class_ => {
  const shown = document.createElement('p')
  shown.className = class_
  document.body.append(shown)
  const of = element => getComputedStyle(element)
  const font = of(document.body).fontFamily.replaceAll('"', '').split(', ').slice(0, 5).join()
  return [of(document.body).backgroundColor, of(document.body).color, font, class_ && of(shown).color]
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_has_the_sites_colours_and_font(page, site, tmp_path, scheme):
    """Breaks when somebody who comes from the site takes a run's page for that of another program."""
    report_page.write(tmp_path / "run.html", [broken(), result(strategy="zero2")], RunInfo(finished=True))
    answer = Answer("trl==1.2.0", "what is installed", (), compared(["trains"], ["raises:torn:Torn apart"]))
    (tmp_path / "verdict.html").write_text(is_safe_view.page(answer), encoding="utf-8")
    page.emulate_media(color_scheme=scheme)
    page.goto((site / "failures" / "zero_double_reduction.html").as_uri())
    wanted = {name: page.evaluate(LOOK, name) for name in ("verified", "refuted", "conditional", "")}
    page.goto((tmp_path / "run.html").as_uri())
    assert {name: page.evaluate(LOOK, name) for name in wanted} == wanted
    page.goto((tmp_path / "verdict.html").as_uri())
    assert page.evaluate(LOOK, "") == wanted[""]
