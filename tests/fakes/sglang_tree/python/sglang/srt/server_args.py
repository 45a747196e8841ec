"""What a server was started with."""

from typing import Any


class ServerArgs:
    """The arguments, by their names."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


_global_server_args: ServerArgs | None = None


def set_global_server_args_for_scheduler(server_args: ServerArgs) -> None:
    """Keep them for the whole process."""
    global _global_server_args  # noqa: PLW0603 - as SGLang has it
    _global_server_args = server_args
