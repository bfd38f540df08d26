"""How fast, as ratios: ``python -m pydownpour.bench``.

Every row holds two things that run in turn, A B A B, in one process on one machine: ours, and what
the machine can do without us (two plain sockets, a loop in C, an aiohttp connection that echoes).
Absolute figures move by a factor of two with a machine's neighbours; their ratio moves little. So
a row reports the median of the rounds' ratios, and says *inconclusive* when other processes used
more than a tenth of the machine meanwhile.

    machine    what ran: CPU, loops, congestion control
    meter      taking turns, medians, other processes' share of the CPU
    rows       a row: figures, ratio, goal; the table and the JSON object
    children   the other processes of a measurement, seen from this one
    peers      the same from inside
    plain      two blocking sockets
    echo       an upgraded aiohttp connection, without us
    cluster    a hand-made coordinator: the product's real shard and session around it
    stream, replicas, apply, latency, tensors, memory, imports    the rows
    sim_vs_real, thinking    only by name: what the simulator predicts, and what comes true
"""
