"""The command that builds the site."""

from typing import Annotated

from cyclopts import Parameter


def site(
    *,
    screenshots: Annotated[bool, Parameter(help="Make the pictures of the pages again instead.")] = False,
) -> int:
    """Build the static site into generated/site.

    It has a page for each failure and each stack.

    Examples:
      faultline maintain site
    """
    if screenshots:
        from website import screenshots as pictures

        return pictures.run()
    from website import build

    return build.run()


MAINTAIN = (site,)
