"""Writes the site's Markdown, its data and its downloads into a folder, and has Sphinx make the pages."""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.interpreters import ask, command
from faultline.base.paths import GENERATED
from faultline.base.text import count
from faultline.base.version import __version__
from faultline.catalogue.loading import failures
from faultline.diagnose.unnamed_view import NEXT
from faultline.maintain import readmes
from faultline.maintain.readmes import DOCS
from faultline.report.page import template
from faultline.report.run import ABSENT, SYMBOLS
from website import docs, facts, pages

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
FOLDER = GENERATED / "site"
# Of a page: what stays whole, code in a line, and other text.
SIGNS = re.compile(r"(?<=[_/=])(?=\w)|(?<=\.)(?=[A-Za-z_])")
# In other text, where a name goes on.
JOINTS = re.compile(r"(?<=\w)_(?=\w)|(?<=\w)\.(?=[A-Za-z_])")
OUTCOMES = {sign: word for word, sign in SYMBOLS.items()} | {ABSENT: "none"}
SIGNS_OF_OUTCOMES = re.compile(f"[{''.join(sign for sign in OUTCOMES if sign != '?')}]{{1,3}}")
PARTS = re.compile(r"(?P<whole><(pre|script|style|title)\b.*?</\2>)|(?P<code><code\b.*?</code>)|(?<=>)[^<]+", re.S)


def run() -> int:
    """Build the whole site; the last one stays if that fails."""
    with tempfile.TemporaryDirectory(prefix="faultline-site-") as folder:
        source, made = Path(folder) / "source", Path(folder) / "site"
        write(source)
        words = ["-m", "sphinx", "--builder", "html", "--quiet", "--fail-on-warning", "--keep-going"]
        done = ask(command(sys.executable, *words, str(source), str(made)), patience=3600)
        if done.returncode:
            raise UsageError(f"Sphinx can't make the site: {done.stderr[-2000:]}")
        for page in made.rglob("*.html"):
            page.write_text(breakable(page.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.parent.mkdir(exist_ok=True)
        shutil.move(made, FOLDER)
    if without := [failure.name for failure in failures().values() if not pages.report_file(failure).exists()]:
        how = "`faultline maintain export-all --reports` writes them"
        print(f"{count(len(without), 'page')} without a report for upstream: {how}")
    print(f"{FOLDER}/index.html: {len(list(FOLDER.rglob('*.html')))} pages")
    return EXIT_AS_EXPECTED


def write(source: Path) -> None:
    """Write all that Sphinx reads."""
    shutil.copytree(HERE / "theme", source / "_static")
    (source / "_static" / "conf.py").rename(source / "conf.py")
    failure_page, stack_page = (template(TEMPLATES / name) for name in ("failure.md.j2", "stack.md.j2"))
    data = facts.entrance()
    _put(source / "_static" / "data.js", f"window.FAULTLINE = {json.dumps(data, separators=(',', ':'))};\n")
    cards = pages.cards()
    _put(
        source / "index.md",
        template(TEMPLATES / "index.md.j2").render(
            cards=cards,
            families=facts.families(),
            outcomes=facts.GRAVEST,
            legend={"diverges": "silent: trains wrongly without an error"},
            symbols=SYMBOLS,
            next=NEXT,
            version=__version__,
            date=facts.pinned_day(),
        ),
    )
    _put(
        source / "failures" / "index.md",
        template(TEMPLATES / "failures.md.j2").render(
            cards=cards, symptoms=docs.relinked(readmes.symptoms_list(), DOCS, "failures/index.md")
        ),
    )
    for failure in failures().values():
        page = pages.failure(failure)
        for file in page.files:
            _put(source / "_extra" / file.name, file.content)
        _put(source / "failures" / f"{failure.name}.md", failure_page.render(page=page))
    for stack in facts.stacks().values():
        text = stack_page.render(page=pages.stack(stack))
        _put(source / "stacks" / f"{stack.name}.md", text)
    _put(source / "stacks" / "index.md", template(TEMPLATES / "stacks.md.j2").render(stacks=facts.stacks()))
    docs.copy(source)
    docs.copy_linked(source)


def breakable(html: str) -> str:
    """A page on which names may be broken after underscores and dots, and code after further signs, and on which the
    symbols of outcomes have their colours where they stand alone."""

    def part(match: re.Match[str]) -> str:
        if match["code"]:
            return re.sub(r"(?<=>)[^<]+", lambda text: SIGNS.sub("<wbr>", text[0]), match[0])
        if match["whole"]:
            return match[0]
        if SIGNS_OF_OUTCOMES.fullmatch(match[0]):
            return "".join(f'<span class="{word}">{sign}</span>' for sign in match[0] for word in [OUTCOMES[sign]])
        return JOINTS.sub(r"\g<0><wbr>", match[0])

    return PARTS.sub(part, html)


def _put(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
