"""Record a command's terminal as a picture, with pyte and rich.

This made terminal.png:

record.py terminal.svg 116 attnfuzz fuzz --backend trtllm_mha@21649-before --examples 2000 --until-finding --seed 1
chromium --headless --window-size=1440,720 --screenshot=terminal.png terminal.svg
"""

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

LINES = 200


def recorded(columns, command):
    """Run a command on a terminal, and return the screen that it leaves."""
    screen = pyte.Screen(columns, LINES)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    while True:
        try:
            stream.feed(os.read(terminal, 65536))
        except OSError:  # Linux says so when the command has ended
            break
    os.waitpid(child, 0)
    return screen


def lines_of(screen):
    """Return the lines of a screen with their colors, without the empty ones at its end."""
    lines = []
    for row in range(LINES):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        styles = ((cell.data, style_of(cell)) for cell in cells)
        runs = ((style, "".join(data for data, _ in run)) for style, run in groupby(styles, key=itemgetter(1)))
        line = Text.assemble(*((text, style) for style, text in runs))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def style_of(cell):
    """Return rich's style of a terminal's cell."""
    color = None if cell.fg == "default" else cell.fg
    return Style(color=f"#{color}" if re.fullmatch(r"[0-9a-f]{6}", cell.fg) else color, bold=cell.bold)


if __name__ == "__main__":
    path, columns, *command = sys.argv[1:]
    screen = recorded(int(columns), command)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=int(columns), file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.assemble(("$ ", "bold green"), (shlex.join(command), "bold")), soft_wrap=True)
        # The picture cuts off what hangs below its last line, such as an underscore.
        for line in [*lines_of(screen), Text()]:
            console.print(line, soft_wrap=True)
    svg = console.export_svg(title="attnfuzz")
    Path(path).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
