//! The replica's inlet: parameters land where they belong, however the bytes are cut.

#![allow(clippy::cast_precision_loss, reason = "small integers")]

mod streams;

use downpour::frame::{Fault, HEADER_SIZE, Header, Kind, ProtocolError};
use downpour::inlet::{Frame, InletError, Landing, Misuse, ReplicaInlet, Target};
use downpour::optimizer::Optimizer;
use downpour::shard::{Batch, Piece, Shard};
use downpour::store::{Geometry, Store};
use proptest::prelude::*;
use streams::{
    CONTROL_SIZE_MAX, FIRST, FRAGMENT_LEN, FRAGMENTS, LEN, bytes_of, control, frame, gradient,
};

fn inlet() -> ReplicaInlet {
    ReplicaInlet::new(LEN, FRAGMENT_LEN, FIRST, CONTROL_SIZE_MAX)
}

/// A replica's memory.
#[derive(Clone, Debug, PartialEq)]
struct Memory {
    values: Vec<u8>,
    versions: Vec<u64>,
}

impl Memory {
    fn new() -> Self {
        Self { values: vec![0xAA; 4 * LEN], versions: vec![77; FRAGMENTS] }
    }

    fn target(&mut self) -> Target<'_> {
        Target { values: &mut self.values, versions: &mut self.versions }
    }
}

fn feed(
    inlet: &mut ReplicaInlet,
    memory: &mut Memory,
    stream: &[u8],
    sizes: &[usize],
) -> (Vec<Frame>, Option<ProtocolError>) {
    let mut scratch = vec![0; inlet.scratch_size()];
    let mut frames = Vec::new();
    let mut rest = stream;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let landing = inlet.window(&mut scratch).unwrap();
        let (place, start, stop) = match landing {
            Landing::Scratch { start, stop } => (&mut scratch, start, stop),
            Landing::Target { start, stop } => (&mut memory.values, start, stop),
        };
        assert!(start < stop && stop <= place.len(), "bad window {landing:?}");
        let count = (*sizes.next().unwrap()).min(stop - start).min(rest.len());
        place[start..start + count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        let mut arrived = count;
        loop {
            match inlet.advance(&scratch, arrived, Some(memory.target())) {
                Ok(None) => break,
                Ok(Some(frame)) => frames.push(frame),
                Err(InletError::Protocol(error)) => return (frames, Some(error)),
                Err(InletError::Misuse(error)) => panic!("the driver misused the inlet: {error}"),
            }
            arrived = 0;
        }
    }
    (frames, None)
}

/// A shard that has applied one push to fragments 0 and 2 and a second to 2.
fn pushed_shard() -> Shard {
    let shard = streams::shard();
    let values: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
    shard.store().load_plane(0, 0, &values).unwrap();
    for (place, fragment) in [(0, FIRST), (2, FIRST + 2), (2, FIRST + 2)] {
        let g = &gradient()[place * FRAGMENT_LEN..(place + 1) * FRAGMENT_LEN];
        let gradient = downpour::kernel::Gradient::F32(g);
        shard.take(fragment, gradient, u64::MAX, &1.0.into()).unwrap();
    }
    shard
}

/// The bytes of a fetch, in batches of about `size_max`.
fn fetch(shard: &Shard, since: u64, size_max: usize) -> (Vec<u8>, usize) {
    let (mut bytes, mut frames, mut cursor) = (Vec::new(), 0, 0);
    while cursor < shard.fragments().end {
        let batch = shard.parameter_frames(since, cursor, size_max, None);
        assert!(batch.cursor > cursor, "a batch makes progress");
        let before = bytes.len();
        for piece in batch.pieces {
            match piece {
                Piece::Bytes(some) => bytes.extend(some),
                Piece::Stripe(pinned) => bytes.extend(bytes_of(pinned.parameters())),
            }
        }
        assert_eq!(batch.size, bytes.len() - before);
        (frames, cursor) = (frames + batch.frames, batch.cursor);
    }
    (bytes, frames)
}

