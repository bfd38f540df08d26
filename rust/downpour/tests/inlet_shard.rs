//! The shard's inlet: the same events and bits however the bytes are cut; nothing of a damaged
//! record is applied; every rule of the wire.

#![allow(clippy::float_cmp, reason = "small integers times powers of two are exact")]

mod streams;

use downpour::frame::{Code, Fault, HEADER_SIZE, Header, Kind};
use downpour::inlet::{Event, InletError, Misuse, Refusal, Settled};
use downpour::store::AdmissionError;
use proptest::prelude::*;
use streams::*;

const ACCEPT: Decision = Decision::Accept(1.0);

/// Two pushes with everything in between that may be there: one good, one with a poisoned record,
/// a repeated record run, control frames inside a push.
fn busy_stream() -> Vec<u8> {
    let mut poisoned = gradient();
    poisoned[40] = f32::NAN;
    poisoned[41] = f32::INFINITY;
    let good = push(1, &gradient());
    let mut stream = control(Kind::Ping, 9);
    stream.extend(&good);
    stream.extend(push(2, &poisoned));
    let cut = HEADER_SIZE + 24 + 2 * (HEADER_SIZE + 4 * FRAGMENT_LEN);
    stream.extend(&good[..cut]);
    stream.extend(control(Kind::Fetch, 3));
    stream.extend(&good[cut..]);
    stream.extend(control(Kind::Bye, 0));
    stream
}

fn expected_reports() -> Vec<Settled> {
    let settled = |push, place: u32, count, applied, lsn, last| Settled {
        push,
        fragment: FIRST + place,
        count,
        applied,
        staleness: 0,
        lsn,
        last,
    };
    vec![
        settled(1, 0, 3, 3, 3, false),
        settled(1, 3, 1, 1, 4, true),
        // The second record is refused: reports stop before it and go on behind it.
        Settled { staleness: 1, ..settled(2, 0, 1, 1, 5, false) },
        Settled { staleness: 1, ..settled(2, 2, 2, 2, 7, true) },
        // The first push again, with a FETCH inside: all duplicates.
        settled(1, 0, 2, 0, 7, false),
        settled(1, 2, 2, 0, 7, true),
    ]
}

#[test]
fn a_busy_stream_is_reported_in_order() {
    let (shard, mut inlet) = (shard(), inlet());
    let (events, error) = feed(&mut inlet, &shard, &busy_stream(), &[usize::MAX], ACCEPT);
    assert_eq!(error, None);
    assert_eq!(settled(&events), expected_reports());
    let frames: Vec<_> = events
        .iter()
        .filter_map(|e| if let Event::Frame(f) = e { Some(f.header.kind) } else { None })
        .collect();
    let expected = [Kind::Ping, Kind::Push, Kind::Push, Kind::Push, Kind::Fetch, Kind::Bye];
    assert_eq!(frames, expected);
    let refusals: Vec<_> = events
        .iter()
        .filter_map(|e| if let Event::Refusal(r) = e { Some(*r) } else { None })
        .collect();
    let poisoned = Refusal {
        push: 2,
        fragment: 6,
        code: Code::NonFinite,
        count: 2,
        first_index: Some(8),
        norm: 0.0,
    };
    assert_eq!(refusals, [poisoned]);
    // Each applied push subtracts half its gradient; fragment 1 was applied once, others twice.
    for (i, (value, g)) in parameters(&shard).iter().zip(gradient()).enumerate() {
        let times = if (FRAGMENT_LEN..2 * FRAGMENT_LEN).contains(&i) { 1.0 } else { 2.0 };
        assert_eq!(*value, -0.5 * g * times, "element {i}");
    }
    assert_eq!(shard.find(1).map(|e| (e.floor(), e.open(), e.applied())), Some((1, 1, 7)));
}

