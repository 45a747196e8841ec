"""Tables of benchmarks as sections of the pages in docs/results.

`RESULTS=docs/results/search.md python benchmarks/coverage.py` writes each table that it prints into the page, with the
command, the date and the machine, in place of the section with the same title.
"""

import datetime as dt
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def record(page: Path, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], machine: str) -> None:
    """Write a table into a page, in place of the section with this title, or at the end."""
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)
    today = dt.datetime.now(tz=dt.UTC).date()
    section = f"## {title}\n`{command}` on {today}, {machine}.\n\n{table}\n"
    text = page.read_text() if page.exists() else ""
    old = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if old is None:
        page.write_text(f"{text}\n{section}" if text else section)
    else:
        after = text[old.end() :]
        page.write_text(text[: old.start()] + section + ("\n" + after if after else ""))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
