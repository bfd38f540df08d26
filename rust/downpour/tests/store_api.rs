//! What one thread can see of a store: cutting, loading, ordering, refusing, pinning, counting.

#![cfg(not(loom))]

mod optimizer_twin;

use std::sync::Arc;

use downpour::checksum::crc32c;
use downpour::kernel::{DType, Gradient, Level};
use downpour::store::{Applied, ApplyError, Geometry, Store, StoreError, Tuning};
use optimizer_twin::{Records, bits, compile, part};

/// Two whole fragments of two stripes each, and a last one of 7 elements.
const GEOMETRY: Geometry = Geometry { len: 135, stripe_len: 32, fragment_len: 64 };

/// SGD with a step of 1, so that a gradient of -1 counts up by one.
fn counting(tuning: Tuning) -> Arc<Store> {
    let sgd = compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    Arc::new(Store::with_tuning(GEOMETRY, sgd, tuning).unwrap())
}

fn store() -> Arc<Store> {
    counting(Tuning::default())
}

fn adagrad() -> Store {
    let numbers = [("lr", 0.5), ("eps", 1e-8), ("initial", 0.25)];
    Store::new(GEOMETRY, compile(&[part("adagrad", &numbers)], Level::best())).unwrap()
}

const UP: Gradient<'static> = Gradient::F32(&[-1.0; 64]);

#[test]
fn a_new_store_holds_zeros_and_initial_state() {
    let store = adagrad();
    assert_eq!((store.stripes(), store.fragments(), store.planes()), (5, 3, 2));
    assert_eq!(store.plane(0), [0.0; 135]);
    assert_eq!(store.plane(1), [0.25; 135]);
    assert_eq!(store.counters(), (0, vec![0; 3], vec![0; 3]));
}

#[test]
fn records_count_and_touch_their_fragment_only() {
    let store = store();
    assert_eq!(store.apply(1, UP, 1.0), Ok(Applied { lsn: 1, version_before: 0 }));
    assert_eq!(store.apply(1, UP, 0.5), Ok(Applied { lsn: 2, version_before: 1 }));
    let last = Gradient::F32(&[-1.0; 7]);
    assert_eq!(store.apply(2, last, 1.0), Ok(Applied { lsn: 3, version_before: 0 }));
    assert_eq!(store.plane(0), [vec![0.0; 64], vec![1.5; 64], vec![1.0; 7]].concat());
    assert_eq!(store.counters(), (3, vec![0, 2, 1], vec![0, 2, 3]));
}

#[test]
fn any_type_and_address_is_applied() {
    for (dtype, size) in [(DType::F32, 4), (DType::F64, 8), (DType::F16, 2), (DType::Bf16, 2)] {
        let mut bytes = vec![0_u8; 64 * size + 1];
        let values = Gradient::F32(&[-1.5; 64]);
        downpour::kernel::cast(Level::best(), values, &mut bytes[1..], dtype).unwrap();
        let store = store();
        let gradient = Gradient::from_bytes(&bytes[1..], dtype).unwrap();
        store.apply(0, gradient, 2.0).unwrap();
        assert_eq!(store.plane(0)[..64], [3.0; 64], "{dtype:?}");
    }
}

#[test]
fn refused_records_change_nothing() {
    let store = adagrad();
    store.apply(0, Gradient::F32(&[0.3; 64]), 1.0).unwrap();
    let before = [bits(&store.plane(0)), bits(&store.plane(1))];
    let mut poison = [1.0_f32; 64];
    poison[33] = f32::NAN;
    poison[60] = f32::INFINITY;
    let refused = Err(ApplyError::NonFinite { count: 2, first_index: 33 });
    assert_eq!(store.apply(0, Gradient::F32(&poison), 1.0), refused);
    // Finite, but not after scaling, or not as f32.
    let large = Err(ApplyError::NonFinite { count: 64, first_index: 0 });
    assert_eq!(store.apply(0, Gradient::F32(&[1e30; 64]), 1e10), large);
    assert_eq!(store.apply(0, Gradient::F64(&[1e300; 64]), 1.0), large);
    assert_eq!(store.apply(0, Gradient::F32(&[1.0; 64]), f32::NAN), large);
    // The square overflows.
    let result = Err(ApplyError::ResultNonFinite { count: 64, first_index: 0 });
    assert_eq!(store.apply(0, Gradient::F32(&[1e30; 64]), 1.0), result);
    let length = ApplyError::Length { expected: 7, actual: 64 };
    assert_eq!(store.apply(2, UP, 1.0), Err(length));
    assert_eq!(store.apply(3, UP, 1.0), Err(ApplyError::Fragment { fragment: 3, fragments: 3 }));
    assert_eq!([bits(&store.plane(0)), bits(&store.plane(1))], before);
    assert_eq!(store.counters(), (1, vec![1, 0, 0], vec![1, 0, 0]));
    assert_eq!(store.apply(0, UP, 1.0), Ok(Applied { lsn: 2, version_before: 1 }));
}

