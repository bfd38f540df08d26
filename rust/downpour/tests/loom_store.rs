//! Every interleaving (up to two preemptions) of the store's protocol on the smallest store that
//! has it all. Run with `RUSTFLAGS="--cfg loom" cargo test --release -p downpour --test
//! loom_store`.
//!
//! loom also checks that every write to a block's memory is ordered after every read of it, so a
//! recycled block that is still being read fails here, not in a user's parameters.

#![cfg(loom)]

use std::collections::BTreeMap;
use std::sync::Arc;

use downpour::kernel::{Gradient, Level};
use downpour::optimizer::Optimizer;
use downpour::store::{Admission, ApplyError, Geometry, Pinned, Round, Store, Tuning};
use loom::thread;

const STRIPE: usize = 16;
const UP: [f32; 2 * STRIPE] = [-1.0; 2 * STRIPE];

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(body);
}

/// SGD with a step of 1 over `len` elements in one fragment; every reader folds.
fn counting(len: usize) -> Arc<Store> {
    counting_in(len, len)
}

fn counting_in(len: usize, fragment_len: usize) -> Arc<Store> {
    let numbers = BTreeMap::from([("lr".to_owned(), 1.0)]);
    let sgd = Optimizer::compile(&[("sgd".to_owned(), numbers)], Some(Level::Baseline)).unwrap();
    let geometry = Geometry { len, stripe_len: STRIPE, fragment_len };
    let tuning = Tuning { fold_limit: 1, copies_max: 2, ..Tuning::default() };
    Arc::new(Store::with_tuning(geometry, sgd, tuning).unwrap())
}

/// The same, with a part that looks one version back and changes nothing.
fn remembering() -> Arc<Store> {
    let numbers = BTreeMap::from([("strength".to_owned(), 0.0), ("history".to_owned(), 1.0)]);
    let sgd = ("sgd".to_owned(), BTreeMap::from([("lr".to_owned(), 1.0)]));
    let parts = [("delay_compensation".to_owned(), numbers), sgd];
    let optimizer = Optimizer::compile(&parts, Some(Level::Baseline)).unwrap();
    let geometry = Geometry { len: STRIPE, stripe_len: STRIPE, fragment_len: STRIPE };
    let tuning = Tuning { fold_limit: 1, copies_max: 2, ..Tuning::default() };
    Arc::new(Store::with_tuning(geometry, optimizer, tuning).unwrap())
}

/// The same with an accumulator.
fn combining() -> Arc<Store> {
    let store = Arc::into_inner(counting(STRIPE)).expect("nobody else has it");
    Arc::new(store.accumulating().unwrap())
}

fn first_round() -> Admission {
    Admission { round: Some(Round { number: 0, weight: 1.0 }), ..Admission::default() }
}

fn up(store: &Store) -> Gradient<'static> {
    Gradient::F32(&UP[..store.geometry().len])
}

fn spawn(store: &Arc<Store>, body: fn(&Arc<Store>)) -> thread::JoinHandle<()> {
    let store = Arc::clone(store);
    thread::spawn(move || body(&store))
}

fn value(pinned: &Pinned) -> f32 {
    let values = pinned.parameters();
    assert!(values.iter().all(|value| value.to_bits() == values[0].to_bits()), "torn");
    values[0]
}

fn expect(store: &Arc<Store>, records: u16) {
    for stripe in 0..store.stripes() {
        assert_eq!(value(&store.pin(stripe)).to_bits(), f32::from(records).to_bits());
    }
    let records = u64::from(records);
    assert_eq!((store.lsn(), store.version(0), store.fragment_lsn(0)), (records, records, records));
    assert_eq!(store.memory().pinned, 0, "a reference was lost");
}

/// Publish, acquire, fold, release and recycle: the old block is read while the new is published
/// and a third is written.
#[test]
fn readers_against_a_writer() {
    explore(|| {
        let store = counting(STRIPE);
        let reader = spawn(&store, |store| {
            let version = store.version(0);
            let first = store.pin(0);
            let before = value(&first);
            assert!(before >= if version == 0 { 0.0 } else { 1.0 });
            let second = store.pin(0);
            assert!(value(&second) >= before);
            assert_eq!(value(&first).to_bits(), before.to_bits());
        });
        store.apply(0, up(&store), 1.0).unwrap();
        store.apply(0, up(&store), 1.0).unwrap();
        reader.join().unwrap();
        expect(&store, 2);
    });
}

/// A version that is remembered is let go while a reader has it: whoever is last recycles it.
#[test]
fn a_reader_has_what_a_history_lets_go() {
    explore(|| {
        let store = remembering();
        let reader = spawn(&store, |store| {
            let pinned = store.pin(0);
            let before = value(&pinned);
            assert_eq!(value(&pinned).to_bits(), before.to_bits());
        });
        for base in [0, 0, 1] {
            store.take(0, up(&store), base, &Admission::default()).unwrap();
        }
        reader.join().unwrap();
        expect(&store, 3);
        assert_eq!(store.memory().history, STRIPE * 4);
    });
}

