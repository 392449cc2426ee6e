"""Commands of the suite, run in this process."""

import sys


def run(entry, *words, patch, capfd):
    """Exit message of an entry point in this process, None where it ends well, and what it printed on stderr."""
    capfd.readouterr()
    patch.setattr(sys, "argv", ["lra", *words])
    try:
        entry()
        stop = None
    except SystemExit as error:
        stop = error.code
    return stop, capfd.readouterr().err
