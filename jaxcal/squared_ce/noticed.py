"""What the pipeline noticed about its input."""

import equinox as eqx


class Data(eqx.Module):
    """What the pipeline noticed about its input: counts, and classes by number."""

    tuning: int
    test: int
    folds: int
    problems: int
    saturated: int  # observations with a probability of exactly 0 or 1
    unseen: list[int]  # classes without any label
    incomplete_folds: list[int]  # whose training rows lack a class that others have
    identical: bool  # all inputs are the same
    confident: bool = False  # all inputs of a scalar notion are .8 or more