fn busy_stream() -> (Vec<u8>, Shard) {
    let shard = pushed_shard();
    let mut stream = control(Kind::Pong, 5);
    stream.extend(fetch(&shard, 0, 1).0);
    let done = Header { seq: 9, version: 3, count: 4, ..Header::new(Kind::Fetched) };
    stream.extend(frame(done, b""));
    stream.extend(frame(Header { seq: 1, aux: 1, ..Header::new(Kind::Refuse) }, b"in words"));
    (stream, shard)
}

#[test]
fn a_fetch_lands_whole() {
    let (stream, shard) = busy_stream();
    let mut memory = Memory::new();
    let (frames, error) = feed(&mut inlet(), &mut memory, &stream, &[usize::MAX]);
    assert_eq!(error, None);
    let kinds: Vec<_> = frames.iter().map(|frame| frame.header.kind).collect();
    assert_eq!(kinds, [Kind::Pong, Kind::Fetched, Kind::Refuse]);
    assert_eq!(frames[2].payload, b"in words");
    let expected =
        Memory { values: bytes_of(&streams::parameters(&shard)), versions: vec![1, 0, 2, 0] };
    assert_eq!(memory, expected);
}

#[test]
fn where_a_fetch_was_cut_off_is_known() {
    let (stream, _) = busy_stream();
    let (mut inlet, mut memory) = (inlet(), Memory::new());
    assert_eq!(inlet.landed(), (0, FIRST));
    let size = HEADER_SIZE + 4 * FRAGMENT_LEN;
    let _ = feed(&mut inlet, &mut memory, &stream[..HEADER_SIZE + 3 * size - 1], &[usize::MAX]);
    assert_eq!(inlet.landed(), (2, FIRST + 2));
}

#[test]
fn where_readers_may_keep_no_more_a_batch_is_one_fragment_and_a_copy() {
    const STRIPE: usize = 16 * 1024;
    let geometry = Geometry { len: 16 * STRIPE, stripe_len: STRIPE, fragment_len: 4 * STRIPE };
    let numbers = std::collections::BTreeMap::from([("lr".to_owned(), 1.0)]);
    let sgd = Optimizer::compile(&[("sgd".to_owned(), numbers)], None).unwrap();
    let shard = Shard::new(Store::new(geometry, sgd).unwrap(), 0).unwrap();
    let is_copied = |batch: &Batch| matches!(batch.pieces[..], [Piece::Bytes(_)]);
    // 32 blocks beyond one a stripe, of which 10 are for records: 5 fragments may be kept.
    let first = shard.parameter_frames(0, 0, usize::MAX, None);
    assert_eq!((first.frames, first.cursor, is_copied(&first)), (4, 4, false));
    let second = shard.parameter_frames(0, 0, usize::MAX, None);
    assert_eq!((second.frames, second.cursor, is_copied(&second)), (1, 1, false));
    let third = shard.parameter_frames(0, 1, usize::MAX, None);
    assert_eq!((third.frames, third.cursor, is_copied(&third)), (1, 2, true));
    assert_eq!(third.size, HEADER_SIZE + 16 * STRIPE);
    drop(first);
    let fourth = shard.parameter_frames(0, 1, usize::MAX, None);
    assert_eq!((fourth.frames, fourth.cursor, is_copied(&fourth)), (3, 4, false));
}

proptest! {
    #[test]
    fn any_cut_is_the_same_as_whole(sizes in prop::collection::vec(1usize..200, 1..12)) {
        let (stream, _) = busy_stream();
        let (mut whole, mut cut) = (Memory::new(), Memory::new());
        let expected = feed(&mut inlet(), &mut whole, &stream, &[usize::MAX]);
        prop_assert_eq!(feed(&mut inlet(), &mut cut, &stream, &sizes), expected);
        prop_assert_eq!(cut, whole);
    }
}

#[test]
fn byte_by_byte_is_the_same_as_whole() {
    let (stream, _) = busy_stream();
    let (mut whole, mut bytes) = (Memory::new(), Memory::new());
    let expected = feed(&mut inlet(), &mut whole, &stream, &[usize::MAX]);
    assert_eq!(feed(&mut inlet(), &mut bytes, &stream, &[1]), expected);
    assert_eq!(bytes, whole);
}

