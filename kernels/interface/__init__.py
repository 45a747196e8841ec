"""The interface between the harness and the code under test: backends, engines, ops and calls."""
