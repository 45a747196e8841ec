"""Templates, with their common settings."""

from collections.abc import Callable

import jinja2


def environment_of(
    package: str,
    *,
    autoescape: bool,
    keep_trailing_newline: bool = False,
    finalize: Callable[[object], object] | None = None,
) -> jinja2.Environment:
    """Make the environment of the templates beside the modules of `package`; undefined names raise.

    `autoescape` is for HTML and XML: other formats escape in their own way. `finalize` is called on each value.
    """
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=keep_trailing_newline,
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,  # noqa: S701 - off for Python and markdown, which are no HTML
        finalize=finalize,
    )
