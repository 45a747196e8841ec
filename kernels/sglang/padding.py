"""The simulated ranks among which a release pads its batches.

SGLang aligns each rank's tokens to its attention group, and raises them to the maximum over data-parallel ranks unless
some rank of them extends: then each keeps its own (0.5.9: layers/dp_attention.py:64, DpPaddingMode). A case states the
number of rows of a step; ranks are chosen so that the release pads to that number, or to the next one that it can.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Launch, Mode, Step

_ATTENTION_GROUPS = (1, 2, 4, 8, 16)
_DATA_PARALLEL = 4
"""Number of data-parallel ranks. If three have the maximum, padding all to it is cheaper, even if one is idle."""


@dataclass(frozen=True)
class Ranks:
    """The number of ranks that share an attention layer, and the number of such groups."""

    attention: int = 1
    data_parallel: int = 1

    @property
    def processes(self) -> int:
        """The number of ranks; this one is the first."""
        return self.attention * self.data_parallel

    def tokens(self, step: Step) -> list[int]:
        """Return the number of tokens of each data-parallel rank in a step before alignment, this one's first."""
        if extends(step) or self.data_parallel == 1:
            return [step.tokens] * self.data_parallel
        stride, requests = step.tokens_per_request, len(step.requests)
        due = max(-(-step.padded_tokens // stride), requests) * stride
        # A rank counts whole requests before it forwards them, although a ragged draft extend has fewer tokens.
        return [requests * stride, *[due] * (self.data_parallel - 1)]


def ranks_of(case: Case) -> Ranks:
    """Choose ranks that pad as many of the case's eager steps as possible as it states; one rank without padding.

    Of the attention groups that do, the seed chooses: the larger ones pad to more requests than a server permits.
    """
    padded = [one_decode(step) for step in case.steps if step.launch is Launch.EAGER and step.padded]
    if not padded:
        return Ranks()
    given = {group: sum(_gives(group, step) for step in padded) for group in _ATTENTION_GROUPS}
    best = [group for group, steps in given.items() if steps == max(given.values())]
    return Ranks(
        attention=best[case.seed % len(best)],
        data_parallel=1 if all(extends(step) for step in padded) else _DATA_PARALLEL,
    )


def one_decode(step: Step, number: int = 0) -> Step:
    """Return one of the decodes of a draft decode, and any other step unchanged."""
    if step.mode is not Mode.DRAFT_DECODE:
        return step
    left = step.tokens_per_request - 1 - number
    requests = tuple(replace(each, q_len=1, kv_len=each.kv_len - left) for each in step.requests)
    return replace(step, mode=Mode.DECODE, requests=requests, padded_tokens=step.padded_batch, tokens_per_request=1)


def extends(step: Step) -> bool:
    """Return whether a server treats a step as an extend, in which ranks keep their own numbers of tokens."""
    return step.mode in (Mode.EXTEND, Mode.CHUNKED_PREFILL)


def _gives(group: int, step: Step) -> bool:
    """Return whether an attention group of that size pads a step to its stated number of rows."""
    tokens = step.tokens if extends(step) else step.padded_tokens
    return -(-tokens // group) * group == step.padded_tokens
