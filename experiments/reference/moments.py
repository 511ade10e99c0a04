"""Two more moments: jumps between modes, and the linear Stein moment."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.moments import Balance
from jaxcal.moments.balance import balanced
from jaxcal.moments.stein import FORMS, Form, LogDensityOfOne, _entries
from jaxcal.read import convert
from jaxcal.typing import DTypeLike, Key, Nodes, Point


class Jumps(eqx.Module):
    r"""Metropolis balance of the coordinates over big moves: :math:`\varphi = y' - y`, [d].

    Detects wrong weights of modes, which scores do not see, and shifts. Needs no gradient.

    Args:
        moves: As in `Balance`, but in units common to all predictions, as large as the spread of
            all targets, even if each prediction has its own units.
        n_moves: As in `Balance`.
        lengths: As in `Balance`.

    Cost: 2 m log densities.
    """

    moves: Nodes | None = None
    n_moves: int = eqx.field(default=24, static=True)
    lengths: tuple[float, ...] = eqx.field(default=(3.0, 0.8), static=True)
    common: bool = eqx.field(default=True, init=False, static=True)
    whole_space: bool = eqx.field(default=False, init=False, static=True)
    smoothness: int = eqx.field(default=0, init=False, static=True)

    def fitted(self, key: Key, dimension: int, dtype: DTypeLike) -> "Jumps":
        """Return the moment with its random moves, if none were passed."""
        drawn = Balance(self.moves, self.n_moves, self.lengths).fitted(key, dimension, dtype)
        return Jumps(drawn.moves, self.n_moves, self.lengths)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        return {"weights": balanced(log_density, y, self.moves, lambda _, move: move)}


class Linear(eqx.Module):
    r"""The moment :math:`s_p y^\top + I`: detects wrong spread (diagonal) and correlation.

    The Stein moment of f = y, with the symmetric part of the off-diagonal entries. It measures
    spread about the origin of the units, over all modes together. Needs one gradient of a
    continuous density with p y -> 0 at every boundary: networks with kinks (ReLU) are allowed.

    Args:
        form: "full", the d (d + 1) / 2 different entries; "diagonal" or "correlation", those on
            or off the diagonal; or "trace", one number.
        whole_space: Leave the moment out if a density has a boundary; False keeps it.

    Cost: one gradient.
    """

    form: Form = eqx.field(default="full", static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=1, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        score = jax.grad(log_density)(y)
        eye = jnp.eye(y.size, dtype=y.dtype)
        return _entries(score[:, None] * y[None] + eye, self.form)
