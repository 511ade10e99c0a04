"""Public functions and classes of the library."""

import importlib

PACKAGES = """candidates ckce coverage dce divergences kernels mcmc measures moments
nulls plots sbi skce squared_ce streaming ucme whitening"""
PLACES = ["jaxcal"] + [f"jaxcal.{place}" for place in PACKAGES.split()]


def public():
    """Every public function and class that a user calls, by its first place."""
    seen = {}
    for place in PLACES:
        module = importlib.import_module(place)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and value not in seen.values():
                seen[f"{place}.{name}"] = value
    return seen
