"""A running LLM server under traces of requests: found out, loaded, judged against itself, and never imported."""
