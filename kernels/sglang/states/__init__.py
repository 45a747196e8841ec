"""Recurrent layers of a release: its hybrid backend, pools and commits plan the steps of cases of recurrent state."""
