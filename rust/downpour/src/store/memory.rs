//! Where a store's bytes are.

use super::Store;
use super::accumulator::Accumulator;
use super::block::Held;
use super::fragment::Fragment;
use super::history::History;
use super::sync::Ordering;

/// Bytes, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The parameters.
    pub parameters: usize,
    /// The optimizer's state.
    pub state: usize,
    /// Reserved for sums of records that are not applied yet.
    pub accumulators: usize,
    /// Blocks ready for the next records.
    pub spare: usize,
    /// Counters, words, links, and what rounding stripes up to whole blocks costs.
    pub table: usize,
    /// Past versions that parts of the optimizer look back at.
    pub history: usize,
    /// Old blocks that readers still hold, and blocks of records being applied now.
    pub pinned: usize,
}

impl Store {
    /// Where the bytes are now. Counters are read one after the other, so under load the sum is
    /// approximate.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let arena = self.words.arena();
        let block = arena.block_bytes();
        let (spares, owned) = arena.counts();
        let parameters = self.geometry.len * size_of::<f32>();
        let state = parameters * self.optimizer.planes();
        let rounding = self.stripes() * block - parameters - state;
        let accumulator = if self.accumulates() { size_of::<Accumulator>() } else { 0 };
        let remembered = self.remembered.load(Ordering::Relaxed);
        let past = if self.history() > 0 { size_of::<History>() } else { 0 };
        let tables = arena.table_bytes()
            + self.words.bytes()
            + self.fragments.len() * (size_of::<Fragment>() + accumulator + past)
            + remembered * size_of::<Held>();
        Memory {
            parameters,
            state,
            accumulators: if self.accumulates() { parameters } else { 0 },
            spare: spares * block,
            table: rounding + tables,
            history: remembered * block,
            pinned: owned.saturating_sub(spares + remembered) * block,
        }
    }
}
