"""A term that spreads embeddings out (KoLeo; Sablayrolles et al., ICLR 2019), which DINOv2 adds to DINO."""

import torch
import torch.nn.functional as F
from torch import Tensor

from hidisc.objectives.gather import gather

_EPSILON = 1e-8


def spread_out(x: Tensor, ids: Tensor) -> Tensor:
    """Minus the mean logarithm of each row's distance from the nearest one of another patch, x (M, V, D), ids (M,).

    Rows are made unit vectors and are compared within a view, with those of all ranks, as views of a patch are meant
    to be alike. A row without another patch counts as 0.
    """
    x = F.normalize(x, dim=2).transpose(0, 1)  # (V, M, D)
    keys, of_keys = gather(x.transpose(0, 1))[0].transpose(0, 1), gather(ids)[0]
    is_same = ids[:, None] == of_keys  # (M, keys)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        nearest = (x @ keys.transpose(1, 2)).masked_fill(is_same, -2).argmax(dim=2)  # (V, M)
    pairs = zip(x, keys, nearest, strict=True)
    apart = [F.pairwise_distance(rows, others.index_select(0, which), eps=_EPSILON) for rows, others, which in pairs]
    return -torch.where(is_same.all(dim=1), 0, (torch.stack(apart) + _EPSILON).log()).mean()
