//! What every codec promises, and that each is its scalar twin to the bit.

#![cfg(not(loom))]

use std::cmp::Ordering;
use std::collections::BTreeMap;

use downpour::codec::{self, Codec, CodecError};
use downpour::kernel::Level;
use downpour::number::NumberError;
use proptest::prelude::*;

type Description = (&'static str, Vec<(&'static str, f64)>);

/// Every codec, in a few settings.
fn descriptions() -> Vec<Description> {
    let int8 = |block| ("int8", vec![("block", block)]);
    let threshold = |tau| ("threshold", vec![("tau", tau)]);
    vec![
        int8(256.0),
        int8(16.0),
        int8(48.0),
        int8(65536.0),
        threshold(0.3),
        threshold(15.0),
        threshold(3000.0),
    ]
}

fn compile((name, numbers): &Description, level: Level) -> Codec {
    let numbers = numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Codec::compile(name, &numbers, Some(level)).unwrap()
}

fn all(level: Level) -> impl Iterator<Item = Codec> {
    descriptions().into_iter().map(move |description| compile(&description, level))
}

/// The bytes, and what is left.
fn encoded(codec: &Codec, gradient: &[f32], residual: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut left = residual.to_vec();
    // Dirty, and longer than it need be.
    let mut target = vec![0xa5; codec.size_max(gradient.len()) + 3];
    let size = codec.encode(gradient, &mut left, &mut target).unwrap();
    assert!(target[size..].iter().all(|byte| *byte == 0xa5), "wrote beyond what it says");
    target.truncate(size);
    (target, left)
}

fn decoded(codec: &Codec, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut target = vec![f32::NAN; len];
    codec.decode(bytes, &mut target).unwrap();
    target
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Which NaN it is, is nobody's promise.
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

/// Numbers of many magnitudes and both signs, the same for the same seed.
fn numbers(len: usize, seed: u64, spread: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as u32
    };
    (0..len)
        .map(|_| {
            let (sign_mantissa, exponent) = (next(), 127 - spread + next() % (2 * spread));
            f32::from_bits((sign_mantissa & 0x807f_ffff) | exponent << 23)
        })
        .collect()
}

#[test]
fn every_codec_is_tested() {
    let mut tested: Vec<_> = descriptions().into_iter().map(|(name, _)| name).collect();
    tested.dedup();
    assert_eq!(tested, codec::names().collect::<Vec<_>>());
}

