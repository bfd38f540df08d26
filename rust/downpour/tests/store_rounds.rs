//! Records that become one update together: what is added, what is refused, what a close leaves.

#![cfg(not(loom))]

mod optimizer_twin;

use downpour::kernel::{Gradient, Level};
use downpour::store::{
    Accumulated, Admission, AdmissionError, Applied, ApplyError, CloseError, Closed, Geometry,
    Round, Store, StoreError, Tuning,
};
use optimizer_twin::{Records, Twin, bits, chains, compile, part};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { len: 100, stripe_len: 32, fragment_len: 64 };
const ONES: Gradient<'static> = Gradient::F32(&[1.0; 64]);

fn sgd() -> Store {
    let sgd = compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    Store::new(GEOMETRY, sgd).unwrap().accumulating().unwrap()
}

fn of_round(number: u64) -> Admission {
    weighed(number, 1.0)
}

fn weighed(number: u64, weight: f64) -> Admission {
    Admission { round: Some(Round { number, weight }), ..Admission::default() }
}

#[test]
fn a_round_is_one_update() {
    let store = sgd();
    assert_eq!(store.apply(0, ONES, weighed(3, 2.0)), Ok(Applied { lsn: 1, version_before: 0 }));
    let stale = Admission { samples: 7, scale: 2.0, ..of_round(3) };
    assert_eq!(store.take(0, ONES, 0, &stale), Ok(Applied { lsn: 2, version_before: 0 }));
    let of = Accumulated { round: 3, count: 2, weight: 3.0, samples: 7, staleness: 0 };
    assert_eq!(store.accumulated(0), Some(of));
    // Nothing is visible, and nothing counts as changed.
    assert_eq!(store.plane(0), [0.0; 100]);
    assert_eq!((store.version(0), store.fragment_lsn(0), store.samples(0)), (0, 0, 0));
    let mut sum = [f32::NAN; 64];
    assert_eq!(store.read_accumulated(0, &mut sum), Ok(Some(of)));
    assert_eq!(bits(&sum), bits(&[4.0; 64]));
    let closed = store.close_round(0, 3, None);
    assert_eq!(closed, Ok(Some(Closed { lsn: 3, version: 1, of })));
    assert_eq!(store.plane(0)[..64], [-4.0 * (1.0_f32 / 3.0); 64]);
    assert_eq!((store.version(0), store.fragment_lsn(0), store.samples(0)), (1, 3, 7));
    // The next sum starts anew.
    store.apply(0, ONES, of_round(4)).unwrap();
    store.close_round(0, 4, Some(1.0)).unwrap();
    assert_eq!(store.plane(0)[..64], [-4.0 * (1.0_f32 / 3.0) - 1.0; 64]);
}

#[test]
fn a_record_is_for_the_open_round_or_for_none() {
    let store = sgd();
    let refused = |round, open, count| Err(ApplyError::Round { round, open, count });
    store.apply(0, ONES, of_round(5)).unwrap();
    assert_eq!(store.apply(0, ONES, of_round(4)), refused(4, 5, 1));
    assert_eq!(store.apply(0, ONES, of_round(6)), refused(6, 5, 1));
    // Another fragment has rounds of its own, and a record without a round is applied at once.
    store.apply(1, Gradient::F32(&[1.0; 36]), of_round(4)).unwrap();
    assert_eq!(store.apply(0, ONES, 1.0), Ok(Applied { lsn: 3, version_before: 0 }));
    let not_open = CloseError::NotNow(ApplyError::Round { round: 6, open: 5, count: 1 });
    assert_eq!(store.close_round(0, 6, None), Err(not_open));
    assert!(store.close_round(0, 5, None).unwrap().is_some());
    assert_eq!(store.apply(0, ONES, of_round(5)), refused(5, 6, 0));
    let closed = CloseError::NotNow(ApplyError::Round { round: 5, open: 6, count: 0 });
    assert_eq!(store.close_round(0, 5, None), Err(closed));
    // An empty round closes too, and applies nothing; it has its place in the order.
    let lsn = store.lsn();
    assert_eq!(store.close_round(0, 8, None), Ok(None));
    assert_eq!((store.lsn(), store.version(0)), (lsn + 1, 2));
    assert_eq!(store.apply(0, ONES, of_round(8)), refused(8, 9, 0));
    assert!(store.apply(0, ONES, of_round(9)).is_ok());
}

#[test]
fn poison_is_refused_before_anything_is_added() {
    let store = sgd();
    store.apply(0, ONES, of_round(0)).unwrap();
    let before = store.accumulated(0);
    let mut poison = [1.0_f32; 64];
    (poison[7], poison[60]) = (f32::NAN, f32::INFINITY);
    let refused = Err(ApplyError::NonFinite { count: 2, first_index: 7 });
    assert_eq!(store.apply(0, Gradient::F32(&poison), of_round(0)), refused);
    let all = Err(ApplyError::NonFinite { count: 64, first_index: 0 });
    assert_eq!(store.apply(0, Gradient::F32(&[1e30; 64]), weighed(0, 1e20)), all);
    assert_eq!(store.apply(0, Gradient::F64(&[1e300; 64]), of_round(0)), all);
    let length = ApplyError::Length { expected: 64, actual: 3 };
    assert_eq!(store.apply(0, Gradient::F32(&[0.0; 3]), of_round(0)), Err(length));
    assert_eq!((store.accumulated(0), store.lsn()), (before, 1));
    store.close_round(0, 0, None).unwrap();
    assert_eq!(store.plane(0)[..64], [-1.0; 64]);
}

