//! Every rule, behind every combination of parts before it, equals its scalar twin to the bit;
//! and a chain that makes no sense says why.

#![cfg(not(loom))]

mod optimizer_twin;

use downpour::kernel::{Gradient, Level};
use downpour::number::NumberError;
use downpour::optimizer::{self, Optimizer, OptimizerError};
use downpour::store::{Admission, ApplyError, Geometry, Store};
use optimizer_twin::{Part, Records, Twin, bits, chains, compile, part};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { len: 83, stripe_len: 32, fragment_len: 64 };

/// Any finite f32, with the awkward ones frequent; now and then a poisonous one.
fn element() -> impl Strategy<Value = f32> {
    prop_oneof![
        60 => -2.0_f32..2.0,
        20 => any::<f32>().prop_filter("finite", |value| value.is_finite()),
        5 => Just(0.0_f32),
        5 => Just(-0.0_f32),
        5 => Just(f32::MIN_POSITIVE / 2.0),
        1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::MAX)],
    ]
}

fn mild() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(-2.0_f32..2.0, 64)
}

fn wild() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(element(), 64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_chain_equals_its_twin(
        initial in prop::collection::vec(-3.0_f32..3.0, GEOMETRY.len),
        records in prop::collection::vec(
            (
                0..2_usize,
                prop_oneof![4 => mild(), 1 => wild()],
                prop_oneof![Just(1.0_f32), 0.1_f32..2.0],
                0..5_u64,
            ),
            1..8,
        ),
    ) {
        for parts in chains() {
            let store = Store::new(GEOMETRY, compile(&parts, Level::best())).unwrap();
            let twin = Twin::new(GEOMETRY, &parts);
            store.load_plane(0, 0, &initial).unwrap();
            twin.load(&initial);
            for (fragment, gradient, scale, stale) in &records {
                let gradient = &gradient[..GEOMETRY.fragment_range(*fragment).len()];
                let base = store.version(*fragment).saturating_sub(*stale);
                let admission = Admission::from(*scale);
                let expected = twin.take(*fragment, gradient, base, &admission);
                let answer = Records::take(&store, *fragment, gradient, base, &admission);
                prop_assert_eq!(answer, expected);
            }
            for plane in 0..store.planes() {
                let (ours, theirs) = (store.plane(plane), twin.plane(plane));
                prop_assert_eq!(bits(&ours), bits(&theirs), "{:?} plane {}", parts, plane);
            }
            prop_assert_eq!(store.counters(), twin.counters());
        }
    }
}

#[test]
fn a_thousand_updates_keep_bias_correction_equal() {
    let geometry = Geometry { len: 5, stripe_len: 16, fragment_len: 16 };
    for parts in chains() {
        let store = Store::new(geometry, compile(&parts, Level::best())).unwrap();
        let twin = Twin::new(geometry, &parts);
        for round in 0..1000_u16 {
            let g = f32::from(round % 7) - 3.0;
            let gradient = [g, -g, 0.5, 0.0, g * 0.01];
            let expected = twin.apply(0, &gradient, 1.0);
            assert_eq!(Records::apply(&store, 0, &gradient, 1.0), expected, "{parts:?}");
        }
        assert_eq!(bits(&store.plane(0)), bits(&twin.plane(0)), "{parts:?}");
    }
}

/// A result may overflow although the gradient is finite: then nothing may change.
#[test]
fn results_that_overflow_are_refused_whole() {
    // What clips, or lets the steps shrink, does not overflow.
    let mild = |part: &Part| ["clip", "fasgd", "step_decay", "cosine"].contains(&part.0.as_str());
    for parts in chains().iter().filter(|parts| !parts.iter().any(mild)) {
        let store = Store::new(GEOMETRY, compile(parts, Level::best())).unwrap();
        store.apply(0, Gradient::F32(&[0.5; 64]), 1.0).unwrap();
        let before: Vec<_> = (0..store.planes()).map(|plane| bits(&store.plane(plane))).collect();
        let mut gradient = [0.25_f32; 64];
        gradient[40] = f32::MAX;
        gradient[63] = -f32::MAX;
        // Two large steps in one direction overflow SGD's parameters; squares overflow at once.
        let refused = (0..40).find_map(|_| store.apply(0, Gradient::F32(&gradient), 1.0).err());
        let Some(ApplyError::ResultNonFinite { count: 2, first_index: 40 }) = refused else {
            panic!("{parts:?}: {refused:?}");
        };
        let version = store.version(0);
        if version == 1 {
            for (plane, before) in before.iter().enumerate() {
                assert_eq!(bits(&store.plane(plane)), *before, "{parts:?} plane {plane}");
            }
        }
        assert_eq!(store.lsn(), version);
    }
}

fn refusal(parts: &[Part]) -> OptimizerError {
    Optimizer::compile(parts, None).expect_err("the chain is bad")
}

