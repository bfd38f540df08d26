//! Past versions: which one a record sees, that they are bounded, go along, and cost nobody who
//! does not look back.

#![cfg(not(loom))]

mod optimizer_twin;

use std::sync::Arc;

use downpour::kernel::{Gradient, Level};
use downpour::store::{Admission, ApplyError, Geometry, Store, StoreError, Tuning};
use optimizer_twin::{Part, Records, bits, chains, compile, part};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { len: 100, stripe_len: 32, fragment_len: 64 };
const PLAIN: Admission =
    Admission { scale: 1.0, staleness_power: 0.0, samples: 0, round: None, staleness_max: None };

/// Compensates before SGD with a step of 1.
fn compensated(strength: f64, history: f64) -> Vec<Part> {
    let numbers = [("strength", strength), ("history", history)];
    vec![part("delay_compensation", &numbers), part("sgd", &[("lr", 1.0)])]
}

fn store_of(parts: &[Part]) -> Store {
    Store::new(GEOMETRY, compile(parts, Level::best())).unwrap()
}

fn take(store: &Store, fragment: usize, value: f32, base: u64) {
    let gradient = vec![value; GEOMETRY.fragment_range(fragment).len()];
    store.take(fragment, Gradient::F32(&gradient), base, &PLAIN).unwrap();
}

/// With gradients of 1 and a strength of 1, a step is 1 + what the parameter has moved: so the
/// parameters say which version was seen.
#[test]
fn a_record_sees_the_version_it_names_or_the_oldest_kept() {
    let store = store_of(&compensated(1.0, 2.0));
    let at = || store.plane(0)[0];
    let mut values = vec![0.0_f32];
    // Base by base: fresh, one behind, two behind, three behind (kept no more), and the future.
    for (base, seen) in [(0, 0), (0, 0), (0, 0), (0, 1), (1, 2), (9, 5), (u64::MAX, 6)] {
        let now = at();
        take(&store, 0, 1.0, base);
        let step = 1.0 + (now - values[seen]);
        values.push(now - step);
        assert_eq!(at().to_bits(), (now - step).to_bits(), "base {base}");
    }
    assert_eq!((store.version(0), store.bases_gone(), store.history()), (7, 2, 2));
    // The other fragment has versions of its own.
    take(&store, 1, 1.0, 0);
    take(&store, 1, 1.0, 0);
    assert_eq!(store.plane(0)[99].to_bits(), (-1.0_f32 - (1.0 - 1.0)).to_bits());
}

#[test]
fn what_is_refused_is_no_version() {
    let store = store_of(&compensated(1.0, 4.0));
    take(&store, 0, 1.0, 0);
    let poison = [f32::NAN; 64];
    for _ in 0..9 {
        let refused = store.take(0, Gradient::F32(&poison), 0, &PLAIN);
        assert!(matches!(refused, Err(ApplyError::NonFinite { .. })));
    }
    take(&store, 0, 1.0, 0);
    assert_eq!((store.bases_gone(), store.plane(0)[0]), (0, -1.0));
}

#[test]
fn versions_are_bounded_and_counted() {
    let block = 32 * 4;
    let store = Arc::new(store_of(&compensated(0.5, 3.0)));
    assert_eq!(store.memory().history, 0);
    for (records, versions) in [(1, 1), (1, 2), (1, 3), (20, 3)] {
        for _ in 0..records {
            take(&store, 0, 0.01, u64::MAX);
        }
        let memory = store.memory();
        assert_eq!((memory.history, memory.pinned), (versions * 2 * block, 0));
        assert_eq!((memory.parameters, memory.state), (400, 0));
    }
    // A reader's block is a reader's once no version needs it.
    let pinned = store.pin_fragment(0);
    take(&store, 0, 0.01, u64::MAX);
    assert_eq!(store.memory().pinned, 0);
    for _ in 0..3 {
        take(&store, 0, 0.01, u64::MAX);
    }
    assert_eq!((store.memory().pinned, store.memory().history), (2 * block, 6 * block));
    drop(pinned);
    assert_eq!(store.memory().pinned, 0);
    // Nobody who does not look back pays.
    let plain = store_of(&[part("sgd", &[("lr", 1.0)])]);
    take(&plain, 0, 1.0, 0);
    take(&plain, 0, 1.0, 0);
    assert_eq!((plain.history(), plain.memory().history, plain.bases_gone()), (0, 0, 0));
}