#[test]
fn planes_load_and_read_across_stripes_until_the_first_record() {
    let store = adagrad();
    let values: Vec<f32> = (0..100_u16).map(f32::from).collect();
    store.load_plane(0, 20, &values).unwrap();
    store.load_plane(1, 135, &[]).unwrap();
    store.load_plane(1, 31, &[9.0, 8.0]).unwrap();
    assert_eq!(store.plane(0)[18..22], [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(store.plane(0)[119..121], [99.0, 0.0]);
    assert_eq!(store.plane(1)[30..34], [0.25, 9.0, 8.0, 0.25]);
    let mut part = [0.0; 3];
    store.read_plane(0, 82, &mut part).unwrap();
    assert_eq!(bits(&part), bits(&[62.0, 63.0, 64.0]));
    let plane = Err(StoreError::Plane { plane: 2, last: 1 });
    assert_eq!(store.load_plane(2, 0, &[]), plane);
    assert_eq!(store.read_plane(2, 0, &mut []), plane);
    let range = StoreError::Range { start: 134, stop: 137, len: 135 };
    assert_eq!(store.read_plane(0, 134, &mut part), Err(range.clone()));
    assert_eq!(store.load_plane(0, 134, &part), Err(range));
    assert!(store.load_plane(0, usize::MAX, &part).is_err());
    assert_eq!(store.lsn(), 0);
    store.apply(2, Gradient::F32(&[0.0; 7]), 1.0).unwrap();
    let sealed = Err(StoreError::Sealed { lsn: 1 });
    assert_eq!(store.load_plane(0, 0, &[1.0]), sealed);
    assert_eq!(store.restore(1, &[0; 3], &[0; 3], &[0; 3]), sealed);
}

#[test]
fn a_restored_store_continues_bit_for_bit() {
    let adam = || {
        let numbers = [("lr", 0.1), ("beta1", 0.9), ("beta2", 0.99), ("eps", 1e-8)];
        Store::new(GEOMETRY, compile(&[part("adam", &numbers)], Level::best())).unwrap()
    };
    let whole = adam();
    let push = |store: &Store, round: u8| {
        let gradient = [f32::from(round) * 0.3 - 1.0; 64];
        store.apply(usize::from(round % 2), Gradient::F32(&gradient), 1.0).unwrap()
    };
    for round in 0..5 {
        push(&whole, round);
    }
    let continued = adam();
    for plane in 0..3 {
        continued.load_plane(plane, 0, &whole.plane(plane)).unwrap();
    }
    let (lsn, versions, lsns) = whole.counters();
    let short = continued.restore(lsn, &versions[1..], &lsns, &[0; 3]).unwrap_err();
    assert_eq!(short, StoreError::Fragments { name: "versions", actual: 2, expected: 3 });
    let above = continued.restore(4, &versions, &lsns, &[0; 3]).unwrap_err();
    assert_eq!(above, StoreError::Lsn { fragment: 0, fragment_lsn: 5, lsn: 4 });
    continued.restore(lsn, &versions, &lsns, &[0; 3]).unwrap();
    for round in 5..9 {
        assert_eq!(push(&continued, round), push(&whole, round));
    }
    for plane in 0..3 {
        assert_eq!(bits(&continued.plane(plane)), bits(&whole.plane(plane)));
    }
}

#[test]
fn pinned_stripes_stay_as_they_were() {
    let store = store();
    store.apply(0, UP, 1.0).unwrap();
    let pinned = store.pin(1);
    let crc = pinned.crc32c();
    assert_eq!(crc, crc32c(bytemuck::cast_slice(&[1.0_f32; 32])));
    for _ in 0..20 {
        store.apply(0, UP, 1.0).unwrap();
    }
    assert_eq!(pinned.parameters(), [1.0; 32]);
    assert_eq!((pinned.crc32c(), pinned.stripe()), (crc, 1));
    let now = store.pin(1);
    assert_eq!(now.parameters(), [21.0; 32]);
    assert_eq!(now.crc32c(), crc32c(bytemuck::cast_slice(&[21.0_f32; 32])));
    assert_eq!(store.pin(4).parameters().len(), 7);
    drop((pinned, now));
    assert_eq!(store.memory().pinned, 0);
}

#[test]
fn a_snapshot_is_exact_when_nobody_writes_and_outlives_the_store_handle() {
    let store = store();
    store.apply(1, UP, 3.0).unwrap();
    let snapshot = store.snapshot();
    store.apply(1, UP, 1.0).unwrap();
    store.apply(0, UP, 1.0).unwrap();
    drop(store);
    assert!(snapshot.is_exact());
    assert_eq!(snapshot.lsn, 1);
    let counters: Vec<_> = snapshot.fragments.iter().map(|f| (f.version, f.lsn)).collect();
    assert_eq!(counters, [(0, 0), (1, 1), (0, 0)]);
    let values: Vec<f32> =
        snapshot.stripes().flat_map(|stripe| stripe.parameters().to_vec()).collect();
    assert_eq!(values, [vec![0.0; 64], vec![3.0; 64], vec![0.0; 7]].concat());
}

#[test]
fn copies_are_bounded_and_given_back() {
    let store = counting(Tuning { copies_max: 1, ..Tuning::default() });
    let at_rest = store.memory();
    let block = 32 * 4;
    // 5 stripes, and the least a record of two stripes needs: 2 * (2 + 1) copies.
    let mut held = Vec::new();
    let full = loop {
        held.push(store.snapshot());
        match store.apply(0, UP, 1.0) {
            Ok(_) => assert!(held.len() < 10, "no bound"),
            Err(error) => break error,
        }
    };
    let ApplyError::Full { what: "stripe copies", used, limit } = full else { panic!("{full}") };
    assert_eq!((used, limit), (6, 6));
    assert_eq!(store.memory().pinned + store.memory().spare, 6 * block);
    let lsn = store.lsn();
    assert_eq!(store.plane(0)[..64], [f32::from(u16::try_from(lsn).unwrap()); 64]);
    drop(held);
    assert!(store.apply(0, UP, 1.0).is_ok());
    let memory = store.memory();
    assert_eq!(memory.pinned, 0);
    assert!(memory.spare <= 6 * block, "{memory:?}");
    assert_eq!((memory.parameters, memory.state), (135 * 4, 0));
    assert_eq!(memory.table, at_rest.table);
}

#[test]
fn readers_that_ask_before_they_keep_never_cost_a_record_its_block() {
    let store = store();
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        for fragment in 0..3 {
            let mut pinned = store.pin_fragment(fragment);
            if store.keep(&mut pinned) {
                kept.push(pinned);
            } else {
                refused += 1;
            }
        }
        store.apply(0, UP, 1.0).unwrap();
        store.apply(1, UP, 1.0).unwrap();
    }
    // 10 copies of 5 stripes, less two records of two stripes and their scratch.
    assert_eq!(store.kept(), 4);
    assert!(refused > 200);
    let stripes: usize = kept.iter().map(|fragment| fragment.stripes.len()).sum();
    assert_eq!(stripes, 4);
    drop(kept);
    assert_eq!((store.kept(), store.memory().pinned), (0, 0));
    let mut pinned = store.pin_fragment(0);
    assert!(store.keep(&mut pinned));
}

#[test]
fn memory_beyond_the_elements_is_small() {
    let geometry = Geometry { len: 4 << 20, stripe_len: 16 << 10, fragment_len: 64 << 10 };
    let numbers = [("lr", 0.5), ("eps", 1e-8), ("initial", 0.0)];
    let store = Store::new(geometry, compile(&[part("adagrad", &numbers)], Level::best())).unwrap();
    let gradient = vec![1.0_f32; 64 << 10];
    for fragment in 0..store.fragments() {
        store.apply(fragment, Gradient::F32(&gradient), 1.0).unwrap();
    }
    let memory = store.memory();
    let elements = memory.parameters + memory.state;
    assert_eq!((memory.pinned, elements), (0, 8 * geometry.len));
    assert!(memory.spare + memory.table < elements / 20, "{memory:?}");
}

#[test]
fn impossible_limits_are_named() {
    let sgd = || compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    let refused = |tuning| Store::with_tuning(GEOMETRY, sgd(), tuning).unwrap_err();
    let usual = Tuning::default();
    for tuning in [
        Tuning { copies_max: 0, ..usual },
        Tuning { copies_max: 7, ..usual },
        Tuning { fold_limit: 0, ..usual },
    ] {
        assert!(matches!(refused(tuning), StoreError::Tuning { .. }), "{tuning:?}");
    }
    let zero = Geometry { len: 0, ..GEOMETRY };
    assert!(matches!(Store::new(zero, sgd()).unwrap_err(), StoreError::Len { len: 0, .. }));
}
