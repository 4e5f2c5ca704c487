"""The package index: which releases of a package it offers for this Python, and since when."""

from __future__ import annotations

import datetime
import os
import platform
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from faultline.base.errors import UsageError
from faultline.stacks import pip

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

PATIENCE = 30  # seconds that an index may stay silent


@dataclass(frozen=True)
class Release:
    """A version and the day of its first usable file, ``YYYY-MM-DD``, or nothing where the index doesn't say."""

    version: str
    date: str = ""

    def __str__(self) -> str:
        return f"{self.version} ({self.date})" if self.date else self.version


def releases(package: str) -> list[Release]:
    """The releases that can be installed here, by version, the oldest first.

    Neither yanked ones nor pre-releases, nor those without a file for this
    Python. Raises UsageError where no index can be asked or has the package.
    """
    dates: dict[Version, list[str]] = {}
    for file, date in files(package):
        version = usable(file)
        if version:
            dates.setdefault(version, []).append(date)
    if not dates:
        raise UsageError(f"the package index has no release of {package} for Python {platform.python_version()}")
    return [Release(str(version), min(filter(None, dates[version]), default="")) for version in sorted(dates)]


def usable(file: DistributionPackage) -> Version | None:
    """The version of a file that can be installed here and is neither yanked nor a pre-release."""
    try:
        version = Version(file.version or "")
        fits = SpecifierSet(file.requires_python or "").contains(platform.python_version(), prereleases=True)
        if file.package_type == "wheel":
            fits = fits and not parse_wheel_filename(file.filename)[3].isdisjoint(sys_tags())
    except (InvalidVersion, InvalidSpecifier, InvalidWheelFilename):
        return None
    wanted = file.package_type in ("wheel", "sdist") and not file.is_yanked and not version.is_prerelease
    return version if fits and wanted else None


def files(package: str) -> list[tuple[DistributionPackage, str]]:
    """Every file that pip's indexes have of a package, with the day of its upload where they say it.

    All indexes count alike, as for pip. One that is a folder is left out: it knows no days.
    """
    # Imported here: they take a second, and no other command needs them.
    import requests
    from pypi_simple import NoSuchProjectError, PyPISimple, UnsupportedContentTypeError, UnsupportedRepoVersionError

    settings = {**pip.settings(), **os.environ}
    places = [settings.get("UV_DEFAULT_INDEX", ""), *settings.get("UV_INDEX", "").split()]
    asked = [place for place in places if not place or place.startswith(("http://", "https://"))]
    listed: list[tuple[DistributionPackage, str]] = []
    for place in asked:
        with PyPISimple(place) if place else PyPISimple() as client, warnings.catch_warnings():
            if urlsplit(client.endpoint).hostname in settings.get("UV_INSECURE_HOST", "").split():
                client.s.verify = False
                warnings.simplefilter("ignore")  # that nothing is verified was somebody's choice
            elif settings.get("SSL_CERT_FILE"):
                client.s.verify = settings["SSL_CERT_FILE"]
            try:
                listed += page(client, package)
            except NoSuchProjectError:
                continue
            except (requests.RequestException, UnsupportedContentTypeError, UnsupportedRepoVersionError) as error:
                raise UsageError(f"the package index can't be reached: {reason(error)}") from None
            except ValueError as error:
                raise UsageError(f"the package index gave no list of {package}'s files: {reason(error)}") from None
    if not listed:
        whose = f"has no package {package!r}" if asked else "can't be asked for releases: it is a folder"
        raise UsageError(f"the package index {whose}")
    return listed


def page(client: PyPISimple, package: str) -> Iterator[tuple[DistributionPackage, str]]:
    """The files of a package on one index; only JSON, and an attribute in HTML, say when they were uploaded."""
    from pypi_simple import DistributionPackage, NoSuchProjectError, ProjectPage, RepositoryPage

    url = client.get_project_url(package)
    answer = client.s.get(url, timeout=PATIENCE, headers={"Accept": client.accept})
    if answer.status_code == 404:
        raise NoSuchProjectError(package, url)
    answer.raise_for_status()
    if "html" in answer.headers.get("content-type", "html"):
        for link in RepositoryPage.from_html(answer.content, answer.url).links:
            yield DistributionPackage.from_link(link, package), day(link.get_str_attrib("data-upload-time"))
    else:
        for file in ProjectPage.from_response(answer, package).packages:
            yield file, day(file.upload_time.isoformat() if file.upload_time else None)


def day(time: str | None) -> str:
    """The day of a moment, in UTC; nothing for what is none."""
    try:
        return datetime.datetime.fromisoformat(time or "").astimezone(datetime.UTC).date().isoformat()
    except ValueError:
        return ""


def reason(error: Exception) -> str:
    """What went wrong, in a line; an index's address may hold a password."""
    return re.sub(r"//[^/@\s]*@", "//", " ".join(str(error).split()))[:300]
