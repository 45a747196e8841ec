"""Stands for an SGLang server, with faults that tests switch on. It has no model: tokens follow from a hash.

Its behaviour is that of SGLang's source at commit 0025436e (python/sglang/srt/...):
- entrypoints/http_server.py: /health, /get_server_info (server arguments, scheduler_info, internal_states, version),
  /generate (one object, or a list for n > 1; errors are 400), /flush_cache (400 while requests run or wait),
  /abort_request (200 for any rid), /v1/models.
- managers/tokenizer_manager.py: meta_info has id, finish_reason, prompt_tokens, completion_tokens, cached_tokens,
  and with return_logprob lists of (log-probability, token, text) as output_token_logprobs and
  input_token_logprobs, where the first of a prompt has none.
- utils: the API key is asked for in `Authorization: Bearer`, but not for /health and /metrics; 401 otherwise.
Not stood in for: scheduling. No clock decides which requests run together, so that all results are those of a
machine without load: a request runs alone, or, where its trace is announced (served_here.py), with the requests that
the client has under way at the same time. A batch begins when the last of them has arrived, and runs at once, in the
order in which the trace has them. Its prompts are in the cache when it has ended.

python fake_llm_server.py PORT [FAULT] runs it as a process.
"""

import contextlib
import json
import socket
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, Self


class FakeFault(StrEnum):
    """A fault of the stand-in."""

    NONE = "none"
    BATCH = "batch"  # the last of three or more requests at once gets wrong log-probabilities
    NOISE = "noise"  # all log-probabilities in company differ by up to 0.01
    SWAP = "swap"  # two requests at once get each other's tokens
    PREFIX = "prefix"  # a prompt with a cached prefix of four tokens or more gets another last token
    BOTH = "both"  # as BATCH and as PREFIX
    RANK = "rank"  # of two data-parallel ranks, the second one answers wrongly
    LEAK = "leak"  # tokens of an aborted request stay in the pool
    STUCK = "stuck"  # an aborted request stays running
    MISCOUNT = "miscount"  # the counter of prompt tokens misses cached ones
    CRASH = "crash"  # the server ends at the second scored prompt after a flush
    DROP = "drop"  # the connection of the second scored prompt after a flush breaks
    AGAIN = "again"  # another process takes over at the second scored prompt after a flush
    TELLS = "tells"  # the server wants a token, and shows it in its output, its version, its arguments and its errors
    HANG = "hang"  # three requests at once are never answered
    BUSY = "busy"  # the cache is never flushed
    REDIRECT = "redirect"
    RATE = "rate"
    TOKEN = "token"
    NO_LLM = "no llm"


TOKEN = "secret-of-the-test"

MOST_THAT_TELLS_ANSWERS = 12
"""Tokens of a prompt that a server with the fault TELLS answers."""


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


HERE: dict[int, "FakeLlm"] = {}
"""The stand-ins of this process, by their ports."""

SECONDS_TO_WAIT = 60.0
"""Time for other requests to arrive: only a mistake in a test takes as long."""


@dataclass(eq=False)
class Running:
    """A request in a batch: answered, or `broken` where its connection breaks, when it is `over`."""

    body: dict[str, Any]
    answer: Any = None
    over: bool = False
    broken: bool = False

    @property
    def prompt(self) -> tuple[int, ...]:
        """Its tokens."""
        return tuple(self.body["input_ids"])

    @property
    def scored(self) -> bool:
        """Whether its prompt is scored."""
        return bool(self.body.get("logprob_start_len", -1) == 0)

    @property
    def place(self) -> tuple[int, str]:
        """Its place in the trace: by its name, and by its content where it has none (n > 1)."""
        number = str(self.body.get("rid", "")).rpartition("-")[2]
        return int(number) if number.isdigit() else 1 << 40, json.dumps(self.body)