#[test]
fn what_is_settled_can_be_asked_for_before_enough_has_come() {
    let (shard, mut inlet) = (shard(), inlet());
    assert_eq!(inlet.settled(), None);
    let stream = push(1, &gradient());
    let record = HEADER_SIZE + 4 * FRAGMENT_LEN;
    let (head, rest) = stream.split_at(HEADER_SIZE + 24 + record);
    let _ = feed(&mut inlet, &shard, head, &[usize::MAX], ACCEPT);
    let nothing = Settled { push: 1, fragment: FIRST, ..Settled::default() };
    assert_eq!(inlet.settled(), Some(Settled { count: 1, applied: 1, lsn: 1, ..nothing }));
    // Nothing since then: that can be said, too.
    let nothing = Settled { fragment: FIRST + 1, lsn: 1, ..nothing };
    assert_eq!(inlet.settled(), Some(nothing));
    let (events, error) = feed(&mut inlet, &shard, rest, &[usize::MAX], ACCEPT);
    assert_eq!(error, None);
    let rest = Settled { count: 3, applied: 3, lsn: 4, last: true, ..nothing };
    assert_eq!(settled(&events), [rest]);
    assert_eq!(inlet.settled(), None);
}

#[test]
fn a_push_that_is_thrown_away_is_not_reported() {
    let (shard, mut inlet) = (shard(), inlet());
    let stream = push(1, &gradient());
    let half = &stream[..stream.len() / 2];
    let _ = feed(&mut inlet, &shard, half, &[usize::MAX], Decision::Skip);
    assert_eq!(inlet.settled(), None);
}

#[test]
fn an_inlet_is_idle_where_a_new_one_could_take_its_place() {
    let (shard, mut inlet) = (shard(), inlet());
    let stream = push(1, &gradient());
    let mut scratch = vec![0; inlet.scratch_size()];
    for (place, byte) in stream.iter().enumerate() {
        assert_eq!(inlet.is_idle(), place == 0, "before byte {place}");
        let (start, _) = inlet.window(&mut scratch).unwrap();
        scratch[start] = *byte;
        let mut arrived = 1;
        while let Some(event) = inlet.advance(&scratch, arrived, &shard).unwrap() {
            decide(&mut inlet, &shard, &event, ACCEPT);
            arrived = 0;
        }
    }
    assert!(inlet.is_idle());
    let _ = feed(&mut inlet, &shard, &[0; HEADER_SIZE], &[usize::MAX], ACCEPT);
    assert!(!inlet.is_idle(), "it has failed, and says so again");
}

#[test]
fn byte_by_byte_is_the_same_as_whole() {
    let (shard, whole) = (shard(), streams::shard());
    let stream = busy_stream();
    let bytes = feed(&mut inlet(), &shard, &stream, &[1], ACCEPT);
    assert_eq!(bytes, feed(&mut inlet(), &whole, &stream, &[usize::MAX], ACCEPT));
    assert_eq!(state(&shard), state(&whole));
}

proptest! {
    #[test]
    fn any_cut_is_the_same_as_whole(sizes in prop::collection::vec(1usize..400, 1..12)) {
        let (shard, whole) = (shard(), streams::shard());
        let stream = busy_stream();
        let cut = feed(&mut inlet(), &shard, &stream, &sizes, ACCEPT);
        prop_assert_eq!(cut, feed(&mut inlet(), &whole, &stream, &[usize::MAX], ACCEPT));
        prop_assert_eq!(state(&shard), state(&whole));
    }

    #[test]
    fn random_bytes_never_panic_and_change_nothing(
        bytes in prop::collection::vec(any::<u8>(), 64..600),
    ) {
        let shard = shard();
        let before = state(&shard);
        let (events, error) = feed(&mut inlet(), &shard, &bytes, &[usize::MAX], ACCEPT);
        prop_assert!(events.is_empty() && error.is_some());
        prop_assert_eq!(state(&shard), before);
    }
}

#[test]
fn a_damaged_byte_ends_the_stream_and_its_record_is_not_applied() {
    let stream = push(1, &gradient());
    let record_size = HEADER_SIZE + 4 * FRAGMENT_LEN;
    for at in 0..stream.len() {
        let (shard, mut inlet) = (shard(), inlet());
        let mut damaged = stream.clone();
        damaged[at] ^= 0x40;
        let (events, error) = feed(&mut inlet, &shard, &damaged, &[usize::MAX], ACCEPT);
        let error = error.unwrap_or_else(|| panic!("byte {at} went unnoticed"));
        // Whole records before the damage count, and are reported; nothing else does.
        let before = at.saturating_sub(HEADER_SIZE + 24) / record_size;
        let reported: u32 = settled(&events).iter().map(|s| s.applied).sum();
        assert_eq!((shard.store().lsn(), u64::from(reported)), (before as u64, before as u64));
        let frames_before = if at < HEADER_SIZE + 24 { 0 } else { HEADER_SIZE + 24 };
        assert_eq!(error.offset, (frames_before + before * record_size) as u64, "byte {at}");
        for (i, value) in parameters(&shard).iter().enumerate() {
            let g = if i < before * FRAGMENT_LEN { gradient()[i] } else { 0.0 };
            assert_eq!(*value, -0.5 * g, "byte {at}, element {i}");
        }
    }
}

