"""The blocks of an encoder, from the options of model, block and attn."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from torch import nn

from ..attention.base import Attention, Mixer, Sizes
from ..model.blocks import PreNorm
from ..model.multihead import Multihead
from .calls import Call, options
from .sections import Model


def block_factory(*, model: Model, attn: Call, block: Call, length: int) -> Callable[..., nn.Module]:
    """A factory of blocks: attn may be an Attention, a Mixer or a whole Block.

    A block that takes an ``attention`` is handed the Attention itself, any other one a Mixer around it.

    Args:
        model: options of the encoder. A Block has ``model.dropout`` unless ``attn.dropout`` is given.
        attn: the mechanism.
        block: the shell around it.
        length: longest row.

    Returns:
        The factory. Its argument tells whether the block is the encoder's first; a Block that takes ``first`` gets it,
        because the initial memory is learned there only.

    Raises:
        ValueError: the options do not go together.
    """
    kind, shell = attn.function, block.factory
    if not inspect.isclass(kind):
        raise ValueError(f"attn._target_ must name a class, not {kind}")
    holds_attention = "attention" in inspect.signature(shell).parameters  # it has projections of its own
    rotary = model.positions == "rotary"
    if rotary and (holds_attention or not issubclass(kind, Attention)):
        held_by = shell.func.__name__ if holds_attention else kind.__name__
        raise ValueError(f"model.positions must be learned or none for {held_by}, which has positions of its own")
    if holds_attention and not issubclass(kind, Attention):
        raise ValueError(f"{shell.func.__name__} needs a mechanism of queries, keys and values, not {kind.__name__}")
    place = {"heads": model.heads, "head_dim": model.head_dim or model.dim // model.heads, "length": length}
    whole = not issubclass(kind, Attention | Mixer)
    if whole and shell.func is not PreNorm:
        raise ValueError(
            f"block must be prenorm with {kind.__name__}, which is a block of its own and is put in no other"
        )
    sizes = Sizes(**place, value_dim=place["head_dim"])
    dropout = attn.get("dropout", model.dropout if whole else 0.0)
    own = {key: value for key, value in attn.options.items() if key not in ("requires", "otherwise", "dropout")}
    mechanism = replace(attn, options=own).factory

    @_said_as("attn", kind, heads="model", head_dim="model", dim="model")
    def made(sizes: Sizes, **more) -> nn.Module:
        return mechanism(replace(sizes, dropout=dropout), **more)

    if whole:
        finished = partial(made, sizes, dim=model.dim, hidden=model.hidden)
        told = "first" in inspect.signature(kind).parameters
    else:
        if holds_attention:
            held = partial(shell, made, length=length)
        elif issubclass(kind, Attention):
            held = partial(shell, partial(Multihead, made, dim=model.dim, rotary=rotary, **place))
        else:
            held = partial(shell, partial(made, sizes, dim=model.dim))
        said_as = _said_as("block", shell.func, dim="model", hidden="model", dropout="model", length="task")
        finished = said_as(partial(held, dim=model.dim, hidden=model.hidden, dropout=model.dropout))
        told = "first" in inspect.signature(held).parameters
    return lambda first=True: finished(first=first) if told else finished()


@contextmanager
def _said_as(section: str, constructor: Callable, **sections: str) -> Iterator[None]:
    """Say options in a ValueError as the command line does: ``count must be ...`` becomes ``attn.count must be ...``.

    ``section`` is that of the constructor's own options, ``sections`` are those of the arguments that it is handed.
    """
    try:
        yield
    except ValueError as error:
        words = dict.fromkeys(options(constructor)[0], section) | sections
        if (word := re.match(r"\w*", str(error))[0]) in words:
            error.args = (f"{words[word]}.{error}",)
        raise
