"""The blocks of an encoder, from the options of model, block and attn."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from torch import nn

from ..attention.base import Attention, Mixer, Sizes
from ..model.blocks import PreNorm
from ..model.multihead import Multihead
from .schema import Model
from .target import Target, options_of

# Keys of a mechanism's yaml that its constructor does not take: the GPU that it needs, the mechanism to use without
# one, and the dropout, which is one of its sizes.
_NOT_PASSED = ("requires", "otherwise", "dropout")


def block_factory(*, model: Model, attn: Target, block: Target, length: int) -> Callable[..., nn.Module]:
    """Make a factory of blocks from a mechanism, which is an Attention, a Mixer or a whole Block.

    A block that takes an ``attention`` gets the Attention itself; any other block gets a Mixer, which is ``Multihead``
    around an Attention. A mechanism that is a whole Block is not wrapped in another one.

    Args:
        model: options of the encoder. A mechanism that is a Block has ``model.dropout`` unless ``attn.dropout`` is
            given.
        attn: the mechanism.
        block: the block around it.
        length: maximum sequence length.

    Returns:
        The factory. Its argument ``first`` says whether the block is the encoder's first; it is passed on to blocks
        that take it, because the initial memory, Luna's P, is learned in the first one only.

    Raises:
        ValueError: the options do not go together.
    """
    check(model=model, attn=attn, block=block)
    mechanism_class = attn.function
    is_block = not issubclass(mechanism_class, Attention | Mixer)

    # Sizes of the mechanism: heads and widths of the model, and the dropout that its own yaml may set.
    head_dim = model.head_dim or model.dim // model.heads
    dropout = attn.get("dropout", model.dropout if is_block else 0.0)
    sizes = Sizes(heads=model.heads, head_dim=head_dim, value_dim=head_dim, length=length, dropout=dropout)

    arguments = {key: value for key, value in attn.options.items() if key not in _NOT_PASSED}
    make_mechanism = replace(attn, options=arguments).factory
    make_block = block.factory
    takes_first = "first" in _parameters(mechanism_class if is_block else block.function)

    def prefix_attn_option() -> AbstractContextManager:
        return _prefix_option("attn", mechanism_class, heads="model", head_dim="model", dim="model")

    # The sizes come from Multihead or from the block.
    def build_attention(given: Sizes) -> Attention:
        with prefix_attn_option():
            return make_mechanism(replace(given, dropout=dropout))

    def build_mixer() -> Mixer:
        if issubclass(mechanism_class, Attention):
            rotary = model.positions == "rotary"
            return Multihead(
                build_attention, dim=model.dim, heads=model.heads, head_dim=head_dim, length=length, rotary=rotary
            )
        with prefix_attn_option():
            return make_mechanism(sizes, dim=model.dim)

    def build_block(first: bool = True) -> nn.Module:
        block_arguments = {"dim": model.dim, "hidden": model.hidden}
        if takes_first:
            block_arguments["first"] = first
        if is_block:
            with prefix_attn_option():
                return make_mechanism(sizes, **block_arguments)
        with _prefix_option("block", block.function, dim="model", hidden="model", dropout="model", length="task"):
            if _takes_attention(block):
                return make_block(build_attention, length=length, dropout=model.dropout, **block_arguments)
            return make_block(build_mixer, dropout=model.dropout, **block_arguments)

    return build_block


def check(*, model: Model, attn: Target, block: Target) -> None:
    """Raise ValueError if the mechanism is not a class, or does not go with the block or the positions of the model."""
    mechanism_class = attn.function
    block_class = block.function
    if not inspect.isclass(mechanism_class):
        raise ValueError(f"attn._target_ must name a class, not {mechanism_class}")
    name = mechanism_class.__name__

    # Rotary positions rotate the queries and keys of Multihead.
    if model.positions == "rotary" and (_takes_attention(block) or not issubclass(mechanism_class, Attention)):
        owner = block_class.__name__ if _takes_attention(block) else name
        raise ValueError(f"model.positions must be learned or none for {owner}, which has no rotary positions")
    if _takes_attention(block) and not issubclass(mechanism_class, Attention):
        raise ValueError(f"{block_class.__name__} needs a mechanism of queries, keys and values, not {name}")
    if issubclass(mechanism_class, Attention | Mixer):
        return
    # Any other class is a whole layer.
    if not _takes_widths(mechanism_class):
        raise ValueError(
            f"{name} is neither an Attention nor a Mixer, and its constructor does not take dim and hidden, as a whole "
            "encoder layer does; derive it from lra.attention.base.Attention, see docs/mechanism.md"
        )
    if block_class is not PreNorm:
        raise ValueError(f"block must be prenorm with {name}, which is a block itself and is put in no other")


def _takes_widths(mechanism_class: type) -> bool:
    """Whether a constructor takes ``dim`` and ``hidden``, by name or as any keyword arguments."""
    parameters = inspect.signature(mechanism_class).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return takes_any or {"dim", "hidden"} <= parameters.keys()


def _takes_attention(block: Target) -> bool:
    """Whether a block has its own projections, and so takes an Attention instead of a Mixer."""
    return "attention" in _parameters(block.function)


def _parameters(function: Callable) -> set[str]:
    return set(inspect.signature(function).parameters)


@contextmanager
def _prefix_option(section: str, constructor: Callable, **sections: str) -> Iterator[None]:
    """Name options in a ValueError as the command line does: ``count must be ...`` becomes ``attn.count must be ...``.

    Args:
        section: section of the constructor's own options.
        constructor: class or function that the body of the ``with`` statement calls.
        sections: sections of the arguments that are passed to it.
    """
    try:
        yield
    except ValueError as error:
        owners = dict.fromkeys(options_of(constructor)[0], section) | sections
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        if name in owners:
            error.args = (f"{owners[name]}.{error}",)
        raise
