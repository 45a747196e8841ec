"""The base class of every error that the user can fix."""


class UserError(Exception):
    """An error that the user can fix: the message says what is wrong and what to do.

    The command line prints the message alone and exits with 2. Any other exception that reaches it is a bug in
    attnfuzz, and is reported as one.
    """
