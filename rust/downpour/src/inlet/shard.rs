//! The receiving end of a shard's stream.

use std::collections::VecDeque;

use super::{Event, Frame, InletError, Misuse, Refusal, Settled};
use crate::frame::{
    Announcement, FLAG_FRAGMENT_AGAIN, Fault, HEADER_SIZE, Header, Kind, ProtocolError,
};
use crate::kernel::DType;
use crate::shard::{Answer, Record, Refused, Shard};
use crate::store::Admission;

/// A window offers at least this many bytes, so that many small frames arrive in one call; it
/// offers no more than a large frame needs, so that the bytes stay in the cache until applied.
const WINDOW_SIZE_MIN: usize = 256 * 1024 + 2 * HEADER_SIZE;

/// A run of a push between its announcement and its last record.
#[derive(Clone, Copy, Debug)]
struct Push {
    replica: u32,
    incarnation: u32,
    number: u64,
    next_fragment: u32,
    remaining: u32,
    /// `None` throws the records away.
    admission: Option<Admission>,
    pending: Settled,
}

impl Push {
    /// The report of what comes next, before any of it is settled. The LSN is kept: a last, empty
    /// report still names the latest record of the push.
    fn nothing(&self, lsn: u64) -> Settled {
        Settled { push: self.number, fragment: self.next_fragment, lsn, ..Settled::default() }
    }
}

/// Where the stream is.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Between pushes.
    Idle,
    /// A push waits for the owner's decision.
    Announced(Push),
    /// Its records are arriving.
    Receiving(Push),
}

/// Parses one replica's stream and settles its records in a shard.
///
/// The owner's loop, with a scratch of [`scratch_size`](Self::scratch_size) bytes:
/// ask for the [`window`](Self::window), receive into it, call [`advance`](Self::advance) with the
/// number of bytes, and then with 0 until it returns `None`.
#[derive(Debug)]
pub struct ShardInlet {
    payload_size_max: usize,
    control_size_max: usize,
    ack_every: u32,
    /// Unparsed bytes are `scratch[begin..end]`; `begin` is at `offset` of the stream.
    begin: usize,
    end: usize,
    offset: u64,
    /// The header at `begin`, once it is complete and was checked.
    header: Option<Header>,
    phase: Phase,
    /// Results of records not yet reported: at most three.
    events: VecDeque<Event>,
    failure: Option<ProtocolError>,
}

impl ShardInlet {
    /// Limits in bytes for elements and for everything else, and how many records one report may
    /// cover (at least 1).
    #[must_use]
    pub fn new(payload_size_max: usize, control_size_max: usize, ack_every: u32) -> Self {
        Self {
            payload_size_max,
            control_size_max,
            ack_every: ack_every.max(1),
            begin: 0,
            end: 0,
            offset: 0,
            header: None,
            phase: Phase::Idle,
            events: VecDeque::with_capacity(3),
            failure: None,
        }
    }

    /// Bytes of the scratch: the largest frame, and the next header behind it.
    #[must_use]
    pub fn scratch_size(&self) -> usize {
        HEADER_SIZE + self.payload_size_max.max(self.control_size_max) + HEADER_SIZE
    }

    /// Where the next bytes of the stream belong: `scratch[start..stop]`, never empty.
    ///
    /// Unparsed bytes move to the front of the scratch, so an earlier window is void.
    ///
    /// # Errors
    /// [`Misuse::Scratch`] if `scratch` has not [`scratch_size`](Self::scratch_size) bytes.
    pub fn window(&mut self, scratch: &mut [u8]) -> Result<(usize, usize), Misuse> {
        self.check_scratch(scratch)?;
        scratch.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        let payload = self.header.map_or(0, |header| self.limited_size(&header));
        let wanted = (HEADER_SIZE + payload + HEADER_SIZE).max(WINDOW_SIZE_MIN);
        let stop = if wanted > self.end { wanted.min(scratch.len()) } else { scratch.len() };
        debug_assert!(self.end < stop, "a whole frame was left unparsed in a full scratch");
        Ok((self.end, stop))
    }

