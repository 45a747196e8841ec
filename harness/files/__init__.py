"""Files that are whole or absent, and text templates."""