/// Two readers fold the same word while a writer swaps it, and the last of them recycles the block
/// that the writer may take next.
#[test]
fn two_folds_against_a_swap() {
    explore(|| {
        let store = counting(STRIPE);
        let readers = [(); 2].map(|()| spawn(&store, |store| assert!(value(&store.pin(0)) <= 2.0)));
        store.apply(0, up(&store), 1.0).unwrap();
        store.apply(0, up(&store), 1.0).unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
        expect(&store, 2);
    });
}

/// Two readers let go of a retired block; the last one recycles what both have read.
#[test]
fn the_last_reader_recycles_for_all() {
    explore(|| {
        let store = counting(STRIPE);
        let readers = [(); 2].map(|()| {
            let pinned = store.pin(0);
            thread::spawn(move || assert_eq!(value(&pinned).to_bits(), 0))
        });
        store.apply(0, up(&store), 1.0).unwrap();
        store.apply(0, up(&store), 1.0).unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
        expect(&store, 2);
    });
}

/// The claim: no record is lost, whoever arrives when, also behind one that is refused.
#[test]
fn records_wait_for_each_other() {
    explore(|| {
        let store = counting(STRIPE);
        let other = spawn(&store, |store| {
            let refused = store.apply(0, Gradient::F32(&[f32::NAN; STRIPE]), 1.0);
            assert_eq!(refused, Err(ApplyError::NonFinite { count: STRIPE, first_index: 0 }));
            store.apply(0, up(store), 1.0).unwrap();
        });
        store.apply(0, up(&store), 1.0).unwrap();
        other.join().unwrap();
        expect(&store, 2);
    });
}

/// A record is in the round that is closed, or refused and nowhere; a reader sees the whole sum.
#[test]
fn a_record_meets_the_end_of_its_round() {
    explore(|| {
        let store = combining();
        store.apply(0, up(&store), first_round()).unwrap();
        let late = spawn(&store, |store| match store.apply(0, up(store), first_round()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error, ApplyError::Round { round: 0, open: 1, count: 0 }),
        });
        let reader = spawn(&store, |store| assert!(value(&store.pin(0)) <= 2.0));
        let closed = store.close_round(0, 0, Some(1.0)).unwrap().unwrap();
        late.join().unwrap();
        reader.join().unwrap();
        let records = u16::try_from(closed.of.count).unwrap();
        assert_eq!(value(&store.pin(0)).to_bits(), f32::from(records).to_bits());
        assert_eq!((store.lsn(), store.version(0)), (closed.of.count + 1, 1));
        assert_eq!(store.fragment_lsn(0), closed.lsn);
    });
}

/// Two closers: one applies the round, the other is told.
#[test]
fn a_round_closes_once() {
    explore(|| {
        let store = combining();
        store.apply(0, up(&store), first_round()).unwrap();
        let other = spawn(&store, |store| drop(store.close_round(0, 0, None)));
        drop(store.close_round(0, 0, None));
        other.join().unwrap();
        assert_eq!(value(&store.pin(0)).to_bits(), 1.0_f32.to_bits());
        assert_eq!((store.lsn(), store.version(0), store.fragment_lsn(0)), (2, 1, 2));
    });
}

/// What `lsn` counted is visible, as contents, as version and as the fragment's LSN.
#[test]
fn counters_never_run_ahead_of_contents() {
    explore(|| {
        let store = counting(2 * STRIPE);
        let reader = spawn(&store, |store| {
            let lsn = store.lsn();
            assert!(store.fragment_lsn(0) >= lsn && store.version(0) >= lsn);
            let caught = store.pin_fragment(0);
            for stripe in &caught.stripes {
                let value = value(stripe);
                assert!(value >= if caught.version == 0 { 0.0 } else { 1.0 });
                assert!(value >= if lsn == 0 { 0.0 } else { 1.0 });
                if caught.whole {
                    assert_eq!(value.to_bits(), if caught.version == 0 { 0 } else { 0x3f80_0000 });
                }
            }
        });
        store.apply(0, up(&store), 1.0).unwrap();
        reader.join().unwrap();
        expect(&store, 1);
    });
}

/// Two fragments are updated side by side, and the later number may be published first. What `lsn`
/// says is visible nevertheless, and "everything changed since" misses nothing.
#[test]
fn the_horizon_waits_for_what_was_numbered_before() {
    explore(|| {
        let store = counting_in(2 * STRIPE, STRIPE);
        let one = Gradient::F32(&UP[..STRIPE]);
        let other = spawn(&store, |store| {
            store.apply(1, Gradient::F32(&UP[..STRIPE]), 1.0).unwrap();
        });
        let reader = spawn(&store, |store| {
            let since = store.lsn();
            let copy = [0, 1].map(|stripe| value(&store.pin(stripe)));
            assert!(u64::from(copy[0] > 0.0) + u64::from(copy[1] > 0.0) >= since);
            let now = store.lsn();
            let changed = [0, 1].map(|fragment| store.fragment_lsn(fragment) > since);
            let seen = [0, 1].map(|i| if changed[i] { value(&store.pin(i)) } else { copy[i] });
            assert!(u64::from(seen[0] > 0.0) + u64::from(seen[1] > 0.0) >= now);
        });
        store.apply(0, one, 1.0).unwrap();
        other.join().unwrap();
        reader.join().unwrap();
        assert_eq!(store.lsn(), 2);
        assert_eq!(store.fragment_lsn(0) + store.fragment_lsn(1), 3);
    });
}