#[test]
fn a_sum_that_overflows_is_dropped_and_named() {
    let store = sgd();
    let mut large = [1.0_f32; 64];
    (large[5], large[9]) = (f32::MAX, -f32::MAX);
    for _ in 0..2 {
        store.apply(0, Gradient::F32(&large), of_round(2)).unwrap();
    }
    let of = store.accumulated(0).unwrap();
    let cause = ApplyError::NonFinite { count: 2, first_index: 5 };
    let dropped = CloseError::Dropped { of, cause };
    assert!(dropped.to_string().starts_with("round 2 is closed and its 2 records are dropped: "));
    assert_eq!(store.close_round(0, 2, None), Err(dropped));
    // That the sum is gone has a number, too.
    assert_eq!((store.plane(0), store.version(0), store.lsn()), (vec![0.0; 100], 0, 3));
    // The round is over; the next one holds nothing of it.
    assert!(matches!(store.apply(0, ONES, of_round(2)), Err(ApplyError::Round { open: 3, .. })));
    store.apply(0, ONES, of_round(3)).unwrap();
    store.close_round(0, 3, None).unwrap();
    assert_eq!(store.plane(0)[..64], [-1.0; 64]);
    // A result may overflow although the sum does not.
    store.load_or_push(f32::MAX);
    store.apply(0, Gradient::F32(&[f32::MAX; 64]), of_round(4)).unwrap();
    let result = store.close_round(0, 4, Some(1.0)).unwrap_err();
    let CloseError::Dropped { cause: ApplyError::ResultNonFinite { count: 64, .. }, .. } = result
    else {
        panic!("{result:?}");
    };
    for factor in [f32::NAN, f32::INFINITY] {
        let refused = store.close_round(0, 5, Some(factor));
        assert!(matches!(refused, Err(CloseError::Factor { .. })));
    }
}

trait Far {
    fn load_or_push(&self, size: f32);
}

impl Far for Store {
    /// Bring the parameters of fragment 0 to about `-size`.
    fn load_or_push(&self, size: f32) {
        self.apply(0, Gradient::F32(&[size; 64]), 1.0).unwrap();
    }
}

#[test]
fn a_round_waits_for_a_block() {
    let sgd = compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    let tuning = Tuning { copies_max: 1, ..Tuning::default() };
    let store = Store::with_tuning(GEOMETRY, sgd, tuning).unwrap().accumulating().unwrap();
    let store = std::sync::Arc::new(store);
    store.apply(0, ONES, of_round(0)).unwrap();
    let mut held = Vec::new();
    while {
        held.push(store.snapshot());
        store.apply(0, ONES, 1.0).is_ok()
    } {}
    let (before, values) = (store.accumulated(0), store.plane(0));
    let full = store.close_round(0, 0, None);
    assert!(matches!(full, Err(CloseError::NotNow(ApplyError::Full { .. }))), "{full:?}");
    assert_eq!((store.accumulated(0), store.plane(0)), (before, values));
    drop(held);
    assert!(store.close_round(0, 0, None).unwrap().is_some());
}

#[test]
fn terms_that_make_no_sense_are_named() {
    let refused = |admission: Admission| admission.validate(true).unwrap_err();
    let usual = Admission::default();
    for scale in [f32::NAN, f32::INFINITY] {
        let error = refused(Admission { scale, ..usual });
        assert!(matches!(error, AdmissionError::Scale { .. }));
    }
    for staleness_power in [-0.5, 8.5, f64::NAN] {
        let error = refused(Admission { staleness_power, ..usual });
        assert!(matches!(error, AdmissionError::Power { .. }));
    }
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e39] {
        assert!(matches!(refused(weighed(1, weight)), AdmissionError::Weight { .. }));
    }
    assert_eq!(refused(of_round(u64::MAX)), AdmissionError::Round { round: u64::MAX });
    let none = of_round(1).validate(false);
    assert_eq!(none, Err(AdmissionError::Accumulators { round: 1 }));
    assert_eq!(usual.validate(false), Ok(()));
}

#[test]
fn a_store_without_accumulators_says_so() {
    let sgd = compile(&[part("sgd", &[("lr", 1.0)])], Level::best());
    let store = Store::new(GEOMETRY, sgd).unwrap();
    assert_eq!(store.apply(0, ONES, of_round(0)), Err(ApplyError::Accumulators));
    let error = CloseError::NotNow(ApplyError::Accumulators);
    assert_eq!(store.close_round(0, 0, None), Err(error));
    assert_eq!((store.accumulated(0), store.accumulates()), (None, false));
    assert_eq!(store.read_accumulated(0, &mut [0.0; 64]), Ok(None));
    let none = StoreError::Accumulator { fragment: 0 };
    assert_eq!(store.restore_accumulated(0, Accumulated::default(), &[]), Err(none));
    assert_eq!(store.memory().accumulators, 0);
    assert_eq!(self::sgd().memory().accumulators, 4 * GEOMETRY.len);
}

