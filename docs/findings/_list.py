"""Print the findings by library, for the page that lists them: python _list.py."""

import re
from itertools import groupby
from pathlib import Path

FOLDER = Path(__file__).parent


def page():
    """Return a list of the titles for each library, with links to their pages."""
    titles = sorted(
        (file.read_text().partition("\n")[0].removeprefix("# "), file.name)
        for file in FOLDER.glob("*.md")
        if file.name != "README.md"
    )
    groups = groupby(titles, key=lambda title: re.split(r"[:,]| over | on a | and ", title[0])[0])
    return "\n\n".join(
        f"**{library}**\n\n" + "\n".join(f"- [{title}]({name})" for title, name in findings)
        for library, findings in groups
    )


if __name__ == "__main__":
    print(page())
