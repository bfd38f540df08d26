//! Taking a turn, and applying a record in it.

use super::fragment::Fragment;
use super::queue::{Applied, Receipt, Record};
use super::sync::Backoff;
use super::{Admission, ApplyError, Store};
use crate::kernel::Gradient;

/// A turn in a fragment's order. Dropping it unused lets the turn pass.
#[derive(Debug)]
pub struct Ticket<'a> {
    store: &'a Store,
    fragment: usize,
    number: u64,
}

/// What became of a submitted record.
#[derive(Debug)]
pub enum Outcome {
    Applied(Applied),
    /// It waits in the inbox, and will be settled by whoever settles the record before it.
    Queued(Receipt),
}

/// The right to settle a fragment's records. Releasing looks again for late arrivals.
struct Claim<'a> {
    store: &'a Store,
    fragment: usize,
}

impl Store {
    /// Take the next turn of a fragment.
    ///
    /// # Panics
    ///
    /// If there is no such fragment.
    #[must_use]
    pub fn ticket(&self, fragment: usize) -> Ticket<'_> {
        let number = self.fragments[fragment].take_ticket();
        Ticket { store: self, fragment, number }
    }

    /// Apply a gradient that is not stale to a fragment; see [`take`](Self::take).
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; nothing changed then.
    pub fn apply(
        &self,
        fragment: usize,
        gradient: Gradient<'_>,
        admission: impl Into<Admission>,
    ) -> Result<Applied, ApplyError> {
        self.take(fragment, gradient, u64::MAX, &admission.into())
    }

    /// Apply a record computed from `base_version` to a fragment, or add it to its round, in the
    /// order of the calls' tickets.
    ///
    /// Waits while another thread settles an earlier record of the same fragment.
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; nothing changed then.
    pub fn take(
        &self,
        fragment: usize,
        gradient: Gradient<'_>,
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        self.expect_len(fragment, &gradient)?;
        let ticket = self.ticket(fragment);
        let shared = &self.fragments[fragment];
        let mut backoff = Backoff::default();
        loop {
            if shared.is_due(ticket.number) && shared.try_claim() {
                return ticket.claimed().settle(gradient, base_version, admission);
            }
            backoff.wait();
        }
    }

    /// Apply a record in the turn of `ticket` if that is now, else leave a copy in the inbox.
    /// Never waits.
    ///
    /// # Errors
    ///
    /// [`ApplyError`]; nothing changed then, and the turn passes. [`ApplyError::Full`] if too
    /// many records wait: retry with a new ticket.
    ///
    /// # Panics
    ///
    /// If the ticket belongs to another store.
    pub fn submit(
        &self,
        ticket: Ticket<'_>,
        gradient: Gradient<'_>,
        admission: impl Into<Admission>,
    ) -> Result<Outcome, ApplyError> {
        let admission = admission.into();
        assert!(std::ptr::eq(self, ticket.store), "a ticket of another store");
        let fragment = ticket.fragment;
        self.expect_len(fragment, &gradient)?;
        let shared = &self.fragments[fragment];
        if shared.is_due(ticket.number) && shared.try_claim() {
            let settled = ticket.claimed().settle(gradient, u64::MAX, &admission);
            return settled.map(Outcome::Applied);
        }
        let receipt = self.queue.push_update(&shared.inbox, ticket.number, gradient, admission)?;
        std::mem::forget(ticket);
        self.settle_due(fragment);
        match receipt.poll() {
            Some(answer) => answer.map(Outcome::Applied),
            None => Ok(Outcome::Queued(receipt)),
        }
    }

    pub(super) fn expect_len(
        &self,
        fragment: usize,
        gradient: &Gradient<'_>,
    ) -> Result<(), ApplyError> {
        self.fragment(fragment)?;
        let expected = self.geometry.fragment_range(fragment).len();
        let actual = gradient.len();
        if expected == actual { Ok(()) } else { Err(ApplyError::Length { expected, actual }) }
    }

    /// Settle what is due in a fragment, unless somebody else is at it.
    fn settle_due(&self, fragment: usize) {
        if self.fragments[fragment].try_claim() {
            drop(Claim { store: self, fragment });
        }
    }

    /// Run `body` as the only one to change a fragment, waiting for the claim.
    pub(super) fn claimed<R>(&self, fragment: usize, body: impl FnOnce(&Fragment) -> R) -> R {
        let shared = &self.fragments[fragment];
        let mut backoff = Backoff::default();
        while !shared.try_claim() {
            backoff.wait();
        }
        let _claim = Claim { store: self, fragment };
        body(shared)
    }
}

impl<'a> Ticket<'a> {
    /// The place in the fragment's order; the first ticket is 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    #[must_use]
    pub fn fragment(&self) -> usize {
        self.fragment
    }

    /// This ticket is due and its fragment claimed: it becomes the claim.
    fn claimed(self) -> Claim<'a> {
        let claim = Claim { store: self.store, fragment: self.fragment };
        std::mem::forget(self);
        claim
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let shared = &self.store.fragments[self.fragment];
        // Only if every slot is taken: wait for our turn, and pass it on ourselves.
        let mut backoff = Backoff::default();
        while !self.store.queue.push_void(&shared.inbox, self.number) {
            if shared.is_due(self.number) && shared.try_claim() {
                let _claim = Claim { store: self.store, fragment: self.fragment };
                shared.settle();
                return;
            }
            backoff.wait();
        }
        self.store.settle_due(self.fragment);
    }
}

impl Claim<'_> {
    /// Apply the record whose turn it is, and pass the turn on whatever happens.
    fn settle(
        &self,
        gradient: Gradient<'_>,
        base_version: u64,
        admission: &Admission,
    ) -> Result<Applied, ApplyError> {
        struct Turn<'a>(&'a Fragment);
        impl Drop for Turn<'_> {
            fn drop(&mut self) {
                self.0.settle();
            }
        }
        let _turn = Turn(&self.store.fragments[self.fragment]);
        self.store.take_claimed(self.fragment, gradient, base_version, admission)
    }

    /// Settle every record that is due, in order.
    fn drain(&self) {
        let shared = &self.store.fragments[self.fragment];
        while let Some(record) = shared.take_due(&self.store.queue) {
            match record {
                Record::Void => shared.settle(),
                Record::Update { bytes, dtype, admission, settlement } => {
                    let gradient = Gradient::from_bytes(&bytes, dtype);
                    let gradient = gradient.expect("queued as whole elements of this type");
                    settlement.settle(self.settle(gradient, u64::MAX, &admission));
                    self.store.queue.forget_update();
                }
            }
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let shared = &self.store.fragments[self.fragment];
        loop {
            self.drain();
            if !shared.release_claim() || !shared.try_claim() {
                return;
            }
        }
    }
}
