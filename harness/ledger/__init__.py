"""Known failures that a user accepts: entries, and the file that has them."""