#[test]
fn every_length_and_level_gives_the_same_bits_and_nothing_is_lost() {
    for len in (0..=1025).chain([65_536, 70_001]) {
        let (gradient, residual) = (numbers(len, 1, 12), numbers(len, 2, 6));
        for (index, codec) in all(Level::Baseline).enumerate() {
            let (bytes, left) = encoded(&codec, &gradient, &residual);
            assert!(bytes.len() <= codec.size_max(len));
            let sent = decoded(&codec, &bytes, len);
            for ((g, r), (sent, left)) in gradient.iter().zip(&residual).zip(sent.iter().zip(&left))
            {
                // Exact in f64: neither sum rounds.
                let (x, parts) = (f64::from(g + r), f64::from(*sent) + f64::from(*left));
                assert_eq!(x.to_bits(), parts.to_bits(), "len {len} {g:e} {r:e}");
            }
            for level in Level::available() {
                let other = compile(&descriptions()[index], level);
                assert_eq!(other.level(), level);
                let (other_bytes, other_left) = encoded(&other, &gradient, &residual);
                assert_eq!(other_bytes, bytes, "{} len {len}", level.name());
                assert_eq!(bits(&other_left), bits(&left), "{} len {len}", level.name());
                assert_eq!(bits(&decoded(&other, &bytes, len)), bits(&sent));
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused_with_the_numbers() {
    for codec in all(Level::best()) {
        for len in [0, 1, 255, 256, 257, 1000] {
            let (bytes, _) = encoded(&codec, &numbers(len, 3, 4), &vec![0.0; len]);
            let mut target = vec![0.0; len];
            for wrong in [&bytes[..bytes.len().saturating_sub(1)], &[&bytes[..], &[0]].concat()] {
                // Of two lengths one may be of another form.
                if [bytes.len(), codec.size_max(len)].contains(&wrong.len()) {
                    continue;
                }
                let error = codec.decode(wrong, &mut target).unwrap_err();
                let expected = codec.size_max(len);
                let (codec, size) = (codec.name(), wrong.len());
                assert_eq!(error, CodecError::Length { codec, size, len, expected });
            }
        }
        let mut target = vec![0; codec.size_max(10) - 1];
        let mut residual = vec![1.0; 10];
        let room = codec.encode(&[1.0; 10], &mut residual, &mut target).unwrap_err();
        assert!(matches!(room, CodecError::Room { what: "target", .. }), "{room}");
        let short = codec.encode(&[1.0; 9], &mut residual, &mut target).unwrap_err();
        assert!(matches!(short, CodecError::Room { what: "residual", .. }), "{short}");
        assert_eq!(bits(&residual), bits(&[1.0; 10]));
    }
}

#[test]
fn what_cannot_be_encoded_changes_nothing() {
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
    for codec in all(Level::best()) {
        for (index, value) in bad.into_iter().enumerate() {
            let mut gradient = numbers(600, 4, 4);
            let at = [0, 255, 256, 511, 599][index];
            (gradient[at], gradient[599]) = (value, value);
            let before = numbers(600, 5, 4);
            let mut residual = before.clone();
            let mut target = vec![0; codec.size_max(600)];
            let error = codec.encode(&gradient, &mut residual, &mut target).unwrap_err();
            let count = if at == 599 { 1 } else { 2 };
            let expected = CodecError::NonFinite { codec: codec.name(), count, first_index: at };
            assert_eq!(error, expected, "{value}");
            assert_eq!(bits(&residual), bits(&before));
        }
        // Each is finite, their sum is not.
        let mut residual = [f32::MAX];
        let mut target = vec![0; codec.size_max(1)];
        assert!(codec.encode(&[f32::MAX], &mut residual, &mut target).is_err());
        assert_eq!(bits(&residual), bits(&[f32::MAX]));
    }
}

/// Every byte string that is not one of these forms is refused, whoever has made it.
#[test]
fn threshold_refuses_what_it_would_not_send() {
    let codec = compile(&("threshold", vec![("tau", 2.0)]), Level::best());
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut target = [f32::NAN; 50]; // 13 bytes densely, and so up to 3 words
    let mut read = |bytes: Vec<u8>, len: usize| {
        codec.decode(&bytes, &mut target[..len]).map(|()| target[..len].to_vec())
    };
    let found: Vec<f32> = read(words(&[0, 7 | 1 << 31, 49]), 50).unwrap();
    let at = |index: usize| match index {
        0 | 49 => 2.0_f32,
        7 => -2.0,
        _ => 0.0,
    };
    assert_eq!(bits(&found), bits(&(0..50).map(at).collect::<Vec<_>>()));
    let none: [u32; 0] = [];
    assert_eq!(read(words(&none), 50), Ok(vec![0.0; 50]));
    for wrong in [&[50][..], &[u32::MAX], &[7, 7], &[7, 7 | 1 << 31], &[9, 3], &[1, 2, 3, 4]] {
        assert!(read(words(wrong), 50).is_err(), "{wrong:x?}");
    }
    assert!(read(vec![0; 5], 50).is_err());
    let dense = |last: u8| [vec![0b0110_0001; 12], vec![last]].concat();
    let found = read(dense(0b1001), 50).unwrap();
    assert_eq!(found[..5], [2.0, 0.0, -2.0, 2.0, 2.0]);
    assert_eq!(found[48..], [2.0, -2.0]);
    for wrong in [dense(0b1_0000), dense(0b0011), dense(0b1100), vec![0xff; 13]] {
        assert!(read(wrong.clone(), 50).is_err(), "{wrong:x?}");
    }
}

#[test]
fn numbers_are_read_strictly() {
    let int8 = |block| {
        Codec::compile("int8", &BTreeMap::from([("block".to_owned(), block)]), None).unwrap_err()
    };
    for bad in [0.0, 15.0, 17.0, 16.5, 65552.0, -16.0, f64::NAN, f64::INFINITY] {
        let error = int8(bad);
        let expected =
            matches!(&error, CodecError::Number(NumberError::OutOfRange { name: "block", .. }));
        assert!(expected, "{bad} {error}");
    }
    assert_eq!(
        int8(7.0).to_string(),
        "int8: block is 7, must be a multiple of 16 from 16 to 65536"
    );
    let unknown = Codec::compile("gzip", &BTreeMap::new(), None).unwrap_err();
    assert_eq!(unknown.to_string(), "codec \"gzip\" is unknown; known are int8, threshold");
    let quantum = |tau| {
        let numbers = BTreeMap::from([("tau".to_owned(), tau)]);
        Codec::compile("threshold", &numbers, None).map(|codec| codec.size_max(5))
    };
    for bad in [0.0, -1.0, 1e-37, 1e37, f64::NAN, f64::INFINITY] {
        assert!(quantum(bad).unwrap_err().to_string().contains("from 2^-122 to 2^122"), "{bad}");
    }
    assert_eq!([1.9e-37, 5.3e36].map(quantum), [Ok(2), Ok(2)]);
}

/// Block by block, element by element, in f32.
fn int8_twin(block: usize, gradient: &[f32], residual: &mut [f32]) -> Option<Vec<u8>> {
    let x: Vec<f32> = gradient.iter().zip(&*residual).map(|(g, r)| g + r).collect();
    let (mut scales, mut codes, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for block in x.chunks(block) {
        let mut largest = 0.0_f32;
        for x in block {
            if !x.is_finite() {
                return None;
            }
            largest = largest.max(x.abs());
        }
        let mut scale = largest / 127.0;
        if !(scale * 127.0).is_finite() {
            return None;
        }
        if !scale.is_normal() {
            scale = 0.0;
        }
        scales.extend(scale.to_le_bytes());
        for x in block {
            let code = if scale > 0.0 { (x * (1.0 / scale)).round_ties_even() } else { 0.0 };
            #[allow(clippy::cast_possible_truncation, reason = "-127 to 127")]
            let code = code as i8;
            codes.push(code.cast_unsigned());
            left.push(x - f32::from(code) * scale);
        }
    }
    residual.copy_from_slice(&left);
    scales.extend(codes);
    Some(scales)
}

/// To 8 significant bits.
fn rounded(tau: f32) -> f32 {
    let bits = tau.to_bits();
    let (down, up) = (bits & 0xffff_0000, (bits & 0xffff_0000) + 0x1_0000);
    f32::from_bits(match (bits & 0xffff).cmp(&0x8000) {
        Ordering::Less => down,
        Ordering::Equal if down & 0x1_0000 == 0 => down,
        Ordering::Equal | Ordering::Greater => up,
    })
}

/// Element by element, in f32.
fn threshold_twin(tau: f32, gradient: &[f32], residual: &mut [f32]) -> Option<Vec<u8>> {
    let tau = rounded(tau);
    let limit = f64::from(f32::from_bits(tau.to_bits() & 0x7f80_0000)) * f64::from(1 << 17);
    let x: Vec<f32> = gradient.iter().zip(&*residual).map(|(g, r)| g + r).collect();
    if x.iter().any(|x| !x.is_finite() || f64::from(x.abs()) >= limit) {
        return None;
    }
    let sent: Vec<f32> =
        x.iter().map(|x| if x.abs() > tau { tau.copysign(*x) } else { 0.0 }).collect();
    for (residual, (x, sent)) in residual.iter_mut().zip(x.iter().zip(&sent)) {
        *residual = x - sent;
    }
    let some: Vec<usize> = (0..x.len()).filter(|index| sent[*index] != 0.0).collect();
    let dense = x.len().div_ceil(4);
    if 4 * some.len() < dense {
        let word = |index: &usize| {
            let sign = u32::from(sent[*index] < 0.0) << 31;
            (u32::try_from(*index).unwrap() | sign).to_le_bytes()
        };
        return Some(some.iter().flat_map(word).collect());
    }
    let mut bytes = vec![0; dense];
    for index in some {
        bytes[index / 4] |= if sent[index] > 0.0 { 1 } else { 2 } << (2 * (index % 4));
    }
    Some(bytes)
}

/// Any finite f32, with the awkward ones frequent; now and then a poisonous one.
fn element() -> impl Strategy<Value = f32> {
    prop_oneof![
        60 => -2.0_f32..2.0,
        20 => any::<f32>().prop_filter("finite", |value| value.is_finite()),
        10 => -1e-36_f32..1e-36,
        5 => Just(0.0_f32),
        5 => Just(-0.0_f32),
        5 => Just(f32::MIN_POSITIVE / 2.0),
        1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::MAX)],
    ]
}

/// Elements of one magnitude: where a block of larger ones has none of its small errors.
fn vector() -> impl Strategy<Value = Vec<(f32, f32)>> {
    prop_oneof![
        prop::collection::vec((element(), element()), 0..600),
        prop::collection::vec((-2.0_f32..2.0, -0.01_f32..0.01), 0..600),
        (any::<f32>().prop_filter("normal", |scale| scale.is_normal() && scale.abs() < 1e30))
            .prop_flat_map(|scale| {
                let halves = (-254_i16..=254).prop_map(move |half| f32::from(half) * 0.5 * scale);
                prop::collection::vec((halves, Just(0.0)), 1..300)
            }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn int8_equals_its_twin_and_keeps_its_bounds(
        pairs in vector(),
        block in prop_oneof![Just(1_usize), Just(16), 2_usize..4].prop_map(|lines| 16 * lines),
    ) {
        let (gradient, residual): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let codec = compile(&("int8", vec![("block", block as f64)]), Level::best());
        let mut expected_left = residual.clone();
        let expected = int8_twin(block, &gradient, &mut expected_left);
        let mut left = residual.clone();
        let mut target = vec![0; codec.size_max(gradient.len())];
        let found = codec.encode(&gradient, &mut left, &mut target);
        prop_assert_eq!(bits(&left), bits(&expected_left));
        let Some(expected) = expected else {
            prop_assert!(found.is_err());
            return Ok(());
        };
        prop_assert_eq!(found, Ok(expected.len()));
        prop_assert_eq!(&target, &expected);
        let sent = decoded(&codec, &target, gradient.len());
        for (index, ((g, r), (sent, left))) in
            gradient.iter().zip(&residual).zip(sent.iter().zip(&left)).enumerate()
        {
            let x = g + r;
            prop_assert_eq!((sent + left).to_bits(), (x + 0.0).to_bits(), "{:e}", x);
            let exact = f64::from(*sent) + f64::from(*left);
            prop_assert_eq!(exact.to_bits(), f64::from(x + 0.0).to_bits(), "{:e}", x);
            let at = 4 * (index / block);
            let scale = f32::from_le_bytes(target[at..at + 4].try_into().unwrap());
            let bound = f64::from(scale) / 2.0 * (1.0 + f64::from(2.0_f32).powi(-14));
            let bound = bound.max(127.0 * f64::from(f32::MIN_POSITIVE));
            prop_assert!(f64::from(left.abs()) <= bound, "{:e} scale {:e}", x, scale);
        }
    }

    #[test]
    fn threshold_equals_its_twin_and_what_it_leaves_is_exact(
        pairs in prop_oneof![
            vector(),
            // Few that are large, none, and all.
            prop::collection::vec((-1.02_f32..1.02, -0.1_f32..0.1), 0..600),
            prop::collection::vec((-90.0_f32..90.0, -9.0_f32..9.0), 0..600),
        ],
        tau in prop_oneof![
            Just(1.0_f32), Just(1.9e-37), Just(5.3e36), 0.01_f32..3.0, 1e-20_f32..1e-10,
        ],
    ) {
        let (gradient, residual): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let codec = compile(&("threshold", vec![("tau", tau.into())]), Level::best());
        let mut expected_left = residual.clone();
        let expected = threshold_twin(tau, &gradient, &mut expected_left);
        let mut left = residual.clone();
        let mut target = vec![0; codec.size_max(gradient.len())];
        let found = codec.encode(&gradient, &mut left, &mut target);
        prop_assert_eq!(bits(&left), bits(&expected_left));
        let Some(expected) = expected else {
            prop_assert!(found.is_err());
            return Ok(());
        };
        prop_assert_eq!(found, Ok(expected.len()));
        target.truncate(expected.len());
        prop_assert_eq!(&target, &expected);
        let sent = decoded(&codec, &target, gradient.len());
        prop_assert!(!target.is_empty() || sent.iter().all(|sent| sent.to_bits() == 0));
        for ((g, r), (sent, left)) in gradient.iter().zip(&residual).zip(sent.iter().zip(&left)) {
            let x = g + r;
            let exact = f64::from(*sent) + f64::from(*left);
            prop_assert_eq!(exact.to_bits(), f64::from(x + 0.0).to_bits(), "{:e}", x);
            let (before, after) = (f64::from(x.abs()), f64::from(left.abs()));
            let step = if *sent == 0.0 { 0.0 } else { f64::from(rounded(tau)) };
            prop_assert_eq!(after.to_bits(), (before - step).to_bits(), "{:e}", x);
        }
    }

    #[test]
    fn any_bytes_of_the_right_length_decode_alike_on_every_level(
        bytes in prop::collection::vec(any::<u8>(), 0..700),
        len in 0_usize..600,
    ) {
        for description in descriptions() {
            let baseline = compile(&description, Level::Baseline);
            let mut expected = vec![0.0; len];
            let outcome = baseline.decode(&bytes, &mut expected);
            for level in Level::available() {
                let mut target = vec![0.0; len];
                let found = compile(&description, level).decode(&bytes, &mut target);
                prop_assert_eq!(&found, &outcome);
                if outcome.is_ok() {
                    prop_assert_eq!(bits(&target), bits(&expected));
                }
            }
        }
    }

    #[test]
    fn what_was_sent_and_what_is_left_add_up(
        steps in prop::collection::vec(prop::collection::vec(-2.0_f32..2.0, 100), 1..30),
    ) {
        for codec in all(Level::best()) {
            let (mut sent, mut total) = (vec![0.0_f64; 100], vec![0.0_f64; 100]);
            let mut residual = vec![0.0_f32; 100];
            for gradient in &steps {
                let (bytes, left) = encoded(&codec, gradient, &residual);
                let values = decoded(&codec, &bytes, 100);
                for index in 0..100 {
                    sent[index] += f64::from(values[index]);
                    total[index] += f64::from(gradient[index]);
                }
                residual = left;
            }
            // Only g + r rounds, at most half a unit in the last place of 4 each time.
            let slack = f64::from(f32::EPSILON) * 2.0 * 30.0;
            for index in 0..100 {
                let error = sent[index] + f64::from(residual[index]) - total[index];
                prop_assert!(error.abs() <= slack, "{error:e}");
            }
        }
    }

    #[test]
    fn a_push_that_was_not_applied_gives_back_what_it_changed(
        pairs in prop::collection::vec((-2.0_f32..2.0, -0.01_f32..0.01), 1..400),
        later in prop::collection::vec(-2.0_f32..2.0, 400),
    ) {
        let (gradient, before): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let len = gradient.len();
        for codec in all(Level::best()) {
            let (bytes, left) = encoded(&codec, &gradient, &before);
            let mut back = left.clone();
            codec.give_back(&bytes, &gradient, &mut back).unwrap();
            for index in 0..len {
                let sum = gradient[index] + before[index];
                // What the one sum rounded away, and nothing else.
                prop_assert_eq!(back[index].to_bits(), (sum - gradient[index]).to_bits());
            }
            // With a push after it: as if only that one had been encoded, in the sum.
            let (more, mut residual) = encoded(&codec, &later[..len], &left);
            codec.give_back(&bytes, &gradient, &mut residual).unwrap();
            let sent = decoded(&codec, &more, len);
            for index in 0..len {
                let total = f64::from(sent[index]) + f64::from(residual[index]);
                let wanted = f64::from(before[index]) + f64::from(later[index]);
                prop_assert!((total - wanted).abs() <= 4e-6, "{}", total - wanted);
            }
        }
    }
}
