"""How many directions an embedding really uses."""

import torch
from torch import Tensor

_MOST = 2048


@torch.no_grad()
def effective_rank(z: Tensor) -> float:
    """exp(entropy of the singular values) of z (N, D), of its first 2,048 rows: 1 when collapsed, at most min(N, D).

    Roy and Vetterli, EUSIPCO 2007; Garrido et al., "RankMe", ICML 2023.
    """
    z = z[:_MOST].double() if z.device.type != "mps" else z[:_MOST].cpu().double()
    gram = z @ z.T if z.shape[0] <= z.shape[1] else z.T @ z
    if not torch.isfinite(gram).all():
        return float("nan")
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = singular / singular.sum().clamp(min=1e-30)
    return float(torch.special.entr(share).sum().exp())
