"""The commands that test attnfuzz itself: bugs, defects, calibrate."""
