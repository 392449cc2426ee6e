"""The options that a mechanism refuses, and the message, which names the option and its valid values."""

import pytest

from lra.attention.base import Attention, Sizes
from lra.attention.bigbird import BigBird
from lra.attention.conv import Conv
from lra.attention.cosformer import CosFormer
from lra.attention.cur import CUR
from lra.attention.dba import DBA
from lra.attention.flare import FLARE
from lra.attention.h_transformer_1d import HTransformer1D
from lra.attention.hedgehog import Hedgehog
from lra.attention.linear import RFA, Performer
from lra.attention.linformer import Linformer
from lra.attention.local import Local
from lra.attention.long_conv import LongConv
from lra.attention.longformer import Longformer
from lra.attention.lru import LRU
from lra.attention.luna import Luna
from lra.attention.psf import PSF
from lra.attention.reformer import Reformer
from lra.attention.s4d import S4D
from lra.attention.s5 import S5
from lra.attention.sinkhorn import Sinkhorn
from lra.attention.skyformer import Skyformer
from lra.attention.soft import Soft
from lra.attention.sparse import Sparse
from lra.attention.synthesizer import Factorised
from lra.attention.transformer_ls import TransformerLS

SIZES = {"heads": 2, "head_dim": 4, "value_dim": 4, "length": 64}


