"""Writes the site's Markdown, its data and its downloads into a folder, and has Sphinx make the pages."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.paths import GENERATED
from faultline.catalogue.loading import failures
from faultline.site import docs, facts, pages

HERE = Path(__file__).parent
FOLDER = GENERATED / "site"


def run() -> int:
    """Build the whole site; the last one stays if that fails."""
    with tempfile.TemporaryDirectory(prefix="faultline-site-") as folder:
        source, made = Path(folder) / "source", Path(folder) / "site"
        write(source)
        words = ["-m", "sphinx", "--builder", "html", "--quiet", "--fail-on-warning", "--keep-going"]
        done = subprocess.run(
            [sys.executable, *words, str(source), str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UsageError(f"Sphinx can't make the site: {done.stderr[-2000:]}")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.parent.mkdir(exist_ok=True)
        shutil.move(made, FOLDER)
    print(f"{FOLDER}/index.html: {len(list(FOLDER.rglob('*.html')))} pages")
    return EXIT_AS_EXPECTED


def write(source: Path) -> None:
    """Write all that Sphinx reads."""
    shutil.copytree(HERE / "theme", source / "_static")
    (source / "_static" / "conf.py").rename(source / "conf.py")
    templates = environment()
    data = facts.entrance()
    _put(source / "_static" / "data.js", f"window.FAULTLINE = {json.dumps(data, separators=(',', ':'))};\n")
    cards = pages.cards()
    _put(source / "index.md", templates.get_template("index.md.j2").render(cards=cards))
    _put(source / "failures" / "index.md", templates.get_template("failures.md.j2").render(cards=cards))
    for failure in failures().values():
        page = pages.failure(failure)
        for name, content in page.downloads.items():
            _put(source / "_extra" / name, content)
        _put(source / "failures" / f"{failure.name}.md", templates.get_template("failure.md.j2").render(page=page))
    for stack in facts.stacks().values():
        text = templates.get_template("stack.md.j2").render(page=pages.stack(stack))
        _put(source / "stacks" / f"{stack.name}.md", text)
    _put(source / "stacks" / "index.md", templates.get_template("stacks.md.j2").render(stacks=facts.stacks()))
    docs.copy(source)
    docs.copy_linked(source)


def environment() -> Environment:
    """The templates of pages, which escape for HTML; what is Markdown already is marked as such."""
    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _put(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content, encoding="utf-8")
