"""Metamorphic relations: ways to ask for the same attention again that must give the same answer.

What a related run shows needs no reference, so it also finds what the reference cannot see because it reads what the
kernel was given: queries that were never copied into a graph, say.
"""

from enum import StrEnum


class Relation(StrEnum):
    """What is different about a second run of a case, whose requests all ask for the same as in the first.

    SAME_CALL: nothing. Shows races and what depends on the state of memory.

    PAGES_RELABELLED: other pages of the pool hold the same tokens. Shows page ids that are taken for something else.

    BATCH_PERMUTED: the requests of each step come in reverse order. Shows what leaks between neighbours.

    REQUEST_APPENDED: each step has one more request, with keys of its own, behind the others. It takes the place of
    padding in graphs that have room for it; where one has none, all graphs have a bucket larger by one.

    PADDING_ENLARGED: each step is padded by two more requests, or tokens where padding adds tokens.

    REPLAY_AS_EAGER: nothing is captured, and what was replayed is launched eagerly, as padded as it was.

    CHUNKS_CHANGED: prefixes are attended to in one pass instead of several chunks, or in two instead of one.

    SPLITS_CHANGED: another maximum length is stated, so that a split-KV kernel divides the keys differently.
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
        """For messages: "pages relabelled"."""
        return self.value.replace("_", " ")

    @property
    def reorders_sums(self) -> bool:
        """Whether the keys are added up in another order by design, so that bits differ unless that is ruled out."""
        return self in (Relation.CHUNKS_CHANGED, Relation.SPLITS_CHANGED)
