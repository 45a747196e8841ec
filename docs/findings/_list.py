"""Print the findings by library, for the page that lists them: python _list.py."""

import re
from itertools import groupby
from pathlib import Path

FOLDER = Path(__file__).parent
UPSTREAM = FOLDER.parent / "upstream"
_FIELD = re.compile(r'^(\w+): "(.*)"$', re.MULTILINE)
_HEAD = ("| finding | affected | fixed in | report |", "|---|---|---|---|")


def divided(text):
    """Divide a page into the fields of its front matter (affected, fixed, report) and the rest.

    Raises ValueError for a page without it.
    """
    matter, end, rest = text.removeprefix("---\n").partition("---\n")
    if not (text.startswith("---\n") and end):
        raise ValueError("begin the page with affected, fixed and report between two lines of ---: see another finding")
    return dict(_FIELD.findall(matter)), rest


def page():
    """Return a table for each library, with a row for each finding and links to their pages."""
    texts = {
        script: text.name
        for text in sorted(UPSTREAM.glob("*.md"))
        for script in re.findall(r"<!-- script: (\S+)\.py -->", text.read_text())
    }
    rows = []
    for file in FOLDER.glob("*.md"):
        if file.name != "README.md":
            fields, rest = divided(file.read_text())
            title = rest.partition("\n")[0].removeprefix("# ")
            ready = f"[text](../upstream/{texts[file.stem]})" if file.stem in texts else ""
            cells = (
                f"[{title}]({file.name})",
                fields["affected"],
                fields.get("fixed", ""),
                fields.get("report", ready),
            )
            rows.append((title, f"| {' | '.join(cells)} |"))
    groups = groupby(sorted(rows), key=lambda row: re.split(r"[:,]| over | on a | and ", row[0])[0])
    return "\n\n".join("\n".join((f"**{library}**\n", *_HEAD, *(row for _, row in found))) for library, found in groups)


if __name__ == "__main__":
    print(page())
