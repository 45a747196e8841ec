"""The files of a project that fuzzes its own kernel, for `attnfuzz init`: the examples of the documentation."""