#[test]
fn a_finished_stream_repeats_its_error() {
    let (shard, mut inlet) = (shard(), inlet());
    let (_, error) = feed(&mut inlet, &shard, &control(Kind::Ack, 1), &[64], ACCEPT);
    let error = error.unwrap();
    let scratch = vec![0; inlet.scratch_size()];
    for _ in 0..2 {
        assert_eq!(inlet.advance(&scratch, 0, &shard), Err(InletError::Protocol(error)));
    }
}

/// The fault that a stream ends with.
fn fault(stream: &[u8]) -> Fault {
    let (_, error) = feed(&mut inlet(), &shard(), stream, &[usize::MAX], ACCEPT);
    error.expect("the stream breaks a rule").fault
}

#[test]
fn every_broken_rule_is_named() {
    let payload = bytes_of(&gradient()[..FRAGMENT_LEN]);
    for kind in [Kind::Ack, Kind::Refuse, Kind::Parameters, Kind::Fetched, Kind::Sum] {
        assert!(matches!(fault(&control(kind, 1)), Fault::Unexpected { .. }), "{kind:?}");
    }
    let lonely = fault(&record(1, 0, 1, &payload));
    assert!(matches!(lonely, Fault::Unexpected { kind: Kind::Fragment, .. }));
    let twice = [announcement(1, 0, 1), announcement(2, 0, 1)].concat();
    assert!(matches!(fault(&twice), Fault::Unexpected { kind: Kind::Push, .. }));
    for (push, place) in [(1, 1), (2, 0)] {
        let late = [announcement(1, 0, 2), record(push, place, 1, &payload)].concat();
        let expected = Fault::Sequence {
            push,
            fragment: FIRST + place,
            expected_push: 1,
            expected_fragment: FIRST,
        };
        assert_eq!(fault(&late), expected);
    }
    let short = [announcement(1, 0, 1), record(1, 0, 1, &payload[4..])].concat();
    let mismatch = Fault::PayloadMismatch { kind: Kind::Fragment, size: 124, expected: 128 };
    assert_eq!(fault(&short), mismatch);
    // The last fragment has only 4 elements.
    let long = [announcement(1, 3, 1), record(1, 3, 1, &payload)].concat();
    assert!(matches!(fault(&long), Fault::PayloadMismatch { size: 128, expected: 16, .. }));
    let wordy = frame(Header::new(Kind::Ping), &[0; CONTROL_SIZE_MAX + 1]);
    assert_eq!(fault(&wordy), Fault::PayloadSize { kind: Kind::Ping, size: 129, limit: 128 });
    let huge = Header { length: u64::MAX, ..Header::new(Kind::Ping) }.encode();
    assert!(matches!(fault(&huge), Fault::PayloadSize { size: u64::MAX, .. }));
    let other =
        Header { replica: 2, incarnation: 1, dtype: 1, seq: 1, ..Header::new(Kind::Fragment) };
    let other = [announcement(1, 0, 1), frame(other, &payload)].concat();
    assert!(matches!(fault(&other), Fault::Identity { replica: 2, expected_replica: 1, .. }));
}

