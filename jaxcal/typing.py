"""Define types that all modules share: array shapes and the protocols of arguments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, PyTree
from jaxtyping import Key as _Key

Scalar: TypeAlias = Float[Array, ""]
Vector: TypeAlias = Float[Array, " n"]
Point: TypeAlias = Float[Array, " d"]
Points: TypeAlias = Float[Array, "n d"]
Nodes: TypeAlias = Float[Array, "m d"]  # points at which scores of predictions are compared
Key: TypeAlias = _Key[Array, ""]
Keys: TypeAlias = _Key[Array, " n"]
KeyLike: TypeAlias = Array | np.ndarray | np.integer | int  # as read by `convert.key`
Features: TypeAlias = PyTree[Array]  # every leaf has leading axis n, one entry per observation
Contents: TypeAlias = dict[str, Any]  # contents of results by name, as `to_dict` returns them
Precondition: TypeAlias = Literal["isotropic", "diagonal", "full"] | None


@runtime_checkable
class PointKernel(Protocol):
    """A positive definite kernel of two single points."""

    def __call__(self, x: Array, y: Array, /) -> Array: ...


@runtime_checkable
class HasScores(Protocol):
    """A batch of n predictions; row i of ``scores(ys)`` is the score of prediction i at ys[i]."""

    def scores(self, ys: Array, /) -> Array: ...


@runtime_checkable
class Pairwise(Protocol):
    """A symmetric function h of two observations, evaluated on blocks of pairs.

    Features are computed once; the engine only slices them. ``block`` takes the features of r
    rows and of s columns and returns ``[channels, r, s]``; h is the sum over channels. ``diagonal``
    returns h of every observation with itself, ``[channels, n]``.
    """

    @property
    def channels(self) -> int: ...

    def block(self, rows: Features, cols: Features, /) -> Float[Array, "c r s"]: ...

    def diagonal(self, features: Features, /) -> Float[Array, "c n"]: ...


@runtime_checkable
class OfVectors(Protocol):
    """A statistic h_ij = <z_i, z_j>, summed over channels; ``vectors``: z [channels, p, n]."""

    @property
    def channels(self) -> int: ...

    def vectors(self, features: Features, /) -> Float[Array, "c p n"]: ...


@runtime_checkable
class Divergence(Protocol):
    """A squared distance between predictions, computed from features of each prediction.

    ``features`` takes predictions and units as a `jaxcal.read.Standardized`, and the predictions'
    `NodeScores`, or None if ``needs_nodes`` is False. ``squared_distances`` takes features of r
    and of c predictions, and returns [r, c]; ``paired`` compares rows of equal index: [r]."""

    @property
    def needs_nodes(self) -> bool: ...

    def features(self, key: Key, predictions: Any, at_nodes: Any, /) -> Features: ...

    def squared_distances(self, rows: Features, cols: Features, /) -> Float[Array, "r c"]: ...

    def paired(self, rows: Features, cols: Features, /) -> Float[Array, " r"]: ...


if TYPE_CHECKING:  # argument types for users; at run time `checks` validates with messages
    from jax.typing import DTypeLike
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    LogDensity: TypeAlias = Callable[[Any, Array], Array]

    class HasArray(Protocol):
        """Arrays of other libraries and columns of tables, which NumPy can read."""

        def __array__(self, dtype: Any = None, /) -> Any: ...

    class Distribution(Protocol):
        """A batch of distributions with densities, such as those of numpyro."""

        @property
        def batch_shape(self) -> tuple[int, ...]: ...

        @property
        def event_shape(self) -> tuple[int, ...]: ...

        @property
        def log_prob(self) -> Callable[..., Any]: ...

        @property
        def sample(self) -> Callable[..., Any]: ...

    class HasLogDensity(Protocol):
        """Predictions with log densities up to a constant, such as `jaxcal.Unnormalized`."""

        @property
        def log_density(self) -> Callable[..., Any]: ...

        @property
        def params(self) -> Any: ...

    class HasSamples(Protocol):
        """Draws from each prediction, [n, m, ..], such as `jaxcal.Draws`."""

        @property
        def samples(self) -> Any: ...

    class HasScoresAtTargets(Protocol):
        """Scores computed elsewhere, such as `jaxcal.Scores`."""

        @property
        def at_targets(self) -> Any: ...

    class InUnits(Protocol):
        """Predictions in the units of a test."""

        @property
        def predictions(self) -> Any: ...

        @property
        def units(self) -> Any: ...

    ArrayLike: TypeAlias = Array | np.ndarray | np.generic | float | Sequence[Any] | HasArray
    Predictions: TypeAlias = (
        HasScores | Distribution | HasLogDensity | HasSamples | HasScoresAtTargets
    )
    PredictionsLike: TypeAlias = Predictions | InUnits | ArrayLike
    KernelLike: TypeAlias = PointKernel | Callable[..., Array]
    DivergenceLike: TypeAlias = Divergence
    BaseMeasure: TypeAlias = Distribution | ArrayLike

    class HasLogProb(Protocol):
        """Log density of a parameter given an observation, such as a posterior of sbi."""

        @property
        def log_prob(self) -> Callable[..., Any]: ...

    class HasScored(Protocol):
        """Scores of posteriors at (parameter, observation): `jaxcal.sbi.TorchPosterior`."""

        @property
        def scored(self) -> Callable[..., HasScoresAtTargets]: ...

    class Splitter(Protocol):
        """Splits of rows into training and validation, such as those of scikit-learn."""

        @property
        def split(self) -> Callable[..., Iterable[Any]]: ...

    Folds: TypeAlias = int | Splitter | Iterable[tuple[ArrayLike, ArrayLike]]
    ArrayFunction: TypeAlias = Callable[..., Array]
    Models: TypeAlias = Mapping[str, PredictionsLike] | Sequence[PredictionsLike] | ArrayLike
    Names: TypeAlias = Sequence[str]
    Observations: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
    PosteriorLike: TypeAlias = Callable[..., Any] | HasLogProb | HasScored | HasScoresAtTargets
    PriorLike: TypeAlias = Distribution | HasLogProb | Callable[..., Any] | ArrayLike
else:
    HasArray = Distribution = HasLogDensity = HasSamples = HasScoresAtTargets = Any
    ArrayLike = Predictions = PredictionsLike = KernelLike = DivergenceLike = BaseMeasure = Any
    HasLogProb = HasScored = Splitter = Folds = Models = Observations = Any
    PosteriorLike = PriorLike = ArrayFunction = Names = Any
    DTypeLike = LogDensity = Axes = Figure = Any
