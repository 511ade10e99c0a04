r"""Draw data sets that are calibrated by construction, with targets from their predictions.

If predictions do not depend on their targets and are calibrated, a statistic has the same
distribution on observed and on redrawn targets, for every n.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.engine.linear import ROWS, filled, in_blocks
from jaxcal.fit.fitted import Fitted
from jaxcal.fit.residuals import Featured, Frame
from jaxcal.fit.specification import Keys, Specification
from jaxcal.kernels.classes import ClassGram, MatrixKernel
from jaxcal.read import Draws
from jaxcal.read.families import Classes, Laplaces, Normals, distribution_of
from jaxcal.read.sampling import sample
from jaxcal.read.scores import is_distribution
from jaxcal.results.notes import Notes
from jaxcal.statistics.skce import KernelResidual, MeanWaves, class_directions
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import Features, KernelLike, Key, Pairwise, PredictionsLike

RARE = 10  # expected number of rare targets below which a null with random signs is unreliable
LOOKS = 32  # redrawn data sets from which rare targets are estimated
FEWEST_LOOKS, MANY = 4, 65_536  # .. by random features: at least 4, up to so many rows in all


def redraw(key: Key, predictions: Any, targets: Array) -> tuple[PredictionsLike, Array]:
    """Return predictions and targets drawn from them, in the shape and type of ``targets``.

    For `jaxcal.Draws` the target is swapped with one of the m draws, or stays, each with
    probability 1 / (m + 1): under calibration the target is one more independent draw. Other
    predictions are returned unchanged; TypeError for predictions that cannot be sampled.
    """
    n = targets.shape[0]
    if isinstance(predictions, Classes):
        return predictions, _classes(key, predictions.probabilities).astype(targets.dtype)
    if isinstance(predictions, Draws):
        draws = jnp.asarray(predictions.samples)
        place = jax.random.randint(key, (n,), 0, draws.shape[1] + 1)
        rows, drawn = jnp.arange(n), place - 1
        at = jnp.maximum(drawn, 0)
        stays = (drawn < 0).reshape(n, *(1 for _ in targets.shape[1:]))
        there, ys = draws[rows, at], targets.astype(draws.dtype)
        swapped = draws.at[rows, at].set(jnp.where(stays, there, ys))
        return Draws(swapped, predictions.rhat), jnp.where(stays, ys, there).astype(targets.dtype)
    if not is_distribution(predictions):
        raise TypeError(
            f"null: Redrawn() draws targets from the predictions, and "
            f"{type(predictions).__name__} has no sampler: use jaxcal.nulls.Wild()"
        )
    shape = () if predictions.batch_shape else (n,)
    drawn = sample(key, predictions, shape, "null: Redrawn()")
    return predictions, jnp.reshape(drawn, targets.shape).astype(targets.dtype)


def _classes(key: Key, probabilities: Float[Array, "n m"]) -> Array:
    """Draw one class per row, [n], by inversion."""
    below = jnp.cumsum(probabilities, axis=1)
    u = jax.random.uniform(key, (below.shape[0],), below.dtype) * below[:, -1]
    return jnp.sum(below[:, :-1] <= u[:, None], axis=1)


def samplable(predictions: PredictionsLike, targets: Array) -> bool:
    """Return whether targets can be drawn from the predictions; draws nothing."""
    try:
        jax.eval_shape(lambda key: redraw(key, predictions, targets), jax.random.key(0))
    except TypeError:
        return False
    return True


def refitted(
    key: Key,
    keys: Keys,
    spec: Specification,
    fitted: tuple[Fitted, Featured],
    predictions: PredictionsLike,
    targets: Array,
    kept: Bool[Array, " n"] | None = None,
) -> tuple[Fitted, Featured]:
    """Return the test refitted to targets redrawn from predictions by ``key``, and its features.

    ``keys``, ``fitted``: keys and results of the first fit. Rows ``kept`` retain their targets.
    """
    again, ys = redraw(key, predictions, targets)
    if kept is not None:

        def put_back(new: Array, old: Array) -> Array:
            return jnp.where(kept.reshape(-1, *(1 for _ in new.shape[1:])), old, new)

        ys = put_back(ys, targets)
        if isinstance(predictions, Draws):
            again = jax.tree.map(put_back, again, predictions)
    if not isinstance(predictions, Classes):
        return spec.fit(keys, again, ys)
    prepared, featured = fitted  # for classes only the features hold targets
    observed = featured.features.residual._replace(ys=ys)
    features = featured.features._replace(residual=observed)
    return prepared, featured._replace(features=features)


def as_forms(
    pairwise: Pairwise, features: Features, keys: Array
) -> tuple[Weighted, WeightedFeatures, Float[Array, "n bk"]] | None:
    r"""Return what is needed to test redrawn classes by quadratic forms of the prediction kernel.

    Let R be a root of the Gram matrix of the m classes. The inner product of two residuals is
    :math:`\langle r_i, r_j \rangle` with :math:`r_i = R (e_{y_i} - p_i)`, e one-hot. Entries of
    e - p sum to 0, so r has k = m - 1 coordinates. A data set is given by r, [n, k].

    Returns:
        A statistic h_ij = k(p_i, p_j); its features; and r of the observed classes and of b redrawn
        ones, one per key, as columns [n, (1 + b) k]. None without classes or for a `MatrixKernel`.
    """
    statistic = kernel_residual(pairwise)
    observed = features.residual if statistic is not None else None
    distribution = None if observed is None else observed.distribution
    if not isinstance(distribution, Classes):
        return None
    assert isinstance(pairwise, Weighted)
    assert statistic is not None
    if isinstance(statistic.means.kernel, MatrixKernel):
        return None
    assert observed is not None
    p = distribution.probabilities
    n, m = p.shape
    root = class_directions(jnp.eye(m - 1, dtype=p.dtype), _matrix(statistic.means.kernel))
    ys = jax.vmap(lambda key: _classes(key, p))(keys)
    ys = jnp.concatenate([observed.ys[None].astype(ys.dtype), ys])
    columns = root.T[ys] - (p @ root.T)[None]
    kernel = Weighted(pairwise.prediction_kernel, pairwise.divergence)
    ones = WeightedFeatures(features.predictions, jnp.ones((n, 1), p.dtype))
    return kernel, ones, jnp.moveaxis(columns, 0, 1).reshape(n, -1)


def rare_targets(
    key: Key, fitted: tuple[Fitted, Featured], predictions: Any, targets: Array
) -> Bool[Array, ""] | None:
    r"""Return whether the statistic depends mainly on targets that are rare under the predictions.

    Random signs use :math:`V = \sum_i |\xi_i|^2` as the variance of the sum of the residuals
    :math:`\xi_i`. If E V is mostly due to a few rare and large :math:`\xi_i`, V is too small in
    data where none occurs. The result is True if Var V / (E V)^2 > 1 / `RARE` under the
    predictions. For events of small probabilities :math:`q_i` this ratio is :math:`1 / \sum_i q_i`,
    the inverse of the expected number of events. Moments of V come from class probabilities or
    `LOOKS` redrawn data sets. The result is None for normals, Laplaces, `Draws`, tests without
    kernel means or their random features, and distributions without a sampler.
    """
    prepared, featured = fitted
    statistic = kernel_residual(prepared.pairwise)
    if statistic is not None and _from_looks(predictions, targets):
        mean, variance = _of_looks(key, prepared, statistic, featured, predictions, targets)
    elif (rows := moments_of_rows(key, fitted, predictions, targets)) is not None:
        mean, variance = jnp.sum(rows, axis=1)
    else:
        return None
    return RARE * variance > mean**2


def moments_of_rows(
    key: Key, fitted: tuple[Fitted, Featured], predictions: Any, targets: Array
) -> Float[Array, "2 n"] | None:
    """Return mean and variance of the term of each row in V (see `rare_targets`); None except for
    classes and for random features of predictions with redrawn targets."""
    prepared, featured = fitted
    if isinstance(predictions, Classes):
        p, kernel = predictions.probabilities, prepared.target_kernel
        per_prediction = isinstance(kernel, MatrixKernel)
        grams = jax.vmap(kernel.function)(p, p) if per_prediction else _matrix(kernel)
        return _of_classes(p, grams)
    if featured.means is None or not _from_looks(predictions, targets):
        return None
    return _of_vectors(key, prepared, featured, predictions, targets)


def _from_looks(predictions: Any, targets: Array) -> bool:
    """Return whether moments of V (see `rare_targets`) are estimated from redrawn targets."""
    if isinstance(predictions, (Classes, Draws)):
        return False
    normal = isinstance(distribution_of(predictions), (Normals, Laplaces))
    return not normal and samplable(predictions, targets)


def _of_classes(p: Float[Array, "n m"], matrix: Array | None) -> Float[Array, "2 n"]:
    """Return `moments_of_rows`. ``matrix``: Gram matrix of the classes [m, m], or one per
    prediction [n, m, m]; None for the identity."""
    gram = jnp.eye(p.shape[1], dtype=p.dtype) if matrix is None else matrix.astype(p.dtype)
    gram = gram.reshape(-1, *gram.shape[-2:])
    average = (p[:, None] @ gram)[:, 0]
    squared_norms = jnp.sum(average * p, axis=1, keepdims=True)
    squares = jnp.diagonal(gram, axis1=-2, axis2=-1) - 2 * average + squared_norms
    mean = jnp.sum(p * squares, axis=1)
    return jnp.stack([mean, jnp.sum(p * (squares - mean[:, None]) ** 2, axis=1)])


def _redrawn(prepared: Fitted, predictions: Any, targets: Array) -> Callable[[Key], Array]:
    """Return a function from keys to targets redrawn from the predictions, as inputs of the target
    kernel."""
    frame = prepared.frame
    assert isinstance(frame, Frame)
    if frame.whitener is None:
        frame = Frame(frame.units, frame.origin, None)
    return lambda key: (
        frame.view(predictions, redraw(key, predictions, targets)[1], scores=False).points
    )


def _of_looks(
    key: Key,
    prepared: Fitted,
    statistic: KernelResidual,
    featured: Featured,
    predictions: Any,
    targets: Array,
) -> tuple[Array, Array]:
    """Return the mean and the variance of V (see `rare_targets`), from `LOOKS` redrawn sets."""
    means, observed = statistic.means, featured.features.residual
    redrawn = _redrawn(prepared, predictions, targets)

    def first(ys: Array, distribution: Features) -> Array:
        return means.first(jax.tree.map(lambda leaf: leaf[None], distribution), ys[None])[0, 0]

    def sums(key: Key) -> tuple[Array, Array]:
        points = redrawn(key)
        ones = jax.vmap(lambda y: means.gram(y[None], y[None])[0, 0])(points)
        off = squared_norms - jax.vmap(first)(points, observed.distribution)
        return jnp.sum(ones - squared_norms), 2 * jnp.sum(off)  # the second has mean 0

    squared_norms = means.own(observed.distribution)
    values, off = jax.lax.map(sums, jax.random.split(key, LOOKS))
    mean = jnp.mean(values)
    return mean, jnp.mean((values - mean + off) ** 2)


def _of_vectors(
    key: Key, prepared: Fitted, featured: Featured, predictions: Any, targets: Array
) -> Float[Array, "2 n"]:
    """Return `moments_of_rows` from redrawn sets, for random features. As rows are independent,
    fewer looks do for many rows."""
    redrawn = _redrawn(prepared, predictions, targets)

    def sizes(key: Key) -> Array:
        residual = featured.features.residual._replace(ys=redrawn(key))
        features = featured.features._replace(residual=residual)
        data, _ = filled(features, jnp.zeros((n, 0)), -n % rows)
        blocks = jax.lax.map(prepared.pairwise.diagonal, in_blocks(data, rows))
        return jnp.sum(blocks, axis=1).reshape(-1)[:n]

    n, rows = len(targets), min(len(targets), ROWS)
    looks = max(FEWEST_LOOKS, min(LOOKS, MANY // n))
    values = jax.lax.map(sizes, jax.random.split(key, looks))
    return jnp.stack([jnp.mean(values, axis=0), jnp.var(values, axis=0, ddof=1)])


def kernel_residual(pairwise: Pairwise) -> KernelResidual | None:
    """Return the `KernelResidual` of a test over all pairs; None for tests without one."""
    if isinstance(pairwise, Weighted) and isinstance(pairwise.statistic, KernelResidual):
        return pairwise.statistic
    return None


def rounding_of_waves(pairwise: Pairwise, mean_square: Array, n: int) -> Notes:
    """Return the note ``small-residuals`` for random features z of kernel means: the rounding error
    of the mean of n vectors z relative to its scale, (``mean_square`` of |z| / n)^1/2. Empty for
    other statistics."""
    waves = getattr(getattr(pairwise, "map", None), "statistic", None)
    if not isinstance(waves, MeanWaves):
        return {}
    sizes = waves.frequencies.sizes
    mean_square = mean_square.astype(sizes.dtype)
    lost = jnp.finfo(sizes.dtype).eps * jnp.sqrt(n * jnp.sum(sizes**2) / mean_square)
    return {"small-residuals": jnp.where(mean_square > 0, lost, 0)}


def _matrix(kernel: KernelLike) -> Array | None:
    """Return the Gram matrix of the classes, [m, m]; None for the identity."""
    return kernel.matrix if isinstance(kernel, ClassGram) else None
