"""Templates, with the settings that all of them share."""

from collections.abc import Callable

import jinja2


def environment_of(
    package: str,
    *,
    autoescape: bool,
    keep_trailing_newline: bool = False,
    finalize: Callable[[object], object] | None = None,
) -> jinja2.Environment:
    """The environment of the templates that lie beside the modules of `package`; a name that is undefined raises.

    `autoescape` is for HTML and XML: other formats have rules of their own. `finalize` is called on all that is shown.
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
