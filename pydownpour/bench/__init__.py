"""How fast, as ratios: ``python -m pydownpour.bench``.

Every row holds two things that run in turn, A B A B, in one process on one machine: ours, and what
the machine can do without us (two plain sockets, a loop in C, an aiohttp connection that echoes).
Absolute figures move by a factor of two with a machine's neighbours; their ratio moves little. So
a row reports the median of the rounds' ratios, and says *inconclusive* when other processes used
more than a tenth of the machine meanwhile.

    machine.py       what ran: CPU, loops, congestion control
    meter.py         taking turns, medians, other processes' share of the CPU
    scale.py         how much is measured
    rows.py          a row: figures, ratio, goal; the table and the JSON object
    children.py      the other processes of a measurement, seen from this one
    peers.py         the same from inside
    cluster.py       a hand-made coordinator: the product's real shard and session around it
    plain.py         two blocking sockets
    echo.py          an upgraded aiohttp connection, without us
    compiled.py      loops in C

    rows
    stream.py        a large push and a large fetch
    replicas.py      two replicas into one shard
    latency.py       a small push
    tensors.py       many small arrays
    apply.py         an optimizer's update
    codecs.py        a codec's loops, and what a push gains by it
    memory.py        what processes hold over the parameters
    imports.py       ``import pydownpour``
    simulator.py     a message in the simulator, a thousand replicas
    sim_vs_real.py   only by name: what the simulator predicts, and what comes true
    thinking.py      its job
"""
