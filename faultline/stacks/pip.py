"""pip's settings of indexes and the network, for uv, which doesn't read them."""

import ast
import contextlib
import os
import sys

from faultline.base.interpreters import ask, command


def settings() -> dict[str, str]:
    """pip's settings of indexes, links and the network in variables that uv reads, which doesn't read pip's own.

    UV_NO_INDEX is not among those that it reads: `run_uv` makes an option of it.
    """
    given = config()
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    settings = {names[key]: " ".join(value.split()) for key, value in given.items() if key in names}
    if "find-links" in given:
        settings["UV_FIND_LINKS"] = ",".join(given["find-links"].split())
    if "trusted-host" in given:
        settings["UV_INSECURE_HOST"] = " ".join(given["trusted-host"].split())
    if given.get("no-index", "").lower() in ("y", "yes", "t", "true", "on", "1"):  # which pip takes for true
        settings["UV_NO_INDEX"] = "1"
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        variables = (name, name.lower(), "ALL_PROXY", "all_proxy")
        if given.get("proxy") and not any(map(os.environ.get, variables)):
            settings[name] = given["proxy"]
    # As pip does: the best version of all indexes, whichever has it.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **settings}


def config() -> dict[str, str]:
    """pip's settings for every command and for installations, from its files and variables, by name."""
    listing = ask(command(sys.executable, "-m", "pip", "config", "list")).stdout
    sections: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        with contextlib.suppress(ValueError, SyntaxError):  # a line that is no setting
            sections.setdefault(section, {})[key] = str(ast.literal_eval(value))
    # Each overrules those before.
    return sections.get("global", {}) | sections.get("install", {}) | sections.get(":env:", {})
