"""The wing of servers: a running LLM server under traces of requests, judged against itself, and never imported.

It has its own traces, oracles, campaign, log and findings. `harness/cli/servers/` has the command `serve` and the
homes of its campaigns.

Door (`attnfuzz.shipped`): the command, and the kind of home `serve` (an `OtherHome` of `harness/cli/other_homes.py`),
by which `attnfuzz findings` and `report` show its findings.

May touch: the core without torch: files, findings, verdicts, reports, campaign plans. No engine, and no client library
of HTTP.

Tests: `make test-servers`, on stand-ins for servers; `make test-serve`, on a vLLM server.
"""
