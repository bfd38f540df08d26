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
use downpour::store::{ApplyError, Geometry, Outcome, Pinned, Store, Tuning};
use loom::thread;

const STRIPE: usize = 16;
const UP: [f32; 2 * STRIPE] = [-1.0; 2 * STRIPE];

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(body);
}

/// SGD with a step of 1 over `len` elements in one fragment; every reader folds.
fn counting(len: usize, queue_max: u16) -> Arc<Store> {
    let numbers = BTreeMap::from([("lr".to_owned(), 1.0)]);
    let sgd = Optimizer::compile(&[("sgd".to_owned(), numbers)], Some(Level::Baseline)).unwrap();
    let geometry = Geometry { len, stripe_len: STRIPE, fragment_len: len };
    let tuning = Tuning { fold_limit: 1, queue_max, copies_max: 2, ..Tuning::default() };
    Arc::new(Store::with_tuning(geometry, sgd, tuning).unwrap())
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
        let store = counting(STRIPE, 2);
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

/// Two readers fold the same word while a writer swaps it, and the last of them recycles the block
/// that the writer may take next.
#[test]
fn two_folds_against_a_swap() {
    explore(|| {
        let store = counting(STRIPE, 2);
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
        let store = counting(STRIPE, 2);
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

/// Claim, inbox, drain and release: no record is lost, whoever arrives when.
#[test]
fn submissions_are_never_lost() {
    explore(|| {
        let store = counting(STRIPE, 3);
        let submit = |store: &Arc<Store>| {
            drop(store.submit(store.ticket(0), up(store), 1.0).unwrap());
        };
        let others = [(); 2].map(|()| spawn(&store, submit));
        submit(&store);
        for other in others {
            other.join().unwrap();
        }
        expect(&store, 3);
    });
}

/// A record arrives early, a ticket is dropped, and a thread joins in the middle.
#[test]
fn early_records_wait_for_late_ones() {
    explore(|| {
        let store = counting(STRIPE, 3);
        let [first, second, third] = [(); 3].map(|()| store.ticket(0));
        let Outcome::Queued(third) = store.submit(third, up(&store), 1.0).unwrap() else {
            panic!("it was early")
        };
        drop(second);
        let other =
            spawn(&store, |store| drop(store.submit(store.ticket(0), up(store), 1.0).unwrap()));
        drop(store.submit(first, up(&store), 1.0).unwrap());
        other.join().unwrap();
        assert_eq!(third.poll().unwrap().unwrap().version_before, 1);
        expect(&store, 3);
    });
}

/// `apply` waits for its turn, also behind a record that is refused.
#[test]
fn applying_waits_for_its_turn() {
    explore(|| {
        let store = counting(STRIPE, 2);
        let other = spawn(&store, |store| {
            let refused = store.apply(0, Gradient::F32(&[f32::NAN; STRIPE]), 1.0);
            assert_eq!(refused, Err(ApplyError::NonFinite { count: STRIPE, first_index: 0 }));
        });
        store.apply(0, up(&store), 1.0).unwrap();
        other.join().unwrap();
        expect(&store, 1);
    });
}

/// What `lsn` counted is visible, as contents, as version and as the fragment's LSN.
#[test]
fn counters_never_run_ahead_of_contents() {
    explore(|| {
        let store = counting(2 * STRIPE, 2);
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
