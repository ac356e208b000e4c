"""The predictor that SimSiam and BYOL put on one of two branches."""

from torch import nn


def make_predictor(dim: int, hidden_dim: int) -> nn.Sequential:
    """dim -> hidden -> dim, batch normalisation and ReLU between."""
    return nn.Sequential(
        nn.Linear(dim, hidden_dim, bias=False),
        nn.BatchNorm1d(hidden_dim),
        nn.ReLU(inplace=True),
        nn.Linear(hidden_dim, dim),
    )
