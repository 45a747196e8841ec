"""Metamorphic relations: other ways to request the same attention, which must give the same output.

A related run needs no reference, so it also detects failures that the reference shares because it reads the kernel's
own inputs, such as queries that were never copied into a graph.
"""

from enum import StrEnum


class Relation(StrEnum):
    """The difference between the two runs of a case, whose requests ask for the same attention.

    - SAME_CALL: none. Detects races and dependence on the state of memory.
    - PAGES_RELABELLED: other pages of the pool hold the same tokens. Detects misused page ids.
    - BATCH_PERMUTED: the requests of each step are in reverse order. Detects leaks between neighbours.
    - REQUEST_APPENDED: each step has one more request with keys of its own, after the others. It takes the place of
      padding in graphs that have room for it; if one has none, all graphs grow by one request.
    - PADDING_ENLARGED: each step is padded by two more requests, or tokens where padding adds tokens.
    - REPLAY_AS_EAGER: nothing is captured, and replays are launched eagerly with the same padding.
    - CHUNKS_CHANGED: prefixes are attended to in one pass instead of several chunks, or in two instead of one.
    - SPLITS_CHANGED: another maximum length is stated, so a split-KV kernel splits the keys differently.
    """

    SAME_CALL = "same_call"
    PAGES_RELABELLED = "pages_relabelled"
    BATCH_PERMUTED = "batch_permuted"
    REQUEST_APPENDED = "request_appended"
    PADDING_ENLARGED = "padding_enlarged"
    REPLAY_AS_EAGER = "replay_as_eager"
    CHUNKS_CHANGED = "chunks_changed"
    SPLITS_CHANGED = "splits_changed"

    @property
    def words(self) -> str:
        """The name of the relation in messages, such as "pages relabelled"."""
        return self.value.replace("_", " ")

    @property
    def reorders_sums(self) -> bool:
        """Whether the relation changes the order of summation by design, so that bits may differ."""
        return self in (Relation.CHUNKS_CHANGED, Relation.SPLITS_CHANGED)