#[test]
fn only_changed_fragments_are_sent_and_nothing_else_is_touched() {
    let shard = pushed_shard();
    for (since, fragments) in [(0, 4), (1, 1), (2, 1), (3, 0)] {
        let (stream, frames) = fetch(&shard, since, usize::MAX);
        assert_eq!(frames, fragments, "since {since}");
        let mut memory = Memory::new();
        assert_eq!(feed(&mut inlet(), &mut memory, &stream, &[50]), (vec![], None));
        let touched: Vec<_> = memory.versions.iter().map(|version| *version != 77).collect();
        for (fragment, is_touched) in touched.into_iter().enumerate() {
            let start = 4 * fragment * FRAGMENT_LEN;
            let bytes = &memory.values[start..(start + 4 * FRAGMENT_LEN).min(4 * LEN)];
            assert_eq!(bytes.iter().all(|byte| *byte == 0xAA), !is_touched);
        }
    }
}

#[test]
fn large_fragments_are_sent_as_pinned_stripes_with_a_combined_checksum() {
    use downpour::{
        optimizer::Optimizer,
        store::{Geometry, Store},
    };
    use std::collections::BTreeMap;
    let parts = [("sgd".to_owned(), BTreeMap::from([("lr".to_owned(), 0.5)]))];
    // 3 fragments of 4 stripes, the last fragment and the last stripe shorter.
    let (len, stripe_len) = (9 * 2048 + 100, 2048);
    let geometry = Geometry { len, stripe_len, fragment_len: 4 * stripe_len };
    let store = Store::new(geometry, Optimizer::compile(&parts, None).unwrap()).unwrap();
    let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
    store.load_plane(0, 0, &values).unwrap();
    let shard = Shard::new(store, 0).unwrap();
    let batch = shard.parameter_frames(0, 0, usize::MAX, None);
    let pinned = batch.pieces.iter().filter(|piece| matches!(piece, Piece::Stripe(_))).count();
    assert_eq!((batch.frames, pinned, batch.cursor), (3, 8, 3), "the last one is gathered");
    let mut stream = Vec::new();
    for piece in &batch.pieces {
        match piece {
            Piece::Bytes(some) => stream.extend(some),
            Piece::Stripe(pinned) => stream.extend(bytes_of(pinned.parameters())),
        }
    }
    let frames: Vec<_> =
        downpour::frame::Scan::new(&stream).collect::<Result<_, _>>().expect("checksums match");
    let payload: Vec<u8> = frames.iter().flat_map(|(_, payload)| payload.to_vec()).collect();
    assert_eq!(payload, bytes_of(&values));
}

#[test]
fn damage_is_found_and_the_version_is_not_stored() {
    let (stream, _) = fetch(&pushed_shard(), 0, usize::MAX);
    for at in 0..stream.len() {
        let mut damaged = stream.clone();
        damaged[at] ^= 1;
        let mut memory = Memory::new();
        let (_, error) = feed(&mut inlet(), &mut memory, &damaged, &[usize::MAX]);
        let error = error.unwrap_or_else(|| panic!("byte {at} went unnoticed"));
        let whole = at / (HEADER_SIZE + 4 * FRAGMENT_LEN);
        assert_eq!(error.offset, (whole * (HEADER_SIZE + 4 * FRAGMENT_LEN)) as u64);
        let stored = memory.versions.iter().filter(|version| **version != 77).count();
        assert_eq!(stored, whole, "byte {at}");
    }
}

fn fault(stream: &[u8]) -> Fault {
    let (_, error) = feed(&mut inlet(), &mut Memory::new(), stream, &[usize::MAX]);
    error.expect("the stream breaks a rule").fault
}

