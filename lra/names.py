"""File names and keys made from titles: readable, without special characters, and never two alike."""

import hashlib
import itertools
import re
import unicodedata
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

    Names count as equal if they differ only in case or in Unicode normalisation, as they do on the file systems of
    Windows and macOS. Titles with equal names get the checksum of their text, except one that equals its own name.

    Args:
        titles: titles, "/" between their parts; a title that occurs twice is an error.
        simplify: function that turns a title into a name.

    Returns:
        Title -> name.

    Raises:
        ValueError: two titles are the same, or have the same name even with a checksum.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for title in titles:
        groups[_folded(simplify(title))].append(title)

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

    _check_distinct(itertools.chain(*groups.values()), names)
    return names


def _check_distinct(titles: Iterable[str], names: dict[str, str]) -> None:
    """Raise ValueError if two titles have the same name; the message names both."""
    title_of: dict[str, str] = {}
    for title in titles:
        folded = _folded(names[title])
        if folded in title_of:
            raise ValueError(
                f"{title_of[folded]!r} and {title!r} would both be written as {names[title]!r}; "
                "rename one of them, or report one study at a time with study=<name>"
            )
        title_of[folded] = title


def _folded(name: str) -> str:
    """Return the form in which names are compared: NFKC-normalised, without case."""
    return unicodedata.normalize("NFKC", name).casefold()
