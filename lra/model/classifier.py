"""The classifier: embedding, encoder blocks, pooling and head.

A batch has ``batch`` examples. An example has one sequence, or two that are compared; the dimension ``towers`` counts
them. Both go through one encoder, which sees N = batch · towers sequences. Inputs are token ids, or F float features
per token. Real tokens are the ones that are not padding. ``lra.attention.base`` explains the other letters of shapes.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from ..ops.precision import cast_stream, keeps_16_bits, upcast
from ..options import Checked, Share
from ..varlen import VarlenLayout, encode_in_groups
from .multihead import Multihead
from .norm import BatchNorm, Norm, make_norm
from .pooling import MeanOver, Pool, mean_of_sum, over_towers, pool_tokens, prepend_class_token

# In 16 bits a packed batch is padded to a multiple of this many tokens, because oneDNN compiles a matrix product on a
# CPU for each shape.
TOKEN_MULTIPLE = 1024
HeadKind = Literal["relu", "gelu", "linear"]


class Classifier(Checked, nn.Module):
    """The whole model, from token ids or float features to class scores or numbers.

    All towers share one encoder, which encodes them as one batch of N sequences. If a mechanism is ``batch_dependent``,
    the encoder takes one tower after the other, each as its own batch (``encode_separately``).

    Attributes:
        encode_separately: whether a mechanism is batch-dependent, so that each tower is a separate batch.
        compactable: whether the blocks give the same result without the masked tokens of a sequence (data.pad=compact).
        packed: the argument ``packed``, if every block can process packed sequences.
        grouped: the argument ``packed``, if the batch is encoded in groups of similar lengths instead.
        encoded_width: width of the encoder's output.

    Args:
        embed: embedding (N,L[,F]) -> (N,L,d). For packed and compacted batches it also takes the positions of the
            tokens, see ``lra.model.embed``.
        block: a function that makes a block. Its argument is True for the first block, the only one that learns an
            initial memory (Luna).
        layers: number of blocks; at most 1 if a block changes the width.
        dim: d.
        length: maximum sequence length.
        vocab: number of token ids; None for float features.
        hidden: hidden units of the head.
        outputs: number of classes, or 1 for a real number.
        towers: number of sequences per example.
        pool: how the token vectors of a sequence become one vector.
            ``mean``: their mean.
            ``cls``: the vector of a class token, id ``vocab - 1``, in front of the sequence; a sequence of full length
            loses its last token.
            ``class``: the output of a learned vector, prepended to the embedded tokens. It needs no token id and has no
            position embedding; the sequence grows to L + 1 tokens.
            ``last``: the vector of the last real token, or of the last position if there is none.
            ``flatten``: all ``length`` positions concatenated, with zeros for padding.
        class_std: standard deviation of the initial ``class`` vector.
        mean_over: the divisor of the mean: the maximum ``length``, as published, or the number of ``real`` tokens.
        norm: normalisation of the last block's output, see ``lra.model.norm``; None for none.
        head: a factory that takes dim, hidden, outputs and towers, as ``Head`` does; None for ``Head``.
        packed: whether to pack the real tokens of a batch (``lra.varlen``). Only on a CPU and for batches with a mask.
            Blocks without ``varlen`` or without a ``Multihead`` mixer encode groups of similar lengths instead, unless
            the result depends on the other sequences of the batch.

    Raises:
        ValueError: ``cls`` without token ids, several blocks that change the width, or an option out of its range.
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
            raise ValueError("model.pool=cls needs a task with token ids, this one has float features")
        self.length = length
        self.pool = pool
        self.mean_over = mean_over
        self.class_id = None if vocab is None else vocab - 1

        # Encoder.
        self.embed = embed
        self.blocks = nn.ModuleList(block(layer == 0) for layer in range(layers))
        self.encoded_width = _output_width(self.blocks, dim)
        modules = self.blocks.modules()
        self.encode_separately = any(getattr(module, "batch_dependent", False) for module in modules)
        blocks_are_compactable = all(getattr(block, "compactable", False) for block in self.blocks)
        self.compactable = blocks_are_compactable and not self.encode_separately
        self.packed = packed and all(_is_packable(block) for block in self.blocks)

        # Keep this order: blocks, head and class vector draw their initial weights from one RNG, one after the other.
        self.norm = make_norm(norm, self.encoded_width) if norm else None
        has_batch_norm = any(isinstance(module, BatchNorm) for module in self.modules())
        self.grouped = packed and not (self.packed or self.encode_separately or has_batch_norm)
        pooled_width = self.encoded_width
        if pool == "flatten":
            pooled_width *= length
        make_head: Callable[..., nn.Module] = head or Head
        self.head = make_head(dim=pooled_width, hidden=hidden, outputs=outputs, towers=towers)
        self.class_vector: nn.Parameter | None = None
        if pool == "class":
            self.class_vector = nn.Parameter(class_std * torch.randn(dim))

    def forward(
        self,
        inputs: Num[Tensor, "batch towers L *F"],
        mask: Bool[Tensor, "batch towers L"] | None = None,
        positions: Int[Tensor, "batch towers L"] | None = None,
    ) -> Float[Tensor, "batch *outputs"]:
        """Classify a batch.

        Args:
            inputs: token ids, or float features.
            mask: real tokens; None if all are real.
            positions: original positions of the tokens if the batch was compacted (``lra.data.datamodule``); None for
                0 .. L-1.
        """
        pooled = over_towers(self._encode, self.encode_separately, inputs, mask, positions)  # (batch,towers,pooled)
        return self.head(pooled)

    def _encode(
        self,
        inputs: Num[Tensor, "N L *F"],
        mask: Bool[Tensor, "N L"] | None,
        positions: Int[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N pooled"]:
        """Encode and pool sequences."""
        if self.pool == "cls":
            assert self.class_id is not None
            inputs, mask, positions = prepend_class_token(
                inputs, mask, positions, class_id=self.class_id, length=self.length
            )
        # Packing and grouping read the lengths on the host, which would make a GPU wait.
        if (self.packed or self.grouped) and mask is not None and inputs.device.type == "cpu":
            # Only data.pad=compact sets positions, and packing is for data.pad=none.
            assert positions is None, "a packed model takes no positions"
            if self.packed:
                return self._encode_packed(inputs, mask)
            return encode_in_groups(self._encode_padded, inputs, mask)
        return self._encode_padded(inputs, mask, positions)

    def _encode_padded(
        self,
        inputs: Num[Tensor, "N L *F"],
        mask: Bool[Tensor, "N L"] | None,
        positions: Int[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N pooled"]:
        """Encode and pool sequences with their padding."""
        # 1. Embed.
        x = self.embed(inputs) if positions is None else self.embed(inputs, positions)  # (N,L,d)
        x = cast_stream(x)
        if self.class_vector is not None:
            class_vector = self.class_vector.to(x.dtype)
            class_vectors = class_vector.expand(len(x), 1, -1)  # (N,1,d)
            x = torch.cat([class_vectors, x], 1)
            if mask is not None:
                mask = F.pad(mask, (1, 0), value=True)

        # 2. Blocks. A block may hand a memory to the next one, such as the latents of Luna.
        memory = None
        for block in self.blocks:
            x, memory = block(x, mask, memory)
            x = cast_stream(x)
        if self.norm is not None:
            x = self.norm(x, mask)

        # 3. Pool.
        if self.pool != "mean":
            return pool_tokens(x, mask, positions, pool=self.pool, length=self.length)
        # Mean: a sum over thousands of tokens needs float32.
        x = upcast(x)
        if mask is not None:
            x = x * mask[..., None].to(x.dtype)
        return self._mean(x.sum(1), mask, x.shape[1])

    def _encode_packed(
        self,
        inputs: Num[Tensor, "N L *F"],
        mask: Bool[Tensor, "N L"],
    ) -> Float[Tensor, "N pooled"]:
        """Encode and pool sequences as ``_encode_padded`` does, with the batch packed as T tokens."""
        # With a class vector, put a copy of the first token in front as a placeholder: below, the class vector replaces
        # its embedding.
        num_prepended = 0 if self.class_vector is None else 1
        tokens = torch.cat([inputs[:, :num_prepended], inputs], 1)  # (N,L or L + 1[,F])
        token_mask = F.pad(mask, (num_prepended, 0), value=True)
        multiple = TOKEN_MULTIPLE if keeps_16_bits(inputs) else 1
        layout = VarlenLayout(token_mask, multiple)

        # 1. Embed.
        positions = (layout.positions - num_prepended).clamp(min=0)  # (T,)
        x = self.embed(layout.pack(tokens), positions)  # (1,T,d)
        x = cast_stream(x)
        if self.class_vector is not None:
            class_vector = self.class_vector.to(x.dtype)
            is_first = layout.positions == 0  # (T,)
            x = torch.where(is_first[:, None], class_vector, x)

        # 2. Blocks, all of which have ``varlen``.
        block: Any
        for block in self.blocks:
            x = block.varlen(x, layout)
            x = cast_stream(x)
        if self.norm is not None:
            x = self.norm(x, layout.is_real)

        # 3. Pool.
        if self.pool != "mean":
            return pool_tokens(layout.unpack(x), layout.mask, pool=self.pool, length=self.length)
        return self._mean(layout.sum(x), layout.mask, inputs.shape[1])

    def _mean(self, total: Float[Tensor, "N d"], mask: Bool[Tensor, "N L"] | None, L: int) -> Float[Tensor, "N d"]:
        return mean_of_sum(total, mask, num_tokens=L, mean_over=self.mean_over, length=self.length)


class Head(Checked, nn.Module):
    """Linear, ReLU, Linear on the pooled vector; the input of two towers a, b is [a, b, a * b, a - b].

    Args:
        dim: width of a pooled vector.
        hidden: number of hidden units.
        outputs: number of outputs.
        towers: number of pooled vectors per example.
        kind: ``relu``: as above. ``gelu``: GELU instead of ReLU. ``linear``: a single Linear, without ``hidden``.
        dropout: dropout rate of the input of the first Linear.
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
        input_width = dim if towers == 1 else 4 * dim
        self.dropout = nn.Dropout(dropout)
        if kind == "linear":
            self.mlp = nn.Sequential(nn.Linear(input_width, outputs))
        else:
            activation = nn.ReLU() if kind == "relu" else nn.GELU()
            first = nn.Linear(input_width, hidden)
            last = nn.Linear(hidden, outputs)
            self.mlp = nn.Sequential(first, activation, last)

    def forward(self, pooled: Float[Tensor, "batch towers dim"]) -> Float[Tensor, "batch outputs"]:
        if pooled.shape[1] == 1:
            return self.mlp(self.dropout(pooled[:, 0]))
        a, b = pooled.unbind(1)
        compared = torch.cat([a, b, a * b, a - b], -1)  # (batch,4 dim)
        return self.mlp(self.dropout(compared))


def _output_width(blocks: nn.ModuleList, dim: int) -> int:
    """Return the width of the last block's output; raise ValueError if an earlier block changes the width."""
    widths = [getattr(block, "width", dim) for block in blocks]
    for width in widths[:-1]:
        if width != dim:
            raise ValueError(f"model.layers must be 1, not {len(widths)}: a block changes the width {dim} to {width}")
    return widths[-1] if widths else dim


def _is_packable(block: nn.Module) -> bool:
    """Whether a block can process packed sequences."""
    return hasattr(block, "varlen") and isinstance(block.mixer, Multihead)