#[test]
fn an_impossible_announcement_is_named() {
    let head = Header { replica: 1, incarnation: 1, seq: 1, count: 1, ..Header::new(Kind::Push) };
    let announced = |head: Header| fault(&frame(head, &[0; 24]));
    assert!(matches!(announced(Header { replica: 0, ..head }), Fault::Nobody { .. }));
    assert!(matches!(announced(Header { incarnation: 0, ..head }), Fault::Nobody { .. }));
    let nameless = Fault::Run { push: 0, fragment: 0, count: 1 };
    assert_eq!(announced(Header { seq: 0, ..head }), nameless);
    assert!(matches!(announced(Header { seq: u64::MAX, ..head }), Fault::Run { .. }));
    let far = Header { fragment: 2, count: u32::MAX - 1, ..head };
    assert!(matches!(announced(far), Fault::Run { .. }));
    let short = fault(&frame(head, &[0; 23]));
    assert_eq!(short, Fault::PayloadMismatch { kind: Kind::Push, size: 23, expected: 24 });
}

#[test]
fn a_record_the_shard_cannot_read_is_refused_and_the_stream_goes_on() {
    let (shard, mut inlet) = (shard(), inlet());
    let payload = bytes_of(&gradient()[..FRAGMENT_LEN]);
    let codec = Header {
        codec: 7,
        dtype: 1,
        replica: 1,
        incarnation: 1,
        fragment: FIRST + 1,
        seq: 1,
        ..Header::new(Kind::Fragment)
    };
    let stream = [
        announcement(1, 0, 3),
        record(1, 0, 9, &payload),
        frame(codec, &payload),
        record(1, 2, 1, &bytes_of(&[f32::MAX; FRAGMENT_LEN])),
        announcement(1, 4, 1),
        record(1, 4, 1, &payload),
    ]
    .concat();
    let (events, error) = feed(&mut inlet, &shard, &stream, &[100], Decision::Accept(4.0));
    assert_eq!(error, None);
    let refused: Vec<_> = events
        .iter()
        .filter_map(|e| if let Event::Refusal(r) = e { Some((r.fragment, r.code)) } else { None })
        .collect();
    // MAX times 4 is not finite: the scale belongs to the check.
    let expected =
        [(5, Code::Unsupported), (6, Code::Unsupported), (7, Code::NonFinite), (9, Code::Fragment)];
    assert_eq!(refused, expected);
    // Refused records are not done, but the runs are complete: empty last reports say so.
    let last = |fragment| Settled { push: 1, fragment, last: true, ..Settled::default() };
    assert_eq!(settled(&events), [last(8), last(10)]);
    assert_eq!(shard.find(1).map(|e| (e.floor(), e.applied())), Some((0, 0)));
    let (events, error) = feed(&mut inlet, &shard, &push(1, &gradient()), &[usize::MAX], ACCEPT);
    assert_eq!((settled(&events).iter().map(|s| s.applied).sum::<u32>(), error), (4, None));
}

#[test]
fn every_dtype_is_applied() {
    let halves = vec![0x3C00u16; FRAGMENT_LEN];
    let brains = vec![0x3F80u16; FRAGMENT_LEN];
    let words = |words: Vec<u16>| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let doubles: Vec<u8> = [1.0f64; FRAGMENT_LEN].iter().flat_map(|d| d.to_le_bytes()).collect();
    let ones = bytes_of(&[1.0; FRAGMENT_LEN]);
    for (dtype, payload) in [(1, ones), (2, doubles), (3, words(halves)), (4, words(brains))] {
        let shard = shard();
        let stream = [announcement(1, 1, 1), record(1, 1, dtype, &payload)].concat();
        let (events, error) = feed(&mut inlet(), &shard, &stream, &[31], ACCEPT);
        assert_eq!((settled(&events)[0].applied, error), (1, None), "dtype {dtype}");
        assert_eq!(parameters(&shard)[FRAGMENT_LEN..2 * FRAGMENT_LEN], [-0.5; FRAGMENT_LEN]);
    }
}

#[test]
fn a_skipped_push_is_received_checked_and_thrown_away() {
    let (shard, mut inlet) = (shard(), inlet());
    let stream = [push(1, &gradient()), control(Kind::Ping, 4)].concat();
    let (events, error) = feed(&mut inlet, &shard, &stream, &[77], Decision::Skip);
    assert_eq!(error, None);
    assert!(settled(&events).is_empty());
    assert!(matches!(&events[..], [Event::Frame(_), Event::Frame(ping)] if ping.header.seq == 4));
    assert_eq!((shard.store().lsn(), parameters(&shard)), (0, vec![0.0; LEN]));
    let mut damaged = push(2, &gradient());
    *damaged.last_mut().unwrap() ^= 1;
    let (_, error) = feed(&mut inlet, &shard, &damaged, &[77], Decision::Skip);
    assert!(matches!(error.unwrap().fault, Fault::PayloadChecksum { .. }));
}

