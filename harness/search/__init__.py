"""One slice of a search: drawing, minimizing and confirming failures. Writes no files."""
