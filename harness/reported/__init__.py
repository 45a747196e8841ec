"""The catalogue of reported bugs, and their counterparts among our backends."""
