//! The journal is told everything before it is visible, and knows enough: a second store that is
//! fed with it holds the same bits.

#![cfg(not(loom))]

mod optimizer_twin;

use std::sync::{Arc, Mutex};

use downpour::checksum::extend;
use downpour::kernel::{Gradient, Level};
use downpour::store::{
    Admission, ApplyError, Change, CloseError, ENTRY_SIZE, Entry, Geometry, Journal, Recording,
    Round, Store,
};
use optimizer_twin::{Records, bits, chains, compile};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { len: 150, stripe_len: 16, fragment_len: 48 };

fn store(chain: usize) -> Store {
    let parts = chains().swap_remove(chain);
    Store::new(GEOMETRY, compile(&parts, Level::best())).unwrap().accumulating().unwrap()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Do what an entry says, and nothing else.
fn replay(store: &Store, entry: &[u8]) {
    let (fragment, payload) = (u32_at(entry, 8) as usize - 7, &entry[ENTRY_SIZE..]);
    let factor = f32::from_bits(u32_at(entry, 72));
    let samples = u64_at(entry, 56);
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(payload);
    // The staleness that was decided, said again.
    let base_version = store.version(fragment) - u64_at(entry, 64);
    match entry[12] {
        1 => {
            let admission = Admission { scale: factor, samples, ..Admission::default() };
            let gradient = Gradient::F32(&values);
            store.take(fragment, gradient, base_version, &admission).unwrap();
        }
        2 => {
            // The factor has the weight in it, which is a power of two here: nothing is rounded.
            let weight = f64::from_bits(u64_at(entry, 48));
            let round = Some(Round { number: u64_at(entry, 40), weight });
            #[allow(clippy::cast_possible_truncation, reason = "2.0")]
            let scale = factor / weight as f32;
            let admission = Admission { scale, samples, round, ..Admission::default() };
            let gradient = Gradient::F32(&values);
            store.take(fragment, gradient, base_version, &admission).unwrap();
        }
        _ => {
            let closed = store.close_round(fragment, u64_at(entry, 40), Some(factor));
            assert!(!matches!(closed, Err(CloseError::NotNow(_))), "{closed:?}");
        }
    }
}

#[derive(Clone, Debug)]
struct Act {
    fragment: usize,
    value: f32,
    /// In a round, or by itself.
    rounds: bool,
    closes: bool,
    stale: u64,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let value = prop_oneof![8 => -1.5_f32..1.5, 1 => Just(3e38), 1 => Just(f32::NAN)];
    let act = (0..4_usize, value, any::<bool>(), prop::bool::weighted(0.2), 0..5_u64).prop_map(
        |(fragment, value, rounds, closes, stale)| Act { fragment, value, rounds, closes, stale },
    );
    prop::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_journal_is_all_that_is_needed(chain in 0..chains().len(), acts in acts()) {
        let journal = Recording::new(1 << 20);
        let first = store(chain).journaled(Box::new(journal.clone()), 7);
        let mut round = [0_u64; 4];
        for act in &acts {
            let values = vec![act.value; GEOMETRY.fragment_range(act.fragment).len()];
            let before = (journal.last_lsn(), first.lsn());
            if act.closes {
                let _ = first.close_round(act.fragment, round[act.fragment], None);
                round[act.fragment] += 1;
                prop_assert_eq!(first.lsn(), before.1 + 1);
            } else {
                let number = round[act.fragment];
                let admission = Admission {
                    scale: 0.5,
                    staleness_power: 1.0,
                    samples: 4,
                    staleness_max: None,
                    round: act.rounds.then_some(Round { number, weight: 2.0 }),
                };
                let base = first.version(act.fragment).saturating_sub(act.stale);
                let taken = first.take(act.fragment, Gradient::F32(&values), base, &admission);
                prop_assert_eq!(first.lsn(), before.1 + u64::from(taken.is_ok()));
            }
            prop_assert_eq!(journal.last_lsn(), first.lsn());
        }
        let second = store(chain);
        let mut chained = 0;
        for (index, entry) in journal.take().iter().enumerate() {
            prop_assert_eq!(u64_at(entry, 0), index as u64 + 1);
            prop_assert_eq!(u64_at(entry, 76), (entry.len() - ENTRY_SIZE) as u64);
            chained = extend(extend(chained, &entry[..ENTRY_SIZE - 4]), &entry[ENTRY_SIZE..]);
            prop_assert_eq!(u32_at(entry, ENTRY_SIZE - 4), chained);
            replay(&second, entry);
        }
        prop_assert_eq!(second.lsn(), first.lsn());
        for plane in 0..first.planes() {
            prop_assert_eq!(bits(&first.plane(plane)), bits(&second.plane(plane)));
        }
        // Rounds that were closed without a record, too: none of theirs may come any more.
        for fragment in 0..first.fragments() {
            prop_assert_eq!(first.accumulated(fragment), second.accumulated(fragment));
        }
    }
}

/// Looks at the store while it is told.
struct Witness(Arc<Mutex<Option<Arc<Store>>>>);

impl Journal for Witness {
    fn append(&self, entry: &Entry<'_>) -> Result<(), ApplyError> {
        let held = self.0.lock().unwrap();
        let store = held.as_ref().unwrap();
        assert_eq!(
            (store.lsn(), store.version(entry.fragment as usize)),
            (entry.lsn - 1, entry.lsn - 1)
        );
        let mut values = vec![0.0; GEOMETRY.len];
        store.read_plane(0, 0, &mut values).unwrap();
        let expected = 1.0 - f32::from(u16::try_from(entry.lsn).unwrap());
        assert_eq!(bits(&values[..48]), bits(&[expected; 48]), "visible before it is journaled");
        assert!(matches!(entry.change, Change::Record { staleness: 0, .. }));
        if entry.lsn > 3 {
            return Err(ApplyError::Full { what: "bytes of the journal", used: 3, limit: 3 });
        }
        Ok(())
    }
}

#[test]
fn nothing_is_visible_before_the_journal_has_it_and_what_it_refuses_never_is() {
    let seen = Arc::new(Mutex::new(None));
    let sgd = [("sgd".to_owned(), [("lr".to_owned(), 1.0)].into())];
    let store = Store::new(GEOMETRY, compile(&sgd, Level::best())).unwrap();
    let store = Arc::new(store.journaled(Box::new(Witness(Arc::clone(&seen))), 0));
    *seen.lock().unwrap() = Some(Arc::clone(&store));
    for lsn in 1..=3 {
        assert_eq!(store.apply(0, Gradient::F32(&[1.0; 48]), 1.0).unwrap().lsn, lsn);
    }
    for _ in 0..3 {
        let refused = store.apply(0, Gradient::F32(&[1.0; 48]), 1.0).unwrap_err();
        assert!(matches!(refused, ApplyError::Full { what: "bytes of the journal", .. }));
    }
    assert_eq!((store.lsn(), store.version(0), store.fragment_lsn(0)), (3, 3, 3));
    seen.lock().unwrap().take();
}

#[test]
fn a_full_journal_takes_again_when_it_is_emptied() {
    let journal = Recording::new(2 * (ENTRY_SIZE + 48 * 4));
    let sgd = [("sgd".to_owned(), [("lr".to_owned(), 1.0)].into())];
    let store = Store::new(GEOMETRY, compile(&sgd, Level::best())).unwrap();
    let store = store.journaled(Box::new(journal.clone()), 7);
    let apply = |fragment| store.apply(fragment, Gradient::F32(&[1.0; 48]), 1.0);
    assert_eq!((apply(0).unwrap().lsn, apply(1).unwrap().lsn), (1, 2));
    let refused = apply(0).unwrap_err().to_string();
    assert!(refused.contains("576 of 576 bytes of the journal"), "{refused}");
    assert_eq!(journal.take().len(), 2);
    assert_eq!((apply(0).unwrap().lsn, journal.last_lsn()), (3, 3));
}
