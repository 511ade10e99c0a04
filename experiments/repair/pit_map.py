"""Maps of probability integral transforms given x (Cal-PIT, Dey et al. 2022), one a coordinate.

With u the distribution function of a coordinate at its true value, and r(. | x) the distribution
function of u given x, the recalibrated density is p(theta | x) r'(u | x). The second coordinate has
the transform of its conditional distribution, whose map varies with the first parameter too. r is a
mixture of logistic distribution functions of logit u, whose parameters a network of x gives. It is
fitted by likelihood, which serves the log score; the paper takes a loss over levels.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

PARTS, HIDDEN, EPOCHS, PATIENCE = 3, 16, 400, 40
EDGE = 1e-4


def transforms(grid: Any, box: Any, thetas: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of cells [n, c, 2] and of parameters [n, 2], and the parameters of both in units of the box.

    Cells are those of a square grid in the order of the first coordinate."""
    n, c = grid.masses.shape
    side = round(c**0.5)
    masses = grid.masses.reshape(n, side, side)
    first = masses.sum(axis=2)
    second = masses / np.maximum(first[..., None], 1e-30)

    def middle(p: np.ndarray) -> np.ndarray:
        return np.cumsum(p, axis=-1) - p / 2

    both = [np.broadcast_to(middle(first)[..., None], masses.shape), middle(second)]
    cells = np.stack([part.reshape(n, c) for part in both], axis=-1)
    where = (thetas - box.low) / (box.high - box.low) * side
    i, j = np.clip(where.astype(int), 0, side - 1).T
    inside = where - np.stack([i, j], axis=-1)
    rows = np.arange(n)
    edges = [np.cumsum(p, axis=-1) - p for p in (first, second[rows, i])]
    at = [
        edge[rows, k] + part * p[rows, k]
        for edge, k, part, p in zip(edges, (i, j), inside.T, (first, second[rows, i]), strict=True)
    ]
    unit = (grid.points - box.low) / (box.high - box.low)
    return cells, np.stack(at, axis=-1), unit, (thetas - box.low) / (box.high - box.low)


def fitted(held_out: tuple[np.ndarray, ...], xs: np.ndarray, seed: int) -> Callable[..., Any]:
    """A function of transforms and xs that returns log r' of cells [n, c] and parameters [n]."""
    import torch

    torch.manual_seed(seed)
    mean, deviation = xs.mean(axis=0), xs.std(axis=0) + 1e-6
    _, at, _, unit = held_out
    z = (xs - mean) / deviation
    nets = [_net(at[:, 0], z), _net(at[:, 1], np.concatenate([z, 2 * unit[:, :1] - 1], axis=1))]

    def ratios(new: tuple[np.ndarray, ...], xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cells, at, unit_cells, unit = new
        z = (xs - mean) / deviation
        on_cells = np.empty(cells.shape[:2], np.float32)
        for row in range(len(xs)):  # one posterior at a time, as it has many cells
            here = np.broadcast_to(z[row], (cells.shape[1], z.shape[1]))
            beside = np.concatenate([here, 2 * unit_cells[:, :1] - 1], axis=1)
            on_cells[row] = _logs(nets[0], cells[row, :, 0], z[row : row + 1])
            on_cells[row] += _logs(nets[1], cells[row, :, 1], beside)
        beside = np.concatenate([z, 2 * unit[:, :1] - 1], axis=1)
        return on_cells, _logs(nets[0], at[:, 0], z) + _logs(nets[1], at[:, 1], beside)

    return ratios


def _net(us: np.ndarray, context: np.ndarray) -> Any:
    """Stopped where a fifth of the pairs gets no likelier for `PATIENCE` epochs."""
    import torch

    net = torch.nn.Sequential(
        torch.nn.Linear(context.shape[1], HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, 3 * PARTS),
    )
    torch.nn.init.normal_(net[-1].weight, std=1e-2)
    torch.nn.init.normal_(net[-1].bias, std=1e-2)  # about the map that changes nothing
    u, z = (torch.as_tensor(part.astype(np.float32)) for part in (us, context))
    judged = torch.arange(len(u)) % 5 == 0
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-3)
    best, kept, since = -np.inf, None, 0
    for _ in range(EPOCHS):
        with torch.no_grad():
            height = float(_log_slope(net(z[judged]), u[judged]).mean())
        if height > best:
            best, since = height, 0
            kept = {name: value.clone() for name, value in net.state_dict().items()}
        elif (since := since + 1) > PATIENCE:
            break
        optimizer.zero_grad()
        (-_log_slope(net(z[~judged]), u[~judged]).mean()).backward()
        optimizer.step()
    if kept is not None:
        net.load_state_dict(kept)
    return net


def _logs(net: Any, us: np.ndarray, context: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        u, z = (torch.as_tensor(np.asarray(part, np.float32)) for part in (us, context))
        return _log_slope(net(z), u).numpy()


def _log_slope(raw: Any, u: Any) -> Any:
    """log r'(u), of weights, places and widths [b, 3 k] or [1, 3 k]."""
    import torch

    weight, place, width = raw.chunk(3, dim=-1)
    u = u.clamp(EDGE, 1 - EDGE)
    at = (torch.logit(u)[..., None] - place) * torch.exp(width)
    logs = torch.nn.functional.logsigmoid(at) + torch.nn.functional.logsigmoid(-at) + width
    mixed = torch.logsumexp(torch.log_softmax(weight, dim=-1) + logs, dim=-1)
    return mixed - torch.log(u) - torch.log1p(-u)
