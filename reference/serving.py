"""The server that runs a case: its limits, its scale of queries, and its ranks."""

from enum import StrEnum

import msgspec


class Serving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a server that schedules the requests of a case itself: it splits, delays and repeats work.

    A forward has at most `budget` new tokens; 0 means no limit. The pool is `shortage` pages short of the longest
    lengths of all sequences together, but fits each alone: requests wait, or are preempted and recomputed. An
    `asynchronous` server schedules a forward before it has the tokens of the previous one. `seed` determines choices
    that the steps leave open: aborted requests and accepted drafts. It does not affect tensor values.
    """

    budget: int = 0
    shortage: int = 0
    asynchronous: bool = False
    seed: int = 0


class ServedQueries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queries of a server with quantised attention.

    `scale` is the checkpoint's scale of queries, a power of two. If the KV cache is quantised, the server quantises
    queries too, to multiples of this scale, unless they are `kept`. It must not affect 16-bit queries.
    """

    scale: float = 1.0
    kept: bool = False


class Interleave(StrEnum):
    """The number of consecutive tokens that one rank holds of a request whose keys are shared."""

    TOKEN = "token"
    QUARTER_PAGE = "quarter_page"
    PAGE = "page"

    def tokens(self, page_size: int) -> int:
        """Return the number of tokens in a run."""
        match self:
            case Interleave.TOKEN:
                return 1
            case Interleave.QUARTER_PAGE:
                return max(1, page_size // 4)
            case Interleave.PAGE:
                return page_size


class SharedKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the ranks of a server share the keys of each request (decode context parallelism).

    With `all_to_all`, the ranks exchange parts of their outputs at once. Otherwise queries are gathered and outputs
    reduced (vLLM: --dcp-comm-backend).
    """

    ranks: int = 2
    interleave: Interleave = Interleave.TOKEN
    all_to_all: bool = False
