r"""Fit the map of a repair by penalized maximum likelihood, with priors from the evidence.

In the units of each prediction the map is :math:`u \mapsto a + B u`, with
:math:`B^{-1} = e^{-S/2} (I + O) e^{-S/2}`, S diagonal and O symmetric with diagonal 0. The shift a
and S are affine in features of the prediction.

Parameters come in groups (the shift of all predictions, its slope along their centres, ..), each
with a normal prior :math:`N(0, \tau_g^2)`. The :math:`\tau_g` maximize the evidence in a quadratic
approximation of the log likelihood, so that a group without evidence gets a :math:`\tau_g` near 0,
and correct predictions stay unchanged. If the densities have the wrong form, gradients of the log
likelihood vary more than its curvature implies. The log likelihood is then multiplied by curvature
/ variance of gradients; otherwise the map would fit noise.

Source: MacKay (1992), Bayesian interpolation, for the updates of :math:`1 / \tau_g^2`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxcal.entries.landed import located
from jaxcal.entries.moments import Scaling, within
from jaxcal.read import Standardized, Units
from jaxcal.read.scores import each_density
from jaxcal.repairing.move import Move
from jaxcal.typing import Points

FIRST, STEPS = 6, 24  # scoring steps with the initial priors, and all steps
LENGTHS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 4.0)  # candidate lengths of a step
UPDATES = 20  # updates of the priors per step
FASTEST = 2.0  # largest factor by which a prior deviation changes per step
COLDEST = 0.05  # least factor by which the log likelihood is multiplied
LEAST, NARROW, WIDE = 1e-3, 0.05, 1.0  # prior deviations: least, first of trends, largest
NOWHERE = -1e9  # replaces the logarithm of density 0, so that the search turns back
MOST = 10  # columns of claims, and of inputs; more are reduced to principal components
PAIRS = 6  # fewest pairs per parameter
DRAWS = 20  # fewest draws per prediction with which errors may vary with claims
INPUTS, OWN, CLAIMS = "inputs", "its own claims", "claims of all coordinates"


class Frame(NamedTuple):
    """Centre, scale and features of each prediction, in common units (those of `Features.units`).

    ``reliable`` [n]: whether centre and scale are accurate enough to move the prediction.
    ``center`` [n, d]; ``scale`` [n, d, d] and its inverse ``unscale``. ``own``: two features of
    each coordinate, [n, d] each, its standardized centre and log deviation. ``claims`` [n, k]:
    linear combinations of all centres and log deviations. ``inputs`` [n, q].
    """

    reliable: Bool[Array, " n"]
    center: Points
    scale: Float[Array, "n d d"]
    unscale: Float[Array, "n d d"]
    own: tuple[Points, Points]
    claims: Float[Array, "n k"]
    inputs: Float[Array, "n q"]


def too_many(n: int, d: int, q: int, n_samples: int = 0) -> list[str]:
    """Return the names of groups of features to omit: those that would give the map more than n /
    `PAIRS` parameters and, if 0 < ``n_samples`` < `DRAWS`, those of centres and scales."""
    count, left_out = 2 * d + d * (d - 1) // 2, []
    more = {
        INPUTS: 2 * d * min(q, MOST),
        OWN: 4 * d,
        CLAIMS: 2 * d * min(2 * d, MOST) if d > 1 else 0,
    }
    for name, number in more.items():
        vague = name != INPUTS and 0 < n_samples < DRAWS
        if (PAIRS * (count + number) > n or vague) and number:
            left_out.append(name)
        else:
            count += number
    return left_out


class Columns(NamedTuple):
    """Map of q columns to r features: standardize by ``scaling``, multiply by ``mix`` [q, r]."""

    scaling: Scaling
    mix: Float[Array, "q r"]

    @classmethod
    def of(cls, columns: Float[Array, "n q"], most: int | None = None) -> "Columns":
        """Return the map fitted to columns, with at most ``most`` principal components."""
        scaling, q = Scaling.of(columns), columns.shape[1]
        mix = jnp.eye(q, dtype=columns.dtype)
        if most is not None and q > most:
            z = scaling(columns)
            _, vectors = jnp.linalg.eigh(z.T @ z)
            largest = vectors[:, -most:]
            sizes = jnp.std(z @ largest, axis=0)
            mix = largest / jnp.where(sizes > 0, sizes, 1)[None]
        return cls(scaling, mix)

    def unless(self, left_out: bool) -> "Columns":
        """Return the same map, or one whose features are all 0 if ``left_out``."""
        return self._replace(mix=jnp.zeros_like(self.mix)) if left_out else self

    def __call__(self, columns: Float[Array, "n q"]) -> Float[Array, "n r"]:
        return within(self.scaling(columns) @ self.mix)


class Features(eqx.Module):
    """Functions that compute the features of a `Frame`: ``own`` from d centres and from d log
    scales, ``claims`` from all 2 d, ``inputs`` from inputs. ``event``: shape of a target."""

    units: Units
    event: tuple[int, ...] = eqx.field(static=True)
    own: tuple[Columns, Columns]
    claims: Columns
    inputs: Columns

    @classmethod
    def of(
        cls, predictions: Any, targets: Array, inputs: Float[Array, "n q"], n_samples: int = 0
    ) -> "tuple[Features, Frame]":
        """Return `Features` fitted to predictions, targets and inputs, with their `Frame`."""
        units = Units.of(targets.reshape(len(targets), -1))
        geometry = _located(predictions, units, targets.shape)
        center, scale, _ = geometry
        (n, d), q = center.shape, inputs.shape[1]
        left_out = too_many(n, d, q, n_samples)
        parts = center, jnp.log(jnp.linalg.norm(scale, axis=2))
        both = jnp.concatenate(parts, axis=1)
        alone = [Columns.of(columns).unless(OWN in left_out) for columns in parts]
        # with one coordinate, claims of all coordinates are the same as its own
        both = both[:, :0] if d == 1 or CLAIMS in left_out else both
        features = cls(
            units,
            tuple(targets.shape[1:]),
            (alone[0], alone[1]),
            Columns.of(both, MOST),
            Columns.of(inputs, MOST).unless(INPUTS in left_out),
        )
        return features, features._frame(*geometry, inputs)

    def frame(self, predictions: Any, n: int, inputs: Float[Array, "n q"]) -> Frame:
        """Return the `Frame` of n other predictions, with their inputs."""
        return self._frame(*_located(predictions, self.units, (n, *self.event)), inputs)

    def _frame(self, center: Points, scale: Array, reliable: Array, inputs: Array) -> Frame:
        parts = center, jnp.log(jnp.linalg.norm(scale, axis=2))
        both = jnp.concatenate(parts, axis=1)[:, : len(self.claims.mix)]
        return Frame(
            reliable,
            center,
            scale,
            jnp.linalg.inv(scale),
            (self.own[0](parts[0]), self.own[1](parts[1])),
            self.claims(both),
            self.inputs(inputs),
        )


def _located(predictions: Any, units: Units, shape: tuple[int, ...]) -> tuple[Points, Array, Array]:
    d = len(units.center)
    inner = Standardized(predictions, units, shape[1:])
    center, scale, reliable = located(jax.random.key(0), inner, shape[0], d, units.center.dtype)
    eyes = jnp.eye(d, dtype=scale.dtype)[None]
    return (
        jnp.where(reliable[:, None], center, 0),
        jnp.where(reliable[:, None, None], scale, eyes),
        reliable,
    )


class Parameters(NamedTuple):
    """Parameters of the map (see the module): a (``shift``), S (``stretch``), and the entries of O
    above the diagonal (``correlation``). a and S are dicts of a constant, ``common`` [d], and
    slopes along features of a `Frame`: ``claims`` [d, k] and ``inputs`` [d, q] along the features
    of these names, ``center`` [d] along ``own[0]``, and ``scale`` [d] along ``own[1]``."""

    shift: dict[str, Float[Array, "*d k"]]
    stretch: dict[str, Float[Array, "*d k"]]
    correlation: Float[Array, " p"]

    @classmethod
    def zeros(cls, frame: Frame) -> "Parameters":
        """Return the parameters of the identity map."""
        d, dtype = frame.center.shape[1], frame.center.dtype
        k, q = frame.claims.shape[1], frame.inputs.shape[1]

        def trends() -> dict[str, Array]:
            each = {name: jnp.zeros(d, dtype) for name in ("common", "center", "scale")}
            more = {"claims": jnp.zeros((d, k), dtype), "inputs": jnp.zeros((d, q), dtype)}
            return each | more

        return cls(trends(), trends(), jnp.zeros(d * (d - 1) // 2, dtype))

    def moves(self, frame: Frame) -> Move:
        """Return the moves of n predictions, in common units."""
        shift, inverse, log_size = self.local(frame)
        inverse = frame.scale @ inverse @ frame.unscale
        return Move(
            frame.center,
            jnp.linalg.inv(inverse),
            inverse,
            jnp.einsum("nij,nj->ni", frame.scale, shift),
            log_size,
        )

    def local(self, frame: Frame) -> tuple[Points, Float[Array, "n d d"], Float[Array, " n"]]:
        """Return the moves :math:`u = a + B u_0` of points u_0 in the units of each prediction: a
        [n, d], B^-1 [n, d, d] and the log determinants of B [n]."""
        shift, stretch = (_along(part, frame) for part in (self.shift, self.stretch))
        d = shift.shape[1]
        i, j = np.triu_indices(d, 1)
        mixing = jnp.zeros((d, d), shift.dtype).at[i, j].set(self.correlation)
        mixing = jnp.eye(d, dtype=shift.dtype) + mixing + mixing.T
        half = jnp.exp(-stretch / 2)
        # an indefinite matrix has no root: its NaN makes the search turn back
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(mixing))))
        inverse = half[:, :, None] * mixing[None] * half[:, None]
        reliable = frame.reliable[:, None]
        return (
            jnp.where(reliable, shift, 0),
            jnp.where(reliable[:, :, None], inverse, jnp.eye(d, dtype=shift.dtype)[None]),
            jnp.where(frame.reliable, jnp.sum(stretch, axis=1) - log_det, 0),
        )


def _along(part: dict[str, Array], frame: Frame) -> Points:
    common, center, scale = (part[name][None] for name in ("common", "center", "scale"))
    alone = common + center * frame.own[0] + scale * frame.own[1]
    return alone + frame.claims @ part["claims"].T + frame.inputs @ part["inputs"].T


def log_likelihoods(
    parameters: Parameters, frame: Frame, predictions: Standardized, ys: Points
) -> Float[Array, " n"]:
    """Return log densities of moved predictions at targets [n, d] in common units. Additive
    constants are those of `densities_at`."""
    shift, inverse, log_size = parameters.local(frame)
    us = jnp.einsum("nij,nj->ni", frame.unscale, ys - frame.center)
    back = jnp.einsum("nij,nj->ni", inverse, us - shift)
    originals = frame.center + jnp.einsum("nij,nj->ni", frame.scale, back)
    return densities_at(predictions, originals) - log_size


def densities_at(predictions: Standardized, ys: Points) -> Float[Array, " n"]:
    """Return log densities, in the units of the data, at targets [n, d] in common units."""
    originals = predictions.units.original(ys).reshape(-1, *predictions.event)
    return each_density(predictions.predictions, lambda log_density, y: log_density(y), originals)


class Fitted(NamedTuple):
    """Fitted parameters, the prior deviation of each group, [] each, and standard errors."""

    parameters: Parameters
    deviations: Parameters
    errors: Parameters


def fit(frame: Frame, predictions: Standardized, ys: Points, used: Bool[Array, " n"]) -> Fitted:
    """Return the map of largest posterior density, from the observations marked by ``used`` [n].

    The method is Fisher scoring with line search; the information is the sum over observations of
    outer products of gradients. In the first `FIRST` steps priors are wide for ``common`` and
    narrow for all slopes. Later priors maximize the evidence, but change by a factor of at most
    `FASTEST` per step. A map that is less likely than the identity is replaced by the identity.

    Cost: each of `STEPS` steps takes k + 10 log densities per observation for k parameters.
    """
    start = Parameters.zeros(frame)
    flat, unravel = ravel_pytree(start)
    paths, tree = jax.tree_util.tree_flatten_with_path(start)
    leaves = [leaf for _, leaf in paths]
    group = np.repeat(np.arange(len(leaves)), [leaf.size for leaf in leaves])
    sizes = jnp.asarray([leaf.size for leaf in leaves], flat.dtype)
    eye = jnp.eye(len(flat), dtype=flat.dtype)
    is_common = np.asarray(["common" in str(path[-1]) for path, _ in paths])
    common = np.flatnonzero(is_common[group])

    def logs(theta: Array) -> Array:
        values = log_likelihoods(unravel(theta), frame, predictions, ys)
        return jnp.where(used, jnp.where(values > NOWHERE, values, NOWHERE), 0)

    def information(theta: Array) -> tuple[Array, Array]:
        slopes = jax.jacfwd(logs)(theta)
        return jnp.sum(slopes, axis=0), slopes.T @ slopes

    def temper(theta: Array, amount: Array) -> Array:
        """Return curvature / variance of gradients, in [COLDEST, 1]: 1 for correct densities."""

        def curvature(e: Array) -> Array:
            along = lambda t: jax.jvp(lambda s: jnp.sum(logs(s)), (t,), (e,))[1]  # noqa: E731
            return -jax.jvp(along, (theta,), (e,))[1]

        shares = jax.lax.map(curvature, eye[common]) / jnp.diagonal(amount)[common]
        return jnp.clip(jnp.nan_to_num(jnp.mean(shares)), COLDEST, 1)

    def step(carry: tuple[Array, Array, Array], number: Array) -> tuple[Any, None]:
        theta, deviations, _ = carry
        slope, amount = information(theta)
        t = temper(theta, amount)
        slope, amount = t * slope, t**2 * amount
        asked = amount @ theta + slope
        better = _deviations(amount, asked, group, sizes, deviations)
        last = number == STEPS  # computes the information only
        better = jnp.clip(better, deviations / FASTEST, deviations * FASTEST)
        deviations = jnp.where((number < FIRST) | last, deviations, better)
        each = deviations[group]
        scaled = each[:, None] * amount * each[None] + eye
        along = each * jnp.linalg.solve(scaled, each * asked) - theta

        def height(theta: Array) -> Array:
            value = t * jnp.sum(logs(theta)) - jnp.sum((theta / each) ** 2) / 2
            return jnp.where(jnp.isfinite(value), value, -jnp.inf)

        candidates = theta[None] + jnp.asarray(LENGTHS, theta.dtype)[:, None] * along[None]
        best = jnp.argmax(jax.lax.map(height, candidates))
        return (jnp.where(last, theta, candidates[best]), deviations, amount), None

    first = flat, jnp.asarray(np.where(is_common, WIDE, NARROW), flat.dtype), eye
    (theta, deviations, amount), _ = jax.lax.scan(step, first, jnp.arange(STEPS + 1))
    lost = jnp.sum(logs(theta)) < jnp.sum(logs(flat))  # the identity is likelier: the search failed
    theta = jnp.where(lost, flat, theta)
    each = deviations[group]
    inverse = jnp.linalg.inv(each[:, None] * amount * each[None] + eye)
    errors = each * jnp.sqrt(jnp.diagonal(inverse))
    return Fitted(unravel(theta), jax.tree.unflatten(tree, list(deviations)), unravel(errors))


def _deviations(
    information: Array, asked: Array, group: np.ndarray, sizes: Array, first: Array
) -> Array:
    """Return the prior deviations of the groups that maximize the evidence, by iteration from
    ``first``. The log likelihood of theta is ``asked . theta - theta' information theta / 2``."""

    def update(_: Array, deviations: Array) -> Array:
        each = deviations[group]
        scaled = each[:, None] * information * each[None]
        inverse = jnp.linalg.inv(scaled + jnp.eye(len(each), dtype=each.dtype))
        mean = each * (inverse @ (each * asked))
        add = lambda values: jax.ops.segment_sum(values, group, len(sizes))  # noqa: E731
        well = add(jnp.sum(inverse * scaled, axis=0))
        size = add(mean**2) / jnp.where(well > 0, well, jnp.inf)
        return jnp.clip(jnp.sqrt(size), LEAST, WIDE)

    return jax.lax.fori_loop(0, UPDATES, update, first)