#[test]
fn a_push_of_nothing_is_complete_at_once() {
    for decision in [ACCEPT, Decision::Skip] {
        let (shard, mut inlet) = (shard(), inlet());
        let stream = [announcement(1, 0, 0), push(1, &gradient())].concat();
        let (events, error) = feed(&mut inlet, &shard, &stream, &[usize::MAX], decision);
        assert_eq!(error, None);
        let first = Settled { push: 1, fragment: FIRST, last: true, ..Settled::default() };
        let reports = settled(&events);
        assert_eq!(reports.first(), (decision == ACCEPT).then_some(&first));
    }
}

#[test]
fn a_fence_in_the_middle_of_a_push_stops_the_rest() {
    let (shard, mut inlet) = (shard(), inlet());
    let stream = push(1, &gradient());
    let half = HEADER_SIZE + 24 + 2 * (HEADER_SIZE + 4 * FRAGMENT_LEN);
    let (_, error) = feed(&mut inlet, &shard, &stream[..half], &[usize::MAX], ACCEPT);
    assert_eq!((shard.store().lsn(), error), (2, None));
    shard.fence(1, 2);
    let (events, error) = feed(&mut inlet, &shard, &stream[half..], &[usize::MAX], ACCEPT);
    assert_eq!((shard.store().lsn(), error), (2, None));
    let fenced = |event: &&Event| matches!(event, Event::Refusal(r) if r.code == Code::Fenced);
    assert_eq!(events.iter().filter(fenced).count(), 2);
    assert!(settled(&events).last().is_some_and(|s| s.last));
}

#[test]
fn a_record_nobody_admitted_is_refused() {
    let (shard, mut inlet) = (shard(), inlet());
    let mut scratch = vec![0; inlet.scratch_size()];
    let stream = push(1, &gradient());
    let (start, _) = inlet.window(&mut scratch).unwrap();
    let size = HEADER_SIZE + 24 + HEADER_SIZE + 4 * FRAGMENT_LEN;
    scratch[start..start + size].copy_from_slice(&stream[..size]);
    assert!(inlet.advance(&scratch, size, &shard).unwrap().is_some());
    inlet.accept(1.0, &shard).unwrap();
    let event = inlet.advance(&scratch, 0, &shard).unwrap();
    assert!(matches!(event, Some(Event::Refusal(r)) if r.code == Code::UnknownState));
}

#[test]
fn the_owner_must_keep_the_rules_too() {
    let (shard, mut inlet) = (shard(), inlet());
    let mut scratch = vec![0; inlet.scratch_size()];
    assert_eq!(inlet.accept(1.0, &shard), Err(Misuse::NotAnnounced));
    assert_eq!(inlet.skip(), Err(Misuse::NotAnnounced));
    let room = scratch.len();
    let overrun = Misuse::Overrun { count: room + 1, room };
    assert_eq!(inlet.advance(&scratch, room + 1, &shard), Err(overrun.into()));
    assert!(matches!(inlet.window(&mut [0; 8]), Err(Misuse::Scratch { size: 8, .. })));
    let stream = announcement(1, 0, 1);
    scratch[..stream.len()].copy_from_slice(&stream);
    assert!(inlet.advance(&scratch, stream.len(), &shard).unwrap().is_some());
    assert_eq!(inlet.advance(&scratch, 0, &shard), Err(Misuse::Undecided.into()));
    for scale in [f32::NAN, f32::INFINITY] {
        let refused = inlet.accept(scale, &shard);
        let admission = matches!(refused, Err(Misuse::Admission(AdmissionError::Scale { .. })));
        assert!(admission, "{refused:?}");
    }
    // The window stays open while the owner thinks.
    let (start, stop) = inlet.window(&mut scratch).unwrap();
    assert!(start < stop);
    assert_eq!(inlet.accept(1.0, &shard), Ok(()));
    assert_eq!(inlet.accept(1.0, &shard), Err(Misuse::NotAnnounced));
}