    /// Take `count` bytes that were written at the window's start, and report one event.
    ///
    /// Applies every record that is complete until there is something to report.
    ///
    /// # Errors
    /// [`InletError::Protocol`] when the peer broke a rule: the stream is finished, the same error
    /// comes again, and everything before the offending frame was settled.
    /// [`InletError::Misuse`] when the owner did; nothing has changed.
    pub fn advance(
        &mut self,
        scratch: &[u8],
        count: usize,
        shard: &Shard,
    ) -> Result<Option<Event>, InletError> {
        self.check_scratch(scratch)?;
        let room = scratch.len() - self.end;
        if count > room {
            return Err(Misuse::Overrun { count, room }.into());
        }
        if matches!(self.phase, Phase::Announced(_)) && self.events.is_empty() {
            return Err(Misuse::Undecided.into());
        }
        self.end += count;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if let Some(failure) = self.failure {
                return Err(failure.into());
            }
            match self.step(scratch, shard) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(fault) => self.fail(fault),
            }
        }
    }

    /// Bytes that have arrived and were not parsed.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.end - self.begin
    }

    /// Take the records of the push just announced.
    ///
    /// # Errors
    /// [`Misuse`] if none was announced or the admission makes no sense.
    pub fn accept(&mut self, admission: impl Into<Admission>, shard: &Shard) -> Result<(), Misuse> {
        let admission = admission.into();
        admission.validate(shard.store().accumulates())?;
        self.decide(Some(admission))?;
        if let Phase::Receiving(Push { remaining: 0, pending, .. }) = self.phase {
            let settled = Settled { last: true, lsn: shard.store().lsn(), ..pending };
            self.events.push_back(Event::Settled(settled));
            self.phase = Phase::Idle;
        }
        Ok(())
    }

    /// Receive and throw away the records of the push just announced; none is reported.
    ///
    /// # Errors
    /// [`Misuse::NotAnnounced`].
    pub fn skip(&mut self) -> Result<(), Misuse> {
        self.decide(None)?;
        if let Phase::Receiving(Push { remaining: 0, .. }) = self.phase {
            self.phase = Phase::Idle;
        }
        Ok(())
    }

    /// Report what was settled since the last report, and maybe nothing, of the push that is being
    /// applied: for an owner that wants to answer now and not only when enough has come.
    ///
    /// `None` if no push is, or an event is due that comes before.
    #[must_use]
    pub fn settled(&mut self) -> Option<Settled> {
        let Phase::Receiving(push) = &mut self.phase else {
            return None;
        };
        if push.admission.is_none() || !self.events.is_empty() || self.failure.is_some() {
            return None;
        }
        let settled = push.pending;
        push.pending = push.nothing(settled.lsn);
        Some(settled)
    }

    /// Whether nothing is known here that a new inlet would not know: no push is under way, and
    /// no byte of the next frame has come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
            && self.pending() == 0
            && self.events.is_empty()
            && self.failure.is_none()
    }

    fn decide(&mut self, admission: Option<Admission>) -> Result<(), Misuse> {
        let Phase::Announced(push) = self.phase else {
            return Err(Misuse::NotAnnounced);
        };
        self.phase = Phase::Receiving(Push { admission, ..push });
        Ok(())
    }

    fn check_scratch(&self, scratch: &[u8]) -> Result<(), Misuse> {
        let (size, expected) = (scratch.len(), self.scratch_size());
        if size == expected { Ok(()) } else { Err(Misuse::Scratch { size, expected }) }
    }

    /// Records that were settled keep their report, then the error comes for ever.
    fn fail(&mut self, fault: Fault) {
        self.flush(false);
        self.failure = Some(fault.at(self.offset));
    }

    /// Parse one frame; false when more bytes are needed.
    fn step(&mut self, scratch: &[u8], shard: &Shard) -> Result<bool, Fault> {
        if matches!(self.phase, Phase::Announced(_)) {
            return Ok(false);
        }
        let bytes = &scratch[self.begin..self.end];
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_SIZE>() else {
            return Ok(false);
        };
        let header = if let Some(header) = self.header {
            header
        } else {
            let header = Header::decode(head)?;
            self.check(&header, shard)?;
            *self.header.insert(header)
        };
        let size = self.limited_size(&header);
        let Some(payload) = rest.get(..size) else {
            return Ok(false);
        };
        header.verify(payload)?;
        if header.kind == Kind::Fragment {
            self.settle(&header, payload, shard);
        } else {
            self.report(&header, payload)?;
        }
        self.header = None;
        self.begin += HEADER_SIZE + size;
        self.offset += (HEADER_SIZE + size) as u64;
        Ok(true)
    }

    /// The payload's size of a header that [`check`](Self::check) has passed.
    fn limited_size(&self, header: &Header) -> usize {
        header.payload_size(self.limit(header.kind)).unwrap_or(0)
    }

    fn limit(&self, kind: Kind) -> usize {
        if kind.carries_elements() { self.payload_size_max } else { self.control_size_max }
    }

    /// Everything a header alone can get wrong.
    fn check(&self, header: &Header, shard: &Shard) -> Result<(), Fault> {
        let kind = header.kind;
        if !kind.is_for_shard() {
            return Err(Fault::Unexpected { kind, state: "a shard sends it, it does not get it" });
        }
        header.payload_size(self.limit(kind))?;
        match (kind, &self.phase) {
            (Kind::Push, Phase::Idle) => check_push(header),
            (Kind::Push, _) => {
                Err(Fault::Unexpected { kind, state: "the push before it is not complete" })
            }
            (Kind::Fragment, Phase::Receiving(push)) => check_fragment(header, push, shard),
            (Kind::Fragment, _) => Err(Fault::Unexpected { kind, state: "no push announced it" }),
            _ => Ok(()),
        }
    }

    /// Pass a frame to the owner, after the reports of what came before it.
    fn report(&mut self, header: &Header, payload: &[u8]) -> Result<(), Fault> {
        if header.kind == Kind::Push {
            Announcement::decode(payload)?;
            self.phase = Phase::Announced(Push {
                replica: header.replica,
                incarnation: header.incarnation,
                number: header.seq,
                next_fragment: header.fragment,
                remaining: header.count,
                admission: None,
                pending: Settled {
                    push: header.seq,
                    fragment: header.fragment,
                    ..Settled::default()
                },
            });
        } else {
            self.flush(false);
        }
        let frame = Frame { header: *header, payload: payload.to_vec() };
        self.events.push_back(Event::Frame(frame));
        Ok(())
    }

    /// Settle the next record of the push in progress.
    fn settle(&mut self, header: &Header, payload: &[u8], shard: &Shard) {
        let Phase::Receiving(push) = &mut self.phase else {
            unreachable!("check() lets a FRAGMENT pass only inside a push");
        };
        push.next_fragment += 1;
        push.remaining -= 1;
        let is_last = push.remaining == 0;
        if let Some(admission) = push.admission {
            let record = Record {
                replica: header.replica,
                incarnation: header.incarnation,
                push: header.seq,
                fragment: header.fragment,
                base_version: header.version,
                dtype: header.dtype,
                codec: header.codec,
                payload,
                again: header.flags & FLAG_FRAGMENT_AGAIN != 0,
                admission,
            };
            match shard.settle(&record) {
                Ok(answer) => push.pending.add(answer),
                Err(refused) => self.refuse(header, refused),
            }
            self.report_settled(is_last);
        }
        if is_last {
            self.phase = Phase::Idle;
        }
    }

    /// Report a refusal behind the records before it; the run of settled ones starts anew.
    fn refuse(&mut self, header: &Header, refused: Refused) {
        self.flush(false);
        let Refused { code, count, first_index, norm } = refused;
        let (push, fragment) = (header.seq, header.fragment);
        let refusal = Refusal { push, fragment, code, count, first_index, norm };
        self.events.push_back(Event::Refusal(refusal));
        if let Phase::Receiving(push) = &mut self.phase {
            push.pending.fragment = push.next_fragment;
        }
    }

    fn report_settled(&mut self, is_last: bool) {
        if let Phase::Receiving(push) = &self.phase
            && (is_last || push.pending.count >= self.ack_every)
        {
            self.flush(is_last);
        }
    }

    /// Report the settled records that were not reported yet; the last report may be empty.
    fn flush(&mut self, last: bool) {
        let Phase::Receiving(push) = &mut self.phase else {
            return;
        };
        if push.pending.count == 0 && !last {
            return;
        }
        let settled = Settled { last, ..push.pending };
        push.pending = push.nothing(settled.lsn);
        self.events.push_back(Event::Settled(settled));
    }
}

