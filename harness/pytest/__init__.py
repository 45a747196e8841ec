"""The pytest plugin, and shards for its workers."""