#[test]
fn numbers_are_read_strictly() {
    let numbers = |lr: f64| part("sgd", &[("lr", lr)]);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-60, 1e60] {
        let error = refusal(&[numbers(bad)]);
        assert!(
            matches!(&error, OptimizerError::Number(NumberError::OutOfRange { name: "lr", .. })),
            "{bad} {error}"
        );
    }
    let message = refusal(&[numbers(-1.0)]).to_string();
    assert_eq!(message, "sgd: lr is -1, must be a finite f32 > 0");
    let missing = refusal(&[part("sgd", &[])]).to_string();
    assert_eq!(missing, "sgd needs the number \"lr\" (a finite f32 > 0)");
    let unknown = refusal(&[part("sgd", &[("lr", 1.0), ("rate", 1.0)])]).to_string();
    assert_eq!(unknown, "sgd has no number \"rate\"; its numbers are lr");
    for (beta, good) in [(0.0, true), (0.9, true), (1.0, false), (0.999_999_999_99, false)] {
        let adam = part("adam", &[("lr", 1.0), ("beta1", beta), ("beta2", 0.5), ("eps", 1e-8)]);
        assert_eq!(Optimizer::compile(&[adam], None).is_ok(), good, "{beta}");
    }
    let half = part("momentum", &[("lr", 1.0), ("momentum", 0.5), ("nesterov", 0.5)]);
    assert!(refusal(&[half]).to_string().ends_with("nesterov is 0.5, must be 0 or 1"));
    let zero = part("adagrad", &[("lr", 1.0), ("eps", 0.0), ("initial", 0.0)]);
    assert!(matches!(refusal(&[zero]), OptimizerError::BothZero { part: "adagrad", .. }));
}

#[test]
fn traces_before_sgd_are_momentum_to_the_bit() {
    let lr = ("lr", 0.1);
    let fused = [part("momentum", &[lr, ("momentum", 0.9), ("nesterov", 0.0)])];
    let chained = [part("trace", &[("decay", 0.9)]), part("sgd", &[lr])];
    let [one, other] = [&fused[..], &chained[..]]
        .map(|parts| Store::new(GEOMETRY, compile(parts, Level::best())).unwrap());
    for round in 0..20_u16 {
        let gradient: Vec<_> = (0..64).map(|i| f32::from(i * round % 13) / 7.0 - 0.9).collect();
        for store in [&one, &other] {
            store.apply(0, Gradient::F32(&gradient), 0.7).unwrap();
        }
    }
    for plane in 0..2 {
        assert_eq!(bits(&one.plane(plane)), bits(&other.plane(plane)));
    }
}

#[test]
fn schedules_count_whole_updates() {
    for bad in [0.0, 0.5, -1.0, 1e300, f64::NAN] {
        let warm_up = part("warm_up", &[("over", bad), ("start", 0.0), ("by_samples", 0.0)]);
        let error = refusal(&[warm_up, part("sgd", &[("lr", 1.0)])]);
        assert!(error.to_string().ends_with("must be a whole number >= 1"), "{error}");
    }
}

#[test]
fn chains_end_in_exactly_one_rule() {
    let sgd = || part("sgd", &[("lr", 1.0)]);
    let clip = || part("clip", &[("max", 1.0)]);
    assert!(matches!(refusal(&[]), OptimizerError::Empty { .. }));
    assert!(matches!(refusal(&[clip()]), OptimizerError::NoRule { .. }));
    assert!(matches!(refusal(&[sgd(), clip()]), OptimizerError::RuleNotLast { .. }));
    assert!(matches!(refusal(&[sgd(), sgd()]), OptimizerError::RuleNotLast { .. }));
    assert!(Optimizer::compile(&[clip(), clip(), sgd()], None).is_ok());
    for chain in [vec![part("lion", &[])], vec![part("lion", &[]), sgd()]] {
        let message = refusal(&chain).to_string();
        assert_eq!(
            message,
            "part \"lion\" is unknown; known are clip, weight_decay, trace, fasgd, \
             delay_compensation, adaptive_delay_compensation, gap_aware, warm_up, step_decay, \
             cosine, staleness_decay, linear_scaling, sqrt_scaling, sgd, momentum, adagrad, adam, \
             adamw"
        );
    }
}

#[test]
fn every_part_refuses_missing_and_unknown_numbers() {
    for (rule, _, numbers) in optimizer::parts() {
        let whole = chains().into_iter().flatten().find(|(name, _)| name == rule);
        let (_, full) = whole.expect("chains have every part");
        for name in numbers {
            let mut without = full.clone();
            let value = without.remove(name);
            let error = refusal(&[(rule.to_owned(), without.clone())]);
            assert!(
                matches!(error, OptimizerError::Number(NumberError::Missing { .. })),
                "{rule} {name}"
            );
            without.insert(format!("{name}_"), value.unwrap());
            let error = refusal(&[(rule.to_owned(), without)]);
            assert!(
                matches!(error, OptimizerError::Number(NumberError::Unknown { .. })),
                "{rule} {name}"
            );
        }
    }
}
