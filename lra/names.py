"""File names and keys made from titles: readable, without special characters and, by ``unique_names``, distinct."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

MAX_LENGTH = 120  # characters of a file name without its suffix
CHECKSUM_LENGTH = 8  # hexadecimal digits


def stem(text: str) -> str:
    """Turn a title into a file name without a suffix; two titles may give the same one, see ``unique_names``.

    Every run of characters other than letters, digits, "_", "." and "-" becomes one "-". A result of more than
    ``MAX_LENGTH`` characters is cut and ends with the checksum of the title.

    Args:
        text: title.
    """
    return shorten(re.sub(r"[^\w.-]+", "-", text), MAX_LENGTH, text)


def shorten(text: str, length: int, full_text: str | None = None) -> str:
    """Cut a text to a length; a text that is cut ends with the checksum of the full one, so that it stays unique.

    Args:
        text: text to cut.
        length: maximum number of characters.
        full_text: text to take the checksum from; None for ``text``.
    """
    if len(text) <= length:
        return text
    return add_checksum(text[: length - CHECKSUM_LENGTH - 1], full_text or text)


def add_checksum(name: str, text: str) -> str:
    """Append the first digits of a text's SHA-256 to a name."""
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:CHECKSUM_LENGTH]}"


def unique_names(titles: Iterable[str], simplify: Callable[[str], str] = stem) -> dict[str, str]:
    """Give each title a different name.

    Names count as equal if they differ only in case, as they do on the file systems of Windows and macOS. Titles with
    equal names get the checksum of their text, except one that equals its own name.

    Args:
        titles: titles, "/" between their parts.
        simplify: function that turns a title into a name.

    Returns:
        Title -> name.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for title in titles:
        groups[simplify(title).casefold()].append(title)

    names = {}
    for group in groups.values():
        # One title that is its own name keeps it.
        unchanged = min((title for title in group if simplify(title) == title), default=None)
        for title in group:
            name = simplify(title)
            if len(group) > 1 and title != unchanged:
                # Append the checksum before simplifying, so that the whole name obeys the rules (W&B allows no "-").
                name = simplify(add_checksum(shorten(title, MAX_LENGTH - CHECKSUM_LENGTH - 1), title))
            names[title] = name
    return names