#[test]
fn every_broken_rule_is_named() {
    let parameters = Header { dtype: 1, fragment: FIRST, ..Header::new(Kind::Parameters) };
    let payload = [0; 4 * FRAGMENT_LEN];
    for kind in [Kind::Push, Kind::Fragment, Kind::Fetch] {
        assert!(matches!(fault(&control(kind, 1)), Fault::Unexpected { .. }), "{kind:?}");
    }
    for fragment in [0, 4, 9, u32::MAX] {
        let far = fault(&frame(Header { fragment, ..parameters }, &payload));
        let kind = Kind::Parameters;
        assert_eq!(far, Fault::FragmentRange { kind, fragment, start: 5, stop: 9 });
    }
    let long = fault(&frame(Header { fragment: FIRST + 3, ..parameters }, &payload));
    assert!(matches!(long, Fault::PayloadMismatch { size: 128, expected: 16, .. }));
    for wrong in [Header { dtype: 2, ..parameters }, Header { codec: 1, ..parameters }] {
        assert!(matches!(fault(&frame(wrong, &payload)), Fault::Encoding { expected: 1, .. }));
    }
    let wordy = fault(&frame(Header::new(Kind::Error), &[0; CONTROL_SIZE_MAX + 1]));
    assert!(matches!(wordy, Fault::PayloadSize { size: 129, .. }));
}

#[test]
fn the_owner_must_keep_the_rules_too() {
    let mut inlet = inlet();
    let mut scratch = vec![0; inlet.scratch_size()];
    let (stream, _) = fetch(&pushed_shard(), 0, usize::MAX);
    assert!(matches!(inlet.window(&mut [0; 8]), Err(Misuse::Scratch { size: 8, .. })));
    scratch[..100].copy_from_slice(&stream[..100]);
    let mut memory = Memory::new();
    let mut small = Memory { values: vec![0; 8], versions: vec![0; FRAGMENTS] };
    let misfit = inlet.advance(&scratch, 100, Some(small.target()));
    assert!(matches!(misfit, Err(InletError::Misuse(Misuse::Target { values: 2, .. }))));
    assert_eq!(inlet.check_target(LEN, FRAGMENTS), Ok(()));
    assert!(matches!(inlet.check_target(LEN, 3), Err(Misuse::Target { .. })));
    assert_eq!(inlet.advance(&scratch, 100, Some(memory.target())), Ok(None));
    let landing = Err(Misuse::Landing { fragment: FIRST });
    assert_eq!(inlet.check_target(LEN, FRAGMENTS), landing);
    assert_eq!(inlet.window(&mut scratch), Ok(Landing::Target { start: 36, stop: 128 }));
    let overrun = inlet.advance(&scratch, 93, Some(memory.target()));
    assert_eq!(overrun, Err(Misuse::Overrun { count: 93, room: 92 }.into()));
}

#[test]
fn parameters_without_a_target_end_the_stream() {
    let mut inlet = inlet();
    let mut scratch = vec![0; inlet.scratch_size()];
    let (stream, _) = fetch(&pushed_shard(), 0, usize::MAX);
    scratch[..64].copy_from_slice(&stream[..64]);
    let error = inlet.advance(&scratch, 64, None).unwrap_err();
    assert!(
        matches!(error, InletError::Protocol(e) if matches!(e.fault, Fault::Unexpected { .. }))
    );
    assert_eq!(inlet.advance(&scratch, 0, None), Err(error));
}

#[test]
fn sums_land_where_sums_are_expected_and_nothing_else_does() {
    let sums = || ReplicaInlet::new(LEN, FRAGMENT_LEN, FIRST, CONTROL_SIZE_MAX).of_sums();
    let values: Vec<u8> = [1.5_f32; FRAGMENT_LEN].iter().flat_map(|v| v.to_le_bytes()).collect();
    let sum = Header { dtype: 1, fragment: FIRST + 1, version: 7, ..Header::new(Kind::Sum) };
    let mut memory = Memory::new();
    let stream = [frame(sum, &values), control(Kind::Reduced, 3)].concat();
    let (frames, error) = feed(&mut sums(), &mut memory, &stream, &[5, 9, usize::MAX]);
    assert_eq!((frames.len(), error), (1, None));
    assert_eq!(frames[0].header.kind, Kind::Reduced);
    assert_eq!(memory.versions[1], 7);
    assert_eq!(memory.values[4 * FRAGMENT_LEN..8 * FRAGMENT_LEN], values);
    for (mut inlet, kind) in [(inlet(), Kind::Sum), (sums(), Kind::Parameters)] {
        let stream = frame(Header { kind, ..sum }, &values);
        let (_, error) = feed(&mut inlet, &mut Memory::new(), &stream, &[usize::MAX]);
        assert!(matches!(error.unwrap().fault, Fault::Unexpected { .. }), "{kind:?}");
    }
}
