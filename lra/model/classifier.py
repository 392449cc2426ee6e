"""The encoder, its pooling and its head."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.precision import at_least_float32, narrow, stream
from ..options import Checked, Share
from ..varlen import VarlenLayout
from .multihead import Multihead
from .norm import Norm, make_norm

Pool = Literal["mean", "cls", "class", "last", "flatten"]
MeanOver = Literal["length", "real"]
WHOLE = 1024  # tokens: packed rows in 16 bits have a multiple, since products are compiled for each shape
HeadKind = Literal["relu", "gelu", "linear"]


class Classifier(Checked, nn.Module):
    """The whole model: inputs (B,T,L[,F]), mask and positions (B,T,L) or None -> (B, outputs).

    ``positions`` are those of the tokens in rows without their holes (``lra.data.datamodule``), each once; None for
    0 .. L-1. ``hole_free`` is True if the outputs for such rows are those for the rows with their holes.

    The T towers share one encoder. They are one batch of B T rows or, if a mechanism mixes the examples of a batch,
    separate batches (``encode_separately``). The last block may put out rows of another ``width`` than d.

    Args:
        embed: (N,L[,F]) -> (N,L,d).
        block: a factory, called ``layers`` times with whether it is the first layer.
        layers, dim, length, vocab, hidden, outputs, towers: sizes.
        pool: ``mean`` over positions; ``cls``, for which id ``vocab - 1`` is put in front and a row that would exceed
            ``length`` loses its last token; ``class``, for which a learned vector is put in front of the embedded row,
            so that the blocks see one position more; ``last``, the last real token; ``flatten``, all ``length``
            positions side by side, padded ones as zeros.
        class_std: standard deviation that the vector of ``class`` begins with.
        mean_over: the divisor of the mean: the padded ``length``, independent of the batch (published), or the number
            of ``real`` tokens.
        norm: normalisation of the last block's output, see ``lra.model.norm``, None for none.
        head: a factory like ``Head``.
        packed: whether to compute only real tokens, side by side in one row, see ``lra.varlen``, on a CPU and if every
            block has ``varlen`` and Multihead.

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
        self.length, self.pool, self.mean_over = length, pool, mean_over
        self.class_id = None if vocab is None else vocab - 1
        self.embed = embed
        self.blocks = nn.ModuleList(block(layer == 0) for layer in range(layers))
        self.encode_separately = any(getattr(part, "mixes_batch", False) for part in self.blocks.modules())
        self.hole_free = not self.encode_separately and all(getattr(block, "hole_free", False) for block in self.blocks)
        packable = (hasattr(part, "varlen") and isinstance(part.mixer, Multihead) for part in self.blocks)
        self.packed = packed and all(packable)
        widths = [dim, *(getattr(block, "width", dim) for block in self.blocks)]
        if any(width != dim for width in widths[:-1]):
            raise ValueError(f"model.layers must be 1 if a block makes rows of {widths[-1]} from {dim}, not {layers}")
        self.encoded_width = widths[-1]
        self.norm = make_norm(norm, widths[-1]) if norm else None
        pooled = widths[-1] * (length if pool == "flatten" else 1)
        self.head = (head or Head)(dim=pooled, hidden=hidden, outputs=outputs, towers=towers)
        self.class_vector = nn.Parameter(class_std * torch.randn(dim)) if pool == "class" else None

    def forward(self, inputs: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        return self.head(over_towers(self._encode, self.encode_separately, inputs, mask, positions))

    def _encode(self, inputs: Tensor, mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """Encode and pool rows: inputs (N,L[,F]), mask and positions (N,L) -> (N,d)."""
        if self.pool == "cls":
            inputs, mask, positions = self._with_class(inputs, mask, positions)
        if self.packed and mask is not None and inputs.device.type == "cpu":  # a GPU would wait for the lengths
            return self._encode_packed(inputs, mask)
        x, memory = stream(self.embed(inputs) if positions is None else self.embed(inputs, positions)), None
        if self.class_vector is not None:
            x = torch.cat([self.class_vector.to(x.dtype).expand(len(x), 1, -1), x], 1)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        for block in self.blocks:
            x, memory = block(x, mask, memory)
            x = stream(x)
        x = x if self.norm is None else self.norm(x, mask)
        if self.pool != "mean":
            return self._pooled(x, mask, positions)
        x = at_least_float32(x)  # thousands of terms are too many for a 16-bit sum
        return self._mean(x.sum(1) if mask is None else (x * mask[..., None].to(x.dtype)).sum(1), mask, x.shape[1])

    def _with_class(self, inputs: Tensor, mask: Tensor | None, positions: Tensor | None) -> tuple[Tensor | None, ...]:
        """The class token in front of each row, and no token beyond ``length``."""
        inputs = torch.cat([inputs.new_full((len(inputs), 1), self.class_id), inputs], 1)[:, : self.length]
        mask = None if mask is None else F.pad(mask, (1, 0), value=True)[:, : self.length]
        if positions is not None:
            positions = F.pad(positions + 1, (1, 0))[:, : self.length]
            mask = mask & (positions < self.length)
            positions = positions.clamp(max=self.length - 1)
        return inputs, mask, positions

    def _encode_packed(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Encode and pool rows as ``_encode`` does, with the real tokens side by side."""
        ahead = int(self.class_vector is not None)  # the place of the class vector, that of some token until then
        layout = VarlenLayout(F.pad(mask, (ahead, 0), value=True), WHOLE if narrow(inputs) else 1)
        tokens = torch.cat([inputs[:, :ahead], inputs], 1)
        x = stream(self.embed(layout.pack(tokens), (layout.positions - ahead).clamp(min=0)))
        if self.class_vector is not None:
            x = torch.where((layout.positions == 0)[:, None], self.class_vector.to(x.dtype), x)
        for block in self.blocks:
            x = stream(block.varlen(x, layout))
        x = x if self.norm is None else self.norm(x, layout.filled)
        if self.pool != "mean":
            return self._pooled(layout.unpack(x), layout.mask)
        return self._mean(layout.sum(x), layout.mask, inputs.shape[1])

    def _pooled(self, x: Tensor, mask: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """Pool rows (N,L,d) by another rule than the mean: (N,d) or, flattened, (N,length d)."""
        if self.pool in ("cls", "class"):
            return x[:, 0]
        if self.pool == "last":
            return x[:, -1] if mask is None else x[torch.arange(len(x), device=x.device), last_real(mask)]
        x = x if mask is None else x * mask[..., None]
        if positions is not None:
            wide = x.new_zeros(len(x), self.length, x.shape[2])
            return wide.scatter(1, positions[..., None].expand_as(x), x).flatten(1)
        return F.pad(x, (0, 0, 0, self.length - x.shape[1])).flatten(1)

    def _mean(self, total: Tensor, mask: Tensor | None, L: int) -> Tensor:
        """Divide sums over real tokens (N,d) by ``mean_over``."""
        if self.mean_over == "length":
            return total / self.length
        return total / (L if mask is None else mask.sum(1, keepdim=True).clamp(min=1))


def over_towers(encode: Callable[..., Tensor], apart: bool, inputs: Tensor, *more: Tensor | None) -> Tensor:
    """Encode inputs (B,T,...) and what belongs to them as one batch of B T rows, or each tower ``apart``: (B,T,...)."""
    given = (inputs, *more)
    if apart:
        towers = ([None if x is None else x[:, tower] for x in given] for tower in range(inputs.shape[1]))
        return torch.stack([encode(*tower) for tower in towers], 1)
    return encode(*(None if x is None else x.flatten(0, 1) for x in given)).unflatten(0, inputs.shape[:2])


def last_real(mask: Tensor) -> Tensor:
    """The position of the last real token of each row: mask (N,L) -> (N,)."""
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


class Head(Checked, nn.Module):
    """Linear, ReLU, Linear on the pooled vector (B,T,d); two towers are compared by [a, b, a b, a - b].

    Args:
        dim, hidden, outputs, towers: sizes.
        kind: ``relu``; ``gelu`` in its place; ``linear``, one Linear.
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
            act = nn.ReLU() if kind == "relu" else nn.GELU()
            self.mlp = nn.Sequential(nn.Linear(inputs, hidden), act, nn.Linear(hidden, outputs))

    def forward(self, pooled: Tensor) -> Tensor:
        if pooled.shape[1] == 1:
            return self.mlp(self.dropout(pooled[:, 0]))
        a, b = pooled.unbind(1)
        return self.mlp(self.dropout(torch.cat([a, b, a * b, a - b], -1)))
