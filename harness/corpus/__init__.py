"""The corpus: cases that are worth running again, kept from night to night."""

from attnfuzz.harness.corpus.corpus import Corpus
from attnfuzz.harness.corpus.index import CorpusError, Kept, Why

__all__ = ["Corpus", "CorpusError", "Kept", "Why"]
