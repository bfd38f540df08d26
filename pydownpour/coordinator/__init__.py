"""The coordinator: membership, leased work, evaluations and the end of a job.

It is never on the gradient path. Decisions are pure classes that are told ``now`` and answer with
a reason in words; the rest awaits and obeys.

    decisions
    job_state.py    all of them together: JobState
    policies.py     the job's policy: which version, since when, and what comes next
    admission.py    who is let in, and the answers that let a role start
    membership.py   replicas: ids, incarnations, what each counted
    groups.py       which replicas reduce among themselves
    places.py       of the shards: which process owns which elements; the shard map
    ledger.py       who computes what: each unit is recorded once
    units.py        the values the ledger is made of
    detector.py     who is silent, and whether to believe it
    silence.py      whether to wait for a shard, and for whom that wait is
    progress.py     loss curve, evaluations, samples a second
    tally.py        sums over incarnations
    view.py         what GET /v1/status shows
    waits.py        who waited for whom, over all shards
    report.py       what the run did, and whose counts agree
    salvage.py      what is lost of the parameters when a job fails
    declared.py     what all this needs of a job

    services
    service.py      the process: listens, lets the state decide, sees the job to its end
    initial.py      initial parameters on their way to the shards
    shards.py       parameters and last counts, asked of shards
    evaluation.py   calls the user's function
    recorder.py     events to the run folder, through ``storage``
"""
