"""A script of a finding that needs Python's standard library alone."""

import json
from functools import cache

import jinja2

import attnfuzz
from attnfuzz.harness.files.templates import environment_of
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.metrics import GAUGES
from attnfuzz.harness.serve.surface import Speaks
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import RequestTrace
from attnfuzz.harness.verdict.printable import in_a_line


@cache
def _template() -> jinja2.Template:
    environment = environment_of("attnfuzz.harness.serve", autoescape=False, keep_trailing_newline=True)
    return environment.get_template("repro.py.j2")


def script_of(server: TestedServer, trace: RequestTrace, fault: ServedFault, floor: float, runs: int) -> str:
    """Write a script that sends the trace until it fails, and compares answers with those of requests alone.

    It gives up after `runs`.
    """
    rows = []
    number = 0
    for place, burst in enumerate(trace.bursts):
        for first, request in zip((True, *[False] * len(burst.requests)), burst.requests, strict=False):
            body = server.api.body(request, server.surface, f"attnfuzz-{(number := number + 1)}")
            waits = burst.pause if first else 0.0, bool(first and place and burst.after_all)
            rows.append((body, server.api.headers(request), request.abort, *waits))
    started = server.launched.command if server.launched is not None else server.surface.command
    return _template().render(
        title=_in_a_docstring(f"{fault.kind}: {fault.message}"),
        version=attnfuzz.__version__,
        server=_in_a_docstring(server.surface.words()),
        command=_in_a_docstring(started or "unknown"),
        url=repr(server.client.address),
        generate=repr(server.api.generate),
        flush=repr(server.flush_path),
        floor=repr(floor),
        runs=repr(runs),
        timeout=repr(server.timeout),
        sglang=repr(server.surface.speaks is Speaks.SGLANG),
        gauges=repr(GAUGES if fault.kind is ServedKind.LEAKED else ()),
        requests=repr(json.dumps(rows)),
    )


def _in_a_docstring(text: str) -> str:
    """Escape foreign text so that it ends no docstring, and escapes nothing."""
    return in_a_line(text).replace("\\", "\\\\").replace('"', '\\"')