/// Readers' bound is what it is without a history.
#[test]
fn readers_and_versions_do_not_take_each_others_blocks() {
    let tuning = Tuning { copies_max: 1, ..Tuning::default() };
    let parts = compensated(0.5, 8.0);
    let store = Store::with_tuning(GEOMETRY, compile(&parts, Level::best()), tuning).unwrap();
    let store = Arc::new(store);
    let mut held = Vec::new();
    for _ in 0..50 {
        for fragment in 0..2 {
            let mut pinned = store.pin_fragment(fragment);
            if store.keep(&mut pinned) {
                held.push(pinned);
            }
            take(&store, fragment, 0.01, store.version(fragment).saturating_sub(20));
        }
    }
    assert_eq!(store.memory().history, 8 * 4 * 32 * 4);
}

fn copy(from: &Store, to: &Store) {
    for plane in 0..from.planes() + from.history() {
        to.load_plane(plane, 0, &from.plane(plane)).unwrap();
    }
    let (lsn, versions, lsns) = from.counters();
    let samples: Vec<_> = (0..from.fragments()).map(|fragment| from.samples(fragment)).collect();
    to.restore(lsn, &versions, &lsns, &samples).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// What goes along with the planes goes on to the bit, whatever the staleness, from any moment.
    #[test]
    fn versions_go_along(
        chain in 0..chains().len(),
        before in prop::collection::vec((0..2_usize, -1.0_f32..1.0, 0..4_u64), 0..12),
        after in prop::collection::vec((0..2_usize, -1.0_f32..1.0, 0..4_u64), 1..12),
    ) {
        let parts = chains().swap_remove(chain);
        let (old, new) = (store_of(&parts), store_of(&parts));
        let act = |store: &Store, acts: &[(usize, f32, u64)]| {
            for &(fragment, value, stale) in acts {
                take(store, fragment, value, store.version(fragment).saturating_sub(stale));
            }
        };
        act(&old, &before);
        copy(&old, &new);
        act(&old, &after);
        act(&new, &after);
        prop_assert_eq!(new.counters(), old.counters());
        for plane in 0..old.planes() + old.history() {
            prop_assert_eq!(bits(&new.plane(plane)), bits(&old.plane(plane)), "plane {}", plane);
        }
    }

    /// A strength of 0, and a gap of 0, are the rule alone, to the bit.
    #[test]
    fn without_strength_or_gap_it_is_the_rule_alone(
        values in prop::collection::vec(
            prop_oneof![8 => -2.0_f32..2.0, 1 => Just(0.0), 1 => Just(-0.0)], 64,
        ),
        stale in prop::collection::vec(0..6_u64, 1..10),
    ) {
        let history = ("history", 3.0);
        let compensation = part("delay_compensation", &[("strength", 0.0), history]);
        let decays = [("decay", 0.9), ("eps", 1e-6), history];
        let adaptive = [&decays[..], &[("strength", 0.0)]].concat();
        let adaptive = part("adaptive_delay_compensation", &adaptive);
        let gap = part("gap_aware", &decays);
        let rule = part("adagrad", &[("lr", 0.1), ("eps", 1e-8), ("initial", 0.0)]);
        for (change, is_stale) in [(compensation, true), (adaptive, true), (gap, false)] {
            let alone = store_of(std::slice::from_ref(&rule));
            let changed = store_of(&[change, rule.clone()]);
            for stale in &stale {
                let base = alone.version(0).saturating_sub(if is_stale { *stale } else { 0 });
                for store in [&alone, &changed] {
                    store.take(0, Gradient::F32(&values), base, &PLAIN).unwrap();
                }
            }
            prop_assert_eq!(bits(&alone.plane(0)), bits(&changed.plane(0)));
        }
    }
}

#[test]
fn planes_beyond_the_past_are_named() {
    let store = store_of(&compensated(1.0, 2.0));
    let refused = store.load_plane(3, 0, &[1.0]);
    assert_eq!(refused, Err(StoreError::Plane { plane: 3, last: 2 }));
    store.load_plane(2, 0, &[1.0; 100]).unwrap();
    take(&store, 0, 1.0, 0);
    let sealed = store.load_plane(1, 0, &[1.0]);
    assert_eq!(sealed, Err(StoreError::Sealed { lsn: 1 }));
}
