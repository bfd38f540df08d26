"""A job's world in one process: virtual time, an in-memory network, seeded faults.

The services are not told. They run the unchanged aiohttp client and server on an event loop whose
time is virtual and whose sockets lead to each other, so one seed gives one run, bit for bit.

    api.py                 ``dp.simulate``
    report.py              what a simulation tells on top of the job's report
    trace.py               what happened, in order, and its running hash
    machines/host.py       a machine: its address, its link, its power, its disk
    machines/process.py    a simulated process: crash, pause, restart, its clock
    loop/loop.py           an asyncio event loop with virtual time
    loop/handles.py        its callbacks and timers; each belongs to a process
    network/network.py     connections between hosts, and what may go wrong between them
    network/transport.py   one end of a connection, with real flow control
    network/listener.py    a listening port
    disk/disk.py           files that forget what was not synced
    compute/cost.py        what a step costs in virtual time
    compute/handoff.py     a plain function's thread, which runs only while the loop waits for it
    faults/plans.py        fault plans as data
    faults/scene.py        what a fault acts on
    faults/kinds.py        what can break
    faults/storm.py        a plan at work in one world
    faults/hostile.py      a peer that has the token and plays others
    checks/base.py         what a check is, and what it sees
    checks/table.py        what must hold, and who looks when
    checks/roles.py        of shards and replicas: nothing goes back, nothing outgrows its bound
    checks/work.py         of the job: pushes, units, samples, errors, its end
    checks/clocks.py       of a slack: what a copy must hold, who is too far ahead
    checks/rounds.py       of rounds: whole, in order, waited for; full
    checks/policies.py     of a changed policy: everybody goes over, nobody back
    checks/waits.py        of who waits for whom: it is so, and never for the dead
    checks/files.py        of what the coordinator leaves on its disk
    checks/oracle.py       a job whose parameters count every push
    checks/samples.py      a job whose parameters count every sample
    world/settings.py      what a world is run with
    world/processes.py     starts, crashes, pauses and restarts processes
    world/cluster.py       a job's processes, and what may be done to them
    world/world.py         the whole: a cluster, faults and checks, run to the report
    world/swarm.py         one seed, one small world
"""
