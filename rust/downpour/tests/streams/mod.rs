//! Streams for the tests of the inlets: a small shard, frames by the byte, drivers for any cut.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::cast_precision_loss, reason = "small integers")]

use std::collections::BTreeMap;

use downpour::dedupe::{Run, Verdict};
use downpour::frame::{Announcement, Header, Kind, ProtocolError};
use downpour::inlet::{Event, InletError, Settled, ShardInlet};
use downpour::kernel::DType;
use downpour::optimizer::Optimizer;
use downpour::shard::Shard;
use downpour::store::{Geometry, Store};

pub const LEN: usize = 100;
pub const FRAGMENT_LEN: usize = 32;
pub const FRAGMENTS: usize = 4;
pub const PAYLOAD_SIZE_MAX: usize = 8 * FRAGMENT_LEN;
pub const CONTROL_SIZE_MAX: usize = 128;
pub const ACK_EVERY: u32 = 3;
/// The shard's fragments have these numbers in the layout: 5 to 8.
pub const FIRST: u32 = 5;

/// SGD with a power-of-two rate: small integers stay exact.
pub fn shard() -> Shard {
    let parts = [("sgd".to_owned(), BTreeMap::from([("lr".to_owned(), 0.5)]))];
    let geometry = Geometry { len: LEN, stripe_len: 16, fragment_len: FRAGMENT_LEN };
    Shard::new(Store::new(geometry, Optimizer::compile(&parts, None).unwrap()).unwrap(), FIRST)
        .unwrap()
}

pub fn inlet() -> ShardInlet {
    ShardInlet::new(PAYLOAD_SIZE_MAX, CONTROL_SIZE_MAX, ACK_EVERY)
}

pub fn parameters(shard: &Shard) -> Vec<f32> {
    let mut values = vec![0.0; LEN];
    shard.store().read_plane(0, 0, &mut values).unwrap();
    values
}

/// Everything a record can change.
pub fn state(shard: &Shard) -> (Vec<u8>, Vec<u32>) {
    (shard.export_state(), parameters(shard).into_iter().map(f32::to_bits).collect())
}

pub fn gradient() -> Vec<f32> {
    (0..LEN).map(|i| (i % 7) as f32 - 3.0).collect()
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header.with_payload(payload).encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

pub fn control(kind: Kind, seq: u64) -> Vec<u8> {
    frame(Header { seq, ..Header::new(kind) }, b"")
}

/// A run of `count` records of a push of replica 1, from a fragment of the shard on.
pub fn announcement(push: u64, place: u32, count: u32) -> Vec<u8> {
    let payload = Announcement { first_open: 1, clock: 3, samples: 64 }.encode();
    let head = Header {
        replica: 1,
        incarnation: 1,
        seq: push,
        fragment: FIRST + place,
        count,
        ..Header::new(Kind::Push)
    };
    frame(head, &payload)
}

/// One record of replica 1.
pub fn record(push: u64, place: u32, dtype: u8, payload: &[u8]) -> Vec<u8> {
    let head = Header {
        dtype,
        replica: 1,
        incarnation: 1,
        fragment: FIRST + place,
        seq: push,
        ..Header::new(Kind::Fragment)
    };
    frame(head, payload)
}

/// A whole push of `values`: the announcement, then a record for each fragment.
pub fn push(push: u64, values: &[f32]) -> Vec<u8> {
    let mut stream = announcement(push, 0, FRAGMENTS.try_into().unwrap());
    for (place, payload) in (0..).zip(bytes_of(values).chunks(4 * FRAGMENT_LEN)) {
        stream.extend(record(push, place, DType::F32 as u8, payload));
    }
    stream
}

/// What the owner of an inlet does with a push.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    Accept(f32),
    Skip,
}

/// Feed a stream in pieces of the given sizes (repeated), deciding about every push alike.
pub fn feed(
    inlet: &mut ShardInlet,
    shard: &Shard,
    stream: &[u8],
    sizes: &[usize],
    decision: Decision,
) -> (Vec<Event>, Option<ProtocolError>) {
    let mut scratch = vec![0; inlet.scratch_size()];
    let mut events = Vec::new();
    let mut rest = stream;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let (start, stop) = inlet.window(&mut scratch).unwrap();
        assert!(start < stop && stop <= scratch.len(), "empty window {start}..{stop}");
        let count = (*sizes.next().unwrap()).min(stop - start).min(rest.len());
        scratch[start..start + count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        let mut arrived = count;
        loop {
            match inlet.advance(&scratch, arrived, shard) {
                Ok(None) => break,
                Ok(Some(event)) => {
                    decide(inlet, shard, &event, decision);
                    events.push(event);
                }
                Err(InletError::Protocol(error)) => return (events, Some(error)),
                Err(InletError::Misuse(error)) => panic!("the driver misused the inlet: {error}"),
            }
            arrived = 0;
        }
    }
    (events, None)
}

pub fn decide(inlet: &mut ShardInlet, shard: &Shard, event: &Event, decision: Decision) {
    let Event::Frame(frame) = event else { return };
    let head = &frame.header;
    if head.kind != Kind::Push {
        return;
    }
    let said = Announcement::decode(&frame.payload).unwrap();
    let verdict = shard.admit(&Run {
        replica: head.replica,
        incarnation: head.incarnation,
        push: head.seq,
        fragment: head.fragment,
        count: head.count,
        first_open: said.first_open,
    });
    assert!(
        matches!(verdict, Verdict::New | Verdict::Partly | Verdict::Done | Verdict::Elsewhere),
        "{verdict:?}"
    );
    match decision {
        Decision::Accept(scale) => inlet.accept(scale, shard).unwrap(),
        Decision::Skip => inlet.skip().unwrap(),
    }
}

/// The reports among events.
pub fn settled(events: &[Event]) -> Vec<Settled> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Settled(settled) => Some(*settled),
            _ => None,
        })
        .collect()
}
