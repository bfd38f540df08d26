//! `Optimizer` and `Shard`.

use std::collections::BTreeMap;
use std::sync::Arc;

use downpour::dedupe::Run;
use downpour::kernel::{Gradient, Level};
use downpour::optimizer;
use downpour::shard;
use downpour::store::{self, Admission, Geometry, Round};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::{Input, Output};
use crate::codec::Codec;
use crate::door::enter;
use crate::error::Failure;
use crate::fetch;
use crate::numbers::{self, dtype};

type Parts = Vec<(String, BTreeMap<String, f64>)>;

/// A compiled chain of parts.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct Optimizer {
    parts: Parts,
    level: Level,
    planes: usize,
    history: usize,
    tells: bool,
}

impl Optimizer {
    /// Whoever uses one owns it: compile the description again.
    pub fn compile(&self) -> Result<optimizer::Optimizer, Failure> {
        Ok(optimizer::Optimizer::compile(&self.parts, Some(self.level))?)
    }
}

#[pymethods]
impl Optimizer {
    #[new]
    #[pyo3(signature = (parts, *, simd = None))]
    fn new(py: Python<'_>, parts: Parts, simd: Option<&str>) -> PyResult<Self> {
        enter(py, 0, || {
            let level = simd.map_or(Ok(Level::best()), numbers::level)?;
            let compiled = optimizer::Optimizer::compile(&parts, Some(level))?;
            let (planes, history) = (compiled.planes(), compiled.history());
            let tells = compiled.told().is_some();
            Ok(Self { parts, level, planes, history, tells })
        })
    }

    /// State planes per parameter.
    #[getter]
    fn planes(&self) -> usize {
        self.planes
    }

    /// Past versions of the parameters that a shard must keep for it.
    #[getter]
    fn history(&self) -> usize {
        self.history
    }

    /// Whether a part of it tells replicas of a deviation.
    #[getter]
    fn tells(&self) -> bool {
        self.tells
    }

    /// The instruction set it was compiled for.
    #[getter]
    fn simd(&self) -> &'static str {
        self.level.name()
    }
}

/// A round that was applied to a fragment as one update.
#[pyclass(frozen, get_all, module = "pydownpour._core")]
pub struct Closed {
    lsn: u64,
    version: u64,
    count: u64,
    weight: f64,
    samples: u64,
    staleness: u64,
}

impl From<store::Closed> for Closed {
    fn from(store::Closed { lsn, version, of }: store::Closed) -> Self {
        let store::Accumulated { count, weight, samples, staleness, .. } = of;
        Self { lsn, version, count, weight, samples, staleness }
    }
}

/// A bounded buffer of what stores are about to make visible.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct Journal(store::Recording);

#[pymethods]
impl Journal {
    #[new]
    #[pyo3(signature = (*, size_max))]
    fn new(size_max: usize) -> Self {
        Self(store::Recording::new(size_max))
    }

    /// Take everything out, oldest first.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let entries = enter(py, usize::MAX, || Ok(self.0.take()))?;
        Ok(entries.iter().map(|entry| PyBytes::new(py, entry)).collect())
    }

    /// The number of the newest entry.
    #[getter]
    fn last_lsn(&self) -> u64 {
        self.0.last_lsn()
    }
}

/// One shard's parameters and optimizer state as published stripes.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct Shard {
    pub shard: Arc<shard::Shard>,
}

impl Shard {
    fn store(&self) -> &store::Store {
        self.shard.store()
    }

    /// The store's number of a fragment of the layout.
    fn place(&self, fragment: u32) -> Result<usize, Failure> {
        let value = i128::from(fragment);
        let bound = "one of the shard's fragments";
        self.shard.place(fragment).ok_or(Failure::Argument { name: "fragment", value, bound })
    }
}

