"""Whether a policy can work, said where its user wrote it; and back from its wire form.

Shards and replicas build a policy from its name and its settings in processes of their own, so
what they could not build, or could not obey, is refused before there is any.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from pydownpour import _core, limits
from pydownpour.codecs import Codec
from pydownpour.errors import ConfigError
from pydownpour.optimizers import Part
from pydownpour.policy.base import (
    Accumulate,
    Actions,
    Apply,
    ClusterView,
    NotYet,
    Policy,
    PushInfo,
    Refuse,
    ReplicaRule,
    ShardRule,
    Wait,
)
from pydownpour.policy.pieces.payload import LANDS, PAYLOADS
from pydownpour.policy.table import POLICIES

T = TypeVar("T")
UsersPolicies: TypeAlias = Callable[[], Sequence[type[Policy]]]
"""Gives the classes of policies that the job declares."""

POWER_MAX: Final = 8.0
"""Of a staleness: the core's own bound."""


GIVE_IT: Final = (
    "A class of the job's own has to be given: pydownpour shard --job FILE, dp.join(policy=CLASS)"
)


def from_wire(settings: Mapping[str, object], users: UsersPolicies | None = None) -> Policy:
    """The policy that ``Policy.to_wire`` described.

    Args:
        settings: Its wire form.
        users: Gives the classes that the job declares; asked if it is none of ours.

    Raises:
        ConfigError: an unknown name or setting.
    """
    values = dict(settings)
    name = str(values.pop("name", None))
    own = [one for one in users() if not is_ours(one.name)] if users and not is_ours(name) else []
    kind = POLICIES.get(name) or next((one for one in own if one.name == name), None)
    if kind is None and own:
        raise ConfigError(
            f"the policy is {name!r}, and known here are {', '.join(sorted(POLICIES))} and "
            f"{', '.join(one.name for one in own)}: it is of another job file, or of another "
            "version of it"
        )
    if kind is None:
        raise ConfigError(
            f"unknown policy {name!r}; known are {', '.join(sorted(POLICIES))}. {GIVE_IT}"
        )
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := values.keys() - known:
        raise ConfigError(f"policy {name}: unknown settings {', '.join(sorted(unknown))}")
    return kind(**values)


def check_together(parts: Sequence[tuple[str, dict[str, float]]], policy: Policy) -> None:
    """Whether a job's optimizer, by its parts, gives a policy what it goes by; () if it has none.

    Raises:
        ConfigError: it does not, and what would.
    """
    if policy.outer() is not None and parts and _core.Optimizer(parts).history:
        raise ConfigError(
            f"policy {policy.name}: replicas step by themselves with this job's optimizer, and "
            f"its {parts[0][0]} mends stale gradients: there are none; leave it out"
        )
    if policy.needs_deviation and not _core.Optimizer(parts).tells:
        raise ConfigError(
            f"policy {policy.name} goes by how much gradients differ, and this job's optimizer "
            f"({', '.join(name for name, _ in parts)}) does not tell: put dp.FASGD() before the "
            "rule, dp.chain(dp.FASGD(), dp.SGD(lr=...)), or give the policy a fixed deviation"
        )


def check_codec(codec: Codec | None, policy: Policy) -> None:
    """Whether a policy may follow on others whose job encodes gradients so.

    Raises:
        ConfigError: it brings another codec, and what travels is settled when a job begins.
    """
    brought = policy.codec()
    if brought is not None and brought != codec:
        raise ConfigError(
            f"policy {policy.name} brings {brought.describe()}, and gradients of this job travel "
            f"{'as they are' if codec is None else f'by {codec.describe()}'}: that does not change "
            "while it runs"
        )


def check_known(names: Sequence[str], given: Sequence[type[Policy]]) -> None:
    """Whether each of a job's own policies is among the classes that this process was given.

    Raises:
        ConfigError: names one that is not.
    """
    known = {kind.name for kind in given}
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"the job has a policy {missing[0]!r} of its own. {GIVE_IT}")


def is_ours(name: str) -> bool:
    """Whether every process can build a policy of this name by itself."""
    return name in POLICIES


