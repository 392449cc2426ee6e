"""The classifier: embedding, encoder blocks, pooling and head.

Shapes: B examples of T towers (texts that are compared) make N = B T sequences of L tokens; d is the width of the
encoder, F the number of real features per token.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import narrow, stream, upcast
from ..options import Checked, Share
from ..varlen import VarlenLayout
from .multihead import Multihead
from .norm import Norm, make_norm

Pool = Literal["mean", "cls", "class", "last", "flatten"]
MeanOver = Literal["length", "real"]
# Packed batches in 16 bits have a multiple of this number of tokens, because products are compiled for each shape.
TOKEN_MULTIPLE = 1024
HeadKind = Literal["relu", "gelu", "linear"]


class Classifier(Checked, nn.Module):
    """The whole model: inputs (B,T,L[,F]), mask and positions (B,T,L) or None -> outputs (B, outputs).

    ``positions`` are the positions of the tokens after compaction (``lra.data.datamodule``); None for 0 .. L-1. If
    ``compactable`` is True, the outputs with and without compaction are equal.

    The towers share one encoder. They are encoded as one batch of B T sequences or, if a mechanism depends on the other
    examples of a batch, one after the other (``encode_separately``). The last block may change the width.

    Args:
        embed: embedding (N,L[,F]) -> (N,L,d).
        block: a factory of blocks; its argument is True for the first layer.
        layers: number of blocks.
        dim: d.
        length: maximum sequence length.
        vocab: number of token ids; None for real features.
        hidden: hidden units of the head.
        outputs: number of classes, or 1 for a real number.
        towers: T.
        pool: one of the following.
            ``mean``: mean over positions.
            ``cls``: a class token, id ``vocab - 1``, in front of the sequence; a sequence of full length loses its last
            token.
            ``class``: a learned vector in front of the embedded sequence, which gets one position more.
            ``last``: the last real token.
            ``flatten``: all ``length`` positions concatenated, with zeros for padding.
        class_std: standard deviation of the initial ``class`` vector.
        mean_over: the divisor of the mean: the maximum ``length``, as published, or the number of ``real`` tokens.
        norm: normalisation of the last block's output, see ``lra.model.norm``; None for none.
        head: a factory with the arguments of ``Head``.
        packed: whether to pack the real tokens of a batch (``lra.varlen``). It applies on a CPU, and only if every
            block has ``varlen`` and a ``Multihead`` mixer.

    Raises:
        ValueError: options do not go together.
    """

    def __init__(
        self,
        *,
        embed: nn.Module,
        block: Callable[[bool], nn.Module],
        layers: int,
        dim: int,
        length: int,
        vocab: int | None,
        hidden: int,
        outputs: int,
        towers: int = 1,
        pool: Pool = "mean",
        class_std: float = 0.02,
        mean_over: MeanOver = "length",
        norm: Norm | None = "layer",
        head: Callable[..., nn.Module] | None = None,
        packed: bool = False,
    ):
        super().__init__()
        if pool == "cls" and vocab is None:
            raise ValueError("model.pool=cls needs a task with token ids, this one has real features")
        self.length = length
        self.pool = pool
        self.mean_over = mean_over
        self.class_id = None if vocab is None else vocab - 1

        # Encoder.
        self.embed = embed
        self.blocks = nn.ModuleList(block(layer == 0) for layer in range(layers))
        modules = list(self.blocks.modules())
        self.encode_separately = any(getattr(module, "batch_dependent", False) for module in modules)
        blocks_are_compactable = all(getattr(block, "compactable", False) for block in self.blocks)
        self.compactable = blocks_are_compactable and not self.encode_separately
        blocks_are_packable = all(_is_packable(block) for block in self.blocks)
        self.packed = packed and blocks_are_packable

        # Only the last block may change the width.
        widths = [getattr(block, "width", dim) for block in self.blocks]
        if any(width != dim for width in widths[:-1]):
            raise ValueError(f"model.layers must be 1 if a block changes the width {dim} to {widths[-1]}, not {layers}")
        self.encoded_width = widths[-1] if widths else dim

        # Norm, head and class vector, in this order, which decides their random weights.
        self.norm = make_norm(norm, self.encoded_width) if norm else None
        pooled_width = self.encoded_width * length if pool == "flatten" else self.encoded_width
        make_head = head or Head
        self.head = make_head(dim=pooled_width, hidden=hidden, outputs=outputs, towers=towers)
        self.class_vector = nn.Parameter(class_std * torch.randn(dim)) if pool == "class" else None

    def forward(self, inputs: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        pooled = over_towers(self._encode, self.encode_separately, inputs, mask, positions)  # (B,T,d)
        return self.head(pooled)

    def _encode(self, inputs: Tensor, mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """Encode and pool sequences: inputs (N,L[,F]), mask and positions (N,L) -> (N,d)."""
        if self.pool == "cls":
            inputs, mask, positions = self._prepend_class_token(inputs, mask, positions)
        # On a GPU packing would wait for the lengths.
        if self.packed and mask is not None and inputs.device.type == "cpu":
            return self._encode_packed(inputs, mask)

        # 1. Embed.
        x = self.embed(inputs) if positions is None else self.embed(inputs, positions)  # (N,L,d)
        x = stream(x)
        if self.class_vector is not None:
            class_vectors = self.class_vector.to(x.dtype).expand(len(x), 1, -1)
            x = torch.cat([class_vectors, x], 1)
            mask = _prepend_true(mask)

        # 2. Blocks. ``memory`` is what a block hands to the next one.
        memory = None
        for block in self.blocks:
            x, memory = block(x, mask, memory)
            x = stream(x)
        if self.norm is not None:
            x = self.norm(x, mask)

        # 3. Pool.
        if self.pool != "mean":
            return self._pool(x, mask, positions)
        # A sum over thousands of tokens needs float32.
        x = upcast(x)
        if mask is not None:
            x = x * mask[..., None].to(x.dtype)
        return self._divide(x.sum(1), mask, x.shape[1])

    def _prepend_class_token(
        self, inputs: Tensor, mask: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Put the class token in front of each sequence, and drop tokens beyond ``length``."""
        class_tokens = inputs.new_full((len(inputs), 1), self.class_id)
        inputs = torch.cat([class_tokens, inputs], 1)[:, : self.length]
        if mask is not None:
            mask = _prepend_true(mask)[:, : self.length]
        if positions is not None:
            positions = F.pad(positions + 1, (1, 0))[:, : self.length]
            mask = mask & (positions < self.length)
            positions = positions.clamp(max=self.length - 1)
        return inputs, mask, positions

    def _encode_packed(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Encode and pool sequences as ``_encode`` does, with the real tokens packed."""
        # 1. Embed. A class vector takes the place of a copy of the first token of each sequence.
        num_prepended = int(self.class_vector is not None)
        multiple = TOKEN_MULTIPLE if narrow(inputs) else 1
        layout = VarlenLayout(F.pad(mask, (num_prepended, 0), value=True), multiple)
        tokens = torch.cat([inputs[:, :num_prepended], inputs], 1)
        token_positions = (layout.positions - num_prepended).clamp(min=0)
        x = stream(self.embed(layout.pack(tokens), token_positions))  # (1,T,d)
        if self.class_vector is not None:
            is_first = (layout.positions == 0)[:, None]
            x = torch.where(is_first, self.class_vector.to(x.dtype), x)

        # 2. Blocks.
        for block in self.blocks:
            x = stream(block.varlen(x, layout))
        if self.norm is not None:
            x = self.norm(x, layout.filled)

        # 3. Pool.
        if self.pool != "mean":
            return self._pool(layout.unpack(x), layout.mask)
        return self._divide(layout.sum(x), layout.mask, inputs.shape[1])

    def _pool(self, x: Tensor, mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """Pool sequences (N,L,d) by any rule except the mean: (N,d) or, flattened, (N, length d)."""
        if self.pool in ("cls", "class"):
            return x[:, 0]
        if self.pool == "last":
            if mask is None:
                return x[:, -1]
            return x[torch.arange(len(x), device=x.device), last_real(mask)]
        # flatten: every token at its position, zeros elsewhere.
        if mask is not None:
            x = x * mask[..., None]
        if positions is not None:
            full = x.new_zeros(len(x), self.length, x.shape[2])
            return full.scatter(1, positions[..., None].expand_as(x), x).flatten(1)
        return F.pad(x, (0, 0, 0, self.length - x.shape[1])).flatten(1)

    def _divide(self, total: Tensor, mask: Tensor | None, L: int) -> Tensor:
        """Divide sums over real tokens (N,d) by ``mean_over``."""
        if self.mean_over == "length":
            return total / self.length
        if mask is None:
            return total / L
        return total / mask.sum(1, keepdim=True).clamp(min=1)


def _is_packable(block: nn.Module) -> bool:
    """Whether a block can process packed sequences."""
    return hasattr(block, "varlen") and isinstance(block.mixer, Multihead)


def _prepend_true(mask: Tensor | None) -> Tensor | None:
    """Extend a mask (N,L) by a real token in front: (N,L+1)."""
    return None if mask is None else F.pad(mask, (1, 0), value=True)


def over_towers(encode: Callable[..., Tensor], separately: bool, inputs: Tensor, *tensors: Tensor | None) -> Tensor:
    """Encode the towers of a batch as one batch of B T sequences, or one tower after the other.

    Args:
        encode: function of tensors (N,...), N = B T or B.
        separately: whether each tower is a batch.
        inputs: inputs (B,T,...).
        tensors: further arguments (B,T,...) of ``encode``, or None.

    Returns:
        The encoded inputs (B,T,...).
    """
    arguments = (inputs, *tensors)
    if not separately:
        flat_arguments = [None if x is None else x.flatten(0, 1) for x in arguments]
        return encode(*flat_arguments).unflatten(0, inputs.shape[:2])
    encoded = []
    for tower in range(inputs.shape[1]):
        tower_arguments = [None if x is None else x[:, tower] for x in arguments]
        encoded.append(encode(*tower_arguments))
    return torch.stack(encoded, 1)


def last_real(mask: Tensor) -> Tensor:
    """Return the position of the last real token of each sequence: mask (N,L) -> (N,)."""
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


class Head(Checked, nn.Module):
    """Linear, ReLU, Linear on the pooled vectors (B,T,d); two towers a, b are compared by [a, b, a b, a - b].

    Args:
        dim: d.
        hidden: number of hidden units.
        outputs: number of outputs.
        towers: T.
        kind: ``relu`` | ``gelu``, GELU instead of ReLU | ``linear``, a single Linear.
        dropout: dropout rate of the input.
    """

    def __init__(
        self,
        *,
        dim: int,
        hidden: int,
        outputs: int,
        towers: Literal[1, 2],
        kind: HeadKind = "relu",
        dropout: Share = 0.0,
    ):
        super().__init__()
        inputs = dim if towers == 1 else 4 * dim
        self.dropout = nn.Dropout(dropout)
        if kind == "linear":
            self.mlp = nn.Sequential(nn.Linear(inputs, outputs))
        else:
            activation = nn.ReLU() if kind == "relu" else nn.GELU()
            self.mlp = nn.Sequential(nn.Linear(inputs, hidden), activation, nn.Linear(hidden, outputs))

    def forward(self, pooled: Tensor) -> Tensor:
        if pooled.shape[1] == 1:
            return self.mlp(self.dropout(pooled[:, 0]))
        a, b = pooled.unbind(1)
        compared = torch.cat([a, b, a * b, a - b], -1)
        return self.mlp(self.dropout(compared))
