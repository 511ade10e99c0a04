"""Ranks and coverage of posteriors of which there are draws alone."""

import jax.numpy as jnp

from jaxcal import checks
from jaxcal.models import Units
from jaxcal.results import recorded
from jaxcal.sbi.draws import paired
from jaxcal.sbi.ranks import PosteriorRanks, rank_draws
from jaxcal.typing import ArrayLike, KeyLike, Names, Observations


@recorded
def check_draws(
    key: KeyLike,
    draws: ArrayLike,
    thetas: ArrayLike,
    xs: Observations | None = None,
    *,
    names: Names | None = None,
    level: float = 0.05,
) -> PosteriorRanks:
    """Ranks (SBC) and coverage (TARP) of parameters among draws of their posteriors.

    Where there are densities or scores too, `check_posterior` sees more; pass it these ``draws``.

    Args:
        key: Random key: typed, legacy or an integer.
        draws: Independent draws of each posterior, [n, m, d], or what `as_draws` takes.
        thetas: [n, d] parameters from the prior; a dict of [n] or [n, k] for draws with names.
        xs: [n, q] observations or summaries of them, along which errors are looked for; or None.
        names: Of the d parameters, in the order of the columns of ``thetas``. Draws with names
            (a dict, ArviZ) are put into that order.
        level: Level of the limits.

    Returns:
        `PosteriorRanks`: ``p_value`` of ranks and trends along x together, and p-values of each.

    Raises:
        ValueError: shapes or names disagree, naming the argument; several named variables, and
            nothing says which column of ``thetas`` is which.
        TypeError: draws are of no known form.

    Source: Talts et al. (2018) for the ranks; Lemos et al. (2023) for the distance.

    Example:
        >>> import jax
        >>> from jaxcal import sbi
        >>> thetas, noise = jax.random.normal(jax.random.key(0), (2, 200, 1))
        >>> draws = 0.6 * jax.random.normal(jax.random.key(1), (200, 20, 1))  # too narrow
        >>> bool(sbi.check_draws(2, {"slope": draws}, thetas).p_value < 0.01)
        True
    """
    key, level = checks.key(key), checks.level(level)
    array, values, words = paired(draws, thetas, names)
    n, m, d = array.shape
    if values.shape != (n, d) or m < 2:
        raise ValueError(
            f"draws: wanted m >= 2 draws for each of thetas of shape {values.shape}, got "
            f"{array.shape}" + (": transpose the first two axes?" if (m, d) == values.shape else "")
        )
    words = checks.names(words, d) or tuple(f"theta_{k + 1}" for k in range(d))
    features = None if xs is None else checks.rows(xs, n, "xs").astype(values.dtype)
    units = Units.of(values)  # distances are in units of the prior's draws
    among = units.points(jnp.asarray(array, values.dtype))
    return rank_draws(key, among, units.points(values), features, words, level=level)
