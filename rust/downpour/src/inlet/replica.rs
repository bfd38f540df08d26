//! The receiving end of a replica's stream.

use super::{Frame, InletError, Misuse};
use crate::checksum::crc32c;
use crate::frame::{Fault, HEADER_SIZE, Header, Kind, ProtocolError};

/// Bytes read beyond what is known to come, in the hope of the next header and small frames.
const GREEDY_SIZE: usize = 4096;

const ELEMENT_SIZE: usize = size_of::<f32>();

/// The dtype code of f32: parameters travel in no other.
const F32: u8 = 1;

/// Where parameters land, lent to each call.
#[derive(Debug)]
pub struct Target<'a> {
    /// The bytes of `len` f32 values.
    pub values: &'a mut [u8],
    /// One version a fragment.
    pub versions: &'a mut [u64],
}

/// Which memory the next bytes belong into, as byte offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// `scratch[start..stop]`.
    Scratch { start: usize, stop: usize },
    /// `target.values[start..stop]`.
    Target { start: usize, stop: usize },
}

/// A payload of elements of which some bytes are still on their way.
#[derive(Clone, Copy, Debug)]
struct Partial {
    header: Header,
    /// Byte range of the payload in the target, and how far it has come.
    start: usize,
    filled: usize,
    stop: usize,
}

/// Parses one shard's stream; parameters land in the target, everything else is reported. From
/// another replica it may be sums that land.
///
/// Bytes land before their checksum can be known. After an error the target holds damaged
/// values: fetch again, from the fragment that [`landed`](Self::landed) names or an earlier one.
#[derive(Debug)]
pub struct ReplicaInlet {
    len: usize,
    fragment_len: usize,
    first_fragment: u32,
    control_size_max: usize,
    /// The one kind of frame whose payload lands.
    lands: Kind,
    begin: usize,
    end: usize,
    /// Bytes of the stream before `scratch[begin]`, or before the frame that is landing.
    offset: u64,
    header: Option<Header>,
    partial: Option<Partial>,
    landed: (u64, u32),
    failure: Option<ProtocolError>,
}

impl ReplicaInlet {
    /// For a shard of `len` elements in fragments of `fragment_len`, of which the first is the
    /// layout's `first_fragment`; control payloads are limited to `control_size_max` bytes.
    ///
    /// # Panics
    /// If `fragment_len` is 0.
    #[must_use]
    pub fn new(
        len: usize,
        fragment_len: usize,
        first_fragment: u32,
        control_size_max: usize,
    ) -> Self {
        assert!(fragment_len > 0, "a fragment has elements");
        Self {
            len,
            fragment_len,
            first_fragment,
            control_size_max,
            lands: Kind::Parameters,
            begin: 0,
            end: 0,
            offset: 0,
            header: None,
            partial: None,
            landed: (0, first_fragment),
            failure: None,
        }
    }

    /// The same for another replica's stream of sums.
    #[must_use]
    pub fn of_sums(self) -> Self {
        Self { lands: Kind::Sum, ..self }
    }

    /// How many payloads have landed whole, and the fragment behind the last of them: where a
    /// fetch that was cut off goes on.
    #[must_use]
    pub fn landed(&self) -> (u64, u32) {
        self.landed
    }

    /// Fragments of the shard.
    #[must_use]
    pub fn fragments(&self) -> usize {
        self.len.div_ceil(self.fragment_len)
    }

    /// Elements of the shard.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A shard is never empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the scratch: the largest control frame and a greedy read behind it.
    #[must_use]
    pub fn scratch_size(&self) -> usize {
        HEADER_SIZE + self.control_size_max + GREEDY_SIZE
    }

    /// Whether a target may be replaced now.
    ///
    /// # Errors
    /// [`Misuse::Landing`] while a payload is on its way into the old one, [`Misuse::Target`] if
    /// the new one does not fit.
    pub fn check_target(&self, values: usize, versions: usize) -> Result<(), Misuse> {
        if let Some(partial) = &self.partial {
            return Err(Misuse::Landing { fragment: partial.header.fragment });
        }
        let (len, fragments) = (self.len, self.fragments());
        if (values, versions) == (len, fragments) {
            return Ok(());
        }
        Err(Misuse::Target { values, versions, len, fragments })
    }

    /// Where the next bytes of the stream belong; never empty.
    ///
    /// # Errors
    /// [`Misuse::Scratch`] if `scratch` has not [`scratch_size`](Self::scratch_size) bytes.
    pub fn window(&mut self, scratch: &mut [u8]) -> Result<Landing, Misuse> {
        self.check_scratch(scratch)?;
        if let Some(Partial { start, filled, stop, .. }) = self.partial {
            return Ok(Landing::Target { start: start + filled, stop });
        }
        scratch.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        let payload = self.header.map_or(0, |header| self.limited_size(&header));
        let wanted = (HEADER_SIZE + payload).max(self.end) + GREEDY_SIZE;
        Ok(Landing::Scratch { start: self.end, stop: wanted.min(scratch.len()) })
    }

    /// Take `count` bytes that were written at the window's start, and report one frame.
    ///
    /// # Errors
    /// As [`ShardInlet::advance`](super::ShardInlet::advance).
    pub fn advance(
        &mut self,
        scratch: &[u8],
        count: usize,
        mut target: Option<Target<'_>>,
    ) -> Result<Option<Frame>, InletError> {
        self.check_scratch(scratch)?;
        if let Some(target) = &target {
            let (values, versions) = (target.values.len() / ELEMENT_SIZE, target.versions.len());
            let (len, fragments) = (self.len, self.fragments());
            if (values, versions) != (len, fragments) {
                return Err(Misuse::Target { values, versions, len, fragments }.into());
            }
        }
        let room = match &self.partial {
            Some(partial) => partial.stop - partial.start - partial.filled,
            None => scratch.len() - self.end,
        };
        if count > room {
            return Err(Misuse::Overrun { count, room }.into());
        }
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        match &mut self.partial {
            Some(partial) => partial.filled += count,
            None => self.end += count,
        }
        loop {
            let step = self.step(scratch, target.as_mut()).map_err(|fault| {
                let failure = fault.at(self.offset);
                *self.failure.insert(failure)
            })?;
            match step {
                Step::More => {}
                Step::Wait => return Ok(None),
                Step::Report(frame) => return Ok(Some(frame)),
            }
        }
    }

