"""Cases worth running again, kept from night to night, and Hypothesis' own database."""

from attnfuzz.harness.corpus.corpus import Corpus
from attnfuzz.harness.corpus.database import DatabaseError, open_database
from attnfuzz.harness.corpus.index import CorpusError, Kept, Why

__all__ = ["Corpus", "CorpusError", "DatabaseError", "Kept", "Why", "open_database"]
