"""Parts about small programs: many models at once, and the first p-value of a process."""

import os
import time

from bench_tools import (
    DRAWS,
    NODES,
    D,
    best,
    data,
    gaussian,
    jaxcal_test,
    obvious_test,
    product_rate,
)


def ready(x, y):
    """The statistic of KCCSD with its bandwidths, and the features of each data set."""
    import jax.numpy as jnp

    from jaxcal.divergences import Fisher
    from jaxcal.kernels import Gaussian
    from jaxcal.statistics.stein import Stein, SteinFeatures
    from jaxcal.statistics.weighted import Weighted, WeightedFeatures

    stein = Stein(Gaussian(jnp.float32(3)), dimension=D)
    pairwise = Weighted(Gaussian(jnp.float32(2)), Fisher(), stein)
    described = jnp.tile(x - y, (1, 1, NODES)) / NODES**0.5
    return pairwise, WeightedFeatures(described, SteinFeatures(y, x - y))


def part_batch(quick, n, batch):
    """Many models at once by vmap: the whole test, and the engine's pass alone."""
    import jax

    from jaxcal import nulls
    from jaxcal.fit import testing

    x, y = data(n, (batch,))
    keys = jax.random.split(jax.random.key(0), batch)
    whole = best(jax.jit(jax.vmap(jaxcal_test)), keys, x, y)
    pairwise, features = ready(x, y)
    null = nulls.Wild(DRAWS)
    one = jax.vmap(lambda key, each: testing.apply(null, key, pairwise, each)[0].p_value)
    engine = best(jax.jit(one), keys, features)
    flops, rate = batch * n**2 * DRAWS, product_rate(quick)
    return {
        "share of product rate": flops / whole / rate,
        "engine's share": flops / engine / rate,
    }