#[pymethods]
impl Shard {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    #[pyo3(signature = (
        *, len, stripe_len, fragment_len, first_fragment = 0, optimizer, codec = None,
        accumulates = false, max_norm = None, journal = None
    ))]
    fn new(
        py: Python<'_>,
        len: usize,
        stripe_len: usize,
        fragment_len: usize,
        first_fragment: u32,
        optimizer: &Optimizer,
        codec: Option<&Codec>,
        accumulates: bool,
        max_norm: Option<f64>,
        journal: Option<&Journal>,
    ) -> PyResult<Self> {
        let journal = journal.map(|journal| journal.0.clone());
        let codec = codec.map(|codec| Arc::clone(&codec.0));
        enter(py, usize::MAX, || {
            if let Some(norm) = max_norm.filter(|norm| !(norm.is_finite() && *norm > 0.0)) {
                return Err(Failure::MaxNorm(norm));
            }
            let geometry = Geometry { len, stripe_len, fragment_len };
            let store = store::Store::new(geometry, optimizer.compile()?)?;
            let store = if accumulates { store.accumulating()? } else { store };
            let store = match journal {
                Some(journal) => store.journaled(Box::new(journal), first_fragment),
                None => store,
            };
            let shard = shard::Shard::new(store, first_fragment)?;
            let shard = shard.with_codec(codec).with_norm_max(max_norm);
            Ok(Self { shard: Arc::new(shard) })
        })
    }

    #[getter]
    fn len(&self) -> usize {
        self.store().geometry().len
    }

    #[getter]
    fn stripe_len(&self) -> usize {
        self.store().geometry().stripe_len
    }

    #[getter]
    fn fragment_len(&self) -> usize {
        self.store().geometry().fragment_len
    }

    /// The layout's number of the first fragment here.
    #[getter]
    fn first_fragment(&self) -> u32 {
        self.shard.fragments().start
    }

    #[getter]
    fn fragments(&self) -> usize {
        self.store().fragments()
    }

    /// State planes per parameter, as the optimizer's.
    #[getter]
    fn planes(&self) -> usize {
        self.store().planes() - 1
    }

    /// Past versions of each fragment that it keeps, as the optimizer's.
    #[getter]
    fn history(&self) -> usize {
        self.store().history()
    }

    /// Whether the optimizer tells replicas of a deviation.
    #[getter]
    fn tells(&self) -> bool {
        self.store().optimizer().told().is_some()
    }

    /// The mean of what a part of the optimizer tells replicas, or 0.
    #[getter]
    fn deviation(&self) -> f64 {
        self.store().deviation()
    }

    /// Updates whose base version was kept no more.
    #[getter]
    fn bases_gone(&self) -> u64 {
        self.store().bases_gone()
    }

    /// Records applied so far by this shard.
    #[getter]
    fn lsn(&self) -> u64 {
        self.store().lsn()
    }

    /// Set parameters from `start` on. Only before the first apply.
    fn load(&self, py: Python<'_>, start: usize, values: Input) -> PyResult<()> {
        enter(py, values.bytes().len(), || {
            Ok(self.store().load_plane(0, start, values.elements()?)?)
        })
    }

    /// Copy parameters from `start` on into `target`, stripe by stripe.
    #[pyo3(signature = (target, start = 0))]
    fn read(&self, py: Python<'_>, mut target: Output, start: usize) -> PyResult<()> {
        let size = target.bytes_mut().len();
        enter(py, size, || Ok(self.store().read_plane(0, start, target.elements_mut()?)?))
    }

    /// Updates applied to this fragment.
    fn version(&self, py: Python<'_>, fragment: u32) -> PyResult<u64> {
        enter(py, 0, || Ok(self.store().version(self.place(fragment)?)))
    }

    /// All fragment versions, u64 little-endian.
    fn versions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let fragments = self.store().fragments();
        PyBytes::new_with(py, 8 * fragments, |bytes| {
            for (place, slot) in bytes.chunks_exact_mut(8).enumerate() {
                slot.copy_from_slice(&self.store().version(place).to_le_bytes());
            }
            Ok(())
        })
    }

    /// Check and take one record without identity; returns its LSN.
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    #[pyo3(signature = (
        fragment, payload, dtype, *, base_version = None, scale = 1.0, staleness_power = 0.0,
        staleness_max = None, round = None, weight = 1.0, samples = 0
    ))]
    fn apply(
        &self,
        py: Python<'_>,
        fragment: u32,
        payload: Input,
        dtype: u8,
        base_version: Option<u64>,
        scale: f32,
        staleness_power: f64,
        staleness_max: Option<u64>,
        round: Option<u64>,
        weight: f64,
        samples: u64,
    ) -> PyResult<u64> {
        enter(py, payload.bytes().len(), || {
            let round = round.map(|number| Round { number, weight });
            let admission = Admission { scale, staleness_power, staleness_max, samples, round };
            admission.validate(self.store().accumulates())?;
            let gradient = Gradient::from_bytes(payload.bytes(), self::dtype(dtype)?)?;
            let base = base_version.unwrap_or(u64::MAX);
            Ok(self.shard.take(fragment, gradient, base, &admission)?.lsn)
        })
    }

    /// Whether records may be combined in rounds.
    #[getter]
    fn accumulates(&self) -> bool {
        self.store().accumulates()
    }

    /// Combine records in rounds from now on, too.
    fn start_accumulating(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, usize::MAX, || Ok(self.shard.start_accumulating()?))
    }

    /// (round, records, sum of their weights) of what a fragment has accumulated, or None.
    fn accumulated(&self, py: Python<'_>, fragment: u32) -> PyResult<Option<(u64, u64, f64)>> {
        enter(py, 0, || {
            let place = self.place(fragment)?;
            let open = self.store().accumulated(place).filter(|open| open.count > 0);
            Ok(open.map(|open| (open.round, open.count, open.weight)))
        })
    }

    /// Copy the sum of a fragment's open round, or zeros.
    fn read_accumulated(&self, py: Python<'_>, fragment: u32, mut target: Output) -> PyResult<()> {
        let size = target.bytes_mut().len();
        enter(py, size, || {
            self.store().read_accumulated(self.place(fragment)?, target.elements_mut()?)?;
            Ok(())
        })
    }

    /// Apply what a fragment has accumulated in a round as one update.
    #[pyo3(signature = (fragment, round, *, factor = None))]
    fn close_round(
        &self,
        py: Python<'_>,
        fragment: u32,
        round: u64,
        factor: Option<f32>,
    ) -> PyResult<Option<Closed>> {
        enter(py, 4 * self.store().geometry().fragment_len, || {
            Ok(self.shard.close_round(fragment, round, factor)?.map(Closed::from))
        })
    }

    /// Keep each replica's last gradient, so many bytes of them at most.
    fn keep_gradients(&self, size_max: usize) {
        self.shard.keep_gradients(size_max);
    }

    /// Verdict for a run of a push's fragments, in one word.
    #[allow(clippy::too_many_arguments, reason = "the fields of an announcement")]
    fn admit(
        &self,
        py: Python<'_>,
        replica: u32,
        incarnation: u32,
        push: u64,
        fragment: u32,
        count: u32,
        first_open: u64,
    ) -> PyResult<&'static str> {
        enter(py, 0, || {
            for (name, value) in [
                ("replica", u64::from(replica)),
                ("incarnation", u64::from(incarnation)),
                ("push", push),
            ] {
                if value == 0 {
                    return Err(Failure::Argument { name, value: 0, bound: "at least 1" });
                }
            }
            let run = Run { replica, incarnation, push, fragment, count, first_open };
            Ok(self.shard.admit(&run).name())
        })
    }

    /// Refuse incarnations below this one for ever.
    fn fence(&self, py: Python<'_>, replica: u32, incarnation: u32) -> PyResult<()> {
        enter(py, 0, || {
            self.shard.fence(replica, incarnation);
            Ok(())
        })
    }

    /// Fence and forget the ids below `next` that are in no range [start, stop).
    fn retire(&self, py: Python<'_>, next: u32, ranges: Vec<(u32, u32)>) -> PyResult<()> {
        enter(py, 0, || {
            if self.shard.retire(next, &ranges) {
                return Ok(());
            }
            let bound = "at most 1,024 ascending ranges below next, apart from each other";
            Err(Failure::Argument { name: "ranges", value: ranges.len() as i128, bound })
        })
    }

    /// Whether an id was retired.
    fn is_retired(&self, replica: u32) -> bool {
        self.shard.is_retired(replica)
    }

    /// Records applied that no replica's count has.
    #[getter]
    fn applied_of_nobody(&self) -> u64 {
        self.shard.applied_of_nobody()
    }

    /// Replicas that are remembered.
    #[getter]
    fn replicas(&self) -> usize {
        self.shard.replicas()
    }

    /// (incarnation, floor, records applied in all of its incarnations) or None.
    fn applied(&self, replica: u32) -> Option<(u32, u64, u64)> {
        let entry = self.shard.find(replica)?;
        Some((entry.incarnation(), entry.floor(), entry.applied()))
    }

    /// LSN, fragment versions and dedupe windows, as bytes with a version and a CRC.
    fn export_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = enter(py, usize::MAX, || Ok(self.shard.export_state()))?;
        Ok(PyBytes::new(py, &state))
    }

    /// Take exported states that together have this shard's fragments. Only before the first apply.
    fn import_state(&self, py: Python<'_>, states: Vec<Input>) -> PyResult<()> {
        let states: Vec<_> = states.iter().map(Input::bytes).collect();
        let size = states.iter().map(|bytes| bytes.len()).sum();
        enter(py, size, || Ok(self.shard.import_state(&states)?))
    }

    /// Copy elements of a plane (0 = parameters, then the state's, then past parameters) from
    /// `start` on.
    #[pyo3(signature = (plane, target, start = 0))]
    fn read_plane(
        &self,
        py: Python<'_>,
        plane: usize,
        mut target: Output,
        start: usize,
    ) -> PyResult<()> {
        let size = target.bytes_mut().len();
        enter(py, size, || Ok(self.store().read_plane(plane, start, target.elements_mut()?)?))
    }

    /// Set elements of a plane from `start` on, when restoring, before the first apply.
    #[pyo3(signature = (plane, source, start = 0))]
    fn load_plane(
        &self,
        py: Python<'_>,
        plane: usize,
        source: Input,
        start: usize,
    ) -> PyResult<()> {
        enter(py, source.bytes().len(), || {
            Ok(self.store().load_plane(plane, start, source.elements()?)?)
        })
    }

    /// Frames of fragments changed after LSN `since`.
    #[pyo3(signature = (since, cursor, size_max, stop = None))]
    fn parameter_frames<'py>(
        &self,
        py: Python<'py>,
        since: u64,
        cursor: u32,
        size_max: usize,
        stop: Option<u32>,
    ) -> PyResult<(Bound<'py, PyList>, u32, usize)> {
        let batch = enter(py, usize::MAX, || {
            Ok(self.shard.parameter_frames(since, cursor, size_max, stop))
        })?;
        let (cursor, frames) = (batch.cursor, batch.frames);
        Ok((fetch::buffers(py, batch)?, cursor, frames))
    }

    /// Stripes that unsent answers keep.
    #[getter]
    fn kept(&self) -> usize {
        self.store().kept()
    }

    /// Bytes: parameters, state, accumulators, spare, table, history, pinned, decoded.
    fn memory(&self) -> BTreeMap<&'static str, usize> {
        let memory = self.store().memory();
        BTreeMap::from([
            ("parameters", memory.parameters),
            ("state", memory.state),
            ("accumulators", memory.accumulators),
            ("spare", memory.spare),
            ("table", memory.table),
            ("history", memory.history),
            ("pinned", memory.pinned),
            ("decoded", self.shard.decoded_bytes()),
            ("kept", self.shard.kept_bytes()),
        ])
    }
}
