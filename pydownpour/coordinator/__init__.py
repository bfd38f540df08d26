"""The coordinator: membership, leased work, evaluations and the end of a job.

It is never on the gradient path. Decisions are pure classes that are told ``now`` and answer with
a reason in words: ``ledger`` (who computes what), ``detector`` (who is alive), ``membership`` (ids
and incarnations), ``places`` (of the shards), ``progress``, ``report``, and ``job_state`` which
is all of them together. ``service`` awaits and obeys: it moves bytes, evaluates, and writes the run
folder through ``storage``.
"""
