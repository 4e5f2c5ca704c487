"""The command that builds the site."""


def site() -> int:
    """Build the static site into generated/site.

    It has a page for each failure and each stack.

    Examples:
      faultline maintain site
    """
    from website import build

    return build.run()


MAINTAIN = (site,)
