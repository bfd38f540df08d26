//! Every loop gives the same bits on every instruction set, for every length a loop can go wrong
//! at.

#![cfg(not(loom))]

mod optimizer_twin;

use downpour::kernel::{DType, Gradient, Level, accumulate, cast, check, step};
use downpour::store::{Geometry, Store, Tuning};
use optimizer_twin::{Records, bits, chains, compile};

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

fn lengths() -> impl Iterator<Item = usize> {
    (0..=200).chain([1000, 4097])
}

/// Finite numbers of many magnitudes and both signs, the same for the same seed.
fn numbers(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as u32
    };
    (0..len)
        .map(|_| {
            let (sign_mantissa, exponent) = (next(), 107 + next() % 25);
            f32::from_bits((sign_mantissa & 0x807f_ffff) | exponent << 23)
        })
        .collect()
}

fn as_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.size()];
    cast(Level::Baseline, Gradient::F32(values), &mut bytes, dtype).unwrap();
    bytes
}

#[test]
fn elementwise_loops_agree() {
    for len in lengths() {
        let values = numbers(len, 1);
        let target = numbers(len, 2);
        for dtype in DTYPES {
            let bytes = as_bytes(&values, dtype);
            let source = Gradient::from_bytes(&bytes, dtype).unwrap();
            let run = |level| {
                let (mut sum, mut stepped) = (target.clone(), target.clone());
                accumulate(level, &mut sum, source, false).unwrap();
                step(level, &mut stepped, source, 0.3).unwrap();
                let casts = DTYPES.map(|into| {
                    let mut target = vec![0; len * into.size()];
                    cast(level, source, &mut target, into).unwrap();
                    target
                });
                (bits(&sum), bits(&stepped), casts)
            };
            let expected = run(Level::Baseline);
            for level in Level::available() {
                assert_eq!(run(level), expected, "{} {dtype:?} len {len}", level.name());
            }
        }
    }
}

#[test]
fn scans_agree_and_find_every_position() {
    for len in lengths() {
        let values = numbers(len, 3);
        let expected = check(Level::Baseline, Gradient::F32(&values));
        for level in Level::available() {
            let found = check(level, Gradient::F32(&values));
            assert_eq!(found.sum_of_squares.to_bits(), expected.sum_of_squares.to_bits());
            assert_eq!((found.count, found.first_index), (0, None));
            for bad in 0..len.min(70) {
                let mut values = values.clone();
                values[bad] = f32::INFINITY;
                values[len - 1] = f32::NAN;
                let found = check(level, Gradient::F32(&values));
                let count = if bad == len - 1 { 1 } else { 2 };
                assert_eq!((found.count, found.first_index), (count, Some(bad)));
            }
        }
    }
}

#[test]
fn optimizers_agree() {
    for parts in chains() {
        for len in lengths().filter(|len| *len > 0) {
            // Stripes of all lengths up to 64, so that tails are met in every lane.
            let geometry = Geometry { len, stripe_len: 64, fragment_len: 4160 };
            let run = |level, cached_size_max| {
                let tuning = Tuning { cached_size_max, ..Tuning::default() };
                let store = Store::with_tuning(geometry, compile(&parts, level), tuning).unwrap();
                store.load_plane(0, 0, &numbers(len, 4)).unwrap();
                for (round, dtype) in DTYPES.into_iter().enumerate() {
                    let bytes = as_bytes(&numbers(len, 5 + round as u64), dtype);
                    let gradient = Gradient::from_bytes(&bytes, dtype).unwrap();
                    let base = (round as u64).saturating_sub(2);
                    store.take(0, gradient, base, &0.7.into()).unwrap();
                }
                (0..store.planes()).map(|plane| bits(&store.plane(plane))).collect::<Vec<_>>()
            };
            let expected = run(Level::Baseline, usize::MAX);
            for level in Level::available() {
                // In the caches, and past them.
                for cached_size_max in [usize::MAX, 0] {
                    let found = run(level, cached_size_max);
                    assert_eq!(found, expected, "{parts:?} {} len {len}", level.name());
                }
            }
        }
    }
}