def make(kind, **options):
    sizes = Sizes(**{key: options.pop(key, size) for key, size in SIZES.items()})
    place = {} if issubclass(kind, Attention) else {"dim": 8} | ({"hidden": 12} if kind in (DBA, Luna) else {})
    return kind(sizes, **place, **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (BigBird, {"block": 0}, "block must be 1 or more, not 0"),
        (BigBird, {"window": 2}, "window must be odd, in blocks, not 2"),
        (BigBird, {"random": -1}, "random must be 0 or more, not -1"),
        (Conv, {"width": 4}, "width must be odd, not 4"),
        (CosFormer, {"eps": 0.0}, "eps must be above 0, not 0.0"),
        (CUR, {"count": 0}, r"count must be from 1 to 64 \(length\), not 0"),
        (CUR, {"count": 65}, r"count must be from 1 to 64 \(length\), not 65"),
        (CUR, {"score": "best"}, "score must be one of sum, abs, embed, step, random, farthest, not 'best'"),
        (CUR, {"pairing": "both"}, "pairing must be one of separate, same_k, same_q, swapped"),
        (CUR, {"impl": "triton2"}, "impl must be one of"),
        (CUR, {"resample": "never"}, "resample must be one of train, always"),
        (DBA, {"latents": 0}, "latents must be 1 or more, not 0"),
        (DBA, {"width": 5}, "width must be a multiple of heads 2, not 5"),
        (DBA, {"head_dim": 3}, "head_dim must be 4, dim / heads, with DBA, not 3"),
        (FLARE, {"latents": 0}, "latents must be 1 or more, not 0"),
        (FLARE, {"scale": "none"}, "scale must be one of one, sqrt, not 'none'"),
        (HTransformer1D, {"block": 0}, "block must be 1 or more, not 0"),
        (Hedgehog, {"softmax": "both"}, "softmax must be one of halves, joint, not 'both'"),
        (Linformer, {"rank": 0}, "rank must be 1 or more, not 0"),
        (Local, {"block": 0}, "block must be 1 or more, not 0"),
        (Local, {"grouping": "dilated"}, "grouping must be one of contiguous, strided, not 'dilated'"),
        (LongConv, {"squash": -0.1}, "squash must be 0 or more, not -0.1"),
        (LongConv, {"scale": 0.0}, "scale must be above 0, not 0.0"),
        (Longformer, {"window": 0}, "window must be 1 or more, not 0"),
        (Longformer, {"global_tokens": 65}, r"global_tokens must be from 0 to 64 \(length\), not 65"),
        (LRU, {"states": 0}, "states must be 1 or more, not 0"),
        (LRU, {"r_max": 1.1}, "r_max must be from 0.0 to 1"),
        (LRU, {"r_max": 0.0}, "r_max must be above 0 to 1"),
        (LRU, {"r_min": 1.0}, "r_min must be from 0 below 1"),
        (LRU, {"r_min": 0.9, "r_max": 0.5}, r"r_max must be from 0.9 to 1 \(r_min\), not 0.5"),
        (LRU, {"max_phase": 7.0}, "max_phase must be above 0 to 6.28318"),
        (Luna, {"rows": 0}, "rows must be 1 or more, not 0"),
        (Luna, {"head_dim": 3}, "head_dim must be 4, dim / heads, with Luna, not 3"),
        (Performer, {"kernel": "elu"}, "kernel must be one of exp, relu, not 'elu'"),
        (Performer, {"scalings": 3}, "scalings must be one of 1, 2, not 3"),
        (Performer, {"redraw": "always"}, "redraw must be one of train, never, not 'always'"),
        (Performer, {"features": 0}, "features must be 1 or more, not 0"),
        (PSF, {"links": "all"}, "links must be .*not 'all'"),
        (PSF, {"ring": "mask"}, "ring must be .*not 'mask'"),
        *(
            (PSF, {key: 0}, f"{key} must be .*not 0")
            for key in ("links", "factors", "channels", "hidden", "value_hidden")
        ),
        (Reformer, {"hashes": 0}, "hashes must be 1 or more, not 0"),
        (Reformer, {"chunk": None}, "chunk and buckets must not both be null"),
        (Reformer, {"chunk": 0}, "chunk must be 1 or more, or null for length / buckets, not 0"),
        (Reformer, {"buckets": 7}, "buckets must be 1, even, or null for 2 length / chunk, not 7"),
        (Reformer, {"buckets": 0}, "buckets must be 1, even, or null for 2 length / chunk, not 0"),
        (Reformer, {"scope": "row"}, "scope must be one of chunk, bucket, not 'row'"),
        (RFA, {"floor": 0.0}, "floor must be above 0, not 0.0"),
        (RFA, {"redraw": "always"}, "redraw must be one of train, never, not 'always'"),
        (S4D, {"states": 7}, "states must be even, not 7"),
        (S4D, {"states": 0}, "states must be 2 or more, not 0"),
        (S4D, {"init": "rand"}, "init must be one of lin, inv, legs, not 'rand'"),
        (S4D, {"discretisation": "euler"}, "discretisation must be one of zoh, bilinear"),
        (S4D, {"step_min": 0.0}, "step_min must be above 0, not 0.0"),
        (S4D, {"step_max": 1e-4}, r"step_max must be 0.001 or more \(step_min\), not 0.0001"),
        (S5, {"states": 12, "blocks": 4}, "states must be a multiple of 2 x blocks = 8, not 12"),
        (S5, {"c_init": "normal"}, "c_init must be one of lecun_normal, trunc_standard_normal, complex_normal, not"),
        (S5, {"b_optim": "fast"}, "b_optim must be one of state, state_decay, main, not 'fast'"),
        (S5, {"step_optim": "fast"}, "step_optim must be one of state, main, not 'fast'"),
        (S5, {"discretisation": "euler"}, "discretisation must be one of zoh, bilinear"),
        (S5, {"step_max": 1e-4}, r"step_max must be 0.001 or more \(step_min\), not 0.0001"),
        (Sinkhorn, {"block": 0}, "block must be 1 or more, not 0"),
        (Sinkhorn, {"iterations": -1}, "iterations must be 0 or more, not -1"),
        (Sinkhorn, {"temperature": 0}, "temperature must be above 0, not 0"),
        (Skyformer, {"samples": 0}, "samples must be 1 or more, not 0"),
        (Skyformer, {"ridge": -0.1}, "ridge must be 0 or more, not -0.1"),
        (Skyformer, {"resample": "never"}, "resample must be one of train, always, not 'never'"),
        (Soft, {"sample": "topk"}, "sample must be one of pool, conv, random, first, not 'topk'"),
        (Soft, {"window": 0}, r"window must be from 1 to 64 \(length\), not 0"),
        (Soft, {"count": 65}, r"count must be from 1 to 64 \(length\), not 65"),
        (Soft, {"count": 0}, "count must be from 1"),
        (Soft, {"count": 4, "sample": "conv"}, "count must be null with sample=conv"),
        (Sparse, {"pattern": "axial"}, "pattern must be one of strided, fixed, not 'axial'"),
        (Sparse, {"stride": 0}, "stride must be 1 or more, or null for the square root of length, not 0"),
        (Sparse, {"block": 0}, "block must be 1 or more, not 0"),
        (Sparse, {"summary": 51}, r"summary must be from 1 to 50 \(block\), not 51"),
        (Factorised, {"rank": 0}, "rank must be 1 or more, not 0"),
        (TransformerLS, {"rank": 0}, "rank must be 1 or more, not 0"),
        (TransformerLS, {"window": 0}, "window must be 1 or more, not 0"),
        (TransformerLS, {"kernel": 4}, "kernel must be odd, or 0 for no convolution, not 4"),
    ],
)
def test_an_option_is_refused_by_its_name(kind, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make(kind, **options)
