"""Pictures as SVG elements inside of a page, styled by its style sheet."""

from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from attnfuzz.harness.verdict.printable import printable

CHARACTER = 6.6
"""Approximate width of a character, in units of the picture."""


class Picture:
    """An <svg> of `width` units, drawn from the top left; its height is set when it is known.

    `label` describes it to screen readers. Below a width of `minimum` pixels, a page scrolls sideways instead of
    shrinking it.
    """

    def __init__(self, width: float, label: str, *, minimum: int = 0) -> None:
        self.width = width
        self.height = 0.0
        self._minimum = minimum
        self._root = Element("svg", {"role": "img", "aria-label": printable(label)})

    def add(self, tag: str, classes: str = "", *, title: str = "", **attributes: str | float) -> Element:
        """Add an element. `title` is its tooltip."""
        named = {name.replace("_", "-"): _number(value) for name, value in attributes.items()}
        element = SubElement(self._root, tag, {**({"class": classes} if classes else {}), **named})
        if title:
            SubElement(element, "title").text = printable(title)
        return element

    def rect(self, x: float, y: float, width: float, height: float, classes: str, *, title: str = "") -> None:
        """Add a rectangle."""
        self.add("rect", classes, title=title, x=x, y=y, width=max(width, 0.0), height=height)

    def line(self, x1: float, y1: float, x2: float, y2: float, classes: str) -> None:
        """Add a line."""
        self.add("line", classes, x1=x1, y1=y1, x2=x2, y2=y2)

    def text(self, x: float, y: float, text: str, classes: str = "") -> None:
        """Add a line of text, whose base line is at `y`."""
        self.add("text", classes, x=x, y=y).text = printable(text)

    def markup(self) -> Markup:
        """Return the picture as markup that is safe to put into a page."""
        self._root.set("viewBox", f"0 0 {_number(self.width)} {_number(self.height)}")
        if self._minimum:
            self._root.set("style", f"min-width:{self._minimum}px")
        # ElementTree has escaped all text.
        return Markup(tostring(self._root, encoding="unicode"))  # noqa: S704


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 1):g}"