@dataclass
class FakeLlm:
    """A server on a free port of this machine, with a fault; use it as a context.

    A wrong answer of the fault PREFIX is given at each `every`th chance alone. For `linger` seconds before a batch
    begins, more requests than it needs may arrive.
    """

    fault: FakeFault = FakeFault.NONE
    port: int = 0
    every: int = 1
    linger: float = 0.0
    paths: list[str] = field(default_factory=list)
    most_running: int = 0

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.unread: dict[Any, None] = {}
        self.expected: deque[int] = deque()
        self.running: list[Running] = []
        self.scored = self.chances = self.stuck = 0
        self.starts = 1
        self.dead = False
        self.cache: list[tuple[int, ...]] = []
        self.aborted: set[str] = set()
        self.counted = {"prompt": 0, "generated": 0}
        self.prompts: dict[str, Sequence[int]] = {}
        llm = self

        class Handler(self.handler()):  # type: ignore[misc]
            server_llm = llm

        class Listening(ThreadingHTTPServer):
            # More than are under way at once: the system of a client repeats a refused connection seconds later.
            request_queue_size = 128

            def process_request(self, request: Any, client_address: Any) -> None:
                with llm.changed:
                    llm.unread[client_address] = None
                super().process_request(request, client_address)

        self.http = Listening(("127.0.0.1", self.port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_port

    def handler(self) -> type["_Handler"]:
        """The routes."""
        return _Handler

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        HERE[self.port] = self
        return self

    def __exit__(self, *_: object) -> None:
        HERE.pop(self.port)
        self.die()

    def die(self) -> None:
        """Stop listening."""
        self.http.shutdown()
        self.http.server_close()
        self._release()

    def read(self, connection: Any) -> None:
        """Note that the request of a connection is known, or that there is none."""
        with self.changed:
            self.unread.pop(connection, None)
            self.changed.notify_all()

    def await_earlier(self, connection: Any) -> None:
        """Wait until the requests of all earlier connections are known: one that was closed may be on its way."""
        with self.changed:
            self.changed.wait_for(lambda: next(iter(self.unread), connection) == connection, SECONDS_TO_WAIT)

    def expect(self, sizes: Iterator[int]) -> None:
        """Run the next requests in batches of these sizes."""
        with self.changed:
            self.expected = deque(sizes)

    def refuse(self) -> None:
        """Count a request that is refused: its batch does not wait for it."""
        with self.changed:
            if self.expected:
                self.expected[0] -= 1
            self._run_if_complete()

    def _release(self) -> None:
        """Answer no request that waits, and wait for none."""
        with self.changed:
            self.expected.clear()
            for each in self.running:
                each.over = each.broken = True
            self.running.clear()
            self.changed.notify_all()

    def generate(self, body: dict[str, Any], connection: Any) -> Any:
        """Answer /generate. Raises ConnectionAbortedError where the connection breaks."""
        mine = Running(body)
        with self.changed:
            self.prompts[str(body.get("rid"))] = mine.prompt
            self.running.append(mine)
            self.most_running = max(self.most_running, len(self.running))
        time.sleep(self.linger)
        with self.changed:
            self._run_if_complete()
            # Not before: a client that closed it would send its next burst, and some of that would join this batch.
            self.unread.pop(connection, None)
            self.changed.notify_all()
            self.changed.wait_for(lambda: mine.over, SECONDS_TO_WAIT)
        if mine.broken or not mine.over:
            raise ConnectionAbortedError
        return mine.answer

    def _run_if_complete(self) -> None:
        if self.expected and len(self.running) < self.expected[0]:
            return
        batch = sorted(self.running, key=lambda each: each.place)
        if self.fault is FakeFault.HANG and len(batch) > 2:
            return
        together = bool(self.expected) and self.expected.popleft() > 0
        self.running.clear()
        for each in [batch] if together else [[each] for each in batch]:
            self._run_batch(each)
        self.changed.notify_all()

    def _run_batch(self, batch: Sequence[Running]) -> None:
        for place, each in enumerate(batch):
            self._run(place, each, batch)
        self.cache += [each.prompt for each in batch if not each.broken]

    def _run(self, place: int, mine: Running, batch: Sequence[Running]) -> None:
        mine.over = True
        self.scored += mine.scored
        if mine.scored and self.scored > 1:
            self._spoil(mine)
        if self.dead or mine.broken:
            mine.broken = True
            return
        other = next((each.prompt for each in batch if each.prompt != mine.prompt), None)
        cached = 0 if mine.scored else self._cached(mine.prompt)
        number = mine.body["sampling_params"].get("n", 1)
        answers = [self._answer(mine, (place, len(batch), other), cached) for _ in range(number)]
        self.counted["prompt"] += len(mine.prompt) - (cached if self.fault is FakeFault.MISCOUNT else 0)
        self.counted["generated"] += sum(answer["meta_info"]["completion_tokens"] for answer in answers)
        mine.answer = answers if number > 1 else answers[0]

    def start_again(self) -> None:
        """Answer again after a crash, as a new process would."""
        with self.changed:
            self.scored = 0
            self.cache.clear()
            self.starts += 1
            self.dead = False

    def _spoil(self, mine: Running) -> None:
        """Fail at the second scored prompt after a flush."""
        self.dead = self.fault is FakeFault.CRASH
        if self.fault in {FakeFault.CRASH, FakeFault.DROP}:
            # The client sends no more of the trace.
            self.expected.clear()
            mine.broken = True
        self.starts += self.fault is FakeFault.AGAIN

    def _cached(self, prompt: Sequence[int]) -> int:
        def shared(other: Sequence[int]) -> int:
            pairs = zip(prompt, other, strict=False)
            return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(other)))

        return min(max(map(shared, self.cache), default=0), len(prompt) - 1)

    def _answer(self, mine: Running, batch: tuple[int, int, Any], cached: int) -> dict[str, Any]:
        place, size, other = batch
        prompt, body, sampling = mine.prompt, mine.body, mine.body["sampling_params"]
        source = other if self.fault is FakeFault.SWAP and size == 2 and other is not None else prompt
        if self.fault in {FakeFault.PREFIX, FakeFault.BOTH} and cached >= 4:
            self.chances += 1
            source = (*source[:-1], source[-1] + (self.chances % self.every == 0))
        wrong = 0.0
        if self.fault in {FakeFault.BATCH, FakeFault.BOTH} and size > 2 and place == size - 1:
            wrong = 0.2
        if self.fault is FakeFault.RANK and body.get("routed_dp_rank") == 1:
            wrong = 0.3
        if self.fault is FakeFault.NOISE and size > 1:
            wrong = 0.002 + (zlib.crc32(repr((prompt, size)).encode()) % 8) / 1000
        allowed = [int(each) for each in sampling.get("logit_bias", {})]
        output: list[list[Any]] = []
        state = 0
        for each in source:
            state = _after(state, each)
        for _ in range(sampling["max_new_tokens"]):
            token, logprob = _next(state, allowed)
            output.append([logprob - wrong, token, None])
            state = _after(state, token)
        info = {
            "id": body.get("rid", "made-up"),
            "finish_reason": {"type": "length", "length": len(output)},
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "cached_tokens": cached,
            "output_token_logprobs": output,
            "input_token_logprobs": _scores(prompt) if mine.scored else [],
        }
        return {"text": "", "output_ids": [each[1] for each in output], "meta_info": info}

    def abort(self, name: str) -> None:
        """Forget a request; a fault does not."""
        with self.changed:
            if self.fault is FakeFault.LEAK:
                self.aborted.add(name)
            self.stuck += self.fault is FakeFault.STUCK

    def flush(self) -> bool:
        """Empty the cache, unless requests run."""
        with self.changed:
            if self.running or self.stuck or self.fault is FakeFault.BUSY:
                return False
            self.cache.clear()
            self.scored = 0
            return True

    def metrics(self) -> str:
        """Counters as Prometheus' text."""
        with self.changed:
            # A prompt that leaks, if its request had a name.
            used = sum(len(self.prompts.get(name, ())) for name in self.aborted)
            samples = {
                "sglang:num_running_reqs": len(self.running) + self.stuck,
                "sglang:num_queue_reqs": 0,
                "sglang:token_usage": used / 10_000,
                "sglang:prompt_tokens_total": self.counted["prompt"],
                "sglang:generation_tokens_total": self.counted["generated"],
            }
            began = f"process_start_time_seconds {1e9 + self.starts}\n"
        return began + "".join(f'{name}{{model_name="fake"}} {value}\n' for name, value in samples.items())


