"""The package index: releases that can be installed here, with their days, from whatever an index answers."""

import json
import platform
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from faultline.base.errors import UsageError
from faultline.stacks import index, pip
from faultline.stacks.index import Release

HTML, JSON = "text/html; charset=utf-8", "application/vnd.pypi.simple.v1+json"
ELSEWHERE = "plan9_mips"  # a platform that isn't this one
FILES = [
    # name, when, what it needs of Python, whether it was yanked
    ("demo-1.0.tar.gz", "2025-01-02T23:30:00Z", "", False),
    ("demo-1.0-py3-none-any.whl", "2025-01-02T01:00:00.123456Z", ">=3.8", False),
    ("demo-1.10-py3-none-any.whl", "2025-03-01T12:00:00Z", "", False),
    ("demo-1.9-py3-none-any.whl", "2025-02-01T12:00:00+02:00", "", False),
    ("demo-1.11rc1-py3-none-any.whl", "2025-03-02T12:00:00Z", "", False),
    ("demo-1.12-py3-none-any.whl", "2025-04-01T12:00:00Z", "", True),
    ("demo-1.13-py3-none-any.whl", "2025-05-01T12:00:00Z", "<3", False),
    (f"demo-1.14-cp27-none-{ELSEWHERE}.whl", "2025-05-02T12:00:00Z", "", False),
    ("demo-1.15-py2.7.egg", "2025-05-03T12:00:00Z", "", False),
    ("demo-1.16-py3-none-any.whl", "", "nonsense", False),
    ("no-name-at-all.exe", "2025-05-03T12:00:00Z", "", False),
    ("demo-2.0-py3-none-any.whl", "", f">={platform.python_version()}", False),
]
FOUND = [Release("1.0", "2025-01-02"), Release("1.9", "2025-02-01"), Release("1.10", "2025-03-01"), Release("2.0")]


def html():
    link = '<a href="../{0}#sha256=00" data-requires-python="{2}" data-upload-time="{1}" {3}>{0}</a><br/>'
    links = [link.format(name, at, escape(needs), "data-yanked" * yanked) for name, at, needs, yanked in FILES]
    return "<!DOCTYPE html><html><body>" + "\n".join(links)


def as_json():
    keys = ("filename", "upload-time", "requires-python", "yanked")
    files = [dict(zip(keys, file, strict=True)) | {"url": f"../{file[0]}", "hashes": {}} for file in FILES]
    present = [{key: value for key, value in file.items() if value != ""} for file in files]
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "demo", "files": present})


@pytest.fixture
def served(monkeypatch):
    """A package index on this machine; gives its address and the answers by package: kind, text."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            kind, text = answers.get(self.path.strip("/").rpartition("/")[2], ("404", ""))
            self.send_response(int(kind) if kind.isdigit() else 200)
            self.send_header("Content-Type", kind if "/" in kind else HTML)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://name:secret@127.0.0.1:{server.server_port}/simple"
    settings = {"UV_DEFAULT_INDEX": address}
    monkeypatch.setattr(pip, "settings", lambda: settings)
    for name in ("UV_INDEX", "UV_DEFAULT_INDEX", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield settings, answers
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("kind", "text"), [(HTML, html()), (JSON, as_json())])
def test_releases_come_by_version_with_the_day_of_their_first_file(served, kind, text):
    """Breaks when one that can't be installed is bisected, 1.10 comes before 1.9, or a day is lost."""
    served[1]["demo"] = (kind, text)
    assert index.releases("demo") == FOUND


def test_all_indexes_count(served):
    """Breaks when a package on an extra index is unknown, or a folder among them ends it."""
    settings, answers = served
    answers["demo"] = (HTML, html())
    empty = settings["UV_DEFAULT_INDEX"].replace("simple", "empty")
    answers["other"] = (HTML, "")
    settings["UV_INDEX"] = f"file:///srv/simple {settings['UV_DEFAULT_INDEX']}"
    settings["UV_DEFAULT_INDEX"] = empty
    assert index.releases("demo") == FOUND


@pytest.mark.parametrize(
    ("package", "answer", "expected"),
    [
        ("nowhere", ("404", ""), "the package index has no package 'nowhere'"),
        ("old", (HTML, '<a href="old-1.0-py2-none-any.whl">old-1.0-py2-none-any.whl</a>'), "no release of old for Py"),
        ("broken", ("503", ""), "can't be reached: 503"),
        ("odd", ("image/png", "x"), "can't be reached"),
        ("torn", (JSON, '{"meta": '), "the package index"),
        ("strange", (JSON, '{"meta": {"api-version": "1.0"}, "files": 7}'), "gave no list of strange's files"),
        ("newer", (JSON, '{"meta": {"api-version": "9.0"}, "files": []}'), "the package index"),
        ("http://name:secret@127.0.0.1:9/simple", None, "can't be reached"),
        ("file:///srv/simple", None, "it is a folder"),
    ],
)
def test_an_index_without_an_answer_is_one_line(served, package, answer, expected):
    """Breaks when an index that is down, odd or not there ends in a traceback, or shows the password in its address."""
    settings, answers = served
    answers[package] = answer
    if not answer:
        settings["UV_DEFAULT_INDEX"] = package
        package = "trl"
    with pytest.raises(UsageError, match=expected) as caught:
        index.releases(package)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)
