"""Run a campaign from Python, and post each finding that the ledger does not know to a chat.

python chat_handler.py https://chat.example/hooks/SECRET
"""

import json
import sys
import urllib.request
from pathlib import Path

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import run

PLAN = Plan(backends=("trtllm_mha@21649-before",), examples=50, out=Path("attnfuzz-home"))


def post_to(url):
    """Return a handler of a campaign's events. An exception of it would end the campaign, which can be resumed."""

    def handle(event):
        if isinstance(event, FindingFiled) and event.known is None:
            text = f"{event.observation.kind} in {event.case.backend}: attnfuzz replay {event.path}"
            body = json.dumps({"text": text}).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request, timeout=10).close()
            except OSError as error:
                print(f"not posted ({error}): {text}", file=sys.stderr)

    return handle


if __name__ == "__main__":
    ended = run(PLAN, [post_to(sys.argv[1])])
    print(f"{ended.standing.cases} cases, {len(ended.standing.findings)} findings, in {PLAN.out}")
