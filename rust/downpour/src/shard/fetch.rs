//! What a fetch sends: headers, and the published stripes themselves.
//!
//! A stripe is pinned and handed out as it is; its checksum was computed when somebody first
//! asked, and the fragment's is combined from its stripes' without reading a byte. Copied are
//! fragments so small that a scatter list costs more, and one at a time what readers may not keep:
//! many slow ones would hold every block that records need.

use std::ops::Range;
use std::sync::PoisonError;

use super::Shard;
use crate::checksum::Combiner;
use crate::frame::{HEADER_SIZE, Header, Kind};
use crate::kernel::DType;
use crate::store::{Geometry, Pinned, PinnedFragment};

/// Fragments of at most this many bytes are copied behind their header: about what the kernel and
/// the interpreter spend on one more element of a scatter list, in bytes copied.
pub const GATHER_SIZE: usize = 16 * 1024;

const ELEMENT_SIZE: usize = size_of::<f32>();

/// A part of the byte stream of a fetch.
#[derive(Debug)]
pub enum Piece {
    /// Headers, and copied fragments behind theirs.
    Bytes(Vec<u8>),
    /// The parameters of a stripe, pinned.
    Stripe(Pinned),
}

/// Some consecutive frames of a fetch.
#[derive(Debug, Default)]
pub struct Batch {
    /// To be sent in order.
    pub pieces: Vec<Piece>,
    /// Frames in the pieces.
    pub frames: usize,
    /// Bytes in the pieces.
    pub size: usize,
    /// The first fragment that was not looked at; the one behind the shard's last when done.
    pub cursor: u32,
}

impl Shard {
    /// PARAMETERS frames of the fragments from `cursor` on whose last record is later than
    /// `since`, until they are `size_max` bytes or more, or `stop` or the shard's end is reached. A
    /// cursor before the shard's first fragment is as good as that.
    ///
    /// `since` 0 means that the asker has nothing: every fragment is sent, pushed into or not. The
    /// batch ends early where other readers keep so much that this one must copy.
    #[must_use]
    pub fn parameter_frames(
        &self,
        since: u64,
        cursor: u32,
        size_max: usize,
        stop: Option<u32>,
    ) -> Batch {
        let Range { start, end } = self.fragments();
        let end = stop.map_or(end, |stop| stop.min(end));
        let mut batch = Batch { cursor: cursor.max(start), ..Batch::default() };
        while batch.cursor < end && (batch.frames == 0 || batch.size < size_max) {
            let place = (batch.cursor - start) as usize;
            let mut is_full = false;
            if since == 0 || self.store().fragment_lsn(place) > since {
                let mut pinned = self.pin_whole(place);
                let size = pinned.stripes.iter().map(|p| size_of_val(p.parameters())).sum();
                is_full = size > GATHER_SIZE && !self.store().keep(&mut pinned);
                if is_full && batch.frames > 0 {
                    break;
                }
                self.add_frame(&mut batch, pinned, size, is_full);
            }
            batch.cursor += 1;
            if is_full {
                break;
            }
        }
        batch
    }

    /// A fragment between two of its records: never half of an update.
    fn pin_whole(&self, place: usize) -> PinnedFragment {
        let pinned = self.store().pin_fragment(place);
        if pinned.whole {
            return pinned;
        }
        // Writers on other threads were faster every time: hold records back for one look.
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.store().pin_fragment(place)
    }

    /// The frame of the fragment at the batch's cursor.
    fn add_frame(&self, batch: &mut Batch, pinned: PinnedFragment, size: usize, must_copy: bool) {
        let is_copied = must_copy || size <= GATHER_SIZE;
        let header = Header {
            dtype: DType::F32 as u8,
            fragment: batch.cursor,
            seq: pinned.lsn,
            version: pinned.version,
            length: size as u64,
            payload_crc: self.joint.crc32c(&pinned.stripes),
            ..Header::new(Kind::Parameters)
        };
        let bytes = batch.bytes(HEADER_SIZE + if is_copied { size } else { 0 });
        bytes.extend_from_slice(&header.encode());
        if is_copied {
            for stripe in &pinned.stripes {
                bytes.extend_from_slice(bytemuck::cast_slice(stripe.parameters()));
            }
        } else {
            batch.pieces.extend(pinned.stripes.into_iter().map(Piece::Stripe));
        }
        batch.frames += 1;
        batch.size += HEADER_SIZE + size;
    }
}

impl Batch {
    /// The bytes at the end, with room for `size` more.
    fn bytes(&mut self, size: usize) -> &mut Vec<u8> {
        if !matches!(self.pieces.last(), Some(Piece::Bytes(_))) {
            self.pieces.push(Piece::Bytes(Vec::with_capacity(size)));
        }
        match self.pieces.last_mut() {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => unreachable!("bytes were pushed last"),
        }
    }
}

/// Combines the checksums of neighbouring stripes.
#[derive(Debug)]
pub(super) struct Joint {
    whole: Combiner,
    /// The shard's last stripe may be shorter.
    last: Combiner,
}

impl Joint {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let Geometry { stripe_len, len, .. } = *geometry;
        let rest = len % stripe_len;
        let whole = Combiner::new(stripe_len * ELEMENT_SIZE);
        let last = if rest == 0 { whole.clone() } else { Combiner::new(rest * ELEMENT_SIZE) };
        Self { whole, last }
    }

    fn crc32c(&self, stripes: &[Pinned]) -> u32 {
        stripes.iter().fold(0, |crc, stripe| {
            let size = size_of_val(stripe.parameters());
            let combiner = if size == self.whole.len() { &self.whole } else { &self.last };
            debug_assert_eq!(combiner.len(), size);
            combiner.combine(crc, stripe.crc32c())
        })
    }
}