def part_ingredients(quick, n, batch):
    """What a data set costs on one core, by ingredients alone and left out: processor time in units
    of n^2 draws multiplications at the product's rate, which the product of a whole tile needs."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # waiting threads would count
    import jax
    import jax.numpy as jnp

    from jaxcal import Unnormalized, kccsd_test, nulls
    from jaxcal.kernels import Gaussian
    from jaxcal.numerics import independent_signs

    x, y = data(n, (batch,))
    keys = jax.random.split(jax.random.key(0), batch)
    rate = product_rate(quick, processor=True) / 2  # multiplications a processor second
    ones = jnp.ones((1, n))
    signs = independent_signs(jax.random.key(1), n, DRAWS, jnp.float32)
    pairwise, features = ready(x, y)
    bandwidths = {"prediction_kernel": Gaussian(2.0), "target_kernel": Gaussian(3.0)}

    def test(null, **options):
        def one(key, x, y):
            return kccsd_test(key, Unnormalized(gaussian, x), y, null=null, **options).p_value

        return jax.vmap(one), keys, x, y

    def each(function, *args):
        return lambda *args: jax.lax.map(lambda one: function(*one), args), *args

    def entries(features):
        return ones @ pairwise.block(features, features)[0]

    blocks = jax.random.normal(jax.random.key(2), (batch, n, n), jnp.float32)
    programs = {
        "whole, Wild": test(nulls.Wild(DRAWS)),
        "whole, Wild of 7 draws": test(nulls.Wild(7)),
        "whole, HadamardWild": test(nulls.HadamardWild(DRAWS)),
        "bandwidths given, Wild": test(nulls.Wild(DRAWS), **bandwidths),
        "bandwidths given, Wild of 7 draws": test(nulls.Wild(7), **bandwidths),
        "bandwidths given, HadamardWild": test(nulls.HadamardWild(DRAWS), **bandwidths),
        "product and forms alone": each(lambda h: ones @ (signs * (h @ signs)), blocks),
        "entries of H alone": each(entries, features),
        "signs alone": each(
            lambda key: jnp.ones((8, n)) @ independent_signs(key, n, DRAWS, jnp.float32), keys
        ),
    }
    if quick:  # the others are these with other numbers of draws or other nulls
        kept = ("whole, Wild of 7 draws", "bandwidths given, HadamardWild")
        programs = {k: v for k, v in programs.items() if k in kept or k.endswith("alone")}
    unit = batch * n**2 * DRAWS / rate
    units = {
        name: best(jax.jit(function), *args, processor=True) / unit
        for name, (function, *args) in programs.items()
    }

    def price(function):
        """Multiplications in the time of one entry of ``function``, of an array in cache."""
        many = jax.jit(lambda h: jax.lax.fori_loop(0, 400, lambda _, h: function(h), h))
        return best(many, blocks[0], processor=True) * rate / (400 * n**2)

    return units | {
        "multiplications an exponential": price(lambda h: jnp.exp(-h)),
        "multiplications an addition": price(lambda h: h + 1),
    }


def part_shared_batch(quick, n, batch):
    """The same models on as many devices as cores, each walking its share."""
    import jax

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    mesh = jax.sharding.Mesh(jax.devices(), ("models",))
    batch = -(-batch // mesh.size) * mesh.size
    models = jax.sharding.PartitionSpec("models")
    x, y = data(n, (batch,))
    keys = jax.random.split(jax.random.key(0), batch)
    placed = jax.device_put((keys, x, y), jax.sharding.NamedSharding(mesh, models))
    shared = jax.shard_map(
        jax.vmap(jaxcal_test), mesh=mesh, in_specs=models, out_specs=models, check_vma=False
    )
    seconds = best(jax.jit(shared), *placed)
    return {"share of product rate": batch * n**2 * DRAWS / seconds / product_rate(quick)}


def part_first(quick, obvious):
    """The first p-value of a fresh process at n = 256, and where its processor time goes."""
    start = time.process_time()
    import jax

    jax_there = time.process_time()
    if not obvious:
        import jaxcal
        from jaxcal.fit import testing
        from jaxcal.fit.options import stein_specification

    ready = time.process_time()
    x, y = jax.block_until_ready(data(256))
    key = jax.random.key(0)
    begin = time.process_time()
    jax.block_until_ready((jax.jit(obvious_test) if obvious else jaxcal_test)(key, x, y))
    calls = {"first call, processor s": time.process_time() - begin}
    if obvious:
        return calls
    jax.clear_caches()
    setup = stein_specification(y)
    null = jaxcal.nulls.Wild(DRAWS)
    predictions = jaxcal.Unnormalized(gaussian, x)
    t0 = time.process_time()
    traced = testing.unjudged.alone.trace(
        key, predictions, y, setup, null, 0.05, test="KCCSD test", tile=512, mesh=None
    )
    t1 = time.process_time()
    lowered = traced.lower()
    t2 = time.process_time()
    compiled = lowered.compile()
    t3 = time.process_time()
    jax.block_until_ready(compiled(key, predictions, y, setup, null, 0.05))
    t4 = time.process_time()
    return {
        "import jax, processor s": jax_there - start,
        "import jaxcal, processor s": ready - jax_there,
        **calls,
        "trace, processor s": t1 - t0,
        "lower, processor s": t2 - t1,
        "compile, processor s": t3 - t2,
        "run, processor s": t4 - t3,
    }


def part_light(quick, n):
    """First and second calls by themselves, and as parts of other programs are compiled."""
    import jax
    import jax.numpy as jnp

    import jaxcal
    from jaxcal import engine, sbi

    x, y = jax.block_until_ready(data(n))
    predictions = jaxcal.Unnormalized(gaussian, x)
    calls = {
        "kccsd_test": lambda key: jaxcal.kccsd_test(key, predictions, y),
        "calibration_test": lambda key: jaxcal.calibration_test(key, predictions, y),
        "repair": lambda key: jaxcal.repair(key, predictions, y),
        "check_posterior": lambda key: sbi.check_posterior(key, gaussian, y, x),
    }
    outside, values = engine.OUTSIDE, {}
    for name, call in [*calls.items()][: 1 if quick else None]:
        for how, state in (("", outside), (" with emitters", None)):
            engine.OUTSIDE = state
            jax.clear_caches()
            begin = time.process_time()
            jax.block_until_ready(jax.tree.leaves(call(jnp.uint32(0))))
            values[f"{name}{how}, first call, processor s"] = time.process_time() - begin
            values[f"{name}{how}, again, processor s"] = best(
                lambda call=call: jax.tree.leaves(call(jnp.uint32(0))), processor=True
            )
    engine.OUTSIDE = outside
    return values
