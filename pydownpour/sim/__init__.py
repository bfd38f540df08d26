"""A job's world in one process: virtual time, an in-memory network, seeded faults.

The services are not told. They run the unchanged aiohttp client and server on an event loop whose
time is virtual and whose sockets lead to each other, so one seed gives one run, bit for bit.

    loop.py       an asyncio event loop with virtual time; callbacks belong to processes
    actor.py      a simulated process: crash, pause, restart, its clock
    hosts.py      a machine: its address, its link, what listens on it
    network.py    connections between hosts, and what may go wrong between them
    transport.py  one end of a connection, with real flow control
    trace.py      what happened, in order, and its running hash
    disk.py       files that forget what was not synced
    faults.py     what can break
    plans.py      fault plans as data
    storm.py      a plan at work in one world
    checks.py     what must hold after every event and at the end
    world.py      builds a job's world and runs it to its report
"""
