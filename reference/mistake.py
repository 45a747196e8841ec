"""The kinds of mistakes that explain wrong rows: a vocabulary shared by the judge and the planted defects.

Each planted defect declares the mistakes that describe it, so wrong explanations are counted without reading text.
"""

from enum import StrEnum
from typing import Self


class Mistake(StrEnum):
    """A deviation of a kernel, or of its caller, from correct attention.

    The members GIVEN_* are mistakes in the arguments of the call: the kernel computes the call correctly.
    """

    NO_KEYS = "no keys"
    KEYS_MISSING = "keys missing"
    KEYS_TWICE = "keys counted twice"
    KEYS_REPLACED = "other keys read"
    VALUES_MISSING = "values missing"
    LENGTH = "length off"
    CAUSAL_LIMIT = "causal limit off"
    CAUSAL_ALIGNMENT = "causal mask misaligned"
    MASK_OF_ANOTHER_ROW = "mask of another row"
    MASK_IGNORED = "mask ignored"
    MASK_LAYOUT = "mask read in another layout"
    MASK_OF_ANOTHER_REQUEST = "mask of another request"
    WINDOW = "window wrong"
    LOGIT_SCALE = "logits scaled"
    OUTPUT_SCALE = "output scaled"
    SOFT_CAP = "soft cap missing"
    SINK = "sink missing or repeated"
    SINK_OF_ANOTHER_HEAD = "sink of another head"
    SINK_SCALED = "sink scaled"
    OTHER_ROW = "another row's answer"
    OTHER_QUERY = "another row's query"
    OTHER_KV_HEAD = "another KV head"
    OTHER_REQUEST = "another request's keys"
    OTHER_CACHE = "keys and values confused"
    LSE_BASE = "LSE in another base"
    LSE_SIGN = "LSE negated"
    LSE_OF_A_PART = "LSE of a part"
    LSE_LAYOUT = "LSE in another layout"
    MERGE_BASE = "parts merged in another base"
    MERGE_WEIGHTS = "parts merged with wrong weights"
    TABLE_STRIDE = "page table read at another stride"
    TABLE_ROW = "another row of the page table"
    PAGE_IDS = "page ids off"
    PAGES_IN_A_ROW = "pages taken to be consecutive"
    QUERY_STRIDE = "queries read at other strides"
    CACHE_STRIDE = "KV cache read at other strides"
    GIVEN_LENGTH = "given another length"
    GIVEN_PAGES = "given other pages"
    GIVEN_ROWS = "given other rows"
    GIVEN_QUERY = "given other queries"
    GIVEN_SCALE = "given another scale"
    GIVEN_WINDOW = "given another window"
    GIVEN_SINKS = "given other sinks"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Read the values in logs from before 0.1.0, which had another word for "given"."""
        thing = str(value).partition(" ")[2]
        return next((each for each in cls if each.value == f"given {thing}"), None)

    @property
    def of_caller(self) -> bool:
        """Whether the caller made the mistake, not the kernel."""
        return self.value.startswith("given ")
