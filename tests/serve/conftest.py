"""A vLLM server on this CPU, for all tests here; its environment is that of make test-serve."""

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_llm_server import free_port
from vllm_on_cpu import server_command, write_plugin

from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.launch import LaunchedServer

ROOT = Path(__file__).parents[2]

SECONDS_TO_START = 300.0


@pytest.fixture(scope="session")
def python() -> str:
    """The Python that has vLLM: a skipped test would look like one that passed."""
    named = os.environ.get("ATTNFUZZ_VLLM_PYTHON", "")
    if not Path(named).is_file():
        pytest.exit("tests of a vLLM server: name its Python in ATTNFUZZ_VLLM_PYTHON, or make test-serve", returncode=2)
    return named


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of random weights, and the plugin that plants mistakes."""
    made: Path = tmp_path_factory.mktemp("server")
    runpy.run_path(str(ROOT / "scripts" / "random_llama.py"))["write_model"](made / "model")
    write_plugin(made)
    return made


@pytest.fixture(scope="session")
def server(python: str, folder: Path) -> Iterator[str]:
    """The URL of a server without a mistake."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = server_command(python, folder / "model", port, folder / "plugin", "none")
    launched = LaunchedServer(command, Client.of(url), folder / "server.log", ready=SECONDS_TO_START)
    try:
        launched.start()
        yield url
    finally:
        launched.end()
