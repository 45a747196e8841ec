"""The catalog of reported bugs, and their counterparts among our backends."""