    fn check_scratch(&self, scratch: &[u8]) -> Result<(), Misuse> {
        let (size, expected) = (scratch.len(), self.scratch_size());
        if size == expected { Ok(()) } else { Err(Misuse::Scratch { size, expected }) }
    }

    /// The payload's size of a control header that was checked.
    fn limited_size(&self, header: &Header) -> usize {
        header.payload_size(self.control_size_max).unwrap_or(0)
    }

    fn step(&mut self, scratch: &[u8], target: Option<&mut Target<'_>>) -> Result<Step, Fault> {
        if let Some(partial) = self.partial {
            return self.land(&partial, target);
        }
        let bytes = &scratch[self.begin..self.end];
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_SIZE>() else {
            return Ok(Step::Wait);
        };
        let header = if let Some(header) = self.header {
            header
        } else {
            let header = Header::decode(head)?;
            self.check(&header)?;
            *self.header.insert(header)
        };
        if header.kind == self.lands {
            return self.begin_landing(&header, rest, target);
        }
        let size = self.limited_size(&header);
        let Some(payload) = rest.get(..size) else {
            return Ok(Step::Wait);
        };
        header.verify(payload)?;
        let frame = Frame { header, payload: payload.to_vec() };
        self.header = None;
        self.begin += HEADER_SIZE + size;
        self.offset += (HEADER_SIZE + size) as u64;
        Ok(Step::Report(frame))
    }

    fn check(&self, header: &Header) -> Result<(), Fault> {
        let kind = header.kind;
        if !kind.is_for_replica() {
            return Err(Fault::Unexpected {
                kind,
                state: "a replica sends it, it does not get it",
            });
        }
        if kind.carries_elements() && kind != self.lands {
            return Err(Fault::Unexpected { kind, state: "this stream is not for it" });
        }
        if kind != self.lands {
            return header.payload_size(self.control_size_max).map(drop);
        }
        if (header.dtype, header.codec) != (F32, 0) {
            let (dtype, codec) = (header.dtype, header.codec);
            return Err(Fault::Encoding { kind, dtype, codec, expected: F32 });
        }
        let Some((start, stop)) = self.place(header.fragment) else {
            let (fragment, start) = (header.fragment, self.first_fragment);
            let count = u32::try_from(self.fragments()).unwrap_or(u32::MAX);
            let stop = start.saturating_add(count);
            return Err(Fault::FragmentRange { kind, fragment, start, stop });
        };
        let expected = (stop - start) as u64;
        if header.length != expected {
            return Err(Fault::PayloadMismatch { kind, size: header.length, expected });
        }
        Ok(())
    }

    /// The number of a fragment in the target, if it is one of this shard's.
    fn index(&self, fragment: u32) -> Option<usize> {
        let index = fragment.checked_sub(self.first_fragment)? as usize;
        (index < self.fragments()).then_some(index)
    }

    /// Byte range of a fragment in the target.
    fn place(&self, fragment: u32) -> Option<(usize, usize)> {
        let start = self.index(fragment)? * self.fragment_len;
        let stop = (start + self.fragment_len).min(self.len);
        Some((start * ELEMENT_SIZE, stop * ELEMENT_SIZE))
    }

    /// Copy what has come with the header, and wait for the rest in the target itself.
    fn begin_landing(
        &mut self,
        header: &Header,
        rest: &[u8],
        target: Option<&mut Target<'_>>,
    ) -> Result<Step, Fault> {
        let (Some((start, stop)), Some(target)) = (self.place(header.fragment), target) else {
            return Err(Fault::Unexpected { kind: header.kind, state: "no fetch is under way" });
        };
        let filled = rest.len().min(stop - start);
        target.values[start..start + filled].copy_from_slice(&rest[..filled]);
        self.header = None;
        self.begin += HEADER_SIZE + filled;
        let partial = Partial { header: *header, start, filled, stop };
        self.partial = Some(partial);
        self.land(&partial, Some(target))
    }

    /// Check a payload whose last byte has come, and store its version.
    fn land(&mut self, partial: &Partial, target: Option<&mut Target<'_>>) -> Result<Step, Fault> {
        let Partial { header, start, filled, stop } = *partial;
        if start + filled < stop {
            return Ok(Step::Wait);
        }
        let (Some(index), Some(target)) = (self.index(header.fragment), target) else {
            return Err(Fault::Unexpected { kind: header.kind, state: "its target is gone" });
        };
        let (stored, computed) = (header.payload_crc, crc32c(&target.values[start..stop]));
        if stored != computed {
            return Err(Fault::PayloadChecksum { kind: header.kind, stored, computed });
        }
        target.versions[index] = header.version;
        self.landed = (self.landed.0 + 1, header.fragment.saturating_add(1));
        self.partial = None;
        self.offset += (HEADER_SIZE + stop - start) as u64;
        Ok(Step::More)
    }
}

/// What one step of the parser came to.
enum Step {
    /// A frame was handled; there may be another.
    More,
    /// More bytes are needed.
    Wait,
    /// A frame for the owner.
    Report(Frame),
}
