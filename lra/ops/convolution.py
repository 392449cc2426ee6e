"""Depth-wise convolution along the sequence, by a matrix product on a CPU."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Positions of a block.
BLOCK = 64


def convolve_sequence(
    v: Float[Tensor, "N H L D"],
    weight: Float[Tensor, "H 1 kernel 1"],
) -> Float[Tensor, "N H L D"]:
    """Slide one filter of odd width per head along the sequence, with zeros outside it.

    On a CPU each block of the sequence, with its neighbours, is multiplied by a banded matrix, because oneDNN 3.12,
    which torch uses for convolutions there, computes wrong gradients of such filters. With one head it writes outside
    its memory if 10 <= L <= kernel // 2 + 1. With more heads it omits terms if 1 <= L mod 15 <= kernel // 2 - 15: with
    a kernel of 35 at L = 256, 512 and 4096, among others.

    Args:
        v: values.
        weight: filters, as in a depth-wise ``torch.nn.Conv2d``.
    """
    N, H, L, D = v.shape
    reach = weight.shape[2] // 2
    if v.device.type != "cpu":
        return F.conv2d(v, weight, padding=(reach, 0), groups=H)

    # Blocks of positions with the neighbours that the filter reaches.
    num_padding = -L % BLOCK
    window = BLOCK + 2 * reach
    padding = (0, 0, reach, num_padding + reach)
    padded = F.pad(v, padding)
    pieces = padded.unfold(2, window, BLOCK)  # (N,H,B,D,window)

    # One matrix per head: the windows of all examples, blocks and features.
    head_first = pieces.transpose(0, 1)
    matrix = head_first.reshape(H, -1, window)  # (H,N B D,window)
    filters = weight[:, 0, :, 0]  # (H,kernel)
    band = _band(filters)  # (H,BLOCK,window)
    out = matrix @ band.mT  # (H,N B D,BLOCK)

    # Back to the order of positions.
    out = out.view(H, N, -1, D, BLOCK)
    out = out.permute(1, 0, 2, 4, 3)  # (N,H,B,BLOCK,D)
    out = out.flatten(2, 3)
    return out[:, :, :L]


def _band(filters: Float[Tensor, "H kernel"]) -> Float[Tensor, "H block window"]:
    """Make one banded matrix per head, whose row i holds the filter from column i on."""
    width = filters.shape[1] + BLOCK
    # The rows are repeated at this width and read at a width smaller by one, so each is shifted by one more column.
    padded = F.pad(filters, (0, BLOCK))  # (H,width)
    repeated = padded.repeat(1, BLOCK)  # (H,BLOCK width)
    shifted = repeated[:, : BLOCK * (width - 1)]
    return shifted.unflatten(1, (BLOCK, width - 1))
