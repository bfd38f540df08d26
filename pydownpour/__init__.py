"""pydownpour: asynchronous training between machines that share nothing but a URL.

The map of the rooms; imports point downward only, and a test reads them::

    errors limits            the words: what can go wrong, how much of anything
    fields config states     bounds of messages and settings; what may become what
    layout optimizers        the numbers: named arrays on one line of elements, frozen update rules,
    codecs                   how gradients travel in fewer bytes
    sampling histogram waits  orders of samples; counts
    policy                   when replicas push and fetch, who waits for whom; pure
    wire                     messages and frames: bytes in, bytes out
    net                      the only room that touches aiohttp: listeners, clients, streams, TLS
    storage                  the run folder and its files
    shard                    owns a part of the parameters: admit, apply, acknowledge, serve
    replica                  what a training loop talks to: push and fetch in the background
    coordinator              membership, leased work, evaluation, report; never on the gradient path
    job                      what a user declares
    jobfiles                 how a job file is loaded, and imported by processes that did not
    engines                  start, watch, restart and stop the processes; never data
    sim                      the same services on virtual time, with seeded faults: simulate
    testing                  a fault proxy for real sockets, for us and for users
    cli                      the command pydownpour
    bench demo               the figures; the job that ships
    data                     real data to start with
    _core                    Rust: the store, the optimizers, pushes, frames and checksums

A gradient's way: arrays -> encoded push -> frames -> net ... net -> frames -> admit -> journal ->
apply -> ack, after which the replica knows its staleness. A fetch is the same way with what is
published.

Importing this package imports next to nothing: each public name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pydownpour.errors import (
    AuthError,
    BudgetSpent,
    CheckpointError,
    ClosedError,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    DownpourError,
    Fenced,
    GradientMismatch,
    GradientsRefused,
    InternalError,
    JobFailed,
    LayoutMismatch,
    LimitExceeded,
    LocalProtocolError,
    MisuseError,
    NonFiniteGradient,
    NotReady,
    OriginRefused,
    ParameterError,
    PeerLost,
    ProtocolError,
    RemoteProtocolError,
    SimulationStuck,
    TooLarge,
    TransportError,
    UnsupportedArray,
    UpgradeRefused,
    WrongEpoch,
)

if TYPE_CHECKING:
    from pydownpour._core import __version__
    from pydownpour.codecs import Int8, Threshold
    from pydownpour.job import Job, Work
    from pydownpour.limits import Limits
    from pydownpour.optimizers import (
        FASGD,
        SGD,
        Adagrad,
        Adam,
        AdamW,
        Clip,
        Cosine,
        DelayCompensated,
        GapAware,
        LinearScaling,
        Momentum,
        Nesterov,
        SqrtScaling,
        StalenessDecay,
        StepDecay,
        Trace,
        WarmUp,
        WeightDecay,
        chain,
    )
    from pydownpour.policy.bfasgd import BFASGD
    from pydownpour.policy.block_momentum import BlockMomentum
    from pydownpour.policy.diloco import DiLoCo
    from pydownpour.policy.downpour import Downpour
    from pydownpour.policy.hard_sync import HardSync
    from pydownpour.policy.model_averaging import ModelAveraging
    from pydownpour.policy.phases import Phases
    from pydownpour.policy.softsync import Softsync
    from pydownpour.policy.ssp import SSP
    from pydownpour.policy.staleness_aware import StalenessAware
    from pydownpour.policy.strom import Strom
    from pydownpour.replica.joining import join
    from pydownpour.replica.natural_gradient import NaturalGradient
    from pydownpour.replica.replica import Replica
    from pydownpour.replica.work import Unit
    from pydownpour.sim.api import simulate
    from pydownpour.sim.compute.cost import ComputeModel
    from pydownpour.sim.machines.host import LinkModel

_HOMES = {
    "BFASGD": "policy.bfasgd",
    "FASGD": "optimizers",
    "SGD": "optimizers",
    "Adagrad": "optimizers",
    "Adam": "optimizers",
    "AdamW": "optimizers",
    "BlockMomentum": "policy.block_momentum",
    "Clip": "optimizers",
    "ComputeModel": "sim.compute.cost",
    "Cosine": "optimizers",
    "DelayCompensated": "optimizers",
    "DiLoCo": "policy.diloco",
    "Downpour": "policy.downpour",
    "GapAware": "optimizers",
    "HardSync": "policy.hard_sync",
    "Phases": "policy.phases",
    "SSP": "policy.ssp",
    "Softsync": "policy.softsync",
    "StalenessAware": "policy.staleness_aware",
    "Int8": "codecs",
    "Job": "job",
    "Limits": "limits",
    "LinearScaling": "optimizers",
    "LinkModel": "sim.machines.host",
    "ModelAveraging": "policy.model_averaging",
    "Momentum": "optimizers",
    "NaturalGradient": "replica.natural_gradient",
    "Nesterov": "optimizers",
    "Replica": "replica.replica",
    "SqrtScaling": "optimizers",
    "StalenessDecay": "optimizers",
    "StepDecay": "optimizers",
    "Strom": "policy.strom",
    "Threshold": "codecs",
    "Trace": "optimizers",
    "Unit": "replica.work",
    "WarmUp": "optimizers",
    "WeightDecay": "optimizers",
    "Work": "job",
    "__version__": "_core",
    "chain": "optimizers",
    "join": "replica.joining",
    "simulate": "sim.api",
}
"""Where the names that load lazily live."""

__all__ = [
    "BFASGD",
    "FASGD",
    "SGD",
    "SSP",
    "Adagrad",
    "Adam",
    "AdamW",
    "AuthError",
    "BlockMomentum",
    "BudgetSpent",
    "CheckpointError",
    "Clip",
    "ClosedError",
    "ComputeModel",
    "ConfigError",
    "ConnectFailed",
    "Cosine",
    "DeadlineExceeded",
    "DelayCompensated",
    "DiLoCo",
    "Downpour",
    "DownpourError",
    "Fenced",
    "GapAware",
    "GradientMismatch",
    "GradientsRefused",
    "HardSync",
    "Int8",
    "InternalError",
    "Job",
    "JobFailed",
    "LayoutMismatch",
    "LimitExceeded",
    "Limits",
    "LinearScaling",
    "LinkModel",
    "LocalProtocolError",
    "MisuseError",
    "ModelAveraging",
    "Momentum",
    "NaturalGradient",
    "Nesterov",
    "NonFiniteGradient",
    "NotReady",
    "OriginRefused",
    "ParameterError",
    "PeerLost",
    "Phases",
    "ProtocolError",
    "RemoteProtocolError",
    "Replica",
    "SimulationStuck",
    "Softsync",
    "SqrtScaling",
    "StalenessAware",
    "StalenessDecay",
    "StepDecay",
    "Strom",
    "Threshold",
    "TooLarge",
    "Trace",
    "TransportError",
    "Unit",
    "UnsupportedArray",
    "UpgradeRefused",
    "WarmUp",
    "WeightDecay",
    "Work",
    "WrongEpoch",
    "__version__",
    "chain",
    "join",
    "simulate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pydownpour' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pydownpour.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