def check(policy: Policy) -> None:
    """Build it from its wire form, and both of its halves, and ask each what it will be asked.

    Raises:
        ConfigError: what cannot work, and what to do about it.
    """
    kind = type(policy)
    who = f"policy {kind.__name__}"
    if "__dataclass_fields__" not in vars(kind) or not vars(kind)["__dataclass_params__"].frozen:
        raise ConfigError(f"{who}: put @dataclasses.dataclass(frozen=True) above the class")
    _check_name(policy, who)
    _check_wire(policy, who)
    _ = _made(policy.codec, (Codec, type(None)), f"{who}: codec()")
    rule = _made(policy.replica, ReplicaRule, f"{who}: replica()")
    _check_replica(rule, who)
    _check_training(policy, rule, who)
    _check_shard(policy, who)


def _check_name(policy: Policy, who: str) -> None:
    name = policy.name
    if not isinstance(name, str) or not 1 <= len(name) <= limits.LABEL_LEN_MAX:
        raise ConfigError(f"{who}: name={name!r} must be a short text")
    if POLICIES.get(name, type(policy)) is not type(policy):
        raise ConfigError(f"{who}: the name {name!r} is taken by one of ours; give it another")


def _check_wire(policy: Policy, who: str) -> None:
    """Processes elsewhere get its settings as JSON, and must make the same policy of them."""
    settings = policy.to_wire()
    if len(settings) > limits.SETTINGS_MAX:
        raise ConfigError(f"{who} has more than {limits.SETTINGS_MAX} settings (SETTINGS_MAX)")
    for field, value in settings.items():
        is_number = isinstance(value, int | float) and abs(value) <= limits.COUNT_MAX
        is_text = isinstance(value, str) and len(value) <= limits.LABEL_LEN_MAX
        if value is not None and not is_number and not is_text:
            raise ConfigError(
                f"{who}: {field}={value!r} does not travel to shards and replicas; a setting is a "
                f"number up to 2**53, a flag, a text of {limits.LABEL_LEN_MAX} characters or None"
            )
    twin = _asked(
        f"{who}: made again from {settings}", lambda: from_wire(settings, lambda: (type(policy),))
    )
    if twin != policy:
        raise ConfigError(
            f"{who}: made again from its settings it is {twin!r}, not {policy!r}; what it needs "
            "must be in the fields of its dataclass"
        )


def _check_replica(rule: ReplicaRule, who: str) -> None:
    if rule.payload not in PAYLOADS:
        raise ConfigError(f"{who}: payload={rule.payload!r}; known are {', '.join(PAYLOADS)}")
    if rule.land not in LANDS:
        raise ConfigError(f"{who}: land={rule.land!r}; known are {', '.join(LANDS)}")
    if not isinstance(rule.in_flight, int) or rule.in_flight < 1:
        raise ConfigError(f"{who}: in_flight={rule.in_flight!r} must be a whole number, at least 1")
    rate = rule.local_rate
    if rate is not None and not (math.isfinite(rate) and rate >= 0):
        raise ConfigError(f"{who}: local_rate={rate!r} must be at least 0, or None")
    draws = rule.draws
    if type(draws) is not int or not 0 <= draws <= limits.DRAWS_MAX:
        raise ConfigError(
            f"{who}: draws={draws!r} must be a whole number, 0 to {limits.DRAWS_MAX} (DRAWS_MAX)"
        )
    view = ClusterView(epoch=1, draws=(0.5,) * draws)
    _made(lambda: rule.after_step(0, view), Actions, f"{who}: after_step(0, view)")


