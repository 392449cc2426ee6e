"""Readers of the tasks in other formats than the official ones, and writers of the layouts of ``lra data export``.

``detect.open_copy`` and ``detect.open_reader`` choose the reader of a path. All readers but ``AclImdb`` and the readers
of ``cifar`` are a ``layout.Reader``.
"""
