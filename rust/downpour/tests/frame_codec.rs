//! The frame codec: golden bytes, round trips, and every damaged byte.

use downpour::frame::{Announcement, Fault, HEADER_SIZE, Header, Kind, Scan};
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../../tests/vectors/frames.txt");

fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A golden line: header and payload from its fields, and the bytes.
fn golden(line: &str) -> (Header, Vec<u8>, Vec<u8>) {
    let field =
        |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| field(name).map_or(0, |text| text.parse::<u64>().unwrap());
    let word = |name: &str| u32::try_from(number(name)).unwrap();
    let byte = |name: &str| u8::try_from(number(name)).unwrap();
    let payload = field("payload").map(unhex).unwrap_or_default();
    let header = Header {
        codec: byte("codec"),
        dtype: byte("dtype"),
        flags: word("flags"),
        replica: word("replica"),
        incarnation: word("incarnation"),
        fragment: word("fragment"),
        seq: number("seq"),
        version: number("version"),
        aux: word("aux"),
        count: word("count"),
        ..Header::new(Kind::from_number(byte("kind")).unwrap()).with_payload(&payload)
    };
    (header, payload, field("bytes").map(unhex).unwrap())
}

#[test]
fn golden_frames_encode_and_decode() {
    let mut kinds = Vec::new();
    for line in GOLDEN.lines() {
        let (header, payload, bytes) = golden(line);
        let mut encoded = header.encode().to_vec();
        encoded.extend_from_slice(&payload);
        assert_eq!(encoded, bytes, "{line}");
        let frames: Vec<_> = Scan::new(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(frames, [(header, &payload[..])], "{line}");
        kinds.push(header.kind);
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, Kind::ALL, "every kind has a golden frame");
}

#[test]
fn every_damaged_bit_is_found() {
    for line in GOLDEN.lines() {
        let (_, _, bytes) = golden(line);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Scan::new(&damaged).any(|frame| frame.is_err()), "bit {bit} of {line}");
        }
    }
}

#[test]
fn every_cut_is_found_and_nothing_behind_it_is_read() {
    let bytes: Vec<u8> = GOLDEN.lines().flat_map(|line| golden(line).2).collect();
    let whole = Scan::new(&bytes).count();
    assert_eq!(whole, GOLDEN.lines().count());
    for len in 0..bytes.len() {
        let frames: Vec<_> = Scan::new(&bytes[..len]).collect();
        let ends_at_a_frame = frames.iter().all(Result::is_ok);
        let size: usize = frames.iter().flatten().map(|(_, p)| HEADER_SIZE + p.len()).sum();
        assert_eq!(ends_at_a_frame, size == len);
        if let Some(Err(error)) = frames.last() {
            assert!(matches!(error.fault, Fault::Truncated { .. }), "{error}");
            assert_eq!(error.offset, size as u64);
        }
    }
}

/// A header with one byte changed and its checksum made right again: a lying peer.
fn forged(kind: Kind, at: usize, value: u8) -> Result<Header, Fault> {
    let mut bytes = Header::new(kind).encode();
    bytes[at] = value;
    let crc = downpour::checksum::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    Header::decode(&bytes)
}

#[test]
fn a_lying_header_is_named() {
    assert!(matches!(forged(Kind::Ping, 3, b'2'), Err(Fault::Magic { .. })));
    assert_eq!(forged(Kind::Ping, 4, 2), Err(Fault::WireVersion { found: 2, expected: 1 }));
    for number in [0, 15, 255] {
        assert_eq!(forged(Kind::Ping, 5, number), Err(Fault::Kind { found: number }));
    }
    let kind = Kind::Ping;
    let encoding = |dtype, codec| Fault::Encoding { kind, dtype, codec, expected: 0 };
    assert_eq!(forged(kind, 6, 1), Err(encoding(0, 1)));
    assert_eq!(forged(kind, 7, 1), Err(encoding(1, 0)));
    assert_eq!(forged(kind, 8, 1), Err(Fault::Flags { kind, unknown: 1 }));
    assert!(forged(Kind::Ack, 8, 1).is_ok());
    assert_eq!(forged(Kind::Ack, 8, 3), Err(Fault::Flags { kind: Kind::Ack, unknown: 2 }));
    // A fragment's dtype and codec are for the shard to judge.
    assert!(forged(Kind::Fragment, 6, 9).is_ok());
    assert!(forged(Kind::Fragment, 7, 9).is_ok());
}

#[test]
fn a_huge_length_is_refused_before_anything_else() {
    let header = Header { length: u64::MAX, ..Header::new(Kind::Ping) };
    let limit = 1 << 20;
    let fault = Fault::PayloadSize { kind: Kind::Ping, size: u64::MAX, limit: 1 << 20 };
    assert_eq!(header.payload_size(limit), Err(fault));
    let exact = Header { length: 1 << 20, ..Header::new(Kind::Ping) };
    assert_eq!(exact.payload_size(limit), Ok(limit));
    let error = Scan::new(&header.encode()).next().unwrap().unwrap_err();
    assert!(matches!(error.fault, Fault::Truncated { needed: u64::MAX, .. }), "{error}");
}

#[test]
fn an_announcement_is_exactly_three_numbers() {
    let announcement = Announcement { first_open: 1, clock: u64::MAX, samples: 256 };
    let bytes = announcement.encode();
    assert_eq!(Announcement::decode(&bytes), Ok(announcement));
    for wrong in [&bytes[..23], &[&bytes[..], &[0]].concat()] {
        assert!(matches!(Announcement::decode(wrong), Err(Fault::PayloadMismatch { .. })));
    }
}

prop_compose! {
    fn any_frame()(
        kind in prop::sample::select(&Kind::ALL[..]),
        (codec, dtype) in any::<(u8, u8)>(),
        (replica, incarnation, fragment, aux, count) in any::<(u32, u32, u32, u32, u32)>(),
        (seq, version) in any::<(u64, u64)>(),
        flags in any::<u32>(),
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) -> (Header, Vec<u8>) {
        let (codec, dtype) = if kind.carries_elements() { (codec, dtype) } else { (0, 0) };
        let flags = flags & kind.flags_known();
        let header = Header {
            codec, dtype, flags, replica, incarnation, fragment, seq, version, aux, count,
            ..Header::new(kind).with_payload(&payload)
        };
        (header, payload)
    }
}

proptest! {
    #[test]
    fn frames_round_trip(frames in prop::collection::vec(any_frame(), 0..5)) {
        let mut bytes = Vec::new();
        for (header, payload) in &frames {
            bytes.extend_from_slice(&header.encode());
            bytes.extend_from_slice(payload);
        }
        let read: Result<Vec<_>, _> = Scan::new(&bytes).collect();
        let written: Vec<_> = frames.iter().map(|(h, p)| (*h, &p[..])).collect();
        prop_assert_eq!(read, Ok(written));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(bytes.is_empty() || Scan::new(&bytes).any(|frame| frame.is_err()));
    }
}
