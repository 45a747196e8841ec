"""Recurrent layers of a release: its model runner and metadata builders plan the steps of cases of recurrent state."""
