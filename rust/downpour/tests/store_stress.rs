//! Threads against a store whose limits make every rare path common. Each record adds one
//! everywhere in its fragment, so a torn stripe shows two values and a lost record a wrong sum.

#![cfg(not(loom))]

mod optimizer_twin;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use downpour::kernel::{Gradient, Level};
use downpour::store::{Admission, ApplyError, CloseError, Geometry, Round, Store, Tuning};
use optimizer_twin::{Records, bits, compile, part};

const RECORDS: usize = if cfg!(debug_assertions) { 1_000 } else { 20_000 };

fn counting(geometry: Geometry, tuning: Tuning) -> Arc<Store> {
    let sgd = compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    Arc::new(Store::with_tuning(geometry, sgd, tuning).unwrap())
}

/// A small generator, one a thread, so that a failing run can be thought about.
fn random(seed: usize) -> impl FnMut(usize) -> usize {
    let mut state = seed as u64 * 2 + 1;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        usize::try_from(state >> 33).unwrap() % below
    }
}

/// Every element of a stripe must have been written by the same record.
fn expect_whole(values: &[f32]) {
    assert!(values.iter().all(|value| value.to_bits() == values[0].to_bits()), "torn stripe");
}

fn stress(writers: usize, readers: usize, geometry: Geometry) {
    let tuning = Tuning { fold_limit: 2, copies_max: 3, ..Tuning::default() };
    let store = counting(geometry, tuning);
    let applied: Vec<_> = (0..store.fragments()).map(|_| AtomicUsize::new(0)).collect();
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(writers + readers));
    std::thread::scope(|scope| {
        let (store, applied, stop, barrier) = (&store, &applied, &stop, &barrier);
        for reader in 0..readers {
            scope.spawn(move || {
                let mut random = random(100 + reader);
                barrier.wait();
                while !stop.load(Ordering::Relaxed) {
                    let since = store.lsn();
                    let stripe = random(store.stripes());
                    let fragment = stripe * geometry.stripe_len / geometry.fragment_len;
                    let version = store.version(fragment);
                    let pinned = store.pin(stripe);
                    expect_whole(pinned.parameters());
                    let held: Vec<_> =
                        (0..random(4)).map(|_| store.pin(random(store.stripes()))).collect();
                    for pinned in &held {
                        expect_whole(pinned.parameters());
                    }
                    #[allow(clippy::cast_precision_loss)]
                    let expected = version as f32;
                    assert!(pinned.parameters()[0] >= expected, "older than its version");
                    assert!(store.lsn() >= since);
                    let caught = store.pin_fragment(fragment);
                    if caught.whole {
                        #[allow(clippy::cast_precision_loss)]
                        let expected = caught.version as f32;
                        for stripe in &caught.stripes {
                            assert_eq!(stripe.parameters()[0].to_bits(), expected.to_bits());
                        }
                    }
                }
            });
        }
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                scope.spawn(move || {
                    let mut random = random(writer);
                    let up = vec![-1.0_f32; geometry.fragment_len];
                    barrier.wait();
                    for _ in 0..RECORDS {
                        let fragment = random(store.fragments());
                        let len = geometry.fragment_range(fragment).len();
                        let gradient = Gradient::F32(&up[..len]);
                        match store.apply(fragment, gradient, 1.0) {
                            Ok(_) => drop(applied[fragment].fetch_add(1, Ordering::Relaxed)),
                            Err(ApplyError::Full { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let values = store.plane(0);
    let (lsn, versions, _) = store.counters();
    for (fragment, applied) in applied.iter().enumerate() {
        let applied = applied.load(Ordering::Relaxed);
        assert_eq!(versions[fragment], applied as u64);
        #[allow(clippy::cast_precision_loss)]
        let expected = applied as f32;
        let range = geometry.fragment_range(fragment);
        assert!(values[range].iter().all(|value| value.to_bits() == expected.to_bits()));
    }
    assert_eq!(lsn, versions.iter().sum::<u64>());
    assert_eq!(store.memory().pinned, 0, "a reference was lost");
}

#[test]
fn one_hot_stripe() {
    stress(2, 2, Geometry { len: 64, stripe_len: 64, fragment_len: 64 });
}

#[test]
fn few_fragments_of_several_stripes() {
    stress(3, 3, Geometry { len: 1000, stripe_len: 64, fragment_len: 256 });
}

#[test]
fn many_fragments() {
    stress(3, 2, Geometry { len: 20_000, stripe_len: 64, fragment_len: 128 });
}

/// The order of a fragment's records, not the threads, decides the bits.
#[test]
fn threads_do_not_change_a_bit() {
    let geometry = Geometry { len: 320, stripe_len: 64, fragment_len: 128 };
    let adam = [("lr", 0.1), ("beta1", 0.9), ("beta2", 0.99), ("eps", 1e-8)];
    let new = || Store::new(geometry, compile(&[part("adam", &adam)], Level::best())).unwrap();
    let (sequential, concurrent) = (new(), new());
    let push = |store: &Store, round: usize, fragment: usize| {
        let len = geometry.fragment_range(fragment).len();
        let mut random = random(round * 31 + fragment);
        let element = |_| f32::from(u16::try_from(random(1000)).unwrap()) * 0.01 - 5.0;
        let gradient: Vec<f32> = (0..len).map(element).collect();
        store.apply(fragment, Gradient::F32(&gradient), 1.0).unwrap();
    };
    for round in 0..60 {
        (0..3).for_each(|fragment| push(&sequential, round, fragment));
    }
    // Each fragment has its order from one thread; the threads meet in the arena.
    std::thread::scope(|scope| {
        for fragment in 0..3 {
            let (push, concurrent) = (&push, &concurrent);
            scope.spawn(move || (0..60).for_each(|round| push(concurrent, round, fragment)));
        }
    });
    for plane in 0..3 {
        assert_eq!(bits(&concurrent.plane(plane)), bits(&sequential.plane(plane)));
    }
}

/// Every record is in exactly one round, however writers and closers meet.
#[test]
fn rounds_lose_nothing_and_count_nothing_twice() {
    let geometry = Geometry { len: 320, stripe_len: 64, fragment_len: 128 };
    let sgd = compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    let store = Store::new(geometry, sgd).unwrap().accumulating().unwrap();
    let (taken, closed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let close = |fragment: usize, round: u64| match store.close_round(fragment, round, Some(1.0)) {
        Ok(Some(found)) => {
            closed.fetch_add(usize::try_from(found.of.count).unwrap(), Ordering::Relaxed);
        }
        Ok(None) | Err(CloseError::NotNow(ApplyError::Round { .. })) => {}
        Err(error) => panic!("{error}"),
    };
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (store, taken, close) = (&store, &taken, &close);
            scope.spawn(move || {
                let mut random = random(writer);
                let up = [-1.0_f32; 128];
                for _ in 0..RECORDS {
                    let fragment = random(store.fragments());
                    let len = geometry.fragment_range(fragment).len();
                    let number = store.accumulated(fragment).unwrap().round;
                    let round = Some(Round { number, weight: 1.0 });
                    let admission = Admission { round, ..Admission::default() };
                    match store.apply(fragment, Gradient::F32(&up[..len]), admission) {
                        Ok(_) => drop(taken.fetch_add(1, Ordering::Relaxed)),
                        Err(ApplyError::Round { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if random(4) == 0 {
                        close(fragment, number);
                    }
                }
            });
        }
    });
    for fragment in 0..store.fragments() {
        close(fragment, store.accumulated(fragment).unwrap().round);
    }
    let [taken, closed] = [taken, closed].map(AtomicUsize::into_inner);
    assert_eq!(taken, closed);
    let sums = store.plane(0).iter().step_by(128).map(|value| f64::from(*value)).sum::<f64>();
    #[allow(clippy::cast_precision_loss)]
    let expected = taken as f64;
    assert!((sums - expected).abs() < 0.5, "{sums} {expected}");
    assert_eq!(store.lsn(), taken as u64 + (0..3).map(|f| store.version(f)).sum::<u64>());
}
