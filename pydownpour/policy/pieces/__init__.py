"""What policies are composed of; ``policy/__init__.py`` has the map.

A replica's half is a sentence of a schedule, a payload and a gate; a shard's half is one way to
combine, with a scale::

    Stepping(schedule.Every(push=2, fetch=2), payload.Accrued(local_rate=0.0), gate.RunFree())
    combine.Each(scale.AS_IT_IS)

Nothing is imported here: ``policy/base.py`` stands between scale and payload, which are below it,
and the others.
"""