def _after(state: int, token: int) -> int:
    """The state of the model after one more token."""
    return zlib.crc32(b"%d" % token, state)


def _scores(prompt: Sequence[int]) -> list[list[Any]]:
    """Each token of a prompt, with its log-probability but for the first."""
    scores: list[list[Any]] = [[None, prompt[0], None]]
    state = 0
    for before, token in pairwise(prompt):
        state = _after(state, before)
        scores.append([_next(state, [])[1], token, None])
    return scores


def _next(hashed: int, allowed: Sequence[int]) -> tuple[int, float]:
    """The most probable token in a state, and its log-probability."""
    return (allowed[hashed % len(allowed)] if allowed else 16 + hashed % 240), -(hashed % 997) / 100


class _Handler(BaseHTTPRequestHandler):
    server_llm: FakeLlm

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._serve(json.loads(self.rfile.read(length) or b"{}"))

    def _serve(self, body: dict[str, Any] | None) -> None:
        llm = self.server_llm
        path = self.path.partition("?")[0]
        llm.paths.append(path)
        if llm.dead:
            self.close_connection = True
            return
        if (refusal := self._refusal(path)) is not None:
            self._reply(*refusal)
            return
        if path == "/generate" and body is not None:
            self._generate(body)
            return
        llm.await_earlier(self.client_address)
        if path == "/abort_request" and body is not None:
            llm.abort(body["rid"])
        self._reply(*self._answer_to(path))

    def _answer_to(self, path: str) -> tuple[int, Any]:
        llm = self.server_llm
        if path == "/flush_cache":
            return (200 if llm.flush() else 400), "Cache flushed.\n"
        if path == "/metrics":
            return 200, llm.metrics()
        models = {"data": [{"id": "fake", "max_model_len": 512}]}
        info = _INFO | {"version": f"0.5.5-{TOKEN}"} if llm.fault is FakeFault.TELLS else _INFO
        info = info | {"dp_size": 2} if llm.fault is FakeFault.RANK else info
        fixed: dict[str, Any] = {"/health": "", "/get_server_info": info, "/v1/models": models, "/abort_request": ""}
        return (200, fixed[path]) if path in fixed else (404, {"detail": "Not Found"})

    def _refusal(self, path: str) -> tuple[int, Any] | None:
        fault = self.server_llm.fault
        if fault is FakeFault.NO_LLM and path != "/health":
            return 404, "<html>not here</html>"
        if fault is FakeFault.REDIRECT:
            return 307, ""
        if fault is FakeFault.RATE and path == "/generate":
            return 429, {"error": "slow down"}
        wanted = f"Bearer {TOKEN}"
        if (
            fault in {FakeFault.TOKEN, FakeFault.TELLS}
            and path not in {"/health", "/metrics"}
            and self.headers["Authorization"] != wanted
        ):
            return 401, {"error": "Unauthorized"}
        return None

    def _generate(self, body: dict[str, Any]) -> None:
        if body.get("priority") and not _INFO["enable_priority_scheduling"]:
            self.server_llm.refuse()
            self._reply(400, {"error": {"message": "priorities are off"}})
            return
        try:
            if self.server_llm.fault is FakeFault.TELLS and len(body["input_ids"]) > MOST_THAT_TELLS_ANSWERS:
                self._reply(500, {"error": f"failed with {TOKEN} of {self.server_llm.fault}"})
                return
            answer = self.server_llm.generate(body, self.client_address)
            self._reply(200, b"data: " + json.dumps(answer).encode() + b"\n\n" if body.get("stream") else answer)
        except ConnectionAbortedError:
            self.close_connection = True
            self.connection.close()

    def _reply(self, status: int, answer: Any) -> None:
        data = (
            answer
            if isinstance(answer, bytes)
            else (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        )
        try:
            self.send_response(status)
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def finish(self) -> None:
        """End the connection; one that the client closed before may have been a request."""
        self.server_llm.read(self.client_address)
        with contextlib.suppress(OSError):
            super().finish()


_INFO = {
    "model_path": "fake",
    "served_model_name": "fake",
    "page_size": 4,
    "chunked_prefill_size": 16,
    "max_running_requests": 8,
    "context_length": 512,
    "max_total_num_tokens": 10_000,
    "cuda_graph_bs": [1, 2, 4, 8],
    "enable_priority_scheduling": False,
    "enable_deterministic_inference": False,
    "internal_states": [{}],
    "version": "0.5.5-fake",
}


def main() -> None:
    """Serve until it is killed, or dies of its fault."""
    port, *faults = sys.argv[1:]
    llm = FakeLlm(FakeFault(faults[0] if faults else "none"), int(port))
    if llm.fault is FakeFault.TELLS:
        sys.stderr.write(f"api_key={TOKEN}\n")
    llm.http.serve_forever(0.01)


if __name__ == "__main__":
    main()
