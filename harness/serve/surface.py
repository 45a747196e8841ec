"""The surface of a server: its API, its sizes, and the requests that it accepts; and the versions on either side."""

import platform
import sys
from enum import StrEnum

import msgspec

import attnfuzz


class Speaks(StrEnum):
    """The API that is driven."""

    SGLANG = "sglang"
    OPENAI = "openai"
    TENSORRT = "openai of TensorRT-LLM"


class Ability(StrEnum):
    """A feature that the server answered to when it was asked."""

    FLUSH = "flush"
    METRICS = "metrics"
    SEVERAL = "n"
    PRIORITY = "priority"
    BIAS = "logit_bias"
    GRAMMAR = "grammar"
    SCORED = "prompt log-probabilities"
    ABORT = "abort"
    TOKEN_IDS = "token ids"


class Surface(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that were found out about a server.

    `page`, `chunk` (tokens of one prefill step), `rows` (requests of one step), `graphs` (batch sizes of CUDA graphs),
    `longest` (tokens of a request) and `pool` (tokens of the KV cache) are 0 or empty if unknown. An `exact` engine
    promises batch invariance. `ranks` is the number of its data-parallel ranks; SGLang says the `pool` of
    one, vLLM that of all.
    """

    speaks: Speaks
    model: str
    engine: str
    page: int = 0
    chunk: int = 0
    rows: int = 0
    graphs: tuple[int, ...] = ()
    longest: int = 2048
    pool: int = 0
    ranks: int = 1
    exact: bool = False
    can: tuple[Ability, ...] = ()
    command: str = ""

    def words(self) -> str:
        """Describe it on one line."""
        sizes = [f"{name} {value:,}" for name, value in self._sizes() if value]
        return ", ".join(
            [f"{self.engine} ({self.speaks.value})", *sizes, f"can: {', '.join(self.can) or 'generate only'}"]
        )

    def _sizes(self) -> tuple[tuple[str, int], ...]:
        ranks = self.ranks if self.ranks > 1 else 0
        of_one = ("pages of", self.page), ("chunks of", self.chunk), ("rows", self.rows), ("pool", self.pool)
        return *of_one, ("ranks", ranks)


def client_environment() -> dict[str, str]:
    """Describe the side of the client."""
    return {
        "attnfuzz": attnfuzz.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hypothesis": _hypothesis(),
    }


def _hypothesis() -> str:
    loaded = sys.modules.get("hypothesis")
    return str(getattr(loaded, "__version__", "")) or "not loaded"


def server_environment(surface: Surface, command: str | None) -> dict[str, str]:
    """Describe the side of the server: its version, model and sizes, and its command line."""
    found = {
        "server": surface.engine,
        "model": surface.model,
        "sizes": surface.words(),
        "command": command or surface.command,
    }
    return {name: text for name, text in found.items() if text}
