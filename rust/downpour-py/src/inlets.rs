//! `ShardInlet` and `ReplicaInlet`, and the events of the first.

use std::sync::{Arc, Mutex};

use downpour::inlet::{self, Event, Landing, Target};
use downpour::store::{Admission, Round};
use pyo3::prelude::*;

use crate::buffer::{Output, Receiver};
use crate::door::enter;
use crate::error::Failure;
use crate::frames::Frame;
use crate::shard::Shard;

/// Records of a push have a definite answer.
#[pyclass(frozen, get_all, module = "pydownpour._core")]
pub struct Settled {
    push: u64,
    fragment: u32,
    count: u32,
    applied: u32,
    staleness: u64,
    lsn: u64,
    last: bool,
}

#[pymethods]
impl Settled {
    fn __repr__(&self) -> String {
        let Self { push, fragment, count, applied, staleness, lsn, last } = self;
        let last = if *last { "True" } else { "False" };
        format!(
            "Settled(push={push}, fragment={fragment}, count={count}, applied={applied}, \
             staleness={staleness}, lsn={lsn}, last={last})"
        )
    }
}

/// One record was refused; nothing of it was applied.
#[pyclass(frozen, get_all, module = "pydownpour._core")]
pub struct Refusal {
    push: u64,
    fragment: u32,
    code: u32,
    count: u64,
    first_index: i64,
    norm: f64,
}

#[pymethods]
impl Refusal {
    fn __repr__(&self) -> String {
        let Self { push, fragment, code, count, first_index, norm } = self;
        format!(
            "Refusal(push={push}, fragment={fragment}, code={code}, count={count}, \
             first_index={first_index}, norm={norm})"
        )
    }
}

fn event(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyAny>> {
    Ok(match event {
        Event::Frame(frame) => Bound::new(py, Frame::received(py, &frame))?.into_any(),
        Event::Settled(inlet::Settled { push, fragment, count, applied, staleness, lsn, last }) => {
            Bound::new(py, Settled { push, fragment, count, applied, staleness, lsn, last })?
                .into_any()
        }
        Event::Refusal(inlet::Refusal { push, fragment, code, count, first_index, norm }) => {
            let first_index =
                first_index.map_or(-1, |index| i64::try_from(index).unwrap_or(i64::MAX));
            let code = code.number();
            Bound::new(py, Refusal { push, fragment, code, count, first_index, norm })?.into_any()
        }
    })
}

/// Bytes of one upgraded stream into a shard.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct ShardInlet {
    pub receiver: Receiver<inlet::ShardInlet>,
    shard: Arc<downpour::shard::Shard>,
}

#[pymethods]
impl ShardInlet {
    #[new]
    #[pyo3(signature = (shard, *, payload_size_max, control_size_max, ack_every))]
    fn new(
        py: Python<'_>,
        shard: &Shard,
        payload_size_max: usize,
        control_size_max: usize,
        ack_every: u32,
    ) -> PyResult<Self> {
        enter(py, 0, || {
            limit("payload_size_max", payload_size_max)?;
            limit("control_size_max", control_size_max)?;
            let inlet = inlet::ShardInlet::new(payload_size_max, control_size_max, ack_every);
            let size = inlet.scratch_size();
            Ok(Self { receiver: Receiver::new(inlet, size), shard: Arc::clone(&shard.shard) })
        })
    }

    /// Where in this buffer the next bytes belong.
    fn window(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        enter(py, 0, || Ok(self.receiver.with(inlet::ShardInlet::window)??))
    }

    /// Take n received bytes; apply what is complete; report one event.
    fn advance<'py>(&self, py: Python<'py>, n: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Records behind an announcement wait in the scratch and are applied by advance(0).
        let size = enter(py, 0, || self.receiver.with(|inlet, _| inlet.pending()))?;
        let found = enter(py, size.saturating_add(n), || {
            Ok(self.receiver.with(|inlet, scratch| inlet.advance(scratch, n, &self.shard))??)
        })?;
        found.map(|found| event(py, found)).transpose()
    }

    /// Report what was settled since the last report.
    fn settled<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = enter(py, 0, || self.receiver.with(|inlet, _| inlet.settled()))?;
        found.map(|settled| event(py, Event::Settled(settled))).transpose()
    }

    /// Whether it may be dropped for a new one between two reads: nothing has begun.
    fn is_idle(&self, py: Python<'_>) -> PyResult<bool> {
        enter(py, 0, || self.receiver.with(|inlet, _| inlet.is_idle()))
    }

    /// Take the fragments of the push just announced.
    #[pyo3(signature = (
        *, scale = 1.0, staleness_power = 0.0, staleness_max = None, round = None, weight = 1.0,
        samples = 0
    ))]
    #[allow(clippy::too_many_arguments, reason = "one a field of the admission, by name")]
    fn accept(
        &self,
        py: Python<'_>,
        scale: f32,
        staleness_power: f64,
        staleness_max: Option<u64>,
        round: Option<u64>,
        weight: f64,
        samples: u64,
    ) -> PyResult<()> {
        let round = round.map(|number| Round { number, weight });
        let admission = Admission { scale, staleness_power, staleness_max, samples, round };
        enter(py, 0, || {
            Ok(self.receiver.with(|inlet, _| inlet.accept(admission, &self.shard))??)
        })
    }

    /// Receive and throw away the fragments of the push just announced.
    fn skip(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, 0, || Ok(self.receiver.with(|inlet, _| inlet.skip())??))
    }
}

