"""Other attention that can replace softmax without training: q, k (N,H,L,D), v (N,H,L,E), count -> (N,H,L,E)."""

import torch
from torch import Tensor

from ...attention.base import Sizes
from ...attention.linear import Performer
from ...attention.nystrom import Nystrom
from ...ops.cells import nearest
from ...ops.pinv import cubic
from ...ops.selection import farthest, gather_kept
from .cell_variants import means
from .cur_variants import weights


def sizes(q: Tensor, v: Tensor) -> Sizes:
    """The sizes of a mechanism for q (N,H,L,D) and v (N,H,L,E)."""
    return Sizes(heads=q.shape[1], head_dim=q.shape[3], value_dim=v.shape[3], length=q.shape[2])


def mean(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """The mean value for every query, a control without attention."""
    return v.mean(2, keepdim=True).expand_as(v)


def nystrom(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Nystromformer without its convolution (Xiong et al. 2021): means of consecutive segments, 6 steps."""
    return Nystrom(sizes(q, v), landmarks=count, kernel=0)(q, k, v)


def nystrom_kmeans(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """``nystrom`` with means of clusters of queries and of keys (Zhang, Tsang and Kwok 2008)."""
    q_marks, k_marks = centres(q, count), centres(k, count)
    return weights(q, k_marks) @ (cubic(weights(q_marks, k_marks), steps=6) @ (weights(q_marks, k) @ v))


def performer(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """FAVOR+ (Choromanski et al. 2021) with 2 count positive features."""
    return Performer(sizes(q, v), features=2 * count, eps=0.0)(q, k, v)


def clustered(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Clustered attention (Vyas et al. 2020, section 3.2): a query has the attention of its cluster's mean query.

    Clusters are those of Lloyd's algorithm; the paper's, from hashes, are coarser. A cluster for each query is exact.
    """
    marks = centres(q, count)
    return gather_kept(weights(marks, k) @ v, nearest(q, marks, None).squeeze(-1))


def clustered_improved(q: Tensor, k: Tensor, v: Tensor, count: int) -> Tensor:
    """Improved clustered attention (Vyas et al. 2020, section 3.3, equations 9 to 11).

    A query distributes the attention of its cluster's mean to the cluster's ``count`` heaviest keys by its own scores.
    There are as many products as in CUR: count L for the clusters and count L for the heavy keys.
    """
    marks = centres(q, count)
    map, cluster = weights(marks, k), nearest(q, marks, None).squeeze(-1)  # (N,H,c,L), (N,H,L)
    mass, heavy = map.topk(count)  # (N,H,c,t)
    rest = map.scatter(-1, heavy, 0) @ v
    pick = gather_kept(heavy, cluster).flatten(2)  # (N,H,L·t)
    keys, values = (gather_kept(x, pick).unflatten(2, (-1, count)) for x in (k, v))  # (N,H,L,t,D)
    shared = gather_kept(mass.sum(-1, keepdim=True), cluster) * weights(q[:, :, :, None], keys).squeeze(3)
    return gather_kept(rest, cluster) + (shared[:, :, :, None] @ values).squeeze(3)


def centres(x: Tensor, count: int, steps: int = 10) -> Tensor:
    """Compute means of clusters by Lloyd's algorithm from farthest points, (N,H,L,D) -> (N,H,count,D)."""
    centre_points = gather_kept(x, farthest(x, count, None))
    for _ in range(steps):
        centre_points = means(x, centre_points)
    return centre_points


@torch.no_grad()
def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Exact attention, the reference of every error."""
    return weights(q, k) @ v
