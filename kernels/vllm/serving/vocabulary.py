"""Token ids of the requests to an engine: the streams of a case's sequences, and tokens that belong to none."""

from collections.abc import Mapping, Sequence

from attnfuzz.kernels.planning.slot_tokens import SlotTokens


class Vocabulary:
    """The ids of a case's tokens.

    An id is an index into the pool's tokens, which have its key and value. Each position of each sequence has a unique
    id, except that sequences that share pages (`shared`) share ids.

    Attributes:
        streams: The ids of each sequence's tokens, in order.

    """

    def __init__(self, tokens: SlotTokens, shared: Mapping[int, Sequence[int]], page_size: int) -> None:
        self._extra = tokens.extra
        self.streams = {slot: list(span) for slot, span in tokens.spans.items()}
        self._positions = {token: token - span.start for span in tokens.spans.values() for token in span}
        owners: dict[int, Sequence[int]] = {}
        for slot, owned in shared.items():
            for index, page in enumerate(owned):
                here = slice(index * page_size, (index + 1) * page_size)
                own = self.streams[slot]
                own[here] = owners.setdefault(page, own[here])[: len(own[here])]

    @property
    def size(self) -> int:
        """The number of ids."""
        return self._extra.stop

    def stranger(self, position: int, which: int = 0) -> int:
        """Return a token that no sequence has at `position`; `which` selects one of several."""
        return self._extra[(position + which) % len(self._extra)]

    def row(self, token: int, position: int) -> int:
        """Return the index of the key and value of a token at a position.

        As with a rotary embedding, both also depend on the position: at a wrong one, they are those of no sequence.
        """
        # A scheduler may pass -1 as a placeholder of drafts, which a runner embeds as 0 (0.33.0:
        # gpu_model_runner.py:3275).
        token = max(token, 0)
        if self._positions.get(token) == position:
            return token
        return self._extra[(token + position) % len(self._extra)]
