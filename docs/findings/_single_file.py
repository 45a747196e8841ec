"""Print a script of this folder as one file: python _single_file.py SCRIPT > FILE."""

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
_SHARED = re.compile(r"^from (_\w+) import (\([^)]*\)|.*)\n", re.MULTILINE)


def single_file(script):
    """Return the source of a script with that of each shared module in place of its import."""
    seen = set()

    def source(match):
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return _SHARED.sub(source, (FOLDER / f"{name}.py").read_text()) + "\n\n"

    return _SHARED.sub(source, Path(script).read_text())


if __name__ == "__main__":
    print(single_file(sys.argv[1]), end="")