/// The largest limit a scratch may be made for: a mistaken one should not take all memory.
const LIMIT_MAX: usize = 1 << 30;

fn limit(name: &'static str, value: usize) -> Result<(), Failure> {
    if value <= LIMIT_MAX {
        return Ok(());
    }
    Err(Failure::Argument { name, value: value as i128, bound: "at most 1 GiB" })
}

/// Where parameters land: buffers of Python's, held until replaced.
struct Held {
    values: Output,
    versions: Output,
}

/// Bytes of one upgraded stream into a replica.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct ReplicaInlet {
    pub receiver: Receiver<inlet::ReplicaInlet>,
    held: Mutex<Option<Held>>,
}

#[pymethods]
impl ReplicaInlet {
    #[new]
    #[pyo3(signature = (*, len, fragment_len, first_fragment = 0, control_size_max, sums = false))]
    fn new(
        py: Python<'_>,
        len: usize,
        fragment_len: usize,
        first_fragment: u32,
        control_size_max: usize,
        sums: bool,
    ) -> PyResult<Self> {
        enter(py, 0, || {
            for (name, value) in [("len", len), ("fragment_len", fragment_len)] {
                if value == 0 {
                    return Err(Failure::Argument { name, value: 0, bound: "at least 1" });
                }
            }
            limit("control_size_max", control_size_max)?;
            let inlet =
                inlet::ReplicaInlet::new(len, fragment_len, first_fragment, control_size_max);
            let inlet = if sums { inlet.of_sums() } else { inlet };
            let size = inlet.scratch_size();
            Ok(Self { receiver: Receiver::new(inlet, size), held: Mutex::new(None) })
        })
    }

    /// f32 values of len elements and u64 versions, one a fragment.
    fn set_target(&self, py: Python<'_>, mut values: Output, mut versions: Output) -> PyResult<()> {
        let old = enter(py, 0, || {
            if values.overlaps(&versions) {
                return Err(Failure::Overlap);
            }
            let lengths =
                (values.elements_mut::<f32>()?.len(), versions.elements_mut::<u64>()?.len());
            self.receiver.with(|inlet, _| {
                inlet.check_target(lengths.0, lengths.1)?;
                let mut held = self.held.lock().map_err(|_| Failure::Poisoned)?;
                Ok::<_, Failure>(held.replace(Held { values, versions }))
            })?
        })?;
        // Released here, with no lock held: releasing a buffer may run Python code.
        drop(old);
        Ok(())
    }

    /// Where the next bytes belong: (0, start, stop) in this buffer, (1, start, stop) in the
    /// target.
    fn window(&self, py: Python<'_>) -> PyResult<(u8, usize, usize)> {
        enter(py, 0, || {
            Ok(match self.receiver.with(inlet::ReplicaInlet::window)?? {
                Landing::Scratch { start, stop } => (0, start, stop),
                Landing::Target { start, stop } => (1, start, stop),
            })
        })
    }

    /// PARAMETERS that have landed whole, and the fragment behind the last of them.
    fn landed(&self, py: Python<'_>) -> PyResult<(u64, u32)> {
        enter(py, 0, || self.receiver.with(|inlet, _| inlet.landed()))
    }

    /// Take n received bytes; report the next frame that is not PARAMETERS.
    fn advance(&self, py: Python<'_>, n: usize) -> PyResult<Option<Frame>> {
        let found = enter(py, n, || {
            self.receiver.with(|inlet, scratch| {
                let mut held = self.held.lock().map_err(|_| Failure::Poisoned)?;
                let target = match held.as_mut() {
                    None => None,
                    Some(Held { values, versions }) => Some(Target {
                        values: values.bytes_mut(),
                        versions: versions.elements_mut()?,
                    }),
                };
                Ok(inlet.advance(scratch, n, target)?)
            })?
        })?;
        Ok(found.map(|frame| Frame::received(py, &frame)))
    }
}
