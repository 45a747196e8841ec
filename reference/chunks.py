"""How a chunked prefill cuts prefixes: each request is given an equal share of the capacity in each chunk."""

from attnfuzz.reference.case import Step


def chunks_of(step: Step, capacity: int) -> int:
    """Prefix chunks of a chunked prefill of which each holds up to `capacity` tokens over all requests."""
    share = capacity // len(step.requests)
    return max(0, -(-longest_prefix(step) // share))


def longest_prefix(step: Step) -> int:
    """The most keys that a request has before its new tokens."""
    return max(request.kv_len - request.q_len for request in step.requests)
