"""Commands of the suite, run in this process."""

import sys


def printed(entry, *words, patch, capfd):
    """Exit message of an entry point in this process, None where it ends well, and what it printed: stdout, stderr."""
    capfd.readouterr()
    patch.setattr(sys, "argv", ["lra", *words])
    try:
        entry()
        stop = None
    except SystemExit as error:
        stop = error.code
    return stop, *capfd.readouterr()


def run(entry, *words, patch, capfd):
    """Exit message of an entry point and what it printed on stderr."""
    stop, _, said = printed(entry, *words, patch=patch, capfd=capfd)
    return stop, said
