"""Readers and writers of copies of the tasks in other formats than the official ones, one file per format.

``detect.open_copy`` chooses the reader of a path; ``reader.Reader`` is the interface that sources use.
"""
