"""The site, built once but for the exports, and a page of a browser that notes what it asks for."""

import pytest
from filelock import FileLock

from website import build, pages


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The whole site, built once for all workers, which only read it; instead of each export it has the cell's id."""
    alone = tmp_path_factory.getbasetemp()
    folder = alone if worker_id == "master" else alone.parent
    patch = pytest.MonkeyPatch()
    patch.setattr(build, "FOLDER", folder / "site")
    patch.setattr(pages, "write", lambda place: place.cell.id)
    with FileLock(folder / "site.lock"):
        if not build.FOLDER.exists():
            build.run()
    yield build.FOLDER
    patch.undo()


@pytest.fixture
def page(chromium, site):
    """A page that notes every request beyond the site's own files, and every error of a script."""
    opened = chromium.new_page()
    opened.strayed = []
    opened.on("request", lambda asked: asked.url.startswith("file:") or opened.strayed.append(asked.url))
    opened.on("pageerror", lambda error: opened.strayed.append(str(error)))
    yield opened
    opened.close()
    assert not opened.strayed, "a page asked for something outside of the site, or a script failed"
