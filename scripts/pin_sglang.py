"""Writes kernels/sglang/pinned/VERSION.json from recorded questions, for make pin-sglang.

    python scripts/pin_sglang.py FOLDER

Questions that a version no longer asks are dropped: review the difference before you keep it.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from attnfuzz.kernels.releases.answers import RECORDED


def repin(recorded: Path, pinned: Path) -> list[str]:
    """Write a file of pins into `pinned` for each version with `recorded` questions; returns the versions."""
    versions: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in (recorded / RECORDED).read_text(encoding="utf-8").splitlines():
        asked = json.loads(line)
        questions = versions[asked["release"]]
        if "name" in asked:
            questions[asked["name"]].add(asked["place"])
    for version, questions in versions.items():
        pins = {name: sorted(places) for name, places in sorted(questions.items())}
        (pinned / f"{version}.json").write_text(f"{json.dumps(pins, indent=2)}\n", encoding="utf-8")
    return sorted(versions)


if __name__ == "__main__":
    for version in repin(Path(sys.argv[1]), Path(__file__).parents[1] / "kernels/sglang/pinned"):
        sys.stdout.write(f"pinned {version}\n")
