//! Records that a codec has encoded: decoded, then judged and applied as any other.

#![allow(clippy::float_cmp, reason = "small integers times powers of two are exact")]

mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;

use downpour::codec::Codec;
use downpour::frame::{Code, Header, Kind};
use downpour::inlet::{Event, Refusal};
use downpour::shard::Shard;
use streams::*;

const F32: u8 = 1;
const F16: u8 = 3;
const ACCEPT: Decision = Decision::Accept(1.0);

fn int8() -> Arc<Codec> {
    let numbers = BTreeMap::from([("block".to_owned(), 16.0)]);
    Arc::new(Codec::compile("int8", &numbers, None).unwrap())
}

fn shard_with_codec() -> Shard {
    shard().with_codec(Some(int8()))
}

/// A fragment of these values; those of [`gradient`] are whole numbers below 4, so that a block
/// with a 127 in it is encoded exactly.
fn payload(values: &[f32]) -> Vec<u8> {
    let codec = int8();
    let mut bytes = vec![0; codec.size_max(values.len())];
    codec.encode(values, &mut vec![0.0; values.len()], &mut bytes).unwrap();
    bytes
}

fn exact_gradient() -> Vec<f32> {
    let mut values = gradient();
    values.iter_mut().step_by(16).for_each(|value| *value = 127.0);
    values
}

fn encoded_record(codec: u8, dtype: u8, place: u32, payload: &[u8]) -> Vec<u8> {
    let head = Header {
        codec,
        dtype,
        replica: 1,
        incarnation: 1,
        fragment: FIRST + place,
        seq: 1,
        ..Header::new(Kind::Fragment)
    };
    frame(head, payload)
}

/// A push of encoded fragments, each as the caller wants it.
fn encoded_push(mut change: impl FnMut(usize, &mut u8, &mut u8, &mut Vec<u8>)) -> Vec<u8> {
    let mut stream = announcement(1, 0, FRAGMENTS.try_into().unwrap());
    for (fragment, values) in exact_gradient().chunks(FRAGMENT_LEN).enumerate() {
        let (mut codec, mut dtype, mut payload) = (int8().number(), F32, payload(values));
        change(fragment, &mut codec, &mut dtype, &mut payload);
        stream.extend(encoded_record(codec, dtype, fragment.try_into().unwrap(), &payload));
    }
    stream
}

/// The shard's number of each fragment that was refused, and why.
fn refusals(events: &[Event]) -> Vec<(u32, Code)> {
    let refusal = |event: &Event| match event {
        Event::Refusal(Refusal { fragment, code, .. }) => Some((fragment - FIRST, *code)),
        _ => None,
    };
    events.iter().filter_map(refusal).collect()
}

#[test]
fn encoded_records_are_applied_as_what_they_decode_to() {
    let (encoded, plain) = (shard_with_codec(), shard_with_codec());
    assert_eq!(encoded.decoded_bytes(), 0);
    for sizes in [&[usize::MAX][..], &[1], &[7, 64]] {
        let (events, error) =
            feed(&mut inlet(), &encoded, &encoded_push(|_, _, _, _| {}), sizes, ACCEPT);
        assert_eq!((refusals(&events), error), (vec![], None));
        // Elements as they are stay legal; here they are the duplicates of what was encoded.
        let (_, error) = feed(&mut inlet(), &plain, &push(1, &exact_gradient()), sizes, ACCEPT);
        assert_eq!(error, None);
    }
    assert_eq!(state(&encoded), state(&plain));
    assert_eq!(parameters(&encoded)[..2], [-63.5, 1.0]);
    // One scratch is enough for one thread.
    assert_eq!(encoded.decoded_bytes(), 4 * FRAGMENT_LEN);
    assert_eq!(plain.decoded_bytes(), 0);
}

#[test]
fn what_cannot_be_decoded_is_refused_record_by_record() {
    let shard = shard_with_codec();
    let stream = encoded_push(|fragment, codec, dtype, payload| match fragment {
        0 => *codec = 2,
        1 => *dtype = F16,
        2 => payload.push(0),
        _ => drop(payload.pop()),
    });
    let (events, error) = feed(&mut inlet(), &shard, &stream, &[usize::MAX], ACCEPT);
    let expected =
        [(0, Code::Unsupported), (1, Code::Unsupported), (2, Code::Length), (3, Code::Length)];
    assert_eq!((refusals(&events), error), (expected.to_vec(), None));
    assert_eq!(parameters(&shard), [0.0; LEN]);
    // And all of it may come again.
    let (events, _) =
        feed(&mut inlet(), &shard, &encoded_push(|_, _, _, _| {}), &[usize::MAX], ACCEPT);
    assert_eq!(refusals(&events), []);
    assert_eq!(shard.store().lsn(), FRAGMENTS as u64);
}

#[test]
fn a_shard_without_a_codec_takes_none() {
    let shard = shard();
    let (events, error) =
        feed(&mut inlet(), &shard, &encoded_push(|_, _, _, _| {}), &[usize::MAX], ACCEPT);
    let expected: Vec<_> = (0..4).map(|place| (place, Code::Unsupported)).collect();
    assert_eq!((refusals(&events), error), (expected, None));
}

#[test]
fn scales_that_decode_to_no_number_are_refused_as_any_gradient_is() {
    for scale in [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, -f32::MAX] {
        let shard = shard_with_codec();
        let stream = encoded_push(|fragment, _, _, payload| {
            if fragment == 1 {
                payload[4..8].copy_from_slice(&scale.to_le_bytes());
            }
        });
        let (events, error) = feed(&mut inlet(), &shard, &stream, &[usize::MAX], ACCEPT);
        assert_eq!((refusals(&events), error), (vec![(1, Code::NonFinite)], None), "{scale}");
        let Some(Event::Refusal(refusal)) =
            events.iter().find(|event| matches!(event, Event::Refusal(_)))
        else {
            panic!("there is a refusal");
        };
        // The second block, whose first element has the largest code.
        assert_eq!(refusal.first_index, Some(16), "{scale}");
        assert_eq!(parameters(&shard)[32..64], [0.0; 32], "{scale}");
    }
}
