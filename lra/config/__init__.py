"""From the command line to a checked configuration.

``manual`` prepares the process of a command and answers --help, ``entry`` makes a function a command, ``compose`` reads
its configuration and ``options`` parses and names it.
``experiment`` is the configuration of a training, its sections are in ``schema`` and their base class in ``base``;
``target`` is a class or function with options, ``blocks`` builds the blocks of an encoder. ``recipes`` reads files with
several experiments, ``errors`` explains what a user can mend, ``quoting`` writes commands that can be pasted and
``workers`` runs several of one command at once (-m).
"""

from pathlib import Path

_here = Path(__file__).resolve().parents[1]
# Next to the package in a checkout, inside it in a wheel.
CONF = next(folder for folder in (_here / "conf", _here.parent / "conf") if folder.is_dir())
