"""The session a training loop uses: background push and fetch, leased work, exact settlement.

Two threads, loosely coupled, as in the paper's client: the user's code computes in its own; the
``session`` lives on an event loop of its own and pushes, fetches and reports in the background.

    in the user's thread
    replica.py       what the user's function gets: parameters, work, step
    guard.py         one call at a time, awaited, not from a forked child
    trainer.py       what each of its calls does, step by step; asks the policy
    switching.py     one version of the policy, and how a replica goes over to the next
    accrual.py       gradients that no push carries yet
    encoded.py       a push as it travels: gathered, checked, cast and checksummed once
    waited.py        how long it waited, by what for
    natural_gradient.py  gradients of layers, preconditioned by their rows; pure: a loop calls it
    memory.py        every copy of the parameters, with its reason
    local_copy.py    the parameters the user reads
    parameters.py    the mapping they are shown as

    portal.py        how the two threads reach each other

    on the session's loop
    session.py       puts together and owns what follows
    standing.py      how it all stands, and where everything waits
    coordination.py  joining, leases, completions, heartbeats, leaving
    work.py          leased units and their completion
    outbox.py        pushes until they are answered
    fetcher.py       parameters into the staging buffer
    pushes.py        one push, and its records at each shard
    link.py          one shard: connect, send, settle, reconnect, resend
    transport.py     one connection: an upgraded stream, or POST and GET
    pieces.py        how much one POST carries

    where the policy has replicas add up gradients among themselves (FireCaffe)
    reduction/plan.py       who sends to whom: a member's place in its group; pure
    reduction/round.py      one round at one member: what has come, what is whole; pure
    reduction/gradient.py   a member's own gradient, until every fragment has it; pure
    reduction/reducer.py    a replica that is a member of one group after the other
    reduction/member.py     its life in one group: round after round
    reduction/peers.py      the two ends of a connection between members
    reduction/listening.py  where a replica listens for others

    membership.py    from joining to leaving: opens and closes all of it
    run.py           join, run a job's function, leave
    joining.py       the same for a loop that already exists
    failure.py       the user's code raised: whose line, which unit
"""
