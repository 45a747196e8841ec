"""Print an issue of this folder as it is posted, with its scripts: python _text.py NAME."""

import re
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
_SCRIPT = re.compile(r"^<!-- script: (\S+) -->$", re.MULTILINE)


def text(name):
    """Return the issue without its paragraph for readers of this site, and with each script as one file."""
    single_file = runpy.run_path(str(FOLDER.parent / "findings" / "_single_file.py"))["single_file"]

    def script(match):
        source = single_file(FOLDER.parent / "findings" / match[1])
        return f"<details><summary>{match[1]}</summary>\n\n```python\n{source}```\n</details>"

    title, _, rest = (FOLDER / f"{name}.md").read_text().partition("\n\n")
    return f"{title}\n\n{_SCRIPT.sub(script, rest.partition(chr(10) * 2)[2])}"


if __name__ == "__main__":
    print(text(sys.argv[1]), end="")
