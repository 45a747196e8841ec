"""One slice of a search: draw, minimize, confirm. Writes no files."""
