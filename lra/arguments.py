"""Positional arguments of commands whose options are ``name=value``."""


def name_positional(words: list[str], *names: str) -> list[str]:
    """Give positional arguments the names of options: ``runs/mine examples=20`` becomes ``runs=runs/mine examples=20``.

    Args:
        words: command-line arguments without the name of the program.
        names: option of the first positional argument, of the second one, and so on. Further ones are left as they
            are, so that the parser of the options refuses them.

    Returns:
        The arguments in their order.
    """
    remaining = list(names)
    named = []
    for word in words:
        is_positional = "=" not in word and not word.startswith("-")
        if is_positional and remaining:
            word = f"{remaining.pop(0)}={word}"
        named.append(word)
    return named