impl Settled {
    fn add(&mut self, answer: Answer) {
        self.count += 1;
        match answer {
            Answer::Applied { lsn, staleness } => {
                self.applied += 1;
                self.lsn = self.lsn.max(lsn);
                self.staleness = self.staleness.max(staleness);
            }
            Answer::Duplicate { lsn } => self.lsn = self.lsn.max(lsn),
        }
    }
}

fn check_push(header: &Header) -> Result<(), Fault> {
    let Header { kind, seq: push, fragment, count, .. } = *header;
    if header.replica == 0 || header.incarnation == 0 {
        let (replica, incarnation) = (header.replica, header.incarnation);
        return Err(Fault::Nobody { kind, replica, incarnation });
    }
    if push == 0 || push == u64::MAX || fragment.checked_add(count).is_none() {
        return Err(Fault::Run { push, fragment, count });
    }
    Ok(())
}

fn check_fragment(header: &Header, push: &Push, shard: &Shard) -> Result<(), Fault> {
    if (header.replica, header.incarnation) != (push.replica, push.incarnation) {
        return Err(Fault::Identity {
            replica: header.replica,
            incarnation: header.incarnation,
            expected_replica: push.replica,
            expected_incarnation: push.incarnation,
        });
    }
    if (header.seq, header.fragment) != (push.number, push.next_fragment) {
        return Err(Fault::Sequence {
            push: header.seq,
            fragment: header.fragment,
            expected_push: push.number,
            expected_fragment: push.next_fragment,
        });
    }
    if header.flags & FLAG_FRAGMENT_AGAIN != 0 {
        let (kind, size, expected) = (header.kind, header.length, 0);
        return if size == 0 {
            Ok(())
        } else {
            Err(Fault::PayloadMismatch { kind, size, expected })
        };
    }
    // Another shard's fragment, an unknown dtype or codec is refused record by record: its length
    // says nothing.
    let len = shard.fragment_len(header.fragment);
    if let (Some(len), Ok(dtype), 0) = (len, DType::try_from(header.dtype), header.codec) {
        let expected = (len * dtype.size()) as u64;
        if header.length != expected {
            return Err(Fault::PayloadMismatch {
                kind: header.kind,
                size: header.length,
                expected,
            });
        }
    }
    Ok(())
}
