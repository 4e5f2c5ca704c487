"""The committed pages on the site: the same files, with links that lead to where the site has what they name."""

import functools
import os
import re
import shutil
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.base.text import listing
from faultline.catalogue.loading import failures

# Of Markdown, and of the HTML in it.
LINK = re.compile(
    r"""(?:(?<=\]\()|(?<=src=")|(?<=srcset=")|(?<=<a href="))(?!https?:|#|mailto:)([^)"#\s]+)(#[^)"\s]*)?(?=[)"])"""
)
COPIES = Path("_static", "files")
TEXT = ".txt"  # behind the name of Markdown that is no page, which Sphinx would take for one
PLAIN = re.compile(r"\.md\.txt$")
PICTURE = re.compile(r"<picture>.*?<img [^>]*?src=\"([^\"]+)\"[^>]*>\s*</picture>", re.S)
# What a page names that only a clone has, and where it does.
OF_A_CLONE = {
    "`faultline maintain`": re.compile(r"\bfaultline maintain\b"),
    "`make`": re.compile(r"^\s*make [a-z]|`make [a-z]", re.M),
    "`results/latest`": re.compile(r"results/latest"),
    "`fixtures/`": re.compile(r"(?<!\(\.\./)\bfixtures/[a-z]"),
}


@functools.cache
def places() -> dict[Path, str]:
    """Where the site has a file of the repository, as Sphinx names the page; other files are downloads."""
    known = {ROOT / "repros" / name / "README.md": f"failures/{name}.md" for name in failures()}
    known |= {file: f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))}
    known |= {
        ROOT / name / "README.md": f"docs/about-{name}.md"
        for name in ("stacks", "fixtures", "findings", "observations", "bench")
    }
    return known | {
        ROOT / "examples" / "pytest_project" / "README.md": "docs/about-pytest-project.md",
        ROOT / "README.md": "docs/about.md",
        ROOT / "docs" / "README.md": "docs/index.md",
        ROOT / "docs" / "catalogue.md": "failures/index.md",
        ROOT / "CONTRIBUTING.md": "docs/contributing.md",
        ROOT / "CHANGELOG.md": "docs/changelog.md",
    }


def copy_linked(source: Path) -> None:
    """Put the files beside the pages that these link to and that are no pages."""
    for page in source.rglob("*.md"):
        for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            inside = Path(os.path.normpath(page.parent / target)).relative_to(source)
            if inside.is_relative_to(COPIES):
                (source / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / PLAIN.sub(".md", str(inside.relative_to(COPIES))), source / inside)


def copy(source: Path) -> None:
    """Write every committed page but those of the failures, which the site makes itself."""
    for file, place in places().items():
        if place.startswith("docs/"):
            text = PICTURE.sub(r'<a href="\1">\g<0></a>', file.read_text(encoding="utf-8"))
            if file.parent == ROOT / "docs":
                text = noted(text)
            text = relinked(text, file.parent, place)
            (source / place).parent.mkdir(parents=True, exist_ok=True)
            (source / place).write_text(text + (contents(text) if place == "docs/index.md" else ""), encoding="utf-8")


def noted(text: str) -> str:
    """A page below whose first lines stands what of it only a clone has, for readers who installed the package."""
    names = [name for name, pattern in OF_A_CLONE.items() if pattern.search(text)]
    if not names:
        return text
    title, first, rest = text.split("\n\n", 2)
    return "\n\n".join((title, first, f"*Only [a clone](../README.md#install) has {listing(names)}.*", rest))


def relinked(text: str, folder: Path, place: str) -> str:
    """Markdown of a file in `folder` with its relative links made right for a page at `place` of the site.

    What is no page becomes a link to a copy of the file. Raises UsageError for a link that leads nowhere.
    """
    known = places()

    def there(match: re.Match[str]) -> str:
        file = Path(os.path.normpath(folder / match[1]))
        if file.is_dir():
            file = file / "README.md"
        if not file.exists():
            raise UsageError(f"{place}: the link {match[1]} leads nowhere")
        shown_as = TEXT if file.suffix == ".md" else ""
        target = known.get(file, f"{COPIES}/{file.relative_to(ROOT)}{shown_as}")
        return os.path.relpath(target, Path(place).parent) + (match[2] or "")

    return LINK.sub(there, text)


def contents(text: str) -> str:
    """The navigation below a page: the pages that it links to, in its order, then all others."""
    linked = [target.removesuffix(".md") for target, _ in LINK.findall(text) if "/" not in target]
    return "\n".join(("", "```{toctree}", ":hidden:", ":glob:", "", *dict.fromkeys(linked), "*", "```", ""))