#[test]
fn what_was_accumulated_goes_on_in_another_store() {
    let (old, new) = (sgd(), sgd());
    old.apply(0, ONES, weighed(7, 2.0)).unwrap();
    let mut sum = [0.0; 64];
    let open = old.read_accumulated(0, &mut sum).unwrap().unwrap();
    let wrong = [
        (open, &sum[1..]),
        (Accumulated { count: 0, ..open }, &sum[..]),
        (Accumulated { weight: f64::NAN, ..open }, &sum[..]),
        (Accumulated { round: u64::MAX, ..open }, &sum[..]),
        (open, &[f32::NAN; 64][..]),
    ];
    for (open, sum) in wrong {
        let refused = Err(StoreError::Accumulator { fragment: 0 });
        assert_eq!(new.restore_accumulated(0, open, sum), refused);
    }
    assert_eq!(new.accumulated(0), Some(Accumulated::default()));
    new.restore_accumulated(0, open, &sum).unwrap();
    for store in [&old, &new] {
        store.apply(0, ONES, of_round(7)).unwrap();
        store.close_round(0, 7, None).unwrap();
    }
    assert_eq!(bits(&new.plane(0)), bits(&old.plane(0)));
    let sealed = StoreError::Sealed { lsn: new.lsn() };
    assert_eq!(new.restore_accumulated(0, open, &sum), Err(sealed));
}

/// One call on a store that combines.
#[derive(Clone, Debug)]
enum Call {
    Take { fragment: usize, value: f32, base: u64, admission: Admission },
    Close { fragment: usize, round: u64, factor: Option<f32> },
}

fn call() -> impl Strategy<Value = Call> {
    let value = prop_oneof![8 => -2.0_f32..2.0, 1 => Just(f32::NAN), 1 => Just(f32::MAX)];
    let weight = prop_oneof![Just(1.0), 0.25_f64..4.0];
    let power = prop_oneof![Just(0.0), Just(0.5), Just(1.0), 0.0_f64..3.0];
    let round = prop::option::weighted(0.8, (0..3_u64, weight));
    let take = (0..2_usize, value, 0..6_u64, 0.5_f32..1.5, power, 0..50_u64, round).prop_map(
        |(fragment, value, base, scale, staleness_power, samples, round)| {
            let round = round.map(|(number, weight)| Round { number, weight });
            let admission =
                Admission { scale, staleness_power, samples, round, ..Admission::default() };
            Call::Take { fragment, value, base, admission }
        },
    );
    let close = (0..2_usize, 0..3_u64, prop::option::of(0.1_f32..2.0))
        .prop_map(|(fragment, round, factor)| Call::Close { fragment, round, factor });
    prop_oneof![3 => take, 1 => close]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Rounds are numbered relative to the open one, so that most calls mean something.
    #[test]
    fn rounds_equal_their_twin(
        chain in 0..chains().len(),
        calls in prop::collection::vec(call(), 1..40),
        by_samples in any::<bool>(),
    ) {
        let mut parts = chains().swap_remove(chain);
        for (_, numbers) in &mut parts {
            if let Some(flag) = numbers.get_mut("by_samples") {
                *flag = f64::from(u8::from(by_samples));
                for name in ["over", "every"] {
                    numbers.entry(name.to_owned()).and_modify(|count| *count *= 10.0);
                }
            }
        }
        for level in Level::available() {
            let store = Store::new(GEOMETRY, compile(&parts, level)).unwrap();
            let store = store.accumulating().unwrap();
            let twin = Twin::new(GEOMETRY, &parts);
            for call in &calls {
                match *call {
                    Call::Take { fragment, value, base, mut admission } => {
                        let from = twin.open(fragment).round;
                        if let Some(round) = &mut admission.round {
                            round.number = (from + round.number).saturating_sub(1);
                        }
                        let gradient: Vec<f32> = GEOMETRY
                            .fragment_range(fragment)
                            .map(|index| value * f32::from(u8::try_from(index % 7).unwrap()))
                            .collect();
                        let expected = twin.take(fragment, &gradient, base, &admission);
                        let answer = Records::take(&store, fragment, &gradient, base, &admission);
                        prop_assert_eq!(answer, expected);
                    }
                    Call::Close { fragment, round, factor } => {
                        let round = (twin.open(fragment).round + round).saturating_sub(1);
                        let expected = twin.close(fragment, round, factor);
                        prop_assert_eq!(store.close(fragment, round, factor), expected);
                    }
                }
                for fragment in 0..2 {
                    prop_assert_eq!(store.open(fragment), twin.open(fragment));
                }
            }
            for plane in 0..store.planes() {
                let (ours, theirs) = (store.plane(plane), twin.plane(plane));
                prop_assert_eq!(bits(&ours), bits(&theirs), "{:?} plane {}", &parts, plane);
            }
            prop_assert_eq!(store.counters(), twin.counters());
        }
    }
}