def _check_training(policy: Policy, rule: ReplicaRule, who: str) -> None:
    """Deltas go to an optimizer of their own; gradients go to the job's."""
    outer = _made(policy.outer, (Part, type(None)), f"{who}: outer()")
    if outer is not None:
        _asked(f"{who}: outer()", lambda: _core.Optimizer(outer.parts()))
    if rule.trains != (outer is not None):
        raise ConfigError(
            f"{who}: payload={rule.payload!r} and outer()={outer!r}: replicas that push deltas "
            "train with the job's optimizer, and outer() says what shards do with a delta, for "
            "example dp.SGD(lr=1.0); with any other payload it is None"
        )
    if not rule.trains:
        return
    if rule.land != "keep":
        raise ConfigError(
            f"{who}: land={rule.land!r} would lose what the copy gained that no push carries; with "
            "payload='delta' it is 'keep'"
        )
    if policy.reduction() is not None or policy.shard().repeats:
        raise ConfigError(
            f"{who}: deltas are neither reduced among replicas nor taken again: reduction() must "
            "be None, and its ShardRule's repeats False"
        )


def _check_shard(policy: Policy, who: str) -> None:
    rule = _made(policy.shard, ShardRule, f"{who}: shard()")
    push = PushInfo(replica=1, clock=1, samples=1, norm=1.0)
    view = ClusterView(epoch=1, live=(1,), clocks={1: 1}, least_clock=1)
    asks = f"{who}: due(view, now)"
    _check_on(_made(lambda: rule.due(view, 0.0), (Wait, type(None)), asks), view, asks)
    where = f"{who}: announce(push, view)"
    decision = _made(lambda: rule.announce(push, view), _DECISIONS, where)
    if isinstance(decision, Accumulate) and not rule.combines:
        raise ConfigError(f"{who}: its ShardRule accumulates, and must say combines = True")
    if isinstance(decision, Accumulate) and decision.round != rule.round:
        raise ConfigError(
            f"{where} accumulates into round {decision.round}, and round {rule.round} is open "
            "(self.round)"
        )
    if isinstance(decision, Apply | Accumulate):
        _check_scale(decision, where)
    _check_on(decision, view, where)
    _asked(f"{who}: arrived(push)", lambda: rule.arrived(push))
    _check_on(_made(lambda: rule.announce(push, view), _DECISIONS, where), view, where)
    _check_on(_made(lambda: rule.due(view, 0.0), (Wait, type(None)), asks), view, asks)
    other = policy.shard()
    state = _asked(f"{who}: export()", lambda: json.loads(json.dumps(rule.export())))
    _asked(f"{who}: load({state})", lambda: other.load(state))
    if other.export() != rule.export():
        raise ConfigError(
            f"{who}: a rule that loaded what another exported exports {other.export()}, not {state}"
        )


def _check_on(answer: object, view: ClusterView, where: str) -> None:
    """Whether those it waits for are replicas that are live."""
    if not isinstance(answer, Wait | NotYet):
        return
    on = answer.on
    if not isinstance(on, tuple) or not all(type(one) is int for one in on):
        raise ConfigError(f"{where}: on={on!r} must be a tuple of replicas' ids")
    if gone := [one for one in on if one not in view.live]:
        raise ConfigError(
            f"{where}: on={on!r} holds {gone}, and live are {list(view.live)} (view.live): nobody "
            "waits for the dead"
        )


def _check_scale(decision: Apply | Accumulate, where: str) -> None:
    scale = decision.scale
    if not math.isfinite(scale.factor) or not 0 <= scale.staleness_power <= POWER_MAX:
        raise ConfigError(
            f"{where}: {scale}: the factor must be finite, the power 0 to {POWER_MAX:g}"
        )
    allowed = decision.staleness_max if isinstance(decision, Apply) else None
    if allowed is not None and (not isinstance(allowed, int) or allowed < 0):
        raise ConfigError(f"{where}: staleness_max={allowed!r} must be a whole number, or None")
    weight = decision.weight if isinstance(decision, Accumulate) else 1.0
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"{where}: weight={weight} must be positive and finite")


_DECISIONS: Final = (Apply, Accumulate, NotYet, Refuse)


def _made(make: Callable[[], T], kinds: type[Any] | tuple[type[Any], ...], where: str) -> T:
    made = _asked(where, make)
    if not isinstance(made, kinds):
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        names = " or ".join(kind.__name__.removesuffix("Type") for kind in allowed)
        raise ConfigError(f"{where} is {made!r}, must be {names}")
    return made


def _asked(where: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:
        raise ConfigError(f"{where} failed: {type(error).__name__}: {error}") from error
