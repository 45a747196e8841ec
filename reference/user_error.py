"""The base class of every error that the user can fix."""


class UserError(Exception):
    """An error that the user can fix: the message states the problem and its remedy.

    The command line prints the message alone and exits with 2. Any other exception that reaches it is reported as a
    bug in attnfuzz.
    """
