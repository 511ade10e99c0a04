"""Distances between predictions. A kernel on predictions is a radial kernel of such a distance.

Here the distances that need scores at base points or draws, and have vectors for features; closed
forms for Gaussians are in `jaxcal.kernels.gaussians`, MMD in `jaxcal.kernels.mmd`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from jaxcal import convert, embeddings
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic, second_order_heuristic
from jaxcal.models import Draws, Standardized, draws
from jaxcal.typing import Features, Key, Nodes, Scalar


class NodeScores(NamedTuple):
    """Scores of n predictions at m base points: ``nodes`` [m, d], ``values`` [n, m, d]."""

    nodes: Nodes | None
    values: Float[Array, "n m d"]


class _Euclidean:
    """Distances whose features are vectors."""

    def vectors(self, features: Any) -> Array:
        return features

    def in_order(self, features: Any) -> Array:
        """Features as `separations` takes them: about their mean, for the sake of digits."""
        return centred(self.vectors(features))

    def center(self, features: Any) -> Array | None:
        """The mean of the vectors, which tests take off them, [1, q]."""
        return _mean(features)

    def squared_distances(self, rows: Array, cols: Array) -> Array:
        return points.squared_distances(rows, cols)

    def separations(self, rows: Array, cols: Array) -> Array:
        """Squared distances, 0 exactly where two predictions cannot be told apart."""
        return points.separations(rows, cols)

    def paired(self, rows: Array, cols: Array) -> Array:
        return jnp.sum((rows - cols) ** 2, axis=-1)


def centred(vectors: Array) -> Array:
    """The vectors about their mean: distances stay, and a common offset costs them no digits.

    Entries that are not finite stay in their own rows.
    """
    return vectors - _mean(vectors)


def _mean(vectors: Array) -> Array:
    return jnp.mean(jnp.where(jnp.isfinite(vectors), vectors, 0), axis=0, keepdims=True)


class Fisher(_Euclidean, eqx.Module):
    """Generalized Fisher divergence (GFD), from scores at base points. Needs no constant.

    Blind to the mixing proportions of well-separated modes, as every distance of scores is.
    """

    needs_nodes: bool = eqx.field(default=True, static=True, init=False)

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        assert at_nodes is not None
        return embeddings.fisher(at_nodes.values)


def ground_kernel(kernel: Any) -> Any:
    """A ground kernel as a pytree; None is a Gaussian whose bandwidth is still open."""
    if kernel is None:
        return points.Gaussian()
    if not callable(kernel):
        raise TypeError(
            f"ground: wanted a kernel k(x, y) of two points, such as jaxcal.kernels.Gaussian(), "
            f"got {type(kernel).__name__}"
        )
    # a plain function becomes part of the program, not of the data
    return kernel if isinstance(kernel, (eqx.Module, Partial)) else Partial(kernel)


class KernelFisher(_Euclidean, eqx.Module):
    r"""Kernelized Fisher divergence (KGFD), from scores at base points and a ground kernel.

    :math:`\frac1{m^2} \sum_{kl} (s_p - s_q)(z_k)^\top K(z_k, z_l) (s_p - s_q)(z_l)`: where GFD
    counts every difference of scores, this one smooths it first, and is at most GFD times the
    largest value of K. ``ground``: a kernel of two points, scalar or with matrices [d, d] for
    values (`GradientKernel`, or a function of your own), in the units of the test; a Gaussian by
    default. An open bandwidth follows the second-order heuristic where the predictions are
    Gaussian or can be drawn from, and is the median distance of the base points otherwise.

    Cost O(n m^2 d) on top of the n m scores. Blind, like GFD, to the mixing proportions of
    well-separated modes.
    Source: Glaser et al. (2023), Section 4.2.
    """

    ground: Any = eqx.field(default=None, converter=ground_kernel)
    needs_nodes: bool = eqx.field(default=True, static=True, init=False)

    def fitted(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> "KernelFisher":
        """The same distance with the bandwidth of its ground kernel."""
        if at_nodes is None or at_nodes.nodes is None or not points.needs_bandwidth(self.ground):
            return self
        bandwidth = _ground_bandwidth(key, predictions, at_nodes.nodes)
        return KernelFisher(with_ground_bandwidth(self.ground, bandwidth))

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        if at_nodes is None or at_nodes.nodes is None:
            raise ValueError(
                "KernelFisher needs the base points as well as the scores there: give "
                "Scores.at_nodes and Scores.nodes, or use Fisher(), which needs the scores alone"
            )
        nodes, values = at_nodes.nodes, at_nodes.values
        kernel = self.fitted(key, predictions, at_nodes).ground
        wanted = ((), (nodes.shape[1],) * 2)
        if (found := jax.eval_shape(kernel, nodes[0], nodes[0]).shape) not in wanted:
            raise ValueError(
                f"ground: wanted a kernel with values of shape {wanted[0]} or {wanted[1]}, got "
                f"{found}"
            )
        gram = jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(nodes))(nodes)
        return embeddings.kernel_fisher(values, gram.astype(values.dtype))


class GradientKernel(eqx.Module):
    r"""The matrix-valued kernel :math:`\nabla_x \nabla_y^\top k(x, y)`, [d, d], of a scalar k.

    As the ground kernel of `KernelFisher` it makes :math:`\sqrt{KGFD}` the speed at which
    Langevin flows of p and q, started at the base measure, move apart in MMD with kernel k.
    Source: Glaser et al. (2023), Proposition 4.3.
    """

    kernel: Any = eqx.field(converter=ground_kernel)

    def __call__(self, x: Array, y: Array) -> Float[Array, "d d"]:
        return jax.jacfwd(jax.grad(self.kernel, argnums=0), argnums=1)(x, y)


def with_ground_bandwidth(kernel: Any, bandwidth: Array) -> Any:
    """`jaxcal.kernels.points.with_bandwidth`, inside a `GradientKernel` too."""
    if isinstance(kernel, GradientKernel):
        return GradientKernel(points.with_bandwidth(kernel.kernel, bandwidth))
    return points.with_bandwidth(kernel, bandwidth)


def _ground_bandwidth(key: Key, predictions: Any, nodes: Nodes) -> Scalar:
    try:
        found = second_order_heuristic(key, predictions)
    except (TypeError, NotImplementedError):  # neither moments nor a sampler
        if len(nodes) < 2:
            return jnp.ones((), nodes.dtype)  # no distance to measure, and none to scale
        found, _ = median_heuristic(Vectors(nodes), nodes)
    return found.astype(nodes.dtype)


def check_draws(n_draws: Any) -> None:
    """ValueError unless None or a positive number of draws."""
    if n_draws is not None:
        convert.integer(n_draws, "n_draws")


def check_batch(predictions: Any) -> None:
    """ValueError where one distribution stands for all observations."""
    if getattr(predictions, "batch_shape", None) == ():
        raise ValueError(
            "predictions: this distance wants one distribution an observation, batch shape [n], "
            "got batch shape (): use .expand([n])"
        )


def drawn(key: Key, predictions: Any, n_draws: int | None) -> Float[Array, "n m d"]:
    """Draws from each prediction; ``n_draws=None`` takes all those of `jaxcal.Draws`."""
    held = predictions.predictions if isinstance(predictions, Standardized) else predictions
    if n_draws is None and not isinstance(held, Draws):
        raise TypeError(
            f"n_draws: say how many draws of each prediction to take, since "
            f"{type(held).__name__} does not come with its own"
        )
    check_batch(held)
    samples = draws(key, predictions, held.samples.shape[1] if n_draws is None else n_draws)
    # samplers may draw in the widest type there is, whatever the type of their parameters
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(predictions)]
    floating = [kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)]
    samples = samples.astype(jnp.result_type(*floating) if floating else samples.dtype)
    return samples.reshape(*samples.shape[:2], -1)


class SlicedWasserstein(_Euclidean, eqx.Module):
    """Sliced 2-Wasserstein distance, from ``n_draws`` of each prediction.

    The root mean square, over ``n_projections`` random directions, of the 2-Wasserstein distance
    of the projected draws; in one dimension there is one direction, and the distance is that of
    the draws themselves. ``n_draws=None`` takes all draws of `jaxcal.Draws`. Features have length
    ``n_draws n_projections``: those are the multiplications per pair. Two predictions that agree
    have a positive distance, of the order of n_draws^-1/2, since their draws differ.
    """

    n_draws: int | None = eqx.field(default=50, static=True)
    n_projections: int = eqx.field(default=20, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_draws(self.n_draws)
        if not isinstance(self.n_projections, int) or self.n_projections < 1:
            raise ValueError(
                f"n_projections: wanted a positive number of directions, got {self.n_projections!r}"
            )

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        draw_key, direction_key = jax.random.split(key)
        samples = drawn(draw_key, predictions, self.n_draws)
        d = samples.shape[-1]
        number = self.n_projections if d > 1 else 1
        directions = jax.random.normal(direction_key, (number, d), samples.dtype)
        directions = directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)
        return embeddings.sliced_wasserstein(samples, directions)


def _vectors(value: Any) -> Any:
    values = convert.floats(value, "values")
    return values[:, None] if values.ndim == 1 else values


class Vectors(_Euclidean, eqx.Module):
    """Euclidean distance of vectors that the user gives, one a prediction, shape [n, q].

    Inputs x make a conditional goodness-of-fit test; an embedding of the predictions computed
    elsewhere makes a calibration test.
    """

    values: Float[Array, "n q"] = eqx.field(converter=_vectors)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        return self.values


def gram_block(kernel: Any, distance: Any, rows: Features, cols: Features) -> Array:
    """Kernel matrix of r rows and c columns of predictions, from their features; [r, c].

    One matrix product where the kernel has a radial profile. A kernel without one (a length per
    dimension, a user's own function) is evaluated pair by pair on the feature vectors.
    """
    radial = points.profile(kernel)
    if radial is not None:
        return radial(distance.squared_distances(rows, cols))
    if isinstance(distance, _Euclidean):
        return points.gram(kernel, distance.vectors(rows), distance.vectors(cols))
    raise TypeError(
        f"{type(distance).__name__} is a distance without feature vectors: the kernel on it must "
        f"be radial with one bandwidth, got {kernel}"
    )
